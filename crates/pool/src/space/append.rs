//! Allocation on a device that takes each address once, as an object store does.
//!
//! Addresses are allocated in ascending order. The *frontier* is the first address that was never
//! allocated. It only grows: at an import it begins where the device says that no address was ever
//! used, which includes what a crash has undone, and after all that the space maps know. Metaslabs
//! are added as the frontier moves. Their size is chosen so that
//! [`MAX_METASLABS`] of them cover the device.
//!
//! Freed ranges below the frontier are *spent*: free in the space maps, so that the device is told
//! of them by discards, and never allocated again. The device says how many bytes at its start may
//! be rewritten. Only what has a fixed address is allocated there: the intent log and root blocks.
//!
//! # Invariants
//!
//! - Spent units are in no sum of free units, but in `Space::withheld_units`.
//! - The device's units that no metaslab covers yet are in the sums of its units and of its free
//!   units.
//! - During [`Space::sync`] no metaslab is added, since the index would change. Enough is ahead.

use forebay_io::AppendOnly;

use crate::devices::DeviceSpan;
use crate::format::{Dva, DvaPhys, SECTOR_UNIT};
use crate::{Error, ErrorKind, Result};

use super::Space;
use super::allocate::Allocated;
use super::geometry::{MAX_METASLABS, metaslab_extents, shift_to_cover};
use super::metaslab::{FreeMap, Metaslab};
use super::range_set::Run;

/// Metaslabs cover at least so many bytes past the frontier, and at least one whole metaslab, when
/// a txg ends. The space maps of a txg need far less.
const AHEAD_BYTES: u64 = 64 << 20;

/// State of a device that takes each address once.
#[derive(Debug)]
pub(super) struct AppendState {
    /// No address from here on was ever allocated.
    frontier: u64,
    /// End of the range that takes rewrites.
    mutable_end: u64,
    /// End of the range that can hold blocks.
    end: u64,
    /// Free units below the frontier.
    spent_units: u64,
    /// Whether the frontier was compared with the space maps.
    settled: bool,
}

impl AppendState {
    /// Frees have matured: they are spent. Returns their number of units.
    pub(super) fn matured(&mut self, units: u64) -> u64 {
        self.spent_units += units;
        units
    }
}

/// Returns log2 of the size of the metaslabs of a device.
pub(super) fn shift_for(span: &DeviceSpan) -> u8 {
    shift_to_cover(span.end - span.start, MAX_METASLABS as u64)
}

impl Space {
    /// Whether the free ranges of a metaslab that may be discarded are never allocated again.
    pub(crate) fn is_spent_in(&self, id: u32) -> bool {
        self.metaslabs[id as usize].is_append_only
    }

    /// Whether the frontier of its device is in a metaslab.
    pub(super) fn is_at_frontier(&self, id: u32) -> bool {
        let extent = &self.metaslabs[id as usize].extent;
        let append = self.geometry.device_at(extent.device).map(|at| &self.devices[at].append);
        let frontier = append.and_then(|append| append.as_ref()).map(|append| append.frontier);
        frontier.is_some_and(|frontier| (extent.start..extent.end()).contains(&frontier))
    }

    /// Begins to allocate in ascending order on devices that need it, once their metaslabs are
    /// known.
    pub(super) fn begin_appending(&mut self, spans: &[DeviceSpan]) -> Result<()> {
        for span in spans {
            let Some(AppendOnly { mutable_bytes, next_unused }) = span.append_only else {
                continue;
            };
            let Some(at) = self.geometry.device_at(span.device) else { continue };
            let (start, end) = self.geometry.usable(span)?;
            let sector = self.geometry.sector_bytes;
            let mutable_end = mutable_bytes.next_multiple_of(sector).max(start);
            let frontier = next_unused.next_multiple_of(sector).max(mutable_end).min(end);
            let ahead = end.saturating_sub(self.geometry.devices[at].end) / SECTOR_UNIT;
            self.add_capacity(at, ahead);
            self.free_units += ahead;
            let state = AppendState { frontier, mutable_end, end, spent_units: 0, settled: false };
            self.devices[at].append = Some(state);
            for &id in &self.geometry.devices[at].metaslabs {
                let metaslab = &mut self.metaslabs[id as usize];
                metaslab.is_append_only = true;
                // Nobody knows which discards the device has got before.
                metaslab.discards_all = metaslab.free_units > 0;
            }
            self.count_spent(at);
        }
        Ok(())
    }

