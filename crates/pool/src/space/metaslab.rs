//! A metaslab: the free ranges of an extent of a device, and its recent changes.
//!
//! A metaslab is *unloaded* until it is needed for an allocation, a base write or a check. While it
//! is unloaded, the changes since its base are kept in a list, in order. Once *loaded*, it has the
//! set of its free ranges. One range, the *run*, is taken out of the set and allocated front to
//! back: the common case of an allocation.
//!
//! # Invariants
//!
//! - The free set, the run, the held, the withheld, the deferred and the allocated ranges are
//!   disjoint.
//! - `free_units` counts free set, run, held and withheld ranges. If unloaded, it is the count that
//!   loading will yield.
//! - A withheld range is free, but a write to it has failed since the import: it is not allocated,
//!   and does not count as free in [`Space`](super::Space). On the devices it is a free range like
//!   others.
//! - `deferred` has the frees of txgs that are not mature, at most one list per txg.
//! - `needed` is the oldest record of the log with an entry that the base lacks.

use std::collections::VecDeque;

use crate::format::{BlockPtrPhys, Dva, SECTOR_UNIT};
use crate::{Error, ErrorKind, Result};

use super::geometry::MetaslabExtent;
use super::range_set::{RangeSet, Run, merge, normalize, note, overlapped};

/// Runs of at least this length are allocated front to back. When there are none left, another
/// metaslab becomes the cursor. Only when no metaslab has one, smaller holes are filled.
pub(super) const RUN_UNITS: u32 = (128 << 10) / SECTOR_UNIT as u32;

/// Holes should be this many times longer than the allocation, as long as there are any.
const SLACK_FACTOR: u32 = 4;

/// A change that loading applies to the base.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetaslabChange {
    /// An allocation.
    Allocate(Run),
    /// A free that has matured.
    Free(Run),
}

/// The free ranges.
#[derive(Debug)]
pub(super) enum FreeMap {
    /// The base is not read. These changes follow it.
    Unloaded(Vec<MetaslabChange>),
    /// The free set, and the run that was taken out of it.
    Loaded { free: RangeSet, run: Run },
}

/// The base as stored on the device.
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
    /// Returns a base with everything free, as of `txg`.
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
    /// Allocations of the current txg that are not yet in `Space::entries`.
    pub(super) allocated: Vec<Run>,
    /// Frees of the current txg.
    pub(super) freed: Vec<Run>,
    /// Frees of earlier txgs, by txg, oldest first. Each list is sorted; its ranges do not adjoin.
    pub(super) deferred: VecDeque<(u64, Vec<Run>)>,
    /// Free ranges that are being discarded, sorted; see [`super::discard`].
    pub(super) held: Vec<Run>,
    /// Ranges that became free and are not discarded yet, sorted. Some may be allocated again.
    pub(super) to_discard: Vec<Run>,
    pub(super) needed: Option<u64>,
    /// Whether all free ranges that may be discarded are to be, and not only `to_discard`.
    pub(super) discards_all: bool,
    /// Whether its device takes each address once, see [`super::append`].
    pub(super) is_append_only: bool,
    /// Ranges to which a write has failed since the import.
    bad: Vec<Run>,
    /// The parts of `bad` that are free. Only if loaded.
    withheld: Vec<Run>,
    /// Whether its base must be written with this txg, because its size changed.
    pub(super) must_flush: bool,
    /// Changes since the base, once loaded, so that it can be unloaded. Only if `is_append_only`.
    pub(super) since_base: Vec<MetaslabChange>,
    /// Whether `base.chain` is known. It stays so if the metaslab is unloaded.
    pub(super) knows_chain: bool,
    /// When it was used last, see [`super::unload`].
    pub(super) used: u64,
}

