//! Adds sides to vdevs, and removes them for good.
//!
//! A new side misses all blocks that were ever written. Its own labels say so before those of the
//! others list it: a crash in between finds a complete pool with or without it. Then it gets what
//! is written, as a side that comes back ([`sides`](super::sides)), and a resilver brings the rest.
//!
//! A side that leaves is known to miss what is written, also by its own labels, before the others
//! forget it. So alone it is refused, even if a crash keeps its labels from being erased.
//!
//! A side that *replaces* another one is a child of that one in the tree. Once it has all blocks,
//! the other one leaves.
//!
//! A side of the log vdev needs no resilver: a few groups later no root needs what it has missed.

use forebay_base::rng::SmallRng;

use forebay_io::Device;

use super::config::{Config, LeafConfig, Missed, VdevConfig, VdevKind, new_guid};
use super::heartbeat::{self, Heartbeat};
use super::label::{self, MayWrite};
use super::sides::Side;
use super::status::STILL;
use super::{Devices, Leaf, Vdev, create, exported, usable_bytes};
use crate::block_cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::format::label::MAX_LEAVES;
use crate::open::Opened;

/// A device that joins a vdev.
pub(crate) struct NewSide {
    pub(crate) device: Opened,
    /// Whether it takes the place of the device beside which it is attached.
    pub(crate) replaces: bool,
    /// Whether to overwrite a pool that it holds.
    pub(crate) force: bool,
    /// The pool's sector size, to accept larger physical sectors.
    pub(crate) sector_bytes: Option<u32>,
}

/// What a change of labels needs.
pub(crate) struct Labels<'a> {
    pub(crate) config: &'a mut Config,
    pub(crate) memory: &'a BlockCache,
    pub(crate) may_write: MayWrite<'a>,
}

/// A new GUID for a vdev, or for a device of it. One of a log vdev keeps its number.
fn guid_in(vdev: &Vdev, rng: &mut SmallRng) -> u64 {
    let guid = new_guid(rng);
    match vdev.is_log() {
        true => guid & !u64::from(u16::MAX) | u64::from(vdev.number()),
        false => guid,
    }
}

pub(super) fn invalid<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Erases the labels of a device that does not become a side.
fn erase_refused(leaf: &Leaf, memory: &BlockCache) {
    if let Err(error) = label::erase(&**leaf.device(), leaf.size_bytes(), memory) {
        tracing::warn!(device = leaf.name(), %error, "cannot erase labels");
    }
}

/// Whether a device is closed: something else was at its path when it was to be opened again.
fn is_closed(error: &Error) -> bool {
    error.device_error().is_some_and(|io| io.kind() == forebay_io::ErrorKind::Closed)
}

/// Erases the labels of a closed device that has left its vdev, if it is at its path again. If not,
/// they stay: what its vdev has stored of it refuses it beside the others, but alone it may be
/// imported, with what it had.
fn erase_at_path(leaf: &Leaf, pool_guid: u64, memory: &BlockCache) -> Result<()> {
    let Some(path) = leaf.opened_path() else { return Ok(()) };
    let is_none = |error: &Error| {
        use ErrorKind::{Invalid, NotAPool, NotFound};
        matches!(error.kind(), NotFound | Invalid | NotAPool)
    };
    let read = |opened: Opened| Ok((label::read(&*opened.device, memory)?, opened));
    let (label, opened) = match path.open().and_then(read) {
        Err(error) if is_none(&error) => return Ok(()),
        found => found?,
    };
    match label {
        Some(label) if label.config.pool_guid == pool_guid && label.own().guid == leaf.guid() => {
            label::erase(&*opened.device, leaf.size_bytes(), memory)
        }
        // Another device, or none of a pool.
        _ => Ok(()),
    }
}

/// The error of a device whose labels are not erased, because it may have what no other one has.
fn keeps_labels(leaf: &Leaf) -> Error {
    let name = leaf.name();
    let text = format!(
        "{name}: has left the pool, but keeps its labels: it was written without the other sides; to keep what it has, export the pool and import this device alone; to give it up, use the device with `--force`"
    );
    Error::new(ErrorKind::Device, text)
}