    /// Counts what is spent on a device.
    fn count_spent(&mut self, device: usize) {
        let Some(append) = &self.devices[device].append else { return };
        let (frontier, before) = (append.frontier, append.spent_units);
        let ids = &self.geometry.devices[device].metaslabs;
        let spent = |id: &u32| {
            let metaslab = &self.metaslabs[*id as usize];
            let unused = metaslab.extent.end().saturating_sub(metaslab.extent.start.max(frontier));
            metaslab.free_units.saturating_sub(unused / SECTOR_UNIT)
        };
        let spent: u64 = ids.iter().map(spent).sum();
        self.unspend(device, before);
        self.spend(device, spent);
    }

    /// Free units of a device will not be allocated.
    fn spend(&mut self, device: usize, units: u64) {
        let state = &mut self.devices[device];
        state.free_units -= units;
        self.free_units -= units;
        self.withheld_units += units;
        if let Some(append) = &mut state.append {
            append.spent_units += units;
        }
    }

    fn unspend(&mut self, device: usize, units: u64) {
        let state = &mut self.devices[device];
        state.free_units += units;
        self.free_units += units;
        self.withheld_units -= units;
        if let Some(append) = &mut state.append {
            append.spent_units -= units;
        }
    }

    /// Prepares a txg: the frontier is behind all that the space maps know, and metaslabs are ahead
    /// of it.
    pub(super) fn begin_txg_of_appending(&mut self) -> Result<()> {
        for device in 0..self.devices.len() {
            if self.devices[device].append.as_ref().is_some_and(|append| !append.settled) {
                self.settle_frontier(device)?;
            }
        }
        self.extend_ahead()
    }

    fn settle_frontier(&mut self, device: usize) -> Result<()> {
        let ids = self.geometry.devices[device].metaslabs.clone();
        let frontier = |space: &Self| space.devices[device].append.as_ref().map(|it| it.frontier);
        for id in ids.into_iter().rev() {
            let metaslab = &self.metaslabs[id as usize];
            if frontier(self).is_none_or(|frontier| metaslab.extent.end() <= frontier) {
                break;
            }
            if metaslab.free_units == u64::from(metaslab.extent.units) {
                continue;
            }
            self.load_metaslab(id)?;
            let metaslab = &mut self.metaslabs[id as usize];
            metaslab.return_run()?;
            let (units, last) = (metaslab.extent.units, metaslab.free_ranges()?.pop());
            let tail = last.filter(|last| last.end() == units).map_or(units, |last| last.start);
            let known = metaslab.dva(tail).offset;
            if let Some(append) = &mut self.devices[device].append {
                append.frontier = append.frontier.max(known);
            }
            break;
        }
        self.count_spent(device);
        if let Some(append) = &mut self.devices[device].append {
            append.settled = true;
        }
        Ok(())
    }

    /// Adds metaslabs until enough is ahead of the frontiers. Not during [`Space::sync`].
    pub(super) fn extend_ahead(&mut self) -> Result<()> {
        for device in 0..self.devices.len() {
            let Some(append) = &self.devices[device].append else { continue };
            let (frontier, end) = (append.frontier, append.end);
            let geometry = &self.geometry.devices[device];
            let (number, shift, known) = (geometry.number, geometry.shift, geometry.end);
            let wanted = frontier.saturating_add(AHEAD_BYTES.max(1 << shift)).min(end);
            if known >= wanted {
                continue;
            }
            let size = 1_u64 << shift;
            let until = (known + (wanted - known).next_multiple_of(size)).min(end);
            let before = self.metaslabs.len();
            self.add_metaslabs(metaslab_extents(number, shift, known, until))?;
            let added = (until - known) / SECTOR_UNIT;
            // They were counted as the rest of the device.
            let state = &mut self.devices[device];
            state.units -= added;
            state.free_units -= added;
            self.total_units -= added;
            self.free_units -= added;
            for id in before..self.metaslabs.len() {
                let extent = self.metaslabs[id].extent;
                let passed = frontier.min(extent.end()).saturating_sub(extent.start);
                self.spend(device, passed / SECTOR_UNIT);
            }
        }
        Ok(())
    }

