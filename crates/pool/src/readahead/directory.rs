//! Which leaves of a directory to read ahead.
//!
//! Names hash evenly, so a directory in use needs all of its leaves, in no particular order. When
//! several lookups within a short time miss, the remaining leaves are requested in block order, a
//! batch for each further miss. Batches follow each other until as many leaves as a batch has were
//! not resident.
//!
//! Another pass comes only after enough operations made the last one worthwhile, so that a
//! directory that does not fit the cache does not evict its own leaves. After that many operations,
//! one miss is enough to start. As often, the first operation of a txg checks whether any leaf is
//! not resident, before a lookup misses it.
//!
//! Locking: none; the caller holds the directory's lock.

use std::ops::Range;

/// Leaves asked for at once; more follow as long as fewer of those asked for are not resident.
pub(crate) const LEAF_BATCH: u64 = 64;
/// What a miss adds to the level, of which an operation takes one away.
const MISS_WEIGHT: u32 = 8;
/// Batches are asked for from this level on: with the second miss of two that are near each other.
const START_LEVEL: u32 = MISS_WEIGHT + 1;
const LEVEL_MAX: u32 = 4 * MISS_WEIGHT;
/// Operations for each leaf after which another pass may come.
const HITS_A_LEAF: u64 = 4;

/// State of a directory's read-ahead.
#[derive(Debug, Default)]
pub(crate) struct DirectoryReadahead {
    level: u32,
    /// Leaves with lower numbers have been asked for.
    next: u64,
    /// Operations since leaves were asked for last.
    hits: u64,
    /// Operations since it was looked last whether any are not resident.
    unseen: u64,
    /// Operations as of the last miss.
    operations: u64,
}

impl DirectoryReadahead {
    /// An operation had to wait for its leaf: which leaves to ask for, of `leaves` with numbers
    /// below `end`. There were about `operations` operations by now.
    pub(crate) fn miss(&mut self, operations: u64, leaves: u64, end: u64) -> Range<u64> {
        self.pass(operations);
        self.level = (self.level + MISS_WEIGHT).min(LEVEL_MAX);
        if self.hits >= leaves.saturating_mul(HITS_A_LEAF) {
            self.next = 0;
        } else if self.level < START_LEVEL {
            return 0..0;
        }
        self.more(leaves, end)
    }

    /// An operation had to find its leaf anew, as the first one of a transaction group: which
    /// leaves to look at, if that was not done for long, before somebody misses one.
    pub(crate) fn check_residency(&mut self, operations: u64, leaves: u64, end: u64) -> Range<u64> {
        self.pass(operations);
        if self.unseen < leaves.saturating_mul(HITS_A_LEAF) {
            return 0..0;
        }
        self.next = 0;
        self.more(leaves, end)
    }

    /// Some of the leaves that were looked at were not resident, and have been asked for.
    pub(crate) fn asked(&mut self) {
        self.hits = 0;
    }

    fn pass(&mut self, operations: u64) {
        let since = operations.saturating_sub(self.operations);
        self.operations = operations;
        self.hits += since;
        self.unseen += since;
        self.level = self.level.saturating_sub(since.min(u64::from(LEVEL_MAX)) as u32);
    }

    /// The next leaves of a pass that has begun.
    pub(crate) fn more(&mut self, leaves: u64, end: u64) -> Range<u64> {
        // A lopsided directory has few leaves and many numbers.
        let end = end.min(leaves.saturating_mul(4));
        if self.next >= end {
            return 0..0;
        }
        self.unseen = 0;
        let first = self.next;
        self.next = (first + LEAF_BATCH).min(end);
        first..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::{DirectoryReadahead, LEAF_BATCH};

    #[test]
    fn one_miss_asks_for_nothing() {
        let mut ahead = DirectoryReadahead::default();
        for miss in 0..10 {
            assert!(ahead.miss(miss * 10, 100, 128).is_empty());
        }
    }

    #[test]
    fn misses_in_a_row_ask_for_all_once() {
        let mut ahead = DirectoryReadahead::default();
        let asked: Vec<u64> = (0..10).flat_map(|_| ahead.miss(0, 100, 128)).collect();
        assert_eq!(asked, (0..128).collect::<Vec<_>>());
        assert!(ahead.miss(100, 100, 128).is_empty());
        assert!(ahead.miss(100, 100, 128).is_empty());
        assert_eq!(ahead.miss(400, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn in_a_directory_in_use_one_miss_asks_for_all_that_left_memory() {
        let mut ahead = DirectoryReadahead::default();
        assert!(ahead.miss(399, 100, 128).is_empty());
        assert_eq!(ahead.miss(400, 100, 128), 0..LEAF_BATCH);
        // Most of them were in memory.
        assert_eq!(ahead.more(100, 128), LEAF_BATCH..128);
        assert!(ahead.more(100, 128).is_empty());
        ahead.asked();
        // Not again at once, since its leaves may be too many for the cache.
        assert!(ahead.miss(799, 100, 128).is_empty());
        assert_eq!(ahead.miss(800, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn a_residency_check_in_vain_takes_nothing_from_a_miss() {
        let mut ahead = DirectoryReadahead::default();
        assert!(ahead.check_residency(399, 100, 128).is_empty());
        assert_eq!(ahead.check_residency(400, 100, 128), 0..LEAF_BATCH);
        assert_eq!(ahead.more(100, 128), LEAF_BATCH..128);
        assert!(ahead.check_residency(799, 100, 128).is_empty());
        assert_eq!(ahead.miss(799, 100, 128), 0..LEAF_BATCH);
        ahead.asked();
        assert!(ahead.check_residency(800, 100, 128).is_empty());
        assert!(ahead.miss(1198, 100, 128).is_empty());
        assert_eq!(ahead.check_residency(1199, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn a_lopsided_directory_is_not_searched_for_leaves() {
        let mut ahead = DirectoryReadahead::default();
        let asked: Vec<u64> = (0..10).flat_map(|_| ahead.miss(0, 25, 1 << 24)).collect();
        assert_eq!(asked, (0..100).collect::<Vec<_>>());
    }
}
