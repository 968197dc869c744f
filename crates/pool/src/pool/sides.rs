//! Takes sides of mirrors out of use, and back into use.

use crate::error::Result;
use crate::events::{Event, EventKind};

use super::{Pool, PoolInner};

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
        if self.inner.offline(device)? {
            self.inner.events().note(EventKind::DeviceOffline, Event::of_device(device));
        }
        self.sync()
    }

    /// Takes a side of a mirror into use again that is offline or faulted, durably, and starts to
    /// bring the blocks onto it that it has missed. Does nothing but the latter if it is in use.
    ///
    /// # Errors
    /// As [`offline_device`](Self::offline_device); [`ErrorKind::Device`](crate::ErrorKind::Device)
    /// if it fails again, [`ErrorKind::NotAPool`](crate::ErrorKind::NotAPool) if it has another
    /// label.
    pub fn online_device(&self, device: &str) -> Result<()> {
        self.inner.check_writable()?;
        if self.inner.online(device)? {
            self.inner.events().note(EventKind::DeviceOnline, Event::of_device(device));
            self.sync()?;
        }
        self.start_resilver().map(|_| ())
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

    /// Takes a side into use. Returns false if it is already.
    fn online(&self, device: &str) -> Result<bool> {
        let side = self.devices.side(device)?;
        let memory = self.store.cache();
        let may_write = |generation| self.may_write_labels(generation);
        // Nobody else writes labels meanwhile.
        let mut config = self.config.lock();
        if side.is_back() {
            return Ok(false);
        }
        self.check_lease()?;
        // If it is in use, the labels could not be written the last time.
        if !side.is_used() {
            let synced = self.txgs.synced_txg();
            self.heartbeats.with_newest(|beats| {
                side.take_online(&self.devices, &mut config, (beats, synced), memory)
            })?;
        }
        let open_txg = || self.txgs.open_txg();
        side.end_missing(&self.devices, &mut config, &open_txg, memory, &may_write)?;
        Ok(true)
    }
}
