//! How often blocks were offered lately that the level did not have, roughly: who is offered again has been asked for again. So
//! has a block that was loaded from the level before the ring ran over it.
//!
//! Two arrays of small counters. A block has two of them in each, and its count there is the lower one (Cormode and Muthukrishnan,
//! "An improved data stream summary: the count-min sketch", 2005; only the lower one is raised). When the
//! younger array has as many notes as it is made for, it becomes the older one, and the older one is cleared. So a block
//! is remembered for between one and two times [`NOTES`] notes, and one in some fifty that were never noted is taken for one that was.
//!
//! Locking: `l2-seen`, a leaf lock, for a look.

use forebay_base::sync::Mutex;

use crate::record::Identity;

/// Counters of each array: a power of two.
const COUNTERS: u64 = if cfg!(forebay_model) { 1 << 9 } else { 1 << 21 };
/// Notes that each is made for.
const NOTES: u64 = COUNTERS / 8;
/// Bits of a counter.
const BITS: u64 = 2;
/// What a counter holds at most.
pub(crate) const MOST_SEEN: u8 = (1 << BITS) - 1;

/// See the module's head.
pub(crate) struct Seen(Mutex<Pair>);

struct Pair {
    young: Array,
    old: Array,
    notes: u64,
}

struct Array(Box<[u64]>);

impl Array {
    fn new() -> Self {
        Self(vec![0; (COUNTERS * BITS / 64) as usize].into_boxed_slice())
    }

    fn get(&self, counter: u64) -> u8 {
        let bit = counter * BITS;
        (self.0[(bit / 64) as usize] >> (bit % 64)) as u8 & MOST_SEEN
    }

    fn raise(&mut self, counter: u64, to: u8) {
        let (bit, now) = (counter * BITS, self.get(counter));
        if now < to {
            self.0[(bit / 64) as usize] += u64::from(to - now) << (bit % 64);
        }
    }

    fn count(&self, counters: [u64; 2]) -> u8 {
        counters.map(|counter| self.get(counter)).into_iter().min().unwrap_or(0)
    }
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self(Mutex::named("l2-seen", Pair { young: Array::new(), old: Array::new(), notes: 0 }))
    }

    /// How often the block was noted lately, up to [`MOST_SEEN`]. It is once more now.
    pub(crate) fn note(&self, id: Identity) -> u8 {
        // Bits that the index does not choose its slots by, as far as there are any.
        let spread = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let counters = [spread >> 32, spread & 0xffff_ffff].map(|half| half & (COUNTERS - 1));
        let pair = &mut *self.0.lock();
        if pair.notes >= NOTES {
            std::mem::swap(&mut pair.young, &mut pair.old);
            pair.young.0.fill(0);
            pair.notes = 0;
        }
        let young = pair.young.count(counters);
        if young < MOST_SEEN {
            pair.notes += 1;
            counters.into_iter().for_each(|counter| pair.young.raise(counter, young + 1));
        }
        (young + pair.old.count(counters)).min(MOST_SEEN)
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        2 * COUNTERS * BITS / 8
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::HashMap;

    use forebay_base::rng::SmallRng;

    use super::*;

    fn id(n: u64) -> Identity {
        Identity(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()))
    }

    #[test]
    fn what_was_noted_lately_is_known_and_what_was_long_ago_is_not() {
        let seen = Seen::new();
        let new = (0..NOTES).filter(|n| seen.note(id(*n)) == 0).count() as u64;
        assert!(new > NOTES * 95 / 100, "{new} of {NOTES} were taken for new");
        assert!((0..NOTES).all(|n| seen.note(id(n)) > 0));
        // Twice as many notes later.
        (NOTES..4 * NOTES).for_each(|n| _ = seen.note(id(n)));
        let known = (0..1000).filter(|n| seen.note(id(*n)) > 0).count();
        assert!(known < 100, "{known} of 1,000 that were noted long ago are known");
    }

    /// The twin counts exactly, and forgets nothing.
    #[test]
    fn counts_are_never_too_low_and_seldom_too_high() {
        let (seen, mut twin) = (Seen::new(), HashMap::<u64, u8>::new());
        let mut rng = SmallRng::from_seed(3);
        let mut wrong = 0;
        for _ in 0..NOTES {
            let n = rng.below(NOTES / 2);
            let count = twin.entry(n).or_default();
            let found = seen.note(id(n));
            assert!(found >= *count, "{n}: {found}, not {count}");
            wrong += u64::from(found > *count);
            *count = (*count + 1).min(MOST_SEEN);
        }
        assert!(wrong < NOTES / 20, "{wrong} of {NOTES} are too high");
    }
}
