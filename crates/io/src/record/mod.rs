//! A decorator that records every write, discard and flush, and builds the images that a crash
//! could leave.
//!
//! [`RecordDevice`] keeps a log, [`RecordDevice::recording`] copies it, and [`Recording::at`] is a
//! crash after some number of events. The crash point tells which writes certainly survive and
//! which may ([`Unflushed`]), and builds an image for any choice among the latter.
//!
//! # Invariants
//!
//! - A submission is logged before the device below sees the request, and a completion before the
//!   request's owner sees it. So a crash at [`RecordDevice::position`] includes everything
//!   acknowledged by then.
//! - The log holds copies of the content, made at submission.
//! - Only well-formed requests are logged.
//!
//! # Locking
//!
//! `record-log`, for one push. Content is copied before.
//!
//! # What it does not do
//!
//! Reads are not recorded. Nothing is discarded: at the memory limit recording stops, and the
//! recording says so.

mod image;
mod recording;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::fmt;

use forebay_base::sync::{Arc, Mutex};

pub use image::Image;
pub use recording::{CrashPoint, Event, Outcome, Recording, Survives, Unflushed};

use crate::device::{Decorator, Device};
use crate::error::ErrorKind;
use crate::request::{Op, Request};

/// Assumed memory of an event besides its content, in bytes.
const EVENT_BYTES: u64 = 64;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Memory limit of the log, in bytes. Recording stops at the limit; the device continues.
    pub max_bytes: u64,
    /// The content that the device has already. `None` if it reads as zero.
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
    // An event did not fit. Nothing is recorded from then on.
    full: bool,
}

impl Log {
    /// Returns the number of the event, unless the log is full.
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
    /// Records changes of `inner` from now on.
    ///
    /// # Panics
    /// If the base has another size or sector size than the device.
    pub fn new(inner: Arc<dyn Device>, options: RecordOptions) -> Self {
        let info = inner.info();
        let base = options.base.unwrap_or_else(|| Image::zero(info.size_bytes, info.sector_bytes));
        assert_eq!(base.size_bytes(), info.size_bytes, "the base is of another device");
        assert_eq!(base.sector_bytes(), info.sector_bytes, "the base is of another device");
        let max_bytes = options.max_bytes;
        let log = Log { events: Vec::new(), bytes: 0, max_bytes, full: false };
        Self { inner, log: Arc::new(Mutex::named("record-log", log)), base }
    }

    /// Returns the number of events so far, which is the position of a crash now.
    pub fn position(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Returns the recording so far.
    pub fn recording(&self) -> Recording {
        let log = self.log.lock();
        let physical_bytes = self.inner.info().physical_bytes;
        Recording::new(self.base.clone(), physical_bytes, log.events.clone(), !log.full)
    }

    /// Returns the event of `request`, if it changes the device and can succeed.
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

impl Decorator for RecordDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        let Some(event) = self.event(&request) else {
            return Some(request);
        };
        let Some(begun) = self.log.lock().push(event) else {
            return Some(request);
        };
        let log = Arc::clone(&self.log);
        Some(request.layered(move |completion| {
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
        }))
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