    /// Allocates at the frontier of a device. `None` if the device is full, or no metaslab is long
    /// enough.
    pub(super) fn allocate_at_frontier(
        &mut self,
        device: usize,
        units: u32,
    ) -> Result<Option<Allocated>> {
        loop {
            let Some(append) = &self.devices[device].append else { return Ok(None) };
            let geometry = &self.geometry.devices[device];
            let (frontier, shift) = (append.frontier, geometry.shift);
            let slot = (frontier - geometry.start) >> shift;
            let Some(&id) = geometry.metaslabs.get(slot as usize) else { return Ok(None) };
            if u64::from(units) * SECTOR_UNIT > 1 << shift {
                return Ok(None);
            }
            self.load_metaslab(id)?;
            let metaslab = &mut self.metaslabs[id as usize];
            let start = ((frontier - metaslab.extent.start) / SECTOR_UNIT) as u32;
            let left = metaslab.extent.units - start;
            let passed = if units <= left {
                self.pending_entries += u64::from(metaslab.allocate_at(start, units)?);
                units
            } else {
                // The rest of the metaslab is too short.
                self.spend(device, left.into());
                left
            };
            if let Some(append) = &mut self.devices[device].append {
                append.frontier += u64::from(passed) * SECTOR_UNIT;
            }
            if units <= left {
                return Ok(Some(Allocated { device, metaslab: id, start }));
            }
        }
    }

    /// Allocates space that is rewritten in place: on a device that takes each address once, in the
    /// range that takes rewrites, with one copy.
    ///
    /// # Errors
    /// As [`Allocate::allocate`](crate::store::Allocate::allocate).
    pub(crate) fn allocate_rewritable(
        &mut self,
        bytes: u64,
        copies: usize,
    ) -> Result<[DvaPhys; 2]> {
        let Some(device) = self.devices.iter().position(|device| device.append.is_some()) else {
            return self.allocate_required(bytes, copies);
        };
        let units = self.units_of(bytes, 1)?;
        for at in 0..self.geometry.devices[device].metaslabs.len() {
            let id = self.geometry.devices[device].metaslabs[at];
            let Some(mutable) = self.mutable_run(device, id) else { break };
            self.load_metaslab(id)?;
            let Some(run) = self.metaslabs[id as usize].first_fit(mutable, units)? else {
                continue;
            };
            self.pending_entries += u64::from(self.metaslabs[id as usize].allocate_at(run, units)?);
            self.unspend(device, units.into());
            let allocated = Allocated { device, metaslab: id, start: run };
            return Ok([self.account(allocated, units, 0), DvaPhys::NONE]);
        }
        let text =
            format!("no space for {bytes} bytes in the part of the device that takes rewrites");
        Err(Error::new(ErrorKind::NoSpace, text))
    }

    /// Bytes that [`allocate_rewritable`](Self::allocate_rewritable) can use; `None` if all of the
    /// pool takes rewrites.
    pub(crate) fn rewritable_bytes(&self) -> Option<u64> {
        let (device, append) = self.appending()?;
        Some(append.mutable_end - self.geometry.devices[device].start)
    }

    /// Free bytes that are never allocated again; `None` if there are no such bytes.
    pub(crate) fn spent_bytes(&self) -> Option<u64> {
        self.appending().map(|(_, append)| append.spent_units * SECTOR_UNIT)
    }

