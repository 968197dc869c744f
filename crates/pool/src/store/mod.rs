//! The block store: reads and writes blocks by pointer, over devices and the cache.
//!
//! * Reads: [`read`], and [`async_read`] for callers that must not block; [`read_depth`] limits
//!   read-ahead of directories. [`readers`] may still follow old pointers.
//! * Writes: [`write`](mod@write) places blocks that [`worker_pool`] has packed ([`codec`],
//!   [`gang`]). [`in_flight`] and [`writing`] keep them until [`barrier`] has flushed them.
//! * Repairs: [`heals`] of a scrub; [`suspects`], which asynchronous reads have met.
//!
//! # Invariants
//!
//! - A returned block is the one that was written under its pointer: every byte from a device has
//!   passed the pointer's checksum.
//! - Readers find a block in memory until a flush covers all its writes, even if the cache refuses
//!   it.
//! - A copy is overwritten only to heal it, with the bytes that the pointer describes.
//!
//! # Locking
//!
//! `store-in-flight`, `store-readers`, `store-heals`, `store-suspects`, `store-read-depth`,
//! `store-prefetch` and `store-writing` (both sharded) and `worker-pool` are leaf locks; no
//! callback runs under them.
//! `worker-pool-batch` is held while the blocks of a txg are written, and comes right after
//! `space`.
//!
//! Not done: it does not interpret blocks, allocate space, or decide when data is durable.

mod async_read;
pub(crate) mod barrier;
pub(crate) mod codec;
pub(crate) mod counters;
pub(crate) mod gang;
pub(crate) mod heals;
mod in_flight;
#[cfg(all(test, forebay_model))]
mod model;
mod read;
mod read_depth;
pub(crate) mod readers;
mod repetition;
mod suspects;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod traced;
mod worker_pool;
mod write;
mod writing;

use forebay_base::counters::Counter;
use forebay_base::sync::Arc;
use forebay_cache::{Attributes, OwnerId};

use crate::block_cache::BlockCache;
use crate::block_key::BlockKey;
use crate::devices::Devices;
use crate::error::{Error, ErrorKind};
use crate::error_log::{DamagedRange, ErrorLog};
use crate::events::PoolEvents;
use crate::format::{BlockKind, BlockPtrPhys, CacheMode, Compression, DamageKind, Dva, DvaPhys};
use crate::l2::PoolL2;
use crate::lease::Lease;
use crate::trace::recorder::BlockTrace;
use async_read::InFlightPrefetches;
use counters::StoreCounters;
use heals::Heals;
use in_flight::InFlightWrites;
use read_depth::ReadDepth;
use readers::Readers;
use suspects::Suspects;
use worker_pool::WorkerPool;
pub(crate) use write::{Content, PackJob, Packed, Packer, Packing, Placed, WritePayload};
use writing::Writing;

/// Allocates and frees space for blocks. `bytes` is a multiple of the pool's sector size.
pub(crate) trait Allocate {
    /// Allocates `copies` (1 or 2) extents of `bytes` each. With one copy, the second address is
    /// [`DvaPhys::NONE`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if no contiguous free range is large
    /// enough.
    fn allocate(&mut self, bytes: u64, copies: usize) -> Result<[DvaPhys; 2], Error>;

    /// Frees one copy.
    fn free(&mut self, dva: Dva, bytes: u64);
}

/// Properties of a block to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteProps {
    pub(crate) kind: BlockKind,
    /// Height in the block tree; 0 for data.
    pub(crate) level: u8,
    pub(crate) compression: Compression,
    /// Number of copies: 1 or 2.
    pub(crate) copies: usize,
    /// The transaction group that writes it.
    pub(crate) txg: u64,
    /// Value of the pointer's `fill` field.
    pub(crate) fill: u64,
    /// Attributes in the cache; `None` bypasses the cache.
    pub(crate) cache: Option<Attributes>,
}

/// State that all stores of a pool share with I/O callbacks. It does not own the devices: the
/// callback that drops it last must not close the device that it runs on.
struct Shared {
    cache: Arc<BlockCache>,
    counters: Arc<StoreCounters>,
    prefetches: InFlightPrefetches,
    read_depth: ReadDepth,
    suspects: Suspects,
    writing: Writing,
    in_flight: InFlightWrites,
    readers: Readers,
    heals: Heals,
    errors: ErrorLog,
    events: Arc<PoolEvents>,
}

