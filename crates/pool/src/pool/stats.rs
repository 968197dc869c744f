//! What a pool says of itself.

use forebay_base::histogram::AtomicHistogram;

use crate::error::Result;

use super::{Pool, PoolInner};

/// How long something took, in nanoseconds, since the pool was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// How often it was measured.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// What one in a hundred exceeds.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Durations {
    fn of(histogram: &AtomicHistogram) -> Self {
        let taken = histogram.snapshot();
        let (p50_ns, p99_ns) = (taken.quantile(0.5), taken.quantile(0.99));
        Self { count: taken.count, p50_ns, p99_ns, max_ns: taken.max }
    }
}

/// Space of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// On all devices, as much as blocks can lie in.
    pub total_bytes: u64,
    /// In use, all copies.
    pub allocated_bytes: u64,
    /// Freed, and to be used again two txgs later.
    pub deferred_bytes: u64,
    /// Not in use.
    pub free_bytes: u64,
    /// What changes can still take, now or by waiting for what was freed: without what is kept for deleting, and without what is
    /// promised to changes that are not written yet, as if nothing of them could be compressed.
    pub available_bytes: u64,
}

/// A pool in numbers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// The newest durable transaction group.
    pub synced_txg: u64,
    /// Memory that waits to be written, of all open txgs.
    pub dirty_bytes: u64,
    /// Bytes on all devices that blocks can lie in.
    pub total_bytes: u64,
    /// Bytes in use.
    pub allocated_bytes: u64,
    /// Bytes that were freed, and can be used again two txgs later.
    pub deferred_bytes: u64,
    /// Bytes that can be used.
    pub free_bytes: u64,
    /// As [`PoolUsage::available_bytes`].
    pub available_bytes: u64,
    /// Whether nothing can be written any more, and why.
    pub suspended: Option<String>,
    /// How long changes were slowed down, each that was.
    pub throttled: Durations,
    /// How long closing a txg took: changes that begin meanwhile wait for it.
    pub quiesced: Durations,
    /// Name, label (empty if the counter has none) and value of each counter of the pool's parts.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

impl Pool {
    /// The pool in numbers, as of the newest txg. Waits for nothing.
    pub fn stats(&self) -> PoolStats {
        self.inner.stats()
    }

    /// Space of the pool, as of the newest txg, but for what is available, which is so now. Waits for nothing, and costs
    /// little.
    pub fn usage(&self) -> PoolUsage {
        self.inner.usage()
    }

    /// Sets a tunable of the pool.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with what would be right.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<()> {
        self.inner.tunables.set(name, value)
    }
}

impl PoolInner {
    fn usage(&self) -> PoolUsage {
        let available_bytes = self.reservations.available();
        let space = self.space_stats.lock();
        PoolUsage {
            total_bytes: space.total_bytes,
            allocated_bytes: space.allocated_bytes,
            deferred_bytes: space.deferred_bytes,
            free_bytes: space.free_bytes,
            available_bytes,
        }
    }

    fn stats(&self) -> PoolStats {
        let space = self.usage();
        PoolStats {
            synced_txg: self.txgs.synced_txg(),
            dirty_bytes: self.txgs.dirty_bytes(),
            total_bytes: space.total_bytes,
            allocated_bytes: space.allocated_bytes,
            deferred_bytes: space.deferred_bytes,
            free_bytes: space.free_bytes,
            available_bytes: space.available_bytes,
            suspended: self.txgs.check_running().err().map(|error| format!("{error:?}")),
            throttled: Durations::of(self.txgs.throttle_ns()),
            quiesced: Durations::of(self.txgs.quiesce_ns()),
            counters: self.counters(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut all = Vec::new();
        let snapshots = [
            self.store.counters().snapshot(),
            self.txgs.counters().snapshot(),
            self.log.counters().snapshot(),
            self.mos.ahead.counters().snapshot(),
            self.space_counters.snapshot(),
        ];
        for value in snapshots.into_iter().flatten() {
            all.push((value.name, value.label.unwrap_or_default(), value.value));
        }
        all
    }
}
