//! Compares the blocks that a walk of the pool found with the space maps.
//!
//! A walk marks each referenced range in [`WalkedRanges`]: a bitmap per metaslab with a bit per
//! sector, created on first use. It takes 32 KiB per GiB of 4 KiB sectors. Marking finds ranges
//! that are referenced twice; [`Space::verify`] finds the rest. Listed ranges are limited, counts
//! are not.
//!
//! The caller must mark all blocks of the trees, the blocks of [`Space::known_blocks`], the places
//! of root blocks, and the ranges reserved when the pool was created.
//!
//! # Beside commits
//!
//! A walk takes longer than a txg. It marks what was born up to its first txg, T, and lives long
//! enough to be found. [`Space::begin_audit`] records from T on what is allocated and freed, and
//! after the walk each metaslab is compared on its own, at any later time. Let A be what is
//! allocated in the metaslab at that time, N and F what was allocated and freed since T, and W what
//! the walk has marked:
//!
//! - A ∖ N is what was allocated at T and still is. It was there during the whole walk, so
//!   (A ∖ N) ∖ W is leaked.
//! - (A ∖ N) ∪ F contains all that was allocated at T. So W ∖ (A ∖ N) ∖ F is not mapped.
//!
//! N and F take at most as much memory as W.

use crate::Result;
use crate::format::{BlockPtrPhys, Dva, SECTOR_UNIT};

use super::Space;
use super::geometry::Geometry;
use super::range_set::Run;

/// Maximum number of ranges listed per kind. Further ranges are only counted.
const LISTED: usize = 64;

/// Ranges of one kind of problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundRanges {
    /// The first of them, with their lengths in bytes.
    pub(crate) ranges: Vec<(Dva, u64)>,
    /// Number of ranges.
    pub(crate) count: u64,
    /// Bytes in all ranges.
    pub(crate) bytes: u64,
}

impl FoundRanges {
    fn push(&mut self, dva: Dva, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        if self.ranges.len() < LISTED {
            self.ranges.push((dva, bytes));
        }
    }

    /// Whether there are no ranges.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Problems of the space maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceReport {
    /// Allocated, but not referenced.
    pub(crate) leaked: FoundRanges,
    /// Referenced twice.
    pub(crate) double: FoundRanges,
    /// Referenced, but free or deferred.
    pub(crate) unmapped: FoundRanges,
    /// Referenced, but not in a metaslab.
    pub(crate) outside: FoundRanges,
}

impl SpaceReport {
    /// Whether there are no problems.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn is_clean(&self) -> bool {
        [&self.leaked, &self.double, &self.unmapped, &self.outside].iter().all(|it| it.is_empty())
    }
}

/// What txgs have allocated and freed since a check began: a bitmap per metaslab.
#[derive(Default)]
pub(super) struct Audit {
    allocated: Vec<Vec<u64>>,
    freed: Vec<Vec<u64>>,
}

impl Audit {
    /// Notes an allocation.
    pub(super) fn note_allocated(&mut self, id: u32, run: Run, sector_units: u32) {
        note(&mut self.allocated, id, run, sector_units);
    }

    /// Notes a free.
    pub(super) fn note_freed(&mut self, id: u32, run: Run, sector_units: u32) {
        note(&mut self.freed, id, run, sector_units);
    }
}

fn note(bitmaps: &mut Vec<Vec<u64>>, id: u32, run: Run, sector_units: u32) {
    if bitmaps.len() <= id as usize {
        bitmaps.resize(id as usize + 1, Vec::new());
    }
    set(&mut bitmaps[id as usize], run.start / sector_units, run.end() / sector_units);
}

/// The ranges that a walk found.
pub(crate) struct WalkedRanges {
    geometry: Geometry,
    /// By metaslab; empty if nothing was marked.
    bitmaps: Vec<Vec<u64>>,
    double: FoundRanges,
    outside: FoundRanges,
}

impl WalkedRanges {
    /// Creates a set without marks.
    pub(crate) fn new(space: &Space) -> Self {
        Self {
            geometry: space.geometry.clone(),
            bitmaps: vec![Vec::new(); space.metaslabs.len()],
            double: FoundRanges::default(),
            outside: FoundRanges::default(),
        }
    }

