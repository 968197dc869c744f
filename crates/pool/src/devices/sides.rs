//! Takes sides of mirrors out of use, and back into use.
//!
//! A side that is *offline* gets nothing any more, and misses what is written from then on, as one
//! that is faulted. All labels say so before, also its own: alone it is refused.
//!
//! A side that comes back has its labels written first, while it still misses everything. Only then
//! its range of missed txgs ends: after the txg that is open at that time, because writes in flight
//! may have left it out.

use forebay_io::{Device, Request};

use super::config::{Config, Label, VdevKind};
use super::heartbeat::{self, Heartbeat};
use super::import;
use super::label::{self, MayWrite, Ring};
use super::lost_end::has_lost_end;
use super::status::{STILL, VdevStatus};
use super::{Devices, Leaf, Place, Vdev};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind, PoolEvents};
use crate::format::label::StoredState;

/// A side of a mirror.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(super) vdev: &'a Vdev,
    pub(super) at: u8,
}

impl<'a> Side<'a> {
    pub(crate) fn leaf(&self) -> &'a Leaf {
        self.vdev.leaf(self.at)
    }

    /// Whether this is its path, or its GUID in hexadecimal.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let guid = u64::from_str_radix(name.trim_start_matches("0x"), 16).ok();
        self.leaf().name() == name || Some(self.leaf().guid()) == guid
    }

    pub(super) fn status(&self) -> &'a VdevStatus {
        self.vdev.status()
    }

    /// Whether it is in use, and it is known which txgs it misses.
    pub(crate) fn is_back(&self) -> bool {
        let missed = self.status().missed(self.at);
        self.is_used() && missed.is_none_or(|missed| missed.to != STILL)
    }

    /// Whether it is a device of the log vdev.
    pub(crate) fn is_of_log(&self) -> bool {
        self.vdev.is_log()
    }

    /// Whether a device of its vdev in use misses nothing.
    pub(crate) fn has_whole(&self) -> bool {
        self.status().has_whole_leaf()
    }

    /// Whether it is in use, and misses nothing.
    pub(crate) fn is_whole(&self) -> bool {
        self.status().is_whole(self.at)
    }

    /// Whether another device of its vdev is in use.
    pub(crate) fn has_used_other(&self) -> bool {
        self.vdev.used().any(|(at, _)| at != self.at)
    }

    /// Whether the side is in use.
    pub(crate) fn is_used(&self) -> bool {
        self.status().is_used(self.at)
    }

    /// From now on the side is known to miss what is written. It is still in use, so that its
    /// labels can say so.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no other side has all blocks, or if the device is missing.
    pub(super) fn begin_missing(&self) -> Result<()> {
        let name = self.leaf().name();
        if self.leaf().is_missing() {
            let text = format!("{name}; there is nothing to take out of use");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        match self.status().begin_missing(self.at) {
            true => Ok(()),
            false => {
                let title = self.vdev.title();
                let text = match self.vdev.is_log() {
                    true => format!(
                        "{name}: no other device of {title} has all records; attach another one first, or remove the log device"
                    ),
                    false => format!(
                        "{name}: no other device of {title} has all blocks; bring another one back with `forebay online`, and let it catch up first"
                    ),
                };
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }

    /// Changes the state of the side, which misses what is written from now on.
    pub(super) fn set_state(&self, state: StoredState) {
        let _changing = self.status().changing();
        self.status().change(self.at, state);
    }

    /// Takes the side out of use, after its labels say that it misses what is written, so that it
    /// is not believed alone. Returns false if it is offline already. The next commit stores it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no other side has all blocks, or if the device is missing; the
    /// errors of the labels, after which it is in use as before.
    pub(crate) fn take_offline(
        &self,
        devices: &Devices,
        config: &mut Config,
        open_txg: &dyn Fn() -> u64,
        memory: &BlockCache,
        may_write: MayWrite<'_>,
    ) -> Result<bool> {
        if self.status().state(self.at) == StoredState::Offline {
            return Ok(false);
        }
        self.begin_missing()?;
        let updated = label::update_config(devices, config, memory, may_write);
        if updated.is_err() {
            self.status().end_missing(self.at, open_txg() + 1);
        }
        updated?;
        self.set_state(StoredState::Offline);
        Ok(true)
    }

    /// The label of a device that is to be this one.
    ///
    /// # Errors
    /// [`ErrorKind::NotAPool`] says what the device is.
    pub(super) fn own_label(
        &self,
        device: &dyn Device,
        config: &Config,
        memory: &BlockCache,
    ) -> Result<Label> {
        let guid = self.leaf().guid();
        let is_own =
            |label: &Label| label.config.pool_guid == config.pool_guid && label.own().guid == guid;
        let found = label::read(device, memory)?;
        let holds = match found {
            Some(found) if is_own(&found) => return Ok(found),
            Some(found) => {
                format!("device {:#x} of pool {:?}", found.own().guid, found.config.pool_name)
            }
            None => "no pool".to_owned(),
        };
        let (name, pool) = (&device.info().name, &config.pool_name);
        let text = format!(
            "{name}: holds {holds}, not the device {guid:#x} of pool {pool:?}; bring the right device back, or replace a side of a mirror: `forebay replace {pool} {guid:x} NEW-DEVICE`"
        );
        Err(Error::new(ErrorKind::NotAPool, text))
    }

    /// Checks that a device is the side, and was not written apart from the others: that another
    /// host has not imported it alone. `synced` is the newest durable txg. The device may be an
    /// older copy of the side, or have lost its end: returns the txg from which on it lacks blocks,
    /// for [`misses_since`](Self::misses_since).
    ///
    /// # Errors
    /// [`ErrorKind::NotAPool`] says what the device is.
    pub(super) fn check_label(
        &self,
        device: &dyn Device,
        (config, synced): (&Config, u64),
        events: &PoolEvents,
        memory: &BlockCache,
    ) -> Result<u64> {
        let name = &device.info().name;
        let found = self.own_label(device, config, memory)?;
        let size_bytes = found.own().size_bytes;
        let ring = Ring { device, size_bytes, missed: None };
        let uberblocks = label::best_uberblocks(&[ring], config.pool_guid, memory)?;
        let newest = uberblocks.first().map_or(0, |newest| newest.txg);
        let is_apart = newest > synced || self.was_written_apart(&found, config);
        self.leaf().set_apart(is_apart);
        if is_apart {
            let text = format!(
                "{name}: was written without the other sides, so it stays out of use; to keep what it has instead, export the pool and import this device alone"
            );
            return Err(Error::new(ErrorKind::NotAPool, text));
        }
        if has_lost_end(device, &found, memory)? {
            let then = "a resilver writes all blocks to it";
            let event = Event { detail: Some(then.to_owned()), ..Event::of_device(name) };
            events.note(EventKind::DeviceLostEnd, event);
            return Ok(1);
        }
        Ok(found.missing_from(newest))
    }

    /// Notes since when the side that was taken online lacks blocks. Not before: if it then failed,
    /// it would seem to have had all of them later, so to have been written apart.
    pub(crate) fn misses_since(&self, from: u64) {
        self.status().misses_since(self.at, from);
    }

    /// Whether the side and those with all blocks were written without each other, as an import
    /// decides it.
    fn was_written_apart(&self, label: &Label, config: &Config) -> bool {
        let mut now = config.clone();
        if let Some(vdev) = now.vdevs.get_mut(usize::from(self.vdev.number())) {
            self.vdev.store_in(vdev);
        }
        let is_whole = |guid| {
            let mut leaves = self.vdev.leaves();
            leaves.any(|(at, leaf)| leaf.guid() == guid && self.status().is_whole(at))
        };
        import::rival_of(label, &now, &is_whole).is_some()
    }

    /// Takes the side into use again, after its label was checked. It still misses what is written.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the device fails; then it is as before, or faulted.
    pub(crate) fn take_online(
        &self,
        devices: &Devices,
        pool_guid: u64,
        beats: Option<&Heartbeat>,
        memory: &BlockCache,
    ) -> Result<()> {
        let leaf = self.leaf();
        leaf.device().retry_flushes();
        // A device that lost its end is noticed by a flush, and by no request to its beginning.
        leaf.device().run(Request::flush()).result.map_err(super::failed)?;
        // Before the side counts as one that others look at.
        if let Some(beats) = beats.filter(|_| self.vdev.number() == 0) {
            // Once the lease has ended, another host may have the pool, and the side.
            let fence = devices.fence();
            let with = (fence.as_ref(), memory);
            heartbeat::write_fenced(&[&**leaf.device()], pool_guid, beats, with)?;
        }
        self.set_state(StoredState::Online);
        debug_assert!(devices.has_unstored_changes());
        Ok(())
    }

    /// Writes the labels of a side that was taken into use, and ends what it misses: it gets all
    /// writes of txgs after `open_txg`, which has begun no later than the call.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the side takes no label; it is faulted then. The errors of the
    /// labels.
    pub(crate) fn end_missing(
        &self,
        devices: &Devices,
        config: &mut Config,
        open_txg: &dyn Fn() -> u64,
        memory: &BlockCache,
        may_write: MayWrite<'_>,
    ) -> Result<()> {
        label::update_config(devices, config, memory, may_write)?;
        if !self.is_used() || !self.status().end_missing(self.at, open_txg() + 1) {
            let name = self.leaf().name();
            let text = format!("{name}: the device takes no label, and is not used");
            return Err(Error::new(ErrorKind::Device, text));
        }
        Ok(())
    }
}

impl Devices {
    /// The side of a mirror of blocks with this path, or GUID in hexadecimal.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] if the device is not in a mirror, or is one
    /// of the log.
    pub(crate) fn side(&self, name: &str) -> Result<Side<'_>> {
        let side = self.find(name)?;
        if side.vdev.is_log() {
            let text = format!(
                "{name}: is a device of the log, which is not taken out of use; detach it, or replace it"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if side.vdev.kind() == VdevKind::Mirror {
            return Ok(side);
        }
        let text = format!(
            "{name}: is no side of a mirror, so nothing else has its blocks; only a side can be taken out of use"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// The device with this path, or GUID in hexadecimal.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn find(&self, name: &str) -> Result<Side<'_>> {
        let mut sides =
            self.members().flat_map(|vdev| vdev.leaves().map(move |(at, _)| Side { vdev, at }));
        if let Some(side) = sides.find(|side| side.is_called(name)) {
            return Ok(side);
        }
        let has: Vec<String> =
            self.leaves().map(|leaf| format!("{} (guid {:x})", leaf.name(), leaf.guid())).collect();
        let text = format!(
            "{name}: the pool has no such device; name one of these by its path, a missing one by its guid: {}",
            has.join(", ")
        );
        Err(Error::new(ErrorKind::NotFound, text))
    }

    /// The first txg that a device in use misses, among those that can be caught up.
    pub(crate) fn missed_from(&self) -> Option<u64> {
        let missed = self
            .iter()
            .filter(|vdev| vdev.kind() == VdevKind::Mirror)
            .flat_map(|vdev| vdev.used().filter_map(move |(at, _)| vdev.status().missed(at)));
        missed.filter(|missed| missed.to != STILL).map(|missed| missed.from).min()
    }

    /// Whether the device of a place misses a block of this birth.
    pub(crate) fn misses(&self, place: Place, birth: u64) -> bool {
        let vdev = self.get(place.dva.device);
        let missed = vdev.and_then(|vdev| vdev.status().missed(place.leaf));
        missed.is_some_and(|missed| missed.contains(birth))
    }
}

impl VdevStatus {
    /// The device misses what is written from now on. Returns false if no other one has all blocks.
    fn begin_missing(&self, leaf: u8) -> bool {
        let _changing = self.changing();
        let mut others = self.members().filter(|other| *other != leaf);
        let may = others.any(|other| self.is_whole(other));
        if may {
            self.change(leaf, self.state(leaf));
        }
        may
    }
}
