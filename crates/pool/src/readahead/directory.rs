//! Read-ahead of the leaves of a directory.
//!
//! Names hash evenly, so a directory in use needs all of its leaves, in no particular order. When
//! several lookups within a short time miss, the remaining leaves are prefetched in block order, a
//! batch for each further miss. Batches follow each other until as many leaves as a batch has were
//! not resident.
//!
//! Another pass starts only after enough operations made the last one worthwhile, so that a
//! directory that does not fit the cache does not evict its own leaves. After that many operations,
//! one miss is enough to start. As often, the first operation of a txg checks whether any leaf is
//! not resident, before a lookup misses it.
//!
//! # Locking
//!
//! None; the caller holds the directory's lock.

use std::ops::Range;

/// Leaves prefetched at once. More follow while fewer of them were not resident.
pub(crate) const LEAF_BATCH: u64 = 64;
/// Amount by which a miss raises the level. Each operation lowers it by one.
const MISS_WEIGHT: u32 = 8;
/// Prefetch starts at this level: with the second of two misses that are close in time.
const START_LEVEL: u32 = MISS_WEIGHT + 1;
/// While names are buffered, it starts with the third: few names need a leaf, and two of them are
/// close in time by chance now and then.
const START_LEVEL_BUFFERED: u32 = 2 * MISS_WEIGHT + 1;
const LEVEL_MAX: u32 = 4 * MISS_WEIGHT;
/// Operations per leaf between two passes.
const HITS_PER_LEAF: u64 = 4;

/// State of a directory's read-ahead.
#[derive(Debug, Default)]
pub(crate) struct DirectoryReadahead {
    level: u32,
    /// All leaves with lower numbers have been prefetched.
    next: u64,
    /// Operations since leaves were prefetched last.
    hits: u64,
    /// Operations since the residency of leaves was checked last.
    unchecked: u64,
    /// Operation count at the last miss.
    operations: u64,
}

impl DirectoryReadahead {
    /// Reports that an operation had to fetch its leaf, and returns the leaves to prefetch. The
    /// directory has `leaves` leaves with numbers below `end`, and has seen about `operations`
    /// operations.
    pub(crate) fn miss(&mut self, operations: u64, leaves: u64, end: u64) -> Range<u64> {
        self.raise_level(operations);
        if self.hits >= leaves.saturating_mul(HITS_PER_LEAF) {
            self.next = 0;
        } else if self.level < START_LEVEL {
            return 0..0;
        }
        self.more(leaves, end)
    }

    /// As [`miss`](Self::miss), but a pass starts only with three misses that are close together.
    pub(crate) fn miss_again(&mut self, operations: u64, leaves: u64, end: u64) -> Range<u64> {
        self.raise_level(operations);
        if self.level < START_LEVEL_BUFFERED {
            return 0..0;
        }
        if self.hits >= leaves.saturating_mul(HITS_PER_LEAF) {
            self.next = 0;
        }
        self.more(leaves, end)
    }

    /// So many leaves at most would be prefetched if misses followed.
    pub(crate) fn left(&mut self, operations: u64, leaves: u64, end: u64) -> u64 {
        self.pass(operations);
        let starts_anew = self.hits >= leaves.saturating_mul(HITS_PER_LEAF);
        let next = if starts_anew { 0 } else { self.next };
        last(leaves, end).saturating_sub(next).min(leaves)
    }

    /// Reports that an operation had to look up its leaf again, such as the first one of a txg.
    /// Returns the leaves whose residency to check, if the last check was long ago.
    pub(crate) fn check_residency(&mut self, operations: u64, leaves: u64, end: u64) -> Range<u64> {
        self.pass(operations);
        if self.unchecked < leaves.saturating_mul(HITS_PER_LEAF) {
            return 0..0;
        }
        self.next = 0;
        self.more(leaves, end)
    }

    /// So many of the last leaves that were to be prefetched were not. The next miss goes on there.
    pub(crate) fn give_back(&mut self, leaves: u64) {
        self.next = self.next.saturating_sub(leaves);
    }

    /// Reports that some of these leaves were not resident and are being prefetched.
    pub(crate) fn on_prefetched(&mut self) {
        self.hits = 0;
    }

    fn raise_level(&mut self, operations: u64) {
        self.pass(operations);
        self.level = (self.level + MISS_WEIGHT).min(LEVEL_MAX);
    }

    fn pass(&mut self, operations: u64) {
        let since = operations.saturating_sub(self.operations);
        self.operations = operations;
        self.hits += since;
        self.unchecked += since;
        self.level = self.level.saturating_sub(since.min(u64::from(LEVEL_MAX)) as u32);
    }

