//! Asynchronous reads of the blocks that a later read of an object needs.

use forebay_base::sync::Arc;

use crate::block_label::INDIRECT_BLOCKS;
use crate::format::BlockPtrPhys;
use crate::trace::TraceOutcome;
use crate::wait::Wait;

use super::node::{BlockState, Node};
use super::tree::{self, POINTERS_SHIFT, Tree};

/// Called once all started reads have ended.
pub(crate) type OnFetched = Box<dyn FnOnce() + Send>;

/// Calls the function when the last reference is dropped. Each read in flight holds a reference.
struct CallOnDrop(Option<OnFetched>);

// SAFETY: a shared reference gives no access to the content: the field is private and only `drop`,
// which has exclusive access, uses it.
unsafe impl Sync for CallOnDrop {}

impl Drop for CallOnDrop {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

impl Node {
    /// Starts the device reads that a read of the range would wait for, with the priority of a
    /// synchronous read.
    ///
    /// If a block pointer is not in memory, this reads the highest missing indirect block instead:
    /// the pointers below it are not known yet. Calls `done` exactly once, on any thread, after the
    /// last read has ended, whether or not it succeeded. Calls it at once if there is nothing to
    /// read.
    pub(crate) fn fetch_range(&self, offset: u64, len: u64, done: OnFetched) {
        let on_fetched = Arc::new(CallOnDrop(Some(done)));
        let end = offset.saturating_add(len).min(self.size());
        if offset >= end {
            return;
        }
        let _reading = self.io.store.readers().enter();
        let (mut block, last) = (offset >> self.record_shift, (end - 1) >> self.record_shift);
        while block <= last {
            let mut found = self.locate(block);
            if found.is_none() && self.pin(block, Wait::Refused).is_ok() {
                found = self.locate(block);
            }
            match found {
                Some(Some(ptr)) => {
                    let store = &self.io.store;
                    if store.is_traced() && !store.cache().cache().contains(&store.key(&ptr)) {
                        store.trace_pending(self.attributes(), block, &ptr);
                    }
                    let on_fetched = Arc::clone(&on_fetched);
                    let on_completion = Box::new(move |_| drop(on_fetched));
                    self.io.store.fetch(&ptr, self.attributes(), on_completion);
                    block += 1;
                }
                Some(None) => block += 1,
                None => {
                    self.fetch_pointers(block, &on_fetched);
                    block = (Tree::parent_of(block) + 1) << POINTERS_SHIFT;
                }
            }
        }
    }

    /// Starts to read a block that a reader may ask for soon.
    pub(super) fn prefetch(&self, block: u64, ptr: &BlockPtrPhys) {
        let (store, attributes) = (&self.io.store, self.attributes());
        if store.is_traced() && !store.cache().cache().contains(&store.key(ptr)) {
            let bytes = ptr.logical_bytes.get() as usize;
            store.trace_access(attributes, (block, bytes), TraceOutcome::ReadAhead);
        }
        store.prefetch(ptr, attributes, Box::new(|_| {}));
    }

    /// Starts to read the highest indirect block above `block` that is not in memory, as a reader
    /// may ask for it soon.
    pub(super) fn prefetch_pointers(&self, block: u64) {
        if let Some(ptr) = self.missing_above(block) {
            self.io.store.prefetch(&ptr, INDIRECT_BLOCKS, Box::new(|_| {}));
        }
    }

    /// The pointer of a stored block. `Some(None)` for a block that is dirty in memory or a hole;
    /// `None` if the pointer is not in memory.
    pub(super) fn locate(&self, block: u64) -> Option<Option<BlockPtrPhys>> {
        match self.lock().find(block) {
            BlockState::Stored(ptr) => Some(Some(ptr)),
            BlockState::Dirty(_) | BlockState::Hole => Some(None),
            BlockState::Unknown => None,
        }
    }

    /// Starts to read the highest indirect block above `block` that is not in memory. The caller
    /// has entered the store's readers.
    fn fetch_pointers(&self, block: u64, on_fetched: &Arc<CallOnDrop>) {
        if let Some(ptr) = self.missing_above(block) {
            let on_fetched = Arc::clone(on_fetched);
            self.io.store.fetch(&ptr, INDIRECT_BLOCKS, Box::new(move |_| drop(on_fetched)));
        }
    }

    /// The highest indirect block above `block` that is not in memory.
    fn missing_above(&self, block: u64) -> Option<BlockPtrPhys> {
        let tree = self.lock().tree;
        // A later read finds the damage and reports it.
        tree::missing_above(&self.io.store, &tree, block).ok().flatten()
    }
}
