//! Blocks that lead to others, which the lookups of a walk need again and again.
//!
//! A walk caches nothing, so each lookup would read the path to its block from a device. The key of
//! a block has one content, so that of a freed one is not wrong: no path leads to it.
//!
//! Locking: `pool-walk-parents`, a leaf lock for a look, or a change of an entry.

use forebay_base::sync::{Arc, Mutex};
use hashbrown::HashMap;

use crate::block_key::BlockKey;
use crate::error::Result;
use crate::format::BlockPtrPhys;
use crate::store::Store;

/// Blocks that are kept: 4 MiB of indirect blocks.
const PARENTS_MAX: usize = 64;

/// Contents of blocks that lead to others.
pub(in crate::pool) struct Parents(Mutex<HashMap<BlockKey, Arc<[u8]>>>);

impl Parents {
    pub(in crate::pool) fn new() -> Self {
        Self(Mutex::named("pool-walk-parents", HashMap::new()))
    }

    /// As [`Store::with_content`], and keeps the content.
    ///
    /// # Errors
    /// As [`Store::with_content`].
    pub(super) fn with_content<T>(
        &self,
        store: &Store,
        ptr: &BlockPtrPhys,
        take: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        if let Some(block) = store.peek(ptr) {
            return take(&block);
        }
        let key = store.key(ptr);
        let known = self.0.lock().get(&key).cloned();
        if let Some(content) = known {
            return take(&content);
        }
        store.with_content(ptr, |content| {
            let kept = Arc::from(content);
            let mut parents = self.0.lock();
            if parents.len() >= PARENTS_MAX {
                parents.clear();
            }
            parents.insert(key, kept);
            drop(parents);
            take(content)
        })
    }

    /// Forgets all blocks, after the last walk.
    pub(in crate::pool) fn clear(&self) {
        let parents = std::mem::take(&mut *self.0.lock());
        drop(parents);
    }
}
