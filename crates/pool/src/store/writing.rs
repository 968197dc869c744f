//! The content of blocks being written, so that no reader reads them from a device too early.
//!
//! Pinning such blocks in the cache would not suffice: the cache may refuse them or be flushed.
//!
//! Locking: `store-writing`, sharded. Removed entries are dropped after the lock is released.

use std::collections::BTreeMap;
use std::ops::Deref;

use forebay_base::arena::Buffer;
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Attributes, Begin};

use super::counters::StoreCounters;
use super::{Shared, Store};
use crate::block_cache::BlockRef;
use crate::block_key::BlockKey;
use crate::format::BlockPtrPhys;

/// The content of a block, cached or not.
#[derive(Clone)]
pub(super) enum HeldBytes {
    Cached(BlockRef),
    Uncached(Arc<Buffer>),
}

impl Deref for HeldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Cached(block) => block,
            Self::Uncached(buffer) => buffer,
        }
    }
}

/// Blocks being written, by key.
pub(super) struct Writing {
    shards: [Mutex<BTreeMap<BlockKey, HeldBytes>>; 16],
}

impl Writing {
    pub(super) fn new() -> Self {
        let shard = |_| Mutex::named("store-writing", BTreeMap::new());
        Self { shards: std::array::from_fn(shard) }
    }

    fn shard(&self, key: &BlockKey) -> &Mutex<BTreeMap<BlockKey, HeldBytes>> {
        &self.shards[key.hash() as usize % self.shards.len()]
    }

    /// Returns the content of a block that is being written.
    pub(super) fn get(&self, key: &BlockKey) -> Option<HeldBytes> {
        self.shard(key).lock().get(key).cloned()
    }

    /// Number of blocks being written.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// The content of a block being written. Readers of its pointer find it until this is dropped.
pub(crate) struct HeldContent {
    content: HeldBytes,
    key: BlockKey,
    shared: Arc<Shared>,
}

impl HeldContent {
    /// Whether it is a block in the cache.
    pub(super) fn is_cached(&self) -> bool {
        matches!(self.content, HeldBytes::Cached(_))
    }

    /// The content.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.content
    }
}

impl Drop for HeldContent {
    fn drop(&mut self) {
        let removed = self.shared.writing.shard(&self.key).lock().remove(&self.key);
        debug_assert!(removed.is_some(), "a block was held twice");
        drop(removed);
    }
}

impl Store {
    /// Makes the content of a new block available to readers, before its pointer is published. With
    /// `attributes` the content is also cached and pinned, unless the cache refuses it.
    pub(crate) fn hold(
        &self,
        bp: &BlockPtrPhys,
        content: Buffer,
        attributes: Option<Attributes>,
    ) -> HeldContent {
        let content = match attributes {
            Some(attributes) => self.hold_in_cache(bp, content, attributes),
            None => HeldBytes::Uncached(Arc::new(content)),
        };
        self.hold_content(bp, content)
    }

    /// As [`hold`](Self::hold), for shared content that is not cached.
    pub(crate) fn hold_shared(&self, bp: &BlockPtrPhys, content: Arc<Buffer>) -> HeldContent {
        self.hold_content(bp, HeldBytes::Uncached(content))
    }

    fn hold_content(&self, bp: &BlockPtrPhys, content: HeldBytes) -> HeldContent {
        let key = self.key(bp);
        let shared = Arc::clone(&self.shared);
        drop(shared.writing.shard(&key).lock().insert(key, content.clone()));
        HeldContent { content, key, shared }
    }

    fn hold_in_cache(
        &self,
        bp: &BlockPtrPhys,
        content: Buffer,
        attributes: Attributes,
    ) -> HeldBytes {
        let key = self.key(bp);
        // The L2 cannot have a new block. Without waiting: the caller may hold an object's lock,
        // and blocks that only its next flush releases may fill the cache.
        let weight = content.footprint() as u64;
        match self.cache.cache().begin_new(key, weight, attributes) {
            Ok(Begin::Vacant(load_guard)) if load_guard.refusal().is_none() => {
                return HeldBytes::Cached(load_guard.publish(content));
            }
            // The key is new, so nothing can be cached under it. Remove it if there is something
            // nevertheless.
            Ok(Begin::Hit(_) | Begin::InFlight(_)) => {
                debug_assert!(false, "a new block is cached already");
                self.cache.cache().remove(&key);
            }
            // No capacity: nothing has failed.
            Ok(Begin::Vacant(load_guard)) => load_guard.withdraw(),
            Err(_) => {}
        }
        self.count(StoreCounters::UNCACHED_WRITES, 1);
        HeldBytes::Uncached(Arc::new(content))
    }
}
