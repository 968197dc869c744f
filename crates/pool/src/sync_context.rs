//! State of the sync of a transaction group: the store, the allocator, and the change of allocated
//! bytes.

use forebay_base::arena::Buffer;

use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::store::barrier::Pause;
use crate::store::codec::Sealed;
use crate::store::{Allocate, Placed, Store, WritePayload, WriteProps};

/// Allocates, writes and frees blocks. There is one at a time, on the sync thread.
pub(crate) struct SyncContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) space: &'a mut dyn Allocate,
    pub(crate) txg: u64,
    pause: &'a dyn Pause,
    /// Bytes allocated minus bytes freed since the last [`take_allocated`](Self::take_allocated).
    allocated: i64,
}

impl<'a> SyncContext<'a> {
    /// `pause` decides about steps that fail for want of memory, or because of a device.
    pub(crate) fn new(
        store: &'a Store,
        space: &'a mut dyn Allocate,
        txg: u64,
        pause: &'a dyn Pause,
    ) -> Self {
        Self { store, space, txg, pause, allocated: 0 }
    }

    /// Returns a context of the same txg for the blocks of another store, see
    /// [`Store::with_owner`].
    pub(crate) fn with_store<'b>(&'b mut self, store: &'b Store) -> SyncContext<'b> {
        let (space, pause) = (&mut *self.space, self.pause);
        SyncContext { store, space, txg: self.txg, pause, allocated: 0 }
    }

    /// Runs a step that allocates memory or reads. Repeats it while memory is short, and after the
    /// pause for a device.
    ///
    /// # Errors
    /// As [`Store::repeat`].
    pub(crate) fn repeat<T>(&self, step: impl FnMut() -> Result<T>) -> Result<T> {
        self.store.repeat(self.pause, step)
    }

    /// Writes a block, and caches it if `props` says so.
    pub(crate) fn write_new(
        &mut self,
        content: Buffer,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let sealed = self.repeat(|| self.store.seal(&content, props))?;
        self.write_sealed(content, sealed, props)
    }

    /// As [`write_new`](Self::write_new), for a block that is already sealed.
    pub(crate) fn write_sealed(
        &mut self,
        content: Buffer,
        sealed: Sealed,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let placed = self.place(&sealed, &content, props)?;
        let ptr = placed.bp;
        let held = self.store.hold(&ptr, content, props.cache);
        self.submit(placed, WritePayload::new(sealed, held))?;
        Ok(ptr)
    }

    /// As [`Store::submit`], if no other host has the pool.
    pub(crate) fn submit(&self, placed: Placed, payload: WritePayload) -> Result<()> {
        self.pause.before_write()?;
        self.store.submit(placed, payload);
        Ok(())
    }

    /// As [`Store::place`]. Counts the space.
    pub(crate) fn place(
        &mut self,
        sealed: &Sealed,
        content: &[u8],
        props: &WriteProps,
    ) -> Result<Placed> {
        let (store, space) = (self.store, &mut *self.space);
        let placed = store.repeat(self.pause, || store.place(sealed, content, props, space))?;
        self.born(&placed.bp);
        Ok(placed)
    }

    fn born(&mut self, ptr: &BlockPtrPhys) {
        self.allocated = self.allocated.saturating_add(self.cost(ptr));
    }

    /// Counts the space of preallocated holes.
    pub(crate) fn preallocate(&mut self, ptr: &BlockPtrPhys) {
        self.allocated = self.allocated.saturating_add(ptr.preallocated_bytes());
    }

    /// Frees a block, or preallocated holes. Its space is reusable three txgs later.
    pub(crate) fn free(&mut self, ptr: &BlockPtrPhys) -> Result<()> {
        if ptr.is_preallocated() {
            self.allocated = self.allocated.saturating_sub(ptr.preallocated_bytes());
            return Ok(());
        }
        self.allocated = self.allocated.saturating_sub(self.cost(ptr));
        self.store.free(ptr, self.space)
    }

    /// As [`free`](Self::free). Of a gang whose pieces are not known, because it is damaged, the
    /// space is leaked, and counted.
    pub(crate) fn free_or_leak(&mut self, ptr: &BlockPtrPhys) -> Result<()> {
        if ptr.is_preallocated() {
            return self.free(ptr);
        }
        self.allocated = self.allocated.saturating_sub(self.cost(ptr));
        self.or_leak(|ctx| ctx.store.free(ptr, ctx.space)).map(drop)
    }

    /// As [`free`](Self::free), for a block whose write has failed. The pieces of a gang are leaked
    /// and counted if they cannot be read now: they may not have been written, so waiting for their
    /// device may not help, and the group can go on without it.
    pub(crate) fn free_unwritten(&mut self, ptr: &BlockPtrPhys) -> Result<()> {
        match self.free(ptr) {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device) => {
                self.leak();
                Ok(())
            }
            freed => freed,
        }
    }

    /// Runs a step that reads what is to be freed. Returns `None` and counts a leak if it is
    /// damaged: that must not stop the pool. While no device answers that may have it, and while
    /// memory is short, the step is repeated after the pause.
    ///
    /// # Errors
    /// As [`Store::repeat`].
    pub(crate) fn or_leak<T>(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        let is_damage = |error: &Error| {
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device) && !error.is_gone()
        };
        let (store, pause) = (self.store, self.pause);
        store.repeat(pause, || match step(self) {
            Err(error) if is_damage(&error) => {
                self.leak();
                Ok(None)
            }
            read => read.map(Some),
        })
    }

    /// Counts an unreadable tree, or part of one, that cannot be freed: its space is leaked.
    pub(crate) fn leak(&self) {
        self.store.note_leak();
    }

    /// Returns bytes allocated minus bytes freed since the last call.
    pub(crate) fn take_allocated(&mut self) -> i64 {
        std::mem::take(&mut self.allocated)
    }

    /// Adds bytes that [`take_allocated`](Self::take_allocated) has returned.
    pub(crate) fn add_allocated(&mut self, bytes: i64) {
        self.allocated = self.allocated.saturating_add(bytes);
    }

    fn cost(&self, ptr: &BlockPtrPhys) -> i64 {
        (ptr.allocated_bytes(self.store.sector_bytes()) * ptr.copy_count() as u64) as i64
    }
}
