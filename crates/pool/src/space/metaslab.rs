//! A metaslab: the free ranges of one extent of a device, and what happened to it lately.
//!
//! A metaslab is *unloaded* until somebody wants to allocate in it, write its base, or look at all of
//! it: then what changed since its base waits in a list, in order. Once *loaded* it has the set
//! of its free ranges, out of which one, the *run*, is taken and handed out from the front: that
//! is the common case of an allocation.
//!
//! # Invariants
//!
//! - The free set, the run, the deferred ranges and what is allocated are disjoint.
//! - `free_units` counts free set and run; unloaded, it is what both will have.
//! - Ranges in `deferred` are of txgs that are not mature; of each txg there is at most one list.
//! - `needed` is the oldest record of the log with an entry that the base does not contain.

use std::collections::VecDeque;

use crate::format::{BlockPtrPhys, Dva, SECTOR_UNIT};
use crate::{Error, ErrorKind, Result};

use super::geometry::MetaslabExtent;
use super::range_set::{RangeSet, Run, normalize, note, overlapped};

/// Runs at least this long are handed out from the front; when there are none left, another metaslab is
/// looked for, and only if that has none either, small holes are filled.
pub(super) const RUN_UNITS: u32 = (128 << 10) / SECTOR_UNIT as u32;

/// Holes are looked for this many times longer than what is to go there, as long as there are any.
const ROOMY: u32 = 4;

/// A change that an unloaded metaslab will make to its base.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetaslabChange {
    /// Free before, allocated after.
    Take(Run),
    /// Not free before, free after.
    Give(Run),
}

/// What is known of the free ranges.
#[derive(Debug)]
pub(super) enum FreeMap {
    /// The base has not been read; these changes follow it.
    Unloaded(Vec<MetaslabChange>),
    /// The free set, and the run that was taken out of it.
    Loaded { free: RangeSet, run: Run },
}

/// The base as it is on the device.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// Last block of the chain; a hole if everything is free.
    pub(super) head: BlockPtrPhys,
    /// All blocks, last first, once they are known.
    pub(super) chain: Vec<BlockPtrPhys>,
    pub(super) blocks: u32,
    pub(super) ranges: u32,
    pub(super) free_units: u64,
    pub(super) largest_units: u32,
    /// See `MetaslabPhys`.
    pub(super) flushed_txg: u64,
    /// See `MetaslabPhys`.
    pub(super) freed_txg: u64,
}

impl Base {
    /// Everything is free, as of `txg`.
    pub(super) fn all_free(units: u32, txg: u64) -> Self {
        Self {
            head: BlockPtrPhys::HOLE,
            chain: Vec::new(),
            blocks: 0,
            ranges: 1,
            free_units: u64::from(units),
            largest_units: units,
            flushed_txg: txg,
            freed_txg: txg,
        }
    }
}

/// A metaslab.
#[derive(Debug)]
pub(super) struct Metaslab {
    pub(super) id: u32,
    pub(super) extent: MetaslabExtent,
    pub(super) map: FreeMap,
    pub(super) base: Base,
    pub(super) free_units: u64,
    /// What the transaction group at hand allocated, and is not in `Space::entries` yet.
    pub(super) allocated: Vec<Run>,
    /// What the transaction group at hand freed.
    pub(super) freed: Vec<Run>,
    /// What earlier txgs freed, by txg, oldest first; each list ascends, and none of its ranges touch.
    pub(super) deferred: VecDeque<(u64, Vec<Run>)>,
    pub(super) needed: Option<u64>,
    /// Its base must be written with this txg, since its size changed.
    pub(super) must_flush: bool,
}

impl Metaslab {
    /// A metaslab with this base and nothing behind it.
    pub(super) fn new(id: u32, extent: MetaslabExtent, base: Base) -> Self {
        Self {
            id,
            extent,
            map: FreeMap::Unloaded(Vec::new()),
            free_units: base.free_units,
            base,
            allocated: Vec::new(),
            freed: Vec::new(),
            deferred: VecDeque::new(),
            needed: None,
            must_flush: false,
        }
    }

    /// An error that names this metaslab.
    #[cold]
    pub(super) fn corrupt(&self, what: &str) -> Error {
        let MetaslabExtent { device, start, .. } = self.extent;
        let message = format!("metaslab {} (device {device}, from {start:#x}): {what}", self.id);
        Error::new(ErrorKind::Corrupt, message)
    }

