//! Sampling of blocks by the hash of their key: the one rule for all that look at a sample.
//!
//! A block is sampled if some bits of its hash are zero. So either all accesses to a block are seen
//! or none, and a smaller sample is part of each larger one.
//!
//! Locking: none.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// The 39 bits of a hash by which blocks are sampled and identified.
#[inline]
pub(crate) fn sample_key(hash: u64) -> u64 {
    hash >> 25
}

/// A sample that can be halved and doubled. At first it has all blocks.
#[derive(Default)]
pub(crate) struct Sample {
    /// A block is sampled if its sample key has none of these bits.
    mask: AtomicU64,
}

impl Sample {
    /// Whether the block with that [`sample_key`] is sampled now.
    #[inline]
    pub(crate) fn has(&self, key: u64) -> bool {
        key & self.mask.load(Ordering::Relaxed) == 0
    }

    /// A sample that has no block, except one in 2^39.
    #[cfg(feature = "insight")]
    pub(crate) fn none() -> Self {
        Self { mask: AtomicU64::new(Self::NONE) }
    }

    /// The mask of [`none`](Self::none).
    #[cfg(feature = "insight")]
    pub(crate) const NONE: u64 = u64::MAX;

    #[cfg(feature = "insight")]
    pub(crate) fn is_none(&self) -> bool {
        self.mask.load(Ordering::Relaxed) == Self::NONE
    }

    pub(crate) fn set_mask(&self, mask: u64) {
        self.mask.store(mask, Ordering::Relaxed);
    }
}
