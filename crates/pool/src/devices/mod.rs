//! The devices of a pool: block I/O by address, labels, and membership.
//!
//! * I/O: [`requests`] to a [`vdev`], which is a device ([`leaf`]) or a mirror of several, or the
//!   [`log_vdev`]. [`status`] is what is known of the devices of a vdev.
//! * Membership: [`sides`] of mirrors leave and come back, [`attach`] adds and removes them,
//!   [`reopen`] opens their devices again, [`lost_end`] finds those that were truncated.
//! * On the devices: [`label`], with [`config`] and [`features`]; [`verify_labels`], [`heartbeat`].
//! * [`create`] and [`import`] make the devices of a pool; [`open`](crate::open) opens files.
//!
//! # Invariants
//!
//! - Requests stay within a vdev's usable span, which lies between the labels of its devices. Only
//!   [`label`] and [`heartbeat`] access the rest.
//! - A vdev's number never changes, and vdevs are never removed. The index of a device in its vdev
//!   never changes until the pool is closed, even if the device is removed. So both are in lists
//!   that only grow ([`slots`]), and reading them takes no lock.
//!
//! # Locking
//!
//! `pool-devices` serialises adding vdevs and devices of them; a closed set takes none.
//! `pool-device-lock` protects a device's file lock until the pool is closed. `pool-mirror-write`
//! counts the requests of a mirror's write. No request runs under these. `pool-vdev`: [`status`].
//!
//! Not done: the space maps choose vdevs, the block store verifies what is read. No failed request
//! is retried, except writes of an uberblock ([`label`]).

pub(crate) mod attach;
pub(crate) mod config;
pub(crate) mod create;
pub(crate) mod features;
pub(crate) mod heartbeat;
pub(crate) mod import;
pub(crate) mod label;
mod leaf;
pub(crate) mod log_vdev;
mod lost_end;
pub(crate) mod reopen;
mod requests;
pub(crate) mod sides;
mod slots;
pub(crate) mod status;
#[cfg(all(test, not(forebay_model)))]
mod tests;
pub(crate) mod vdev;
mod verify_labels;

use std::fmt;

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::{AppendOnly, Device, Fence};

use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind, PoolEvents};
use crate::format::Dva;
use crate::format::label::{LABEL_BYTES, LOG_VDEV, MAX_VDEVS};
use crate::lease::Lease;
use config::VdevKind;
pub(crate) use leaf::Leaf;
use log_vdev::LogVdevs;
pub(crate) use requests::Read;
use slots::Slots;
use status::LeafSet;
pub(crate) use vdev::Vdev;

/// The range of a vdev that can hold blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSpan {
    pub(crate) device: u16,
    /// The first byte.
    pub(crate) start: u64,
    /// The end, exclusive.
    pub(crate) end: u64,
    /// Whether the vdev takes each address once.
    pub(crate) append_only: Option<AppendOnly>,
}

/// Bytes of a device that a pool can use; a multiple of the label size.
pub(crate) fn usable_bytes(device: &dyn Device) -> u64 {
    device.info().size_bytes / LABEL_BYTES * LABEL_BYTES
}

/// The error of a device that comes after the pool was closed.
fn exported() -> Error {
    Error::new(ErrorKind::Closed, "the pool is exported")
}

fn too_small(name: &str, has_bytes: u64, needs_bytes: u64) -> Error {
    let text = format!("{name}: has {has_bytes} bytes; a pool device needs at least {needs_bytes}");
    Error::new(ErrorKind::Invalid, text)
}

/// Converts the error of a request that was noted: a device error, or the pool is closed.
pub(crate) fn failed(error: forebay_io::Error) -> Error {
    match error.kind() {
        forebay_io::ErrorKind::Closed => {
            Error::new(ErrorKind::Closed, "the pool is exported").because(error)
        }
        _ => Error::from(error),
    }
}

/// A copy of a block on a device: an address, and the index of a device of its vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dva: Dva,
    pub(crate) leaf: u8,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leaf {
            0 => write!(f, "copy at {}", self.dva),
            leaf => write!(f, "copy at {}, side {leaf}", self.dva),
        }
    }
}

/// The vdevs of a pool, by number.
pub(crate) struct Devices {
    vdevs: Slots<Vdev>,
    logs: LogVdevs,
    /// Whether the set is closed.
    adding: Mutex<bool>,
    sector_bytes: u64,
    /// Keeps writes from being issued once another host may have the pool.
    fence: Option<Fence>,
    flush_failures: AtomicU64,
    /// The sum of [`VdevStatus::changes`](status::VdevStatus::changes) that labels have.
    stored_changes: AtomicU64,
    events: Arc<PoolEvents>,
}

