//! Figures of mounted datasets and their operations.

use forebay_base::histogram::HistogramSnapshot;
use serde::Serialize;

use super::{Amount, Durations, grown, recorded};
use crate::control::messages::MountStats;
use crate::control::sample::{MountSample, PoolSample};

/// Operations that only read. They wait for nothing but devices.
const READS: [&str; 6] = ["lookup", "getattr", "readlink", "open", "read", "readdir"];

/// Figures of a mounted dataset.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DatasetSummary {
    pub(crate) dataset: String,
    /// Mount point.
    pub(crate) at: String,
    pub(crate) operations_total: Amount,
    pub(crate) read_bytes: Amount,
    pub(crate) write_bytes: Amount,
    /// Of the operations that only read: those that found everything in memory.
    pub(crate) in_memory_ratio: Option<f64>,
    pub(crate) inodes: u64,
    pub(crate) inode_bytes: u64,
    /// Latency of all operations together.
    pub(crate) latency: Durations,
    pub(crate) operations: Vec<OperationSummary>,
}

/// Figures of operations of one type.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct OperationSummary {
    pub(crate) operation: String,
    /// Operations that had to wait for a device, a transaction group, or another thread.
    pub(crate) waited: Amount,
    pub(crate) latency: Durations,
}

pub(super) fn summary(
    pool: &PoolSample,
    before: Option<&PoolSample>,
    seconds: f64,
) -> Vec<DatasetSummary> {
    let summary = |mount: &MountSample| {
        let mut earlier = before.into_iter().flat_map(|pool| &pool.mounts);
        let earlier = earlier.find(|other| other.stats.at == mount.stats.at);
        dataset(mount, earlier, seconds)
    };
    pool.mounts.iter().map(summary).collect()
}

fn dataset(mount: &MountSample, before: Option<&MountSample>, seconds: f64) -> DatasetSummary {
    let amount = |of: &dyn Fn(&MountStats) -> u64| {
        Amount::of(of(&mount.stats), before.map(|before| of(&before.stats)), seconds)
    };
    let mut operations = Vec::new();
    let mut sum: Option<(HistogramSnapshot, HistogramSnapshot)> = None;
    for sample in &mount.operations {
        let mut earlier = before.into_iter().flat_map(|mount| &mount.operations);
        let earlier = earlier.find(|other| other.operation == sample.operation);
        let parts = recorded(&sample.latency, earlier.map(|earlier| &earlier.latency));
        operations.push(OperationSummary {
            operation: sample.operation.clone(),
            waited: amount(&|stats| of(stats, "would_block", &sample.operation)),
            latency: Durations::of(&parts, seconds),
        });
        sum = Some(match sum.take() {
            None => parts,
            Some((mut between, mut all)) => {
                between.merge(&parts.0);
                all.merge(&parts.1);
                (between, all)
            }
        });
    }
    DatasetSummary {
        dataset: mount.stats.dataset.clone(),
        at: mount.stats.at.display().to_string(),
        operations_total: amount(&|stats| stats.operations),
        read_bytes: amount(&|stats| stats.read_bytes),
        write_bytes: amount(&|stats| stats.write_bytes),
        in_memory_ratio: in_memory_ratio(mount, before),
        inodes: mount.stats.inodes,
        inode_bytes: mount.stats.inode_bytes,
        latency: sum.map(|parts| Durations::of(&parts, seconds)).unwrap_or_default(),
        operations,
    }
}

fn of(stats: &MountStats, counter: &str, operation: &str) -> u64 {
    stats.counters.get(&format!("{counter}.{operation}")).copied().unwrap_or(0)
}

fn in_memory_ratio(mount: &MountSample, before: Option<&MountSample>) -> Option<f64> {
    let sum = |mount: &MountSample, counter: &str| -> u64 {
        READS.iter().map(|operation| of(&mount.stats, counter, operation)).sum()
    };
    let grown =
        |counter: &str| grown(sum(mount, counter), before.map(|before| sum(before, counter)));
    let (requests, waited) = (grown("requests"), grown("would_block"));
    (requests > 0).then(|| requests.saturating_sub(waited) as f64 / requests as f64)
}
