//! The block store: blocks by their pointers, over devices and cache.
//!
//! * [`codec`]: packing, unpacking, checksums;
//! * [`read`]: finding a block in the cache or on a device, verifying, healing;
//! * [`async_read`]: reads that never block their caller, for read-ahead and fetches;
//! * [`write`](mod@write): sealing, placing and submitting blocks; keeping them in the cache
//!   meanwhile;
//! * [`worker_pool`]: packing blocks on several threads, for a writer who takes them in order;
//! * [`writing`]: the content of blocks that are on their way to devices;
//! * [`in_flight`]: how many bytes are on their way, and what of them failed;
//! * [`gang`]: blocks in pieces;
//! * [`readers`]: who may still follow old pointers.
//!
//! # Invariants
//!
//! - A block that is returned is the one that was written under its pointer: every byte from a
//!   device has passed the pointer's checksum.
//! - A block that is being written is found by readers in memory until all its writes have ended,
//!   whether the cache wants it or not.
//! - A copy is written in place only to heal it, with the bytes that the pointer describes.
//!
//! # Locking
//!
//! `store-in_flight`, `store-readers`, `store-prefetch` and `store-writing` (both sharded) are leaf
//! locks; nothing is called under them. So is `worker-pool`; `worker-pool-batch` is held while the blocks of a txg are written, and comes right after `space`.
//!
//! # What it does not do
//!
//! It does not know what blocks mean, find space, or decide when something is durable.

mod async_read;
pub(crate) mod codec;
pub(crate) mod counters;
pub(crate) mod gang;
mod in_flight;
#[cfg(all(test, forebay_model))]
mod model;
mod read;
pub(crate) mod readers;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod worker_pool;
mod write;
mod writing;

use forebay_base::counters::Counter;
use forebay_base::sync::Arc;
use forebay_cache::{Attributes, OwnerId};

use crate::block_cache::BlockCache;
use crate::block_key::BlockKey;
use crate::devices::Devices;
use crate::error::Error;
use crate::format::{BlockKind, BlockPtrPhys, CacheMode, Compression, Dva, DvaPhys};
use crate::l2::PoolL2;
use async_read::InFlightPrefetches;
use counters::StoreCounters;
use in_flight::InFlightWrites;
use readers::Readers;
use worker_pool::WorkerPool;
pub(crate) use write::{Content, PackJob, Packed, Packer, Packing, WritePayload};
use writing::Writing;

/// Who gives out space for blocks and takes it back. `bytes` are whole sectors of the pool.
pub(crate) trait Allocate {
    /// Space for `copies` (1 or 2) of `bytes` each; the second place is [`DvaPhys::NONE`] if there
    /// is one copy.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if there is no such space in one piece.
    fn allocate(&mut self, bytes: u64, copies: usize) -> Result<[DvaPhys; 2], Error>;

    /// Takes space back, of one copy.
    fn free(&mut self, dva: Dva, bytes: u64);
}

/// How a block is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteProps {
    pub(crate) kind: BlockKind,
    /// Height above what users stored.
    pub(crate) level: u8,
    pub(crate) compression: Compression,
    /// 1 or 2.
    pub(crate) copies: usize,
    /// The transaction group that writes it.
    pub(crate) txg: u64,
    /// What the pointer's `fill` is to be.
    pub(crate) fill: u64,
    /// How it is to be cached; `None` if not at all.
    pub(crate) cache: Option<Attributes>,
}

/// What all stores of a pool share with requests' callbacks. No devices: a callback may be the last
/// to drop it, and must not close the device that it runs on.
struct Shared {
    cache: Arc<BlockCache>,
    counters: StoreCounters,
    prefetches: InFlightPrefetches,
    writing: Writing,
    in_flight: InFlightWrites,
    readers: Readers,
}

/// An owner of keys in the cache, open as long as this exists.
struct OwnerHold {
    cache: Arc<BlockCache>,
    l2: Arc<PoolL2>,
    id: OwnerId,
}

impl Drop for OwnerHold {
    fn drop(&mut self) {
        // What its levels are doing for it ends by itself, and closing waits for that.
        self.l2.remove_owner(self.id);
        self.cache.cache().close_owner(self.id);
    }
}

