//! Options of a file system.

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::sync::Arc;

use crate::read_buffers::ReadBuffers;
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
    /// Buffers for large reads. File systems that were opened with clones of these options share
    /// them. Default: 16 MiB.
    pub read_buffers: Arc<ReadBuffers>,
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
            read_buffers: Arc::new(ReadBuffers::new(16 << 20)),
            clock: Arc::new(SystemWallClock),
            counters: None,
        }
    }
}
