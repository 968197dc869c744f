//! The second level of a block cache: several pools share the cache, and each may have several cache devices.
//!
//! * [`Mux`] is what the cache knows as its second level: it leads a key's owner to the levels of the owner's pool;
//! * [`Levels`] are those of a pool, and what may go there: what is durable, what datasets want;
//! * [`owners`]: which dataset has which owner, so that what a level holds can be put back into memory;
//! * [`codec`]: blocks as levels write them;
//! * [`level`]: a level on a device.
//!
//! # Invariants
//!
//! - A key names content for good (see [`block_cache`](crate::block_cache)), so nothing has to be told when levels come and go.
//!   On a device the key has no owner: address and birth name a block of the pool.
//! - Nothing is written to a level before the transaction group that it was born in is durable: a crash could give its
//!   number, and its place, to something else.
//! - Which of several levels a block is offered to is said by its key and their number. All are asked for it.
//!
//! # Locking
//!
//! `second-owners` (sharded), `second-modes`, `second-numbers` and `second-levels` are leaf locks; what is found is cloned out, and no level is called
//! under them.
//!
//! # What it does not do
//!
//! It knows of no labels, paths or records of devices: `pool::cache_devices` does.
//!
//! It counts no refusals: levels do. That a block's pool has no level is none: there is nobody to refuse it.

pub(crate) mod codec;
pub(crate) mod level;
mod owners;

use crossbeam_utils::CachePadded;
use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Candidate, Class, Filler, Key, OwnerId, SecondLevel};
use hashbrown::HashMap;

use crate::block_cache::BlockKey;
use crate::format::CacheMode;
use owners::Numbers;
pub(crate) use owners::OpensDatasets;

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
type Blocks = Vec<Candidate<BlockKey, Buffer>>;

/// Those of a pool, in the order in which they were attached.
type Attached = Arc<[Arc<dyn CacheLevel>]>;

type Owners = HashMap<OwnerId, Arc<Levels>>;

/// Leads owners to the levels of their pools.
pub(crate) struct Mux {
    /// Levels of all pools.
    attached: AtomicUsize,
    owners: [CachePadded<Mutex<Owners>>; SHARDS],
    /// Those of pools that have some.
    everywhere: Mutex<Vec<Arc<dyn CacheLevel>>>,
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

    fn shard(&self, owner: OwnerId) -> &Mutex<Owners> {
        &self.owners[usize::from(owner.get()) % SHARDS]
    }

    fn of(&self, owner: OwnerId) -> Option<Attached> {
        let levels = self.shard(owner).lock().get(&owner).cloned();
        levels.map(|levels| levels.attached()).filter(|attached| !attached.is_empty())
    }

