//! Statistics of a pool.

use forebay_base::counters::CounterValue;
use forebay_base::histogram::{AtomicHistogram, HistogramSnapshot};

use crate::error::Result;
use crate::txg::Suspension;

use super::{Pool, PoolInner, TxgHistoryInfo};

/// Distribution of a duration in nanoseconds, since the import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of samples.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

impl Durations {
    fn of(histogram: &AtomicHistogram) -> Self {
        let taken = histogram.snapshot();
        let (p50_ns, p99_ns) = (taken.quantile(0.5), taken.quantile(0.99));
        Self { count: taken.count, sum_ns: taken.sum, p50_ns, p99_ns, max_ns: taken.max }
    }
}

/// Space of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Bytes on all devices that blocks can occupy.
    pub total_bytes: u64,
    /// Allocated bytes, all copies.
    pub allocated_bytes: u64,
    /// Freed bytes that become reusable three txgs after they were freed.
    pub deferred_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes that new changes can still take, now or after waiting for freed space. Excludes the
    /// reserve for deletions, and the space promised to changes that are not written yet, without
    /// compression.
    pub available_bytes: u64,
}

/// Statistics of a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// The newest durable transaction group.
    pub synced_txg: u64,
    /// Bytes that open and syncing txgs have reserved for their changes, with the indirect blocks
    /// that these may need. The throttle counts a fourth of those indirect blocks, so this may
    /// exceed `dirty_max_bytes`.
    pub dirty_bytes: u64,
    /// Bytes on all devices that blocks can occupy.
    pub total_bytes: u64,
    /// Allocated bytes, all copies.
    pub allocated_bytes: u64,
    /// Freed bytes that become reusable three txgs after they were freed.
    pub deferred_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// See [`PoolUsage::available_bytes`].
    pub available_bytes: u64,
    /// Why the pool is suspended, or `None`. A suspended pool writes nothing.
    pub suspended: Option<Suspension>,
    /// How long throttled transactions were delayed.
    pub throttled: Durations,
    /// How long it took to close a txg. New transactions wait meanwhile.
    pub quiesced: Durations,
    /// The newest transaction groups, with the time of each phase.
    pub txgs: TxgHistoryInfo,
    /// How long it took from closing a txg until it was durable, suspensions included.
    pub synced: Durations,
    /// Name, label (empty if there is none) and value of each counter of the pool.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// The counters of one part of a pool.
#[derive(Clone, Debug)]
pub struct CounterGroup {
    /// Name of the part, in snake case, such as `intent_log`.
    pub part: &'static str,
    /// Its counters.
    pub counters: Vec<CounterValue>,
}

/// Histograms of a pool since the import, in nanoseconds. [`PoolStats`] summarizes them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolHistograms {
    /// See [`PoolStats::throttled`].
    pub throttle_ns: HistogramSnapshot,
    /// See [`PoolStats::quiesced`].
    pub quiesce_ns: HistogramSnapshot,
    /// See [`PoolStats::synced`].
    pub sync_ns: HistogramSnapshot,
}

impl Pool {
    /// Returns the counters by part. Never blocks on a commit.
    pub fn counters(&self) -> Vec<CounterGroup> {
        self.inner.counters()
    }

    /// Returns the histograms. Takes no lock.
    pub fn histograms(&self) -> PoolHistograms {
        let txgs = &self.inner.txgs;
        PoolHistograms {
            throttle_ns: txgs.throttle_ns().snapshot(),
            quiesce_ns: txgs.quiesce_ns().snapshot(),
            sync_ns: txgs.sync_ns().snapshot(),
        }
    }

    /// Returns statistics as of the newest txg. Never blocks on a commit.
    pub fn stats(&self) -> PoolStats {
        self.inner.stats()
    }

    /// Returns the space of the pool as of the newest txg; `available_bytes` is current. Cheap, and
    /// never blocks on a commit.
    pub fn usage(&self) -> PoolUsage {
        self.inner.usage()
    }

    /// Sets a tunable.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the accepted values.
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
            suspended: self.txgs.suspension(),
            throttled: Durations::of(self.txgs.throttle_ns()),
            quiesced: Durations::of(self.txgs.quiesce_ns()),
            txgs: self.txg_history.info(),
            synced: Durations::of(self.txgs.sync_ns()),
            counters: self
                .counters()
                .into_iter()
                .flat_map(|group| group.counters)
                .map(|value| (value.name, value.label.unwrap_or_default(), value.value))
                .collect(),
        }
    }

    fn counters(&self) -> Vec<CounterGroup> {
        let ahead = &self.mos.io.ahead;
        let groups = [
            ("store", self.store.counters().snapshot()),
            ("txg", self.txgs.counters().snapshot()),
            ("intent_log", self.log.counters().snapshot()),
            ("prefetch", ahead.counters().snapshot()),
            ("space", self.space_counters.snapshot()),
            ("scrub", self.scrub.counters().snapshot()),
            ("events", self.events().counters().snapshot()),
            ("trim", self.trim.counters().snapshot()),
            ("directory", ahead.directories().counters.snapshot()),
        ];
        groups.map(|(part, counters)| CounterGroup { part, counters }).into()
    }
}
