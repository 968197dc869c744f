//! Creates and imports the devices of a pool. An import checks that the opened devices form one
//! complete pool and that this host may import it.
//!
//! The newest uberblock states how many devices the pool has, the newest configuration which ones.
//! So a device that was being added during a crash is a member if and only if a txg committed with
//! it.

use forebay_base::rng::SmallRng;
use forebay_io::DeviceInfo;

use super::config::{Config, DeviceConfig, Label, check_name, new_guid};
use super::heartbeat::{self, Heartbeat, Pause};
use super::label::{self, Uberblock};
use super::{Devices, Member, too_small, usable_bytes};
use crate::block_cache::BlockCache;
use crate::block_key::BIRTH_END;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{MAX_DEVICES, MIN_DEVICE_BYTES, SECTOR_BYTES};
use crate::open::{HostId, Opened};

/// Limit of the txg of an imported pool. Leaves as many txgs again before birth txgs overflow.
const TXG_END: u64 = BIRTH_END / 2;

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

/// Options for importing a pool.
#[derive(Clone)]
pub(crate) struct ImportOptions<'a> {
    pub(crate) host: HostId,
    /// Whether to import a pool that another host may have imported.
    pub(crate) force: bool,
    /// Whether the pool will only be read: devices may be missing, and the host is not checked.
    pub(crate) read_only: bool,
    /// Milliseconds between heartbeats; 0 for none.
    pub(crate) heartbeat_ms: u32,
    /// A random number, new for each import.
    pub(crate) session: u64,
    /// Waits between two looks at the heartbeat of another host.
    pub(crate) pause: Pause<'a>,
}

/// The devices of a pool, and the content of their labels.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) config: Config,
    pub(crate) devices: Devices,
    /// Newest first; empty for a new pool.
    pub(crate) uberblocks: Vec<Uberblock>,
    /// What is missing, a sentence each.
    pub(crate) notes: Vec<String>,
    /// The first heartbeat, if another host may open the devices.
    pub(crate) claim: Option<Heartbeat>,
}

