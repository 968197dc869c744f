//! What one attempt of an operation works on: the store, and the blocks that were fetched for it.

use super::filter;
use super::store::{FilterOpening, LeafStore};
use crate::format::ZapBlock;
use crate::{Error, ErrorKind};

/// A filter block or buffer page that the current operation could not read.
pub(super) struct LostBlock {
    pub(super) block: ZapBlock,
    /// Whether no copy of it is any good. If not, a later operation may be able to read it.
    is_damaged: bool,
    pub(super) error: Error,
}

impl LostBlock {
    /// `is_pointer`: its block pointer could not be read, so nothing is known about the block.
    pub(super) fn new(block: ZapBlock, is_pointer: bool, error: Error) -> Self {
        let is_bad = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device);
        let is_defect = is_bad && !error.is_gone();
        Self { block, is_damaged: is_defect && !is_pointer, error }
    }
}

/// The store, and the blocks fetched for the current operation.
pub(super) struct LeafAccess<'a, S: LeafStore> {
    pub(super) store: &'a S,
    pub(super) fetched: &'a [S::Fetched],
    /// Blocks that could not be read. A change of a leaf replaces its filter block if that is
    /// damaged, and otherwise does without it. Names that are not in a lost page can be used.
    pub(super) lost: &'a [LostBlock],
    /// Whether a change of a leaf reads its filter block. Otherwise the filter is void if that is
    /// not in memory.
    pub(super) reads_filters: bool,
}

impl<S: LeafStore> LeafAccess<'_, S> {
    /// Whether this block could not be read.
    pub(super) fn is_lost(&self, block: ZapBlock) -> bool {
        self.lost.iter().any(|lost| lost.block == block)
    }

    /// How a change of a leaf opens its filter block; `None` if it does not. Without that, the
    /// filter of the leaf is void until the leaf changes in another txg. `seed` is that of a
    /// directory with filters.
    pub(super) fn filter_opening(&self, seed: Option<u64>, leaf: u64) -> Option<FilterOpening> {
        let lost = self.lost.iter().find(|lost| lost.block == filter_of(leaf));
        let replaces = lost.is_some_and(|lost| lost.is_damaged);
        let is_usable = lost.is_none() || replaces;
        let is_needed = self.reads_filters;
        seed.filter(|_| is_usable).map(|seed| FilterOpening { seed, replaces, is_needed })
    }
}

impl<S: LeafStore> Clone for LeafAccess<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: LeafStore> Copy for LeafAccess<'_, S> {}

/// The filter block of a leaf.
pub(crate) fn filter_of(leaf: u64) -> ZapBlock {
    ZapBlock::Filter(filter::block_of(leaf))
}
