//! Which free ranges to discard, and their hold while a discard is in flight.
//!
//! A metaslab notes the ranges whose frees have matured (`to_discard`). A [`DiscardList`] is made
//! from them or from all free ranges of a metaslab, and is discarded in [slices](HeldSlice). The
//! ranges of a slice are *held*: they count as free, but they are not in the free set.
//!
//! # Invariants
//!
//! - A held range is free in the newest three roots, and stays so until the slice has ended. So a
//!   discard never meets a block, whatever it does to the bytes of its range and whenever.
//! - A base contains held ranges as free. A crash or an export ends every hold.
//! - At most one slice is held. An allocation that finds no space waits for its end: a hold never
//!   makes the pool seem full.
//!
//! # Locking
//!
//! `space-discard` protects whether a slice has ended. It is a leaf lock, taken under `space`.
//!
//! # What it does not do
//!
//! It does no I/O, and does not know which devices support discards.

use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::Result;
use crate::format::{Dva, SECTOR_UNIT};

use super::metaslab::{FreeMap, Metaslab};
use super::range_set::{Run, normalize, unite};
use super::{DeviceState, Space, SpaceCounters};

/// Maximum number of ranges that a metaslab notes. Beyond it, the shortest are forgotten.
const NOTED_RUNS: usize = 1 << 16;
/// Maximum number of ranges in a slice.
const SLICE_RUNS: usize = 256;
/// A slice takes at most this fraction of the free space.
const SLICE_SHARE: u64 = 8;

/// Free ranges of a metaslab that are to be discarded, shortest first.
#[derive(Debug)]
pub(crate) struct DiscardList {
    metaslab: u32,
    runs: Vec<Run>,
    /// Shorter ranges are not discarded.
    min_units: u32,
}

impl DiscardList {
    /// The metaslab.
    pub(crate) fn metaslab(&self) -> u32 {
        self.metaslab
    }

    fn new(metaslab: u32, mut runs: Vec<Run>, min_units: u32) -> Self {
        runs.sort_unstable_by_key(|run| (run.units, run.start));
        Self { metaslab, runs, min_units }
    }
}

/// Ranges that are held for a discard. The discards have ended when this is dropped.
pub(crate) struct HeldSlice {
    /// Addresses and lengths in bytes, longest first.
    pub(crate) ranges: Vec<(Dva, u64)>,
    end: Arc<SliceEnd>,
}

impl Drop for HeldSlice {
    fn drop(&mut self) {
        *self.end.ended.lock() = true;
        self.end.changed.notify_all();
    }
}

struct SliceEnd {
    ended: Mutex<bool>,
    changed: Condvar,
}

/// The metaslab with held ranges.
pub(super) struct Held {
    metaslab: u32,
    end: Arc<SliceEnd>,
}

impl Space {
    /// Sets whether freed ranges of a device are noted.
    pub(crate) fn note_discards(&mut self, device: u16, wanted: bool) {
        let Some(at) = self.geometry.device_at(device) else { return };
        if std::mem::replace(&mut self.devices[at].notes_discards, wanted) && !wanted {
            for &id in &self.geometry.devices[at].metaslabs {
                self.metaslabs[id as usize].to_discard = Vec::new();
                self.metaslabs[id as usize].discards_all = false;
            }
        }
    }

    /// Whether ranges to be discarded are noted.
    pub(crate) fn has_noted(&self) -> bool {
        self.metaslabs.iter().any(Metaslab::has_noted)
    }

    /// The metaslab with most noted bytes; `None` if nothing is noted.
    pub(crate) fn most_noted(&self) -> Option<u32> {
        let noted = self.metaslabs.iter().filter(|metaslab| metaslab.has_noted());
        noted.max_by_key(|metaslab| total(&metaslab.to_discard)).map(|metaslab| metaslab.id)
    }

    /// The device of a metaslab; `None` if there is no such metaslab.
    pub(crate) fn device_of(&self, metaslab: u32) -> Option<u16> {
        self.metaslabs.get(metaslab as usize).map(|metaslab| metaslab.extent.device)
    }

    /// Takes what a loaded metaslab has noted. It stays loaded until [`end_list`](Self::end_list),
    /// as for [`all_discards`](Self::all_discards). A piece of `min_bytes` that a range touches is
    /// discarded as a whole, if all of it is free.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if a range is free twice.
    pub(crate) fn noted_discards(&mut self, id: u32, min_bytes: u64) -> Result<DiscardList> {
        if self.metaslabs[id as usize].discards_all {
            return self.all_discards(id, min_bytes);
        }
        self.begin_list(id);
        let min_units = self.min_units(id, min_bytes);
        let metaslab = &mut self.metaslabs[id as usize];
        let noted = std::mem::take(&mut metaslab.to_discard);
        let pieces = whole_pieces(&noted, min_units, metaslab.extent.units);
        let mut runs: Vec<Run> = Vec::new();
        if let FreeMap::Loaded { free, .. } = &metaslab.map {
            runs = pieces.into_iter().flat_map(|piece| free.within(piece)).collect();
        }
        runs.retain(|run| run.units >= min_units);
        Ok(DiscardList::new(id, runs, min_units))
    }

    /// Lists all free ranges of at least `min_bytes` of a loaded metaslab.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if a range is free twice.
    pub(crate) fn all_discards(&mut self, id: u32, min_bytes: u64) -> Result<DiscardList> {
        let min_units = self.min_units(id, min_bytes);
        let discardable = self.discardable(id);
        self.begin_list(id);
        let metaslab = &mut self.metaslabs[id as usize];
        metaslab.to_discard = Vec::new();
        metaslab.discards_all = false;
        metaslab.return_run()?;
        let mut runs = match &metaslab.map {
            FreeMap::Unloaded(_) => Vec::new(),
            FreeMap::Loaded { free, .. } => free.within(discardable),
        };
        runs.retain(|run| run.units >= min_units);
        Ok(DiscardList::new(id, runs, min_units))
    }

