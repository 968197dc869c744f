//! Files and block devices.
//!
//! Opening checks all that can be checked ([`OpenError`]) and starts an engine ([`crate::engine`]),
//! which does the rest.
//!
//! # Invariants
//!
//! - Size, sector size and whether I/O is direct are settled when a device is opened. A medium that
//!   shrinks or vanishes later gives errors ([`ErrorKind::Gone`]), and once that has been noticed
//!   nothing succeeds until it is opened again.
//! - A flush that succeeds was executed neither beside nor after one that failed (`flush`).
//! - Dropping the device closes it.
//! - Nobody else has opened the medium meanwhile, of those who lock it as well (`lock`): from the opening until
//!   the device is closed, or who has [taken the lock over](FileDevice::take_lock) lets go of it.
//!
//! # A medium that shrinks
//!
//! A block device refuses what is behind its new end. A regular file refuses reads only: a write
//! there makes it grow again, and what lies between, which is lost, then reads as zero. So sizes are
//! compared
//!
//! - when a transfer is short or fails, and after each flush, by the engine: a flush does not
//!   succeed while the file is shorter than it was;
//! - before a write of the last sector, which alone gives a file its old size back, here.
//!
//! Hence a file that was cut is noticed by the first read that reaches behind its end, by the
//! next flush, or by the next write of the last sector, whichever comes first. Until then writes behind the
//! end succeed, and reads between its old and new ends may return zeros: comparing at every write
//! would cost it a system call. Two things are not noticed: a file that is cut while a write of its
//! last sector is on its way, and one that somebody else cuts and makes as large as it was.
//!
//! # Locking
//!
//! `io-flush`, see `flush`. `io-file-lock`: taking over or letting go of the lock of the file.
//!
//! # What it does not do
//!
//! It makes no file larger: what is behind the size it had does not exist.

mod error;
mod flush;
mod lock;
mod medium;
mod options;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};

pub use error::OpenError;
use flush::Flushes;
pub use lock::FileLock;
use medium::Medium;
pub(crate) use medium::size_bytes_of;
pub use options::{Direct, EngineChoice, Locking, OpenOptions};

use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::engine::{self, FileEngine, Setup};
use crate::error::{Error, ErrorKind};
use crate::request::{Op, Request};
use crate::waiter::Waiter;

/// A file or block device. [The crate's head](crate) has an example.
pub struct FileDevice {
    engine: Arc<FileEngine>,
    flushes: Arc<Flushes>,
    // The engine's, once more, to ask for its size.
    file: OwnedFd,
    // It was found shorter than it was, here.
    cut: AtomicBool,
    // Requests that failed here.
    errors: AtomicU64,
    // Until the device is closed.
    lock: Mutex<Option<FileLock>>,
}

/// What is told to requests of a device that is known to be gone.
const GONE: &str = "the device has vanished, or become shorter than when it was opened; open it \
                    again to go on with what is left of it";

impl FileDevice {
    /// Opens the file or block device at `path`, locked against others ([`OpenOptions::locking`]) until it is closed or
    /// dropped.
    ///
    /// # Errors
    /// [`OpenError`] says which, what is wrong and the way out.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let mut medium = Medium::open(path, options)?;
        let lock = Mutex::named("io-file-lock", medium.lock.take());
        let info = DeviceInfo {
            name: path.to_string_lossy().into(),
            size_bytes: medium.size_bytes,
            sector_bytes: medium.sector_bytes,
            read_only: medium.read_only,
            direct: medium.direct,
            // Until the engine says what came of it.
            engine: Engine::IoUring,
        };
        let setup = Setup {
            choice: options.engine,
            queues: options.submission_queues,
            threads: options.threads,
            tunables: Arc::clone(&options.tunables),
        };
        let file = medium.fd.try_clone().map_err(|source| {
            let (path, doing) = (path.to_owned(), "open it once more for its size");
            OpenError::System { path, doing, source }
        })?;
        let engine = engine::start(medium.fd, info, &setup).map_err(|source| {
            let path = path.to_owned();
            match options.engine {
                EngineChoice::IoUring => OpenError::EngineRefused { path, why: source.to_string() },
                _ => OpenError::System { path, doing: "start the engine", source },
            }
        })?;
        let engine = Arc::new(engine);
        let weak: Weak<FileEngine> = Arc::downgrade(&engine);
        let flushes = Flushes::new(weak, &engine.info().name);
        let (cut, errors) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { engine, flushes, file, cut, errors, lock })
    }

    /// Hands over the lock of the file, for who lets go of it at another time than the device is closed. `None` if the
    /// device has none, or not any more.
    pub fn take_lock(&self) -> Option<FileLock> {
        self.lock.lock().take()
    }

    /// Whether the engine is not to have the request just so.
    #[inline]
    fn is_special(&self, request: &Request) -> bool {
        let info = self.engine.info();
        match request.op() {
            Op::Read | Op::Discard => false,
            Op::Write => request.end() == Some(info.size_bytes),
            // If not, the engine refuses it.
            Op::Flush => !info.read_only,
        }
    }

    fn submit_special(&self, request: Request) {
        if request.op() == Op::Flush {
            return self.flushes.submit(request);
        }
        // If nobody knows the size, the write will show.
        let size_bytes = self.engine.info().size_bytes;
        if size_bytes_of(&self.file).is_ok_and(|now| now < size_bytes) {
            self.cut.store(true, Ordering::Relaxed);
            return self.refuse_gone(request);
        }
        self.engine.submit(request);
    }

    /// Whether it is known that nothing can succeed any more.
    #[inline]
    fn is_gone(&self) -> bool {
        self.cut.load(Ordering::Relaxed) || self.engine.health() == Health::Gone
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
        } else if self.is_special(&request) {
            self.submit_special(request);
        } else {
            self.engine.submit(request);
        }
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        if self.is_gone() {
            return requests.drain(..).for_each(|request| self.refuse_gone(request));
        }
        let special: Vec<_> = requests.extract_if(.., |one| self.is_special(one)).collect();
        self.engine.submit_all(requests);
        special.into_iter().for_each(|request| self.submit_special(request));
    }

    fn info(&self) -> &DeviceInfo {
        self.engine.info()
    }

    fn health(&self) -> Health {
        let here = self.errors.load(Ordering::Relaxed) + self.flushes.refused();
        match self.engine.health() {
            _ if self.cut.load(Ordering::Relaxed) => Health::Gone,
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

    fn close(&self) {
        self.flushes.close();
        self.engine.close();
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
