//! Imports the devices of a pool. An import checks that the opened devices form one complete pool
//! and that this host may import it.
//!
//! The newest uberblock states how many vdevs the pool has, the newest configuration which ones. So
//! a vdev that was being added during a crash is a member if and only if a txg committed with it.
//!
//! # Mirrors
//!
//! A mirror is complete if a device of it is whole: the configuration says of each device what it
//! misses. That is stored before a txg counts which a device misses, so the newest label is right.
//! Uberblocks of txgs that a device misses are ignored there. Two sides that were each written
//! without the other are refused, whichever is newer.

use super::config::{Config, Label, LeafConfig, Missed, VdevConfig, VdevKind};
use super::heartbeat::{self, Heartbeat, Pause};
use super::label::{self, Ring, Uberblock};
use super::status::STILL;
use super::{Devices, Leaf, Vdev, features, lost_end, usable_bytes};
use crate::block_cache::BlockCache;
use crate::block_key::BIRTH_END;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::{LOG_VDEV, StoredState};
use crate::open::{HostId, Opened};

/// Limit of the txg of an imported pool. Leaves as many txgs again before birth txgs overflow.
const TXG_END: u64 = BIRTH_END / 2;

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
    /// The newest stamps of the devices of the log vdev, by guid.
    pub(crate) log_stamps: Vec<(u64, u64)>,
}