    fn min_units(&self, id: u32, min_bytes: u64) -> u32 {
        let sector = self.geometry.sector_bytes;
        // An object goes when all of it is discarded.
        let is_append_only = self.metaslabs[id as usize].is_append_only;
        let min_bytes = if is_append_only { sector } else { min_bytes };
        let units = min_bytes.max(sector).next_multiple_of(sector) / SECTOR_UNIT;
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    /// Holds the longest ranges of the list, up to `max_bytes`, and removes them from the list.
    /// `None` at the end of the list, or if the newest txg is not durable. What was allocated
    /// meanwhile is left out. The slice before must have ended.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if a range is free twice.
    ///
    /// # Panics
    /// If a slice is held and has not ended.
    pub(crate) fn hold(
        &mut self,
        list: &mut DiscardList,
        max_bytes: u64,
    ) -> Result<Option<HeldSlice>> {
        if self.open.is_some() || !self.durable {
            return Ok(None);
        }
        self.release_held(false)?;
        assert!(self.held.is_none(), "one slice at a time");
        let most = (max_bytes / SECTOR_UNIT).min(self.free_units / SLICE_SHARE);
        let sector = u64::from(self.geometry.sector_units());
        let mut left = most / sector * sector;
        let metaslab = &mut self.metaslabs[list.metaslab as usize];
        let mut runs = Vec::new();
        let min_units = list.min_units;
        // A whole slice may be shorter than that.
        while runs.len() < SLICE_RUNS && left > 0 && (runs.is_empty() || left >= min_units.into()) {
            let Some(run) = list.runs.pop() else { break };
            let front = u64::from(run.units).min(left) as u32;
            if front < run.units {
                list.runs.push(Run::new(run.start + front, run.units - front));
            }
            let FreeMap::Loaded { free, .. } = &metaslab.map else { break };
            let mut parts = free.within(Run::new(run.start, front));
            parts.retain(|part| part.units >= min_units.min(front));
            left -= total(&parts);
            runs.extend(parts);
        }
        if runs.is_empty() {
            return Ok(None);
        }
        let ranges = runs.iter().map(|run| {
            let bytes = u64::from(run.units) * SECTOR_UNIT;
            (metaslab.dva(run.start), bytes)
        });
        let ranges = ranges.collect();
        normalize(&mut runs).map_err(|run| metaslab.corrupt_at(run, "are free twice"))?;
        if let FreeMap::Loaded { free, .. } = &mut metaslab.map
            && !free.remove_ascending(&runs)
        {
            return Err(metaslab.corrupt("a range to be discarded is not free"));
        }
        metaslab.held = runs;
        let ended = Mutex::named("space-discard", false);
        let end = Arc::new(SliceEnd { ended, changed: Condvar::new() });
        self.held = Some(Held { metaslab: list.metaslab, end: Arc::clone(&end) });
        Ok(Some(HeldSlice { ranges, end }))
    }

    /// Returns the held ranges to the free set once their discards have ended; with `wait` it waits
    /// for that. Returns whether it returned any.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if a held range is free twice.
    pub(crate) fn release_held(&mut self, wait: bool) -> Result<bool> {
        let Some(held) = &self.held else { return Ok(false) };
        {
            let mut ended = held.end.ended.lock();
            if !*ended && !wait {
                return Ok(false);
            }
            self.counters.add(SpaceCounters::WAITED_FOR_DISCARDS, 0, u64::from(!*ended));
            while !*ended {
                held.end.changed.wait(&mut ended);
            }
        }
        let metaslab = held.metaslab;
        self.held = None;
        self.metaslabs[metaslab as usize].return_held()?;
        // There may be long ranges again.
        self.devices.iter_mut().for_each(DeviceState::new_txg);
        Ok(true)
    }
}

impl Metaslab {
    /// Whether ranges are to be discarded.
    fn has_noted(&self) -> bool {
        self.discards_all || !self.to_discard.is_empty()
    }

    /// Notes ranges that have become allocatable.
    pub(super) fn note_discards(&mut self, freed: &[Run]) {
        if self.discards_all {
            return;
        }
        self.to_discard = unite(&self.to_discard, freed);
        if self.to_discard.len() > NOTED_RUNS && self.is_append_only {
            self.to_discard = Vec::new();
            self.discards_all = true;
        } else if self.to_discard.len() > NOTED_RUNS {
            self.to_discard.sort_unstable_by_key(|run| std::cmp::Reverse(run.units));
            self.to_discard.truncate(NOTED_RUNS / 2);
            self.to_discard.sort_unstable();
        }
    }
}

fn total(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.units)).sum()
}

/// Extends sorted ranges to whole pieces of `piece` units, below `end`.
fn whole_pieces(runs: &[Run], piece: u32, end: u32) -> Vec<Run> {
    let mut pieces: Vec<Run> = Vec::new();
    for run in runs {
        let start = run.start / piece * piece;
        let stop = run.end().div_ceil(piece).saturating_mul(piece).min(end);
        match pieces.last_mut().filter(|last| last.end() >= start) {
            Some(last) => last.units = last.units.max(stop.saturating_sub(last.start)),
            None => pieces.push(Run::new(start, stop.saturating_sub(start))),
        }
    }
    pieces
}
