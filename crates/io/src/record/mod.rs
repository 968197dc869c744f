//! A decorator that records every write, discard and flush, to make from them the images that a
//! crash could have left behind.
//!
//! [`RecordDevice`] keeps a log; [`RecordDevice::recording`] takes what is in it; and
//! [`Recording::at`] is the medium as a crash found it after so many events: what is certainly
//! there, what may be there ([`Unflushed`]), and images for any choice among the latter.
//!
//! # Invariants
//!
//! - An event of a beginning is in the log before the device below sees the request, an event of
//!   an end before the request's owner does. So the log knows whatever its owner knows: a crash at
//!   [`RecordDevice::position`] finds all that had been promised by then.
//! - Content in the log is a copy, made when the request was submitted.
//! - Only requests that are well formed are in the log.
//!
//! # Locking
//!
//! `record-log`, for one push. Content is copied before.
//!
//! # What it does not do
//!
//! Reads leave no trace. Nothing is forgotten: when the bound is reached, recording ends, and the
//! recording says so.

mod image;
mod recording;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::fmt;

use forebay_base::sync::{Arc, Mutex};

pub use image::Image;
pub use recording::{CrashPoint, Event, Outcome, Recording, Survives, Unflushed};

use crate::device::{Device, DeviceInfo, DeviceStats, Health};
use crate::error::ErrorKind;
use crate::request::{Op, Request};
use crate::waiter::Waiter;

/// What an event is taken to cost beside its content, in bytes.
const EVENT_BYTES: u64 = 64;

/// How to record.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Recording ends when it would take more memory than this, in bytes. The device goes on.
    pub max_bytes: u64,
    /// What the device holds already. `None` if it reads as zero.
    pub base: Option<Image>,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { max_bytes: 256 << 20, base: None }
    }
}

/// A device that records what changes it.
///
/// ```
/// # use forebay_base::arena::{Arena, ArenaConfig, HugePages};
/// use std::sync::Arc;
///
/// use forebay_io::record::{RecordDevice, RecordOptions};
/// use forebay_io::{Device, FileDevice, OpenOptions, Request};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("medium");
/// # let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Auto })?;
/// let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
/// let medium = Arc::new(FileDevice::open(&path, &options)?);
/// let device = RecordDevice::new(medium, RecordOptions::default());
/// let device_dyn: &dyn Device = &device;
/// let mut block = arena.alloc(4096)?;
/// block.fill(1);
/// device_dyn.run(Request::write(0, block)).result?;
/// let written = device.position();
/// device_dyn.run(Request::flush()).result?;
/// let flushed = device.position();
///
/// let recording = device.recording();
/// let mut found = [0; 4096];
/// recording.at(written).at_least().read(0, &mut found);
/// assert_eq!(found, [0; 4096]); // A crash before the flush may have lost the write,
/// recording.at(flushed).at_least().read(0, &mut found);
/// assert_eq!(found, [1; 4096]); // and one after it may not.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RecordDevice {
    inner: Arc<dyn Device>,
    log: Arc<Mutex<Log>>,
    base: Image,
}

struct Log {
    events: Vec<Event>,
    bytes: u64,
    max_bytes: u64,
    // Something did not fit: from there on nothing is recorded.
    full: bool,
}

impl Log {
    /// The number of the event, unless the log is full.
    fn push(&mut self, event: Event) -> Option<usize> {
        let bytes = self.bytes + EVENT_BYTES + event.content_bytes();
        self.full |= bytes > self.max_bytes;
        if self.full {
            return None;
        }
        self.bytes = bytes;
        self.events.push(event);
        Some(self.events.len() - 1)
    }
}

impl RecordDevice {
    /// Records what changes `inner` from now on.
    ///
    /// # Panics
    /// If the base is of another size or sector size than the device.
    pub fn new(inner: Arc<dyn Device>, options: RecordOptions) -> Self {
        let info = inner.info();
        let base = options.base.unwrap_or_else(|| Image::zero(info.size_bytes, info.sector_bytes));
        assert_eq!(base.size_bytes(), info.size_bytes, "the base is of another device");
        assert_eq!(base.sector_bytes(), info.sector_bytes, "the base is of another device");
        let max_bytes = options.max_bytes;
        let log = Log { events: Vec::new(), bytes: 0, max_bytes, full: false };
        Self { inner, log: Arc::new(Mutex::named("record-log", log)), base }
    }

    /// Events so far: where a crash would be now.
    pub fn position(&self) -> usize {
        self.log.lock().events.len()
    }

    /// What was recorded so far.
    pub fn recording(&self) -> Recording {
        let log = self.log.lock();
        Recording::new(self.base.clone(), log.events.clone(), !log.full)
    }

    fn recorded(&self, request: Request) -> Request {
        let Some(event) = self.event(&request) else {
            return request;
        };
        let Some(begun) = self.log.lock().push(event) else {
            return request;
        };
        let log = Arc::clone(&self.log);
        request.layered(move |completion| {
            let outcome = match &completion.result {
                Ok(()) => Outcome::Done,
                Err(error) => match error.kind() {
                    ErrorKind::InvalidRequest
                    | ErrorKind::ReadOnly
                    | ErrorKind::Closed
                    | ErrorKind::Cancelled => Outcome::Refused,
                    _ => Outcome::Failed,
                },
            };
            log.lock().push(Event::Ended { begun, outcome });
        })
    }

    /// What `request` is in the log, if it changes anything and can succeed.
    fn event(&self, request: &Request) -> Option<Event> {
        let info = self.inner.info();
        let (offset, len) = (request.offset(), request.len());
        let sector = u64::from(info.sector_bytes);
        let formed = len > 0
            && offset % sector == 0
            && len % sector == 0
            && request.end().is_some_and(|end| end <= info.size_bytes);
        match request.op() {
            Op::Read => None,
            Op::Flush => Some(Event::Flush),
            Op::Write | Op::Discard if !formed || info.read_only => None,
            Op::Discard => Some(Event::Discard { offset, len }),
            Op::Write => {
                let bytes = Arc::new(request.payload()?.bytes().to_vec());
                Some(Event::Write { offset, bytes })
            }
        }
    }
}

impl Device for RecordDevice {
    fn submit(&self, request: Request) {
        self.inner.submit(self.recorded(request));
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        // Collects into the memory that it came from.
        *requests = std::mem::take(requests).into_iter().map(|r| self.recorded(r)).collect();
        self.inner.submit_all(requests);
    }

    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.inner.help(waiter);
    }

    fn close(&self) {
        self.inner.close();
    }
}

impl fmt::Debug for RecordDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log.lock();
        f.debug_struct("RecordDevice")
            .field("device", &self.info().name)
            .field("events", &log.events.len())
            .field("bytes", &log.bytes)
            .field("full", &log.full)
            .finish_non_exhaustive()
    }
}
