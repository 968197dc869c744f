//! Options of opening a file or block device.

use forebay_base::sync::Arc;

use crate::tunables::IoTunables;

/// Use of direct I/O, which bypasses the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// If the medium supports it at the requested sector size.
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
    /// Sector size in bytes: a power of two, and a multiple of the medium's. `None`: the medium's,
    /// at least 512.
    pub sector_bytes: Option<u32>,
    /// Fail if the medium has fewer bytes.
    pub min_bytes: u64,
    /// Create a file of this many zero bytes if the path does not exist. A multiple of the sector
    /// size. An existing file keeps its size. An open that fails removes the file that it created,
    /// unless [`locking`](Self::locking) is off or another program has locked the file meanwhile.
    pub create_bytes: Option<u64>,
    /// Limits of the submission queues. Several devices may share a table.
    pub tunables: Arc<IoTunables>,
}
