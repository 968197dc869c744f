//! Allocation: chooses a device, a metaslab, and a range.
//!
//! First copies rotate over the devices in chunks whose size follows the devices' free space. A
//! second copy goes to the next device with space; on a single device it keeps at least an eighth
//! of the device away. Each device has a cursor for first and one for second copies: a metaslab
//! from whose current run blocks are allocated front to back. When it has no long run left, the
//! metaslab with the longest run becomes the cursor. When no metaslab has a long run, smaller holes
//! are filled.

use crate::format::{DvaPhys, SECTOR_UNIT};
use crate::{Error, ErrorKind, Result};

use super::append::AppendState;
use super::metaslab::RUN_UNITS;
use super::range_set::Run;
use super::{Space, SpaceCounters};

/// Bytes allocated on a device before the rotor moves on, if all devices have equal free space.
const CHUNK_BYTES: u64 = 1 << 20;
/// Second copies keep this fraction of the device away from first copies, if possible.
const COPY_DISTANCE: u64 = 8;
/// Fraction of the pool that only its own structures may use.
const RESERVE: u64 = 64;
const RESERVE_MIN_UNITS: u64 = (256 << 10) / SECTOR_UNIT;
const RESERVE_MAX_UNITS: u64 = (32 << 20) / SECTOR_UNIT;
/// Entries of the log per unit of space, with block headers and both copies included. A block of
/// one 512-byte sector holds 26 entries.
const ENTRIES_PER_UNIT: u64 = 13;

/// Allocation state of a device.
#[derive(Debug)]
pub(super) struct DeviceState {
    pub(super) units: u64,
    pub(super) free_units: u64,
    /// The metaslabs of the cursors for first and second copies.
    cursors: [Option<u32>; 2],
    /// Whether no metaslab had a long run for a first or second copy, in this txg.
    no_runs: [bool; 2],
    /// The smallest size that could not be allocated, in this txg.
    failed_units: u32,
    /// Whether freed ranges are noted to be discarded.
    pub(super) notes_discards: bool,
    /// Whether a write to it has failed in this txg.
    pub(super) has_failed: bool,
    /// Whether it takes each address once.
    pub(super) append: Option<AppendState>,
}

impl Default for DeviceState {
    fn default() -> Self {
        Self {
            units: 0,
            free_units: 0,
            cursors: [None; 2],
            no_runs: [false; 2],
            failed_units: u32::MAX,
            notes_discards: false,
            has_failed: false,
            append: None,
        }
    }
}

impl DeviceState {
    /// Resets the state: space may have become free.
    pub(super) fn new_txg(&mut self) {
        self.no_runs = [false; 2];
        self.failed_units = u32::MAX;
        self.has_failed = false;
    }
}

/// The device whose turn it is.
#[derive(Debug, Default)]
pub(super) struct DeviceRotor {
    device: usize,
    /// Units until the next device's turn.
    left: u64,
}

/// Required distance of a metaslab from another one.
#[derive(Clone, Copy)]
enum Distance {
    /// An eighth of the device.
    Far,
    /// Another metaslab.
    Other,
    /// None.
    Any,
}

/// An allocated range.
#[derive(Clone, Copy)]
pub(super) struct Allocated {
    pub(super) device: usize,
    pub(super) metaslab: u32,
    pub(super) start: u32,
}

impl Space {
    pub(super) fn allocate_for_user(&mut self, bytes: u64, copies: usize) -> Result<[DvaPhys; 2]> {
        let units = self.units_of(bytes, copies)?;
        let enough = u64::from(units) * copies as u64 + self.reserve_units();
        if self.free_units < enough {
            self.counters.add(SpaceCounters::REFUSED, 0, 1);
            return Err(no_space(bytes, "only the reserve of the space maps is left"));
        }
        self.extend_ahead()?;
        self.allocate_units(units, copies)
    }