/// Writes the labels of a new pool to these devices, numbered in the given order. The pool is
/// active. It exists once an uberblock is written.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an invalid name, device or number of devices; [`ErrorKind::Exists`]
/// if a device holds a pool; [`ErrorKind::Device`]; [`ErrorKind::NoMemory`].
pub(crate) fn create(
    opened: Vec<Opened>,
    options: &CreateOptions,
    memory: &BlockCache,
) -> Result<Imported> {
    check_name(&options.name)?;
    if opened.is_empty() || opened.len() > MAX_DEVICES {
        let text = format!("{} devices given; a pool has 1 to {MAX_DEVICES}", opened.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut rng = SmallRng::from_seed(options.seed);
    let pool_guid = new_guid(&mut rng);
    let session = rng.next_u64();
    let own = own_heartbeat(&opened[0], &options.host, options.heartbeat_ms, session);
    let mut members = Vec::with_capacity(opened.len());
    let sector_bytes = sector_of_new_pool(&opened, options.sector_bytes)?;
    for (number, opened) in opened.into_iter().enumerate() {
        check_new(&opened, options.force, memory)?;
        let size_bytes = usable_bytes(&*opened.device);
        members.push(Member::new(number as u16, new_guid(&mut rng), size_bytes, opened)?);
    }
    check_duplicates(&members)?;
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
    if let Some(own) = &own {
        heartbeat::write(&**members[0].device(), pool_guid, own, memory)?;
    }
    let devices = Devices::new(members, u64::from(sector_bytes))?;
    let (uberblocks, notes) = (Vec::new(), Vec::new());
    Ok(Imported { config, devices, uberblocks, notes, claim: own })
}

/// Returns the sector size of a new pool on these devices: by default the largest that one of them
/// asks for, as far as the format has it.
///
/// # Errors
/// [`ErrorKind::Invalid`] if `wanted` is no sector size, or too small for a device.
fn sector_of_new_pool(opened: &[Opened], wanted: Option<u32>) -> Result<u32> {
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
    for info in opened.iter().map(|one| one.device.info()) {
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
fn check_sectors(info: &DeviceInfo, pool_bytes: u32, wanted: Option<u32>) -> Result<()> {
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

fn device_config(member: &Member) -> DeviceConfig {
    DeviceConfig { guid: member.guid(), size_bytes: member.size_bytes() }
}

/// Checks that new labels may be written to a device.
fn check_new(opened: &Opened, force: bool, memory: &BlockCache) -> Result<()> {
    let info = opened.device.info();
    if usable_bytes(&*opened.device) < MIN_DEVICE_BYTES {
        return Err(too_small(&info.name, info.size_bytes, MIN_DEVICE_BYTES));
    }
    if info.read_only {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{} is read-only", info.name)));
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
fn check_duplicates(members: &[Member]) -> Result<()> {
    for (at, member) in members.iter().enumerate() {
        if members[..at].iter().any(|other| other.name() == member.name()) {
            let text = format!("{}: is given twice", member.name());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    Ok(())
}

/// Adds a device to an imported pool. Writes its labels first, then those of the other devices. It
/// is a member once an uberblock that counts it is durable. Returns its number.
///
/// # Errors
/// As [`create`]; the configuration is unchanged.
pub(crate) fn add(
    devices: &Devices,
    opened: Opened,
    options: &CreateOptions,
    config: &mut Config,
    memory: &BlockCache,
    may_write: label::MayWrite<'_>,
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
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("the pool already has a device with the guid {guid:#x}"),
        ));
    }
    let size_bytes = usable_bytes(&*opened.device);
    let member = Member::new(count as u16, guid, size_bytes, opened)?;
    check_sectors(member.device().info(), config.sector_bytes, options.sector_bytes)?;
    let mut extended = config.clone();
    extended.devices.push(device_config(&member));
    extended.generation += 1;
    may_write(extended.generation)?;
    label::format(&[&member], &extended, memory)?;
    devices.add(member)?;
    *config = extended;
    label::update_config(devices, config, memory, may_write)?;
    Ok(count as u16)
}

/// The first heartbeat of this process; `None` if no other host can open the device.
fn own_heartbeat(
    device: &Opened,
    host: &HostId,
    interval_ms: u32,
    session: u64,
) -> Option<Heartbeat> {
    device.shared.then(|| Heartbeat {
        session,
        sequence: 1,
        interval_ms,
        host: host.clone(),
        owner: device.owner(),
    })
}

/// Identifies the pool of these devices, and checks that it is complete and that this host may
/// import it. Writes only a claim, if other hosts may open the devices; the caller marks the pool
/// active with [`label::update_config`].
///
/// # Errors
/// [`ErrorKind::NotAPool`] if the devices hold no pool, an incomplete one, or several;
/// [`ErrorKind::InUse`] if another host may have it imported; [`ErrorKind::Unsupported`] if a newer
/// version wrote it; [`ErrorKind::Invalid`], [`ErrorKind::Corrupt`], [`ErrorKind::Device`],
/// [`ErrorKind::NoMemory`].
pub(crate) fn import(
    opened: Vec<Opened>,
    options: &ImportOptions<'_>,
    memory: &BlockCache,
) -> Result<Imported> {
    let mut notes = Vec::new();
    let mut labelled = read_labels(opened, options, &mut notes, memory)?;
    let mut config = newest_config(&labelled)?;
    check_host(&config, options)?;
    let claim = claim(&mut labelled, &mut config, options, memory)?;
    let sized: Vec<_> = labelled
        .iter()
        .map(|(one, _)| (&*one.device, size_of_device(one, &labelled, &config)))
        .collect();
    let uberblocks = label::best_uberblocks(&sized, config.pool_guid, memory)?;
    let Some(newest) = uberblocks.first() else {
        let text = format!("pool {:?}: its devices hold no uberblock", config.pool_name);
        return Err(Error::new(ErrorKind::NotAPool, text));
    };
    if newest.txg >= TXG_END {
        let (name, txg) = (&config.pool_name, newest.txg);
        let text = format!("pool {name:?}: its uberblock has the invalid txg {txg}");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let count = usize::from(newest.device_count);
    if count == 0 || count > config.devices.len() {
        let (name, has) = (&config.pool_name, config.devices.len());
        let text = format!("pool {name:?}: its uberblock counts {count} devices, its labels {has}");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    config.devices.truncate(count);
    let members = select(labelled, &config, options.read_only, &mut notes)?;
    let devices = Devices::new(members, u64::from(config.sector_bytes))?;
    Ok(Imported { config, devices, uberblocks, notes, claim })
}

/// Claims the pool, if it will be written and other hosts may open device 0. If that took time,
/// reads the labels again.
fn claim(
    labelled: &mut [(Opened, Label)],
    config: &mut Config,
    options: &ImportOptions<'_>,
    memory: &BlockCache,
) -> Result<Option<Heartbeat>> {
    let guid_of = |label: &Label| label.config.devices[usize::from(label.number)].guid;
    let has = |guid| labelled.iter().any(|(_, label)| guid_of(label) == guid);
    let is_complete = config.devices.iter().all(|device| has(device.guid));
    let first = labelled.iter().find(|(_, label)| guid_of(label) == config.devices[0].guid);
    let Some((first, _)) = first.filter(|_| is_complete && !options.read_only) else {
        // The selection of the devices fails.
        return Ok(None);
    };
    let own = own_heartbeat(first, &options.host, options.heartbeat_ms, options.session);
    let Some(own) = own else { return Ok(None) };
    if !heartbeat::claim(&*first.device, config, &own, options.pause, memory)? {
        return Ok(Some(own));
    }
    for (one, label) in labelled.iter_mut() {
        if let Some(newest) = label::read(&*one.device, memory)? {
            *label = newest;
        }
    }
    *config = newest_config(labelled)?;
    Ok(Some(own))
}

/// Reads the labels. Leaves out devices without a label if the pool will only be read and another
/// device has one.
fn read_labels(
    opened: Vec<Opened>,
    options: &ImportOptions<'_>,
    notes: &mut Vec<String>,
    memory: &BlockCache,
) -> Result<Vec<(Opened, Label)>> {
    let mut labelled = Vec::with_capacity(opened.len());
    let mut first = None;
    for one in opened {
        let name = one.device.info().name.clone();
        let error = match label::read(&*one.device, memory) {
            Ok(Some(label)) => {
                labelled.push((one, label));
                continue;
            }
            Ok(None) => Error::new(ErrorKind::NotAPool, format!("{name}: holds no pool")),
            Err(error) => error,
        };
        if !options.read_only {
            return Err(error);
        }
        notes.push(format!("{name} is not used: {error}"));
        first.get_or_insert(error);
    }
    match first {
        Some(error) if labelled.is_empty() => Err(error),
        _ => Ok(labelled),
    }
}

/// Returns the configuration of the newest label. Fails if the labels belong to several pools.
pub(crate) fn newest_config(labelled: &[(Opened, Label)]) -> Result<Config> {
    let Some((first, label)) = labelled.first() else {
        return Err(Error::new(ErrorKind::Invalid, "cannot import a pool: no devices were given"));
    };
    let pool = &label.config;
    for (other, label) in labelled {
        if label.config.pool_guid != pool.pool_guid {
            let (a, b) = (&first.device.info().name, &other.device.info().name);
            let (pool, another) = (&pool.pool_name, &label.config.pool_name);
            let text = format!(
                "{a} is of pool {pool:?}, {b} of another one ({another:?}); import each alone"
            );
            return Err(Error::new(ErrorKind::NotAPool, text));
        }
    }
    // Two labels differ in the same generation if a device was being added. The older devices are
    // right.
    let key = |label: &Label| {
        let number = std::cmp::Reverse(label.number);
        (label.config.generation, label.config.txg, number)
    };
    let newest = labelled.iter().map(|(_, label)| label).max_by_key(|label| key(label));
    Ok(newest.unwrap_or(label).config.clone())
}

fn check_host(config: &Config, options: &ImportOptions<'_>) -> Result<()> {
    let Config { pool_name, host, active, .. } = config;
    if !active || host.id == options.host.id || options.force || options.read_only {
        return Ok(());
    }
    let text = format!(
        "pool {pool_name:?}: host {host} has it imported; export it there, or force the import if that \
         host is gone"
    );
    Err(Error::new(ErrorKind::InUse, text))
}

/// Bytes of a device that the pool uses. They determine the position of its back label.
fn size_of_device(one: &Opened, labelled: &[(Opened, Label)], config: &Config) -> u64 {
    let has_bytes = usable_bytes(&*one.device);
    let guid = labelled
        .iter()
        .find(|(other, _)| std::ptr::eq(other, one))
        .map(|(_, label)| label.config.devices[usize::from(label.number)].guid);
    let known = config.devices.iter().find(|device| Some(device.guid) == guid);
    known.map_or(has_bytes, |device| device.size_bytes.min(has_bytes))
}

/// Selects the members among the opened devices, ordered by number. If they are only read, some may
/// be missing or too short.
fn select(
    labelled: Vec<(Opened, Label)>,
    config: &Config,
    read_only: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<Member>> {
    let pool = &config.pool_name;
    let mut slots: Vec<Option<Opened>> = config.devices.iter().map(|_| None).collect();
    let mut skipped = Vec::new();
    for (one, label) in labelled {
        let guid = label.config.devices[usize::from(label.number)].guid;
        let name = one.device.info().name.clone();
        match config.devices.iter().position(|device| device.guid == guid) {
            // It was being added, but no txg committed with it.
            None => skipped.push(format!("{name} is not a member")),
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
    if !read_only {
        check_complete(&slots, config, skipped)?;
    }
    let mut members = Vec::with_capacity(slots.len());
    for (number, (slot, device)) in slots.into_iter().zip(&config.devices).enumerate() {
        let of = (number as u16, device.guid);
        let Some(one) = slot else {
            notes.push(format!(
                "device {number} (guid {:#x}) is missing: blocks without a copy on another device cannot be read",
                device.guid
            ));
            members.push(Member::missing(of, device.size_bytes)?);
            continue;
        };
        members.push(member(one, (of, device.size_bytes), pool, read_only, notes)?);
    }
    Ok(members)
}

/// Fails if a device is missing.
fn check_complete(slots: &[Option<Opened>], config: &Config, skipped: Vec<String>) -> Result<()> {
    let missing: Vec<String> = slots
        .iter()
        .zip(&config.devices)
        .enumerate()
        .filter(|(_, (slot, _))| slot.is_none())
        .map(|(number, (_, device))| format!("device {number} (guid {:#x})", device.guid))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let found = slots.iter().flatten().map(|one| one.device.info().name.to_string());
    let found: Vec<_> = found.chain(skipped).collect();
    let (pool, missing, found) = (&config.pool_name, missing.join(", "), found.join(", "));
    let text = format!("pool {pool:?}: {missing} missing; found: {found}");
    Err(Error::new(ErrorKind::NotAPool, text))
}

fn member(
    one: Opened,
    (of, size_bytes): ((u16, u64), u64),
    pool: &str,
    read_only: bool,
    notes: &mut Vec<String>,
) -> Result<Member> {
    let info = one.device.info();
    if size_bytes <= info.size_bytes {
        return Member::new(of.0, of.1, size_bytes, one);
    }
    let (name, has, number) = (&info.name, info.size_bytes, of.0);
    let text = format!(
        "{name}: has {has} bytes; device {number} of {pool:?} had {size_bytes}: it was truncated"
    );
    if !read_only {
        return Err(Error::new(ErrorKind::NotAPool, text));
    }
    notes.push(format!("{text}; blocks without a copy elsewhere cannot be read"));
    Ok(Member::to_read(of, size_bytes, one))
}