    /// Calls `each` with a level and those of the blocks that are for it.
    fn hand_out(&self, blocks: Blocks, mut each: impl FnMut(&dyn CacheLevel, Blocks)) {
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

/// A pool's levels, and what of its blocks may go there.
pub(crate) struct Levels {
    mux: Arc<Mux>,
    /// The newest durable transaction group.
    durable: AtomicU64,
    modes: Mutex<HashMap<OwnerId, CacheMode>>,
    numbers: Numbers,
    attached: Mutex<Attached>,
}

impl Levels {
    pub(crate) fn new(mux: &Arc<Mux>) -> Arc<Self> {
        Arc::new(Self {
            mux: Arc::clone(mux),
            durable: AtomicU64::new(0),
            modes: Mutex::named("second-modes", HashMap::new()),
            numbers: Numbers::new(),
            attached: Mutex::named("second-levels", Arc::new([])),
        })
    }

    /// Blocks with keys of `owner` are this pool's from now on, and may go to its levels as `mode` says.
    pub(crate) fn enrol(self: &Arc<Self>, owner: OwnerId, mode: CacheMode) {
        self.set_mode(owner, mode);
        drop(self.mux.shard(owner).lock().insert(owner, Arc::clone(self)));
    }

    /// The end of that.
    pub(crate) fn dismiss(&self, owner: OwnerId) {
        drop(self.mux.shard(owner).lock().remove(&owner));
        self.modes.lock().remove(&owner);
        self.numbers.remove(owner);
    }

    /// `owner` is that of the dataset of this number from now on; 0 is the pool's own objects.
    pub(crate) fn number(&self, owner: OwnerId, number: u64) {
        self.numbers.set(owner, number);
    }

    /// The number of an owner's dataset, if it has been told.
    pub(crate) fn number_of(&self, owner: OwnerId) -> Option<u64> {
        self.numbers.of(owner)
    }

    /// The owner of the dataset of that number, which is opened if need be and can be. May wait for the pool's devices.
    pub(crate) fn owner_of(&self, number: u64) -> Option<OwnerId> {
        self.numbers.owner(number)
    }

    /// How datasets are opened of which a level has blocks.
    pub(crate) fn open_by(&self, opens: Arc<dyn OpensDatasets>) {
        self.numbers.open_by(opens);
    }

    /// What of an owner's blocks goes to levels from now on.
    pub(crate) fn set_mode(&self, owner: OwnerId, mode: CacheMode) {
        self.modes.lock().insert(owner, mode);
    }

    /// What of an owner's blocks goes to levels; nothing for one that is none of the pool's.
    pub(crate) fn mode(&self, owner: OwnerId) -> CacheMode {
        self.modes.lock().get(&owner).copied().unwrap_or(CacheMode::None)
    }

    /// Whether keys of `owner` are this pool's.
    pub(crate) fn has(&self, owner: OwnerId) -> bool {
        self.modes.lock().contains_key(&owner)
    }

    /// Groups up to `txg` are durable.
    pub(crate) fn note_durable(&self, txg: u64) {
        self.durable.fetch_max(txg, Ordering::Relaxed);
    }

    /// The newest durable group.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    fn attached(&self) -> Attached {
        Arc::clone(&self.attached.lock())
    }

    /// Uses a level from now on.
    pub(crate) fn attach(&self, level: Arc<dyn CacheLevel>) {
        self.mux.everywhere.lock().push(Arc::clone(&level));
        {
            let mut attached = self.attached.lock();
            *attached = attached.iter().cloned().chain([level]).collect();
        }
        self.mux.attached.fetch_add(1, Ordering::Relaxed);
    }

    /// Offers it nothing more, and asks it for nothing. What it is doing it may still be doing. False if it is not here.
    pub(crate) fn detach(&self, level: &Arc<dyn CacheLevel>) -> bool {
        {
            let mut attached = self.attached.lock();
            let rest: Attached =
                attached.iter().filter(|other| !Arc::ptr_eq(other, level)).cloned().collect();
            if rest.len() == attached.len() {
                return false;
            }
            *attached = rest;
        }
        self.mux.attached.fetch_sub(1, Ordering::Relaxed);
        self.mux.everywhere.lock().retain(|other| !Arc::ptr_eq(other, level));
        true
    }

    /// Writes those of the blocks that are this pool's to the levels that they are for, as
    /// [`CacheLevel::write_all`]. False if none can write any more.
    pub(crate) fn write_all(&self, mut blocks: Blocks) -> bool {
        blocks.retain(|block| self.has(block.key().owner()));
        let mut writes = blocks.is_empty();
        self.mux.hand_out(blocks, |level, lot| writes |= level.write_all(lot));
        writes
    }

    /// Whether blocks of this class and owner are wanted on levels.
    pub(crate) fn wants(&self, owner: OwnerId, class: Class) -> Wanted {
        match (self.mode(owner), class) {
            (CacheMode::All, _) | (CacheMode::Metadata, Class::Metadata) => Wanted::Yes,
            (CacheMode::Metadata, Class::Data) => Wanted::NotThisClass,
            (CacheMode::None, _) => Wanted::Nothing,
        }
    }
}

/// What an owner wants on levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Yes,
    NotThisClass,
    Nothing,
}