    /// An error that names a range of this metaslab.
    #[cold]
    pub(super) fn corrupt_at(&self, run: Run, what: &str) -> Error {
        let bytes = u64::from(run.units) * SECTOR_UNIT;
        self.corrupt(&format!("{bytes} bytes at {} {what}", self.extent.dva(run.start)))
    }

    /// The address of a unit.
    pub(super) fn dva(&self, unit: u32) -> Dva {
        self.extent.dva(unit)
    }

    /// Whether its free ranges are in memory.
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.map, FreeMap::Loaded { .. })
    }

    /// Its longest free range, in units; if it is not loaded, no less than that.
    pub(super) fn largest_units(&self) -> u32 {
        match &self.map {
            FreeMap::Unloaded(changes) if changes.is_empty() => self.base.largest_units,
            FreeMap::Unloaded(_) => self.free_units.min(u64::from(self.extent.units)) as u32,
            FreeMap::Loaded { free, run } => {
                free.largest().map_or(0, |largest| largest.units).max(run.units)
            }
        }
    }

    /// Number of free ranges, if it is loaded.
    pub(super) fn range_count(&self) -> Option<usize> {
        match &self.map {
            FreeMap::Unloaded(_) => None,
            FreeMap::Loaded { free, run } => Some(free.len() + usize::from(run.units > 0)),
        }
    }

    /// Makes it loaded: `runs` are the base's.
    pub(super) fn load(&mut self, runs: Vec<Run>) -> Result<()> {
        let FreeMap::Unloaded(changes) = &self.map else { return Ok(()) };
        let free = RangeSet::from_ascending(runs);
        let mut free = free.ok_or_else(|| self.corrupt("the base's ranges do not ascend"))?;
        if free.units() != self.base.free_units {
            return Err(self.corrupt("the base has not the free bytes that the index says"));
        }
        for change in changes {
            match *change {
                MetaslabChange::Take(run) if !free.remove(run) => {
                    return Err(self.corrupt_at(run, "were allocated while not free"));
                }
                MetaslabChange::Give(run) if !free.insert(run) => {
                    return Err(self.corrupt_at(run, "were freed while free"));
                }
                MetaslabChange::Take(_) | MetaslabChange::Give(_) => {}
            }
        }
        let mut waiting = self.deferred.iter().flat_map(|(_, runs)| runs);
        if let Some(run) = waiting.find(|run| free.overlaps(**run)) {
            return Err(self.corrupt_at(*run, "were freed while free"));
        }
        if free.units() != self.free_units {
            return Err(self.corrupt("the log does not add up"));
        }
        self.map = FreeMap::Loaded { free, run: Run::default() };
        Ok(())
    }

    /// Puts the run's rest back, so that the free set has everything.
    pub(super) fn settle(&mut self) -> Result<()> {
        if let FreeMap::Loaded { free, run } = &mut self.map
            && run.units > 0
        {
            let rest = std::mem::take(run);
            if !free.insert(rest) {
                return Err(self.corrupt_at(rest, "are free twice"));
            }
        }
        Ok(())
    }

    /// Hands out `units` from the front of the run, if it is that long. Says where they are, and
    /// whether another entry of the log will be needed for them.
    #[inline]
    pub(super) fn allocate_from_run(&mut self, units: u32) -> Option<(u32, bool)> {
        let FreeMap::Loaded { run, .. } = &mut self.map else { return None };
        if run.units < units {
            return None;
        }
        let start = run.start;
        *run = Run::new(start + units, run.units - units);
        self.free_units -= u64::from(units);
        Some((start, note(&mut self.allocated, Run::new(start, units))))
    }

    /// Takes another run of at least `units`: the longest one, or if that is no longer worth it the
    /// one that fits best. Says whether there is one.
    pub(super) fn next_run(&mut self, units: u32) -> Result<bool> {
        self.settle()?;
        let FreeMap::Loaded { free, run } = &mut self.map else { return Ok(false) };
        let largest = free.largest().map_or(0, |largest| largest.units);
        let found = if largest >= units.max(RUN_UNITS) {
            free.take_largest()
        } else {
            // Not the tightest fit, so that not every allocation looks for a hole.
            let roomy = units.saturating_mul(ROOMY);
            free.take_best_fit(if largest >= roomy { roomy } else { units })
        };
        *run = found.unwrap_or_default();
        Ok(run.units >= units)
    }

    /// Takes back what was allocated last and not written.
    pub(super) fn undo(&mut self, at: Run) -> Result<()> {
        let last = self.allocated.last_mut().filter(|last| last.end() == at.end());
        match last {
            Some(last) if last.units >= at.units => {
                last.units -= at.units;
                if last.units == 0 {
                    self.allocated.pop();
                }
            }
            // The entry grew at its front.
            _ => {
                let first = self.allocated.last_mut().filter(|last| last.start == at.start);
                let Some(first) = first else {
                    return Err(self.corrupt_at(at, "were not allocated last"));
                };
                *first = Run::new(at.end(), first.units - at.units);
            }
        }
        self.give(at)?;
        self.free_units += u64::from(at.units);
        Ok(())
    }

    /// Makes it longer: `added` begins where it ended. Its base has to be written, since the one on the device
    /// does not know of it.
    pub(super) fn extend(&mut self, added: Run) -> Result<()> {
        self.extent.units += added.units;
        self.free_units += u64::from(added.units);
        self.must_flush = true;
        self.give(added)
    }

    /// Makes the ranges that txgs up to `txg` freed free, and says how many units they have.
    pub(super) fn mature(&mut self, txg: u64) -> Result<u64> {
        let mut units = 0;
        while self.deferred.front().is_some_and(|(freed, _)| *freed <= txg) {
            let Some((_, runs)) = self.deferred.pop_front() else { break };
            units += runs.iter().map(|run| u64::from(run.units)).sum::<u64>();
            match &mut self.map {
                FreeMap::Unloaded(changes) => {
                    changes.extend(runs.into_iter().map(MetaslabChange::Give))
                }
                FreeMap::Loaded { free, run } => {
                    if overlapped(&runs, *run) || !free.insert_ascending(&runs) {
                        return Err(self.corrupt("something was freed while free"));
                    }
                }
            }
        }
        self.free_units += units;
        Ok(units)
    }

    /// What is free and what waits to be, ascending: everything that no block of the newest
    /// txg uses. The metaslab is loaded.
    pub(super) fn unused(&mut self) -> Result<Vec<Run>> {
        self.settle()?;
        let FreeMap::Loaded { free, .. } = &self.map else { return Ok(Vec::new()) };
        let mut runs = free.to_vec();
        runs.extend(self.deferred.iter().flat_map(|(_, runs)| runs).copied());
        runs.extend(self.freed.iter().copied());
        normalize(&mut runs).map_err(|run| self.corrupt_at(run, "are free twice"))?;
        Ok(runs)
    }

    /// Whether a range is allocated as far as is known without reading the base, and not freed yet.
    pub(super) fn may_free(&self, run: Run) -> bool {
        let free = match &self.map {
            FreeMap::Unloaded(_) => false,
            FreeMap::Loaded { free, run: ahead } => free.overlaps(run) || ahead.overlaps(run),
        };
        !free && !self.deferred.iter().any(|(_, runs)| overlapped(runs, run))
    }

    /// Brings what was loaded to wait into order, and makes sure that nothing waits twice, and not more than
    /// there is.
    pub(super) fn check_deferred(&mut self) -> Result<()> {
        for at in 0..self.deferred.len() {
            let clean = normalize(&mut self.deferred[at].1);
            clean.map_err(|run| self.corrupt_at(run, "were freed twice"))?;
        }
        let mut runs: Vec<Run> = self.deferred.iter().flat_map(|(_, runs)| runs).copied().collect();
        normalize(&mut runs).map_err(|run| self.corrupt_at(run, "were freed twice"))?;
        let waiting: u64 = runs.iter().map(|run| u64::from(run.units)).sum();
        if self.free_units + waiting > u64::from(self.extent.units) {
            return Err(self.corrupt("more is free than there is"));
        }
        Ok(())
    }

    fn give(&mut self, run: Run) -> Result<()> {
        let clean = match &mut self.map {
            FreeMap::Unloaded(changes) => {
                changes.push(MetaslabChange::Give(run));
                true
            }
            FreeMap::Loaded { free, run: ahead } => !ahead.overlaps(run) && free.insert(run),
        };
        clean.then_some(()).ok_or_else(|| self.corrupt_at(run, "were freed while free"))
    }
}
