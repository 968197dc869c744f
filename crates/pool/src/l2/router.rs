//! Routes the calls of the shared block cache to the L2 caches of the pool that a key belongs to.
//!
//! The cache knows one secondary cache, the [`Mux`]. A key's owner names the pool, and the pool lists its L2 caches in the order in
//! which they were attached. The hash of a key selects the L2 cache that a block is offered to; a load asks all of them, because a block
//! may have been written while fewer were attached.
//!
//! Locking: `second-owners` (sharded) and `second-levels` are leaf locks. The lists are cloned out of them before any L2 cache is called.

use crossbeam_utils::CachePadded;
use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Candidate, Class, Filler, Key, OwnerId, SecondLevel};
use hashbrown::HashMap;

use super::pool_l2::Levels;
use crate::block_key::BlockKey;

/// Shards of owners; a power of two.
const SHARDS: usize = 16;

/// A level of a pool, whatever it is made of.
pub(crate) trait CacheLevel: SecondLevel<BlockKey, Buffer> {
    /// Bytes of RAM that it takes.
    fn memory_bytes(&self) -> u64;

    /// Writes all of these that may be written at all; waits while it is busy. False if it can write no more.
    fn write_all(&self, blocks: Blocks) -> bool;
}

/// Blocks that may go to a level.
pub(super) type Blocks = Vec<Candidate<BlockKey, Buffer>>;

/// Those of a pool, in the order in which they were attached.
pub(super) type Attached = Arc<[Arc<dyn CacheLevel>]>;

type Owners = HashMap<OwnerId, Arc<Levels>>;

/// Leads owners to the levels of their pools.
pub(crate) struct Mux {
    /// Levels of all pools.
    pub(super) attached: AtomicUsize,
    owners: [CachePadded<Mutex<Owners>>; SHARDS],
    /// Those of pools that have some.
    pub(super) everywhere: Mutex<Vec<Arc<dyn CacheLevel>>>,
}

impl Mux {
    pub(crate) fn new() -> Arc<Self> {
        let owners = |_| CachePadded::new(Mutex::named("second-owners", HashMap::new()));
        Arc::new(Self {
            attached: AtomicUsize::new(0),
            owners: std::array::from_fn(owners),
            everywhere: Mutex::named("second-levels", Vec::new()),
        })
    }

    pub(super) fn shard(&self, owner: OwnerId) -> &Mutex<Owners> {
        &self.owners[usize::from(owner.get()) % SHARDS]
    }

    fn of(&self, owner: OwnerId) -> Option<Attached> {
        let levels = self.shard(owner).lock().get(&owner).cloned();
        levels.map(|levels| levels.attached()).filter(|attached| !attached.is_empty())
    }

    /// Calls `each` with a level and those of the blocks that are for it.
    pub(super) fn hand_out(&self, blocks: Blocks, mut each: impl FnMut(&dyn CacheLevel, Blocks)) {
        // Those of one owner often come together; there are few owners.
        let mut groups: Vec<(OwnerId, Option<Attached>)> = Vec::new();
        let mut lots: Vec<(Arc<dyn CacheLevel>, Blocks)> = Vec::new();
        for block in blocks {
            let owner = block.key().owner();
            let known = groups.iter().position(|(other, _)| *other == owner);
            let at = known.unwrap_or_else(|| {
                groups.push((owner, self.of(owner)));
                groups.len() - 1
            });
            let Some(attached) = &groups[at].1 else { continue };
            let level = &attached[block.key().spread() as usize % attached.len()];
            match lots.iter_mut().find(|(other, _)| Arc::ptr_eq(other, level)) {
                Some((_, lot)) => lot.push(block),
                None => lots.push((Arc::clone(level), vec![block])),
            }
        }
        for (level, lot) in lots {
            each(&*level, lot);
        }
    }

    /// Bytes of RAM that all levels take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        if self.attached.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let levels = self.everywhere.lock().clone();
        levels.iter().map(|level| level.memory_bytes()).sum()
    }
}

impl SecondLevel<BlockKey, Buffer> for Mux {
    fn offer(&self, candidates: Blocks) {
        self.hand_out(candidates, |level, lot| level.offer(lot));
    }

    fn evicted(&self, keys: &[BlockKey]) {
        for lot in keys.chunk_by(|a, b| a.owner() == b.owner()) {
            // One that was written before there were as many may be on any of them.
            for level in self.of(lot[0].owner()).iter().flat_map(|all| all.iter()) {
                level.evicted(lot);
            }
        }
    }

    fn would_write(&self, key: &BlockKey, class: Class) -> bool {
        // It may be on any of them.
        let attached = self.of(key.owner());
        attached.is_some_and(|all| all.iter().all(|level| level.would_write(key, class)))
    }

    fn load(&self, mut filler: Filler<BlockKey, Buffer>) -> Result<(), Filler<BlockKey, Buffer>> {
        let owner = filler.key().owner();
        let Some(attached) = self.of(owner) else { return Err(filler) };
        for level in attached.iter() {
            match level.load(filler) {
                Ok(()) => return Ok(()),
                Err(back) => filler = back,
            }
        }
        Err(filler)
    }

    fn forget(&self, key: &BlockKey) {
        for level in self.of(key.owner()).iter().flat_map(|all| all.iter()) {
            level.forget(key);
        }
    }

    fn is_active(&self) -> bool {
        self.attached.load(Ordering::Relaxed) > 0
    }
}