    /// The next leaves of the current pass.
    pub(crate) fn more(&mut self, leaves: u64, end: u64) -> Range<u64> {
        let end = last(leaves, end);
        if self.next >= end {
            return 0..0;
        }
        self.unchecked = 0;
        let first = self.next;
        self.next = (first + LEAF_BATCH).min(end);
        first..self.next
    }
}

/// Where a pass ends. An unbalanced directory has few leaves and many numbers.
fn last(leaves: u64, end: u64) -> u64 {
    end.min(leaves.saturating_mul(4))
}

#[cfg(test)]
mod tests {
    use super::{DirectoryReadahead, LEAF_BATCH};

    #[test]
    fn distant_misses_prefetch_nothing() {
        let mut ahead = DirectoryReadahead::default();
        for miss in 0..10 {
            assert!(ahead.miss(miss * 10, 100, 128).is_empty());
        }
    }

    #[test]
    fn misses_in_a_row_prefetch_each_leaf_once() {
        let mut ahead = DirectoryReadahead::default();
        let prefetched: Vec<u64> = (0..10).flat_map(|_| ahead.miss(0, 100, 128)).collect();
        assert_eq!(prefetched, (0..128).collect::<Vec<_>>());
        assert!(ahead.miss(100, 100, 128).is_empty());
        assert!(ahead.miss(100, 100, 128).is_empty());
        assert_eq!(ahead.miss(400, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn one_miss_of_a_directory_in_use_starts_a_pass() {
        let mut ahead = DirectoryReadahead::default();
        assert!(ahead.miss(399, 100, 128).is_empty());
        assert_eq!(ahead.miss(400, 100, 128), 0..LEAF_BATCH);
        // Most of them were in memory.
        assert_eq!(ahead.more(100, 128), LEAF_BATCH..128);
        assert!(ahead.more(100, 128).is_empty());
        ahead.on_prefetched();
        // Not again at once: the directory may have too many leaves for the cache.
        assert!(ahead.miss(799, 100, 128).is_empty());
        assert_eq!(ahead.miss(800, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn a_residency_check_without_result_does_not_delay_a_miss() {
        let mut ahead = DirectoryReadahead::default();
        assert!(ahead.check_residency(399, 100, 128).is_empty());
        assert_eq!(ahead.check_residency(400, 100, 128), 0..LEAF_BATCH);
        assert_eq!(ahead.more(100, 128), LEAF_BATCH..128);
        assert!(ahead.check_residency(799, 100, 128).is_empty());
        assert_eq!(ahead.miss(799, 100, 128), 0..LEAF_BATCH);
        ahead.on_prefetched();
        assert!(ahead.check_residency(800, 100, 128).is_empty());
        assert!(ahead.miss(1198, 100, 128).is_empty());
        assert_eq!(ahead.check_residency(1199, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn what_is_left_of_a_pass_shrinks() {
        let mut ahead = DirectoryReadahead::default();
        assert_eq!((ahead.left(0, 100, 128), ahead.left(0, 1, 128)), (100, 1));
        // Questions are no misses.
        assert!(
            ahead.miss_again(0, 100, 128).is_empty() && ahead.miss_again(0, 100, 128).is_empty()
        );
        for left in [128 - LEAF_BATCH, 0] {
            ahead.miss_again(0, 100, 128);
            assert_eq!(ahead.left(0, 100, 128), left);
        }
        assert_eq!((ahead.left(399, 100, 128), ahead.left(400, 100, 128)), (0, 100));
    }

    /// Filters that are wrong now and then do not help less for two in a row.
    #[test]
    fn two_misses_while_names_are_buffered_prefetch_nothing() {
        let mut ahead = DirectoryReadahead::default();
        for first in (1000..20_000).step_by(1000) {
            assert!(ahead.miss_again(first, 100, 128).is_empty());
            assert!(ahead.miss_again(first, 100, 128).is_empty());
        }
        assert_eq!(ahead.miss_again(19_000, 100, 128), 0..LEAF_BATCH);
    }

    #[test]
    fn leaves_that_are_given_back_come_next() {
        let mut ahead = DirectoryReadahead::default();
        assert!(ahead.miss(0, 100, 128).is_empty());
        assert_eq!(ahead.miss(0, 100, 128), 0..LEAF_BATCH);
        ahead.give_back(LEAF_BATCH - 5);
        assert_eq!(ahead.left(0, 100, 128), 100);
        assert_eq!(ahead.miss(0, 100, 128), 5..5 + LEAF_BATCH);
    }

    #[test]
    fn an_unbalanced_directory_is_searched_only_in_part() {
        let mut ahead = DirectoryReadahead::default();
        let prefetched: Vec<u64> = (0..10).flat_map(|_| ahead.miss(0, 25, 1 << 24)).collect();
        assert_eq!(prefetched, (0..100).collect::<Vec<_>>());
    }
}
