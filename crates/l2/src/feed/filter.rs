//! What was refused lately, roughly: a block that is offered again has proven that it is asked for again. So has one that was loaded
//! from the level before the ring ran over it.
//!
//! Two Bloom filters (Bloom, 1970). Refused blocks are noted in the younger one; when that has as many as it is made for,
//! it becomes the older one, and the older one is cleared. So a block is remembered for between one and two
//! times [`NOTES`] refusals, and one in some fifty that were never refused is taken for one that was.
//!
//! Locking: `l2-filter`, a leaf lock, for a look.

use forebay_base::sync::Mutex;

use crate::record::Identity;

/// Bits of each filter: a power of two.
const BITS: u64 = if cfg!(forebay_model) { 1 << 10 } else { 1 << 21 };
/// Refusals that each is made for.
const NOTES: u64 = BITS / 8;

/// What was refused lately.
pub(crate) struct Filter(Mutex<Pair>);

struct Pair {
    young: Box<[u64]>,
    old: Box<[u64]>,
    notes: u64,
}

impl Filter {
    pub(crate) fn new() -> Self {
        let zeros = || vec![0; (BITS / 64) as usize].into_boxed_slice();
        Self(Mutex::named("l2-filter", Pair { young: zeros(), old: zeros(), notes: 0 }))
    }

    /// Whether the block was refused lately. If not, it is now.
    pub(crate) fn seen_or_note(&self, id: Identity) -> bool {
        // Bits that the index does not choose its slots by, as far as there are any.
        let spread = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = [spread >> 32, spread & 0xffff_ffff].map(|half| half & (BITS - 1));
        let mut pair = self.0.lock();
        let has = |filter: &[u64]| {
            bits.iter().all(|bit| filter[(bit / 64) as usize] >> (bit % 64) & 1 == 1)
        };
        if has(&pair.young) || has(&pair.old) {
            return true;
        }
        if pair.notes >= NOTES {
            let pair = &mut *pair;
            std::mem::swap(&mut pair.young, &mut pair.old);
            pair.young.fill(0);
            pair.notes = 0;
        }
        pair.notes += 1;
        bits.iter().for_each(|bit| pair.young[(bit / 64) as usize] |= 1 << (bit % 64));
        false
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        2 * BITS / 8
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_lately_is_known_and_what_was_long_ago_is_not() {
        let filter = Filter::new();
        let id = |n: u64| Identity(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()));
        let new = (0..NOTES).filter(|n| !filter.seen_or_note(id(*n))).count() as u64;
        assert!(new > NOTES * 95 / 100, "{new} of {NOTES} were taken for new");
        assert!((0..NOTES).all(|n| filter.seen_or_note(id(n))));
        // Twice as many refusals later.
        (NOTES..4 * NOTES).for_each(|n| _ = filter.seen_or_note(id(n)));
        let known = (0..1000).filter(|n| filter.seen_or_note(id(*n))).count();
        assert!(known < 100, "{known} of 1,000 that were refused long ago are known");
    }
}
