//! Which leaves an operation reads ahead.
//!
//! Most operations need a leaf, and misses start a pass over all of them, see
//! [`DirectoryReadahead`](crate::readahead::DirectoryReadahead). New names need none while they are
//! buffered. Then leaves are read ahead only if the cache has free memory for all that are left of
//! the pass, and for filters and pages, such as after an import, or if filters do not help.
//!
//! # Locking
//!
//! Takes the directory's lock for a moment, and reads without it.

use super::store::LeafStore;
use super::{DirectoryForm, DirectoryState, FetchedKind, Ordering, Zap};
use crate::format::{ZAP_LEAF_BYTES, ZapBlock};
use crate::readahead::LEAF_BATCH;
use crate::wait::Wait;

/// Approximate limit of leaves that one operation examines to find some that are not resident.
const READAHEAD_LEAVES_MAX: usize = 1024;

/// Why leaves are read ahead.
#[derive(Clone, Copy)]
enum Missed {
    /// An operation had to fetch its leaf.
    Leaf,
    /// It had to look up where its leaf is.
    Pointer,
    /// It had to fetch its leaf, because the filter could not tell, while new names are buffered.
    FilteredLeaf,
    /// It did without its leaf, and buffered its name, or could not because the page is full.
    BufferedLeaf,
}

impl<S: LeafStore> Zap<S> {
    /// Runs after an operation that had to fetch a leaf or an indirect block. By now the store
    /// knows where the leaves are.
    #[inline]
    pub(super) fn read_ahead(&self, fetched: FetchedKind, wait: Wait) {
        if fetched != FetchedKind::Nothing {
            let is_miss = fetched == FetchedKind::Leaf;
            self.read_leaves_ahead(if is_miss { Missed::Leaf } else { Missed::Pointer }, wait);
        }
    }

    /// As [`read_ahead`](Self::read_ahead), after a search for a name that does not exist. While
    /// names are buffered, that needs no leaf, unless the filter cannot tell.
    #[inline]
    pub(super) fn read_ahead_for_absent(&self, fetched: FetchedKind, wait: Wait) {
        if !self.buffers.load(Ordering::Relaxed) {
            self.read_ahead(fetched, wait);
        } else if fetched == FetchedKind::Leaf {
            self.read_leaves_ahead(Missed::FilteredLeaf, wait);
        }
    }

    /// As [`read_ahead`](Self::read_ahead), after a change that adds a name. While names are
    /// buffered, new names need no leaves. But leaves that find free memory spare them the way
    /// through the buffer.
    #[inline]
    pub(super) fn read_ahead_for_new(&self, fetched: FetchedKind, lacks_leaf: bool, wait: Wait) {
        let buffers = || self.buffers.load(Ordering::Relaxed);
        if lacks_leaf || fetched == FetchedKind::Leaf && buffers() {
            self.read_leaves_ahead(Missed::BufferedLeaf, wait);
        } else if !buffers() {
            self.read_ahead(fetched, wait);
        }
    }

    #[cold]
    fn read_leaves_ahead(&self, missed: Missed, wait: Wait) {
        let Ok(mut state) = self.lock(wait) else { return };
        let (mut not_resident, mut visited) = (0, 0);
        loop {
            let DirectoryState { form, ahead } = &mut *state;
            let DirectoryForm::Fat(fat) = form else { return };
            let (leaves, end) = (fat.leaves(), 1 << fat.header.depth);
            let operations = self.write_state.operations.get();
            let ids = match missed {
                _ if visited > 0 => ahead.more(leaves, end),
                Missed::Leaf => ahead.miss(operations, leaves, end),
                Missed::Pointer => ahead.check_residency(operations, leaves, end),
                Missed::BufferedLeaf => {
                    let left = ahead.left(operations, leaves, end);
                    if left == 0 || !self.has_memory_for(left) {
                        return;
                    }
                    ahead.miss_again(operations, leaves, end)
                }
                Missed::FilteredLeaf => ahead.miss_again(operations, leaves, end),
            };
            let ids: Vec<ZapBlock> = ids.map(ZapBlock::Leaf).collect();
            drop(state);
            if ids.is_empty() {
                return;
            }
            visited += ids.len();
            let prefetched = self.store.prefetch(&ids, 0);
            let left = ids.len() - prefetched.taken;
            not_resident += prefetched.not_resident;
            let is_enough = not_resident as u64 >= LEAF_BATCH || visited >= READAHEAD_LEAVES_MAX;
            let Ok(relocked) = self.lock(wait) else { return };
            state = relocked;
            if not_resident > 0 {
                state.ahead.on_prefetched();
            }
            if left > 0 {
                state.ahead.give_back(left as u64);
                return;
            }
            if is_enough {
                return;
            }
        }
    }

    /// Whether the cache has free memory for so many leaves, beside the filters and pages of all
    /// directories: many of them may read leaves ahead at the same time, and leaves that push out
    /// filters are worse than none. Leaves that a pass has read have taken some memory, so it asks
    /// for the rest only.
    fn has_memory_for(&self, leaves: u64) -> bool {
        let bytes = leaves.saturating_mul(ZAP_LEAF_BYTES as u64);
        bytes.saturating_add(self.store.shared_bytes()) <= self.store.free_bytes()
    }
}
