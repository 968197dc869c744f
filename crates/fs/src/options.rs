//! Options of a file system.

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::sync::Arc;

use crate::stats::FsCounters;

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtimeMode {
    /// If the access time is older than a change, or than a day.
    Relative,
    /// On every read that reaches the file system.
    Strict,
    /// Never.
    Off,
}

/// Options to open a file system.
#[derive(Clone)]
pub struct FsOptions {
    /// Memory in bytes above which [`reclaimable`](crate::FileSystem::reclaimable) names inodes to
    /// forget. A soft limit: no operation fails because of it.
    pub memory_bytes: u64,
    /// Refuses all changes.
    pub read_only: bool,
    /// When a read updates the access time.
    pub atime: AtimeMode,
    /// Whether reading a directory updates its access time.
    pub dir_atime: bool,
    /// Largest number of threads for jobs that block, at least one.
    pub workers: usize,
    /// Limit for the buffers that workers and threads of I/O callbacks share, for reads of more
    /// than 128 KiB. At least one, of 1 MiB. A thread that receives requests has one of its own.
    pub max_reading_bytes: usize,
    /// Source of the times of files.
    pub clock: Arc<dyn WallClock>,
    /// Counters that go on from another state of the same files. Default: new ones.
    pub counters: Option<Arc<FsCounters>>,
}

impl Default for FsOptions {
    /// 64 MiB for inodes, relative access times, 16 threads, 16 MiB of buffers, the system's clock.
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            read_only: false,
            atime: AtimeMode::Relative,
            dir_atime: true,
            workers: 16,
            max_reading_bytes: 16 << 20,
            clock: Arc::new(SystemWallClock),
            counters: None,
        }
    }
}
