//! Space maps: which bytes of the devices are free, and their allocation.
//!
//! Each device is divided into *metaslabs*. On disk, a metaslab has a *base*: the ranges that were
//! free when the base was written. Later changes are in the *log*, to which every transaction group
//! appends one *record*. Bases are rewritten in rotation, oldest first, so that the log stays
//! short. Records that no base needs any more are freed. An *index* lists the metaslabs.
//!
//! # Invariants
//!
//! - Let r₀ … rₙ be the records of the log, oldest first. The frees of rᵢ are *mature*, and their
//!   space is allocatable, in the txg that writes rᵢ₊₃. So the roots of rₙ, rₙ₋₁ and rₙ₋₂ are
//!   intact at any moment until rₙ₊₁ is durable.
//! - `docs/format.md` ("From base to state") says which records change a base. A record may be
//!   dropped if neither it nor an older one has an entry that some base lacks. The remaining
//!   records are the newest part of the log without a gap, and include all frees that are not
//!   mature.
//! - Mature frees may be discarded ([`discard`]). Older roots than the newest three may reach them:
//!   they do not survive that, nor the reuse of their space.
//!
//! Locking: none here. The pool keeps the space maps behind its lock `space`: the sync thread holds
//! it during a commit.
//!
//! Not done: the content of allocated ranges is neither known nor written. A loaded metaslab stays
//! in memory, unless its device takes each address once ([`unload`]).

mod allocate;
mod append;
mod chain;
mod check;
mod counters;
mod discard;
mod geometry;
mod load;
mod metaslab;
#[cfg(all(test, forebay_model))]
mod model;
mod plan;
mod range_set;
mod root_placement;
mod stats;
mod sync_metaslabs;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod unload;

use std::collections::{BTreeSet, VecDeque};

use forebay_base::sync::Arc;

use crate::format::{BlockPtrPhys, Dva, DvaPhys, SECTOR_UNIT};
use crate::store::Allocate;
use crate::{Error, ErrorKind, Result};

use allocate::{DeviceRotor, DeviceState};
use discard::Held;
use geometry::{Geometry, MAX_METASLABS, MetaslabExtent, metaslab_extents, shift_for};
use metaslab::{Base, Metaslab};
use range_set::{Run, note};
use root_placement::RootSlots;
use sync_metaslabs::SpaceMapEntry;
use unload::Loaded;

pub(crate) use crate::devices::DeviceSpan;
use check::Audit;
pub(crate) use check::{SpaceReport, WalkedRanges};
pub use counters::SpaceCounters;
pub(crate) use discard::{DiscardList, HeldSlice};
pub(crate) use stats::SpaceStats;

/// Maximum sector size.
pub(crate) const MAX_SECTOR_BYTES: u64 = 1 << 20;

/// Reads blocks of the space maps.
pub(crate) trait SpaceRead {
    /// Returns the verified content of a block, `logical_bytes` long.
    fn read(&self, pointer: &BlockPtrPhys) -> Result<Vec<u8>>;

    /// As [`read`](Self::read), for several blocks at once.
    fn read_many(&self, pointers: &[BlockPtrPhys]) -> Result<Vec<Vec<u8>>> {
        pointers.iter().map(|pointer| self.read(pointer)).collect()
    }

