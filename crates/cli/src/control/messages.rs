//! Messages about daemons, pools and mounts: answers on the control socket, and the output of
//! `--json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_pool::HealthState;
use serde::{Deserialize, Serialize};

/// A guid in JSON: 16 hexadecimal digits, as in all other output. Many programs read numbers of
/// JSON with a precision of 53 bits.
mod guid {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn serialize<S: Serializer>(guid: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{guid:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(|_| D::Error::custom("a guid is not hexadecimal"))
    }
}

/// A daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: u32,
    /// True if it accepts pools from other commands.
    pub(crate) daemon: bool,
    /// True if it was started with --separate, so other mounts do not use it.
    #[serde(default)]
    pub(crate) separate: bool,
    /// Path of the log; empty for a foreground mount.
    #[serde(default)]
    pub(crate) log: PathBuf,
    /// Memory limit of the process.
    pub(crate) memory_bytes: u64,
    /// Where it serves metrics over HTTP.
    #[serde(default)]
    pub(crate) metrics: Option<MetricsInfo>,
    pub(crate) pools: Vec<PoolInfo>,
}

/// Where a daemon serves metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MetricsInfo {
    /// Address of the page. The metrics are at `metrics` below it.
    pub(crate) url: String,
}

/// An imported pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PoolInfo {
    pub(crate) name: String,
    #[serde(with = "guid")]
    pub(crate) guid: u64,
    pub(crate) read_only: bool,
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) mounts: Vec<MountInfo>,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    #[serde(default)]
    pub(crate) available_bytes: u64,
    pub(crate) suspended: Option<String>,
    pub(crate) health: HealthState,
}

/// A mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountInfo {
    pub(crate) pool: String,
    pub(crate) dataset: String,
    pub(crate) at: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) kernel_cache: bool,
    /// Process that serves the mount.
    pub(crate) pid: u32,
}

/// Status of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PoolStatus {
    pub(crate) name: String,
    #[serde(with = "guid")]
    pub(crate) guid: u64,
    /// `mounted`, `imported`, `exported`, or text that begins with `not exported` after a crash.
    pub(crate) state: String,
    pub(crate) read_only: bool,
    /// Sector size of the pool.
    #[serde(default)]
    pub(crate) sector_bytes: u32,
    pub(crate) health: HealthState,
    /// What is wrong, worst first.
    pub(crate) health_reasons: Vec<String>,
    /// The error log: damage found since the last scrub that found none.
    pub(crate) damage: Vec<DamageInfo>,
    /// Errors that did not fit the error log.
    pub(crate) damage_unlisted: u64,
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
    /// What the import gave up or does without.
    #[serde(default)]
    pub(crate) import_notes: Vec<String>,
    /// Why the list of L2 devices cannot be read.
    #[serde(default)]
    pub(crate) l2_devices_damage: Option<String>,
    pub(crate) datasets: Vec<DatasetInfo>,
    pub(crate) mounts: Vec<MountInfo>,
    /// Errors since the import.
    pub(crate) errors: ErrorCounts,
    pub(crate) log: IntentLogStats,
    #[serde(default)]
    pub(crate) scrub: ScrubInfo,
    /// The newest resilver since the import, if there was one.
    #[serde(default)]
    pub(crate) resilver: Option<ResilverInfo>,
    /// Of a pool that is followed as another host writes it.
    #[serde(default)]
    pub(crate) follow: Option<super::follow::FollowInfo>,
}

/// Damage of a file, or of another structure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DamageInfo {
    /// Name of the dataset; none for structures of the pool.
    pub(crate) dataset: Option<String>,
    /// Number of the damaged object.
    pub(crate) object: Option<u64>,
    /// Its inode number, if it is a file or directory.
    pub(crate) inode: Option<u64>,
    /// Its path in the dataset, if it has one.
    pub(crate) path: Option<String>,
    /// The first damaged byte.
    pub(crate) first_byte: Option<u64>,
    /// The end of the damaged bytes, exclusive.
    pub(crate) end_byte: Option<u64>,
    /// What is wrong with them.
    pub(crate) problem: String,
    /// False if the damaged blocks were freed meanwhile.
    pub(crate) in_use: bool,
    /// The transaction group that was open when it was found first.
    pub(crate) first_txg: u64,
    /// The transaction group that was open when it was found last.
    pub(crate) last_txg: u64,
    /// How often it was found.
    pub(crate) count: u64,
    /// All of this in a sentence.
    pub(crate) text: String,
}

/// A device of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceInfo {
    pub(crate) number: u16,
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) engine: String,
    pub(crate) direct: bool,
    /// Why I/O goes through the page cache.
    #[serde(default)]
    pub(crate) buffered: Option<String>,
    /// Bytes that the device rewrites as a whole.
    #[serde(default)]
    pub(crate) physical_bytes: u32,
    /// Whether the pool is used without the device.
    #[serde(default)]
    pub(crate) missing: bool,
    /// Whether the device belongs to a mirror, whose devices have the same number.
    #[serde(default)]
    pub(crate) mirror: bool,
    /// Whether the device holds the intent log, and no blocks.
    #[serde(default)]
    pub(crate) log: bool,
    /// `online`, `degraded`, `faulted`, `missing` or `offline`.
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) read_errors: u64,
    #[serde(default)]
    pub(crate) write_errors: u64,
    #[serde(default)]
    pub(crate) checksum_errors: u64,
    /// The first transaction group of which it misses blocks.
    #[serde(default)]
    pub(crate) missed_from: Option<u64>,
    /// The last one; nothing if it still misses what is written.
    #[serde(default)]
    pub(crate) missed_to: Option<u64>,
    /// The path of the device that leaves once this one has all blocks.
    #[serde(default)]
    pub(crate) replaces: Option<String>,
    /// Whether it is an object store.
    #[serde(default)]
    pub(crate) object_store: bool,
    /// The requests to an object store, by kind.
    #[serde(default)]
    pub(crate) requests: Vec<StoreRequests>,
}

