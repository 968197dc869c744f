//! Which leaves an operation reads ahead.
//!
//! Most operations need a leaf, and misses start a pass over all of them, see
//! [`DirectoryReadahead`](crate::readahead::DirectoryReadahead). New names need none while they are
//! buffered. Then leaves are read ahead only if the cache has free memory for all of them, such as
//! after an import, or if filters do not help.
//!
//! # Locking
//!
//! Takes the directory's lock for a moment, and reads without it.

use super::store::LeafStore;
use super::{DirectoryForm, DirectoryState, FetchedKind, Ordering, Zap};
use crate::format::ZapBlock;
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
    /// It had to fetch its leaf, while new names are buffered.
    FilteredLeaf,
    /// It did without its leaf, and buffered its name.
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

    /// As [`read_ahead`](Self::read_ahead), after an operation on a name that does not exist before
    /// it. While names are buffered, new names need no leaves. But leaves that find free memory
    /// spare them the way through the buffer.
    #[inline]
    pub(super) fn read_ahead_for_new(&self, fetched: FetchedKind, lacks_leaf: bool, wait: Wait) {
        if lacks_leaf {
            self.read_leaves_ahead(Missed::BufferedLeaf, wait);
        } else if !self.buffers.load(Ordering::Relaxed) {
            self.read_ahead(fetched, wait);
        } else if fetched == FetchedKind::Leaf {
            self.read_leaves_ahead(Missed::FilteredLeaf, wait);
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
                Missed::BufferedLeaf if !fat.leaves_fit(&self.store) => return,
                Missed::BufferedLeaf | Missed::FilteredLeaf => {
                    ahead.miss_again(operations, leaves, end)
                }
            };
            let ids: Vec<ZapBlock> = ids.map(ZapBlock::Leaf).collect();
            drop(state);
            if ids.is_empty() {
                return;
            }
            visited += ids.len();
            not_resident += self.store.prefetch(&ids);
            let is_enough = not_resident as u64 >= LEAF_BATCH || visited >= READAHEAD_LEAVES_MAX;
            let Ok(relocked) = self.lock(wait) else { return };
            state = relocked;
            if not_resident > 0 {
                state.ahead.on_prefetched();
            }
            if is_enough {
                return;
            }
        }
    }
}
