//! The sampled keys whose next hit changes nothing: each miniature that samples the block has it,
//! with its mark set. Hits on them need not be noted.
//!
//! With skewed loads those are most hits. A key is added when a replayed access hits in all
//! miniatures, and removed when one of them clears its mark. A miniature that forgets a block does
//! not sample it any more. When a sample grows, all keys are removed, since a miniature may lack
//! the new ones.
//!
//! It is a table of tags without collision chains: a key takes the place of another. Accesses that
//! wait in the access buffer are not considered, so a hit may be dropped although it would have set
//! a mark again. Then the block looks a little less used.
//!
//! Locking: none to read; `simulations` to change.

use forebay_base::sync::atomic::{AtomicU32, Ordering};

/// Entries of a table. A power of two, more than the blocks in the miniature of one size.
const ENTRIES: usize = if cfg!(forebay_model) { 2 } else { 1024 };
/// Scatters keys. The low bits of a sampled key are zero.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Of one class.
pub(crate) struct MarkedKeys {
    /// Zero, or bits of a key.
    tags: [AtomicU32; ENTRIES],
}

impl MarkedKeys {
    fn entry(&self, key: u64) -> (&AtomicU32, u32) {
        let scattered = key.wrapping_mul(FACTOR);
        let entry = (scattered >> (u64::BITS - ENTRIES.ilog2())) as usize;
        (&self.tags[entry], (scattered >> 16) as u32 | 1)
    }

    #[inline]
    pub(crate) fn has(&self, key: u64) -> bool {
        let (entry, tag) = self.entry(key);
        entry.load(Ordering::Relaxed) == tag
    }

    pub(super) fn add(&self, key: u64) {
        let (entry, tag) = self.entry(key);
        entry.store(tag, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, key: u64) {
        let (entry, tag) = self.entry(key);
        if entry.load(Ordering::Relaxed) == tag {
            entry.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear(&self) {
        self.tags.iter().for_each(|tag| tag.store(0, Ordering::Relaxed));
    }
}

impl Default for MarkedKeys {
    fn default() -> Self {
        Self { tags: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl std::fmt::Debug for MarkedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MarkedKeys").finish_non_exhaustive()
    }
}
