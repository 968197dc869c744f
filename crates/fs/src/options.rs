//! How a file system is opened.

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::sync::Arc;

/// When reading a file changes its time of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtimeMode {
    /// If it would otherwise be older than a change, or than a day.
    Relative,
    /// With every read that comes here.
    Strict,
    /// Never.
    Off,
}

/// How to open a file system.
#[derive(Clone)]
pub struct FsOptions {
    /// Inodes in memory should not take more than this; see
    /// [`reclaimable`](crate::FileSystem::reclaimable). Nothing is refused when they do.
    pub memory_bytes: u64,
    /// Nothing may be changed.
    pub read_only: bool,
    /// When reading changes times.
    pub atime: AtimeMode,
    /// Whether it does so for directories too.
    pub dir_atime: bool,
    /// Threads for what must wait, at most; at least one.
    pub workers: usize,
    /// Where the times of files come from.
    pub clock: Arc<dyn WallClock>,
}

impl Default for FsOptions {
    /// 64 MiB of inodes, relative times of access, 16 threads, the system's clock.
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            read_only: false,
            atime: AtimeMode::Relative,
            dir_atime: true,
            workers: 16,
            clock: Arc::new(SystemWallClock),
        }
    }
}
