//! The interface of a device.

use std::fmt;

use crate::error::Name;
use crate::request::{Completion, Request};
use crate::waiter::Waiter;

/// A store of bytes in sectors. Decorators are devices over devices.
///
/// Every implementation guarantees: a submitted request completes exactly once, whatever fails and
/// even if the device is closed meanwhile. A malformed request, or one that comes after
/// [`close`](Self::close), completes with an error.
pub trait Device: Send + Sync {
    /// Submits a request. Its callback receives the result. If the queue of its priority is full,
    /// the calling thread waits for a free slot. Inside a request's callback it does not wait: the
    /// new request takes the place of the one that has just completed.
    ///
    /// Outside callbacks it may run callbacks of other completed requests. The caller must hold no
    /// lock that any of them takes.
    fn submit(&self, request: Request);

    /// Submits several requests at once, which costs fewer system calls. Empties `requests`.
    fn submit_all(&self, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            self.submit(request);
        }
    }

    /// Submits `request` and blocks this thread until it has completed.
    ///
    /// # Panics
    /// Inside a callback of a request.
    fn run(&self, request: Request) -> Completion {
        let (request, pending) = request.allow_inline().pending();
        self.submit(request);
        pending.wait(self)
    }

    /// Returns the properties that it had when it was opened.
    fn info(&self) -> &DeviceInfo;

    /// Returns its current health.
    fn health(&self) -> Health;

    /// Returns its counters.
    fn stats(&self) -> DeviceStats;

    /// Lends the calling thread to the device until `waiter` is complete. A device with threads of
    /// its own may return at once.
    fn help(&self, waiter: &Waiter);

    /// Submits a read that sees what another host has written to the medium meanwhile. Without a
    /// page cache all reads do. This thread may execute it. On a file system without direct I/O it
    /// may miss the change.
    fn submit_uncached(&self, request: Request) {
        self.submit(request);
    }

    /// Lets flushes be tried again after one that failed. The caller vouches that it trusts no
    /// write of before that is not covered by an earlier successful flush: it writes all of them
    /// again. A device that executes each flush anyway does nothing.
    fn retry_flushes(&self) {}

    /// Begins writes that wait to be merged with later ones: the caller waits for all that it has
    /// submitted. A device that begins each write at once does nothing.
    fn unplug(&self) {}

    /// Refuses new requests, and returns once all accepted ones have completed and the file is
    /// closed. In a callback it only refuses, and the file is closed later. Idempotent.
    fn close(&self);
}

/// A device in front of another one that sees each request, and otherwise is that device, except in
/// what it overrides.
pub trait Decorator: Send + Sync {
    /// The device below.
    fn inner(&self) -> &dyn Device;

    /// Returns the request that goes to the device below instead of this one, or `None` if this one
    /// was taken: then the decorator finishes it.
    fn decorate(&self, request: Request) -> Option<Request>;

    /// [`Device::info`]; of the device below, unless overridden.
    fn own_info(&self) -> &DeviceInfo {
        self.inner().info()
    }

    /// [`Device::stats`]; of the device below, unless overridden.
    fn own_stats(&self) -> DeviceStats {
        self.inner().stats()
    }

    /// [`Device::retry_flushes`]; of the device below, unless overridden.
    fn own_retry_flushes(&self) {
        self.inner().retry_flushes();
    }

    /// [`Device::unplug`]; of the device below, unless overridden.
    fn own_unplug(&self) {
        self.inner().unplug();
    }

    /// [`Device::close`]; closes the device below, unless overridden.
    fn own_close(&self) {
        self.inner().close();
    }
}

impl<D: Decorator> Device for D {
    fn submit(&self, request: Request) {
        if let Some(request) = self.decorate(request) {
            self.inner().submit(request);
        }
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        // This collects into the same allocation.
        let taken = std::mem::take(requests).into_iter();
        *requests = taken.filter_map(|request| self.decorate(request)).collect();
        self.inner().submit_all(requests);
    }

    fn info(&self) -> &DeviceInfo {
        self.own_info()
    }

    fn health(&self) -> Health {
        self.inner().health()
    }

    fn stats(&self) -> DeviceStats {
        self.own_stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.inner().help(waiter);
    }

    fn submit_uncached(&self, request: Request) {
        if let Some(request) = self.decorate(request) {
            self.inner().submit_uncached(request);
        }
    }

    fn retry_flushes(&self) {
        self.own_retry_flushes();
    }

    fn unplug(&self) {
        self.own_unplug();
    }

    fn close(&self) {
        self.own_close();
    }
}

