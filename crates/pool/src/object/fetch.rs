//! Bringing what a read needs into the cache, for somebody who does not wait for it.

use forebay_base::sync::Arc;
use forebay_cache::Attributes;

use crate::blocking::non_blocking;
use crate::format::BlockPtrPhys;

use super::node::{BlockState, Node};
use super::tree::{self, POINTERS_SHIFT, Tree};

/// What is to be called when nothing is on its way any more.
pub(crate) type OnFetched = Box<dyn FnOnce() + Send>;

/// Reads on their way hold it; the last one to let it go calls.
struct CallOnDrop(Option<OnFetched>);

// SAFETY: nothing can be done with a shared one: what is in it is reached by its drop only.
unsafe impl Sync for CallOnDrop {}

impl Drop for CallOnDrop {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

impl Node {
    /// Begins to read what a read of a range would have to wait for, as urgently as if somebody waited: blocks, or the
    /// indirect blocks that say where they are, of which one at a time is known. Whatever happens to each, `done` is called
    /// once, when the last one has ended, on whatever thread; at once, if there is nothing to read.
    pub(crate) fn fetch_range(&self, offset: u64, len: u64, done: OnFetched) {
        let at_end = Arc::new(CallOnDrop(Some(done)));
        let end = offset.saturating_add(len).min(self.size());
        if offset >= end {
            return;
        }
        let _reading = self.objset.store.readers().enter();
        let (mut block, last) = (offset >> self.record_shift, (end - 1) >> self.record_shift);
        while block <= last {
            let mut found = self.locate(block);
            if found.is_none() && non_blocking(|| self.pin(block)).is_ok() {
                found = self.locate(block);
            }
            match found {
                Some(Some(ptr)) => {
                    let at_end = Arc::clone(&at_end);
                    let landed = Box::new(move |_| drop(at_end));
                    self.objset.store.fetch(&ptr, self.attributes(), landed);
                    block += 1;
                }
                Some(None) => block += 1,
                None => {
                    self.fetch_pointers(block, &at_end);
                    block = (Tree::parent_of(block) + 1) << POINTERS_SHIFT;
                }
            }
        }
    }

    /// Where a block is stored: inside, nothing if it is in memory or a hole; outside, if that is not known.
    pub(super) fn locate(&self, block: u64) -> Option<Option<BlockPtrPhys>> {
        match self.lock().find(block) {
            BlockState::Stored(ptr) => Some(Some(ptr)),
            BlockState::Dirty(_) | BlockState::Hole => Some(None),
            BlockState::Unknown => None,
        }
    }

    /// Begins to read the highest indirect block above `block` that is not in memory. The caller has entered the store's
    /// readers.
    fn fetch_pointers(&self, block: u64, at_end: &Arc<CallOnDrop>) {
        let store = &self.objset.store;
        let tree = self.lock().tree;
        // What is damaged is found, and told, by who reads.
        if let Ok(Some(ptr)) = tree::missing_above(store, &tree, block) {
            let at_end = Arc::clone(at_end);
            store.fetch(&ptr, Attributes::METADATA, Box::new(move |_| drop(at_end)));
        }
    }
}
