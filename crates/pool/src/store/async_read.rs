//! Reads that never block their caller: read-ahead, whose priority a waiting reader raises, and
//! fetches, which are urgent from the start.
//!
//! A read is declined if there is no free capacity or memory at once, or if the block is a gang.
//! Only one place of the first copy is tried, without healing. If it is bad, it becomes a
//! [suspect](super::suspects), the load is abandoned, and readers of the block use the blocking
//! path, which tries that place first, counts and heals. The same happens if the L2 takes over the
//! load and cannot supply the block: waiters retry a bounded number of times and then use the
//! blocking path.
//!
//! Locking: `store-prefetch`, sharded. A handle is cloned out of the map before it is used.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use forebay_base::arena::Buffer;
use forebay_base::clock::{Clock, SystemClock};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::{Attributes, Begin, LoadGuard};
use forebay_io::{Priority, RaiseHandle};

use super::counters::StoreCounters;
use super::read::{ReadCause, check};
use super::read_depth::DepthRead;
use super::{Shared, Store, codec};
use crate::block_key::BlockKey;
use crate::devices::{Place, Read};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys};

/// Called when an asynchronous read has ended. The argument tells whether the block is cached.
pub(crate) type ReadCallback = Box<dyn FnOnce(bool) + Send>;

/// Prefetches in flight, with handles to raise their priority.
pub(super) struct InFlightPrefetches {
    shards: [Mutex<BTreeMap<BlockKey, RaiseHandle>>; 16],
}

impl InFlightPrefetches {
    pub(super) fn new() -> Self {
        let shard = |_| Mutex::named("store-prefetch", BTreeMap::new());
        Self { shards: std::array::from_fn(shard) }
    }

    fn shard(&self, key: &BlockKey) -> &Mutex<BTreeMap<BlockKey, RaiseHandle>> {
        &self.shards[key.hash() as usize % self.shards.len()]
    }

    /// Raises the priority of the block's prefetch, for a reader that waits for it. Returns whether
    /// there is one.
    pub(super) fn raise_priority(&self, key: &BlockKey) -> bool {
        let handle = self.shard(key).lock().get(key).cloned();
        match handle {
            Some(handle) => {
                handle.raise(Priority::SyncRead);
                true
            }
            None => false,
        }
    }
}

impl Store {
    /// Whether so many blocks of directories are being read ahead that more would queue in the
    /// devices, before reads that somebody waits for.
    pub(crate) fn is_read_depth_full(&self) -> bool {
        self.shared.read_depth.is_full()
    }

    /// Whether a prefetch of a block that was not cached just now is in flight, or has ended since.
    pub(crate) fn is_read_ahead(&self, bp: &BlockPtrPhys) -> bool {
        let key = self.key(bp);
        let in_flight = self.shared.prefetches.shard(&key).lock().contains_key(&key);
        in_flight || self.cache.cache().contains(&key)
    }

    /// Starts a prefetch of a block, unless it is cached or being read. See the module for when it
    /// is declined. `on_done` runs exactly once, in this call or when the read ends, on any thread.
    /// It must not block.
    pub(crate) fn prefetch(
        &self,
        bp: &BlockPtrPhys,
        attributes: Attributes,
        on_done: ReadCallback,
    ) {
        self.start_read(bp, attributes, ReadCause::Prefetch, on_done);
    }

    /// As [`prefetch`](Self::prefetch), for a block that is needed now. The read has the priority
    /// of a blocking read; a prefetch of the block in flight is raised to it.
    pub(crate) fn fetch(&self, bp: &BlockPtrPhys, attributes: Attributes, on_done: ReadCallback) {
        self.start_read(bp, attributes, ReadCause::Miss, on_done);
    }

