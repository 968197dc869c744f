//! From opened devices to the devices of a pool: making a new pool's labels, and finding out
//! whether what is there is a pool, whole, and this host's to have.
//!
//! Which devices a pool has is said by its newest uberblock (how many) and its newest configuration
//! (which). So a device that was being added when the power went is a member if and only if a txg
//! was committed with it.

use forebay_base::rng::SmallRng;

use super::config::{Config, DeviceConfig, Label, check_name, new_guid};
use super::label::{self, Uberblock};
use super::{Devices, Member, too_small, usable_bytes};
use crate::block_cache::BlockCache;
use crate::block_key::BIRTH_END;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{MAX_DEVICES, MIN_DEVICE_BYTES};
use crate::open::{HostId, Opened};

/// Txgs of pools that are imported have smaller numbers: as many are left before births of blocks cannot be told
/// any more.
const TXG_END: u64 = BIRTH_END / 2;

/// What a new pool is to be.
#[derive(Clone, Debug)]
pub(crate) struct CreateOptions {
    pub(crate) name: String,
    pub(crate) host: HostId,
    /// For the numbers that name pool and devices for ever.
    pub(crate) seed: u64,
    /// Whether devices that hold a pool may be used all the same.
    pub(crate) force: bool,
}

/// How to import.
#[derive(Clone, Debug)]
pub(crate) struct ImportOptions {
    pub(crate) host: HostId,
    /// Whether to take a pool that another host may have.
    pub(crate) force: bool,
}

/// The devices of a pool, and what their labels say.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) config: Config,
    pub(crate) devices: Devices,
    /// The newest first; none for a new pool.
    pub(crate) uberblocks: Vec<Uberblock>,
}

