//! How to open a file or block device.

use forebay_base::sync::Arc;

use crate::tunables::IoTunables;

/// Whether to go around the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// If the medium can, at the sector size that was asked for.
    #[default]
    Auto,
    /// Always: opening fails if the medium cannot.
    Always,
    /// Never.
    Never,
}

/// What is to execute the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring, or threads where the system refuses it.
    #[default]
    Auto,
    /// io_uring: opening fails where the system refuses it.
    IoUring,
    /// Threads.
    Threads,
}

/// Whether to lock the medium against other opens, of this process or another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locking {
    /// Alone; with `read_only`, beside others that read.
    #[default]
    Auto,
    /// Not at all: for who looks at what somebody else has open, and for file systems that have no locks.
    None,
}

/// How to open a file or block device. The default opens what is there for reading and writing.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Refuse writes, flushes and discards; the medium may be read-only itself.
    pub read_only: bool,
    /// Whether to lock the medium against other opens.
    pub locking: Locking,
    /// Whether to go around the page cache.
    pub direct: Direct,
    /// What is to execute the requests.
    pub engine: EngineChoice,
    /// Queues, each with its ring. 0: as many as the process has CPUs, at most 16.
    pub submission_queues: usize,
    /// Threads, if these execute the requests. 0: two a CPU, at least 8.
    pub threads: usize,
    /// Sector size in bytes: a power of two, and a multiple of what the medium needs. `None`: what
    /// the medium needs, at least 512.
    pub sector_bytes: Option<u32>,
    /// Fail if the medium has fewer bytes.
    pub min_bytes: u64,
    /// Make a file of so many bytes, all zero, if there is nothing at the path. A multiple of the
    /// sector size. What is there already keeps its size.
    pub create_bytes: Option<u64>,
    /// Limits of the queues; several devices may share a table.
    pub tunables: Arc<IoTunables>,
}
