//! The access buffer: passes accesses of sampled blocks to the simulations, without a lock and
//! without ordering.
//!
//! Each shard has a ring of words. A hit on a sampled block stores one word, with plain stores. The
//! holder of the simulations' lock takes words by swap, so none is taken twice. An access is whole
//! in its word, so the order of stores does not matter.
//!
//! Accesses may be lost: threads that share a shard may overwrite each other's, and a full ring
//! drops new ones and counts them. A lost access is only a smaller sample, but a loop whose hits
//! are lost looks shorter. So the rings are longer than a batch, which is what one call takes, if
//! there is memory for that; and shorter only if there is none.
//!
//! Locking: none to add; `simulations` to take.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::thread_slot;

use crate::attributes::Class;

/// Words that one call takes from a ring. A power of two.
pub(crate) const BATCH: usize = if cfg!(forebay_model) { 2 } else { 256 };
/// The longest ring.
const MAX_WORDS: usize =
    if cfg!(all(feature = "insight", not(forebay_model))) { 16 * BATCH } else { BATCH };
/// Batches in the longest ring.
pub(super) const MAX_BATCHES: usize = MAX_WORDS / BATCH;
/// The shortest ring. A power of two.
const MIN_WORDS: usize = if cfg!(forebay_model) { 2 } else { 32 };

/// An access to a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// See [`sample_key`](crate::sample::sample_key).
    pub(crate) key: u64,
    pub(crate) class: Class,
    pub(crate) weight: u32,
    pub(crate) kind: AccessKind,
}

/// What happens to a block. The low bit tells uses and new blocks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// A request asks for it.
    Use,
    /// Its content is new: no request has missed it.
    New,
    /// It is removed, cached or not. The weight does not matter.
    Removal,
}

impl AccessKind {
    const ALL: [Self; 3] = [Self::Use, Self::New, Self::Removal];
}

// A word: key, class, exponent of the weight, kind, and mantissa. Never zero, because no weight is
// zero.
const KEY_SHIFT: u32 = 25;
const CLASS_SHIFT: u32 = 24;
const EXPONENT_SHIFT: u32 = 20;
const KIND_SHIFT: u32 = 18;
const MANTISSA_BITS: u32 = 18;

impl Access {
    fn word(self) -> u64 {
        let weight = self.weight.max(1);
        let exponent = (u32::BITS - weight.leading_zeros()).saturating_sub(MANTISSA_BITS);
        (self.key << KEY_SHIFT)
            | ((self.class as u64) << CLASS_SHIFT)
            | (u64::from(exponent) << EXPONENT_SHIFT)
            | ((self.kind as u64) << KIND_SHIFT)
            | u64::from(weight >> exponent)
    }

    fn from_word(word: u64) -> Self {
        let mantissa = word & ((1 << MANTISSA_BITS) - 1);
        let exponent = (word >> EXPONENT_SHIFT) & ((1 << (CLASS_SHIFT - EXPONENT_SHIFT)) - 1);
        Self {
            key: word >> KEY_SHIFT,
            class: Class::ALL[(word >> CLASS_SHIFT) as usize & 1],
            weight: (mantissa << exponent) as u32,
            kind: AccessKind::ALL[((word >> KIND_SHIFT) & 3).min(2) as usize],
        }
    }
}

pub(crate) struct AccessBuffer {
    shards: Box<[CachePadded<Shard>]>,
}

/// What was taken at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) taken: u64,
    /// Accesses that found a ring full before.
    pub(crate) lost: u64,
    /// Whether a ring had more than a batch.
    pub(crate) left: bool,
}

struct Shard {
    words: Box<[AtomicU64]>,
    /// Words ever stored, approximately. Written by the shard's threads.
    stored: AtomicU32,
    /// Words ever taken. Written under the simulations' lock.
    taken: AtomicU32,
    /// Accesses that found the ring full, approximately. Written by the shard's threads; set to
    /// zero under the simulations' lock.
    lost: AtomicU32,
}

