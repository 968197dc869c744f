//! Which leaves to ask for before they are wanted.
//!
//! Names' hashes are even, so that a directory in use wants all of its leaves, in no order: when several
//! lookups within a short time miss, the remaining leaves are asked for in the order of their blocks, a batch
//! for each further miss. A second pass comes only after so many operations that the first was worth it: a
//! directory that does not fit the cache does not chase its own leaves out.

use std::ops::Range;

/// Leaves asked for at once.
const BATCH: u64 = 64;
/// What a miss adds to the level, of which an operation takes one away.
const MISS_WEIGHT: u32 = 8;
/// Batches are asked for from this level on: with the second miss of two that are near each other.
const START_LEVEL: u32 = MISS_WEIGHT + 1;
const LEVEL_MAX: u32 = 4 * MISS_WEIGHT;
/// Operations for each leaf after which another pass may come.
const HITS_A_LEAF: u64 = 4;

/// State of a directory's read-ahead.
#[derive(Debug, Default)]
pub(super) struct Readahead {
    level: u32,
    /// Leaves with lower numbers have been asked for.
    next: u64,
    /// Operations since the last batch.
    hits: u64,
    /// Operations as of the last miss.
    operations: u64,
}

impl Readahead {
    /// An operation had to wait for its leaf: which leaves to ask for, of `leaves` with numbers below `end`.
    /// There were about `operations` operations by now.
    pub(super) fn miss(&mut self, operations: u64, leaves: u64, end: u64) -> Range<u64> {
        let since = operations.saturating_sub(self.operations);
        self.operations = operations;
        self.hits += since;
        self.level = self.level.saturating_sub(since.min(u64::from(LEVEL_MAX)) as u32);
        self.level = (self.level + MISS_WEIGHT).min(LEVEL_MAX);
        if self.level < START_LEVEL {
            return 0..0;
        }
        // A lopsided directory has few leaves and many numbers.
        let end = end.min(leaves.saturating_mul(4));
        if self.next >= end {
            if self.hits < leaves.saturating_mul(HITS_A_LEAF) {
                return 0..0;
            }
            self.next = 0;
        }
        self.hits = 0;
        let first = self.next;
        self.next = (first + BATCH).min(end);
        first..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, Readahead};

    #[test]
    fn one_miss_asks_for_nothing() {
        let mut ahead = Readahead::default();
        for miss in 0..10 {
            assert!(ahead.miss(miss * 10, 100, 128).is_empty());
        }
    }

    #[test]
    fn misses_in_a_row_ask_for_all_once() {
        let mut ahead = Readahead::default();
        let asked: Vec<u64> = (0..10).flat_map(|_| ahead.miss(0, 100, 128)).collect();
        assert_eq!(asked, (0..128).collect::<Vec<_>>());
        assert!(ahead.miss(100, 100, 128).is_empty());
        assert!(ahead.miss(100, 100, 128).is_empty());
        assert!(ahead.miss(400, 100, 128).is_empty());
        assert_eq!(ahead.miss(400, 100, 128), 0..BATCH);
    }

    #[test]
    fn a_lopsided_directory_is_not_searched_for_leaves() {
        let mut ahead = Readahead::default();
        let asked: Vec<u64> = (0..10).flat_map(|_| ahead.miss(0, 25, 1 << 24)).collect();
        assert_eq!(asked, (0..100).collect::<Vec<_>>());
    }
}
