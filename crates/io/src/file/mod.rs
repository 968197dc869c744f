//! Files and block devices.
//!
//! Opening checks what can be checked ([`OpenError`]) and starts an engine ([`crate::engine`]).
//!
//! # Invariants
//!
//! - Size, sector size and direct I/O are fixed at the open. Once a shrunken or lost medium is
//!   noticed ([`ErrorKind::Gone`]), no request succeeds until it is opened again.
//! - A successful flush was executed neither beside nor after a failed one (`flush`). It is an
//!   `fdatasync`: of the dirty pages of the page cache, if I/O is buffered, then of the volatile
//!   cache of the medium.
//! - Dropping the device closes it. [`FileDevice::close`](Device::close) closes the file even while
//!   the device is referenced.
//! - No other user that locks too has the medium open (`lock`), from the open until the close, or
//!   until the owner of a [taken lock](FileDevice::take_lock) drops it.
//! - It never makes a file larger.
//!
//! # Locking
//!
//! `io-flush`, see `flush`. `io-file-lock`, while the file's lock is taken over or dropped.
//! `io-file-lock-pause`, see `lock`.

mod discard;
mod error;
mod flush;
mod lock;
mod open;
mod options;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};

pub use error::OpenError;
use flush::FlushQueue;
pub use lock::FileLock;
use open::OpenedFile;
pub(crate) use open::{close_early, size_bytes_of};
pub use options::{Direct, EngineChoice, Locking, OpenOptions, SectorProbe};
use rustix::io::Errno;

