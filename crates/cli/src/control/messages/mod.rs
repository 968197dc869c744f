//! Messages about daemons, pools and mounts: answers on the control socket, and the output of
//! `--json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_pool::HealthState;
use serde::{Deserialize, Serialize};

mod insight;
mod jobs;
mod stats;

pub(crate) use insight::*;
pub(crate) use jobs::*;
pub(crate) use stats::*;

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
    /// True once it is shutting down: it accepts no pools any more.
    #[serde(default)]
    pub(crate) ending: bool,
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
    /// Its id in the mount table; `None` if it is not there, or if the daemon is an older one.
    #[serde(default)]
    pub(crate) mount_id: Option<u64>,
    /// True once it has left the mount table. It is served as long as it is in use.
    #[serde(default)]
    pub(crate) detached: bool,
}

impl MountInfo {
    /// Its path, and whether it is still there.
    pub(crate) fn place(&self) -> String {
        let at = self.at.display();
        if self.detached { format!("{at} (detached)") } else { at.to_string() }
    }
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
    #[serde(default, with = "guid")]
    pub(crate) guid: u64,
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
    /// What an object store keeps.
    #[serde(default)]
    pub(crate) stored: Option<StoredInfo>,
}

impl DeviceInfo {
    /// Its path; of a missing one its guid, by which commands know it.
    pub(crate) fn name(&self) -> String {
        match self.missing {
            true => format!("device {:016x}", self.guid),
            false => self.path.clone(),
        }
    }
}

/// What an object store keeps of a pool, without what waits for its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredInfo {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Bytes of them that are believed to be live.
    pub(crate) live_bytes: u64,
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
    /// When it happened first, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// When it happened last.
    pub(crate) last_unix_ms: u64,
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
