//! The first filters of a directory that has become large.
//!
//! The first change of a leaf in a transaction group opens its filter block, and the sync makes the
//! filter. Leaves that a group has changed before the directory becomes large in it would have no
//! filter until a later group changes them, and leaves that are not changed again never. Leaves
//! split in waves, so most directories become large when the last of a wave splits, and grow by as
//! many names again before the next leaf does. If the pool is exported meanwhile, each leaf is read
//! after the import.
//!
//! So the change that makes a directory large opens its filter blocks, too, and those of the
//! changes after it what it has left. They add the filters of leaves that are in memory and not
//! changed.
//!
//! Not done: filters of leaves that are not in memory, as nothing is read for that, and of leaves
//! that only the group being synced has changed. They come with the next change of their leaf.
//!
//! # Locking
//!
//! Takes the directory's lock for one filter block at a time.

use super::fat::Fat;
use super::store::LeafStore;
use super::{DirectoryForm, Zap};
use crate::format::ZAP_FILTER_LEAVES;

/// Filter blocks that one change opens at most. A directory that becomes large as soon as it may
/// has as many or fewer.
const BLOCKS_PER_CHANGE: usize = 8;
/// Filter blocks that are opened at most. A directory that has been larger than that before it got
/// filters, or is unbalanced, gets others as its leaves change.
const BLOCKS_MAX: u8 = 64;

impl<S: LeafStore> Zap<S> {
    /// Opens some filter blocks after a change in a directory that has become large.
    #[cold]
    pub(super) fn make_first_filters(&self, tx: &S::Tx) {
        for _ in 0..BLOCKS_PER_CHANGE {
            // The next change goes on.
            let Ok(mut state) = self.lock(S::wait_of(tx)) else { return };
            let DirectoryForm::Fat(fat) = &mut state.form else { return };
            if !fat.lacks_filters() {
                return;
            }
            fat.make_next_filters(&self.store, tx);
        }
    }
}

impl Fat {
    /// The directory has become large: none of its leaves has a filter.
    pub(super) fn begin_first_filters(&mut self) {
        let blocks = (1u64 << self.header.depth).div_ceil(ZAP_FILTER_LEAVES as u64);
        self.first_filters = 0..blocks.min(BLOCKS_MAX.into()) as u8;
    }

    /// Whether filter blocks are left to be made.
    #[inline]
    pub(super) fn lacks_filters(&self) -> bool {
        !self.first_filters.is_empty()
    }

    /// Opens the next filter block. Gives up if there is too little memory or space: leaves get
    /// their filters as they change.
    fn make_next_filters<S: LeafStore>(&mut self, store: &S, tx: &S::Tx) {
        let made = match (self.takes_share(store), self.filter_seed(), self.first_filters.next()) {
            (true, Some(seed), Some(index)) if store.may_merge(tx) => {
                store.make_filters(tx, index.into(), seed).is_ok()
            }
            _ => false,
        };
        if !made {
            self.first_filters = 0..0;
        }
    }
}