    /// Waits after a failed read of a commit until a repetition may succeed.
    ///
    /// # Errors
    /// `error`, if the read must not be repeated.
    fn wait_after(&self, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Writes blocks of the space maps.
pub(crate) trait SpaceWrite {
    /// Starts to write `content`, whole sectors, uncompressed and of kind `Space`, to allocated
    /// addresses. Returns the block pointer. The write may complete later.
    fn write_at(&mut self, places: [DvaPhys; 2], content: &[u8], txg: u64) -> Result<BlockPtrPhys>;
}

/// A record of the log: the changes of one txg.
#[derive(Debug)]
struct Record {
    txg: u64,
    entries: u64,
    /// Its blocks, first to last.
    blocks: Vec<BlockPtrPhys>,
}

/// The space maps of a pool.
pub(crate) struct Space {
    geometry: Geometry,
    metaslabs: Vec<Metaslab>,
    devices: Vec<DeviceState>,
    rotor: DeviceRotor,
    roots: RootSlots,
    /// The log, oldest record first.
    records: VecDeque<Record>,
    /// Blocks of the index by level, leaves first. The root stores the pointers of the last level.
    /// Holes are not written yet.
    index: Vec<Vec<BlockPtrPhys>>,
    /// Leaves of the index to be written.
    dirty_leaves: BTreeSet<usize>,
    /// The current txg, between `begin` and `sync`.
    open: Option<u64>,
    /// The newest synced txg, and whether it is durable.
    synced: u64,
    durable: bool,
    /// Frees of this txg and of earlier ones are mature.
    matured_txg: u64,
    /// Changes of the current txg, once its bases are copied.
    entries: Vec<SpaceMapEntry>,
    /// Upper bound of the number of entries in the current txg's record.
    pending_entries: u64,
    /// Metaslabs that should have been flushed so far, scaled by `ROTATION`.
    flush_credit: u64,
    total_units: u64,
    /// Units that can be allocated.
    free_units: u64,
    deferred_units: u64,
    /// Free units that are not allocated: writes to them have failed, or their device takes each
    /// address once. They are not part of `free_units`.
    withheld_units: u64,
    /// The slice of discards in flight.
    held: Option<Held>,
    /// The first invalid free, if any.
    fault: Option<Error>,
    /// What a running check needs to know.
    audit: Option<Audit>,
    loaded: Loaded,
    reader: Box<dyn SpaceRead + Send>,
    counters: Arc<SpaceCounters>,
}

impl Space {
    /// Creates the space maps of a new pool, with all spans free. The first txg may have any number
    /// but 0.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the sector size or a span is invalid.
    pub(crate) fn create(
        spans: &[DeviceSpan],
        sector_bytes: u64,
        reader: Box<dyn SpaceRead + Send>,
    ) -> Result<Self> {
        let mut space = Self::empty(sector_bytes, reader)?;
        for span in spans {
            space.add_device(span)?;
        }
        if space.metaslabs.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a pool needs at least one device"));
        }
        space.begin_appending(spans)?;
        Ok(space)
    }

    fn empty(sector_bytes: u64, reader: Box<dyn SpaceRead + Send>) -> Result<Self> {
        Ok(Self {
            geometry: Geometry::new(sector_bytes)?,
            metaslabs: Vec::new(),
            devices: Vec::new(),
            rotor: DeviceRotor::default(),
            roots: RootSlots::default(),
            records: VecDeque::new(),
            index: vec![Vec::new()],
            dirty_leaves: BTreeSet::new(),
            open: None,
            synced: 0,
            durable: true,
            matured_txg: 0,
            entries: Vec::new(),
            pending_entries: 0,
            flush_credit: 0,
            total_units: 0,
            free_units: 0,
            deferred_units: 0,
            withheld_units: 0,
            held: None,
            fault: None,
            audit: None,
            loaded: Loaded::default(),
            reader,
            counters: Arc::new(SpaceCounters::new()),
        })
    }

    /// Sets what reads bases from now on.
    pub(crate) fn set_reader(&mut self, reader: Box<dyn SpaceRead + Send>) {
        self.reader = reader;
    }

    /// The counters.
    pub(crate) fn counters(&self) -> &Arc<SpaceCounters> {
        &self.counters
    }

    /// Begins a txg. Between this call and [`Space::sync`], space can be allocated and freed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a range whose discard has ended is free twice; errors of reading
    /// the base of a device that takes each address once.
    ///
    /// # Panics
    /// If a txg is open, the previous txg is not durable, or `txg` is not newer.
    pub(crate) fn begin(&mut self, txg: u64) -> Result<()> {
        assert!(self.open.is_none(), "a transaction group is open");
        assert!(self.durable, "the transaction group before is not durable");
        assert!(txg > self.synced, "transaction groups only grow");
        self.open = Some(txg);
        self.devices.iter_mut().for_each(DeviceState::new_txg);
        self.release_held(false)?;
        self.begin_txg_of_appending()
    }

    /// The root of `txg`, the newest synced txg, is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a range that was freed two txgs ago is already free.
    ///
    /// # Panics
    /// If `txg` is not the newest synced txg.
    pub(crate) fn committed(&mut self, txg: u64) -> Result<()> {
        assert_eq!(self.synced, txg, "not the txg that was synced last");
        self.durable = true;
        // The two newest records must not mature.
        let Some(at) = self.records.len().checked_sub(3) else { return self.unload_excess() };
        self.matured_txg = self.records[at].txg;
        let (mut units, mut withheld_units) = (0, 0);
        for metaslab in &mut self.metaslabs {
            let device = self.geometry.device_at(metaslab.extent.device).unwrap_or_default();
            let device = &mut self.devices[device];
            let before = metaslab.withheld_units();
            let matured = metaslab.mature(self.matured_txg, device.notes_discards)?;
            let withheld = match &mut device.append {
                Some(append) => append.matured(matured),
                None => metaslab.withheld_units() - before,
            };
            units += matured;
            withheld_units += withheld;
            device.free_units += matured - withheld;
        }
        self.deferred_units -= units;
        self.free_units += units - withheld_units;
        self.withheld_units += withheld_units;
        self.counters.add(SpaceCounters::MATURED_BYTES, 0, units * SECTOR_UNIT);
        self.unload_excess()
    }

    /// The newest synced txg.
    pub(crate) fn synced_txg(&self) -> u64 {
        self.synced
    }

    /// Whether the space maps cover a device.
    pub(crate) fn has_device(&self, device: u16) -> bool {
        self.geometry.device_at(device).is_some()
    }

    /// Adds a device, with the current txg.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the device was added before or has no space.
    pub(crate) fn add_span(&mut self, span: &DeviceSpan) -> Result<()> {
        assert!(self.open.is_some(), "no transaction group is open");
        self.add_device(span)
    }

    fn add_device(&mut self, span: &DeviceSpan) -> Result<()> {
        if self.geometry.device_at(span.device).is_some() {
            let message = format!("device {} is already in the pool", span.device);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let (start, end) = self.geometry.usable(span)?;
        if span.append_only.is_some() {
            // Others follow as it is used.
            let shift = append::shift_for(span);
            let first = metaslab_extents(span.device, shift, start, end).take(1);
            return self.add_metaslabs(first);
        }
        self.add_metaslabs(metaslab_extents(span.device, shift_for(end - start), start, end))
    }

    /// Extends the space maps to the end of a device that has grown, with the current txg.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such device, or if it has shrunk.
    pub(crate) fn extend_span(&mut self, span: &DeviceSpan) -> Result<()> {
        assert!(self.open.is_some(), "no transaction group is open");
        let invalid =
            |what: &str| Error::new(ErrorKind::Invalid, format!("device {} {what}", span.device));
        let at = self.geometry.device_at(span.device);
        let at = at.ok_or_else(|| invalid("is not in the pool"))?;
        if self.devices[at].append.is_some() {
            return Ok(());
        }
        let (_, end) = self.geometry.usable(span)?;
        let device = &self.geometry.devices[at];
        let (shift, old_end) = (device.shift, device.end);
        if end < old_end {
            return Err(invalid("has shrunk"));
        }
        let Some(&last) = device.metaslabs.last() else { return Ok(()) };
        let full = device.start + ((device.metaslabs.len() as u64) << shift);
        let grown = full.min(end);
        if grown > old_end {
            self.extend_metaslab(at, last, grown - old_end)?;
        }
        if end > full {
            self.add_metaslabs(metaslab_extents(span.device, shift, full, end))?;
        }
        Ok(())
    }

    fn extend_metaslab(&mut self, device: usize, id: u32, bytes: u64) -> Result<()> {
        self.load_metaslab(id)?;
        let metaslab = &mut self.metaslabs[id as usize];
        let added = Run::new(metaslab.extent.units, (bytes / SECTOR_UNIT) as u32);
        metaslab.extend(added)?;
        self.geometry.devices[device].end += bytes;
        self.add_capacity(device, added.units.into());
        self.free_units += u64::from(added.units);
        self.dirty_leaves.insert(self.leaf_of(id));
        Ok(())
    }

    fn add_metaslabs(&mut self, new: impl Iterator<Item = MetaslabExtent>) -> Result<()> {
        // Records of earlier txgs do not concern these metaslabs.
        let before = self.open.map_or(self.synced, |txg| txg - 1);
        for extent in new {
            let base = Base::all_free(extent.units, before);
            self.add_metaslab(extent, base)?;
            let added = self.metaslabs.len() - 1;
            self.load_metaslab(added as u32)?;
            self.dirty_leaves.insert(self.leaf_of(added as u32));
        }
        Ok(())
    }

    /// Appends a metaslab, with the free space of its base.
    fn add_metaslab(&mut self, extent: MetaslabExtent, base: Base) -> Result<()> {
        let id = self.metaslabs.len() as u32;
        let mut metaslab = Metaslab::new(id, extent, base);
        if self.metaslabs.len() == MAX_METASLABS {
            return Err(metaslab.corrupt("exceeds the maximum number of metaslabs"));
        }
        self.geometry.push(id, &extent).map_err(|what| metaslab.corrupt(what))?;
        let device = self.geometry.device_at(extent.device).unwrap_or_default();
        if device == self.devices.len() {
            self.devices.push(DeviceState::default());
        }
        metaslab.is_append_only = self.devices[device].append.is_some();
        self.free_units += metaslab.free_units;
        self.devices[device].free_units += metaslab.free_units;
        self.devices[device].units += u64::from(extent.units);
        self.total_units += u64::from(extent.units);
        self.metaslabs.push(metaslab);
        Ok(())
    }

    fn add_capacity(&mut self, device: usize, units: u64) {
        self.devices[device].units += units;
        self.devices[device].free_units += units;
        self.total_units += units;
    }

    /// Subtracts allocated units from the free units.
    fn subtract_free(&mut self, id: u32, units: u32) {
        let number = self.metaslabs[id as usize].extent.device;
        let device = self.geometry.device_at(number).unwrap_or_default();
        self.devices[device].free_units -= u64::from(units);
        self.free_units -= u64::from(units);
    }

    /// A write to this range, which is in use, has failed. Until the next import it is not
    /// allocated again. Until the next txg, the other devices are preferred to this one.
    pub(crate) fn avoid(&mut self, dva: Dva, bytes: u64) {
        let Some((id, run)) = self.geometry.locate(dva, bytes) else { return };
        self.metaslabs[id as usize].avoid(run);
        if let Some(device) = self.geometry.device_at(dva.device) {
            self.devices[device].has_failed = true;
        }
        self.counters.add(SpaceCounters::AVOIDED_BYTES, 0, bytes);
    }

    fn free_range(&mut self, dva: Dva, bytes: u64) {
        assert!(self.open.is_some(), "no transaction group is open");
        let Some((id, run)) = self.geometry.locate(dva, bytes) else {
            self.fault.get_or_insert_with(|| {
                let message = format!("invalid free of {bytes} bytes at {dva}: not in a metaslab");
                Error::new(ErrorKind::Corrupt, message)
            });
            return;
        };
        let metaslab = &mut self.metaslabs[id as usize];
        self.pending_entries += u64::from(note(&mut metaslab.freed, run));
        self.deferred_units += u64::from(run.units);
        if let Some(audit) = &mut self.audit {
            audit.note_freed(id, run, self.geometry.sector_units());
        }
        let shard = self.counters.shard();
        shard.add(SpaceCounters::FREES, 0, 1);
        shard.add(SpaceCounters::FREED_BYTES, 0, bytes);
    }
}

impl Allocate for Space {
    fn allocate(&mut self, bytes: u64, copies: usize) -> Result<[DvaPhys; 2]> {
        self.allocate_for_user(bytes, copies)
    }

    fn free(&mut self, dva: Dva, bytes: u64) {
        self.free_range(dva, bytes);
    }
}