impl Devices {
    /// Creates the set; `vdevs` are ordered by number.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are no vdevs or too many, if they are not numbered from 0,
    /// or if a device's sectors are larger than the pool's.
    pub(crate) fn new(vdevs: Vec<Vdev>, sector_bytes: u64) -> Result<Self> {
        if vdevs.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a pool needs at least one device"));
        }
        let devices = Self {
            vdevs: Slots::new(MAX_VDEVS),
            logs: LogVdevs::new(),
            adding: Mutex::named("pool-devices", false),
            sector_bytes,
            fence: None,
            flush_failures: AtomicU64::new(0),
            stored_changes: AtomicU64::new(0),
            events: PoolEvents::new(None, "", 0),
        };
        vdevs.into_iter().try_for_each(|vdev| devices.add(vdev))?;
        Ok(devices)
    }

    /// Returns the devices with the lease of their pool. A write that has
    /// waited in a queue until it ended is not issued, and fails as cancelled.
    pub(crate) fn with_lease(mut self, lease: &Arc<Lease>) -> Self {
        let lease = Arc::clone(lease);
        self.fence = Some(Fence::new(move || lease.is_valid()));
        self
    }

    /// Returns the devices with what notes the events of their pool.
    pub(crate) fn with_events(mut self, events: Arc<PoolEvents>) -> Self {
        self.members().for_each(|vdev| vdev.status().set_events(&events));
        self.events = events;
        self
    }

    /// Notes the events of the pool.
    pub(crate) fn events(&self) -> &Arc<PoolEvents> {
        &self.events
    }

    /// Notes that a request has failed.
    fn noted(&self, error: forebay_io::Error) -> forebay_io::Error {
        if error.kind() != forebay_io::ErrorKind::Closed {
            self.events.note_failure(&error);
        }
        error
    }

    /// Whether the pool is on an object store.
    pub(crate) fn is_on_store(&self) -> bool {
        self.iter().any(|vdev| vdev.kind() == VdevKind::ObjectStore)
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence.clone()
    }

    /// Adds a vdev with the next number. Its labels must be written before.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`ErrorKind::Closed`].
    pub(crate) fn add(&self, vdev: Vdev) -> Result<()> {
        let invalid = |text| Err(Error::new(ErrorKind::Invalid, text));
        let is_closed = self.adding.lock();
        if *is_closed {
            return Err(exported());
        }
        let at = self.count();
        if at == MAX_VDEVS {
            return invalid(format!("a pool has at most {MAX_VDEVS} vdevs"));
        }
        if usize::from(vdev.number()) != at {
            return invalid(format!("{}: is vdev {}, not {at}", vdev.name(), vdev.number()));
        }
        vdev.leaves().try_for_each(|(_, leaf)| self.check_sectors(leaf))?;
        vdev.status().set_events(&self.events);
        let added = self.vdevs.push(vdev);
        debug_assert_eq!(added.ok(), Some(at), "added without the lock");
        Ok(())
    }

    fn check_sectors(&self, leaf: &Leaf) -> Result<()> {
        let (sector, has) = (u64::from(leaf.device().info().sector_bytes), self.sector_bytes);
        if sector <= has {
            return Ok(());
        }
        let name = leaf.name();
        let text = format!(
            "{name}: has sectors of {sector} bytes, larger than the pool's {has}; open it with sectors of {has}"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Number of vdevs.
    pub(crate) fn count(&self) -> usize {
        self.vdevs.len()
    }

    /// The pool's sector size in bytes. Addresses and lengths are multiples of it.
    #[inline]
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.sector_bytes
    }

    /// Returns the vdev with this number.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&Vdev> {
        if number & LOG_VDEV != 0 {
            return self.log().filter(|log| log.number() == number);
        }
        self.vdevs.get(usize::from(number))
    }

    /// Returns all vdevs that hold blocks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vdev> {
        self.vdevs.iter()
    }

    /// Returns all vdevs, also the one of the log.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Vdev> {
        self.iter().chain(self.log())
    }

    /// Returns all devices, also those of the log.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.members().flat_map(|vdev| vdev.leaves().map(|(_, leaf)| leaf))
    }

    /// Returns the ranges that can hold blocks.
    pub(crate) fn spans(&self) -> Vec<DeviceSpan> {
        self.iter().map(Vdev::span).collect()
    }

    /// From now on writes count for this txg, also those that devices miss.
    pub(crate) fn begin_txg(&self, txg: u64) {
        self.members().for_each(|vdev| vdev.status().begin_txg(txg));
    }

    /// Whether a device misses blocks.
    fn misses_blocks(&self) -> bool {
        self.iter().any(|vdev| vdev.leaves().any(|(at, _)| vdev.status().missed(at).is_some()))
    }

    /// Whether a device misses a block of this birth.
    pub(crate) fn any_misses(&self, birth: u64) -> bool {
        let misses = |vdev: &Vdev, leaf| {
            vdev.status().missed(leaf).is_some_and(|missed| missed.contains(birth))
        };
        self.iter().any(|vdev| vdev.leaves().any(|(leaf, _)| misses(vdev, leaf)))
    }

    /// Whether a device in use misses blocks, so that a scrub can make it whole.
    pub(crate) fn catches_up(&self) -> bool {
        let misses = |vdev: &Vdev, leaf| vdev.status().missed(leaf).is_some();
        self.iter().any(|vdev| vdev.used().any(|(leaf, _)| misses(vdev, leaf)))
    }

    /// A scrub has found all blocks up to this txg on all devices in use, or rewritten them. The
    /// next commit stores that no device misses them any more. `failures` is the number of failed
    /// flushes before it healed a block.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if a flush fails, or has failed meanwhile.
    pub(crate) fn caught_up(&self, until_txg: u64, failures: u64) -> Result<()> {
        if !self.misses_blocks() {
            return Ok(());
        }
        self.flush_all()?;
        if self.flush_failures() != failures {
            let text = "another flush failed meanwhile, and may have lost what was healed";
            return Err(Error::new(ErrorKind::Device, text));
        }
        for vdev in self.iter() {
            let whole = vdev.status().caught_up(until_txg);
            for (_, leaf) in vdev.leaves().filter(|(leaf, _)| whole.contains(*leaf)) {
                let event = Event::of_device(leaf.name()).in_txg(until_txg);
                self.events.note(EventKind::DeviceWhole, event);
            }
        }
        Ok(())
    }

    fn changes(&self) -> u64 {
        self.iter().chain(self.logs.all()).map(|vdev| vdev.status().changes()).sum()
    }

    /// Whether devices miss writes, and no label says so.
    pub(crate) fn has_unstored_changes(&self) -> bool {
        self.changes() != self.stored_changes.load(Ordering::Acquire)
    }

    /// Copies what is known of the devices into a configuration. Returns what
    /// [`stored`](Self::stored) takes once it is in the labels.
    fn store_in(&self, config: &mut config::Config) -> u64 {
        let changes = self.changes();
        for (vdev, config) in self.iter().zip(&mut config.vdevs) {
            vdev.store_in(config);
        }
        if let (Some(log), Some(config)) = (self.log(), &mut config.log) {
            log.store_in(config);
        }
        changes
    }

    fn stored(&self, changes: u64) {
        self.stored_changes.fetch_max(changes, Ordering::AcqRel);
    }

    /// Returns the vdev of `dva`. Checks that `len` bytes from there are whole sectors within its
    /// span, and that it is there.
    fn place(&self, dva: Dva, len: u64) -> Result<&Vdev> {
        let corrupt = |text: String| Err(Error::new(ErrorKind::Corrupt, text));
        let Some(vdev) = self.get(dva.device) else {
            let count = self.count();
            return corrupt(format!("{len} bytes at {dva}: the pool has only {count} devices"));
        };
        let span = vdev.span();
        let end = dva.offset.checked_add(len);
        if len == 0 || dva.offset < span.start || end.is_none_or(|end| end > span.end) {
            let (name, DeviceSpan { start, end, .. }) = (vdev.name(), span);
            return corrupt(format!(
                "{len} bytes at {dva}: outside the block range {start:#x} to {end:#x} of {name}"
            ));
        }
        let sector = self.sector_bytes;
        if !dva.offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return corrupt(format!("{len} bytes at {dva}: not whole sectors of {sector} bytes"));
        }
        if vdev.is_missing() {
            let text = format!("{len} bytes at {dva}: device {} is missing", vdev.number());
            return Err(Error::new(ErrorKind::Device, text));
        }
        Ok(vdev)
    }

    /// Whether `len` bytes at `dva` are a valid block address on a vdev that is there.
    pub(crate) fn holds(&self, dva: Dva, len: u64) -> bool {
        self.place(dva, len).is_ok()
    }

    /// The largest number of devices of a vdev.
    pub(crate) fn sides(&self) -> usize {
        self.members().map(|vdev| vdev.leaves().count()).max().unwrap_or(1)
    }

    /// Number of places of an address: devices of its vdev that are in use, and at least one, which
    /// says what is wrong.
    pub(crate) fn place_count(&self, dva: Dva) -> usize {
        match self.get(dva.device) {
            Some(vdev) if vdev.kind() == VdevKind::Mirror => vdev.used().count().max(1),
            _ => 1,
        }
    }

    /// The n-th place of an address.
    pub(crate) fn nth_place(&self, dva: Dva, n: usize) -> Place {
        let nth = |vdev: &Vdev| vdev.used().nth(n).map_or(vdev.first(), |(leaf, _)| leaf);
        let leaf = self.get(dva.device).map_or(0, nth);
        Place { dva, leaf }
    }

    /// The place from which a block of this birth will be read soonest, among those that have not
    /// been tried; adds it to them. `None` if all have been tried.
    #[inline]
    pub(crate) fn choose(
        &self,
        dva: Dva,
        birth: Option<u64>,
        tried: &mut LeafSet,
    ) -> Option<Place> {
        let leaf = match self.get(dva.device) {
            // If none is in use, the first one says why.
            Some(vdev) if vdev.kind() == VdevKind::Mirror && vdev.used().next().is_some() => {
                vdev.status().choose(birth, tried)
            }
            vdev => {
                let first = vdev.map_or(0, Vdev::first);
                (!tried.contains(first)).then_some(first)
            }
        };
        tried.insert(leaf?);
        Some(Place { dva, leaf: leaf? })
    }

    /// Whether no device of the vdev of an address is there.
    pub(crate) fn is_missing(&self, dva: Dva) -> bool {
        self.get(dva.device).is_some_and(Vdev::is_missing)
    }

    /// Whether the device of a place is in use.
    pub(crate) fn is_used(&self, place: Place) -> bool {
        let vdev = self.get(place.dva.device);
        vdev.is_some_and(|vdev| vdev.used().any(|(leaf, _)| leaf == place.leaf))
    }

    /// Whether the device of a place misses nothing.
    pub(crate) fn is_whole(&self, place: Place) -> bool {
        let vdev = self.get(place.dva.device);
        // No other device of a log vdev without a mirror has more.
        let is_alone = |vdev: &Vdev| vdev.is_log() && vdev.leaves().count() == 1;
        vdev.is_some_and(|vdev| vdev.status().missed(place.leaf).is_none() || is_alone(vdev))
    }

    /// A scrub has healed a block of this birth there. It counts as an error of the device, unless
    /// that was known to miss it.
    pub(crate) fn note_healed(&self, place: Place, birth: u64) {
        let vdev = self.get(place.dva.device);
        let missed = vdev.and_then(|vdev| vdev.status().missed(place.leaf));
        if missed.is_none_or(|missed| !missed.contains(birth)) {
            self.note_checksum(place);
        }
    }

    /// The device of a place, in messages.
    pub(crate) fn name_of(&self, place: Place) -> Option<&str> {
        self.get(place.dva.device).map(|vdev| vdev.leaf(place.leaf).name())
    }

    /// A block has a wrong checksum there.
    pub(crate) fn note_checksum(&self, place: Place) {
        if let Some(vdev) = self.get(place.dva.device) {
            vdev.status().note_checksum(place.leaf);
        }
    }

    /// Which device has not answered for a while, and comes back by itself.
    pub(crate) fn outage(&self) -> Option<String> {
        self.leaves().find_map(Leaf::outage)
    }

    /// Forgets failures that devices had, for their health.
    pub(crate) fn forget_errors(&self) {
        self.leaves().for_each(Leaf::forget_errors);
        self.members().for_each(|vdev| vdev.status().forget_errors());
    }

    /// Waits until all requests submitted before have ended, including their callbacks.
    pub(crate) fn drain(&self) {
        self.leaves().for_each(Leaf::drain);
    }

    /// Extends the usable span of a device that has grown. Its labels must state the new size,
    /// durably: from now on blocks may be placed there.
    fn expand(&self, number: u16, leaf: u8, size_bytes: u64) {
        if let Some(vdev) = self.get(number) {
            vdev.leaf(leaf).grow_to(size_bytes);
            vdev.update_size();
        }
    }

    /// Rejects new requests, waits for accepted ones, and releases the file locks, even if the set
    /// is still referenced. The devices stay open. Idempotent.
    pub(crate) fn close(&self) {
        *self.adding.lock() = true;
        let all = || self.iter().chain(self.logs.all()).flat_map(Vdev::all_leaves);
        all().for_each(Leaf::close_roots);
        all().for_each(Leaf::drain);
        all().for_each(Leaf::unlock);
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|vdev| (vdev.name(), vdev.span()))).finish()
    }
}
