//! Sides of mirrors: takes them out of use and back, adds them, removes and replaces them.
//!
//! A new side of the log needs no resilver, but a few groups: then no root needs what it lacks. The
//! call that adds it commits them, and takes the log back to its vdev if it had left that.

use forebay_base::rng::SmallRng;

use crate::devices::attach::{Labels, NewSide};
use crate::devices::reopen::Resumed;
use crate::devices::sides::Side;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::open::Opened;

use super::{Pool, PoolInner};

/// Commits after which a new device of the log has all that counts: more than it takes.
const LOG_COMMITS_MAX: usize = 8;

/// How a device joins a pool that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Whether to overwrite a pool that the device holds.
    pub force: bool,
    /// The pool's sector size, which accepts a device with larger physical sectors: a power cut can
    /// then damage blocks beside the one that is written.
    pub sector_bytes: Option<u32>,
}

impl Pool {
    /// Takes a side of a mirror out of use, durably: it gets no requests any more, also after an
    /// import, until [`online_device`](Self::online_device). `device` is its path, or its GUID in
    /// hexadecimal. Does nothing if it is offline already.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound);
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is no side of a mirror, or the last
    /// one with all blocks; and those of the commit that stores it.
    pub fn offline_device(&self, device: &str) -> Result<()> {
        self.inner.check_writable()?;
        let name = self.inner.devices.side(device)?.leaf().name();
        if self.inner.offline(device)? {
            self.inner.events().note(EventKind::DeviceOffline, Event::of_device(name));
        }
        self.sync()
    }

    /// Takes a side of a mirror into use again that is offline, faulted or missing, durably, and
    /// starts to bring the blocks onto it that it has missed. Does nothing but the latter if it is
    /// in use. A device that was opened by a path is opened again, so it may be another file than
    /// before. `device` may also be a new path of the side.
    ///
    /// # Errors
    /// As [`offline_device`](Self::offline_device); [`ErrorKind::Device`](crate::ErrorKind::Device)
    /// if it fails again, [`ErrorKind::NotAPool`](crate::ErrorKind::NotAPool) if it has another
    /// label, and those of [`open_path`](crate::open_path). Then it is out of use as before.
    pub fn online_device(&self, device: &str) -> Result<()> {
        self.inner.check_writable()?;
        if let Some(side) = self.inner.online(device)? {
            let event = Event::of_device(side.leaf().name());
            self.inner.events().note(EventKind::DeviceOnline, event);
            self.sync()?;
        }
        self.start_resilver().map(|_| ())
    }

