//! Grows a pool: new devices, and devices that have become larger. Adds and removes the log vdev.
//!
//! The labels are written first. Each txg then extends the space maps to the ranges that the labels
//! describe. After a crash in between, the first txg after the import does so.

use crate::devices::create::{self, NewVdev};
use crate::devices::label;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::open::{HostId, Opened};
use crate::space::{DeviceSpan, Space};

use super::{Pool, PoolInner};

impl Pool {
    /// Adds a device to the stripe, durably, and returns its number. `force` overwrites a pool that
    /// the device holds. `sector_bytes`, the pool's sector size, accepts a device with larger
    /// physical sectors: a power cut can then damage blocks beside the one that is written.
    ///
    /// # Errors
    /// As [`create`](Self::create). [`ErrorKind::Invalid`] also if the
    /// device's sectors are larger than the pool's, or its physical sectors without `sector_bytes`;
    /// or if `sector_bytes` is not the pool's sector size.
    pub fn add_device(
        &self,
        device: Opened,
        force: bool,
        sector_bytes: Option<u32>,
    ) -> Result<u16> {
        self.add_vdev(NewVdev::Device(device), force, sector_bytes)
    }

    /// As [`add_device`](Self::add_device), for a device or a mirror, of blocks or of the log.
    ///
    /// # Errors
    /// As [`add_device`](Self::add_device).
    pub fn add_vdev(&self, vdev: NewVdev, force: bool, sector_bytes: Option<u32>) -> Result<u16> {
        self.inner.check_writable()?;
        let inner = &self.inner;
        let number = {
            let mut config = inner.config.lock();
            let options = create::CreateOptions {
                name: inner.name.clone(),
                host: HostId { id: config.host.id, name: config.host.name.clone() },
                seed: inner.rng.lock().next_u64(),
                force,
                heartbeat_ms: 0,
                sector_bytes,
            };
            let memory = inner.store.cache();
            let may_write = |generation| inner.may_write_labels(generation);
            create::add(&inner.devices, vdev, &options, &mut config, memory, &may_write)?
        };
        match inner.devices.log().is_some_and(|log| log.number() == number) {
            true => inner.use_log()?,
            false => self.sync()?,
        }
        let name = inner.devices.get(number).map(|vdev| vdev.name());
        let event = Event { device: name.as_deref(), ..Event::default() };
        inner.events().note(EventKind::DeviceAdded, event);
        Ok(number)
    }

    /// Removes the log vdev, durably: the intent log goes on in the space of the pool.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none, and any error of a
    /// commit or of writing labels.
    pub fn remove_log(&self) -> Result<()> {
        self.inner.check_writable()?;
        let inner = &self.inner;
        for _ in 0..MOVES_MAX {
            inner.log.move_to(None)?;
            inner.sync_moved()?;
            // The group before, to which an import may fall back, needs it no more either.
            self.sync()?;
            let mut config = inner.config.lock();
            // Another command may have moved the log back. From here on none can.
            if !inner.log.has_left_log_vdev() {
                continue;
            }
            let may_write = |generation| inner.may_write_labels(generation);
            let removed = inner.devices.remove_log(&mut config, inner.store.cache(), &may_write);
            if removed.is_err() {
                inner.log.move_to(inner.devices.log_extent())?;
            }
            removed?;
            tracing::info!(pool = self.name(), "removed the log device");
            return Ok(());
        }
        Err(not_moved())
    }

    /// Uses the whole of a device that has grown since it joined the pool, durably; of a mirror, as
    /// much as its smallest device has. Returns the number of bytes of each device that the pool
    /// now uses. Does nothing if the device has not grown.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such device, and any error
    /// of writing its labels.
    pub fn expand(&self, number: u16) -> Result<u64> {
        self.inner.check_writable()?;
        let (before, bytes) = {
            let mut config = self.inner.config.lock();
            let before = config.vdevs.get(usize::from(number)).map(|vdev| vdev.size_bytes());
            let (inner, memory) = (&self.inner, self.inner.store.cache());
            let may_write = |generation| inner.may_write_labels(generation);
            (before, label::expand(&inner.devices, number, &mut config, memory, &may_write)?)
        };
        self.sync()?;
        if before != Some(bytes) {
            let name = self.inner.devices.get(number).map(|vdev| vdev.name());
            let detail = Some(format!("{bytes} bytes are used"));
            let event = Event { device: name.as_deref(), detail, ..Event::default() };
            self.inner.events().note(EventKind::DeviceExpanded, event);
        }
        Ok(bytes)
    }
}

/// Commits until a root has moved the log: one that needs no block of the old place.
const MOVES_MAX: usize = 4;

impl PoolInner {
    /// Moves the intent log to the log vdev, unless it is there.
    pub(super) fn use_log(&self) -> Result<()> {
        {
            let _config = self.config.lock();
            if self.log.has_left_log_vdev() {
                self.devices.log_begins();
            }
            self.log.move_to(self.devices.log_extent())?;
        }
        self.sync_moved()
    }

    /// Commits until the intent log is where it was moved to.
    pub(super) fn sync_moved(&self) -> Result<()> {
        for _ in 0..MOVES_MAX {
            self.txgs.sync_now()?;
            if !self.log.is_moving() {
                return Ok(());
            }
        }
        Err(not_moved())
    }

    /// Extends the space maps to ranges that devices have gained. Must run within a txg.
    pub(super) fn extend_space(&self, space: &mut Space) -> Result<()> {
        let spans: Vec<DeviceSpan> = self.devices.spans();
        let mut known = self.spans.lock();
        if *known == spans {
            return Ok(());
        }
        for span in &spans {
            if space.has_device(span.device) {
                space.extend_span(span)?;
            } else {
                space.add_span(span)?;
            }
        }
        *known = spans;
        Ok(())
    }
}

fn not_moved() -> Error {
    let text = "the intent log has not left its place; repeat the command";
    Error::new(ErrorKind::Device, text)
}