impl AccessBuffer {
    /// The rings take `bytes` at most. But they may have a batch each while the buffer takes
    /// `batches` bytes at most, and they always have the shortest length.
    pub(crate) fn new(shards: usize, bytes: u64, batches: u64) -> Self {
        let longest = |bytes: u64| {
            let words = (bytes / (shards * size_of::<u64>()) as u64).clamp(1, MAX_WORDS as u64);
            1usize << words.ilog2()
        };
        let headers = (shards * size_of::<CachePadded<Shard>>()) as u64;
        let batch = longest(batches.saturating_sub(headers)).min(BATCH);
        let words = longest(bytes).max(batch).max(MIN_WORDS);
        let shard = || Shard {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            stored: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            lost: AtomicU32::new(0),
        };
        Self { shards: (0..shards).map(|_| CachePadded::new(shard())).collect() }
    }

    /// Whether the calling thread's ring has half a batch, or half of what a shorter one takes.
    #[inline]
    pub(crate) fn has_half_a_batch(&self) -> bool {
        let shard = &self.shards[thread_slot().index(self.shards.len())];
        let stored = shard.stored.load(Ordering::Relaxed);
        let waiting = stored.wrapping_sub(shard.taken.load(Ordering::Relaxed));
        waiting >= BATCH.min(shard.words.len()) as u32 / 2
    }

    /// Adds an access unless the ring is full. Drops repetitions of the last one, so that a single
    /// hot block does not crowd out the others.
    pub(crate) fn note(&self, access: Access) {
        let shard = &self.shards[thread_slot().index(self.shards.len())];
        let stored = shard.stored.load(Ordering::Relaxed);
        if stored.wrapping_sub(shard.taken.load(Ordering::Relaxed)) >= shard.words.len() as u32 {
            let lost = shard.lost.load(Ordering::Relaxed);
            return shard.lost.store(lost.wrapping_add(1), Ordering::Relaxed);
        }
        let word = access.word();
        let last = shard.word(stored.wrapping_sub(1)).load(Ordering::Relaxed);
        // Whether it is a use or new makes no difference, a removal does.
        if (last ^ word) & !(1 << KIND_SHIFT) == 0 {
            return;
        }
        shard.word(stored).store(word, Ordering::Relaxed);
        shard.stored.store(stored.wrapping_add(1), Ordering::Relaxed);
    }

    /// Takes a batch of accesses from each shard, in its order. One caller at a time.
    pub(crate) fn take(&self, mut each: impl FnMut(Access)) -> Batch {
        let mut batch = Batch::default();
        for shard in &self.shards {
            let stored = shard.stored.load(Ordering::Relaxed);
            let mut taken = shard.taken.load(Ordering::Relaxed);
            // A delayed thread may have set `stored` back.
            let waiting = stored.wrapping_sub(taken);
            if waiting == 0 {
                continue;
            }
            let mut end = stored;
            if waiting <= shard.words.len() as u32 {
                end = taken.wrapping_add(waiting.min(BATCH as u32));
                batch.left |= end != stored;
                while taken != end {
                    let word = shard.word(taken).swap(0, Ordering::Relaxed);
                    taken = taken.wrapping_add(1);
                    if word != 0 {
                        batch.taken += 1;
                        each(Access::from_word(word));
                    }
                }
            }
            shard.taken.store(end, Ordering::Relaxed);
            // Only a ring that had accesses to take can have been full. The last batch of those
            // that waited stands for what was lost.
            if end == stored && shard.lost.load(Ordering::Relaxed) > 0 {
                batch.lost += u64::from(shard.lost.swap(0, Ordering::Relaxed));
            }
        }
        batch
    }

    #[cfg(all(test, feature = "insight", not(forebay_model)))]
    pub(crate) fn ring_words(&self) -> usize {
        self.shards[0].words.len()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let rings: usize = self.shards.iter().map(|shard| size_of_val(&*shard.words)).sum();
        (size_of_val(&*self.shards) + rings) as u64
    }
}

