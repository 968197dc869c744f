//! Creates the devices of a pool, and adds devices to one.

#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::rng::SmallRng;
use forebay_io::DeviceInfo;

use super::config::{Config, VdevConfig, VdevKind, check_name, new_guid};
use super::import::{Imported, own_heartbeat};
use super::leaf::Leaf;
use super::vdev::Vdev;
use super::{Devices, features, heartbeat, label, too_small, usable_bytes};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{MAX_LEAVES, MIN_DEVICE_BYTES, SECTOR_BYTES};
use crate::open::{HostId, Opened};

/// A top-level vdev to be created.
#[derive(Debug)]
pub enum NewVdev {
    /// One device.
    Device(Opened),
    /// Devices that each hold all blocks: two or more.
    Mirror(Vec<Opened>),
    /// A device that takes each address once. A pool on it has no other one.
    ObjectStore(Opened),
    /// One device, or devices that mirror each other, for the intent log only. At most one in a
    /// pool.
    Log(Vec<Opened>),
}

impl NewVdev {
    fn kind(&self) -> VdevKind {
        match self {
            Self::Device(_) => VdevKind::Device,
            Self::Log(devices) if devices.len() == 1 => VdevKind::Device,
            Self::Mirror(_) | Self::Log(_) => VdevKind::Mirror,
            Self::ObjectStore(_) => VdevKind::ObjectStore,
        }
    }

    fn devices(&self) -> &[Opened] {
        match self {
            Self::Device(device) | Self::ObjectStore(device) => std::slice::from_ref(device),
            Self::Mirror(devices) | Self::Log(devices) => devices,
        }
    }