impl Devices {
    /// Adds a side to the vdev of the device `beside`: it gets what is written from now on, and
    /// misses everything before. Returns it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no device `beside`; [`ErrorKind::Invalid`] if the new
    /// one does not suit; [`ErrorKind::Exists`] if it holds a pool; the errors of the labels. Then
    /// it is not a device of the pool.
    pub(crate) fn attach(
        &self,
        beside: &str,
        new: NewSide,
        (beats, rng): (Option<&Heartbeat>, &mut SmallRng),
        open_txg: &dyn Fn() -> u64,
        labels: Labels<'_>,
    ) -> Result<Side<'_>> {
        let Labels { config, memory, may_write } = labels;
        let old = self.find(beside)?;
        let vdev = old.vdev;
        self.check_side(&old, &new, config, memory)?;
        let guid = guid_in(vdev, rng);
        let leaf = Leaf::new(guid, usable_bytes(&*new.device.device), new.device)?;
        create::check_new_guid(config, leaf.guid())?;
        let added = LeafConfig {
            missed: Some(Missed { from: 1, to: STILL }),
            replaces: new.replaces.then(|| old.leaf().guid()),
            ..leaf.config()
        };
        let mut extended = config.clone();
        let wider = extended.vdev_mut(vdev.number()).expect("a vdev of the pool");
        if wider.kind == VdevKind::Device {
            let guid = guid_in(vdev, rng);
            *wider = VdevConfig { guid, kind: VdevKind::Mirror, ..wider.clone() };
        }
        wider.leaves.push(added);
        let guid = wider.guid;
        extended.generation += 1;
        extended.count_uses();
        may_write(extended.generation)?;
        // The next labels are newer than those of the new device, whatever becomes of it.
        config.generation = extended.generation;
        let beats = beats.filter(|_| vdev.number() == 0);
        let formatted =
            label::format_side(vdev.number(), &leaf, &extended, memory).and_then(|()| {
                let Some(beats) = beats else { return Ok(()) };
                let fence = self.fence();
                let (beaten, with) = ([&**leaf.device()], (fence.as_ref(), memory));
                heartbeat::write_fenced(&beaten, config.pool_guid, beats, with).map(drop)
            });
        if let Err(error) = formatted {
            erase_refused(&leaf, memory);
            return Err(error);
        }
        let at = self.join(vdev, leaf, &added, guid).map_err(|(leaf, error)| {
            erase_refused(&leaf, memory);
            error
        })?;
        *config = extended;
        let side = Side { vdev, at };
        if let Err(error) = side.end_missing(self, config, open_txg, memory, may_write) {
            // The next labels do not list it any more.
            self.forget(side, config);
            side.end_limit();
            if let Err(error) = side.release(config.pool_guid, memory) {
                tracing::warn!(device = side.leaf().name(), %error, "cannot erase labels");
            }
            return Err(error);
        }
        Ok(side)
    }

    /// A vdev gets a device, and is a mirror with this guid. Returns the index of the device; or
    /// the device and an error, if the pool was closed meanwhile, or had so many devices that this
    /// one gets no index.
    fn join(
        &self,
        vdev: &Vdev,
        leaf: Leaf,
        config: &LeafConfig,
        guid: u64,
    ) -> Result<u8, (Box<Leaf>, Error)> {
        let is_closed = self.adding.lock();
        if *is_closed {
            return Err((Box::new(leaf), exported()));
        }
        let at = vdev.push(leaf, config).map_err(|leaf| {
            let (name, most) = (vdev.title(), MAX_LEAVES);
            let text = format!(
                "{name} has had {most} devices since the import; export the pool, and import it again"
            );
            (leaf, Error::new(ErrorKind::Invalid, text))
        })?;
        vdev.set_kind(VdevKind::Mirror, guid);
        Ok(at)
    }

    /// Checks that a device may join the vdev of another one.
    fn check_side(
        &self,
        old: &Side<'_>,
        new: &NewSide,
        config: &Config,
        memory: &BlockCache,
    ) -> Result<()> {
        let appends = |device: &dyn Device| device.info().append_only.is_some();
        if appends(&**old.leaf().device()) || appends(&*new.device.device) {
            let text = "an object store is no side of a mirror: it keeps copies of its own";
            return invalid(text.to_owned());
        }
        let info = new.device.device.info();
        let (name, vdev) = (&info.name, old.vdev);
        create::check_no_member(self, &new.device)?;
        create::check_new(&new.device, new.force, memory)?;
        create::check_sectors(info, config.sector_bytes, new.sector_bytes)?;
        if config.leaves().count() >= MAX_LEAVES {
            return invalid(format!("a pool has at most {MAX_LEAVES} devices"));
        }
        let (has, needs) = (info.size_bytes, vdev.size_bytes());
        if usable_bytes(&*new.device.device) < needs {
            return invalid(format!(
                "{name}: has {has} bytes, but {needs} of {} are in use; give a device of at least {needs} bytes",
                vdev.name()
            ));
        }
        if !new.replaces {
            return Ok(());
        }
        let old_name = old.leaf().name();
        let is_new = |at| vdev.replaced_by(at).is_some_and(|(replaced, _)| replaced == old.at);
        if let Some((_, by)) = vdev.leaves().find(|(at, _)| is_new(*at)) {
            let by = by.name();
            return invalid(format!(
                "{old_name}: {by} is replacing it already; detach {by} first to take another device"
            ));
        }
        if vdev.replaced_by(old.at).is_some() {
            return invalid(format!(
                "{old_name}: is replacing another device; wait for the resilver, or detach it"
            ));
        }
        Ok(())
    }

    /// Devices whose replacements have all blocks.
    pub(crate) fn replaced(&self) -> Vec<Side<'_>> {
        let mut replaced = Vec::new();
        for vdev in self.members() {
            let whole = vdev.leaves().filter(|(at, _)| vdev.status().is_whole(*at));
            let old = whole.filter_map(|(at, _)| vdev.replaced_by(at));
            replaced.extend(old.map(|(at, _)| Side { vdev, at }));
        }
        replaced
    }

    /// Removes a side from its vdev, after all labels say that it misses what is written: it gets
    /// no requests any more. The next commit stores that. Returns false if it was removed already.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no other side has all blocks; the errors of the labels. Then it is
    /// a side as before.
    pub(crate) fn detach(
        &self,
        side: Side<'_>,
        open_txg: &dyn Fn() -> u64,
        labels: Labels<'_>,
    ) -> Result<bool> {
        let Labels { config, memory, may_write } = labels;
        if side.status().is_removed(side.at) {
            return Ok(false);
        }
        if !side.vdev.leaves().any(|(at, _)| at != side.at) {
            let (name, number) = (side.leaf().name(), side.vdev.number());
            return invalid(match side.vdev.is_log() {
                true => format!(
                    "{name}: is the only device of the log; `forebay log remove` moves the log away from it"
                ),
                false => format!(
                    "{name}: is the only device of vdev {number}, so nothing else has its blocks; attach another one first"
                ),
            });
        }
        // If no side of the log is whole, the log has left them, and nothing on this one counts.
        let counts = !side.vdev.is_log() || side.has_whole();
        if side.is_used() && counts {
            side.begin_missing()?;
            let updated = label::update_config(self, config, memory, may_write);
            if updated.is_err() {
                side.status().end_missing(side.at, open_txg() + 1);
            }
            updated?;
        }
        self.forget(side, config);
        Ok(true)
    }

    /// A side is none any more, in memory.
    pub(crate) fn forget(&self, side: Side<'_>, config: &mut Config) {
        let vdev = side.vdev;
        vdev.remove(side.at);
        let guid = side.leaf().guid();
        let changed = config.vdev_mut(vdev.number()).expect("a vdev of the pool");
        changed.leaves.retain(|leaf| leaf.guid != guid);
        for leaf in &mut changed.leaves {
            leaf.replaces = leaf.replaces.filter(|replaced| *replaced != guid);
        }
        if let [last] = &*changed.leaves {
            let (kind, guid) = (VdevKind::Device, last.guid);
            let plain = VdevConfig { guid, kind, leaves: changed.leaves.clone() };
            // The number of a log vdev, which addresses have, is in its GUID. A side with another
            // one stays a mirror of one.
            if !vdev.is_log() || plain.log_number() == vdev.number() {
                *changed = plain;
                vdev.set_kind(kind, guid);
            }
        }
    }

    /// Sides that were removed, and not released yet.
    pub(crate) fn leaving(&self) -> Vec<Side<'_>> {
        let sides = self
            .members()
            .flat_map(|vdev| vdev.status().removed().map(move |at| Side { vdev, at }));
        sides.filter(|side| !side.leaf().is_left()).collect()
    }
}

impl Side<'_> {
    /// The vdev of a side that was removed may use what its other devices have. Labels and the
    /// newest txg must not count the side. The caller holds the configuration, so that no device
    /// joins that is checked against the size of before.
    pub(crate) fn end_limit(&self) {
        self.vdev.update_size();
    }

    /// Erases the labels of a side that was removed, durably, and lets others have the device. Does
    /// nothing the second time. Labels and the newest txg must not count it.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the labels cannot be erased, or are left, because the side was
    /// written without the others. The device is released all the same.
    pub(crate) fn release(&self, pool_guid: u64, memory: &BlockCache) -> Result<()> {
        let leaf = self.leaf();
        if leaf.begin_leave() {
            return Ok(());
        }
        leaf.close_roots();
        leaf.drain();
        let erased = match leaf.is_missing() {
            true => Ok(()),
            false if leaf.is_apart() => Err(keeps_labels(leaf)),
            false => match label::erase(&**leaf.device(), leaf.size_bytes(), memory) {
                Err(error) if is_closed(&error) => erase_at_path(leaf, pool_guid, memory),
                erased => erased,
            },
        };
        leaf.leave();
        erased
    }
}
