//! Routes calls of the shared block cache to the L2 devices of a key's pool.
//!
//! The cache knows one secondary cache, the [`L2Router`]. A key's owner identifies the pool, and
//! the pool lists its L2 devices in the order in which they were attached. The hash of a key
//! selects the L2 device that a block is offered to. A load asks all of them, because a block may
//! have been written while fewer were attached.
//!
//! Locking: `pool-l2-owners` (sharded) and `pool-l2-attached` are leaf locks. The lists are cloned
//! out of them before an L2 is called.

use crossbeam_utils::CachePadded;
use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Candidate, Class, Holding, Key, LoadGuard, OwnerId, SecondaryCache};
use hashbrown::HashMap;

use super::pool_l2::PoolL2;
use crate::block_key::BlockKey;

/// Number of shards of owners; a power of two.
const SHARDS: usize = 16;

/// An L2 of a pool. Tests implement it without a device.
pub(crate) trait L2Cache: SecondaryCache<BlockKey, Buffer> {
    /// Bytes of RAM that it takes.
    fn memory_bytes(&self) -> u64;

    /// Writes all admissible blocks; waits while it is busy. Returns false if it cannot write any
    /// more.
    fn write_all(&self, blocks: Blocks) -> bool;
}

/// Blocks offered to an L2.
pub(super) type Blocks = Vec<Candidate<BlockKey, Buffer>>;

/// The L2s of a pool, in the order in which they were attached.
pub(super) type Attached = Arc<[Arc<dyn L2Cache>]>;

type Owners = HashMap<OwnerId, Arc<PoolL2>>;

/// Maps owners to the L2s of their pools.
pub(crate) struct L2Router {
    /// Number of L2s of all pools.
    pub(super) attached: AtomicUsize,
    owners: [CachePadded<Mutex<Owners>>; SHARDS],
    /// The L2s of all pools.
    pub(super) all_attached: Mutex<Vec<Arc<dyn L2Cache>>>,
}

impl L2Router {
    pub(crate) fn new() -> Arc<Self> {
        let owners = |_| CachePadded::new(Mutex::named("pool-l2-owners", HashMap::new()));
        Arc::new(Self {
            attached: AtomicUsize::new(0),
            owners: std::array::from_fn(owners),
            all_attached: Mutex::named("pool-l2-attached", Vec::new()),
        })
    }

    pub(super) fn shard(&self, owner: OwnerId) -> &Mutex<Owners> {
        &self.owners[usize::from(owner.get()) % SHARDS]
    }

    fn of(&self, owner: OwnerId) -> Option<Attached> {
        let l2 = self.shard(owner).lock().get(&owner).cloned();
        l2.map(|l2| l2.attached()).filter(|attached| !attached.is_empty())
    }

    /// Distributes blocks: calls `each` with an L2 and its blocks.
    pub(super) fn distribute(&self, blocks: Blocks, mut each: impl FnMut(&dyn L2Cache, Blocks)) {
        // Blocks of one owner often come together, and there are few owners.
        let mut by_owner: Vec<(OwnerId, Option<Attached>)> = Vec::new();
        let mut batches: Vec<(Arc<dyn L2Cache>, Blocks)> = Vec::new();
        for block in blocks {
            let owner = block.key().owner();
            let known = by_owner.iter().position(|(other, _)| *other == owner);
            let at = known.unwrap_or_else(|| {
                by_owner.push((owner, self.of(owner)));
                by_owner.len() - 1
            });
            let Some(attached) = &by_owner[at].1 else { continue };
            let l2 = &attached[block.key().hash() as usize % attached.len()];
            match batches.iter_mut().find(|(other, _)| Arc::ptr_eq(other, l2)) {
                Some((_, batch)) => batch.push(block),
                None => batches.push((Arc::clone(l2), vec![block])),
            }
        }
        for (l2, batch) in batches {
            each(&*l2, batch);
        }
    }

    /// Bytes of RAM that all L2s take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        if self.attached.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let attached = self.all_attached.lock().clone();
        attached.iter().map(|l2| l2.memory_bytes()).sum()
    }
}

impl SecondaryCache<BlockKey, Buffer> for L2Router {
    fn offer(&self, candidates: Blocks) {
        self.distribute(candidates, |l2, batch| l2.offer(batch));
    }

    fn evicted(&self, keys: &[BlockKey]) {
        for batch in keys.chunk_by(|a, b| a.owner() == b.owner()) {
            // A block written while fewer L2s were attached may be on any of them.
            for l2 in self.of(batch[0].owner()).iter().flat_map(|all| all.iter()) {
                l2.evicted(batch);
            }
        }
    }

    fn would_write(&self, key: &BlockKey, class: Class) -> bool {
        // The block may be on any of them.
        let attached = self.of(key.owner());
        attached.is_some_and(|all| all.iter().all(|l2| l2.would_write(key, class)))
    }

    fn holding(&self, key: &BlockKey, class: Class) -> Option<Holding> {
        let attached = self.of(key.owner())?;
        let each = || attached.iter().filter_map(|l2| l2.holding(key, class));
        // The block may be on any of them.
        let stored = each().find(|holding| *holding == Holding::Stored);
        stored.or_else(|| each().next())
    }

    /// Of the L2 devices of all pools together.
    fn capacity_bytes(&self) -> Option<u64> {
        let attached = self.all_attached.lock().clone();
        Some(attached.iter().filter_map(|l2| l2.capacity_bytes()).sum())
    }

    fn load(
        &self,
        mut load_guard: LoadGuard<BlockKey, Buffer>,
    ) -> Result<(), LoadGuard<BlockKey, Buffer>> {
        let owner = load_guard.key().owner();
        let Some(attached) = self.of(owner) else { return Err(load_guard) };
        for l2 in attached.iter() {
            match l2.load(load_guard) {
                Ok(()) => return Ok(()),
                Err(back) => load_guard = back,
            }
        }
        Err(load_guard)
    }

    fn forget(&self, key: &BlockKey) {
        for l2 in self.of(key.owner()).iter().flat_map(|all| all.iter()) {
            l2.forget(key);
        }
    }

    fn is_active(&self) -> bool {
        self.attached.load(Ordering::Relaxed) > 0
    }
}