impl Shard {
    fn word(&self, number: u32) -> &AtomicU64 {
        &self.words[number as usize & (self.words.len() - 1)]
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use proptest::prelude::*;

    use super::{Access, AccessBuffer, AccessKind, BATCH, Batch, MAX_WORDS, MIN_WORDS};
    use crate::attributes::Class;

    proptest! {
        #[test]
        fn an_access_survives_its_word(
            key in 0..1u64 << 39,
            data in any::<bool>(),
            weight in any::<u32>(),
            kind in 0..3usize,
        ) {
            let class = if data { Class::Data } else { Class::Metadata };
            let kind = AccessKind::ALL[kind];
            let back = Access::from_word(Access { key, class, weight, kind }.word());
            prop_assert_eq!((back.key, back.class, back.kind), (key, class, kind));
            let weight = weight.max(1);
            prop_assert!(back.weight > 0 && back.weight <= weight);
            prop_assert!(weight - back.weight <= weight >> 17, "{} for {weight}", back.weight);
        }
    }

    #[test]
    fn a_full_ring_loses_what_comes_and_takes_more_when_it_was_emptied() {
        let access_buffer = AccessBuffer::new(1, u64::MAX, 0);
        let access = |key| Access { key, class: Class::Data, weight: 7, kind: AccessKind::Use };
        let (words, batches) = (MAX_WORDS as u64, MAX_WORDS / BATCH);
        for round in 0..5u64 {
            (0..words + 9).for_each(|key| access_buffer.note(access(round << 20 | key)));
            let mut taken = Vec::new();
            for batch in 1..=batches {
                let last = batch == batches;
                let found = access_buffer.take(|access| taken.push(access));
                let lost = if last { 9 } else { 0 };
                assert_eq!(found, Batch { taken: BATCH as u64, lost, left: !last });
            }
            let wanted: Vec<_> = (0..words).map(|key| access(round << 20 | key)).collect();
            assert_eq!(taken, wanted);
        }
        let nothing = access_buffer.take(|_| unreachable!("nothing is taken twice"));
        assert_eq!(nothing, Batch::default());
    }

    #[test]
    fn a_block_that_is_asked_for_again_and_again_does_not_fill_it() {
        let access_buffer = AccessBuffer::new(1, u64::MAX, 0);
        let access = |key| Access { key, class: Class::Data, weight: 7, kind: AccessKind::Use };
        (0..BATCH).for_each(|_| access_buffer.note(access(1)));
        assert!(!access_buffer.has_half_a_batch());
        access_buffer.note(access(2));
        access_buffer.note(access(1));
        let mut taken = Vec::new();
        access_buffer.take(|access| taken.push(access.key));
        assert_eq!(taken, [1, 2, 1]);
        // Not so if it is removed meanwhile.
        let kinds = [AccessKind::New, AccessKind::Use, AccessKind::Removal, AccessKind::Use];
        kinds.into_iter().for_each(|kind| access_buffer.note(Access { kind, ..access(3) }));
        taken.clear();
        access_buffer.take(|access| taken.push(access.kind as u64));
        let [new, used, removal, _] = kinds.map(|kind| kind as u64);
        assert_eq!(taken, [new, removal, used]);
        (0..BATCH as u64 / 2).for_each(|key| access_buffer.note(access(key)));
        assert!(access_buffer.has_half_a_batch());
    }

    #[test]
    fn its_memory_is_what_it_may_take_or_the_shortest_rings() {
        for (shards, bytes) in [(4, 1 << 19), (128, 1 << 19), (128, 1 << 16), (128, 0), (1, 0)] {
            let access_buffer = AccessBuffer::new(shards, bytes, 0);
            let shard = size_of_val(&access_buffer.shards[0]);
            let rings = access_buffer.memory_bytes() - (shards * shard) as u64;
            let shortest = (shards * MIN_WORDS * size_of::<u64>()) as u64;
            assert!(rings <= bytes.max(shortest), "{shards} shards, {bytes} bytes: {rings}");
            // Each ring works, however short it is.
            let access = |key| Access { key, class: Class::Data, weight: 7, kind: AccessKind::Use };
            (0..MAX_WORDS as u64).for_each(|key| access_buffer.note(access(key)));
            assert!(access_buffer.has_half_a_batch());
            assert!(access_buffer.take(|_| {}).taken >= MIN_WORDS as u64);
        }
    }
}
