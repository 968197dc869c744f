//! Records the accesses to a pool's blocks while a session is open.
//!
//! Threads share rings, each thread always with the same one. The time is taken once per
//! [`RECORDS_PER_TIME`] records of a ring, and for the first one after it was drained.
//!
//! A read that must not wait fails when a block is not in memory, and is repeated. Its accesses
//! count once: a table remembers by hash which accesses will be repeated. The table is lossy, so
//! that rarely a repetition counts, or the first access to a block after a read that was given up
//! does not.

use crossbeam_utils::CachePadded;
use forebay_base::clock::{Clock, SystemWallClock, WallClock};
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, thread_slot};
use hashbrown::HashSet;

use super::file::{TraceHeader, TraceTotals, put_dataset, put_end, put_header, put_packed};
use super::record::{PackedRecord, RECORD_BYTES, TraceOutcome, TraceRecord};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};

const RINGS: usize = 8;
const RECORDS_PER_TIME: usize = 16;
/// Bytes of all rings. Twice as much again is needed to drain them.
const RING_BYTES_MAX: u64 = 4 << 20;
const RING_BYTES_MIN: u64 = 256 << 10;
/// At most this fraction of the cache's bound is for a session.
const BOUND_SHARE: u64 = 32;
/// Entries of the table of accesses that will be repeated.
const REPEATS: usize = 512;
/// Objects whose numbers a session keeps, to look up their paths.
const OBJECTS_MAX: usize = 1 << 16;

/// The trace of a pool: off, or recording for one session.
pub(crate) struct BlockTrace {
    is_on: AtomicBool,
    /// Whether a session exists. It may be over already.
    is_taken: AtomicBool,
    rings: [CachePadded<Mutex<Ring>>; RINGS],
    repeats: CachePadded<[AtomicU64; REPEATS]>,
}

#[derive(Default)]
struct Ring {
    /// The clock, and its time at the start of the session; none while no session is open.
    clock: Option<(Arc<dyn Clock>, u64)>,
    records: Vec<PackedRecord>,
    /// Most records.
    capacity: usize,
    time_us: u64,
    dropped: u64,
}

impl BlockTrace {
    pub(crate) fn new() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
            rings: std::array::from_fn(|_| {
                CachePadded::new(Mutex::named("trace-ring", Ring::default()))
            }),
            repeats: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    /// Whether accesses are to be recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Ends the session. It can still be drained.
    pub(crate) fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Records an access; its time is set here. With `will_repeat`, the next access to the block
    /// is the same one, and does not count.
    pub(crate) fn record(&self, record: TraceRecord, will_repeat: bool) {
        let ring = &self.rings[thread_slot().index(RINGS)];
        if record.outcome == TraceOutcome::ReadAhead {
            return ring.lock().push(record);
        }
        let (slot, hash) = self.repeat_slot(&record);
        // No other memory depends on the table.
        if slot.load(Ordering::Relaxed) == hash {
            if !will_repeat {
                slot.store(0, Ordering::Relaxed);
            }
            return;
        }
        if will_repeat {
            slot.store(hash, Ordering::Relaxed);
        }
        ring.lock().push(record);
    }

    /// Notes that an access, which was recorded, will be repeated.
    pub(crate) fn will_repeat(&self, record: &TraceRecord) {
        let (slot, hash) = self.repeat_slot(record);
        slot.store(hash, Ordering::Relaxed);
    }

    fn repeat_slot(&self, record: &TraceRecord) -> (&AtomicU64, u64) {
        let hash = record.key() | 1;
        (&self.repeats[(hash >> 32) as usize % REPEATS], hash)
    }
}

impl Ring {
    fn push(&mut self, record: TraceRecord) {
        let Some((clock, start_ns)) = &self.clock else { return };
        if self.records.len() >= self.capacity {
            self.dropped += 1;
            return;
        }
        if self.records.len().is_multiple_of(RECORDS_PER_TIME) {
            self.time_us = clock.now_ns().saturating_sub(*start_ns) / 1000;
        }
        self.records.push(TraceRecord { time_us: self.time_us, ..record }.to_packed());
    }
}

/// An open trace of a pool, see [`Pool::trace`](crate::Pool::trace). Dropping it ends it.
pub struct TraceSession {
    trace: Arc<BlockTrace>,
    cache: Arc<BlockCache>,
    clock: Arc<dyn Clock>,
    start_ns: u64,
    header: TraceHeader,
    drained: Vec<PackedRecord>,
    charged_bytes: u64,
    totals: TraceTotals,
    /// Those of the records that are of read-ahead.
    read_ahead: u64,
    known_datasets: HashSet<u16>,
    /// Datasets and numbers of objects, if they are kept.
    objects: Option<HashSet<(u16, u64)>>,
}