use crate::completion::in_callback;
use crate::device::{Buffered, Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::engine::{self, FileEngine, Setup};
use crate::error::{Error, ErrorKind};
use crate::request::{Op, Request};
use crate::waiter::Waiter;

/// A file or block device. See [the crate documentation](crate) for an example.
pub struct FileDevice {
    engine: Arc<FileEngine>,
    flushes: Arc<FlushQueue>,
    // A duplicate of the engine's file, to query its size.
    file: OwnedFd,
    // The file for reads around the page cache, if only its sectors are too small for direct I/O.
    uncached: Option<Arc<OwnedFd>>,
    // Discards cover multiples of it.
    discard_bytes: u64,
    // The file was found to be shorter, here.
    shrunk: AtomicBool,
    // Whether it was closed. Set before its file is.
    closed: AtomicBool,
    // Requests that failed here.
    errors: AtomicU64,
    // `None` once the device is closed.
    lock: Mutex<Option<FileLock>>,
}

/// The error of requests to a device that is known to be gone.
const GONE: &str = "the device is gone, or shorter than when it was opened; open it again to use \
                    the rest";

impl FileDevice {
    /// Opens the file or block device at `path`, locked against others ([`OpenOptions::locking`])
    /// until it is closed or dropped.
    ///
    /// # Errors
    /// [`OpenError`] names the path, the cause and the remedy.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let mut opened = OpenedFile::open(path, options)?;
        let lock = opened.lock.take();
        let uncached = opened.uncached.take().map(Arc::new);
        let discard_bytes = opened.discard_bytes.into();
        match Self::start(path, options, opened) {
            Ok((engine, file)) => {
                let weak: Weak<FileEngine> = Arc::downgrade(&engine);
                let flushes = FlushQueue::new(weak, &engine.info().name, uncached.clone());
                let (shrunk, errors) = (AtomicBool::new(false), AtomicU64::new(0));
                let closed = AtomicBool::new(false);
                let lock = Mutex::named("io-file-lock", lock);
                Ok(Self {
                    engine,
                    flushes,
                    file,
                    uncached,
                    discard_bytes,
                    shrunk,
                    closed,
                    errors,
                    lock,
                })
            }
            Err(error) => {
                lock.inspect(|lock| lock.discard_new(path));
                Err(error)
            }
        }
    }

    /// Starts the engine of an opened file. Returns it with a duplicate of its file.
    fn start(
        path: &Path,
        options: &OpenOptions,
        opened: OpenedFile,
    ) -> Result<(Arc<FileEngine>, OwnedFd), OpenError> {
        let info = DeviceInfo {
            name: path.to_string_lossy().into(),
            size_bytes: opened.size_bytes,
            sector_bytes: opened.sector_bytes,
            physical_bytes: opened.physical_bytes,
            read_only: opened.read_only,
            direct: opened.buffered.is_none(),
            buffered: opened.buffered,
            block_device: opened.block_device,
            // Set by the engine later.
            engine: Engine::IoUring,
            append_only: None,
        };
        let setup = Setup {
            choice: options.engine,
            queues: options.submission_queues,
            threads: options.threads,
            tunables: Arc::clone(&options.tunables),
        };
        let file = opened.fd.try_clone().map_err(|source| {
            let (path, doing) = (path.to_owned(), "duplicate the file descriptor");
            OpenError::System { path, doing, source }
        })?;
        let engine = engine::start(opened.fd, info, &setup).map_err(|source| {
            let path = path.to_owned();
            match options.engine {
                EngineChoice::IoUring => OpenError::EngineRefused { path, why: source.to_string() },
                _ => OpenError::System { path, doing: "start the engine", source },
            }
        })?;
        Ok((Arc::new(engine), file))
    }

    /// Takes over the lock of the file, to release it at another time than the close. Returns
    /// `None` if the device has no lock (any more).
    pub fn take_lock(&self) -> Option<FileLock> {
        self.lock.lock().take()
    }

    /// Returns whether the request needs a check before the engine gets it.
    #[inline]
    fn needs_check(&self, request: &Request) -> bool {
        let info = self.engine.info();
        match request.op() {
            Op::Read => false,
            // Elsewhere, and inside callbacks, the engine executes it.
            Op::Discard => {
                !self.can_discard(request)
                    || info.block_device && request.is_inline_allowed() && !in_callback()
            }
            Op::Write => request.end() == Some(info.size_bytes),
            // On a read-only device the engine refuses it.
            Op::Flush => !info.read_only,
        }
    }

    /// Whether the medium could discard the range of a request: it discards whole sectors only.
    fn can_discard(&self, request: &Request) -> bool {
        let sector = u64::from(self.engine.info().sector_bytes);
        let is_whole = |unit| [request.offset(), request.len()].iter().all(|it| it % unit == 0);
        let small = matches!(self.engine.info().buffered, Some(Buffered::SmallSectors { .. }));
        // The engine refuses an invalid request.
        !small && (is_whole(self.discard_bytes) || !is_whole(sector))
    }

    /// Reads around the page cache, if the request is aligned for that, in this thread.
    fn read_uncached(&self, file: &OwnedFd, mut request: Request) {
        let info = self.engine.info();
        let unit = u64::from(info.medium_sector_bytes());
        let (offset, len) = (request.offset(), request.len());
        let inside = request.end().is_some_and(|end| end <= info.size_bytes);
        let closed = self.closed.load(Ordering::SeqCst);
        let bytes = request.bytes_mut();
        let fits = |bytes: &&mut [u8]| {
            let address = bytes.as_ptr().addr() as u64;
            !bytes.is_empty() && [offset, len, address].iter().all(|it| it % unit == 0)
        };
        let Some(mut bytes) = bytes.filter(fits).filter(|_| inside && !closed) else {
            return self.engine.submit(request);
        };
        let mut at = offset;
        let mut result = Ok(());
        while !bytes.is_empty() && result.is_ok() {
            match rustix::io::pread(file, &mut *bytes, at) {
                Ok(0) => result = Err("the device ends before".to_owned()),
                Ok(read) => {
                    at += read as u64;
                    bytes = &mut bytes[read..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => result = Err(errno.to_string()),
            }
        }
        let result = result.map_err(|text| {
            self.errors.fetch_add(1, Ordering::Relaxed);
            Error::new(ErrorKind::Device, Op::Read, &info.name, (offset, len), &text)
        });
        request.finish(result);
    }

    /// Submits a flush, a discard, or a request that may find the medium shorter.
    ///
    /// A block device refuses access beyond its new end. A regular file refuses only reads: a write
    /// there makes it grow again, and the lost part then reads as zero. So sizes are compared: by
    /// the engine, when a transfer is short or fails, and after each flush (a flush fails while the
    /// file is shorter); and here, before a write of the last sector, which alone restores the
    /// file's old size.
    ///
    /// So a truncated file is noticed by the first read beyond its end, the next flush, or the next
    /// write of the last sector. Until then writes beyond the end succeed, and reads there may
    /// return zeros. A check at every write would cost a system call. Not noticed: a truncation
    /// during a write of the last sector, and one after which another process restores the size.
    fn submit_checked(&self, request: Request) {
        match request.op() {
            Op::Flush => return self.flushes.submit(request),
            Op::Discard => return self.submit_discard(request),
            Op::Read | Op::Write => {}
        }
        // If the size is unknown, the write itself shows the problem.
        let size_bytes = self.engine.info().size_bytes;
        let shrunk = size_bytes_of(&self.file).is_ok_and(|now| now < size_bytes);
        // A closed device has no file any more, and the engine refuses the request.
        if shrunk && !self.closed.load(Ordering::SeqCst) {
            self.shrunk.store(true, Ordering::Relaxed);
            return self.refuse_gone(request);
        }
        self.engine.submit(request);
    }

    /// Returns whether it is known that no request can succeed.
    #[inline]
    fn is_gone(&self) -> bool {
        self.shrunk.load(Ordering::Relaxed) || self.engine.health() == Health::Gone
    }

    fn submit_discard(&self, request: Request) {
        let info = self.engine.info();
        if !self.can_discard(&request) {
            // A discard may do nothing.
            return request.finish(Ok(()));
        }
        // The engine refuses the others.
        let accepted = !self.closed.load(Ordering::SeqCst) && discard::is_valid(info, &request);
        match accepted.then(|| discard::block_device(&self.file, &request)) {
            None | Some(Ok(false)) => self.engine.submit(request),
            Some(Ok(true)) => request.finish(Ok(())),
            Some(Err(errno)) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                let (range, text) = ((request.offset(), request.len()), errno.to_string());
                let error = Error::new(ErrorKind::Device, Op::Discard, &info.name, range, &text);
                request.finish(Err(error));
            }
        }
    }

    #[cold]
    fn refuse_gone(&self, request: Request) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let range = (request.offset(), request.len());
        let name = &self.engine.info().name;
        let error = Error::new(ErrorKind::Gone, request.op(), name, range, GONE);
        request.finish(Err(error));
    }
}

