//! What is told of processes, pools and mounts: what travels over the control socket, and what `--json` prints.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A process that has pools.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: u32,
    /// Whether it takes pools that others bring.
    pub(crate) daemon: bool,
    /// Whether it was started with --separate: other mounts do not join it.
    #[serde(default)]
    pub(crate) separate: bool,
    /// What the whole process may use.
    pub(crate) memory_bytes: u64,
    pub(crate) pools: Vec<PoolInfo>,
}

/// A pool that a process has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PoolInfo {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) read_only: bool,
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) mounts: Vec<MountInfo>,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    #[serde(default)]
    pub(crate) available_bytes: u64,
    pub(crate) suspended: Option<String>,
}

/// A mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountInfo {
    pub(crate) pool: String,
    pub(crate) dataset: String,
    pub(crate) at: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) kernel_cache: bool,
    /// The process that has it.
    pub(crate) pid: u32,
}

/// All that is known of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PoolStatus {
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// `mounted`, `imported`, `exported`, or `not exported` for one that a crash left.
    pub(crate) state: String,
    pub(crate) read_only: bool,
    pub(crate) suspended: Option<String>,
    pub(crate) txg: u64,
    pub(crate) total_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) deferred_bytes: u64,
    pub(crate) free_bytes: u64,
    #[serde(default)]
    pub(crate) available_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) devices: Vec<DeviceInfo>,
    #[serde(default)]
    pub(crate) l2_devices: Vec<L2DeviceInfo>,
    /// Why the list of L2 devices cannot be read, if so.
    #[serde(default)]
    pub(crate) l2_devices_damage: Option<String>,
    pub(crate) datasets: Vec<DatasetInfo>,
    pub(crate) mounts: Vec<MountInfo>,
    /// Since it was imported.
    pub(crate) errors: ErrorCounts,
    pub(crate) log: IntentLogStats,
}

/// A device of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceInfo {
    pub(crate) number: u16,
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) engine: String,
    pub(crate) direct: bool,
}

/// An L2 device of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct L2DeviceInfo {
    pub(crate) pool: String,
    /// Names it, in hexadecimal digits.
    pub(crate) number: String,
    pub(crate) path: String,
    /// `active`, `rebuilding`, `failed` or `away`.
    pub(crate) state: String,
    /// Why, if it is failed or away.
    pub(crate) why: Option<String>,
    pub(crate) size_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) records: u64,
    /// Of the segments, how many were looked at since it was opened.
    pub(crate) rebuilt_segments: u64,
    pub(crate) segments: u64,
    pub(crate) rebuild_ns: u64,
    pub(crate) hits: u64,
    pub(crate) lookups: u64,
    /// Hits by lookups.
    pub(crate) hit_ratio: f64,
    pub(crate) written_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) counters: BTreeMap<String, u64>,
}

/// A dataset of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DatasetInfo {
    pub(crate) name: String,
    pub(crate) objects: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) record_bytes: u32,
    pub(crate) compression: String,
    pub(crate) copies: u8,
    pub(crate) sync: String,
    /// What L2 devices hold of it.
    #[serde(default)]
    pub(crate) l2: String,
    /// Why nothing else is known of it.
    pub(crate) error: Option<String>,
}

/// Errors that a pool has seen.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ErrorCounts {
    pub(crate) reads: u64,
    pub(crate) checksums: u64,
    pub(crate) writes: u64,
    pub(crate) healed: u64,
    pub(crate) lost: u64,
}

/// What the intent log has done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct IntentLogStats {
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
    pub(crate) to_txg: u64,
    pub(crate) replayed: u64,
}

/// What an expansion came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExpandReport {
    pub(crate) before_bytes: u64,
    pub(crate) after_bytes: u64,
    pub(crate) added: Vec<PathBuf>,
    /// Devices that have grown since the pool was taken into use: more of them is used when it is taken into use again.
    #[serde(default)]
    pub(crate) grown: Vec<PathBuf>,
}

/// How far long work is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct JobProgress {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) problems: u64,
}

/// What a check or a scrub found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct JobReport {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Whether all was looked at.
    pub(crate) complete: bool,
    pub(crate) healed: u64,
    pub(crate) problem_count: u64,
    /// The first of them.
    pub(crate) problems: Vec<String>,
    /// What else there is to say.
    pub(crate) notes: Vec<String>,
}

/// What a flush of the cache threw out.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FlushReport {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

/// A tunable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TunableInfo {
    /// `cache` or `pool`.
    pub(crate) of: String,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) default: String,
    pub(crate) range: String,
    pub(crate) unit: String,
    pub(crate) settable: String,
    pub(crate) help: String,
}

/// Figures of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessStats {
    pub(crate) pid: u32,
    /// When it was taken, since the process began.
    pub(crate) at_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) cache: CacheStats,
    pub(crate) pools: Vec<PoolStats>,
    pub(crate) mounts: Vec<MountStats>,
}

/// Requests for blocks, and how many of the blocks were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryHits {
    pub(crate) found: u64,
    pub(crate) wanted: u64,
}

impl MemoryHits {
    /// Of `hits` in the cache, blocks `ahead` were read from a device for these very requests before they came, and
    /// blocks `demanded` when they came. So neither counts as found, and a file that is read once is not found at
    /// all, however well it was read ahead.
    pub(crate) fn of(hits: u64, ahead: u64, demanded: u64) -> Self {
        let found = hits.saturating_sub(ahead);
        Self { found, wanted: found + ahead + demanded }
    }
}

impl ProcessStats {
    /// What happened since `before`, or from the beginning.
    pub(crate) fn memory_hits(&self, before: Option<&ProcessStats>) -> MemoryHits {
        let reads = |info: &ProcessStats, cause: &str| -> u64 {
            let key = format!("reads.{cause}");
            info.pools.iter().filter_map(|pool| pool.counters.get(&key)).sum()
        };
        let grown =
            |of: &dyn Fn(&ProcessStats) -> u64| of(self).saturating_sub(before.map_or(0, of));
        MemoryHits::of(
            grown(&|info| info.cache.hits),
            grown(&|info| reads(info, "prefetch")),
            grown(&|info| reads(info, "miss")),
        )
    }
}

/// Figures of the cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CacheStats {
    pub(crate) bound_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) metadata_bytes: u64,
    pub(crate) data_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) ghosts: u64,
    pub(crate) metadata_target_bytes: u64,
    pub(crate) states: Vec<CacheStateStats>,
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Figures of one state and class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CacheStateStats {
    pub(crate) state: String,
    pub(crate) class: String,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// Figures of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PoolStats {
    pub(crate) name: String,
    pub(crate) txg: u64,
    pub(crate) total_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) free_bytes: u64,
    #[serde(default)]
    pub(crate) available_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) suspended: Option<String>,
    #[serde(default)]
    pub(crate) l2_devices: Vec<L2DeviceInfo>,
    pub(crate) throttled: u64,
    pub(crate) throttled_p99_ns: u64,
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Figures of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MountStats {
    pub(crate) pool: String,
    pub(crate) dataset: String,
    pub(crate) at: PathBuf,
    pub(crate) operations: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) inode_bytes: u64,
    pub(crate) counters: BTreeMap<String, u64>,
}
