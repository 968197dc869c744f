//! Blocks that a walk has met, in the order of the device.
//!
//! The order of a walk is that of the files. Many blocks at a time, sorted by address, are nearly
//! in the order of the device, however the files lie on it.

use crate::format::BlockPtrPhys;
use crate::store::Store;

use super::super::walk::{BlockLocation, PostponedBlock};

/// Blocks of a batch: 4 MiB of memory, and 2 GiB of large blocks.
const BATCH_BLOCKS: usize = 16_384;

/// A block that waits.
pub(super) struct WaitingBlock {
    store: Store,
    ptr: BlockPtrPhys,
    location: BlockLocation,
}

impl WaitingBlock {
    pub(super) fn block(&self) -> PostponedBlock<'_> {
        PostponedBlock { store: &self.store, ptr: &self.ptr, location: &self.location }
    }
}

/// Blocks that wait.
#[derive(Default)]
pub(super) struct Batch(Vec<WaitingBlock>);

impl Batch {
    /// Adds a block. Returns whether the batch is full.
    pub(super) fn push(
        &mut self,
        PostponedBlock { store, ptr, location }: PostponedBlock<'_>,
    ) -> bool {
        let (store, location) = (store.clone(), location.clone());
        self.0.push(WaitingBlock { store, ptr: *ptr, location });
        self.0.len() >= BATCH_BLOCKS
    }

    /// Takes all blocks, in the order of their first copies.
    pub(super) fn take(&mut self) -> Vec<WaitingBlock> {
        let mut blocks = std::mem::take(&mut self.0);
        blocks.sort_by_cached_key(|one| {
            one.ptr.dvas().next().map_or((0, 0), |dva| (dva.device, dva.offset))
        });
        blocks
    }
}
