//! A file system behind the seam: each request becomes one operation of `forebay-fs`, each error a number of the system.
//!
//! # How a request goes
//!
//! 1. On the thread that took it, under `without_waiting`. What is in memory is answered here.
//! 2. What would have to wait has changed nothing. Reads go on with their I/O ([`FileSystem::read_async`]); everything else is
//!    copied out of the transport's buffer and tried again by a thread of the file system, which may wait. Of data of writes so much
//!    waits there at a time; what comes then waits where it was taken, and with it the kernel.
//! 3. A seek for data or holes in a file that is open for writing waits until the kernel has written what
//!    it holds of the file, on the thread that is there for that. So does, under the kernel's cache, a
//!    rename or a link of such a file.
//! 4. `fsync` always waits, and so does a write that has to be durable (`O_DSYNC` and its like). It is executed where it was taken while at most half of the transport's threads do that, since handing it to
//!    another thread costs a good part of what it takes; else it goes to such a thread at once.
//!
//! # Locking
//!
//! `mount-failure` (the last failure, as text), `mount-shrinker` (sleep of the thread that has the kernel
//! forget), `mount-write-back` (what waits for the kernel to write) and `mount-writers` (files open for
//! writing); nothing is done under them.
//!
//! # What it does not do
//!
//! It checks no permissions: the kernel does, from the attributes it is given. It decides nothing about files.

mod blocking_limit;
mod client;
mod convert;
mod handles;
mod rename_order;
mod serve;
mod shrinker;
mod write_back;
mod write_buffers;

use std::path::Path;

use forebay_base::sync::Arc;
use forebay_fs::{Error, ErrorKind, FileSystem};

use self::blocking_limit::BlockingLimit;
use self::handles::Writers;
use self::shrinker::Shrinker;
use self::write_back::WriteBack;
use self::write_buffers::WriteBuffers;
use crate::counters::{MountCounters, MountMetrics, Op};
use crate::error::MountError;
use crate::mount::{self, Mount};
use crate::options::MountOptions;
use crate::transport::Reply;

/// Mounts `fs` at `at`, an existing directory.
///
/// The file system must outlive the mount in the sense that it is closed after the mount has ended: close it once
/// [`Mount::wait`] has returned.
///
/// # Errors
///
/// As [`available`](crate::available); and if `at` is no directory, is mounted on already, or the system refuses.
pub fn mount(fs: Arc<FileSystem>, at: &Path, options: &MountOptions) -> Result<Mount, MountError> {
    let kernel_cache = options.kernel_cache;
    let blocking_limit = BlockingLimit::for_threads(options.clamped().threads);
    let write_buffers = WriteBuffers::default();
    let shrinker = Shrinker::default();
    let (writers, write_back) = (Writers::default(), WriteBack::default());
    let server = |metrics| Adapter {
        fs,
        kernel_cache,
        metrics,
        shrinker,
        blocking_limit,
        write_buffers,
        writers,
        write_back,
    };
    mount::serve(server, at, options)
}

/// Serves a file system.
struct Adapter {
    fs: Arc<FileSystem>,
    kernel_cache: bool,
    metrics: Arc<MountMetrics>,
    shrinker: Shrinker,
    blocking_limit: BlockingLimit,
    write_buffers: WriteBuffers,
    writers: Writers,
    write_back: WriteBack,
}

impl Adapter {
    /// Does `job`, which will wait: here, if enough other threads take requests meanwhile.
    fn run_blocking(
        &self,
        op: Op,
        job: impl FnOnce(&Arc<FileSystem>, &MountMetrics) + Send + 'static,
    ) {
        match self.blocking_limit.try_acquire() {
            Some(_permit) => job(&self.fs, &self.metrics),
            None => self.defer(op, job),
        }
    }

    /// Has a thread that may wait do `job`.
    fn defer(&self, op: Op, job: impl FnOnce(&Arc<FileSystem>, &MountMetrics) + Send + 'static) {
        self.metrics.counters.add(MountCounters::WOULD_BLOCK, op as usize, 1);
        let metrics = self.metrics.clone();
        self.fs.spawn(Box::new(move |fs| job(fs, &metrics)));
    }
}

/// Whether an operation would have had to wait.
fn would_block<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Answers with what an operation returned.
fn finish<T>(metrics: &MountMetrics, reply: impl Reply<T>, result: Result<T, Error>) {
    match result {
        Ok(value) => reply.ok(value),
        Err(error) => reply.error(errno(metrics, &error)),
    }
}

/// The system's number for an error. Those that a user cannot have caused are kept as text as well.
fn errno(metrics: &MountMetrics, error: &Error) -> i32 {
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
        // On a thread that may wait nothing refuses to; should it come to that, the caller can try again.
        ErrorKind::WouldBlock => libc::EAGAIN,
        _ => libc::EIO,
    }
}
