//! What the sync of a transaction group carries along: where to write, where space comes from, and what it
//! has cost so far.

use forebay_base::arena::Buffer;

use crate::error::Result;
use crate::format::BlockPtrPhys;
use crate::store::codec::Sealed;
use crate::store::{Allocate, Store, WriteProps};

/// The one place that allocates, writes and frees blocks; there is one at a time, on the sync thread.
pub(crate) struct SyncContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) space: &'a mut dyn Allocate,
    pub(crate) txg: u64,
    /// Bytes allocated less bytes freed since somebody last took the figure.
    allocated: i64,
}

impl<'a> SyncContext<'a> {
    pub(crate) fn new(store: &'a Store, space: &'a mut dyn Allocate, txg: u64) -> Self {
        Self { store, space, txg, allocated: 0 }
    }

    /// The same txg for blocks that belong to somebody else, see [`Store::with_owner`].
    pub(crate) fn with_store<'b>(&'b mut self, store: &'b Store) -> SyncContext<'b> {
        SyncContext { store, space: &mut *self.space, txg: self.txg, allocated: 0 }
    }

    /// Writes a block, and leaves it in the cache if `props` says so.
    pub(crate) fn write_new(
        &mut self,
        content: Buffer,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let ptr = self.store.write_new(content, props, self.space)?;
        self.born(&ptr);
        Ok(ptr)
    }

    /// The same for a block that was sealed.
    pub(crate) fn write_sealed(
        &mut self,
        content: Buffer,
        sealed: Sealed,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let ptr = self.store.write_sealed(content, sealed, props, self.space)?;
        self.born(&ptr);
        Ok(ptr)
    }

    /// Counts a block that was written by other means.
    pub(crate) fn born(&mut self, ptr: &BlockPtrPhys) {
        self.allocated += self.cost(ptr);
    }

    /// Gives a block's space back, two txgs from now.
    pub(crate) fn free(&mut self, ptr: &BlockPtrPhys) -> Result<()> {
        self.allocated -= self.cost(ptr);
        self.store.free(ptr, self.space)
    }

    /// Counts a tree, or a part of one, that cannot be read and so not be freed: its space is lost.
    pub(crate) fn leak(&self) {
        self.store.note_leak();
    }

    /// Bytes allocated less bytes freed since this was last asked.
    pub(crate) fn take_allocated(&mut self) -> i64 {
        std::mem::take(&mut self.allocated)
    }

    fn cost(&self, ptr: &BlockPtrPhys) -> i64 {
        (ptr.allocated_bytes(self.store.sector_bytes()) * ptr.copy_count() as u64) as i64
    }
}