impl TraceSession {
    pub(crate) fn start(
        trace: &Arc<BlockTrace>,
        cache: &Arc<BlockCache>,
        clock: &Arc<dyn Clock>,
        (pool, pool_guid): (&str, u64),
    ) -> Result<Self> {
        if trace.is_taken.swap(true, Ordering::AcqRel) {
            let text =
                format!("pool {pool}: its accesses are being traced already; end that trace first");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        let bytes = (cache.bound_bytes() / BOUND_SHARE / 3).clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let capacity = bytes as usize / RECORD_BYTES / RINGS;
        let start_ns = clock.now_ns();
        let now = SystemWallClock.unix_time();
        let header = TraceHeader {
            start_unix_us: now.seconds.max(0) as u64 * 1_000_000 + u64::from(now.nanos) / 1000,
            pool_guid,
            pool: pool.to_owned(),
        };
        cache.add_others(3 * bytes);
        for ring in &trace.rings {
            let records = Vec::with_capacity(capacity);
            let clock = Some((Arc::clone(clock), start_ns));
            *ring.lock() = Ring { clock, records, capacity, time_us: 0, dropped: 0 };
        }
        trace.repeats.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
        trace.is_on.store(true, Ordering::Relaxed);
        Ok(Self {
            trace: Arc::clone(trace),
            cache: Arc::clone(cache),
            clock: Arc::clone(clock),
            start_ns,
            header,
            drained: Vec::with_capacity(capacity * RINGS),
            charged_bytes: 3 * bytes,
            totals: TraceTotals::default(),
            read_ahead: 0,
            known_datasets: HashSet::new(),
            objects: None,
        })
    }

    /// Keeps the numbers of the first 65,536 objects with accesses, for
    /// [`objects`](Self::objects).
    pub fn keep_objects(&mut self) {
        self.objects = Some(HashSet::new());
    }

    /// Datasets and numbers of the objects with accesses, if they are kept.
    pub fn objects(&self) -> Vec<(u16, u64)> {
        let mut objects: Vec<_> = self.objects.iter().flatten().copied().collect();
        objects.sort_unstable();
        objects
    }

    /// Whether the pool is exported, or [`stop`](Self::stop) was called.
    pub fn is_over(&self) -> bool {
        !self.trace.is_on()
    }

    /// Ends the recording. What is recorded can still be drained.
    pub fn stop(&self) {
        self.trace.end();
    }

    /// Records that were drained, dropped accesses, and the time since the start.
    pub fn totals(&self) -> TraceTotals {
        let duration_us = self.clock.now_ns().saturating_sub(self.start_ns) / 1000;
        TraceTotals { duration_us, ..self.totals }
    }

    /// Of the drained records, those of blocks that read-ahead began to read. The others are
    /// accesses.
    pub fn read_ahead(&self) -> u64 {
        self.read_ahead
    }

    /// Appends the header of a file to `out`.
    pub fn put_header(&self, out: &mut Vec<u8>) {
        put_header(out, &self.header);
    }

    /// Appends frames of what was recorded since the last call to `out`: nothing if nothing was.
    /// Returns whether a ring was more than a quarter full, so that the next call should be soon.
    pub fn drain(&mut self, out: &mut Vec<u8>) -> bool {
        self.drained.clear();
        let mut is_busy = false;
        for ring in &self.trace.rings {
            let mut ring = ring.lock();
            is_busy |= ring.records.len() > ring.capacity / 4;
            self.drained.append(&mut ring.records);
            self.totals.dropped += std::mem::take(&mut ring.dropped);
        }
        // The parts are sorted.
        self.drained.sort_by_key(|record| record.time_us.get());
        self.totals.records += self.drained.len() as u64;
        let of_read_ahead = self.drained.iter().filter(|record| TraceRecord::is_read_ahead(record));
        self.read_ahead += of_read_ahead.count() as u64;
        if let Some(objects) = &mut self.objects {
            let seen = self.drained.iter().filter_map(TraceRecord::of_packed);
            for record in seen {
                if let Some(object) = record.object()
                    && objects.len() < OBJECTS_MAX
                {
                    objects.insert((record.dataset, object));
                }
            }
        }
        put_packed(out, &self.drained);
        is_busy
    }

    /// Appends number, GUID and name of a dataset, unless that was done before.
    pub(crate) fn put_dataset(&mut self, out: &mut Vec<u8>, number: u16, guid: u64, name: &str) {
        if self.known_datasets.insert(number) {
            put_dataset(out, number, guid, name);
        }
    }

    /// Appends the end of a file, and ends the session.
    pub fn finish(self, out: &mut Vec<u8>) -> TraceTotals {
        self.stop();
        let totals = self.totals();
        put_end(out, &totals);
        totals
    }
}

impl Drop for TraceSession {
    fn drop(&mut self) {
        self.trace.end();
        for ring in &self.trace.rings {
            *ring.lock() = Ring::default();
        }
        self.cache.sub_others(self.charged_bytes);
        self.trace.is_taken.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for TraceSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "trace of pool {}: {:?}", self.header.pool, self.totals)
    }
}

/// An access as the block store sees it.
impl TraceRecord {
    pub(crate) fn new(
        dataset: u16,
        label: crate::BlockLabel,
        block: u64,
        (bytes, is_metadata): (usize, bool),
        outcome: TraceOutcome,
    ) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { time_us: 0, dataset, label, block, bytes, is_metadata, outcome }
    }
}