    /// Adds a side to a mirror, or makes a mirror of a plain device, durably, and starts to bring
    /// all blocks onto the new device. `device` is a device of the pool: its path, or its GUID in
    /// hexadecimal. A new device of the log is whole when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such device;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the new one is too small, has sectors
    /// that are too large, or is a device of the pool already;
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) if it holds a pool; and those of the labels
    /// and of the commit that stores it. [`ErrorKind::Device`](crate::ErrorKind::Device) if it is
    /// one of the log and fails: it is a device of the pool then, and can be detached.
    pub fn attach_device(&self, device: &str, new: Opened, options: AttachOptions) -> Result<()> {
        self.attach(device, new, options, false)
    }

    /// As [`attach_device`](Self::attach_device); once the new device has all blocks, `device`
    /// leaves by itself, also after another import. It may be faulted, offline or missing.
    ///
    /// # Errors
    /// As [`attach_device`](Self::attach_device), and [`ErrorKind::Invalid`](crate::ErrorKind) if
    /// it is being replaced already.
    pub fn replace_device(&self, device: &str, new: Opened, options: AttachOptions) -> Result<()> {
        self.attach(device, new, options, true)
    }

    fn attach(
        &self,
        device: &str,
        new: Opened,
        AttachOptions { force, sector_bytes }: AttachOptions,
        replaces: bool,
    ) -> Result<()> {
        self.inner.check_writable()?;
        let name = new.device.info().name.to_string();
        let old = self.inner.devices.find(device)?;
        let new = NewSide { device: new, replaces, force, sector_bytes };
        let side = self.inner.attach(device, new)?;
        self.sync()?;
        let of_what = if replaces { "in place of" } else { "beside" };
        let detail = Some(format!("{of_what} {}", old.leaf().name()));
        let event = Event { detail, ..Event::of_device(&name) };
        self.inner.events().note(EventKind::DeviceAttached, event);
        match old.is_of_log() {
            true => self.inner.join_log(side),
            false => self.start_resilver().map(|_| ()),
        }
    }

    /// Removes a side of a mirror for good, durably, and erases its labels. A mirror with one
    /// device left becomes a plain device. The replacement of a device ends if the new one is
    /// detached.
    ///
    /// # Errors
    /// As [`offline_device`](Self::offline_device). If the commit fails, the device gets nothing
    /// any more, and a second call goes on.
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) if its labels cannot be erased, or are left,
    /// because the side was written without the others: the pool goes on without it all the same.
    pub fn detach_device(&self, device: &str) -> Result<()> {
        self.inner.check_writable()?;
        // One that was removed leaves once a commit stores that.
        let devices = &self.inner.devices;
        let leaving = || devices.leaving().into_iter().find(|side| side.is_called(device));
        let of_log = || devices.find(device).ok().filter(Side::is_of_log);
        let side = devices.side(device);
        let side = side.or_else(|error| leaving().or_else(of_log).ok_or(error))?;
        if !side.is_of_log() || side.has_whole() || self.inner.log.has_left_log_vdev() {
            return self.inner.detach(side);
        }
        // What is there may be on this side alone.
        self.inner.take_log_home()?;
        self.inner.detach(side)?;
        self.inner.catch_up_log()?;
        self.inner.use_log()
    }
}

impl PoolInner {
    /// Takes a side out of use. Returns false if it is already.
    fn offline(&self, device: &str) -> Result<bool> {
        let side = self.devices.side(device)?;
        let may_write = |generation| self.may_write_labels(generation);
        let open_txg = || self.txgs.open_txg();
        let mut config = self.config.lock();
        let memory = self.store.cache();
        side.take_offline(&self.devices, &mut config, &open_txg, memory, &may_write)
    }

