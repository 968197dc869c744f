//! Options of opening a file or block device.

use forebay_base::sync::Arc;

use crate::tunables::IoTunables;

/// Use of direct I/O, which bypasses the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// If the medium supports it at the requested sector size. Otherwise the page cache is used,
    /// and [`DeviceInfo::buffered`](crate::DeviceInfo::buffered) says why.
    #[default]
    Auto,
    /// Always. Opening fails if the medium does not support it.
    Always,
    /// Never.
    Never,
}

/// The engine that executes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring, or threads if the system refuses it.
    #[default]
    Auto,
    /// io_uring. Opening fails if the system refuses it.
    IoUring,
    /// Threads.
    Threads,
}

/// Locking of the medium against other opens, by this process or another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locking {
    /// Exclusive; with `read_only`, shared with other readers.
    #[default]
    Auto,
    /// None: for inspecting a medium that is open elsewhere, and for file systems without locks.
    None,
}

/// Returns the sector size that the content of a medium needs, in bytes, if it is recognised: from
/// the size of the medium in bytes, and a function that reads a page at a multiple of its size.
pub type SectorProbe = fn(u64, &mut dyn FnMut(u64) -> Option<[u8; 4096]>) -> Option<u32>;

/// Options of opening a file or block device. By default it must exist, and is opened for reading
/// and writing.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Refuse writes, flushes and discards. The medium itself may be read-only.
    pub read_only: bool,
    /// Locking of the medium against other opens.
    pub locking: Locking,
    /// Use of direct I/O, which bypasses the page cache.
    pub direct: Direct,
    /// The engine that executes requests.
    pub engine: EngineChoice,
    /// Submission queues, each with its ring. 0: one per CPU, at most 16.
    pub submission_queues: usize,
    /// Threads, if threads execute the requests. 0: two per CPU, at least 8.
    pub threads: usize,
    /// Sector size in bytes: a power of two from 512 to 4096. A size below the medium's needs the
    /// page cache. `None`: the medium's, at least 512.
    pub sector_bytes: Option<u32>,
    /// Asks the content for its sector size, if no size is given and the medium's is larger than
    /// 512 bytes. So content that was copied from a medium with smaller sectors can be used.
    pub sector_probe: Option<SectorProbe>,
    /// Fail if the medium has fewer bytes.
    pub min_bytes: u64,
    /// Create a file of this many zero bytes if the path does not exist. A multiple of the sector
    /// size. An existing file keeps its size. An open that fails removes the file that it created,
    /// unless [`locking`](Self::locking) is off or another program has locked the file meanwhile.
    pub create_bytes: Option<u64>,
    /// Limits of the submission queues. Several devices may share a table.
    pub tunables: Arc<IoTunables>,
}
