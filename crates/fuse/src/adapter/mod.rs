//! Serves a file system of `forebay-fs`: maps requests to operations and errors to `errno` numbers.
//!
//! # Path of a request
//!
//! 1. The receiving thread tries the operation in non-blocking mode. Everything in memory is
//!    answered here.
//! 2. An operation that would block has changed nothing. A read continues with its I/O
//!    ([`FileSystem::read_async`]). Other requests are copied out of the receive buffer and
//!    repeated on a worker thread of the file system. The data of waiting writes is bounded. Beyond
//!    that, a write blocks the receiving thread, and so the kernel.
//! 3. `SEEK_DATA` and `SEEK_HOLE` on a file that is open for writing first flush its dirty pages
//!    from the kernel, on a dedicated thread. With the kernel cache, so do renames and links of
//!    such a file.
//! 4. `fsync` and synchronous writes (`O_DSYNC`, `O_SYNC`) always block. They run on the receiving
//!    thread while at most half of those threads block, because a hand-over is expensive. Otherwise
//!    they run on a worker thread.
//!
//! # Locking
//!
//! `mount-failure`, `mount-shrinker`, `mount-write-back` and `mount-writers` are leaf locks.
//!
//! # Limits
//!
//! It checks no permissions: the kernel does, with the attributes it gets.

mod blocking_limit;
pub(crate) mod client;
pub(crate) mod convert;
mod handles;
mod rename_order;
pub(crate) mod serve;
mod shrinker;
mod write_back;
mod write_buffers;

use std::path::Path;

use forebay_base::sync::Arc;
use forebay_base::waits;
use forebay_fs::{Error, ErrorKind, FileSystem};

use self::blocking_limit::BlockingLimit;
use self::handles::Writers;
use self::shrinker::Shrinker;
use self::write_back::WriteBack;
use self::write_buffers::WriteBuffers;
use crate::counters::{MountCounters, MountMetrics, Op};
use crate::error::MountError;
use crate::mount::{self, DeviceNumber, Mount};
use crate::options::MountOptions;
use crate::transport::{Caller, Reply};

/// Mounts `fs` at `at`, an existing directory.
///
/// Close the file system only after the mount has ended, when [`Mount::wait`] has returned.
///
/// # Errors
///
/// As [`available`](crate::available), or if `at` is not a directory or is already a mount point,
/// or a system call fails.
pub fn mount(fs: FileSystem, at: &Path, options: &MountOptions) -> Result<Mount, MountError> {
    let kernel_cache = options.kernel_cache;
    let clamped = options.clamped();
    let blocking_limit = BlockingLimit::for_threads(clamped.threads);
    let write_buffers = WriteBuffers::new(clamped.max_waiting_bytes, clamped.max_suspended_bytes);
    let shrinker = Shrinker::default();
    let (writers, write_back) = (Writers::default(), WriteBack::default());
    let server = |metrics: Arc<MountMetrics>, device| {
        metrics.log_slow(&fs.pool().operation_tunables(), &options.fs_name);
        Adapter {
            non_blocking: fs.non_blocking(),
            fs,
            kernel_cache,
            device,
            metrics,
            shrinker,
            blocking_limit,
            write_buffers,
            writers,
            write_back,
        }
    };
    mount::serve(server, at, options)
}

/// The server for a file system.
///
/// # While the pool is suspended
///
/// Changes and fsyncs of a dataset with `failmode=wait` wait on worker threads until the pool is
/// cleared, and so does what needs a block that is on no device that answers. A receiving thread
/// that blocks goes on when the pool is suspended, so that reads go on: it hands its write over.
/// The data of such writes has a larger bound, and only beyond that does a receiving thread wait. A
/// request of a killed process is answered with `EINTR`.
struct Adapter {
    fs: FileSystem,
    /// The same file system in non-blocking mode, for the first attempt of an operation.
    non_blocking: FileSystem,
    kernel_cache: bool,
    /// Of the mount.
    device: DeviceNumber,
    metrics: Arc<MountMetrics>,
    shrinker: Shrinker,
    blocking_limit: BlockingLimit,
    write_buffers: WriteBuffers,
    writers: Writers,
    write_back: WriteBack,
}

impl Adapter {
    /// Runs a job that blocks: on this thread if enough others receive requests, otherwise on a
    /// worker.
    fn run_blocking(
        &self,
        caller: Caller,
        op: Op,
        job: impl FnOnce(&FileSystem, &MountMetrics) + Send + 'static,
    ) {
        match self.blocking_limit.try_acquire() {
            Some(_permit) => job(&self.fs.for_process(caller.pid), &self.metrics),
            None => self.defer(caller.pid, op, job),
        }
    }

    /// Runs `job` on a worker thread. `pid` is the process that a change is made for, else 0.
    fn defer(
        &self,
        pid: u32,
        op: Op,
        job: impl FnOnce(&FileSystem, &MountMetrics) + Send + 'static,
    ) {
        self.metrics.counters.add(MountCounters::WOULD_BLOCK, op as usize, 1);
        let (metrics, operation) = (self.metrics.clone(), waits::carry());
        self.fs.for_process(pid).spawn(Box::new(move |fs| {
            operation.resume();
            job(fs, &metrics);
        }));
    }
}

/// Whether an operation would have blocked.
pub(crate) fn would_block<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Whether an operation was refused because the pool is suspended.
fn is_suspended<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Suspended)
}

/// Replies with the result of an operation.
fn finish<T>(metrics: &MountMetrics, reply: impl Reply<T>, result: Result<T, Error>) {
    match result {
        Ok(value) => reply.ok(value),
        Err(error) => reply.error(errno(metrics, &error)),
    }
}

/// Maps an error to its `errno` number. Counts and keeps errors that the caller cannot have caused.
pub(crate) fn errno(metrics: &MountMetrics, error: &Error) -> i32 {
    let kind = error.kind();
    if matches!(
        kind,
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Suspended | ErrorKind::NoMemory
    ) {
        metrics.failed(error);
    }
    match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::NotADirectory => libc::ENOTDIR,
        ErrorKind::IsADirectory => libc::EISDIR,
        ErrorKind::NotEmpty => libc::ENOTEMPTY,
        ErrorKind::NameTooLong => libc::ENAMETOOLONG,
        ErrorKind::TooManyLinks => libc::EMLINK,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::NoMemory => libc::ENOMEM,
        ErrorKind::NoAttribute => libc::ENODATA,
        ErrorKind::Range => libc::ERANGE,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::FileTooLarge => libc::EFBIG,
        ErrorKind::NotSupported => libc::EOPNOTSUPP,
        ErrorKind::NotPermitted => libc::EPERM,
        ErrorKind::NoSuchOffset => libc::ENXIO,
        ErrorKind::TooBig => libc::E2BIG,
        ErrorKind::Closed => libc::ENODEV,
        ErrorKind::Interrupted => libc::EINTR,
        // Does not happen on threads that may block. The caller can retry.
        ErrorKind::WouldBlock => libc::EAGAIN,
        _ => libc::EIO,
    }
}
