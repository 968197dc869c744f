//! Messages about jobs on pools: progress, and what a job has found or done.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::DamageInfo;

/// Result of an expansion.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExpandReport {
    pub(crate) before_bytes: u64,
    pub(crate) after_bytes: u64,
    pub(crate) added: Vec<PathBuf>,
    /// Devices that have grown since the import. Their added space is used after the next import.
    #[serde(default)]
    pub(crate) grown: Vec<PathBuf>,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct JobProgress {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) problems: u64,
}

/// Result of a trace.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TraceReport {
    /// Accesses in the trace, without read-ahead.
    pub(crate) accesses: u64,
    /// Blocks that read-ahead began to read.
    pub(crate) read_ahead: u64,
    /// Accesses that are missing, because the client or the daemon was too slow.
    pub(crate) dropped: u64,
    pub(crate) duration_us: u64,
}

/// Result of a check or a scrub.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct JobReport {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// True if the job ran to its end.
    pub(crate) complete: bool,
    /// The state of the job: `running`, `interrupted`, `paused`, `finished` or `stopped`. A check
    /// is `finished` or `interrupted`.
    pub(crate) state: String,
    pub(crate) healed: u64,
    /// Damaged labels of devices that were rewritten.
    #[serde(default)]
    pub(crate) labels_healed: u64,
    pub(crate) problem_count: u64,
    /// The problems. Neighbouring damaged blocks are one line.
    pub(crate) problems: Vec<String>,
    /// Objects with blocks that only missing devices have, all of them.
    #[serde(default)]
    pub(crate) unreachable: Vec<String>,
    /// Devices of mirrors that are not in use, so that their copies were not read.
    #[serde(default)]
    pub(crate) not_read: Vec<String>,
    /// Problems that are counted, but not in the list.
    pub(crate) unlisted: u64,
    /// Damaged files and structures among the problems.
    pub(crate) damage: Vec<DamageInfo>,
    /// Remarks.
    pub(crate) notes: Vec<String>,
}

/// Result of a trim.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TrimReport {
    /// True if the trim ran to its end.
    pub(crate) complete: bool,
    /// Bytes discarded.
    pub(crate) bytes: u64,
    /// Number of discards that failed.
    pub(crate) error_count: u64,
    /// The first failure.
    pub(crate) first_error: Option<String>,
    /// Devices that do not support discards.
    pub(crate) unsupported: Vec<String>,
}

/// The newest scrub of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ScrubInfo {
    /// `none`, `running`, `interrupted`, `paused`, `finished` or `stopped`.
    pub(crate) state: String,
    /// When it started, in seconds since 1970.
    pub(crate) started: u64,
    /// When it was finished or stopped, in seconds since 1970; 0 before.
    pub(crate) ended: u64,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Estimate of the final value of `bytes`.
    pub(crate) total_bytes: u64,
    pub(crate) bytes_per_second: u64,
    /// Estimate of the time left.
    pub(crate) seconds_left: Option<u64>,
    /// Its own maximum rate in bytes per second; 0 if it has none.
    pub(crate) rate_bytes: u64,
    pub(crate) healed: u64,
    pub(crate) problem_count: u64,
    /// Seconds from the end of a scrub to the start of the next one; 0 for never.
    #[serde(default)]
    pub(crate) every_s: u64,
    /// When the next one is to start, in seconds since 1970; null if it is not scheduled, or one is
    /// running or paused.
    #[serde(default)]
    pub(crate) due: Option<u64>,
}

/// The newest resilver of a pool since its import.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResilverInfo {
    /// Whether it runs.
    pub(crate) active: bool,
    /// Whether a device of a mirror that is in use misses blocks.
    pub(crate) degraded: bool,
    /// Blocks that were read because a device misses them.
    pub(crate) blocks: u64,
    /// Bytes of these blocks, all copies.
    pub(crate) bytes: u64,
    /// What `bytes` will be at most; 0 if unknown.
    #[serde(default)]
    pub(crate) total_bytes: u64,
    pub(crate) bytes_per_second: u64,
    /// Estimate of the time left, if known.
    #[serde(default)]
    pub(crate) seconds_left: Option<u64>,
    /// Copies written.
    pub(crate) written: u64,
    /// Blocks without a good copy.
    pub(crate) lost: u64,
    /// What else there is to say of the change of a side, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

/// Blocks evicted by a flush of the cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FlushReport {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}