/// Requests of one kind to an object store, since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreRequests {
    /// `get`, `put` and others.
    pub(crate) kind: String,
    pub(crate) count: u64,
    /// Bytes of the bodies of those that succeeded.
    pub(crate) bytes: u64,
    /// Those that failed and were repeated.
    pub(crate) retries: u64,
}

/// An L2 device of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct L2DeviceInfo {
    pub(crate) pool: String,
    /// Guid of the device in hexadecimal.
    pub(crate) number: String,
    pub(crate) path: String,
    /// `active`, `rebuilding`, `failed` or `unavailable`.
    pub(crate) state: String,
    /// Reason if it is failed or unavailable.
    pub(crate) why: Option<String>,
    pub(crate) size_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) records: u64,
    /// Segments whose index was rebuilt since the device was opened.
    pub(crate) rebuilt_segments: u64,
    pub(crate) segments: u64,
    pub(crate) rebuild_ns: u64,
    pub(crate) hits: u64,
    pub(crate) lookups: u64,
    /// Hits divided by lookups.
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
    /// What changes do while the pool is suspended: `wait` or `continue`.
    #[serde(default)]
    pub(crate) failmode: String,
    /// Blocks that L2 devices may hold: `all`, `metadata` or `none`.
    #[serde(default)]
    pub(crate) l2: String,
    /// Why the dataset cannot be read.
    pub(crate) error: Option<String>,
}

/// Error counts of a pool since the import.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ErrorCounts {
    pub(crate) reads: u64,
    pub(crate) checksums: u64,
    pub(crate) writes: u64,
    pub(crate) healed: u64,
    pub(crate) lost: u64,
}

/// Counts of the intent log since the import.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct IntentLogStats {
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
    pub(crate) to_txg: u64,
    pub(crate) replayed: u64,
}

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
    pub(crate) problem_count: u64,
    /// The problems. Neighbouring damaged blocks are one line.
    pub(crate) problems: Vec<String>,
    /// Objects with blocks that only missing devices have, all of them.
    #[serde(default)]
    pub(crate) unreachable: Vec<String>,
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
}

/// Blocks evicted by a flush of the cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FlushReport {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

/// A tunable with its value and its documentation.
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

/// Something that has happened to a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EventInfo {
    /// Its number in its daemon.
    pub(crate) number: u64,
    /// When it happened, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) pool: String,
    #[serde(with = "guid")]
    pub(crate) guid: u64,
    /// What happened, as a word.
    pub(crate) kind: String,
    /// Path of the device that it is about.
    pub(crate) device: Option<String>,
    /// The cause or the result; may be empty.
    pub(crate) detail: String,
    /// How often it has happened within a minute.
    pub(crate) count: u64,
    /// All of it in one sentence.
    pub(crate) text: String,
}

/// Statistics of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessStats {
    pub(crate) pid: u32,
    /// Time of the sample since the process started.
    pub(crate) at_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) cache: CacheStats,
    /// Requested blocks that were in memory, and all. Blocks that were read ahead were not.
    #[serde(default)]
    pub(crate) in_memory: MemoryHits,
    pub(crate) pools: Vec<PoolStats>,
    pub(crate) mounts: Vec<MountStats>,
}

/// Requests for blocks, and the part served from memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryHits {
    pub(crate) found: u64,
    pub(crate) wanted: u64,
}

impl MemoryHits {
    /// Computes hits from memory. Of `hits` in the cache, `prefetched` blocks were read from a
    /// device ahead of the request, and `missed` blocks on request. Neither counts as a hit, so a
    /// file that is read once has no hits.
    pub(crate) fn of(hits: u64, prefetched: u64, missed: u64) -> Self {
        let found = hits.saturating_sub(prefetched);
        Self { found, wanted: found + prefetched + missed }
    }
}

impl ProcessStats {
    /// Hits from memory since `before`, or since the start.
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

/// Statistics of the cache.
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

/// Size of one state and class of the cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CacheStateStats {
    pub(crate) state: String,
    pub(crate) class: String,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
    /// Blocks of each sublist; empty for ghosts.
    #[serde(default)]
    pub(crate) sublists: Vec<u64>,
}

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

/// Statistics of a pool.
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
    pub(crate) health: HealthState,
    #[serde(default)]
    pub(crate) l2_devices: Vec<L2DeviceInfo>,
    pub(crate) throttled: u64,
    pub(crate) throttled_p99_ns: u64,
    /// Time that closing transaction groups took, all together. `counters` has their number.
    #[serde(default)]
    pub(crate) quiesce_ns: u64,
    /// Time from the close of transaction groups until they were durable, all together.
    #[serde(default)]
    pub(crate) sync_ns: u64,
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Statistics of a mount.
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
}

/// The name of a unit variant in snake case.
pub(crate) fn snake_case(variant: impl std::fmt::Debug) -> String {
    let mut name = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
