//! Ranges of hashes whose buffered names cannot move for now, because a block there cannot be read.
//!
//! A sweep passes them, so that one unreadable page or leaf stops no other. After a pause all of
//! them are tried again.

use std::collections::BTreeMap;

/// After so long, all ranges are tried again.
const PAUSE_NS: u64 = 5_000_000_000;
/// So many ranges are remembered. Others are tried again at once.
const RANGES_MAX: usize = 1024;

/// What a sweep could not read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unreadable {
    /// Its hashes.
    pub(super) first: u32,
    pub(super) last: u32,
    /// Whether it is a buffer page, not a leaf.
    pub(super) is_page: bool,
}

/// The ranges. They do not overlap: leaves and pages divide the hashes, so of two that do, one
/// contains the other, and only that is kept.
#[derive(Default)]
pub(super) struct Skips {
    /// By first hash.
    ranges: BTreeMap<u32, Unreadable>,
    pages: u64,
    until_ns: u64,
}

impl Skips {
    /// Adds a range. It is tried again after a pause.
    pub(super) fn add(&mut self, range: Unreadable, now_ns: u64) {
        if self.ranges.is_empty() {
            self.until_ns = now_ns.saturating_add(PAUSE_NS);
        }
        if self.end_of(range.first).is_some_and(|end| end >= range.last) {
            return;
        }
        let contained = self.ranges.range(range.first..=range.last);
        let contained: Vec<u32> = contained.map(|(first, _)| *first).collect();
        for first in contained {
            let old = self.ranges.remove(&first);
            self.pages -= u64::from(old.is_some_and(|old| old.is_page));
        }
        if self.ranges.len() < RANGES_MAX {
            self.ranges.insert(range.first, range);
            self.pages += u64::from(range.is_page);
        }
    }

    /// Forgets all ranges if the pause is over.
    pub(super) fn expire(&mut self, now_ns: u64) {
        if !self.ranges.is_empty() && now_ns >= self.until_ns {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The last hash of the range that has this hash.
    pub(super) fn end_of(&self, hash: u32) -> Option<u32> {
        let (_, range) = self.ranges.range(..=hash).next_back()?;
        (hash <= range.last).then_some(range.last)
    }

    /// Number of ranges that are buffer pages, or parts of one.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_passed_until_the_pause_is_over() {
        let mut skips = Skips::default();
        assert_eq!(skips.end_of(0), None);
        skips.add(Unreadable { first: 16, last: 31, is_page: true }, 7);
        skips.add(Unreadable { first: 0, last: 3, is_page: false }, 8);
        skips.add(Unreadable { first: u32::MAX, last: u32::MAX, is_page: false }, 9);
        let ends: Vec<_> = [0, 3, 4, 15, 16, 31, 32, u32::MAX].map(|at| skips.end_of(at)).into();
        let last = Some(u32::MAX);
        assert_eq!(ends, [Some(3), Some(3), None, None, Some(31), Some(31), None, last]);
        assert_eq!(skips.pages(), 1);
        skips.expire(PAUSE_NS + 6);
        assert_eq!(skips.end_of(16), Some(31));
        skips.expire(PAUSE_NS + 7);
        assert_eq!((skips.end_of(16), skips.pages()), (None, 0));
    }

    #[test]
    fn a_page_replaces_what_it_contains() {
        let mut skips = Skips::default();
        for (first, last) in [(16, 19), (24, 27), (32, 35)] {
            skips.add(Unreadable { first, last, is_page: false }, 0);
        }
        skips.add(Unreadable { first: 20, last: 21, is_page: true }, 0);
        let page = Unreadable { first: 16, last: 31, is_page: true };
        skips.add(page, 0);
        let ends: Vec<_> = [16, 20, 24, 28, 31, 32].map(|at| skips.end_of(at)).into();
        let (page_end, leaf_end) = (Some(31), Some(35));
        assert_eq!(ends, [page_end, page_end, page_end, page_end, page_end, leaf_end]);
        assert_eq!(skips.pages(), 1);
        // What it contains adds nothing.
        skips.add(Unreadable { first: 24, last: 27, is_page: false }, 0);
        skips.add(page, 0);
        assert_eq!((skips.end_of(24), skips.pages()), (page_end, 1));
    }

    #[test]
    fn few_ranges_are_remembered() {
        let mut skips = Skips::default();
        for first in 0..2 * RANGES_MAX as u32 {
            skips.add(Unreadable { first, last: first, is_page: true }, 0);
        }
        assert_eq!(skips.pages(), RANGES_MAX as u64);
    }
}