    /// Takes a side into use, and returns it. `None` if it is already.
    fn online(&self, device: &str) -> Result<Option<Side<'_>>> {
        let memory = self.store.cache();
        let may_write = |generation| self.may_write_labels(generation);
        // Nobody else writes labels meanwhile.
        let mut config = self.config.lock();
        let (mut side, path) = self.devices.side_or_path(device, self.guid, memory)?;
        if side.is_back() {
            return Ok(None);
        }
        self.check_lease()?;
        // If it is in use, the labels could not be written the last time.
        if !side.is_used() {
            // A heartbeat that is on its way to it ends first.
            self.heartbeats.with_newest(|_| ());
            let synced = self.txgs.synced_txg();
            let lacks_from;
            (side, lacks_from) = self.devices.reopen(side, path, (&config, synced), memory)?;
            // A copy: a side that hangs must not keep the others' heartbeats from being written.
            let beats = self.heartbeats.with_newest(|beats| beats.cloned());
            side.take_online(&self.devices, self.guid, beats.as_ref(), memory)?;
            side.misses_since(lacks_from);
        }
        let open_txg = || self.txgs.open_txg();
        side.end_missing(&self.devices, &mut config, &open_txg, memory, &may_write)?;
        Ok(Some(side))
    }

    /// Opens devices again that are gone, if the pool is suspended until it is cleared. Returns
    /// whether any was opened.
    pub(super) fn reopen_gone(&self) -> Result<bool> {
        // Nobody else changes devices meanwhile.
        let config = self.config.lock();
        if !self.txgs.suspension().is_some_and(|now| now.resumable) {
            return Ok(false);
        }
        let beats = self.heartbeats.with_newest(|beats| beats.cloned());
        let resumed = Resumed {
            config: &config,
            synced: self.txgs.synced_txg(),
            beats: beats.as_ref(),
            relies_on_devices: self.store.relies_on_devices(),
            log_is_on: &|vdev, read| self.log.is_on(vdev, read),
            takes_lost_end: false,
            pause: &super::import::sleep,
        };
        self.devices.reopen_gone(&resumed, self.store.cache())
    }

    fn attach(&self, device: &str, new: NewSide) -> Result<Side<'_>> {
        let may_write = |generation| self.may_write_labels(generation);
        let open_txg = || self.txgs.open_txg();
        let mut config = self.config.lock();
        self.check_lease()?;
        let mut rng = SmallRng::from_seed(self.rng.lock().next_u64());
        let beats = self.heartbeats.with_newest(|beats| beats.cloned());
        let labels =
            Labels { config: &mut config, memory: self.store.cache(), may_write: &may_write };
        let beats = (beats.as_ref(), &mut rng);
        // If the sides of the log have failed, what the newest group needs is on them. So the log
        // leaves the vdev before it could use the new side.
        if !self.devices.has_usable_log() {
            self.log.move_to(None)?;
        }
        let side = self.devices.attach(device, new, beats, &open_txg, labels)?;
        if side.is_of_log() && !side.has_used_other() {
            // They have failed meanwhile.
            self.log.move_to(None)?;
        }
        Ok(side)
    }

    /// The log is in the space of the pool, for all groups to which an import may go back.
    fn take_log_home(&self) -> Result<()> {
        self.log.move_to(None)?;
        self.sync_moved()?;
        self.txgs.sync_now().map(drop)
    }

    /// Commits until a side that has joined the log vdev has all records that a root may need, lets
    /// the one leave that it replaces, and takes the log back to the vdev.
    fn join_log(&self, side: Side<'_>) -> Result<()> {
        self.catch_up_log()?;
        if !side.is_whole() {
            let name = side.leaf().name();
            let text = format!(
                "{name}: fails, and has not all of the log; detach it, and attach another device"
            );
            return Err(Error::new(ErrorKind::Device, text));
        }
        self.finish_replacements();
        self.use_log()
    }

    /// Commits until the devices of the log vdev that are in use miss nothing that a root needs.
    pub(super) fn catch_up_log(&self) -> Result<()> {
        for _ in 0..LOG_COMMITS_MAX {
            self.txgs.sync_now()?;
            let is_settled = !self.log.is_home() || self.log.has_left_log_vdev();
            if is_settled && !self.devices.log_catches_up() {
                break;
            }
        }
        Ok(())
    }

    fn detach(&self, side: Side<'_>) -> Result<()> {
        let may_write = |generation| self.may_write_labels(generation);
        let open_txg = || self.txgs.open_txg();
        {
            let mut config = self.config.lock();
            self.check_lease()?;
            let labels =
                Labels { config: &mut config, memory: self.store.cache(), may_write: &may_write };
            // If it is removed already, an earlier commit may have failed.
            self.devices.detach(side, &open_txg, labels)?;
        }
        // Stores it, and ends the writes of uberblocks and of heartbeats that go to the side.
        self.txgs.sync_now()?;
        self.heartbeats.with_newest(|_| ());
        {
            let _config = self.config.lock();
            side.end_limit();
        }
        self.events().note(EventKind::DeviceDetached, Event::of_device(side.leaf().name()));
        side.release(self.guid, self.store.cache())
    }

    /// Whether a device waits to leave, because its replacement has all blocks.
    pub(super) fn has_replaced(&self) -> bool {
        !self.devices.replaced().is_empty() || !self.devices.leaving().is_empty()
    }

    /// Detaches the devices whose replacements have all blocks, and ends what was begun.
    pub(super) fn finish_replacements(&self) {
        for side in self.devices.replaced().into_iter().chain(self.devices.leaving()) {
            if let Err(error) = self.detach(side) {
                let (pool, device) = (&*self.name, side.leaf().name());
                tracing::error!(pool, device, %error, "cannot detach a replaced device");
            }
        }
    }

    /// Releases the devices that were removed, after the last commit.
    pub(super) fn release_leaving(&self) {
        for side in self.devices.leaving() {
            if let Err(error) = side.release(self.guid, self.store.cache()) {
                let (pool, device) = (&*self.name, side.leaf().name());
                tracing::error!(pool, device, %error, "cannot erase the labels of a detached device");
            }
        }
    }
}
