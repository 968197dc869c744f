//! Messages that say why blocks were not in memory, and what more memory would save.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The miss-ratio curve of a daemon's cache over the last minutes, and what follows from it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CurveReport {
    pub(crate) pid: u32,
    /// Memory limit of the process.
    pub(crate) memory_bytes: u64,
    /// Memory for cached blocks today.
    pub(crate) capacity_bytes: u64,
    /// The time that the curve stands for.
    pub(crate) seconds: f64,
    /// The part of that time with accesses.
    pub(crate) busy_seconds: f64,
    /// Accesses in that time. Earlier ones count less.
    pub(crate) accesses: f64,
    /// Mean time of a load of a missing block; 0 if none was timed.
    pub(crate) load_ns: f64,
    /// From the smallest to the largest size.
    pub(crate) points: Vec<CurvePointInfo>,
    /// What larger sizes would save of each dataset, from recorded misses.
    #[serde(default)]
    pub(crate) datasets: Vec<DatasetSavings>,
    /// What L2 devices of other sizes would have served, if there are any.
    #[serde(default)]
    pub(crate) l2: Option<L2CurveReport>,
    /// What follows, in sentences. The command adds them.
    #[serde(default)]
    pub(crate) advice: Vec<String>,
}

/// What more memory would save of a dataset's misses. Lower bounds, from recorded misses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DatasetSavings {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) misses_per_s: f64,
    /// By size in percent of today's.
    pub(crate) saved_per_s: BTreeMap<u64, f64>,
}

/// What L2 devices of other sizes would have served over the last minutes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct L2CurveReport {
    /// What the L2 devices of all pools of the process can hold today.
    pub(crate) capacity_bytes: u64,
    /// The time that the curve stands for.
    pub(crate) seconds: f64,
    /// Misses of memory in that time. Earlier ones count less.
    pub(crate) asked: f64,
    /// From the smallest to the largest size.
    pub(crate) points: Vec<L2PointInfo>,
    /// What larger sizes would serve of each dataset's misses.
    pub(crate) datasets: Vec<DatasetSavings>,
}

/// A simulated size of L2, with memory as it is today.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct L2PointInfo {
    /// Of today's size.
    pub(crate) percent: u64,
    pub(crate) capacity_bytes: u64,
    /// The part of all accesses that memory or L2 answers.
    pub(crate) hit_ratio: f64,
    /// The part of the misses of memory that L2 answers.
    pub(crate) of_misses: f64,
    /// As `hit_ratio`, of metadata, if any was requested.
    pub(crate) metadata_hit_ratio: Option<f64>,
    /// As `hit_ratio`, of data, if any was requested.
    pub(crate) data_hit_ratio: Option<f64>,
    /// Reads of the pool's devices in the time that the curve stands for.
    pub(crate) misses: f64,
    /// Standard error of `misses`, from sampling.
    pub(crate) misses_error: f64,
    /// False if less has left memory than this size holds.
    pub(crate) full: bool,
}

impl L2CurveReport {
    /// The point of today's size.
    pub(crate) fn today(&self) -> Option<&L2PointInfo> {
        self.points.iter().find(|point| point.percent == 100)
    }

    /// Reads of the pool's devices that `point` saves a second, against `today`.
    pub(crate) fn reads_saved_per_s(&self, today: &L2PointInfo, point: &L2PointInfo) -> f64 {
        if self.seconds > 0.0 { (today.misses - point.misses) / self.seconds } else { 0.0 }
    }
}

/// A simulated size of the cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CurvePointInfo {
    /// Of today's size.
    pub(crate) percent: u64,
    /// Memory for cached blocks.
    pub(crate) capacity_bytes: u64,
    /// Memory limit of a process whose cache has that capacity.
    pub(crate) memory_bytes: u64,
    pub(crate) hit_ratio: f64,
    /// Of metadata, if any was requested.
    pub(crate) metadata_hit_ratio: Option<f64>,
    /// Of data, if any was requested.
    pub(crate) data_hit_ratio: Option<f64>,
    /// Misses in the time that the curve stands for.
    pub(crate) misses: f64,
    /// Standard error of `misses`, from sampling.
    pub(crate) misses_error: f64,
    /// False if the simulated cache of this size has not filled yet.
    pub(crate) full: bool,
}

impl CurveReport {
    /// The point of today's size.
    pub(crate) fn today(&self) -> Option<CurvePointInfo> {
        self.points.iter().find(|point| point.percent == 100).cloned()
    }

    /// Reads that `point` saves a second, against `today`.
    pub(crate) fn reads_saved_per_s(&self, today: &CurvePointInfo, point: &CurvePointInfo) -> f64 {
        if self.seconds > 0.0 { (today.misses - point.misses) / self.seconds } else { 0.0 }
    }
}

/// Why blocks were not in memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExplainReport {
    pub(crate) span_ns: u64,
    /// Of all pools of the daemon.
    pub(crate) hits: u64,
    /// Of all pools of the daemon.
    pub(crate) misses: u64,
    pub(crate) hit_ratio: f64,
    pub(crate) healthy: bool,
    /// Recorded misses of the blocks that were asked about.
    pub(crate) recorded: u64,
    /// One block in so many is recorded.
    pub(crate) one_in: u64,
    /// Bytes of blocks that the cache should hold.
    pub(crate) capacity_bytes: u64,
    /// Misses of the blocks that were asked about, estimated.
    pub(crate) missed: u64,
    /// What was missed most often, of all causes together.
    pub(crate) blocks: Vec<ExplainedBlocks>,
    /// Those first for whose loads was waited longest.
    pub(crate) causes: Vec<ExplainedCause>,
    /// The same as text: a summary, then the sentences of each cause.
    pub(crate) sentences: Vec<Vec<String>>,
}

/// The misses of one cause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExplainedCause {
    pub(crate) cause: String,
    /// What the L2 devices did: `absent`, `served`, `dropped`, `declined` or `excluded`.
    pub(crate) l2: String,
    pub(crate) class: String,
    /// Estimated from the recorded ones.
    pub(crate) misses: u64,
    pub(crate) share: f64,
    pub(crate) waited_ns: u64,
    pub(crate) median_gone_ns: u64,
    pub(crate) from_mfu: f64,
    pub(crate) blocks: Vec<ExplainedBlocks>,
    pub(crate) evictors: Vec<ExplainedBlocks>,
    pub(crate) remedies: Vec<ExplainedRemedy>,
}

/// Blocks that were missed, or that evicted others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExplainedBlocks {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) share: f64,
    pub(crate) used_once: f64,
    pub(crate) bytes: u64,
}

/// What would avoid misses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ExplainedRemedy {
    pub(crate) remedy: String,
    pub(crate) more_bytes: Option<u64>,
    pub(crate) loop_bytes: Option<u64>,
    /// The share of the missed blocks that it would have kept.
    pub(crate) share: Option<f64>,
    /// The misses that it would have avoided.
    pub(crate) misses: Option<u64>,
    /// What L2 should hold, for `larger_l2`.
    #[serde(default)]
    pub(crate) l2_bytes: Option<u64>,
}
