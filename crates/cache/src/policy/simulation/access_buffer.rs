//! The access buffer: passes accesses of sampled blocks to the simulations, without a lock and
//! without ordering.
//!
//! Each shard has a ring of words. A hit on a sampled block stores one word, with plain stores. The
//! holder of the simulations' lock takes words by swap, so none is taken twice. An access is whole
//! in its word, so the order of stores does not matter.
//!
//! Accesses may be lost: threads that share a shard may overwrite each other's, and a full ring
//! drops new ones at the cost of two loads. A lost access is only a smaller sample.
//!
//! Locking: none to add; `simulations` to take.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::thread_slot;

use crate::attributes::Class;

/// Words per ring, a power of two.
const WORDS: usize = if cfg!(forebay_model) { 2 } else { 256 };

/// An access to a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// See [`sample_key`](crate::sample::sample_key).
    pub(crate) key: u64,
    pub(crate) class: Class,
    pub(crate) weight: u32,
}

// A word: key, class, and weight as mantissa and exponent. Never zero, because no weight is zero.
const KEY_SHIFT: u32 = 25;
const CLASS_SHIFT: u32 = 24;
const EXPONENT_SHIFT: u32 = 20;
const MANTISSA_BITS: u32 = 20;

impl Access {
    fn word(self) -> u64 {
        let weight = self.weight.max(1);
        let exponent = (u32::BITS - weight.leading_zeros()).saturating_sub(MANTISSA_BITS);
        (self.key << KEY_SHIFT)
            | ((self.class as u64) << CLASS_SHIFT)
            | (u64::from(exponent) << EXPONENT_SHIFT)
            | u64::from(weight >> exponent)
    }

    fn from_word(word: u64) -> Self {
        let mantissa = word & ((1 << MANTISSA_BITS) - 1);
        let exponent = (word >> EXPONENT_SHIFT) & ((1 << (CLASS_SHIFT - EXPONENT_SHIFT)) - 1);
        Self {
            key: word >> KEY_SHIFT,
            class: Class::ALL[(word >> CLASS_SHIFT) as usize & 1],
            weight: (mantissa << exponent) as u32,
        }
    }
}

pub(crate) struct AccessBuffer {
    shards: Box<[CachePadded<Shard>]>,
}

struct Shard {
    words: [AtomicU64; WORDS],
    /// Words ever stored, approximately. Written by the shard's threads.
    stored: AtomicU32,
    /// Words ever taken. Written under the simulations' lock.
    taken: AtomicU32,
}

impl AccessBuffer {
    pub(crate) fn new(shards: usize) -> Self {
        let shard = || Shard {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            stored: AtomicU32::new(0),
            taken: AtomicU32::new(0),
        };
        Self { shards: (0..shards).map(|_| CachePadded::new(shard())).collect() }
    }

    /// Whether the calling thread's ring should be emptied soon.
    #[inline]
    pub(crate) fn is_half_full(&self) -> bool {
        let shard = &self.shards[thread_slot().index(self.shards.len())];
        let stored = shard.stored.load(Ordering::Relaxed);
        stored.wrapping_sub(shard.taken.load(Ordering::Relaxed)) >= WORDS as u32 / 2
    }

    /// Adds an access unless the ring is full. Drops repetitions of the last one, so that a single
    /// hot block does not crowd out the others.
    pub(crate) fn note(&self, access: Access) {
        let shard = &self.shards[thread_slot().index(self.shards.len())];
        let stored = shard.stored.load(Ordering::Relaxed);
        if stored.wrapping_sub(shard.taken.load(Ordering::Relaxed)) >= WORDS as u32 {
            return;
        }
        let word = access.word();
        let last = &shard.words[stored.wrapping_sub(1) as usize % WORDS];
        if last.load(Ordering::Relaxed) == word {
            return;
        }
        shard.words[stored as usize % WORDS].store(word, Ordering::Relaxed);
        shard.stored.store(stored.wrapping_add(1), Ordering::Relaxed);
    }

    /// Takes all accesses, in each shard's order. One caller at a time.
    pub(crate) fn take(&self, mut each: impl FnMut(Access)) {
        for shard in &self.shards {
            let stored = shard.stored.load(Ordering::Relaxed);
            let taken = shard.taken.load(Ordering::Relaxed);
            // A delayed thread may have set `stored` back.
            let waiting = stored.wrapping_sub(taken);
            if waiting == 0 {
                continue;
            }
            if waiting <= WORDS as u32 {
                for at in 0..waiting {
                    let word = &shard.words[taken.wrapping_add(at) as usize % WORDS];
                    let word = word.swap(0, Ordering::Relaxed);
                    if word != 0 {
                        each(Access::from_word(word));
                    }
                }
            }
            shard.taken.store(stored, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use proptest::prelude::*;

    use super::{Access, AccessBuffer, WORDS};
    use crate::attributes::Class;

    proptest! {
        #[test]
        fn an_access_survives_its_word(key in 0..1u64 << 39, data in any::<bool>(), weight in any::<u32>()) {
            let class = if data { Class::Data } else { Class::Metadata };
            let back = Access::from_word(Access { key, class, weight }.word());
            prop_assert_eq!((back.key, back.class), (key, class));
            let weight = weight.max(1);
            prop_assert!(back.weight > 0 && back.weight <= weight);
            prop_assert!(weight - back.weight <= weight >> 19, "{} for {weight}", back.weight);
        }
    }

    #[test]
    fn a_full_ring_loses_what_comes_and_takes_more_when_it_was_emptied() {
        let access_buffer = AccessBuffer::new(1);
        let access = |key| Access { key, class: Class::Data, weight: 7 };
        for round in 0..5u64 {
            (0..WORDS as u64 + 9).for_each(|key| access_buffer.note(access(round * 1000 + key)));
            let mut taken = Vec::new();
            access_buffer.take(|access| taken.push(access));
            let wanted: Vec<_> = (0..WORDS as u64).map(|key| access(round * 1000 + key)).collect();
            assert_eq!(taken, wanted);
        }
        access_buffer.take(|_| unreachable!("nothing is taken twice"));
    }

    #[test]
    fn a_block_that_is_asked_for_again_and_again_does_not_fill_it() {
        let access_buffer = AccessBuffer::new(1);
        let access = |key| Access { key, class: Class::Data, weight: 7 };
        (0..WORDS).for_each(|_| access_buffer.note(access(1)));
        assert!(!access_buffer.is_half_full());
        access_buffer.note(access(2));
        access_buffer.note(access(1));
        let mut taken = Vec::new();
        access_buffer.take(|access| taken.push(access.key));
        assert_eq!(taken, [1, 2, 1]);
        (0..WORDS as u64 / 2).for_each(|key| access_buffer.note(access(key)));
        assert!(access_buffer.is_half_full());
    }
}