impl Device for FileDevice {
    fn submit(&self, request: Request) {
        if self.is_gone() {
            self.refuse_gone(request);
        } else if self.needs_check(&request) {
            self.submit_checked(request);
        } else {
            self.engine.submit(request);
        }
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        if self.is_gone() {
            return requests.drain(..).for_each(|request| self.refuse_gone(request));
        }
        let checked: Vec<_> = requests.extract_if(.., |one| self.needs_check(one)).collect();
        self.engine.submit_all(requests);
        checked.into_iter().for_each(|request| self.submit_checked(request));
    }

    fn info(&self) -> &DeviceInfo {
        self.engine.info()
    }

    fn health(&self) -> Health {
        let here = self.errors.load(Ordering::Relaxed) + self.flushes.refused();
        match self.engine.health() {
            _ if self.shrunk.load(Ordering::Relaxed) => Health::Gone,
            Health::Healthy if here > 0 => Health::Degraded { errors: here },
            Health::Degraded { errors } => Health::Degraded { errors: errors + here },
            health => health,
        }
    }

    fn stats(&self) -> DeviceStats {
        self.engine.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.engine.help(waiter);
    }

    fn submit_uncached(&self, request: Request) {
        match &self.uncached {
            Some(file) if request.op() == Op::Read && !self.is_gone() => {
                return self.read_uncached(file, request);
            }
            None if !self.engine.info().direct => {
                // If the kernel keeps the pages, a later look may still see what changes.
                let _ = open::forget_cached(&self.file, request.offset(), request.len());
            }
            _ => {}
        }
        self.submit(request);
    }

    fn retry_flushes(&self) {
        self.flushes.retry();
    }

    fn close(&self) {
        self.flushes.close();
        self.engine.close();
        self.closed.store(true, Ordering::SeqCst);
        if !in_callback() {
            close_early(&self.file);
            self.uncached.as_deref().into_iter().for_each(close_early);
        }
        drop(self.take_lock());
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice").field("info", self.info()).finish_non_exhaustive()
    }
}