    /// Allocates space that the commit cannot do without, such as a root block. May use the
    /// reserve.
    ///
    /// # Errors
    /// As [`Allocate::allocate`](crate::store::Allocate::allocate).
    pub(crate) fn allocate_required(&mut self, bytes: u64, copies: usize) -> Result<[DvaPhys; 2]> {
        let units = self.units_of(bytes, copies)?;
        self.extend_ahead()?;
        self.allocate_units(units, copies)
    }

    /// Allocates two copies for the space maps: `bytes`, or less if no range is long enough, down
    /// to a sector.
    pub(super) fn allocate_own(&mut self, bytes: u64) -> Result<([DvaPhys; 2], u64)> {
        let sector = self.geometry.sector_bytes;
        let mut bytes = bytes;
        loop {
            let units = self.units_of(bytes, 2)?;
            match self.allocate_units(units, 2) {
                Ok(places) => return Ok((places, bytes)),
                Err(error) if error.kind() == ErrorKind::NoSpace && bytes > sector => {
                    bytes = (bytes / 2).next_multiple_of(sector);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Units that only the space maps may use.
    pub(super) fn reserve_units(&self) -> u64 {
        let fixed = (self.total_units / RESERVE).clamp(RESERVE_MIN_UNITS, RESERVE_MAX_UNITS);
        fixed + self.log_units()
    }

    /// Upper bound of the units that the current txg's record takes so far.
    pub(super) fn log_units(&self) -> u64 {
        let sectors = u64::from(self.geometry.sector_units());
        self.pending_entries.div_ceil(ENTRIES_PER_UNIT) + 2 * sectors
    }

    pub(super) fn units_of(&self, bytes: u64, copies: usize) -> Result<u32> {
        assert!(self.open.is_some(), "no transaction group is open");
        let units = u32::try_from(bytes / SECTOR_UNIT).unwrap_or(u32::MAX);
        let whole = bytes.is_multiple_of(self.geometry.sector_bytes) && bytes > 0;
        if !whole || !(1..=2).contains(&copies) {
            let message = format!("cannot allocate {copies} copies of {bytes} bytes");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(units)
    }

    #[inline]
    fn allocate_units(&mut self, units: u32, copies: usize) -> Result<[DvaPhys; 2]> {
        match self.try_allocate(units, copies)? {
            Some(places) => Ok(places),
            None => self.allocate_after_discards(units, copies),
        }
    }

    /// Allocates with the space that is held for discards, if there is any.
    #[cold]
    fn allocate_after_discards(&mut self, units: u32, copies: usize) -> Result<[DvaPhys; 2]> {
        if self.release_held(true)?
            && let Some(places) = self.try_allocate(units, copies)?
        {
            return Ok(places);
        }
        Err(self.refuse(units))
    }

    #[inline]
    fn try_allocate(&mut self, units: u32, copies: usize) -> Result<Option<[DvaPhys; 2]>> {
        let Some(first) = self.first_copy(units)? else { return Ok(None) };
        let mut places = [self.account(first, units, 0), DvaPhys::NONE];
        // An object store keeps copies of its own. A second one would lie in the same object.
        if copies == 2 && self.devices[first.device].append.is_none() {
            let Some(second) = self.second_copy(units, first)? else {
                self.undo(first, units)?;
                return Ok(None);
            };
            places[1] = self.account(second, units, 1);
        }
        Ok(Some(places))
    }

    #[cold]
    fn refuse(&mut self, units: u32) -> Error {
        self.counters.add(SpaceCounters::REFUSED, 0, 1);
        no_space(u64::from(units) * SECTOR_UNIT, "no free range is long enough")
    }

    pub(super) fn account(&mut self, allocated: Allocated, units: u32, copy: usize) -> DvaPhys {
        self.devices[allocated.device].free_units -= u64::from(units);
        self.free_units -= u64::from(units);
        if let Some(audit) = &mut self.audit {
            let run = Run::new(allocated.start, units);
            audit.note_allocated(allocated.metaslab, run, self.geometry.sector_units());
        }
        let shard = self.counters.shard();
        shard.add(SpaceCounters::ALLOCATIONS, copy, 1);
        shard.add(SpaceCounters::ALLOCATED_BYTES, copy, u64::from(units) * SECTOR_UNIT);
        DvaPhys::new(self.metaslabs[allocated.metaslab as usize].dva(allocated.start))
    }

    fn undo(&mut self, allocated: Allocated, units: u32) -> Result<()> {
        self.metaslabs[allocated.metaslab as usize].undo(Run::new(allocated.start, units))?;
        self.devices[allocated.device].free_units += u64::from(units);
        self.free_units += u64::from(units);
        Ok(())
    }

    fn first_copy(&mut self, units: u32) -> Result<Option<Allocated>> {
        if self.rotor.left == 0 {
            self.next_device();
        }
        let devices = self.devices.len();
        // Devices to which writes have failed come last.
        for has_failed in [false, true] {
            for step in 0..devices {
                let device = (self.rotor.device + step) % devices;
                if self.devices[device].has_failed == has_failed
                    && let Some(allocated) = self.on_device(device, 0, units, None)?
                {
                    self.rotor.left = self.rotor.left.saturating_sub(u64::from(units));
                    return Ok(Some(allocated));
                }
            }
        }
        Ok(None)
    }

    fn second_copy(&mut self, units: u32, first: Allocated) -> Result<Option<Allocated>> {
        let devices = self.devices.len();
        for step in 1..devices {
            let device = (first.device + step) % devices;
            if !self.devices[device].has_failed
                && let Some(allocated) = self.on_device(device, 1, units, None)?
            {
                return Ok(Some(allocated));
            }
        }
        let near = self.on_device(first.device, 1, units, Some(first.metaslab))?;
        if near.is_some() {
            return Ok(near);
        }
        for step in 1..devices {
            let device = (first.device + step) % devices;
            if self.devices[device].has_failed
                && let Some(allocated) = self.on_device(device, 1, units, None)?
            {
                return Ok(Some(allocated));
            }
        }
        Ok(None)
    }

    /// Moves the rotor to the next device. Its chunk is proportional to the device's free space.
    fn next_device(&mut self) {
        let devices = self.devices.len();
        self.rotor.device = (self.rotor.device + 1) % devices;
        let chunk = u128::from(CHUNK_BYTES / SECTOR_UNIT);
        let free = u128::from(self.devices[self.rotor.device].free_units);
        let share = chunk * free * devices as u128 / u128::from(self.free_units.max(1));
        self.rotor.left = share.clamp(chunk / 8, chunk * 8) as u64;
    }

    /// Allocates on a device. `other` is the metaslab of the other copy, if it is on this device.
    #[inline]
    fn on_device(
        &mut self,
        device: usize,
        copy: usize,
        units: u32,
        other: Option<u32>,
    ) -> Result<Option<Allocated>> {
        if self.devices[device].append.is_some() {
            return self.allocate_at_frontier(device, units);
        }
        if let Some(id) = self.devices[device].cursors[copy]
            && self.keeps_distance(device, id, other, Distance::Far)
            && let Some(allocated) = self.allocate_in(device, id, units)
        {
            return Ok(Some(allocated));
        }
        self.on_device_slow(device, copy, units, other)
    }

    fn on_device_slow(
        &mut self,
        device: usize,
        copy: usize,
        units: u32,
        other: Option<u32>,
    ) -> Result<Option<Allocated>> {
        let state = &self.devices[device];
        if units >= state.failed_units || u64::from(units) > state.free_units {
            return Ok(None);
        }
        let avoid = other.or(state.cursors[1 - copy]);
        let long = units.max(RUN_UNITS);
        if !state.no_runs[copy] {
            if let Some(id) = self.pick_metaslab(device, copy, long, avoid, Distance::Far)? {
                return self.switch_cursor(device, copy, id, units);
            }
            if other.is_none()
                && let Some(id) = self.pick_metaslab(device, copy, long, avoid, Distance::Other)?
            {
                return self.switch_cursor(device, copy, id, units);
            }
            self.devices[device].no_runs[copy] = true;
        }
        let distances = [Distance::Far, Distance::Other, Distance::Any];
        // Without another copy on this device, there is no distance to keep.
        for &distance in &distances[..if other.is_some() { 3 } else { 1 }] {
            if let Some(id) = self.pick_metaslab(device, copy, units, other, distance)? {
                if !matches!(distance, Distance::Far) {
                    self.counters.add(SpaceCounters::COPIES_NEAR, 0, 1);
                }
                return self.switch_cursor(device, copy, id, units);
            }
        }
        self.devices[device].failed_units = units;
        Ok(None)
    }

    fn allocate_in(&mut self, device: usize, id: u32, units: u32) -> Option<Allocated> {
        let (start, new) = self.metaslabs[id as usize].allocate_from_run(units)?;
        self.pending_entries += u64::from(new);
        Some(Allocated { device, metaslab: id, start })
    }

    /// Makes a metaslab with enough space the cursor, and allocates from it.
    fn switch_cursor(
        &mut self,
        device: usize,
        copy: usize,
        id: u32,
        units: u32,
    ) -> Result<Option<Allocated>> {
        let old = self.devices[device].cursors[copy].replace(id);
        if old != Some(id) {
            self.counters.add(SpaceCounters::METASLAB_SWITCHES, 0, 1);
        }
        if let Some(allocated) = self.allocate_in(device, id, units) {
            return Ok(Some(allocated));
        }
        let metaslab = &mut self.metaslabs[id as usize];
        if !metaslab.next_run(units)? {
            return Err(metaslab.corrupt("has lost its longest range"));
        }
        Ok(self.allocate_in(device, id, units))
    }

    /// Returns a metaslab with a range of at least `units`: the cursor, or the one with the longest
    /// range.
    fn pick_metaslab(
        &mut self,
        device: usize,
        copy: usize,
        units: u32,
        avoid: Option<u32>,
        distance: Distance,
    ) -> Result<Option<u32>> {
        if let Some(id) = self.devices[device].cursors[copy]
            && self.keeps_distance(device, id, avoid, distance)
            && self.metaslabs[id as usize].largest_units() >= units
        {
            return Ok(Some(id));
        }
        // Each iteration but the last loads a metaslab.
        while let Some(id) = self.longest(device, copy, units, avoid, distance) {
            self.load_metaslab(id)?;
            if self.metaslabs[id as usize].largest_units() >= units {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    fn longest(
        &self,
        device: usize,
        copy: usize,
        units: u32,
        avoid: Option<u32>,
        distance: Distance,
    ) -> Option<u32> {
        let ids = &self.geometry.devices[device].metaslabs;
        // Second copies start in the middle, so that both kinds stay apart on an empty device.
        let (late, early) = ids.split_at(copy * ids.len() / 2);
        let mut best = None;
        for &id in early.iter().chain(late) {
            let metaslab = &self.metaslabs[id as usize];
            let largest = metaslab.largest_units();
            if largest < units || !self.keeps_distance(device, id, avoid, distance) {
                continue;
            }
            // A loaded metaslab needs no read.
            let score = u64::from(largest) << u32::from(metaslab.is_loaded());
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Whether a metaslab keeps `distance` from `avoid`, on the same device.
    #[inline]
    fn keeps_distance(
        &self,
        device: usize,
        id: u32,
        avoid: Option<u32>,
        distance: Distance,
    ) -> bool {
        let Some(avoid) = avoid else { return true };
        match distance {
            Distance::Any => true,
            Distance::Other => id != avoid,
            Distance::Far => {
                let device = &self.geometry.devices[device];
                let between = self.metaslabs[id as usize]
                    .extent
                    .start
                    .abs_diff(self.metaslabs[avoid as usize].extent.start);
                between >= (device.end - device.start) / COPY_DISTANCE + (1 << device.shift)
            }
        }
    }
}

#[cold]
fn no_space(bytes: u64, why: &str) -> Error {
    Error::new(ErrorKind::NoSpace, format!("no space for {bytes} bytes: {why}"))
}
