//! How long the requests of a mount take, by type.
//!
//! A request is measured from its receipt, before the server is called, to its answer, on whichever
//! thread answers. The time that it has waited in the kernel for a thread of the mount is not
//! included: the kernel does not tell it.
//!
//! # Invariants
//!
//! - A request is recorded before its answer is sent. So who got an answer finds it recorded.
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

use crate::counters::Op;

/// More shards would only cost memory: a histogram takes 8 KiB.
const MAX_SHARDS: usize = 4;

/// The latencies that some threads record.
struct Shard {
    /// Most types are rare, so a histogram is created with the first request of its type.
    by_op: [OnceLock<AtomicHistogram>; Op::COUNT],
    clock: SystemClock,
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
        let shard = || Shard { by_op: std::array::from_fn(|_| OnceLock::new()), clock };
        Self { shards: (0..count).map(|_| Arc::new(CachePadded::new(shard()))).collect() }
    }

    /// Starts to measure a request.
    #[inline]
    pub(crate) fn begin(&self, op: Op) -> Timer {
        let shard = Arc::clone(&self.shards[thread_slot().index(self.shards.len())]);
        let began_ns = shard.clock.now_ns();
        Timer { shard, op, began_ns }
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

/// A request in progress. Dropping it records how long it took.
pub(crate) struct Timer {
    shard: Arc<CachePadded<Shard>>,
    op: Op,
    began_ns: u64,
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        let took_ns = self.shard.clock.now_ns().saturating_sub(self.began_ns);
        let histogram = self.shard.by_op[self.op as usize].get_or_init(AtomicHistogram::new);
        histogram.record(took_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_recorded_when_its_timer_is_dropped() {
        let latencies = Latencies::new();
        let timer = latencies.begin(Op::Read);
        assert!(latencies.snapshot().is_empty());
        drop(timer);
        drop(latencies.begin(Op::Copy));
        let counts: Vec<(usize, u64)> =
            latencies.snapshot().into_iter().map(|(op, values)| (op, values.count)).collect();
        assert_eq!(counts, [(Op::Read as usize, 1), (Op::Copy as usize, 1)]);
    }
}