impl Metaslab {
    /// Creates a metaslab from its base, without later changes.
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
            held: Vec::new(),
            to_discard: Vec::new(),
            needed: None,
            discards_all: false,
            is_append_only: false,
            bad: Vec::new(),
            withheld: Vec::new(),
            must_flush: false,
            since_base: Vec::new(),
            knows_chain: false,
            used: 0,
        }
    }

    /// A write to this range, which is in use, has failed. It is not allocated again.
    pub(super) fn avoid(&mut self, run: Run) {
        if self.is_append_only {
            // Nothing is.
            return;
        }
        self.bad.push(run);
    }

    /// Units that are free but not allocated.
    pub(super) fn withheld_units(&self) -> u64 {
        self.withheld.iter().map(|run| u64::from(run.units)).sum()
    }

    /// Moves the bad parts of ranges that become free to `withheld`. Returns the others.
    fn withhold(&mut self, runs: Vec<Run>) -> Vec<Run> {
        let mut good = Vec::with_capacity(runs.len());
        let mut rest = runs;
        while let Some(run) = rest.pop() {
            let Some(bad) = self.bad.iter().find(|bad| bad.overlaps(run)) else {
                good.push(run);
                continue;
            };
            let (start, end) = (bad.start.max(run.start), bad.end().min(run.end()));
            self.withheld.push(Run::new(start, end - start));
            let around = [(run.start, start), (end, run.end())];
            let around = around.into_iter().filter(|(start, end)| start < end);
            rest.extend(around.map(|(start, end)| Run::new(start, end - start)));
        }
        good.sort_unstable();
        good
    }

    /// Returns an error that names this metaslab.
    #[cold]
    pub(super) fn corrupt(&self, what: &str) -> Error {
        let MetaslabExtent { device, start, .. } = self.extent;
        let message = format!("metaslab {} (device {device}, from {start:#x}): {what}", self.id);
        Error::new(ErrorKind::Corrupt, message)
    }

    /// Returns an error that names a range of this metaslab.
    #[cold]
    pub(super) fn corrupt_at(&self, run: Run, what: &str) -> Error {
        let bytes = u64::from(run.units) * SECTOR_UNIT;
        self.corrupt(&format!("{bytes} bytes at {} {what}", self.extent.dva(run.start)))
    }

    /// Returns the address of a unit.
    pub(super) fn dva(&self, unit: u32) -> Dva {
        self.extent.dva(unit)
    }

    /// Whether the free ranges are in memory.
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.map, FreeMap::Loaded { .. })
    }

    /// Length of the longest free range in units; an upper bound if not loaded.
    pub(super) fn largest_units(&self) -> u32 {
        match &self.map {
            FreeMap::Unloaded(changes) if changes.is_empty() => self.base.largest_units,
            FreeMap::Unloaded(_) => self.free_units.min(u64::from(self.extent.units)) as u32,
            FreeMap::Loaded { free, run } => {
                free.largest().map_or(0, |largest| largest.units).max(run.units)
            }
        }
    }

    /// Number of free ranges, if loaded.
    pub(super) fn range_count(&self) -> Option<usize> {
        match &self.map {
            FreeMap::Unloaded(_) => None,
            FreeMap::Loaded { free, run } => {
                let others = self.held.len() + self.withheld.len();
                Some(free.len() + usize::from(run.units > 0) + others)
            }
        }
    }

    /// Loads the metaslab. `runs` are the ranges of its base.
    pub(super) fn load(&mut self, runs: Vec<Run>) -> Result<()> {
        let FreeMap::Unloaded(changes) = &self.map else { return Ok(()) };
        let free = RangeSet::from_ascending(runs);
        let mut free = free.ok_or_else(|| self.corrupt("the ranges of its base are not sorted"))?;
        if free.units() != self.base.free_units {
            return Err(self.corrupt("its base and the index disagree about free bytes"));
        }
        for change in changes {
            match *change {
                MetaslabChange::Allocate(run) if !free.remove(run) => {
                    return Err(self.corrupt_at(run, "were allocated but not free"));
                }
                MetaslabChange::Free(run) if !free.insert(run) => {
                    return Err(self.corrupt_at(run, "were freed twice"));
                }
                MetaslabChange::Allocate(_) | MetaslabChange::Free(_) => {}
            }
        }
        let mut waiting = self.deferred.iter().flat_map(|(_, runs)| runs);
        if let Some(run) = waiting.find(|run| free.overlaps(**run)) {
            return Err(self.corrupt_at(*run, "were freed twice"));
        }
        if free.units() != self.free_units {
            return Err(self.corrupt("its base and the log disagree about free bytes"));
        }
        if !self.bad.is_empty() {
            free = RangeSet::from_ascending(self.withhold(free.to_vec())).unwrap_or_default();
        }
        let loaded = FreeMap::Loaded { free, run: Run::default() };
        if let FreeMap::Unloaded(changes) = std::mem::replace(&mut self.map, loaded)
            && self.is_append_only
        {
            self.since_base = changes;
        }
        Ok(())
    }

    /// Returns the rest of the run to the free set.
    pub(super) fn return_run(&mut self) -> Result<()> {
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

    /// Returns the held ranges to the free set.
    pub(super) fn return_held(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        let FreeMap::Loaded { free, run } = &mut self.map else { return Ok(()) };
        if overlapped(&held, *run) || !free.insert_ascending(&held) {
            return Err(self.corrupt("a held range is already free"));
        }
        Ok(())
    }

    /// Returns all free ranges, sorted, also the held and the withheld ones, but without the run.
    /// Empty if not loaded.
    pub(super) fn free_ranges(&self) -> Result<Vec<Run>> {
        let FreeMap::Loaded { free, .. } = &self.map else { return Ok(Vec::new()) };
        let mut runs = merge(&free.to_vec(), &self.held)
            .ok_or_else(|| self.corrupt("a held range is already free"))?;
        if !self.withheld.is_empty() {
            runs.extend(&self.withheld);
            normalize(&mut runs).map_err(|run| self.corrupt_at(run, "are free twice"))?;
        }
        Ok(runs)
    }

    /// Allocates `units` from the front of the run, if it is long enough. Returns the first unit,
    /// and whether the log needs another entry.
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

    /// Takes a new run of at least `units`: the longest range, or the best fit if no range is long.
    /// Returns whether there is one.
    pub(super) fn next_run(&mut self, units: u32) -> Result<bool> {
        self.return_run()?;
        let FreeMap::Loaded { free, run } = &mut self.map else { return Ok(false) };
        let largest = free.largest().map_or(0, |largest| largest.units);
        let found = if largest >= units.max(RUN_UNITS) {
            free.take_largest()
        } else {
            // Not the tightest fit, so that not every allocation has to search for a hole.
            let with_slack = units.saturating_mul(SLACK_FACTOR);
            free.take_best_fit(if largest >= with_slack { with_slack } else { units })
        };
        *run = found.unwrap_or_default();
        Ok(run.units >= units)
    }

    /// Undoes the last allocation, which is not written yet.
    pub(super) fn undo(&mut self, at: Run) -> Result<()> {
        let last = self.allocated.last_mut().filter(|last| last.end() == at.end());
        match last {
            Some(last) if last.units >= at.units => {
                last.units -= at.units;
                if last.units == 0 {
                    self.allocated.pop();
                }
            }
            // The entry was extended at its front.
            _ => {
                let first = self.allocated.last_mut().filter(|last| last.start == at.start);
                let Some(first) = first else {
                    return Err(self.corrupt_at(at, "were not allocated last"));
                };
                *first = Run::new(at.end(), first.units - at.units);
            }
        }
        self.add_free(at)?;
        self.free_units += u64::from(at.units);
        Ok(())
    }

    /// Extends the metaslab at its end by `added`. Its base must be written, because the stored one
    /// does not cover `added`.
    pub(super) fn extend(&mut self, added: Run) -> Result<()> {
        self.extent.units += added.units;
        self.free_units += u64::from(added.units);
        self.must_flush = true;
        self.add_free(added)
    }

    /// Frees the ranges that txgs up to `txg` freed, and notes them if they are to be discarded.
    /// Returns the number of units.
    pub(super) fn mature(&mut self, txg: u64, notes_discards: bool) -> Result<u64> {
        let mut units = 0;
        while self.deferred.front().is_some_and(|(freed, _)| *freed <= txg) {
            let Some((_, mut runs)) = self.deferred.pop_front() else { break };
            units += runs.iter().map(|run| u64::from(run.units)).sum::<u64>();
            if notes_discards {
                self.note_discards(&runs);
            }
            if !self.bad.is_empty() && self.is_loaded() {
                runs = self.withhold(runs);
            }
            match &mut self.map {
                FreeMap::Unloaded(changes) => {
                    changes.extend(runs.into_iter().map(MetaslabChange::Free))
                }
                FreeMap::Loaded { free, run } => {
                    let is_free = |run: &Run| overlapped(&runs, *run);
                    if is_free(run)
                        || self.held.iter().any(is_free)
                        || !free.insert_ascending(&runs)
                    {
                        return Err(self.corrupt("a deferred range is already free"));
                    }
                    if self.is_append_only {
                        self.since_base.extend(runs.into_iter().map(MetaslabChange::Free));
                    }
                }
            }
        }
        self.free_units += units;
        Ok(units)
    }

    /// Returns the free and deferred ranges, sorted: everything that no block of the newest txg
    /// uses. The metaslab must be loaded.
    pub(super) fn unused(&mut self) -> Result<Vec<Run>> {
        self.return_run()?;
        if !self.is_loaded() {
            return Ok(Vec::new());
        }
        let mut runs = self.free_ranges()?;
        runs.extend(self.deferred.iter().flat_map(|(_, runs)| runs).copied());
        runs.extend(self.freed.iter().copied());
        normalize(&mut runs).map_err(|run| self.corrupt_at(run, "are free twice"))?;
        Ok(runs)
    }

    /// Whether a range may be allocated and not freed yet, as far as known without reading the
    /// base.
    pub(super) fn may_free(&self, run: Run) -> bool {
        let free = match &self.map {
            FreeMap::Unloaded(_) => false,
            FreeMap::Loaded { free, run: ahead } => {
                free.overlaps(run)
                    || ahead.overlaps(run)
                    || overlapped(&self.held, run)
                    || self.withheld.iter().any(|it| it.overlaps(run))
            }
        };
        !free && !self.deferred.iter().any(|(_, runs)| overlapped(runs, run))
    }

    /// Sorts the deferred ranges after a load. Checks that none is deferred twice, and that their
    /// total fits.
    pub(super) fn check_deferred(&mut self) -> Result<()> {
        for at in 0..self.deferred.len() {
            let clean = normalize(&mut self.deferred[at].1);
            clean.map_err(|run| self.corrupt_at(run, "were freed twice"))?;
        }
        let mut runs: Vec<Run> = self.deferred.iter().flat_map(|(_, runs)| runs).copied().collect();
        normalize(&mut runs).map_err(|run| self.corrupt_at(run, "were freed twice"))?;
        let waiting: u64 = runs.iter().map(|run| u64::from(run.units)).sum();
        if self.free_units + waiting > u64::from(self.extent.units) {
            return Err(self.corrupt("more bytes are free than it has"));
        }
        Ok(())
    }

    fn add_free(&mut self, run: Run) -> Result<()> {
        let clean = match &mut self.map {
            FreeMap::Unloaded(changes) => {
                changes.push(MetaslabChange::Free(run));
                true
            }
            FreeMap::Loaded { free, run: ahead } => !ahead.overlaps(run) && free.insert(run),
        };
        clean.then_some(()).ok_or_else(|| self.corrupt_at(run, "were freed twice"))
    }
}