    fn start_read(
        &self,
        bp: &BlockPtrPhys,
        attributes: Attributes,
        cause: ReadCause,
        on_done: ReadCallback,
    ) {
        let count = |counter| {
            if cause == ReadCause::Prefetch {
                self.count(counter, 1);
            }
        };
        let declined = |on_done: ReadCallback| {
            count(StoreCounters::PREFETCHES_DECLINED);
            on_done(false);
        };
        let (Some(dva), Ok(()), false) = (bp.copies[0].get(), check(bp), bp.is_gang()) else {
            return declined(on_done);
        };
        let key = self.key(bp);
        let bytes = bp.allocated_bytes(self.sector_bytes());
        let is_being_written = self.shared.writing.get(&key).is_some();
        if is_being_written || !self.devices.holds(dva, bytes) {
            return declined(on_done);
        }
        let Some(place) = self.first_place(bp, dva) else { return declined(on_done) };
        let cache = self.cache.cache();
        // Checked first, because `begin_async` counts as a use.
        if cache.contains(&key) {
            count(StoreCounters::PREFETCHES_NEEDLESS);
            return on_done(true);
        }
        let begin = pin!(cache.begin_async(key, u64::from(bp.logical_bytes.get()), attributes));
        match begin.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Begin::Vacant(load_guard))) if load_guard.refusal().is_none() => {
                self.start_load(bp, (place, cause), load_guard, on_done);
            }
            Poll::Ready(Ok(Begin::Hit(_))) => {
                count(StoreCounters::PREFETCHES_NEEDLESS);
                on_done(true);
            }
            Poll::Ready(Ok(Begin::InFlight(waiter))) => {
                count(StoreCounters::PREFETCHES_NEEDLESS);
                if cause == ReadCause::Miss && self.shared.prefetches.raise_priority(&key) {
                    self.count(StoreCounters::PREFETCHES_JOINED, 1);
                }
                waiter.on_ready(move |landed| on_done(landed.is_ok()));
            }
            Poll::Ready(Ok(Begin::Vacant(load_guard))) => {
                // The cache has no capacity for it: nothing has failed.
                load_guard.withdraw();
                declined(on_done);
            }
            _ => declined(on_done),
        }
    }

    fn start_load(
        &self,
        bp: &BlockPtrPhys,
        (place, cause): (Place, ReadCause),
        load_guard: LoadGuard<BlockKey, Buffer>,
        on_done: ReadCallback,
    ) {
        let bytes = bp.allocated_bytes(self.sector_bytes());
        let Ok(buffer) = self.cache.try_alloc(bytes as usize) else {
            load_guard.withdraw();
            if cause == ReadCause::Prefetch {
                self.count(StoreCounters::PREFETCHES_DECLINED, 1);
            }
            return on_done(false);
        };
        let counters = &self.shared.counters;
        if cause == ReadCause::Prefetch {
            counters.add(StoreCounters::PREFETCHES, 0, 1);
        }
        counters.add(StoreCounters::READS, cause as usize, 1);
        counters.add(StoreCounters::READ_BYTES, cause as usize, bytes);
        let key = *load_guard.key();
        let is_of_directory = bp.block_kind() == Some(BlockKind::ZapLeaf);
        let depth = (cause == ReadCause::Prefetch && is_of_directory)
            .then(|| DepthRead::begin(&self.shared));
        let job = AsyncRead {
            clock: SystemClock::new(),
            depth,
            shared: Arc::clone(&self.shared),
            bp: *bp,
            key,
            place,
            cause,
            load_guard,
            on_done,
        };
        let shard = self.shared.prefetches.shard(&key);
        let note = |handle| {
            // Urgent reads need no priority handle.
            if cause == ReadCause::Prefetch {
                drop(shard.lock().insert(key, handle));
            }
        };
        let done = move |read| job.end(read);
        let begun = self.devices.read_async(place, buffer, cause.priority(), note, done);
        debug_assert!(begun.is_ok(), "the address was checked");
    }
}

/// An asynchronous read in flight.
struct AsyncRead {
    /// Started with the read.
    clock: SystemClock,
    /// Of a read ahead of a directory's block.
    depth: Option<DepthRead>,
    shared: Arc<Shared>,
    bp: BlockPtrPhys,
    key: BlockKey,
    place: Place,
    cause: ReadCause,
    load_guard: LoadGuard<BlockKey, Buffer>,
    on_done: ReadCallback,
}

impl AsyncRead {
    /// Publishes the block. Runs in the I/O callback.
    fn end(self, read: Read) {
        let Self { clock, depth, shared, bp, key, place, cause, load_guard, on_done } = self;
        let took_ns = clock.now_ns();
        shared.counters.add(StoreCounters::READ_NS, cause as usize, took_ns);
        if let Some(depth) = depth.filter(|_| read.is_ok()) {
            depth.succeed(took_ns);
        }
        let forget = || {
            if cause == ReadCause::Prefetch {
                drop(shared.prefetches.shard(&key).lock().remove(&key));
            }
        };
        let published = match unpack(&shared, &bp, cause, read) {
            Ok(content) => {
                drop(load_guard.publish(content));
                // Only now: else a reader that looks meanwhile would take the block for lost.
                forget();
                true
            }
            Err(error) => {
                if error.kind() != ErrorKind::NoMemory && error.kind() != ErrorKind::Closed {
                    shared.suspects.note(key, place);
                }
                if cause == ReadCause::Prefetch {
                    shared.counters.add(StoreCounters::PREFETCHES_FAILED, 0, 1);
                }
                // Already now: waiters start over and try the other copy, and a new prefetch of the
                // block has a handle of its own.
                forget();
                drop(load_guard);
                false
            }
        };
        on_done(published);
    }
}

fn unpack(shared: &Shared, bp: &BlockPtrPhys, cause: ReadCause, read: Read) -> Result<Buffer> {
    let counters = &shared.counters;
    let physical = read.map_err(|error| {
        counters.add(StoreCounters::READ_ERRORS, cause as usize, 1);
        if error.kind() != forebay_io::ErrorKind::Closed {
            shared.events.note_failure(&error);
        }
        crate::devices::failed(error)
    })?;
    if !codec::verify(bp, &physical) {
        // A reader counts it: the block may have been freed, or its device may miss it.
        tracing::warn!(block = ?bp, copy = 0, "checksum mismatch");
        return Err(Error::new(ErrorKind::Corrupt, format!("{bp:?}: checksum mismatch")));
    }
    if codec::is_plain(bp, &physical) {
        return Ok(physical);
    }
    let mut content = shared.cache.try_alloc(bp.logical_bytes.get() as usize)?;
    codec::open(bp, &physical, &mut content)?;
    Ok(content)
}
