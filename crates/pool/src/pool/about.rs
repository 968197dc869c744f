//! Reads labels of pools that are not imported, destroys such pools, and lists devices and tunables
//! of an imported pool.

use forebay_base::sync::Arc;
use forebay_base::tunables::TunableRow;
use forebay_io::Stored;
use forebay_io::metrics::Metrics;

use super::Pool;
use crate::block_cache::BlockCache;
use crate::devices::config::{Config, VdevConfig, VdevKind};
use crate::devices::status::STILL;
use crate::devices::vdev::LeafState;
use crate::devices::{Vdev, label};
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
    /// The number of the device's top-level vdev in the pool.
    pub device: u16,
    /// The GUID of the device.
    pub device_guid: u64,
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
    /// How often the configuration was changed when the label was written.
    pub generation: u64,
    /// All devices of the pool: the number of the top-level vdev, and the GUID of the device. The
    /// vdev of the log has a number from [`LOG_VDEV`](crate::format::label::LOG_VDEV) on.
    pub leaves: Vec<(u16, u64)>,
}

/// A top-level vdev of an imported pool: a device or a mirror.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolVdev {
    /// Its number in the pool.
    pub number: u16,
    /// Its GUID.
    pub guid: u64,
    /// Whether it is a mirror.
    pub mirror: bool,
    /// Whether it holds the intent log, and no blocks.
    pub log: bool,
    /// Its devices.
    pub devices: Vec<PoolDevice>,
}

/// A device of an imported pool.
#[derive(Clone, Debug)]
pub struct PoolDevice {
    /// The number of the device's top-level vdev in the pool.
    pub number: u16,
    /// Whether that is a mirror.
    pub mirror: bool,
    /// Whether that holds the intent log, and no blocks.
    pub log: bool,
    /// Which device of the vdev it is.
    pub side: u8,
    /// The path of the side that leaves once this one has all blocks.
    pub replaces: Option<String>,
    /// Its state.
    pub state: LeafState,
    /// Reads that failed, since it joined the pool or was cleared.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Blocks that had a wrong checksum.
    pub checksum_errors: u64,
    /// The first txg of which it misses blocks.
    pub missed_from: Option<u64>,
    /// The last such txg; `None` if it still misses what is written.
    pub missed_to: Option<u64>,
    /// The path with which the device was opened.
    pub path: String,
    /// The GUID of the device.
    pub guid: u64,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Whether the device is missing: in a mirror, or after a read-only import.
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
    /// Whether it is an object store, which takes each address once.
    pub object_store: bool,
    /// The counters of an object store: name, label and value.
    pub store_counters: Vec<(&'static str, &'static str, u64)>,
    /// What an object store keeps.
    pub stored: Option<Stored>,
}

/// Reads the label of a device without importing its pool. Returns `None` if there is no label.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if a newer version wrote the label, [`ErrorKind::Corrupt`] if its
/// content is invalid, [`ErrorKind::Device`], [`ErrorKind::NoMemory`].
pub fn read_label(device: &Opened, memory: &BlockCache) -> Result<Option<LabelInfo>> {
    let found = label::read(&*device.device, memory)?;
    Ok(found.map(|label| LabelInfo {
        generation: label.config.generation,
        leaves: leaves_of(&label.config),
        device: label.number,
        device_guid: label.own().guid,
        device_count: label.config.leaves().count(),
        size_bytes: label.own().size_bytes,
        pool_name: label.config.pool_name,
        pool_guid: label.config.pool_guid,
        active: label.config.active,
        host: label.config.host,
        txg: label.config.txg,
    }))
}

fn leaves_of(config: &Config) -> Vec<(u16, u64)> {
    let of = |(number, vdev): (u16, &VdevConfig)| -> Vec<(u16, u64)> {
        vdev.leaves.iter().map(|leaf| (number, leaf.guid)).collect()
    };
    config.numbered().flat_map(of).collect()
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
    let mut guids: Vec<u64> = labels.iter().map(|label| label.device_guid).collect();
    guids.sort_unstable();
    guids.dedup();
    let one_pool = labels.iter().all(|label| label.pool_guid == first.pool_guid);
    if !one_pool || guids.len() != labels.len() {
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
    /// Returns the pool's devices, ordered by vdev, those of the log last.
    pub fn devices(&self) -> Vec<PoolDevice> {
        self.vdevs().into_iter().flat_map(|vdev| vdev.devices).collect()
    }

    /// Returns the pool's top-level vdevs, ordered by number, that of the log last.
    pub fn vdevs(&self) -> Vec<PoolVdev> {
        let describe = |vdev: &Vdev| PoolVdev {
            number: vdev.number(),
            guid: vdev.guid(),
            mirror: vdev.kind() == VdevKind::Mirror,
            log: vdev.is_log(),
            devices: vdev.leaves().map(|(at, _)| device(vdev, at)).collect(),
        };
        self.inner.devices.members().map(describe).collect()
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

fn device(vdev: &Vdev, at: u8) -> PoolDevice {
    let leaf = vdev.leaf(at);
    let info = leaf.device().info();
    let (errors, missed) = (vdev.errors(at), vdev.status().missed(at));
    let object_store = vdev.kind() == VdevKind::ObjectStore;
    let stats = object_store.then(|| leaf.device().stats());
    let stored = stats.as_ref().and_then(|stats| stats.stored);
    let store_counters = stats.map(|stats| stats.counters).unwrap_or_default();
    PoolDevice {
        number: vdev.number(),
        mirror: vdev.kind() == VdevKind::Mirror,
        log: vdev.is_log(),
        side: at,
        replaces: vdev.replaced_by(at).map(|(_, old)| old.name().to_owned()),
        state: vdev.leaf_state(at),
        read_errors: errors.reads,
        write_errors: errors.writes,
        checksum_errors: errors.checksums,
        missed_from: missed.map(|missed| missed.from),
        missed_to: missed.map(|missed| missed.to).filter(|to| *to != STILL),
        path: leaf.name().to_owned(),
        guid: leaf.guid(),
        size_bytes: leaf.size_bytes(),
        missing: leaf.is_missing(),
        engine: info.engine.to_string(),
        direct: info.direct,
        buffered: info.buffered.map(|why| why.to_string()),
        physical_bytes: info.physical_bytes,
        io: leaf.metrics(),
        object_store,
        store_counters,
        stored,
    }
}
