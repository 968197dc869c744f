//! More space: devices that have grown, and new ones.
//!
//! Labels come first. Each txg then fits what is known of space to the devices that there are, so that a crash
//! in between costs nothing: the next txg after the import does it.

use crate::blocking;
use crate::devices::import;
use crate::devices::label;
use crate::error::Result;
use crate::open::{HostId, Opened};
use crate::space::{DeviceSpan, Space};

use super::{Pool, PoolInner};

impl Pool {
    /// Adds a device, striped with the others, durably. Returns its number. `force` takes one that holds a pool.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) also if its sectors are larger than the pool's.
    pub fn add_device(&self, device: Opened, force: bool) -> Result<u16> {
        self.inner.check_writable()?;
        blocking::check("a device")?;
        let inner = &self.inner;
        let number = {
            let mut config = inner.config.lock();
            let options = import::CreateOptions {
                name: inner.name.clone(),
                host: HostId { id: config.host.id, name: config.host.name.clone() },
                seed: inner.rng.lock().next_u64(),
                force,
            };
            import::add(&inner.devices, device, &options, &mut config, inner.store.cache())?
        };
        self.sync()?;
        Ok(number)
    }

    /// Uses all of a device that has grown since it joined the pool, durably. Returns the bytes of it that the pool uses
    /// now. A device that has not grown stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there is no such device; why it could not be written.
    pub fn expand(&self, number: u16) -> Result<u64> {
        self.inner.check_writable()?;
        blocking::check("a device")?;
        let bytes = {
            let mut config = self.inner.config.lock();
            label::expand(&self.inner.devices, number, &mut config, self.inner.store.cache())?
        };
        self.sync()?;
        Ok(bytes)
    }
}

impl PoolInner {
    /// Makes space known that devices have and space does not. Within a txg.
    pub(super) fn fit_space(&self, space: &mut Space) -> Result<()> {
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
