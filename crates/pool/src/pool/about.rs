//! Reads labels of pools that are not imported, destroys such pools, and lists devices and tunables
//! of an imported pool.

use forebay_base::sync::Arc;
use forebay_base::tunables::TunableRow;
use forebay_io::metrics::Metrics;

use super::Pool;
use crate::block_cache::BlockCache;
use crate::devices::label;
use crate::error::{Error, ErrorKind, Result};
use crate::open::{HostId, Opened};
use crate::tunables::OperationTunables;

/// Content of the newest label of a device.
#[derive(Clone, Debug)]
pub struct LabelInfo {
    /// The pool's name.
    pub pool_name: String,
    /// The GUID of the pool.
    pub pool_guid: u64,
    /// The device's number in the pool.
    pub device: u16,
    /// Number of devices in the pool.
    pub device_count: usize,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Whether a host has the pool imported, or crashed while it was imported.
    pub active: bool,
    /// The last host that imported the pool.
    pub host: HostId,
    /// The newest durable transaction group when the label was written.
    pub txg: u64,
}

/// A device of an imported pool.
#[derive(Clone, Debug)]
pub struct PoolDevice {
    /// The device's number in the pool.
    pub number: u16,
    /// The path with which the device was opened.
    pub path: String,
    /// The GUID of the device.
    pub guid: u64,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Whether the device is missing; only after a read-only import.
    pub missing: bool,
    /// The I/O engine, as text.
    pub engine: String,
    /// Whether I/O bypasses the page cache.
    pub direct: bool,
    /// Why I/O goes through the page cache.
    pub buffered: Option<String>,
    /// Bytes that the device rewrites as a whole.
    pub physical_bytes: u32,
    /// What was requested of it since it was opened, and how long that took.
    pub io: Metrics,
}

/// Reads the label of a device without importing its pool. Returns `None` if there is no label.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if a newer version wrote the label, [`ErrorKind::Corrupt`] if its
/// content is invalid, [`ErrorKind::Device`], [`ErrorKind::NoMemory`].
pub fn read_label(device: &Opened, memory: &BlockCache) -> Result<Option<LabelInfo>> {
    let found = label::read(&*device.device, memory)?;
    Ok(found.map(|label| {
        let number = usize::from(label.number);
        LabelInfo {
            device: label.number,
            device_count: label.config.devices.len(),
            size_bytes: label.config.devices.get(number).map_or(0, |device| device.size_bytes),
            pool_name: label.config.pool_name,
            pool_guid: label.config.pool_guid,
            active: label.config.active,
            host: label.config.host,
            txg: label.config.txg,
        }
    }))
}

/// Destroys a pool that is not imported: erases the labels of its devices, durably. The blocks stay
/// on the devices until they are overwritten, but cannot be found any more.
///
/// # Errors
/// [`ErrorKind::NotAPool`] if these are not all devices of one pool; [`ErrorKind::InUse`] if
/// another host may have it imported and `force` is not set; [`ErrorKind::Device`] and
/// [`ErrorKind::NoMemory`], after which some labels may already be erased.
pub fn destroy(devices: &[Opened], force: bool, memory: &BlockCache) -> Result<()> {
    let mut labels = Vec::with_capacity(devices.len());
    for one in devices {
        let name = &one.device.info().name;
        let found = read_label(one, memory)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotAPool,
                format!("{name} holds no pool, so there is nothing to destroy"),
            )
        })?;
        labels.push(found);
    }
    let Some(first) = labels.first() else {
        return Err(Error::new(ErrorKind::Invalid, "cannot destroy a pool: no devices were given"));
    };
    let name = &first.pool_name;
    let mut numbers: Vec<u16> = labels.iter().map(|label| label.device).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let one_pool = labels.iter().all(|label| label.pool_guid == first.pool_guid);
    if !one_pool || numbers.len() != labels.len() {
        let text =
            "the devices belong to several pools, or one is given twice; give each device once";
        return Err(Error::new(ErrorKind::NotAPool, text));
    }
    let count = labels.iter().map(|label| label.device_count).max().unwrap_or(0);
    if labels.len() != count && !force {
        let given = labels.len();
        let text =
            format!("pool {name:?} has {count} devices, {given} are given; give all, or force it");
        return Err(Error::new(ErrorKind::NotAPool, text));
    }
    let this = HostId::of_this_host();
    if let Some(other) = labels.iter().find(|label| label.active && label.host.id != this.id)
        && !force
    {
        let text = format!(
            "pool {name:?}: host {} has it imported; export it there, or force it",
            other.host
        );
        return Err(Error::new(ErrorKind::InUse, text));
    }
    for (one, info) in devices.iter().zip(&labels) {
        label::erase(&*one.device, info.size_bytes, memory)?;
    }
    Ok(())
}

impl Pool {
    /// Returns the pool's devices, ordered by number.
    pub fn devices(&self) -> Vec<PoolDevice> {
        let describe = |member: &crate::devices::Member| {
            let info = member.device().info();
            PoolDevice {
                number: member.number(),
                path: member.name().to_owned(),
                guid: member.guid(),
                size_bytes: member.size_bytes(),
                missing: member.is_missing(),
                engine: info.engine.to_string(),
                direct: info.direct,
                buffered: info.buffered.map(|why| why.to_string()),
                physical_bytes: info.physical_bytes,
                io: member.metrics(),
            }
        };
        self.inner.devices.iter().map(describe).collect()
    }

    /// Returns the pool's sector size in bytes.
    pub fn sector_bytes(&self) -> u32 {
        self.inner.devices.sector_bytes() as u32
    }

    /// Whether the pool was imported read-only.
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// Returns the tunables of operations on mounted datasets.
    pub fn operation_tunables(&self) -> Arc<OperationTunables> {
        Arc::clone(self.inner.tunables.operations())
    }

    /// Returns all tunables of the pool with their values, in the form that
    /// [`set_tunable`](Self::set_tunable) takes.
    pub fn tunables(&self) -> Vec<(&'static TunableRow, String)> {
        self.inner.tunables.entries()
    }
}
