//! A decorator that measures latency by operation and priority, and counts requests in flight.
//!
//! A request is timed from its submission here to its completion here. The time includes the queues
//! of the devices below, and excludes the user's callback.
//!
//! # Invariants
//!
//! - A request touches only the shard of the thread that submitted it. Shards share no cache line,
//!   so CPUs that complete their own requests share none for measuring.
//! - A sum reads completions before submissions. So the number in flight is never too low.
//!
//! # Locking
//!
//! None. All accesses are relaxed, except those for the number in flight.
//!
//! # What it does not do
//!
//! It never resets: for an interval, subtract two snapshots. It does not separate queueing from the
//! work of the medium.

use std::fmt;
// tidy: std, because the cell is filled once and only waits for an allocation.
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use forebay_base::clock::{Clock, SystemClock};
use forebay_base::histogram::{AtomicHistogram, HistogramSnapshot};
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, thread_slot};

use crate::device::{Decorator, Device};
use crate::priority::Priority;
use crate::request::{Op, Request};

/// Kinds of requests that are measured separately.
const KINDS: usize = Op::ALL.len() * Priority::COUNT;
/// More shards would only cost memory.
const MAX_SHARDS: usize = 64;

fn kind(op: Op, priority: Priority) -> usize {
    op as usize * Priority::COUNT + priority.index()
}

/// One shard's numbers of one kind.
#[derive(Default)]
struct Cell {
    begun: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    // About 8 KiB, and most kinds never occur. Created at the first completion.
    latency_ns: OnceLock<AtomicHistogram>,
}

struct Shard {
    cells: [Cell; KINDS],
    // In the shard, not beside it: requests in flight then hold the shard, not the clock, whose
    // reference count all CPUs would share.
    clock: Arc<dyn Clock>,
}

/// A device that measures what passes through it.
///
/// ```
/// # use forebay_base::arena::{Arena, ArenaConfig, HugePages};
/// use std::sync::Arc;
///
/// use forebay_io::metrics::MetricsDevice;
/// use forebay_io::{Device, FileDevice, Op, OpenOptions, Priority, Request};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("medium");
/// # let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Auto })?;
/// let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
/// let device = MetricsDevice::new(Arc::new(FileDevice::open(&path, &options)?));
/// let dyn_device: &dyn Device = &device;
/// dyn_device.run(Request::read(0, arena.alloc(4096)?)).result?;
///
/// let metrics = device.snapshot();
/// assert_eq!(metrics.of(Op::Read, Priority::SyncRead).latency_ns.count, 1);
/// println!("{metrics}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MetricsDevice {
    inner: Arc<dyn Device>,
    // One `Arc` each. A single reference count would be a cache line shared by all CPUs.
    shards: Box<[Arc<CachePadded<Shard>>]>,
}

impl MetricsDevice {
    /// Measures `inner` with the system clock.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self::with_clock(inner, Arc::new(SystemClock::new()))
    }

    /// Measures `inner` with `clock`.
    pub fn with_clock(inner: Arc<dyn Device>, clock: Arc<dyn Clock>) -> Self {
        let shards = forebay_base::memory::cpus().next_power_of_two().min(MAX_SHARDS);
        let shard =
            || Shard { cells: std::array::from_fn(|_| Cell::default()), clock: Arc::clone(&clock) };
        let shards = (0..shards).map(|_| Arc::new(CachePadded::new(shard()))).collect();
        Self { inner, shards }
    }

    /// Returns the measurements so far.
    pub fn snapshot(&self) -> Metrics {
        let rows = Op::ALL.into_iter().flat_map(|op| {
            Priority::ALL.into_iter().map(move |priority| (op, priority, kind(op, priority)))
        });
        let rows = rows.map(|(op, priority, at)| self.row(op, priority, at)).collect();
        Metrics { rows }
    }

    fn row(&self, op: Op, priority: Priority, at: usize) -> Row {
        let cells = || self.shards.iter().map(|shard| &shard.cells[at]);
        let sum = |of: fn(&Cell) -> &AtomicU64, order| -> u64 {
            cells().map(|cell| of(cell).load(order)).sum()
        };
        // Acquire: each completion that is seen brings its submission with it.
        let ended = sum(|cell| &cell.ended, Ordering::Acquire);
        let begun = sum(|cell| &cell.begun, Ordering::Relaxed);
        let mut latency_ns = HistogramSnapshot::empty();
        for histogram in cells().filter_map(|cell| cell.latency_ns.get()) {
            latency_ns.merge(&histogram.snapshot());
        }
        Row {
            op,
            priority,
            in_flight: begun - ended,
            failed: sum(|cell| &cell.failed, Ordering::Relaxed),
            bytes: sum(|cell| &cell.bytes, Ordering::Relaxed),
            latency_ns,
        }
    }
}