    fn appending(&self) -> Option<(usize, &AppendState)> {
        let with =
            |(at, device): (usize, &'_ super::DeviceState)| device.append.is_some().then_some(at);
        let at = self.devices.iter().enumerate().find_map(with)?;
        Some((at, self.devices[at].append.as_ref()?))
    }

    /// The part of a metaslab that takes rewrites; `None` if there is none.
    fn mutable_run(&self, device: usize, id: u32) -> Option<Run> {
        let append = self.devices[device].append.as_ref()?;
        let extent = self.metaslabs[id as usize].extent;
        let end = append.mutable_end.min(extent.end());
        let bytes = end.checked_sub(extent.start).filter(|bytes| *bytes > 0)?;
        Some(Run::new(0, (bytes / SECTOR_UNIT) as u32))
    }

    /// The part of a metaslab that may be discarded. On a device that takes each address once,
    /// addresses from the frontier on will be written, and those that take rewrites matter to
    /// nobody.
    pub(super) fn discardable(&self, id: u32) -> Run {
        let extent = self.metaslabs[id as usize].extent;
        let device = self.geometry.device_at(extent.device).unwrap_or_default();
        let Some(append) = &self.devices[device].append else { return Run::new(0, extent.units) };
        let start = append.mutable_end.clamp(extent.start, extent.end());
        let end = append.frontier.clamp(start, extent.end());
        let unit = |offset: u64| ((offset - extent.start) / SECTOR_UNIT) as u32;
        Run::new(unit(start), unit(end) - unit(start))
    }

    /// Lists what is in use, or was freed too recently to be discarded, among the addresses from
    /// `start` to `end` in a loaded metaslab: ranges of bytes on its device.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the metaslab contradicts itself.
    pub(crate) fn live_in(&mut self, id: u32, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let metaslab = &mut self.metaslabs[id as usize];
        metaslab.return_run()?;
        let (free, extent) = (metaslab.free_ranges()?, metaslab.extent);
        let mut live = Vec::new();
        let mut at = extent.start;
        let mut push = |from: u64, to: u64| {
            let (from, to) = (from.max(start), to.min(end));
            if from < to {
                live.push((from, to));
            }
        };
        for run in free {
            let begin = extent.dva(run.start).offset;
            push(at, begin);
            at = begin + u64::from(run.units) * SECTOR_UNIT;
        }
        push(at, extent.end());
        Ok(live)
    }

    /// The metaslab of an address, and where it ends; `None` past the last one.
    pub(crate) fn metaslab_at(&self, dva: Dva) -> Option<(u32, u64)> {
        let (id, _) = self.geometry.locate_front(dva, self.geometry.sector_bytes)?;
        Some((id, self.metaslabs[id as usize].extent.end()))
    }
}

impl Metaslab {
    /// Allocates free units from `start` on. Returns whether the log needs another entry.
    fn allocate_at(&mut self, start: u32, units: u32) -> Result<bool> {
        let is_next = |run: &Run| run.start == start && run.units >= units;
        if !matches!(&self.map, FreeMap::Loaded { run, .. } if is_next(run)) {
            self.return_run()?;
            let FreeMap::Loaded { free, run } = &mut self.map else { return Ok(false) };
            // All that is free from there on, so that the next allocation needs no search.
            let rest = Run::new(start, self.extent.units - start);
            let rest = free.within(rest).into_iter().find(is_next);
            let rest = rest.filter(|rest| free.remove(*rest));
            let Some(rest) = rest else {
                return Err(self.corrupt_at(Run::new(start, units), "are not free"));
            };
            *run = rest;
        }
        let allocated = self.allocate_from_run(units);
        Ok(allocated.is_some_and(|(_, needs_entry)| needs_entry))
    }

    /// The first of `units` free units within a range.
    fn first_fit(&mut self, within: Run, units: u32) -> Result<Option<u32>> {
        self.return_run()?;
        let FreeMap::Loaded { free, .. } = &self.map else { return Ok(None) };
        let fits = free.within(within).into_iter().find(|run| run.units >= units);
        Ok(fits.map(|run| run.start))
    }
}