/// The first heartbeat of this process; `None` if no other host can open the device.
pub(super) fn own_heartbeat(
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
/// [`ErrorKind::InUse`] if another host may have it imported; [`ErrorKind::Unsupported`] if another
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
    let what = format!("pool {:?}", config.pool_name);
    features::check(&config.features, &what, options.read_only)?;
    check_host(&config, options)?;
    check_apart(&labelled, &config)?;
    let claim = claim(&mut labelled, &mut config, (options, &mut notes), memory)?;
    let holds_blocks = |label: &Label| label.number & LOG_VDEV == 0;
    let of_blocks = labelled.iter().filter(|(_, label)| holds_blocks(label));
    let rings: Vec<_> = of_blocks.map(|(one, label)| ring_of(one, label, &config)).collect();
    let uberblocks = label::best_uberblocks(&rings, config.pool_guid, memory)?;
    let Some(newest) = uberblocks.first() else {
        return Err(no_uberblock(&labelled, &config));
    };
    if newest.txg >= TXG_END {
        let (name, txg) = (&config.pool_name, newest.txg);
        let text = format!("pool {name:?}: its uberblock has the invalid txg {txg}");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    note_rolled_back(&labelled, &mut config, (newest, &mut notes), memory)?;
    lost_end::note_lost_ends(&labelled, &mut config, (newest, &mut notes), memory)?;
    let log_stamps = log_stamps(&labelled, &config, memory)?;
    let count = usize::from(newest.vdev_count);
    if count == 0 || count > config.vdevs.len() {
        let (name, has) = (&config.pool_name, config.vdevs.len());
        let text = format!("pool {name:?}: its uberblock counts {count} devices, its labels {has}");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    config.vdevs.truncate(count);
    let selection = Selection { txg: newest.txg, read_only: options.read_only, notes: &mut notes };
    let (vdevs, log) = selection.select(labelled, &mut config)?;
    let devices = Devices::new(vdevs, u64::from(config.sector_bytes))?;
    log.map_or(Ok(()), |log| devices.set_log(log))?;
    Ok(Imported { config, devices, uberblocks, notes, claim, log_stamps })
}

/// Why there is no uberblock: the devices that have some are not given, or there never was one.
fn no_uberblock(labelled: &[(Opened, Label)], config: &Config) -> Error {
    let is_absent =
        |leaf: &&LeafConfig| labelled.iter().all(|(_, label)| label.own().guid != leaf.guid);
    let mut absent = Vec::new();
    for (number, vdev) in (0..).zip(&config.vdevs) {
        let leaves = vdev.leaves.iter().filter(is_absent);
        absent.extend(leaves.map(|leaf| describe_absent(vdev.kind, number, leaf.guid)));
    }
    let (pool, missing) = (&config.pool_name, absent.join(", "));
    let found: Vec<&str> = labelled.iter().map(|(one, _)| &*one.device.info().name).collect();
    let text = match absent.is_empty() {
        true => format!(
            "pool {pool:?}: its devices hold no uberblock: it was created in part only, or all of its labels are damaged; create it again (--force)"
        ),
        false => format!("pool {pool:?}: {missing} missing; found: {}", found.join(", ")),
    };
    Error::new(ErrorKind::NotAPool, text)
}

/// Claims the pool, if it will be written and other hosts may open vdev 0. If that took time, reads
/// the labels again. Leaves out devices that take no claim: they are as good as missing.
fn claim(
    labelled: &mut Vec<(Opened, Label)>,
    config: &mut Config,
    (options, notes): (&ImportOptions<'_>, &mut Vec<String>),
    memory: &BlockCache,
) -> Result<Option<Heartbeat>> {
    let opened_as = |guid| {
        let found = labelled.iter().find(|(_, label)| label.own().guid == guid);
        found.map(|(one, _)| one)
    };
    let is_there = |vdev: &VdevConfig| vdev.leaves.iter().any(|one| opened_as(one.guid).is_some());
    let is_complete = config.vdevs.iter().all(is_there);
    let first: Vec<&Opened> =
        config.vdevs[0].leaves.iter().filter_map(|leaf| opened_as(leaf.guid)).collect();
    let Some(one) = first.first().filter(|_| is_complete && !options.read_only) else {
        // The selection of the devices fails.
        return Ok(None);
    };
    let own = own_heartbeat(one, &options.host, options.heartbeat_ms, options.session);
    let Some(own) = own else { return Ok(None) };
    let beaten: Vec<_> = first.iter().map(|one| &*one.device).collect();
    let claimed = heartbeat::claim(&beaten, config, &own, options.pause, memory)?;
    let guids: Vec<u64> = config.vdevs[0].leaves.iter().map(|leaf| leaf.guid).collect();
    let guids: Vec<u64> = guids.into_iter().filter(|guid| opened_as(*guid).is_some()).collect();
    for (at, error) in claimed.refused {
        let is_it = |(_, label): &(Opened, Label)| label.own().guid == guids[at];
        if let Some(at) = labelled.iter().position(is_it) {
            let (one, _) = labelled.remove(at);
            let name = &one.device.info().name;
            notes.push(format!("{name} is not used: it takes no heartbeat: {error}"));
        }
    }
    if !claimed.watched {
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

/// Reads the labels. Leaves out devices without a label if another device has one, and the pool
/// will only be read or is found to be a mirror.
fn read_labels(
    opened: Vec<Opened>,
    options: &ImportOptions<'_>,
    notes: &mut Vec<String>,
    memory: &BlockCache,
) -> Result<Vec<(Opened, Label)>> {
    let mut labelled: Vec<(Opened, Label)> = Vec::with_capacity(opened.len());
    let mut left_out = Vec::new();
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
        left_out.push((name, error));
    }
    // A pool whose log device is lost says itself what that means.
    let goes_on = |config: &Config| {
        config.log.is_some() || config.vdevs.iter().any(|vdev| vdev.kind == VdevKind::Mirror)
    };
    let may_go_on = labelled.iter().any(|(_, label)| goes_on(&label.config));
    if (options.read_only || may_go_on) && !labelled.is_empty() {
        let note = |(name, error): (_, Error)| format!("{name} is not used: {error}");
        notes.extend(left_out.into_iter().map(note));
        return Ok(labelled);
    }
    match left_out.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(labelled),
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
        let place = std::cmp::Reverse((label.number, label.leaf));
        (label.config.generation, label.config.txg, place)
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

/// Whether a device misses all that was written since some txg, as a configuration says.
fn is_behind(config: &Config, guid: u64) -> bool {
    let missed = config.leaves().find(|leaf| leaf.guid == guid).and_then(|leaf| leaf.missed);
    missed.is_some_and(|missed| missed.to == STILL)
}

/// Checks that no two sides of a mirror were written without each other: each has what the other
/// has not.
fn check_apart(labelled: &[(Opened, Label)], newest: &Config) -> Result<()> {
    // What the log lacks, its stamps say.
    let of_blocks = labelled.iter().filter(|(_, label)| label.number & LOG_VDEV == 0);
    for (one, label) in of_blocks.filter(|(_, label)| is_behind(newest, label.own().guid)) {
        let Some((other, other_label)) = written_apart(label, labelled, newest) else { continue };
        let (pool, a, b) = (&newest.pool_name, one.device.info(), other.device.info());
        let text = format!(
            "pool {pool:?}: {} (at least txg {}) and {} (at least txg {}) are sides of one mirror that were each used without the other; give only the one whose changes you want to keep",
            a.name, label.config.txg, b.name, other_label.config.txg
        );
        return Err(Error::new(ErrorKind::NotAPool, text));
    }
    Ok(())
}

/// The side that was written without the one with this label, which is behind, if that one was also
/// written without it.
fn written_apart<'a>(
    label: &Label,
    labelled: &'a [(Opened, Label)],
    newest: &Config,
) -> Option<&'a (Opened, Label)> {
    let find = |guid| labelled.iter().find(|(_, label)| label.own().guid == guid);
    find(rival_of(label, newest, &|guid| find(guid).is_some())?)
}

/// The guid of the side that was written without the one with this label, which is behind, if that
/// one was also written without it. Only sides that are there count.
pub(super) fn rival_of(
    label: &Label,
    newest: &Config,
    is_there: &dyn Fn(u64) -> bool,
) -> Option<u64> {
    // A side that has all blocks was there when the label was written: it knows all that the other
    // did. This is so even if the label claims txgs that the side is said to miss: a crash may
    // leave the labels that end a resilver on this side only.
    let siblings = &label.config.vdev(label.number)?.leaves;
    let is_whole = |guid| newest.leaves().any(|leaf| leaf.guid == guid && leaf.missed.is_none());
    if siblings.iter().any(|one| is_whole(one.guid) && !is_behind(&label.config, one.guid)) {
        return None;
    }
    // It had all blocks when a txg was durable that it is said to miss. The others were no sides
    // any more: its label need not list them.
    let own = label.own();
    let missed = newest.leaves().find(|leaf| leaf.guid == own.guid).and_then(|leaf| leaf.missed);
    if own.missed.is_none() && missed.is_some_and(|missed| label.config.txg >= missed.from) {
        let is_of = |vdev: &&VdevConfig| vdev.leaves.iter().any(|leaf| leaf.guid == own.guid);
        let mut rivals = newest.numbered().map(|(_, vdev)| vdev).find(is_of)?.leaves.iter();
        let is_rival = |one: &&LeafConfig| is_there(one.guid) && !is_behind(newest, one.guid);
        return rivals.find(is_rival).map(|one| one.guid);
    }
    let apart = |other: &&LeafConfig| {
        is_behind(&label.config, other.guid) && !is_behind(newest, other.guid)
    };
    siblings.iter().filter(apart).map(|one| one.guid).find(|guid| is_there(*guid))
}

/// Finds sides of mirrors that are older than the labels know: replaced by a copy from before, for
/// example. A crash leaves a side one txg behind; one that is further behind, while another is not,
/// misses what came since. One that is known to miss txgs may be older than that, too.
fn note_rolled_back(
    labelled: &[(Opened, Label)],
    config: &mut Config,
    (newest, notes): (&Uberblock, &mut Vec<String>),
    memory: &BlockCache,
) -> Result<()> {
    let mut newest_of = Vec::new();
    for leaf in config.vdevs.iter().filter(|vdev| vdev.leaves.len() > 1).flat_map(|v| &v.leaves) {
        let opened = labelled.iter().find(|(_, label)| label.own().guid == leaf.guid);
        let Some((one, label)) = opened else { continue };
        let ring = Ring { missed: None, ..ring_of(one, label, config) };
        let has = label::best_uberblocks(&[ring], config.pool_guid, memory)?;
        newest_of.push((leaf.guid, one, label, has.first().map_or(0, |has| has.txg)));
    }
    for vdev in &mut config.vdevs {
        let is_of = |guid: u64| vdev.leaves.iter().any(|leaf| leaf.guid == guid);
        let of: Vec<_> = newest_of.iter().filter(|(guid, ..)| is_of(*guid)).collect();
        let is_whole = |guid| vdev.leaves.iter().any(|l| l.guid == guid && l.missed.is_none());
        let mut whole = of.iter().filter(|(guid, ..)| is_whole(*guid));
        let is_current = whole.any(|(.., txg)| *txg >= newest.previous_txg);
        for (guid, one, label, txg) in of {
            let Some(leaf) = vdev.leaves.iter_mut().find(|leaf| leaf.guid == *guid) else {
                continue;
            };
            let lags = is_current && *txg < newest.previous_txg;
            let from = label.missing_from(*txg);
            if let Some(missed) = &mut leaf.missed {
                missed.from = missed.from.min(from);
                if lags {
                    missed.to = missed.to.max(newest.txg + 1);
                }
                continue;
            }
            if !lags {
                continue;
            }
            leaf.missed = Some(Missed { from, to: newest.txg + 1 });
            let (name, to) = (&one.device.info().name, newest.txg);
            notes.push(format!(
                "{name} has nothing after txg {txg}, of {to}: it was rolled back; a scrub brings it up to date"
            ));
        }
    }
    Ok(())
}

/// The newest stamps of the devices of the log vdev, by guid.
fn log_stamps(
    labelled: &[(Opened, Label)],
    config: &Config,
    memory: &BlockCache,
) -> Result<Vec<(u64, u64)>> {
    let mut stamps = Vec::new();
    for leaf in config.log.iter().flat_map(|log| &log.leaves) {
        let opened = labelled.iter().find(|(_, label)| label.own().guid == leaf.guid);
        let Some((one, label)) = opened else { continue };
        let ring = Ring { missed: None, ..ring_of(one, label, config) };
        let has = label::best_uberblocks(&[ring], config.pool_guid, memory)?;
        stamps.push((leaf.guid, has.first().map_or(0, |has| has.txg)));
    }
    Ok(stamps)
}

/// The uberblocks of a device. Its size determines the position of its back label.
fn ring_of<'a>(one: &'a Opened, label: &Label, config: &Config) -> Ring<'a> {
    let has_bytes = usable_bytes(&*one.device);
    let known = config.leaves().find(|leaf| leaf.guid == label.own().guid);
    let size_bytes = known.map_or(has_bytes, |leaf| leaf.size_bytes.min(has_bytes));
    Ring { device: &*one.device, size_bytes, missed: known.and_then(|leaf| leaf.missed) }
}

/// Selects the devices of the vdevs among the opened ones.
struct Selection<'a> {
    /// The newest txg.
    txg: u64,
    /// Whether the pool will only be read: devices may be missing or too short.
    read_only: bool,
    notes: &'a mut Vec<String>,
}

