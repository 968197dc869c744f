//! What devices say of the pool that they belong to without importing it, how such a pool is destroyed, and what an
//! imported pool says of its devices and tunables.

use forebay_base::tunables::TunableRow;

use super::Pool;
use crate::block_cache::BlockCache;
use crate::devices::label;
use crate::error::{Error, ErrorKind, Result};
use crate::open::{HostId, Opened};

/// What the newest label of a device says.
#[derive(Clone, Debug)]
pub struct LabelInfo {
    /// The pool's name.
    pub pool_name: String,
    /// The number that names the pool for ever.
    pub pool_guid: u64,
    /// The device's number in the pool.
    pub device: u16,
    /// Devices that the pool has.
    pub device_count: usize,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Whether a host has the pool imported, or crashed while it had.
    pub active: bool,
    /// The last host that imported it.
    pub host: HostId,
    /// A transaction group that was durable when the label was written.
    pub txg: u64,
}

/// A device of an imported pool.
#[derive(Clone, Debug)]
pub struct PoolDevice {
    /// Its number in the pool.
    pub number: u16,
    /// Its path, as it was opened.
    pub path: String,
    /// The number that names it for ever.
    pub guid: u64,
    /// Bytes that the pool uses.
    pub size_bytes: u64,
    /// What executes its requests, in words.
    pub engine: String,
    /// Whether it goes around the page cache.
    pub direct: bool,
}

/// Reads the label of a device, without importing its pool; nothing if it has none.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if a newer version wrote it, [`ErrorKind::Corrupt`] if it makes no sense,
/// [`ErrorKind::Device`], [`ErrorKind::NoMemory`].
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

/// Destroys a pool that nobody has imported: erases the labels of its devices, durably. What blocks hold stays
/// until it is overwritten, and cannot be found any more.
///
/// # Errors
/// [`ErrorKind::NotAPool`] if they are not all devices of one pool; [`ErrorKind::InUse`] if another host may have it and
/// it is not forced; [`ErrorKind::Device`], [`ErrorKind::NoMemory`]. If the last two come in the middle, some labels are
/// gone already.
pub fn destroy(devices: &[Opened], force: bool, memory: &BlockCache) -> Result<()> {
    let mut labels = Vec::with_capacity(devices.len());
    for one in devices {
        let name = &one.device.info().name;
        let found = read_label(one, memory)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotAPool,
                format!("{name}: holds no pool; there is nothing to destroy"),
            )
        })?;
        labels.push(found);
    }
    let Some(first) = labels.first() else {
        return Err(Error::new(ErrorKind::Invalid, "no devices are given of a pool to destroy"));
    };
    let name = &first.pool_name;
    let mut numbers: Vec<u16> = labels.iter().map(|label| label.device).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let one_pool = labels.iter().all(|label| label.pool_guid == first.pool_guid);
    if !one_pool || numbers.len() != labels.len() {
        let text = "these are not devices of one pool, each once; give those of one at a time";
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
    /// Its devices, by number.
    pub fn devices(&self) -> Vec<PoolDevice> {
        let describe = |member: &crate::devices::Member| {
            let info = member.device().info();
            PoolDevice {
                number: member.number(),
                path: member.name().to_owned(),
                guid: member.guid(),
                size_bytes: member.size_bytes(),
                engine: info.engine.to_string(),
                direct: info.direct,
            }
        };
        self.inner.devices.iter().map(describe).collect()
    }

    /// Whether it was imported for reading only.
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// Its tunables with their values, as [`set_tunable`](Self::set_tunable) takes them.
    pub fn tunables(&self) -> Vec<(&'static TunableRow, String)> {
        self.inner.tunables.entries()
    }
}
