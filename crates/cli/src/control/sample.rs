//! Messages of [`Request::Sample`](super::Request::Sample): all that a daemon counts and measures,
//! for commands that compare samples.
//!
//! Everything grows from the start of the daemon, the import or the mount, except gauges: bytes
//! held, and requests in flight. Readers subtract.

use forebay_base::histogram::HistogramSnapshot;
use serde::{Deserialize, Serialize};

use super::messages::{CacheStats, ExplainedBlocks, MountStats, PoolStats};

/// A sample of a daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessSample {
    pub(crate) pid: u32,
    /// Time of the sample since the process started.
    pub(crate) at_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) resident_bytes: u64,
    /// The cache, which all pools of the process share.
    pub(crate) cache: CacheStats,
    pub(crate) pools: Vec<PoolSample>,
}

/// A pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PoolSample {
    pub(crate) guid: u64,
    pub(crate) stats: PoolStats,
    pub(crate) mounts: Vec<MountSample>,
    /// Devices of the pool and its L2 devices.
    pub(crate) devices: Vec<DeviceSample>,
    pub(crate) txgs: TxgsSample,
    /// What was missed most often. The client asks for it less often than for the rest.
    #[serde(default)]
    pub(crate) misses: MissesSample,
}

/// What was missed in the last minute or two, estimated.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MissesSample {
    pub(crate) span_ns: u64,
    pub(crate) misses: u64,
    pub(crate) blocks: Vec<ExplainedBlocks>,
}

/// A mounted dataset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MountSample {
    pub(crate) stats: MountStats,
    pub(crate) operations: Vec<OperationSample>,
}

/// Operations of one type.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OperationSample {
    pub(crate) operation: String,
    pub(crate) latency: Latency,
}

/// A device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeviceSample {
    pub(crate) path: String,
    /// True for an L2 device.
    pub(crate) l2: bool,
    pub(crate) requests: Vec<DeviceRequests>,
}

/// Requests to a device of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeviceRequests {
    /// `read`, `write`, `flush` or `discard`.
    pub(crate) request: String,
    pub(crate) in_flight: u64,
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
    pub(crate) latency: Latency,
}

/// Transaction groups.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TxgsSample {
    /// Groups that became durable.
    pub(crate) count: u64,
    /// Names of the phases of a commit, in their order.
    pub(crate) phases: Vec<String>,
    /// Nanoseconds of each phase, of all groups.
    pub(crate) phase_ns: Vec<u64>,
    /// The newest groups, oldest first.
    pub(crate) newest: Vec<TxgInfo>,
}

/// A durable transaction group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TxgInfo {
    pub(crate) txg: u64,
    /// How long it was open for changes.
    pub(crate) open_ns: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Nanoseconds of each phase.
    pub(crate) phase_ns: Vec<u64>,
}

/// A histogram of nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
    /// Lowest value and count of each bucket that has values.
    pub(crate) buckets: Vec<(u64, u64)>,
}

impl Latency {
    /// As a histogram.
    pub(crate) fn histogram(&self) -> HistogramSnapshot {
        HistogramSnapshot::from_buckets(self.buckets.iter().copied(), self.sum_ns, self.max_ns)
    }
}

impl From<&HistogramSnapshot> for Latency {
    fn from(histogram: &HistogramSnapshot) -> Self {
        let buckets = histogram.buckets().map(|(low, _, count)| (low, count)).collect();
        Self { sum_ns: histogram.sum, max_ns: histogram.max, buckets }
    }
}