impl Selection<'_> {
    /// Returns the vdevs, ordered by number, and that of the log; and updates what the
    /// configuration says of devices that have come back, or are missing.
    fn select(
        mut self,
        labelled: Vec<(Opened, Label)>,
        config: &mut Config,
    ) -> Result<(Vec<Vdev>, Option<Vdev>)> {
        let (mut slots, skipped) = Self::sort(labelled, config)?;
        self.notes.extend(skipped.iter().map(|name| {
            format!(
                "{name} is not used: the pool does not list it; it was detached or replaced while it was away, or was about to join; to \
                 use it, attach it again (--force)"
            )
        }));
        let found: Vec<String> = slots
            .iter()
            .flatten()
            .flatten()
            .map(|one| one.device.info().name.to_string())
            .chain(skipped.iter().map(|name| format!("{name} is not a member")))
            .collect();
        let pool = config.pool_name.clone();
        let mut vdevs = Vec::with_capacity(slots.len());
        let mut problems = Vec::new();
        for (number, vdev) in config.vdevs.iter_mut().enumerate() {
            let slots = std::mem::take(&mut slots[number]);
            let is_mirror = vdev.kind == VdevKind::Mirror;
            let mut leaves = Vec::with_capacity(slots.len());
            for (slot, leaf) in slots.into_iter().zip(&mut vdev.leaves) {
                let is_store = vdev.kind == VdevKind::ObjectStore;
                let of = Wanted { number: number as u16, is_mirror, is_store, pool: &pool };
                leaves.push(self.leaf(slot, leaf, &of)?);
            }
            let built = Vdev::new(number as u16, vdev, leaves, self.txg + 1);
            if !built.status().has_whole_leaf() {
                let lacks = incomplete(&built);
                if self.read_only && is_mirror {
                    self.notes.push(format!("not all blocks can be read: {}", lacks.join(", ")));
                }
                problems.extend(lacks);
            }
            vdevs.push(built);
        }
        let log_slots = slots.pop().filter(|_| config.log.is_some());
        let log = config.log.as_mut().zip(log_slots);
        let log = log.map(|(log, slots)| self.log(slots, log, &pool)).transpose()?;
        if problems.is_empty() || self.read_only {
            return Ok((vdevs, log));
        }
        let (missing, found) = (problems.join(", "), found.join(", "));
        let text = format!("pool {pool:?}: {missing} missing; found: {found}");
        Err(Error::new(ErrorKind::NotAPool, text))
    }

    /// Builds the log vdev. All of its devices may be missing.
    fn log(
        &mut self,
        slots: Vec<Option<Opened>>,
        log: &mut VdevConfig,
        pool: &str,
    ) -> Result<Vdev> {
        let number = log.log_number();
        let of = Wanted { number, is_mirror: true, is_store: false, pool };
        let leaves = slots.into_iter().zip(&mut log.leaves);
        let leaves = leaves.map(|(slot, leaf)| self.leaf(slot, leaf, &of));
        let leaves = leaves.collect::<Result<Vec<_>>>()?;
        Ok(Vdev::new(number, log, leaves, self.txg + 1))
    }

    /// Sorts the opened devices into the places of the configuration, those of the log last.
    /// Returns also what is no member.
    fn sort(
        labelled: Vec<(Opened, Label)>,
        config: &Config,
    ) -> Result<(Vec<Vec<Option<Opened>>>, Vec<String>)> {
        let none = |vdev: &VdevConfig| vdev.leaves.iter().map(|_| None).collect();
        let vdevs = || config.vdevs.iter().chain(&config.log);
        let mut slots: Vec<Vec<Option<Opened>>> = vdevs().map(none).collect();
        let mut skipped = Vec::new();
        for (one, label) in labelled {
            let guid = label.own().guid;
            let name = one.device.info().name.clone();
            let place = vdevs().enumerate().find_map(|(number, vdev)| {
                let leaf = vdev.leaves.iter().position(|leaf| leaf.guid == guid)?;
                Some((number, leaf))
            });
            let Some((number, leaf)) = place else {
                // It was being added, but no txg committed with it; or it has left meanwhile.
                skipped.push(name.to_string());
                continue;
            };
            if let Some(other) = &slots[number][leaf] {
                let (pool, other) = (&config.pool_name, &other.device.info().name);
                let number = match number < config.vdevs.len() {
                    true => format!("device {number}"),
                    false => "the log device".to_owned(),
                };
                let text = format!(
                    "pool {pool:?}: {number} is given twice, as {other} and {name}; if one is a copy of the other, give only one"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            slots[number][leaf] = Some(one);
        }
        Ok((slots, skipped))
    }

    /// Builds a leaf, with its device or without.
    fn leaf(
        &mut self,
        slot: Option<Opened>,
        config: &mut LeafConfig,
        of: &Wanted<'_>,
    ) -> Result<Leaf> {
        let (guid, size_bytes) = (config.guid, config.size_bytes);
        if let Some(one) = slot {
            let info = one.device.info();
            if of.is_store != info.append_only.is_some() {
                let (name, pool) = (&info.name, of.pool);
                let text = format!(
                    "{name}: has a copy of the label of pool {pool:?}, which is on another kind of device; give the original"
                );
                return Err(Error::new(ErrorKind::NotAPool, text));
            }
            if size_bytes <= info.size_bytes {
                self.is_back(config);
                return Ok(Leaf::new(guid, size_bytes, one)?.with_failures(config.errors));
            }
            let (name, has) = (&info.name, info.size_bytes);
            let text = format!(
                "{name}: has {has} bytes; device {} of {:?} had {size_bytes}: it was truncated",
                of.number, of.pool
            );
            if self.read_only {
                self.notes.push(format!("{text}; blocks without a copy elsewhere cannot be read"));
                return Ok(Leaf::to_read(guid, size_bytes, one).with_failures(config.errors));
            }
            if !of.is_mirror {
                let text = format!(
                    "{text}; give it that size again (a file by `truncate --size {size_bytes}`) and run `forebay check`, or import read-only"
                );
                return Err(Error::new(ErrorKind::NotAPool, text));
            }
            self.notes.push(format!("{text}; it is not used"));
        }
        let what = match of.is_mirror {
            true if of.number & LOG_VDEV != 0 => format!("log device {guid:#x}"),
            true => format!("device {guid:#x} of mirror {}", of.number),
            false => format!("device {}", of.number),
        };
        if self.read_only && !of.is_mirror {
            self.notes.push(format!(
                "{what} (guid {guid:#x}) is missing: blocks without a copy on another device cannot be read"
            ));
        }
        if config.state != StoredState::Offline {
            config.state = StoredState::Missing;
        }
        // The records of a log device that is away count until a group no longer needs them: its
        // stamp is older then. An import that ends before that takes nothing from it.
        if of.number & LOG_VDEV == 0 {
            let from = config.missed.map_or(self.txg + 1, |missed| missed.from);
            config.missed = Some(Missed { from, to: STILL });
        }
        Ok(Leaf::missing(&what, guid, size_bytes)?.with_failures(config.errors))
    }

    /// A device is there again: it still misses what was written without it, and what is until the
    /// first commit of this import, so that only a later scrub can say that it misses nothing.
    fn is_back(&self, config: &mut LeafConfig) {
        if config.state != StoredState::Offline {
            config.state = StoredState::Online;
            if let Some(missed) = config.missed.as_mut().filter(|missed| missed.to == STILL) {
                // The group that it missed first may be damaged since, and an older one the newest.
                missed.to = (self.txg + 1).max(missed.from);
            }
        }
    }
}

/// A place that wants a device.
struct Wanted<'a> {
    number: u16,
    is_mirror: bool,
    is_store: bool,
    pool: &'a str,
}

/// What a vdev without a whole device lacks.
fn incomplete(vdev: &Vdev) -> Vec<String> {
    let number = vdev.number();
    let describe = |(at, leaf): (u8, &Leaf)| {
        let guid = leaf.guid();
        match (vdev.kind(), vdev.status().missed(at)) {
            (VdevKind::Mirror, Some(missed)) if !leaf.is_missing() => {
                let (name, from) = (leaf.name(), missed.from);
                format!(
                    "a device of mirror {number} with the blocks from txg {from} on, which {name} misses"
                )
            }
            (kind, _) => describe_absent(kind, number, guid),
        }
    };
    vdev.leaves().map(describe).collect()
}

/// A device of a vdev that is not there.
fn describe_absent(kind: VdevKind, number: u16, guid: u64) -> String {
    match kind {
        VdevKind::Mirror => format!("device of mirror {number} (guid {guid:#x})"),
        VdevKind::Device | VdevKind::ObjectStore => format!("device {number} (guid {guid:#x})"),
    }
}
