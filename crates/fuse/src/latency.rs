//! How long the requests of a mount take, by type, and a log of slow ones.
//!
//! A request is measured from its receipt, before the server is called, to its answer, on whichever
//! thread answers. The time that it has waited in the kernel for a thread of the mount is not
//! included: the kernel does not tell it.
//!
//! A request that takes longer than the tunable `slow_op_ms` is logged with what it has waited for
//! ([`forebay_base::waits`]). The subscriber limits the rate of the log.
//!
//! # Invariants
//!
//! - A request is recorded before its answer is sent. So who got an answer finds it recorded.
//! - It is logged after its answer is sent: a log that is slow, or lies on this mount, holds up no
//!   answer of it.
//! - A request touches only the shard of the thread that received it, also for its reference count.
//!
//! # Locking
//!
//! None. All accesses are relaxed.

// tidy: std, because the cell is filled once and only waits for an allocation.
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use forebay_base::clock::{Clock, SystemClock};
use forebay_base::histogram::{AtomicHistogram, HistogramSnapshot};
use forebay_base::sync::{Arc, thread_slot};
use forebay_base::waits::{self, WaitKind, Waits};
use forebay_pool::OperationTunables;

use crate::counters::Op;

/// More shards would only cost memory: a histogram takes 8 KiB.
const MAX_SHARDS: usize = 4;

/// The latencies that some threads record.
struct Shard {
    /// Most types are rare, so a histogram is created with the first request of its type.
    by_op: [OnceLock<AtomicHistogram>; Op::COUNT],
    clock: SystemClock,
    slow: OnceLock<SlowLog>,
}

/// Logs slow requests.
#[derive(Clone)]
struct SlowLog {
    tunables: Arc<OperationTunables>,
    /// The name of the file system, as in the mount table.
    fs: String,
}

const MS: u64 = 1_000_000;

impl SlowLog {
    fn is_slow(&self, took_ns: u64) -> bool {
        let limit_ms = u64::from(self.tunables.slow_op_ms());
        limit_ms > 0 && took_ns >= limit_ms * MS
    }

    /// Logs a request. What is not waiting is time on a processor, or waiting for one.
    #[cold]
    fn log(&self, operation: &'static str, took_ns: u64, waits: &Waits) {
        let ms = |kind| waits.of(kind) / MS;
        tracing::warn!(
            fs = self.fs,
            operation,
            took_ms = took_ns / MS,
            lock_ms = ms(WaitKind::Lock),
            transaction_ms = ms(WaitKind::Transaction),
            device_ms = ms(WaitKind::Device),
            queue_ms = ms(WaitKind::Queue),
            cpu_ms = took_ns.saturating_sub(waits.total()) / MS,
            "slow operation"
        );
    }
}

/// Latencies of a mount.
pub(crate) struct Latencies {
    // One `Arc` each. A single reference count would be a cache line shared by all CPUs.
    shards: Box<[Arc<CachePadded<Shard>>]>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let clock = SystemClock::new();
        let count = forebay_base::memory::cpus().next_power_of_two().min(MAX_SHARDS);
        let shard = || Shard {
            by_op: std::array::from_fn(|_| OnceLock::new()),
            clock,
            slow: OnceLock::new(),
        };
        Self { shards: (0..count).map(|_| Arc::new(CachePadded::new(shard()))).collect() }
    }

    /// Logs requests that are slow by `tunables`, from now on.
    pub(crate) fn log_slow(&self, tunables: &Arc<OperationTunables>, fs: &str) {
        for shard in &self.shards {
            let slow = SlowLog { tunables: Arc::clone(tunables), fs: fs.to_owned() };
            // A mount sets it once.
            let _ = shard.slow.set(slow);
        }
    }

    /// Starts to measure a request, on which this thread works from now on.
    #[inline]
    pub(crate) fn begin(&self, op: Op) -> Timer {
        let shard = Arc::clone(&self.shards[thread_slot().index(self.shards.len())]);
        let began_ns = shard.clock.now_ns().max(1);
        waits::begin(began_ns);
        Timer { shard, op, began_ns, fetching_since_ns: None, recorded: false, slow_ns: None }
    }

    /// The latencies of the types that have occurred, by their number.
    pub(crate) fn snapshot(&self) -> Vec<(usize, HistogramSnapshot)> {
        let of = |op: usize| {
            let mut recorded = self.shards.iter().filter_map(|shard| shard.by_op[op].get());
            let mut sum = recorded.next()?.snapshot();
            recorded.for_each(|histogram| sum.merge(&histogram.snapshot()));
            Some((op, sum))
        };
        (0..Op::COUNT).filter_map(of).collect()
    }
}

/// A request in progress. Call [`record`](Self::record), send the answer, and drop the timer, which
/// logs the request if it was slow.
pub(crate) struct Timer {
    shard: Arc<CachePadded<Shard>>,
    op: Op,
    /// Also identifies the request for [`waits`].
    began_ns: u64,
    /// Since when no thread works on it, because devices do.
    fetching_since_ns: Option<u64>,
    recorded: bool,
    /// How long it took, if that must be logged.
    slow_ns: Option<u64>,
}

impl Timer {
    /// No thread works on the request any more: its answer comes when reads of devices end.
    pub(crate) fn fetching(&mut self) {
        self.fetching_since_ns = Some(self.shard.clock.now_ns());
    }

    /// Records how long the request took.
    #[inline]
    pub(crate) fn record(&mut self) {
        let took_ns = self.shard.clock.now_ns().saturating_sub(self.began_ns);
        let histogram = self.shard.by_op[self.op as usize].get_or_init(AtomicHistogram::new);
        histogram.record(took_ns);
        self.recorded = true;
        let is_slow = self.shard.slow.get().is_some_and(|slow| slow.is_slow(took_ns));
        self.slow_ns = is_slow.then_some(took_ns);
    }

    #[cold]
    fn log(&self, took_ns: u64) {
        let mut waits = waits::end(self.began_ns);
        if let Some(since_ns) = self.fetching_since_ns {
            let ended_ns = self.began_ns.saturating_add(took_ns);
            waits.add(WaitKind::Device, ended_ns.saturating_sub(since_ns));
        }
        if let Some(slow) = self.shard.slow.get() {
            slow.log(self.op.label(), took_ns, &waits);
        }
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        if !self.recorded {
            // The request was dropped unanswered.
            self.record();
        }
        if let Some(took_ns) = self.slow_ns {
            self.log(took_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_recorded_once_and_at_the_latest_when_its_timer_is_dropped() {
        let latencies = Latencies::new();
        let mut timer = latencies.begin(Op::Read);
        assert!(latencies.snapshot().is_empty());
        timer.record();
        assert_eq!(latencies.snapshot().len(), 1);
        drop(timer);
        drop(latencies.begin(Op::Copy));
        let counts: Vec<(usize, u64)> =
            latencies.snapshot().into_iter().map(|(op, values)| (op, values.count)).collect();
        assert_eq!(counts, [(Op::Read as usize, 1), (Op::Copy as usize, 1)]);
    }
}