/// Writes the labels of a new pool over these devices, numbered in their order. The pool is active,
/// and exists once an uberblock is written.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a name, device or number of devices that cannot be;
/// [`ErrorKind::Exists`] if a device holds a pool; [`ErrorKind::Device`]; [`ErrorKind::NoMemory`].
pub(crate) fn create(
    opened: Vec<Opened>,
    options: &CreateOptions,
    memory: &BlockCache,
) -> Result<Imported> {
    check_name(&options.name)?;
    if opened.is_empty() || opened.len() > MAX_DEVICES {
        let text = format!("{} devices; a pool has 1 to {MAX_DEVICES}", opened.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut rng = SmallRng::from_seed(options.seed);
    let pool_guid = new_guid(&mut rng);
    let mut members = Vec::with_capacity(opened.len());
    let mut sector_bytes = 512;
    for (number, opened) in opened.into_iter().enumerate() {
        check_new(&opened, options.force, memory)?;
        sector_bytes = sector_bytes.max(opened.device.info().sector_bytes);
        let size_bytes = usable_bytes(&*opened.device);
        members.push(Member::new(number as u16, new_guid(&mut rng), size_bytes, opened)?);
    }
    check_twice(&members)?;
    let config = Config {
        pool_guid,
        pool_name: options.name.clone(),
        generation: 1,
        txg: 0,
        active: true,
        host: options.host.clone(),
        sector_bytes,
        features: Vec::new(),
        devices: members.iter().map(device_config).collect(),
    };
    label::format(&members.iter().collect::<Vec<_>>(), &config, memory)?;
    let devices = Devices::new(members, u64::from(sector_bytes))?;
    Ok(Imported { config, devices, uberblocks: Vec::new() })
}

fn device_config(member: &Member) -> DeviceConfig {
    DeviceConfig { guid: member.guid(), size_bytes: member.size_bytes() }
}

/// Checks that a device may get new labels.
fn check_new(opened: &Opened, force: bool, memory: &BlockCache) -> Result<()> {
    let info = opened.device.info();
    if usable_bytes(&*opened.device) < MIN_DEVICE_BYTES {
        return Err(too_small(&info.name, info.size_bytes, MIN_DEVICE_BYTES));
    }
    if info.read_only {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{}: is read-only", info.name)));
    }
    let found = if force { Ok(None) } else { label::read(&*opened.device, memory) };
    let what = match found {
        Ok(None) => return Ok(()),
        Ok(Some(label)) => format!("pool {:?}", label.config.pool_name),
        // A label that this code cannot read is somebody's all the same.
        Err(error) => match error.kind() {
            ErrorKind::Unsupported | ErrorKind::Corrupt => error.to_string(),
            _ => return Err(error),
        },
    };
    let text = format!("{}: holds {what}; destroy that, or force it", info.name);
    Err(Error::new(ErrorKind::Exists, text))
}

/// Checks that no path is given twice.
fn check_twice(members: &[Member]) -> Result<()> {
    for (at, member) in members.iter().enumerate() {
        if members[..at].iter().any(|other| other.name() == member.name()) {
            let text = format!("{}: is given twice", member.name());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    Ok(())
}

/// Adds a device to an imported pool: its labels first, then those of the others. It is a member
/// once an uberblock that counts it is durable. Returns its number.
///
/// # Errors
/// As [`create`]; the configuration is as it was then.
pub(crate) fn add(
    devices: &Devices,
    opened: Opened,
    options: &CreateOptions,
    config: &mut Config,
    memory: &BlockCache,
) -> Result<u16> {
    check_new(&opened, options.force, memory)?;
    let count = devices.count();
    if count == MAX_DEVICES {
        let text = format!("a pool has at most {MAX_DEVICES} devices");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let name = &opened.device.info().name;
    if devices.iter().any(|member| member.name() == &**name) {
        return Err(Error::new(ErrorKind::Invalid, format!("{name}: is a device of the pool")));
    }
    let guid = new_guid(&mut SmallRng::from_seed(options.seed));
    if config.devices.iter().any(|device| device.guid == guid) {
        return Err(Error::new(ErrorKind::Invalid, format!("a device {guid:#x} is there already")));
    }
    let size_bytes = usable_bytes(&*opened.device);
    let member = Member::new(count as u16, guid, size_bytes, opened)?;
    let sector = u64::from(member.device().info().sector_bytes);
    if sector > devices.sector_bytes() {
        let (name, has) = (member.name(), devices.sector_bytes());
        let text = format!("{name}: sectors of {sector} bytes, the pool's have {has}");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut wider = config.clone();
    wider.devices.push(device_config(&member));
    wider.generation += 1;
    label::format(&[&member], &wider, memory)?;
    devices.add(member)?;
    *config = wider;
    label::update_config(devices, config, memory)?;
    Ok(count as u16)
}

/// Finds out which pool these devices are, whether it is whole, and whether this host may have it.
/// Writes nothing: the caller marks it active with [`label::update_config`].
///
/// # Errors
/// [`ErrorKind::NotAPool`] if there is no pool, or not all of one, or several; [`ErrorKind::InUse`]
/// if another host may have it; [`ErrorKind::Unsupported`] if a newer version wrote it;
/// [`ErrorKind::Invalid`], [`ErrorKind::Corrupt`], [`ErrorKind::Device`], [`ErrorKind::NoMemory`].
pub(crate) fn import(
    opened: Vec<Opened>,
    options: &ImportOptions,
    memory: &BlockCache,
) -> Result<Imported> {
    let mut labelled = Vec::with_capacity(opened.len());
    for one in opened {
        let Some(label) = label::read(&*one.device, memory)? else {
            let text = format!("{}: holds no pool", one.device.info().name);
            return Err(Error::new(ErrorKind::NotAPool, text));
        };
        labelled.push((one, label));
    }
    let mut config = newest_config(&labelled)?;
    check_host(&config, options)?;
    let sized: Vec<_> = labelled
        .iter()
        .map(|(one, _)| (&*one.device, size_of_device(one, &labelled, &config)))
        .collect();
    let uberblocks = label::best_uberblocks(&sized, config.pool_guid, memory)?;
    let Some(newest) = uberblocks.first() else {
        let text = format!("pool {:?}: no uberblock is left on its devices", config.pool_name);
        return Err(Error::new(ErrorKind::NotAPool, text));
    };
    if newest.txg >= TXG_END {
        let (name, txg) = (&config.pool_name, newest.txg);
        let text = format!("pool {name:?}: its uberblock is of txg {txg}, which cannot be");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let count = usize::from(newest.device_count);
    if count == 0 || count > config.devices.len() {
        let (name, has) = (&config.pool_name, config.devices.len());
        let text = format!("pool {name:?}: {count} devices by its uberblock, {has} by its labels");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    config.devices.truncate(count);
    let members = select(labelled, &config)?;
    let devices = Devices::new(members, u64::from(config.sector_bytes))?;
    Ok(Imported { config, devices, uberblocks })
}

/// The configuration of the newest label, if all are of one pool.
pub(crate) fn newest_config(labelled: &[(Opened, Label)]) -> Result<Config> {
    let Some((first, label)) = labelled.first() else {
        return Err(Error::new(ErrorKind::Invalid, "no devices are given to import a pool from"));
    };
    let pool = &label.config;
    for (other, label) in labelled {
        if label.config.pool_guid != pool.pool_guid {
            let (a, b) = (&first.device.info().name, &other.device.info().name);
            let (pool, another) = (&pool.pool_name, &label.config.pool_name);
            let text = format!("{a} is of pool {pool:?}, {b} of another one, {another:?}");
            return Err(Error::new(ErrorKind::NotAPool, text));
        }
    }
    // If two say different things as of the same generation, a device was being added: the older
    // devices know.
    let key = |label: &Label| {
        let number = std::cmp::Reverse(label.number);
        (label.config.generation, label.config.txg, number)
    };
    let newest = labelled.iter().map(|(_, label)| label).max_by_key(|label| key(label));
    Ok(newest.unwrap_or(label).config.clone())
}

fn check_host(config: &Config, options: &ImportOptions) -> Result<()> {
    let Config { pool_name, host, active, .. } = config;
    if !active || host.id == options.host.id || options.force {
        return Ok(());
    }
    let text = format!(
        "pool {pool_name:?}: host {host} has it imported; export it there, or force the import if that \
         host is gone"
    );
    Err(Error::new(ErrorKind::InUse, text))
}

/// Bytes of a device that the pool uses, for finding its back label.
fn size_of_device(one: &Opened, labelled: &[(Opened, Label)], config: &Config) -> u64 {
    let has_bytes = usable_bytes(&*one.device);
    let guid = labelled
        .iter()
        .find(|(other, _)| std::ptr::eq(other, one))
        .map(|(_, label)| label.config.devices[usize::from(label.number)].guid);
    let known = config.devices.iter().find(|device| Some(device.guid) == guid);
    known.map_or(has_bytes, |device| device.size_bytes.min(has_bytes))
}

/// The members among what was opened, in the order of their numbers.
fn select(labelled: Vec<(Opened, Label)>, config: &Config) -> Result<Vec<Member>> {
    let pool = &config.pool_name;
    let mut slots: Vec<Option<Opened>> = config.devices.iter().map(|_| None).collect();
    let mut passed_over = Vec::new();
    for (one, label) in labelled {
        let guid = label.config.devices[usize::from(label.number)].guid;
        let name = one.device.info().name.clone();
        match config.devices.iter().position(|device| device.guid == guid) {
            // It was being added, and no txg was committed with it.
            None => passed_over.push(format!("{name} is not a member")),
            Some(number) => {
                if let Some(other) = &slots[number] {
                    let other = &other.device.info().name;
                    let text = format!(
                        "pool {pool:?}: device {number} is given twice, as {other} and {name}"
                    );
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                slots[number] = Some(one);
            }
        }
    }
    let missing: Vec<String> = slots
        .iter()
        .zip(&config.devices)
        .enumerate()
        .filter(|(_, (slot, _))| slot.is_none())
        .map(|(number, (_, device))| format!("device {number} (guid {:#x})", device.guid))
        .collect();
    if !missing.is_empty() {
        let found = slots.iter().flatten().map(|one| one.device.info().name.to_string());
        let found: Vec<_> = found.chain(passed_over).collect();
        let (missing, found) = (missing.join(", "), found.join(", "));
        let text = format!("pool {pool:?}: {missing} missing; found: {found}");
        return Err(Error::new(ErrorKind::NotAPool, text));
    }
    let known = config.devices.iter().enumerate();
    let members = slots.into_iter().flatten().zip(known).map(|(one, (number, device))| {
        let info = one.device.info();
        if device.size_bytes > info.size_bytes {
            let (name, has, had) = (&info.name, info.size_bytes, device.size_bytes);
            let text = format!(
                "{name}: has {has} bytes, and had {had} as device {number} of {pool:?}: it was cut short"
            );
            return Err(Error::new(ErrorKind::NotAPool, text));
        }
        Member::new(number as u16, device.guid, device.size_bytes, one)
    });
    members.collect()
}