    /// Marks the copies of a block, or the root gang block of a gang.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn mark_block(&mut self, pointer: &BlockPtrPhys) {
        let bytes = pointer.allocated_bytes(self.geometry.sector_bytes);
        pointer.dvas().for_each(|dva| self.mark(dva, bytes));
    }

    /// Returns the problems that the marks alone show.
    pub(crate) fn so_far(&self) -> SpaceReport {
        SpaceReport {
            double: self.double.clone(),
            outside: self.outside.clone(),
            ..SpaceReport::default()
        }
    }

    /// Number of metaslabs to compare.
    pub(crate) fn metaslabs(&self) -> u32 {
        self.bitmaps.len() as u32
    }

    /// Marks a range, which may span metaslabs.
    pub(crate) fn mark(&mut self, dva: Dva, bytes: u64) {
        let (mut at, mut left) = (dva, bytes);
        while left > 0 {
            let Some((id, run)) = self.geometry.locate_front(at, left) else {
                self.outside.push(at, left);
                return;
            };
            let piece = u64::from(run.units) * SECTOR_UNIT;
            let sector = self.geometry.sector_units();
            let bitmap = &mut self.bitmaps[id as usize];
            if !set(bitmap, run.start / sector, run.end() / sector) {
                self.double.push(at, piece);
            }
            at.offset += piece;
            left -= piece;
        }
    }
}

/// Sets bits of a bitmap, which grows as needed. Returns whether all were clear.
fn set(bitmap: &mut Vec<u64>, from: u32, to: u32) -> bool {
    if from >= to {
        return true;
    }
    let words = to.div_ceil(64) as usize;
    if bitmap.len() < words {
        bitmap.resize(words, 0);
    }
    let below = |bit: u32| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    let mut clear = true;
    let first = (from / 64) as usize;
    for (at, word) in bitmap[first..words].iter_mut().enumerate() {
        let base = (first + at) as u32 * 64;
        let mask = below(to.saturating_sub(base)) & !below(from.saturating_sub(base));
        clear &= *word & mask == 0;
        *word |= mask;
    }
    clear
}

/// Calls `found` with start and end of each run of set bits.
fn set_runs(bitmap: &[u64], mut found: impl FnMut(u32, u32)) {
    let mut open = None;
    for (&word, base) in bitmap.iter().zip((0..).step_by(64)) {
        let mut at = 0;
        while at < 64 {
            // Search for the end of the open run, or for the start of the next one.
            let rest = if open.is_some() { !word >> at } else { word >> at };
            at += rest.trailing_zeros();
            if at < 64 {
                match open.take() {
                    Some(from) => found(from, base + at),
                    None => open = Some(base + at),
                }
            }
        }
    }
    if let Some(from) = open {
        found(from, 64 * bitmap.len() as u32);
    }
}

