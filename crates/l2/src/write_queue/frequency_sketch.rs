//! The frequency sketch: approximately how often a block was offered lately while the L2 did not
//! hold it. A block that is offered again was requested again. Hits of a block that the ring evicts
//! count too.
//!
//! The sketch has two arrays of small counters. A block maps to two counters in each array, and its
//! frequency there is the lower one (Cormode and Muthukrishnan, "An improved data stream summary:
//! the count-min sketch", 2005, with conservative update). After [`GENERATION_INCREMENTS`]
//! increments the young array becomes the old one, and the other is cleared. So a block is
//! remembered for one to two generations. About one in fifty unknown blocks is mistaken for a known
//! one.
//!
//! Locking: `l2-frequency-sketch`, a leaf lock, held for one increment.

use forebay_base::sync::Mutex;

use crate::record::KeyHash;

/// Counters in each array, a power of two.
const COUNTERS: u64 = if cfg!(forebay_model) { 1 << 9 } else { 1 << 21 };
/// Increments of a generation.
const GENERATION_INCREMENTS: u64 = COUNTERS / 8;
/// Bits of a counter.
const COUNTER_BITS: u64 = 2;
/// Maximum value of a counter.
pub(crate) const MAX_FREQUENCY: u8 = (1 << COUNTER_BITS) - 1;

/// The frequency sketch; see the module head.
pub(crate) struct FrequencySketch(Mutex<Generations>);

struct Generations {
    young: CounterArray,
    old: CounterArray,
    increments: u64,
}

struct CounterArray(Box<[u64]>);

impl CounterArray {
    fn new() -> Self {
        Self(vec![0; (COUNTERS * COUNTER_BITS / 64) as usize].into_boxed_slice())
    }

    fn get(&self, counter: u64) -> u8 {
        let bit = counter * COUNTER_BITS;
        (self.0[(bit / 64) as usize] >> (bit % 64)) as u8 & MAX_FREQUENCY
    }

    fn raise(&mut self, counter: u64, to: u8) {
        let (bit, now) = (counter * COUNTER_BITS, self.get(counter));
        if now < to {
            self.0[(bit / 64) as usize] += u64::from(to - now) << (bit % 64);
        }
    }

    fn count(&self, counters: [u64; 2]) -> u8 {
        counters.map(|counter| self.get(counter)).into_iter().min().unwrap_or(0)
    }
}

impl FrequencySketch {
    pub(crate) fn new() -> Self {
        Self(Mutex::named(
            "l2-frequency-sketch",
            Generations { young: CounterArray::new(), old: CounterArray::new(), increments: 0 },
        ))
    }

    /// Returns the block's frequency before the call, at most [`MAX_FREQUENCY`], and increments it.
    pub(crate) fn increment(&self, hash: KeyHash) -> u8 {
        // Uses bits that do not choose the index slot, as far as there are any.
        let spread = hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let counters = [spread >> 32, spread & 0xffff_ffff].map(|half| half & (COUNTERS - 1));
        let generations = &mut *self.0.lock();
        if generations.increments >= GENERATION_INCREMENTS {
            std::mem::swap(&mut generations.young, &mut generations.old);
            generations.young.0.fill(0);
            generations.increments = 0;
        }
        let young = generations.young.count(counters);
        if young < MAX_FREQUENCY {
            generations.increments += 1;
            counters.into_iter().for_each(|counter| generations.young.raise(counter, young + 1));
        }
        (young + generations.old.count(counters)).min(MAX_FREQUENCY)
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        2 * COUNTERS * COUNTER_BITS / 8
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::HashMap;

    use forebay_base::rng::SmallRng;

    use super::*;

    fn hash(n: u64) -> KeyHash {
        KeyHash(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()))
    }

    #[test]
    fn recent_increments_are_counted_and_old_ones_are_forgotten() {
        let frequency_sketch = FrequencySketch::new();
        let new = (0..GENERATION_INCREMENTS)
            .filter(|n| frequency_sketch.increment(hash(*n)) == 0)
            .count() as u64;
        assert!(
            new > GENERATION_INCREMENTS * 95 / 100,
            "{new} of {GENERATION_INCREMENTS} were taken for new"
        );
        assert!((0..GENERATION_INCREMENTS).all(|n| frequency_sketch.increment(hash(n)) > 0));
        // Two generations later.
        (GENERATION_INCREMENTS..4 * GENERATION_INCREMENTS)
            .for_each(|n| _ = frequency_sketch.increment(hash(n)));
        let known = (0..1000).filter(|n| frequency_sketch.increment(hash(*n)) > 0).count();
        assert!(known < 100, "{known} of 1,000 that were noted long ago are known");
    }

    /// The reference model counts exactly and forgets nothing.
    #[test]
    fn frequencies_are_never_too_low_and_seldom_too_high() {
        let (frequency_sketch, mut model) = (FrequencySketch::new(), HashMap::<u64, u8>::new());
        let mut rng = SmallRng::from_seed(3);
        let mut wrong = 0;
        for _ in 0..GENERATION_INCREMENTS {
            let n = rng.below(GENERATION_INCREMENTS / 2);
            let count = model.entry(n).or_default();
            let found = frequency_sketch.increment(hash(n));
            assert!(found >= *count, "{n}: {found}, not {count}");
            wrong += u64::from(found > *count);
            *count = (*count + 1).min(MAX_FREQUENCY);
        }
        assert!(
            wrong < GENERATION_INCREMENTS / 20,
            "{wrong} of {GENERATION_INCREMENTS} are too high"
        );
    }
}
