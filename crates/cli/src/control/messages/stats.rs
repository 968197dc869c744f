//! Messages with statistics: of a daemon, its cache, its pools and mounts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_pool::HealthState;
use serde::{Deserialize, Serialize};

use super::L2DeviceInfo;

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
    /// Computes hits from memory. Of `hits` in the cache, `loads` are the first uses of blocks that
    /// were loaded from a device or an L2 device, on request or ahead of it: an operation that
    /// waits for a block is repeated, and then finds it. They do not count as hits, so a file that
    /// is read once has none.
    pub(crate) fn of(hits: u64, loads: u64) -> Self {
        let found = hits.saturating_sub(loads);
        Self { found, wanted: found + loads }
    }
}

impl ProcessStats {
    /// Hits from memory since `before`, or since the start.
    pub(crate) fn memory_hits(&self, before: Option<&ProcessStats>) -> MemoryHits {
        let grown =
            |of: &dyn Fn(&ProcessStats) -> u64| of(self).saturating_sub(before.map_or(0, of));
        MemoryHits::of(grown(&|info| info.cache.hits), grown(&|info| info.cache.loads()))
    }
}

impl CacheStats {
    /// Loads begun of blocks that were not cached.
    fn loads(&self) -> u64 {
        ["misses.metadata", "misses.data"].iter().filter_map(|name| self.counters.get(*name)).sum()
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