    fn is_log(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    fn into_devices(self) -> Vec<Opened> {
        match self {
            Self::Device(device) | Self::ObjectStore(device) => vec![device],
            Self::Mirror(devices) | Self::Log(devices) => devices,
        }
    }

    /// Checks the number and the kind of the devices.
    fn check(&self) -> Result<()> {
        let is_store = self.kind() == VdevKind::ObjectStore;
        let misfit = |one: &&Opened| one.device.info().append_only.is_some() != is_store;
        if let Some(one) = self.devices().iter().find(misfit) {
            let (name, is_not) =
                (&one.device.info().name, if is_store { "is no" } else { "is an" });
            let text = format!(
                "{name}: {is_not} object store; an object store is given as such, and alone"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        match self {
            Self::Mirror(devices) if devices.len() < 2 => {
                let text = "a mirror needs at least two devices; give another one";
                Err(Error::new(ErrorKind::Invalid, text))
            }
            Self::Log(devices) if devices.is_empty() => {
                Err(Error::new(ErrorKind::Invalid, "a log needs a device; give one"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that it may be written to, and builds it.
    fn build(
        self,
        number: u16,
        options: &CreateOptions,
        rng: &mut SmallRng,
        memory: &BlockCache,
    ) -> Result<(Vdev, VdevConfig)> {
        self.check()?;
        let (kind, is_log) = (self.kind(), self.is_log());
        let mut leaves = Vec::new();
        for opened in self.into_devices() {
            check_new(&opened, options.force, memory)?;
            let size_bytes = usable_bytes(&*opened.device);
            leaves.push(Leaf::new(new_guid(rng), size_bytes, opened)?);
        }
        let guid = match kind {
            VdevKind::Device | VdevKind::ObjectStore => leaves[0].guid(),
            VdevKind::Mirror => new_guid(rng),
        };
        let config = Vdev::config_of(guid, kind, &leaves);
        let number = if is_log { config.log_number() } else { number };
        Ok((Vdev::new(number, &config, leaves, 1), config))
    }
}

/// Options for creating a pool.
#[derive(Clone, Debug)]
pub(crate) struct CreateOptions {
    pub(crate) name: String,
    pub(crate) host: HostId,
    /// Seed of the GUIDs.
    pub(crate) seed: u64,
    /// Whether to overwrite devices that hold a pool.
    pub(crate) force: bool,
    /// Milliseconds between heartbeats; 0 for none.
    pub(crate) heartbeat_ms: u32,
    /// The sector size in bytes. `None`: that of the devices.
    pub(crate) sector_bytes: Option<u32>,
}

/// Writes the labels of a new pool to these devices, numbered in the given order. The pool is
/// active. It exists once an uberblock is written.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an invalid name, device or number of devices; [`ErrorKind::Exists`]
/// if a device holds a pool; [`ErrorKind::Device`]; [`ErrorKind::NoMemory`].
pub(crate) fn create(
    wanted: Vec<NewVdev>,
    options: &CreateOptions,
    memory: &BlockCache,
) -> Result<Imported> {
    check_name(&options.name)?;
    let given = || wanted.iter().flat_map(NewVdev::devices);
    let count = given().count();
    let mut blocks = wanted.iter().filter(|one| !one.is_log()).flat_map(NewVdev::devices);
    let Some(first) = blocks.next().filter(|_| count <= MAX_LEAVES) else {
        let text = format!("{count} devices given; a pool has 1 to {MAX_LEAVES}");
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    let mut rng = SmallRng::from_seed(options.seed);
    let pool_guid = new_guid(&mut rng);
    let session = rng.next_u64();
    let own = own_heartbeat(first, &options.host, options.heartbeat_ms, session);
    let infos: Vec<&DeviceInfo> = given().map(|one| one.device.info()).collect();
    let sector_bytes = sector_of_new_pool(&infos, options.sector_bytes)?;
    check_duplicates(&infos)?;
    let (mut logs, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().partition(NewVdev::is_log);
    let log = logs.pop();
    if !logs.is_empty() {
        let text = "a pool has one log; give all of its devices together, to mirror it";
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if wanted.len() > 1 && wanted.iter().any(|one| one.kind() == VdevKind::ObjectStore) {
        let text =
            "a pool on an object store has no other device but for its log; give the store alone";
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let (mut vdevs, mut configs) = (Vec::new(), Vec::new());
    for (number, one) in wanted.into_iter().enumerate() {
        let (vdev, config) = one.build(number as u16, options, &mut rng, memory)?;
        vdevs.push(vdev);
        configs.push(config);
    }
    let log = log.map(|log| log.build(0, options, &mut rng, memory)).transpose()?;
    let (log, log_config) = log.unzip();
    let mut config = Config {
        pool_guid,
        pool_name: options.name.clone(),
        generation: 1,
        txg: 0,
        active: true,
        host: options.host.clone(),
        sector_bytes,
        features: features::of_new_pool(),
        vdevs: configs,
        log: log_config,
    };
    config.count_uses();
    label::format(&vdevs.iter().chain(&log).collect::<Vec<_>>(), &config, memory)?;
    if let Some(own) = &own {
        let beaten: Vec<_> = vdevs[0].leaves().map(|(_, leaf)| &**leaf.device()).collect();
        heartbeat::write(&beaten, pool_guid, own, memory)?;
    }
    let devices = Devices::new(vdevs, u64::from(sector_bytes))?;
    log.map_or(Ok(()), |log| devices.set_log(log))?;
    let (uberblocks, notes) = (Vec::new(), Vec::new());
    Ok(Imported { config, devices, uberblocks, notes, claim: own, log_stamps: Vec::new() })
}

/// Returns the sector size of a new pool on these devices: by default the largest that one of them
/// asks for, as far as the format has it.
///
/// # Errors
/// [`ErrorKind::Invalid`] if `wanted` is no sector size, or too small for a device.
fn sector_of_new_pool(infos: &[&DeviceInfo], wanted: Option<u32>) -> Result<u32> {
    let (least, most) = (*SECTOR_BYTES.start(), *SECTOR_BYTES.end());
    if let Some(bytes) = wanted
        && !(bytes.is_power_of_two() && SECTOR_BYTES.contains(&bytes))
    {
        let text = format!(
            "the sector size cannot be {bytes} bytes; give a power of two from {least} to {most}"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut sector_bytes = least;
    for info in infos {
        let (name, needs) = (&info.name, info.medium_sector_bytes());
        if let Some(bytes) = wanted.filter(|bytes| *bytes < needs) {
            let text = format!(
                "{name}: has sectors of {needs} bytes, so those of the pool cannot have {bytes}; give at least {needs}"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        sector_bytes = sector_bytes.max(info.default_sector_bytes().min(most));
    }
    Ok(wanted.unwrap_or(sector_bytes))
}

/// Checks that a device suits the sector size of the pool that it joins.
///
/// # Errors
/// [`ErrorKind::Invalid`] if its own sectors are larger, or if another size is wanted. Also if its
/// physical sectors are larger, unless the size of the pool is wanted.
pub(super) fn check_sectors(info: &DeviceInfo, pool_bytes: u32, wanted: Option<u32>) -> Result<()> {
    let name = &info.name;
    let invalid = |text| Err(Error::new(ErrorKind::Invalid, text));
    if let Some(bytes) = wanted.filter(|bytes| *bytes != pool_bytes) {
        return invalid(format!(
            "{name}: cannot have sectors of {bytes} bytes: the pool was created with {pool_bytes}"
        ));
    }
    let sector = info.medium_sector_bytes();
    if sector > pool_bytes {
        return invalid(format!(
            "{name}: has sectors of {sector} bytes, larger than the pool's {pool_bytes}; add another device, or copy the files to a new pool"
        ));
    }
    let physical = info.physical_bytes.min(*SECTOR_BYTES.end());
    if physical > pool_bytes && wanted.is_none() {
        return invalid(format!(
            "{name}: has physical sectors of {physical} bytes, larger than the pool's {pool_bytes}: a power cut during a write could damage blocks beside it; to add it all the same, give the sector size of the pool (--sector {pool_bytes})"
        ));
    }
    Ok(())
}

/// Checks that new labels may be written to a device.
pub(super) fn check_new(opened: &Opened, force: bool, memory: &BlockCache) -> Result<()> {
    let info = opened.device.info();
    if usable_bytes(&*opened.device) < MIN_DEVICE_BYTES {
        return Err(too_small(&info.name, info.size_bytes, MIN_DEVICE_BYTES));
    }
    if info.read_only {
        let text = format!("{} is read-only; make it writable, or use another device", info.name);
        return Err(Error::new(ErrorKind::ReadOnly, text));
    }
    let found = if force { Ok(None) } else { label::read(&*opened.device, memory) };
    let what = match found {
        Ok(None) => return Ok(()),
        Ok(Some(label)) => format!("pool {:?}", label.config.pool_name),
        // An unreadable label may belong to a pool of another version.
        Err(error) => match error.kind() {
            ErrorKind::Unsupported | ErrorKind::Corrupt => error.to_string(),
            _ => return Err(error),
        },
    };
    let text = format!("{}: holds {what}; destroy that pool first, or use --force", info.name);
    Err(Error::new(ErrorKind::Exists, text))
}

/// Checks that no path is given twice.
fn check_duplicates(infos: &[&DeviceInfo]) -> Result<()> {
    for (at, info) in infos.iter().enumerate() {
        if infos[..at].iter().any(|other| other.name == info.name) {
            let text = format!("{}: is given twice", info.name);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    Ok(())
}

/// Checks that a device is none of the pool.
pub(super) fn check_no_member(devices: &Devices, opened: &Opened) -> Result<()> {
    let name = &opened.device.info().name;
    if devices.leaves().any(|leaf| leaf.name() == &**name) {
        let text = format!("{name}: is a device of the pool");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Checks that no device of the pool has this GUID.
pub(super) fn check_new_guid(config: &Config, guid: u64) -> Result<()> {
    if config.leaves().any(|leaf| leaf.guid == guid) {
        let text = format!("the pool already has a device with the guid {guid:#x}");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Adds a vdev to an imported pool. Writes its labels first, then those of the other devices. It is
/// a member once an uberblock that counts it is durable; that of a log, once a label lists it.
/// Returns its number.
///
/// # Errors
/// As [`create`]; the configuration is unchanged.
pub(crate) fn add(
    devices: &Devices,
    wanted: NewVdev,
    options: &CreateOptions,
    config: &mut Config,
    memory: &BlockCache,
    may_write: label::MayWrite<'_>,
) -> Result<u16> {
    let invalid = |text| Err(Error::new(ErrorKind::Invalid, text));
    if wanted.kind() == VdevKind::ObjectStore {
        return invalid(
            "an object store cannot join a pool: create a pool on it, and copy the files"
                .to_owned(),
        );
    }
    let is_log = wanted.is_log();
    if let Some(log) = devices.log().filter(|_| is_log) {
        let name = log.name();
        return invalid(format!("the pool has the log device {name}; remove that first"));
    }
    let mut stores = devices.iter().filter(|vdev| vdev.kind() == VdevKind::ObjectStore);
    if let Some(store) = stores.next().filter(|_| !is_log) {
        let name = store.name();
        return invalid(format!(
            "the pool is on the object store {name}, which grows by itself: it takes no other device except for L2 and the log"
        ));
    }
    for one in wanted.devices() {
        check_new(one, options.force, memory)?;
        check_no_member(devices, one)?;
    }
    let infos: Vec<&DeviceInfo> = wanted.devices().iter().map(|one| one.device.info()).collect();
    check_duplicates(&infos)?;
    if config.leaves().count() + infos.len() > MAX_LEAVES {
        return invalid(format!("a pool has at most {MAX_LEAVES} devices"));
    }
    for info in infos {
        check_sectors(info, config.sector_bytes, options.sector_bytes)?;
    }
    let mut rng = SmallRng::from_seed(options.seed);
    let count = devices.count() as u16;
    let (vdev, added) = wanted.build(count, options, &mut rng, memory)?;
    let number = vdev.number();
    // A label without a miss has all blocks up to its txg, so a device that fails now must miss
    // later ones only.
    let syncing = devices.iter().map(|vdev| vdev.status().txg()).max().unwrap_or(0);
    vdev.status().begin_txg(syncing.max(config.txg + 1));
    vdev.leaves().try_for_each(|(_, leaf)| check_new_guid(config, leaf.guid()))?;
    let mut extended = config.clone();
    match is_log {
        true => extended.log = Some(added),
        false => extended.vdevs.push(added),
    }
    if is_log {
        devices.check_log_room()?;
    }
    extended.generation += 1;
    extended.count_uses();
    may_write(extended.generation)?;
    // The new device may have this generation, even after a failure.
    config.generation = extended.generation;
    label::format(&[&vdev], &extended, memory)?;
    match is_log {
        true => devices.set_log(vdev)?,
        false => devices.add(vdev)?,
    }
    *config = extended;
    label::update_config(devices, config, memory, may_write)?;
    Ok(number)
}