/// Takes over an owner that is open in the cache.
fn hold(
    cache: &Arc<BlockCache>,
    l2: &Arc<PoolL2>,
    id: OwnerId,
    l2_mode: CacheMode,
) -> Arc<OwnerHold> {
    l2.add_owner(id, l2_mode);
    Arc::new(OwnerHold { cache: Arc::clone(cache), l2: Arc::clone(l2), id })
}

/// The blocks of a pool, or of a part of it that has an owner of its own in the cache. A clone is
/// the same store.
///
/// With the last clone the owner is closed, which waits until none of its blocks is pinned: whoever
/// drops it has dropped all [`BlockRef`](crate::block_cache::BlockRef)s before.
#[derive(Clone)]
pub(crate) struct Store {
    // Beside `shared`, so that a hit follows one pointer less.
    cache: Arc<BlockCache>,
    owner: OwnerId,
    _owner: Arc<OwnerHold>,
    devices: Arc<Devices>,
    shared: Arc<Shared>,
    l2: Arc<PoolL2>,
    packers: Arc<WorkerPool<write::MaybePacked>>,
    /// Whether bad copies may be written anew.
    heals: bool,
}

/// Most threads that pack blocks beside the one that writes them.
const PACKERS_MAX: usize = 7;
/// Bytes of blocks that they have packed before they are placed, at most; less where the cache is small.
const PACKED_AHEAD_BYTES: u64 = 4 << 20;

impl Store {
    /// A store over `devices`. Keys carry `owner`, which is open in the cache, and which the store
    /// closes. `read_only`: nothing is ever written, so nothing is healed. `in_flight_bytes`: bytes on
    /// their way to devices at most.
    pub(crate) fn new(
        devices: Arc<Devices>,
        cache: Arc<BlockCache>,
        owner: OwnerId,
        read_only: bool,
        in_flight_bytes: u64,
    ) -> Self {
        let shared = Arc::new(Shared {
            cache: Arc::clone(&cache),
            counters: StoreCounters::new(),
            prefetches: InFlightPrefetches::new(),
            writing: Writing::new(),
            in_flight: InFlightWrites::new(in_flight_bytes),
            readers: Readers::new(),
        });
        let l2 = PoolL2::new(cache.l2());
        let hold = hold(&cache, &l2, owner, CacheMode::All);
        l2.number(owner, 0);
        let helpers = forebay_base::memory::cpus().saturating_sub(1).min(PACKERS_MAX);
        let ahead = (cache.bound_bytes() / 32).min(PACKED_AHEAD_BYTES) as usize;
        let packers = Arc::new(WorkerPool::new(helpers, ahead));
        Self { cache, owner, _owner: hold, devices, shared, l2, packers, heals: !read_only }
    }

    /// A store over the same devices whose keys carry another owner, which it closes; what L2 devices hold of its
    /// blocks is said by `l2_mode`. Writes, counters and L2 devices are common to both.
    pub(crate) fn with_owner(&self, owner: OwnerId, l2_mode: CacheMode) -> Self {
        let hold = hold(&self.cache, &self.l2, owner, l2_mode);
        Self { owner, _owner: hold, ..self.clone() }
    }

    /// The levels on L2 devices.
    pub(crate) fn l2(&self) -> &Arc<PoolL2> {
        &self.l2
    }

    /// What L2 devices hold of its owner's blocks from now on.
    pub(crate) fn set_l2_mode(&self, mode: CacheMode) {
        self.l2.set_mode(self.owner, mode);
    }

    /// Its blocks are those of the dataset of that number.
    pub(crate) fn set_number(&self, number: u64) {
        self.l2.number(self.owner, number);
    }

    /// The cache that it uses.
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// The devices that blocks lie on.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Whose keys its blocks have.
    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// What it has counted.
    pub(crate) fn counters(&self) -> &StoreCounters {
        &self.shared.counters
    }

    /// Who may still follow pointers of txgs that are past.
    pub(crate) fn readers(&self) -> &Readers {
        &self.shared.readers
    }

    /// The key of a block.
    #[inline]
    pub(crate) fn key(&self, bp: &BlockPtrPhys) -> BlockKey {
        BlockKey::new(self.owner, bp)
    }

    /// Size of the pool's sectors.
    #[inline]
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.devices.sector_bytes()
    }

    /// Counts a tree, or a part of one, that could not be freed.
    pub(crate) fn note_leak(&self) {
        self.count(StoreCounters::TREES_LEAKED, 1);
    }

    fn count(&self, counter: Counter, n: u64) {
        self.shared.counters.add(counter, 0, n);
    }
}