/// Keeps an owner of cache keys open.
struct OwnerHold {
    cache: Arc<BlockCache>,
    l2: Arc<PoolL2>,
    id: OwnerId,
}

impl Drop for OwnerHold {
    fn drop(&mut self) {
        // Work of L2 devices for this owner ends by itself; closing the owner waits for it.
        self.l2.remove_owner(self.id);
        self.cache.cache().close_owner(self.id);
    }
}

/// An open owner of cache keys that stores share: those of the states of a followed pool. The last
/// one closes it.
#[derive(Clone)]
pub(crate) struct SharedOwner(Arc<OwnerHold>);

/// Takes over an open owner of cache keys.
fn hold(
    cache: &Arc<BlockCache>,
    l2: &Arc<PoolL2>,
    id: OwnerId,
    l2_mode: CacheMode,
) -> Arc<OwnerHold> {
    l2.add_owner(id, l2_mode);
    Arc::new(OwnerHold { cache: Arc::clone(cache), l2: Arc::clone(l2), id })
}

/// Access to the blocks of a pool, or of a dataset with its own cache owner. Clones share
/// everything.
///
/// Dropping the last clone closes the owner, which waits until none of its blocks is pinned. So the
/// caller must have dropped all [`BlockRef`](crate::block_cache::BlockRef)s.
#[derive(Clone)]
pub(crate) struct Store {
    // Also in `shared`; here it saves a hit one pointer dereference.
    cache: Arc<BlockCache>,
    owner: OwnerId,
    _owner: Arc<OwnerHold>,
    devices: Arc<Devices>,
    shared: Arc<Shared>,
    l2: Arc<PoolL2>,
    packers: Arc<WorkerPool<write::MaybePacked>>,
    trace: Arc<BlockTrace>,
    /// Whether bad copies are rewritten.
    can_heal: bool,
    /// Under which it writes; none if nobody else can reach the devices.
    lease: Option<Arc<Lease>>,
}

/// Maximum number of threads that pack blocks besides the writing thread.
const PACKERS_MAX: usize = 7;
/// Maximum number of bytes packed ahead of placement; less with a small cache.
const PACKED_AHEAD_BYTES: u64 = 4 << 20;

impl Store {
    /// Creates a store over `devices`. Its keys carry `owner`, which is open in the cache; the
    /// store closes it. With `read_only` the store never writes, so it heals nothing.
    /// `in_flight_bytes` limits the bytes of writes in flight.
    pub(crate) fn new(
        devices: Arc<Devices>,
        cache: Arc<BlockCache>,
        owner: OwnerId,
        read_only: bool,
        in_flight_bytes: u64,
    ) -> Self {
        let l2 = PoolL2::new(cache.l2());
        let hold = hold(&cache, &l2, owner, CacheMode::All);
        l2.number(owner, 0);
        Self::of_owner(devices, SharedOwner(hold), read_only, in_flight_bytes)
    }

    /// As [`new`](Self::new), with an owner that other stores have, too.
    pub(crate) fn of_owner(
        devices: Arc<Devices>,
        owner: SharedOwner,
        read_only: bool,
        in_flight_bytes: u64,
    ) -> Self {
        let SharedOwner(hold) = owner;
        let (cache, l2, owner) = (Arc::clone(&hold.cache), Arc::clone(&hold.l2), hold.id);
        let shared = Arc::new(Shared {
            cache: Arc::clone(&cache),
            counters: Arc::new(StoreCounters::new()),
            prefetches: InFlightPrefetches::new(),
            read_depth: ReadDepth::new(),
            suspects: Suspects::new(),
            writing: Writing::new(),
            in_flight: InFlightWrites::new(in_flight_bytes),
            readers: Readers::new(),
            heals: Heals::new(),
            errors: ErrorLog::new(),
            events: Arc::clone(devices.events()),
        });
        let helpers = forebay_base::memory::cpus().saturating_sub(1).min(PACKERS_MAX);
        let ahead = (cache.bound_bytes() / 32).min(PACKED_AHEAD_BYTES) as usize;
        let packers = Arc::new(WorkerPool::new(helpers, ahead));
        let (can_heal, lease) = (!read_only, None);
        let trace = Arc::new(BlockTrace::new());
        Self { cache, owner, _owner: hold, devices, shared, l2, packers, trace, can_heal, lease }
    }

