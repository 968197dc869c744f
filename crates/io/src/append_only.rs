//! A device that takes each address once, as an object store does: for tests.
//!
//! It is a device over another one, and fails every request that breaks the rules of
//! [`AppendOnly`]. It remembers what was wrong for [`AppendOnlyDevice::violations`], because a pool
//! goes on after some errors.
//!
//! # Rules
//!
//! - A sector is written once, or again with the same bytes, and never after its discard.
//! - A sector is read only if it was written and not discarded since. A discard takes effect at
//!   once, as a store may delete an object at any time.
//! - No discard meets the mutable areas. No request crosses their borders.
//!
//! # Locking
//!
//! `append-only` protects what is known of the sectors. It is a leaf lock.
//!
//! # What it does not do
//!
//! It keeps no content; the device below does. To open it again after a crash, create another one
//! over an image, with the sectors that were ever written.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use forebay_base::sync::{Arc, Mutex};

use crate::device::{AppendOnly, Decorator, Device, DeviceInfo};
use crate::error::{Error, ErrorKind};
use crate::request::{Op, Request};

/// Bytes at the end that take rewrites.
const BACK_BYTES: u64 = 256 << 10;

/// What happened to a sector that takes one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendedSector {
    /// It was written, with bytes of this hash.
    Written(u64),
    /// It was written, and a crash may have undone that.
    Lost,
    /// It was discarded.
    Discarded,
}

/// The sectors by offset.
pub type AppendedSectors = BTreeMap<u64, AppendedSector>;

/// The hash of the bytes of a sector.
pub fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A device that takes each address once.
pub struct AppendOnlyDevice {
    below: Arc<dyn Device>,
    info: DeviceInfo,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sectors: AppendedSectors,
    violations: Vec<String>,
}

impl AppendOnlyDevice {
    /// Creates a device over another one, on which nothing was written but `sectors`, whose first
    /// `mutable_bytes` take rewrites.
    pub fn new(below: Arc<dyn Device>, mutable_bytes: u64, sectors: AppendedSectors) -> Self {
        let mut info = below.info().clone();
        let sector = u64::from(info.sector_bytes);
        let end = sectors.last_key_value().map_or(0, |(last, _)| last + sector);
        info.append_only = Some(AppendOnly { mutable_bytes, next_unused: end.max(mutable_bytes) });
        let state = State { sectors, violations: Vec::new() };
        Self { below, info, state: Mutex::named("append-only", state) }
    }

    /// Opens the device again, over the same content.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let mutable_bytes = self.mutable_bytes();
        Self::new(Arc::clone(&self.below), mutable_bytes, self.sectors())
    }

    /// The device below, which checks nothing.
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    /// What happened to the sectors so far.
    pub fn sectors(&self) -> AppendedSectors {
        self.state.lock().sectors.clone()
    }

    /// The requests that broke a rule.
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    fn mutable_bytes(&self) -> u64 {
        self.info.append_only.map_or(0, |append_only| append_only.mutable_bytes)
    }

    /// Whether the sector at `offset` of such a device takes one write.
    pub fn appends(mutable_bytes: u64, size_bytes: u64, offset: u64) -> bool {
        (mutable_bytes..size_bytes - BACK_BYTES).contains(&offset)
    }

    /// Whether a range lies in an area that takes rewrites. `None` if it crosses a border.
    fn is_mutable(&self, start: u64, end: u64) -> Option<bool> {
        let (front, back) = (self.mutable_bytes(), self.info.size_bytes - BACK_BYTES);
        if end <= front || start >= back {
            return Some(true);
        }
        (start >= front && end <= back).then_some(false)
    }

    /// Notes a request. Returns what is wrong with it.
    fn note(&self, request: &Request) -> Result<(), &'static str> {
        let (start, end) = (request.offset(), request.end().unwrap_or(u64::MAX));
        let op = request.op();
        match self.is_mutable(start, end) {
            _ if op == Op::Flush => return Ok(()),
            None => return Err("crosses the border of a mutable area"),
            Some(true) if op == Op::Discard => return Err("discards a mutable area"),
            Some(true) => return Ok(()),
            Some(false) => {}
        }
        let sector = self.info.sector_bytes as usize;
        let mut offsets = (start..end).step_by(sector);
        let mut state = self.state.lock();
        match op {
            Op::Flush => {}
            Op::Read => {
                let fault = offsets.find_map(|offset| match state.sectors.get(&offset) {
                    Some(AppendedSector::Written(_)) => None,
                    Some(AppendedSector::Discarded) => Some("reads a discarded sector"),
                    Some(AppendedSector::Lost) => Some("reads a lost sector"),
                    None => Some("reads a sector that was never written"),
                });
                return fault.map_or(Ok(()), Err);
            }
            Op::Write => {
                let bytes = request.payload().map_or(&[][..], |payload| payload.bytes());
                let hashes = bytes.chunks(sector).map(hash_of);
                for (offset, hash) in offsets.zip(hashes) {
                    match state.sectors.insert(offset, AppendedSector::Written(hash)) {
                        None => {}
                        Some(AppendedSector::Written(before)) if before == hash => {}
                        Some(AppendedSector::Written(_)) => return Err("rewrites a sector"),
                        Some(AppendedSector::Lost) => {
                            return Err("writes an address of a lost txg");
                        }
                        Some(AppendedSector::Discarded) => return Err("writes a discarded sector"),
                    }
                }
            }
            Op::Discard => {
                let discarded = offsets.map(|offset| (offset, AppendedSector::Discarded));
                state.sectors.extend(discarded);
            }
        }
        Ok(())
    }
}

impl Decorator for AppendOnlyDevice {
    fn inner(&self) -> &dyn Device {
        &*self.below
    }

    fn own_info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Passes a request on, or fails it.
    fn decorate(&self, request: Request) -> Option<Request> {
        let Err(what) = self.note(&request) else { return Some(request) };
        let (op, range) = (request.op(), (request.offset(), request.len()));
        let text = format!("{op} of {} bytes at {:#x}: {what}", range.1, range.0);
        self.state.lock().violations.push(text.clone());
        let error = Error::new(ErrorKind::Device, op, &self.info.name, range, &text);
        request.finish(Err(error));
        None
    }
}
