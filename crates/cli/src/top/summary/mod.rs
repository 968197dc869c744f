//! Figures of a pool: totals, and rates between two samples of its daemon.
//!
//! This is what `forebay top` shows on every screen and prints as text and JSON. Names are stable.
//! Pure: no I/O and no clock.
//!
//! # Invariants
//!
//! - Totals count from the start of the daemon, the import or the mount. A total that is lower than
//!   before has started again, and its rate counts from zero.
//! - Quantiles named `interval` cover what ended between the samples, those named `total` all.

mod cache;
mod devices;
mod operations;
mod txg;

use forebay_base::histogram::HistogramSnapshot;
use serde::Serialize;

pub(crate) use cache::{CacheSummary, Hits};
pub(crate) use devices::DeviceSummary;
pub(crate) use operations::{DatasetSummary, OperationSummary};
pub(crate) use txg::TxgSummary;

use crate::control::messages::ExplainedBlocks;
use crate::control::sample::{Latency, MissesSample, PoolSample, ProcessSample};

/// Figures of a pool.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PoolSummary {
    pub(crate) pool: String,
    pub(crate) guid: String,
    /// The daemon that has it imported.
    pub(crate) pid: u32,
    /// Time between the samples.
    pub(crate) interval_seconds: f64,
    pub(crate) health: String,
    /// Why the pool accepts no writes.
    pub(crate) suspended: Option<String>,
    pub(crate) total_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) available_bytes: u64,
    /// Memory of the daemon, and its limit.
    pub(crate) resident_bytes: u64,
    pub(crate) memory_bytes: u64,
    /// The cache of the daemon, which all its pools share.
    pub(crate) cache: CacheSummary,
    pub(crate) datasets: Vec<DatasetSummary>,
    pub(crate) devices: Vec<DeviceSummary>,
    pub(crate) txg: TxgSummary,
    /// What was missed most often in the last minute or two, estimated.
    pub(crate) misses: Vec<MissedSummary>,
}

/// Blocks of a file, a directory, or of another kind that were missed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct MissedSummary {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) misses_per_second: f64,
    /// Of the pool's misses.
    pub(crate) share: f64,
    /// The share of its blocks that were used only once.
    pub(crate) used_once: f64,
}

fn missed(sample: &MissesSample) -> Vec<MissedSummary> {
    let seconds = (sample.span_ns as f64 / 1e9).max(1e-3);
    let row = |blocks: &ExplainedBlocks| MissedSummary {
        name: blocks.name.clone(),
        class: blocks.class.clone(),
        misses_per_second: blocks.share * sample.misses as f64 / seconds,
        share: blocks.share,
        used_once: blocks.used_once,
    };
    sample.blocks.iter().map(row).collect()
}

/// A total, and its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Amount {
    pub(crate) total: u64,
    pub(crate) per_second: f64,
}

impl Amount {
    fn of(now: u64, before: Option<u64>, seconds: f64) -> Self {
        let grown = grown(now, before);
        let per_second = if seconds > 0.0 { grown as f64 / seconds } else { 0.0 };
        Self { total: now, per_second }
    }
}

/// What was added to a total since the sample before. Without one, all.
fn grown(now: u64, before: Option<u64>) -> u64 {
    match before {
        Some(before) if before <= now => now - before,
        _ => now,
    }
}

/// Quantiles of durations, in nanoseconds; 0 if `count` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) count: u64,
    pub(crate) mean_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
}

impl Quantiles {
    fn of(histogram: &HistogramSnapshot) -> Self {
        Self {
            count: histogram.count,
            mean_ns: histogram.mean() as u64,
            p50_ns: histogram.quantile(0.5),
            p99_ns: histogram.quantile(0.99),
            max_ns: histogram.max,
        }
    }
}

/// Durations between the samples, and of all time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Durations {
    pub(crate) per_second: f64,
    pub(crate) interval: Quantiles,
    pub(crate) total: Quantiles,
}

/// What was recorded between two samples of a histogram. If it has started again, all.
fn recorded(now: &Latency, before: Option<&Latency>) -> (HistogramSnapshot, HistogramSnapshot) {
    let all = now.histogram();
    let between = match before.map(Latency::histogram) {
        Some(before) if before.count <= all.count => all.since(&before),
        _ => all.clone(),
    };
    (between, all)
}

impl Durations {
    fn of((between, all): &(HistogramSnapshot, HistogramSnapshot), seconds: f64) -> Self {
        let per_second = if seconds > 0.0 { between.count as f64 / seconds } else { 0.0 };
        Self { per_second, interval: Quantiles::of(between), total: Quantiles::of(all) }
    }
}

/// A sample and the one before it, of one daemon.
#[derive(Clone, Copy)]
pub(crate) struct Samples<'a> {
    pub(crate) now: &'a ProcessSample,
    pub(crate) before: &'a ProcessSample,
}

impl Samples<'_> {
    fn seconds(&self) -> f64 {
        self.now.at_ns.saturating_sub(self.before.at_ns) as f64 / 1e9
    }

    /// Figures of the pool with that guid; `None` if the daemon does not have it.
    pub(crate) fn summary(&self, guid: u64) -> Option<PoolSummary> {
        let of = |sample: &ProcessSample| -> Option<usize> {
            sample.pools.iter().position(|pool| pool.guid == guid)
        };
        let pool = &self.now.pools[of(self.now)?];
        let before = of(self.before).map(|at| &self.before.pools[at]);
        let seconds = self.seconds();
        Some(PoolSummary {
            pool: pool.stats.name.clone(),
            guid: format!("{guid:016x}"),
            pid: self.now.pid,
            interval_seconds: seconds,
            health: pool.stats.health.to_string(),
            suspended: pool.stats.suspended.clone(),
            total_bytes: pool.stats.total_bytes,
            allocated_bytes: pool.stats.allocated_bytes,
            available_bytes: pool.stats.available_bytes,
            resident_bytes: self.now.resident_bytes,
            memory_bytes: self.now.memory_bytes,
            cache: cache::summary(self, pool, before),
            datasets: operations::summary(pool, before, seconds),
            devices: devices::summary(pool, before, seconds),
            txg: txg::summary(pool, before, seconds),
            misses: missed(&pool.misses),
        })
    }

    /// Figures of all pools of the daemon.
    pub(crate) fn all(&self) -> Vec<PoolSummary> {
        self.now.pools.iter().filter_map(|pool| self.summary(pool.guid)).collect()
    }
}

impl PoolSummary {
    /// Operations of all datasets, by type.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (&DatasetSummary, &OperationSummary)> {
        self.datasets
            .iter()
            .flat_map(|dataset| dataset.operations.iter().map(move |op| (dataset, op)))
    }
}

/// A counter of a pool.
fn counter(pool: Option<&PoolSample>, name: &str) -> Option<u64> {
    Some(pool?.stats.counters.get(name).copied().unwrap_or(0))
}