/// The properties of a device when it was opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its path, or a name given by its creator.
    pub name: Name,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Sector size in bytes. Offsets and lengths of requests are multiples of it.
    pub sector_bytes: u32,
    /// Bytes that the medium rewrites as a whole, a multiple of `sector_bytes`. A write of such a
    /// *physical sector* is atomic or detectably torn. A torn write may damage all sectors of the
    /// physical sectors that it touches, also those that it does not write.
    pub physical_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// I/O bypasses the page cache.
    pub direct: bool,
    /// Why I/O goes through the page cache. `None` if it does not, or if there is none.
    pub buffered: Option<Buffered>,
    /// It is a block device, not a file or memory.
    pub block_device: bool,
    /// The engine that executes its requests, with the reason.
    pub engine: Engine,
    /// What it means that each address is written once. `None` for a device that takes rewrites.
    pub append_only: Option<AppendOnly>,
}

/// Each address of the device is written at most once, except in two small areas: its first
/// `mutable_bytes`, and its last 256 KiB.
///
/// A discard says that nothing will ever be read from a range again. It may be repeated, and may
/// cover addresses that were never written. A write may be repeated with the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendOnly {
    /// Bytes at its start that take rewrites as those of any device; at least 1 MiB.
    pub mutable_bytes: u64,
    /// When the device was opened, no address from here on had been written, whatever became of it:
    /// also not by a write that a crash has undone.
    pub next_unused: u64,
}

/// The sectors that content on a file or block device needs at least by default, in bytes. Disks
/// with smaller physical sectors are rare, and not all disks and file systems tell theirs.
const DEFAULT_SECTOR_BYTES: u32 = 4096;

impl DeviceInfo {
    /// The sector size for new content, in bytes: no two sectors share a physical sector.
    pub fn default_sector_bytes(&self) -> u32 {
        match self.engine {
            // Its physical sector is known.
            Engine::Memory | Engine::ObjectStore => self.physical_bytes,
            _ => self.physical_bytes.max(DEFAULT_SECTOR_BYTES),
        }
    }

    /// The smallest sector that the medium itself takes, in bytes. Smaller ones need the page
    /// cache.
    pub fn medium_sector_bytes(&self) -> u32 {
        match self.buffered {
            Some(Buffered::SmallSectors { medium_bytes }) => medium_bytes,
            _ => self.sector_bytes,
        }
    }
}

/// Why I/O goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Buffered {
    /// The options say so.
    Requested,
    /// The file system has no direct I/O for the file.
    Unsupported,
    /// The sectors are smaller than those of the medium. The kernel reads and rewrites whole ones.
    SmallSectors {
        /// Sector size that the medium needs, in bytes.
        medium_bytes: u32,
    },
}

impl fmt::Display for Buffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("as requested"),
            Self::Unsupported => f.write_str("the file system has no direct I/O for the file"),
            Self::SmallSectors { medium_bytes } => {
                write!(f, "its sectors are smaller than those of the medium, {medium_bytes} bytes")
            }
        }
    }
}

/// The engine that executes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring.
    IoUring,
    /// A pool of threads that make blocking system calls.
    Threads {
        /// Why not io_uring.
        why: String,
    },
    /// Memory of this process.
    Memory,
    /// Requests to an object store.
    ObjectStore,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring => f.write_str("io_uring"),
            Self::Threads { why } => write!(f, "threads ({why})"),
            Self::Memory => f.write_str("memory"),
            Self::ObjectStore => f.write_str("object store"),
        }
    }
}

/// The health of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// No request has failed because of the device.
    Healthy,
    /// Some requests have failed.
    Degraded {
        /// Number of requests that failed since it was opened.
        errors: u64,
    },
    /// The device is gone. No request will succeed until it is opened again.
    Gone,
}

/// The counters and the engine of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// The engine that executes requests, with the reason.
    pub engine: Engine,
    /// Name, label (empty if the counter has none) and value of each counter.
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// Since when the device has not answered, if it comes back by itself.
    pub away: Option<Away>,
    /// What an object store keeps.
    pub stored: Option<Stored>,
}

/// Data objects of an object store. What waits for its deletion is not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Their number.
    pub objects: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Bytes of them that are believed to be live.
    pub live_bytes: u64,
}

/// A device that does not answer. Its requests wait until it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Milliseconds since its last answer.
    pub since_ms: u64,
    /// The newest error.
    pub error: String,
}

impl DeviceStats {
    /// Creates the statistics of a custom device.
    pub fn new(engine: Engine, counters: Vec<(&'static str, &'static str, u64)>) -> Self {
        Self { engine, counters, away: None, stored: None }
    }

    /// Returns the statistics with what is known of a device that does not answer.
    #[must_use]
    pub fn with_away(self, away: Option<Away>) -> Self {
        Self { away, ..self }
    }

    /// Returns the statistics with what an object store keeps.
    #[must_use]
    pub fn with_stored(self, stored: Stored) -> Self {
        Self { stored: Some(stored), ..self }
    }
}
