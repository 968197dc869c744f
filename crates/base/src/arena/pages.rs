//! A set of pages of a chunk, as a bitmap.
//!
//! It stores the backed pages of a chunk, and finds runs of pages that one system call can release.
//! It is plain data that belongs to the owner of the chunk.

use super::classes::CHUNK_BYTES;

/// Number of pages in a chunk with pages of 4 KiB; no system has smaller pages.
pub(super) const MAX_PAGES: usize = CHUNK_BYTES / (4 << 10);

const WORDS: usize = MAX_PAGES / 64;

/// A set of page numbers below [`MAX_PAGES`]. Zero bytes are the empty set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageSet([u64; WORDS]);

/// The words of a bitmap that contain the `count` bits from `first` on, each with the mask of these
/// bits.
pub(super) fn word_masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.max(word * 64) - word * 64;
        let to = end.min(word * 64 + 64) - word * 64;
        (word, (u64::MAX >> (64 - (to - from))) << from)
    })
}

fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    debug_assert!(first + count <= MAX_PAGES, "pages {first}+{count} outside the chunk");
    word_masks(first, count)
}

impl PageSet {
    /// No page.
    pub(super) const EMPTY: Self = Self([0; WORDS]);

    /// The first `count` pages.
    pub(super) fn first(count: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert_range(0, count);
        set
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Number of members among the `count` pages from `first` on. `count` must not be zero.
    pub(super) fn count_range(&self, first: usize, count: usize) -> usize {
        masks(first, count).map(|(word, mask)| (self.0[word] & mask).count_ones() as usize).sum()
    }

    #[inline]
    pub(super) fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }

    /// Whether all `count` pages from `first` on are members.
    pub(super) fn contains_range(&self, first: usize, count: usize) -> bool {
        masks(first, count).all(|(word, mask)| self.0[word] & mask == mask)
    }

    pub(super) fn insert_range(&mut self, first: usize, count: usize) {
        masks(first, count).for_each(|(word, mask)| self.0[word] |= mask);
    }

    pub(super) fn remove_range(&mut self, first: usize, count: usize) {
        masks(first, count).for_each(|(word, mask)| self.0[word] &= !mask);
    }

    pub(super) fn remove_all(&mut self, others: &Self) {
        self.0.iter_mut().zip(others.0).for_each(|(word, other)| *word &= !other);
    }

    /// Removes the lowest members until at most `count` are left.
    pub(super) fn keep_highest(&mut self, count: usize) {
        let mut excess = self.count().saturating_sub(count);
        for word in &mut self.0 {
            while excess > 0 && *word != 0 {
                *word &= *word - 1;
                excess -= 1;
            }
        }
    }

    /// Maximal runs of members in ascending order, as first page and number of pages.
    pub(super) fn runs(&self) -> Runs<'_> {
        Runs { set: self, at: 0 }
    }
}

/// The iterator of [`PageSet::runs`].
pub(super) struct Runs<'a> {
    set: &'a PageSet,
    at: usize,
}

impl Runs<'_> {
    /// The first page from `self.at` on whose membership is `wanted`, or [`MAX_PAGES`].
    fn seek(&self, wanted: bool) -> usize {
        let mut at = self.at;
        while at < MAX_PAGES {
            let word = self.set.0[at / 64];
            let word = (if wanted { word } else { !word }) >> (at % 64);
            if word != 0 {
                return at + word.trailing_zeros() as usize;
            }
            at = (at / 64 + 1) * 64;
        }
        MAX_PAGES
    }
}

impl Iterator for Runs<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        let first = self.seek(true);
        if first == MAX_PAGES {
            return None;
        }
        self.at = first;
        let end = self.seek(false);
        self.at = end;
        Some((first, end - first))
    }
}