impl Space {
    /// Calls `each` for every allocated range. Reads all bases.
    ///
    /// # Errors
    /// If a base cannot be read or does not match the log.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn for_each_allocated(&mut self, mut each: impl FnMut(Dva, u64)) -> Result<()> {
        for id in 0..self.metaslabs.len() as u32 {
            self.load_metaslab(id)?;
            for run in self.allocated_in(id)? {
                let dva = self.metaslabs[id as usize].dva(run.start);
                each(dva, u64::from(run.units) * SECTOR_UNIT);
            }
        }
        Ok(())
    }

    /// Returns the allocated ranges of a loaded metaslab.
    fn allocated_in(&mut self, id: u32) -> Result<Vec<Run>> {
        let metaslab = &mut self.metaslabs[id as usize];
        let unused = metaslab.unused()?;
        let last = Run::new(metaslab.extent.units, 0);
        let mut runs = Vec::new();
        let mut at = 0;
        for run in unused.into_iter().chain([last]) {
            if run.start > at {
                runs.push(Run::new(at, run.start - at));
            }
            at = run.end();
        }
        Ok(runs)
    }

    /// Calls `each` for every block of the space maps, except the bases of metaslabs that were
    /// never loaded.
    pub(crate) fn known_blocks(&self, each: impl FnMut(&BlockPtrPhys)) {
        let bases = self.metaslabs.iter().flat_map(|metaslab| &metaslab.base.chain);
        let index = self.index.iter().flatten().filter(|pointer| !pointer.is_hole());
        let log = self.records.iter().flat_map(|record| &record.blocks);
        bases.chain(index).chain(log).for_each(each);
    }

    /// As [`known_blocks`](Self::known_blocks), after reading all bases.
    ///
    /// # Errors
    /// If a base cannot be read or does not match the log.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn own_blocks(&mut self, each: impl FnMut(&BlockPtrPhys)) -> Result<()> {
        self.load_metaslabs()?;
        self.known_blocks(each);
        Ok(())
    }

    /// Begins to record allocations and frees for a check. Returns the newest synced txg, which the
    /// check is about, and an empty set of ranges.
    pub(crate) fn begin_audit(&mut self) -> (u64, WalkedRanges) {
        self.audit = Some(Audit::default());
        (self.synced, WalkedRanges::new(self))
    }

    /// Ends the recording.
    pub(crate) fn end_audit(&mut self) {
        self.audit = None;
    }

    /// Compares a complete walk with the allocated ranges of a metaslab, and adds the problems to
    /// `report`. Skips a metaslab that is not loaded: its base is damaged.
    ///
    /// # Errors
    /// If the metaslab contradicts itself.
    pub(crate) fn compare(
        &mut self,
        id: u32,
        walked: &WalkedRanges,
        report: &mut SpaceReport,
    ) -> Result<()> {
        if !self.metaslabs[id as usize].is_loaded() {
            return Ok(());
        }
        let sector = self.geometry.sector_units();
        let mut old = Vec::new();
        for run in self.allocated_in(id)? {
            set(&mut old, run.start / sector, run.end() / sector);
        }
        let at = id as usize;
        let audit = self.audit.as_ref();
        let of = |bitmaps: &'_ [Vec<u64>]| bitmaps.get(at).cloned().unwrap_or_default();
        let new = audit.map(|audit| of(&audit.allocated)).unwrap_or_default();
        let freed = audit.map(|audit| of(&audit.freed)).unwrap_or_default();
        let old = minus(&old, &new);
        let seen = &walked.bitmaps[at];
        let metaslab = &self.metaslabs[at];
        let note = |found: &mut FoundRanges, only: &[u64]| {
            set_runs(only, |from, to| {
                let bytes = u64::from((to - from) * sector) * SECTOR_UNIT;
                found.push(metaslab.dva(from * sector), bytes);
            });
        };
        note(&mut report.leaked, &minus(&old, seen));
        note(&mut report.unmapped, &minus(&minus(seen, &old), &freed));
        Ok(())
    }

    /// Compares a complete walk with all allocated ranges.
    ///
    /// # Errors
    /// If a base cannot be read or does not match the log.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn verify(&mut self, walked: &WalkedRanges) -> Result<SpaceReport> {
        let mut report = walked.so_far();
        for id in 0..walked.metaslabs() {
            self.load_metaslab(id)?;
            self.compare(id, walked, &mut report)?;
        }
        Ok(report)
    }
}

/// The bits of `a` that are not in `b`.
fn minus(a: &[u64], b: &[u64]) -> Vec<u64> {
    let b = b.iter().copied().chain(std::iter::repeat(0));
    a.iter().zip(b).map(|(a, b)| a & !b).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bitmaps_are_lists_of_bits(ranges in prop::collection::vec((0u32..300, 0u32..150), 0..8)) {
            let mut bitmap = Vec::new();
            let mut naive = vec![false; 512];
            for (from, length) in ranges {
                let bits = &mut naive[from as usize..(from + length) as usize];
                prop_assert_eq!(set(&mut bitmap, from, from + length), !bits.contains(&true));
                bits.fill(true);
            }
            let mut again = vec![false; 512];
            let mut last = None;
            set_runs(&bitmap, |from, to| {
                assert!(from < to && last.is_none_or(|last| last < from));
                last = Some(to);
                again[from as usize..to as usize].fill(true);
            });
            prop_assert_eq!(again, naive);
        }
    }
}