    /// Returns the store with other counters. Call it before the store is cloned or used.
    pub(crate) fn with_counters(mut self, counters: Arc<StoreCounters>) -> Self {
        Arc::get_mut(&mut self.shared).expect("the store is new").counters = counters;
        self
    }

    /// Returns the store with the lease of its pool: without a valid one, readers heal nothing.
    pub(crate) fn with_lease(self, lease: Arc<Lease>) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Whether a reader may rewrite bad copies now.
    fn may_heal(&self) -> bool {
        self.can_heal && self.lease.as_ref().is_none_or(|lease| lease.is_valid())
    }

    /// Returns a store over the same devices whose keys carry another owner, which it closes.
    /// `l2_mode` selects the blocks that L2 devices may hold. Writes, counters and L2 devices are
    /// shared.
    pub(crate) fn with_owner(&self, owner: OwnerId, l2_mode: CacheMode) -> Self {
        let hold = hold(&self.cache, &self.l2, owner, l2_mode);
        Self { owner, _owner: hold, ..self.clone() }
    }

    /// Returns a store over the same devices whose keys carry an owner that other stores have, too.
    pub(crate) fn with_shared_owner(&self, owner: SharedOwner) -> Self {
        Self { owner: owner.0.id, _owner: owner.0, ..self.clone() }
    }

    /// The owner, to be shared.
    pub(crate) fn shared_owner(&self) -> SharedOwner {
        SharedOwner(Arc::clone(&self._owner))
    }

    /// The router of blocks to L2 devices.
    pub(crate) fn l2(&self) -> &Arc<PoolL2> {
        &self.l2
    }

    /// Changes which blocks of this store L2 devices may hold.
    pub(crate) fn set_l2_mode(&self, mode: CacheMode) {
        self.l2.set_mode(self.owner, mode);
    }

    /// Sets the dataset number of this store's blocks.
    pub(crate) fn set_number(&self, number: u64) {
        self.l2.number(self.owner, number);
    }

    /// The cache.
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// The devices.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// The owner of this store's cache keys.
    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The counters.
    pub(crate) fn counters(&self) -> &StoreCounters {
        &self.shared.counters
    }

    /// The readers that may follow pointers of past txgs.
    pub(crate) fn readers(&self) -> &Readers {
        &self.shared.readers
    }

    /// The heals that a commit may have to wait for.
    pub(crate) fn heals(&self) -> &Heals {
        &self.shared.heals
    }

    /// The error log of the pool.
    pub(crate) fn errors(&self) -> &ErrorLog {
        &self.shared.errors
    }

    /// Notes in the error log that a read of blocks of this store has failed, if the cause is
    /// damage: not if no device answers that could have them. `object` is 0 for the tree of dnodes,
    /// else 1 + the number of an object.
    pub(crate) fn note_damage(&self, object: u64, block: u64, blocks: u64, error: &Error) {
        let Some(kind) = damage_of(error).filter(|_| !error.is_gone()) else { return };
        if let Some(dataset) = self.l2.dataset_of_owner(self.owner) {
            self.errors().note(DamagedRange { dataset, object, block, blocks }, kind, 0);
        }
    }

    /// Returns the cache key of a block.
    #[inline]
    pub(crate) fn key(&self, bp: &BlockPtrPhys) -> BlockKey {
        BlockKey::new(self.owner, bp)
    }

    /// The sector size of the pool, in bytes.
    #[inline]
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.devices.sector_bytes()
    }

    /// Counts a tree, or part of one, that could not be freed.
    pub(crate) fn note_leak(&self) {
        self.count(StoreCounters::TREES_LEAKED, 1);
    }

    fn count(&self, counter: Counter, n: u64) {
        self.shared.counters.add(counter, 0, n);
    }
}

/// The damage that the error of a read without a good copy means; `None` if it means none.
pub(crate) fn damage_of(error: &Error) -> Option<DamageKind> {
    match error.kind() {
        ErrorKind::Corrupt => Some(DamageKind::NoGoodCopy),
        ErrorKind::Device => Some(DamageKind::Unreadable),
        _ => None,
    }
}