impl Decorator for MetricsDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        let shard = Arc::clone(&self.shards[thread_slot().index(self.shards.len())]);
        let at = kind(request.op(), request.priority());
        let len = request.len();
        shard.cells[at].begun.fetch_add(1, Ordering::Relaxed);
        let began_ns = shard.clock.now_ns();
        Some(request.layered(move |completion| {
            let cell = &shard.cells[at];
            let latency_ns = shard.clock.now_ns().saturating_sub(began_ns);
            cell.latency_ns.get_or_init(AtomicHistogram::new).record(latency_ns);
            match completion.result {
                Ok(()) => cell.bytes.fetch_add(len, Ordering::Relaxed),
                Err(_) => cell.failed.fetch_add(1, Ordering::Relaxed),
            };
            cell.ended.fetch_add(1, Ordering::Release);
        }))
    }
}

impl fmt::Debug for MetricsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsDevice").field("device", &self.info().name).finish_non_exhaustive()
    }
}

/// A snapshot of a [`MetricsDevice`]. Displays as a table of the kinds that occurred.
#[derive(Clone, Debug)]
pub struct Metrics {
    rows: Vec<Row>,
}

/// The measurements of one operation at one priority.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// The priority at submission.
    pub priority: Priority,
    /// Requests in flight. Requests submitted during the snapshot may be included even if
    /// completed.
    pub in_flight: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Bytes of requests that succeeded.
    pub bytes: u64,
    /// Latency of completed requests, in nanoseconds.
    pub latency_ns: HistogramSnapshot,
}

impl Metrics {
    /// Returns all kinds, including those that never occurred.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the measurements of `op` at `priority`.
    pub fn of(&self, op: Op, priority: Priority) -> &Row {
        &self.rows[kind(op, priority)]
    }

    /// Returns the number of requests in flight, of all kinds.
    pub fn in_flight(&self) -> u64 {
        self.rows.iter().map(|row| row.in_flight).sum()
    }
}

const MICRO: f64 = 1e3;

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["ended", "failed", "in flight", "MiB", "mean", "p50", "p90", "p99", "p99.9"];
        write!(f, "{:<8} {:<11}", "op", "priority")?;
        for head in heads {
            write!(f, " {head:>10}")?;
        }
        writeln!(f, " {:>10}  (times in µs)", "max")?;
        for row in self.rows.iter().filter(|row| row.latency_ns.count + row.in_flight > 0) {
            let latency = &row.latency_ns;
            // By name: padding works on strings only.
            write!(f, "{:<8} {:<11}", row.op.name(), row.priority.name())?;
            write!(f, " {:>10} {:>10} {:>10}", latency.count, row.failed, row.in_flight)?;
            write!(
                f,
                " {:>10.1} {:>10.1}",
                row.bytes as f64 / f64::from(1 << 20),
                latency.mean() / MICRO
            )?;
            for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
                write!(f, " {:>10.1}", latency.quantile(quantile) as f64 / MICRO)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
