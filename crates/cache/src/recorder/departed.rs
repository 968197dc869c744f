//! The order in which recorded blocks have left the cache, with the weight of those that left after
//! each: a Fenwick tree over positions.
//!
//! A block that comes back leaves the order. So under LRU the weight after a block is exactly what
//! the cache lacked to keep it: its stack distance beyond the capacity (Mattson et al., 1970).
//!
//! Locking: none; a part of the [`Log`](super::log::Log).

/// Positions before the order is renumbered.
pub(super) const POSITIONS: usize = 8192;

pub(super) struct Departed {
    /// By position, the sample key of the block; [`NONE`] if it has come back.
    keys: Vec<u64>,
    /// The Fenwick tree, by position plus one.
    sums: Vec<u64>,
    total: u64,
    /// All positions before are empty.
    first: usize,
}

/// No sample key, since those have fewer bits.
const NONE: u64 = u64::MAX;

impl Departed {
    pub(super) fn new() -> Self {
        let keys = Vec::with_capacity(POSITIONS);
        Self { keys, sums: vec![0; POSITIONS + 1], total: 0, first: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.len() == POSITIONS
    }

    /// Adds a block that leaves now. Returns its position. There is a free one.
    pub(super) fn push(&mut self, key: u64, weight: u64) -> usize {
        assert!(!self.is_full(), "renumbered before it is full");
        let position = self.keys.len();
        self.keys.push(key);
        self.add(position, weight);
        self.total += weight;
        position
    }

    /// Removes the block at a position, with the weight that it was added with, if it is there.
    pub(super) fn remove(&mut self, position: usize, weight: u64) {
        let there = self.keys.get_mut(position).filter(|key| **key != NONE);
        debug_assert!(there.is_some(), "removed once");
        let Some(key) = there else { return };
        *key = NONE;
        self.add(position, weight.wrapping_neg());
        self.total -= weight;
    }

    /// Weight of the blocks that left after the one at `position`.
    pub(super) fn weight_after(&self, position: usize) -> u64 {
        let (mut at, mut sum) = (position + 1, 0u64);
        while at > 0 {
            sum = sum.wrapping_add(self.sums[at]);
            at &= at - 1;
        }
        self.total - sum
    }

    /// The sample key of the block that left first.
    pub(super) fn oldest(&mut self) -> Option<u64> {
        while *self.keys.get(self.first)? == NONE {
            self.first += 1;
        }
        Some(self.keys[self.first])
    }

    /// Empties the order, and returns the keys that were in it, oldest first.
    pub(super) fn take(&mut self) -> Vec<u64> {
        let keys = self.keys.iter().copied().filter(|key| *key != NONE).collect();
        self.keys.clear();
        self.sums.fill(0);
        (self.total, self.first) = (0, 0);
        keys
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        ((self.keys.capacity() + self.sums.capacity()) * size_of::<u64>()) as u64
    }

    fn add(&mut self, position: usize, weight: u64) {
        let mut at = position + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum = sum.wrapping_add(weight);
            at += at & at.wrapping_neg();
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use proptest::prelude::*;

    use super::{Departed, POSITIONS};

    proptest! {
        /// The model is a list.
        #[test]
        fn weights_after_a_block_are_those_of_a_list(steps in prop::collection::vec((any::<u16>(), 0..100u64), 1..400)) {
            let mut departed = Departed::new();
            let mut model: Vec<(usize, u64, u64)> = Vec::new();
            for (number, (choice, weight)) in steps.into_iter().enumerate() {
                if choice % 3 == 0 && !model.is_empty() {
                    let (position, _, weight) = model.remove(usize::from(choice) % model.len());
                    departed.remove(position, weight);
                } else {
                    let key = number as u64;
                    model.push((departed.push(key, weight), key, weight));
                }
                prop_assert_eq!(departed.oldest(), model.first().map(|(_, key, _)| *key));
                for (at, (position, ..)) in model.iter().enumerate() {
                    let after: u64 = model[at + 1..].iter().map(|(.., weight)| weight).sum();
                    prop_assert_eq!(departed.weight_after(*position), after);
                }
            }
            let keys: Vec<u64> = model.iter().map(|(_, key, _)| *key).collect();
            prop_assert_eq!(departed.take(), keys);
            prop_assert_eq!(departed.oldest(), None);
        }
    }

    #[test]
    fn positions_are_used_up_and_renumbered() {
        let mut departed = Departed::new();
        for key in 0..POSITIONS as u64 {
            departed.push(key, 2);
        }
        assert!(departed.is_full());
        assert_eq!(departed.weight_after(POSITIONS - 3), 4);
        assert_eq!(departed.take().len(), POSITIONS);
        assert_eq!(departed.push(7, 1), 0);
    }
}
