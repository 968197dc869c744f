//! What a device is.

use std::fmt;

use crate::error::Name;
use crate::request::{Completion, Request};
use crate::waiter::Waiter;

/// Something that stores bytes in sectors. Decorators are devices over devices.
///
/// Whoever implements it promises: every request that is submitted ends exactly once, whatever
/// fails and whoever closes; a request that is not well formed, or comes after
/// [`close`](Self::close), ends with an error.
pub trait Device: Send + Sync {
    /// Takes a request. Its callback tells how it ended. When the queue of its priority is
    /// full, the calling thread waits for room, unless it is in a request's callback: what a
    /// callback submits takes the place of what has just ended.
    ///
    /// Outside callbacks it may run callbacks of other requests that have ended meanwhile: hold no lock
    /// that any of them takes.
    fn submit(&self, request: Request);

    /// Takes several requests at once, which costs fewer system calls. Empties `requests`.
    fn submit_all(&self, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            self.submit(request);
        }
    }

    /// Submits `request` and waits for its end on this thread.
    ///
    /// # Panics
    /// Inside a callback of a request.
    fn run(&self, request: Request) -> Completion {
        let (request, pending) = request.allow_inline().pending();
        self.submit(request);
        pending.wait(self)
    }

    /// What is known of it since it was opened.
    fn info(&self) -> &DeviceInfo;

    /// How it is now.
    fn health(&self) -> Health;

    /// What it has counted.
    fn stats(&self) -> DeviceStats;

    /// Lends the calling thread to the device until `waiter` is settled; a device that has
    /// threads of its own may return at once.
    fn help(&self, waiter: &Waiter);

    /// Refuses what comes from now on, and returns once all that was accepted has ended.
    /// Idempotent.
    fn close(&self);
}

/// What is known of a device since it was opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its path, or what its maker called it.
    pub name: Name,
    /// Bytes.
    pub size_bytes: u64,
    /// Offsets and lengths of requests are multiples of this many bytes; a write of one sector
    /// is atomic or detectably torn.
    pub sector_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it goes around the page cache.
    pub direct: bool,
    /// What executes its requests, and why that.
    pub engine: Engine,
}

/// What executes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring.
    IoUring,
    /// A pool of threads that make blocking system calls, and why.
    Threads {
        /// What spoke against io_uring.
        why: String,
    },
    /// Memory of this process.
    Memory,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring => f.write_str("io_uring"),
            Self::Threads { why } => write!(f, "threads ({why})"),
            Self::Memory => f.write_str("memory"),
        }
    }
}

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// No request has failed for the device's own reasons.
    Healthy,
    /// Some have: how many.
    Degraded {
        /// Requests that failed since it was opened.
        errors: u64,
    },
    /// It is gone: nothing will succeed until it is opened again.
    Gone,
}

/// What a device has counted, and how it is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// What executes requests, and why that.
    pub engine: Engine,
    /// Name, label (empty if the counter has none) and value of each counter.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

impl DeviceStats {
    /// What a device of one's own says of itself: what executes its requests, and its counters.
    pub fn new(engine: Engine, counters: Vec<(&'static str, &'static str, u64)>) -> Self {
        Self { engine, counters }
    }
}
