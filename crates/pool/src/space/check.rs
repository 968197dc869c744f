//! Compares the blocks that a walk of the pool found with the space maps.
//!
//! A walk marks each referenced range in [`WalkedRanges`]: a bitmap per metaslab with a bit per
//! sector, created on first use. It takes 32 KiB per GiB of 4 KiB sectors. Marking finds ranges
//! that are referenced twice; [`Space::verify`] finds the rest. Listed ranges are limited, counts
//! are not.
//!
//! The caller must mark all blocks of the trees, the root block, the blocks of
//! [`Space::own_blocks`], and the ranges reserved when the pool was created. No txg with frees or
//! allocations may be open.

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

    /// Returns the problems that the marks alone show, for an interrupted walk.
    pub(crate) fn so_far(self) -> SpaceReport {
        SpaceReport { double: self.double, outside: self.outside, ..SpaceReport::default() }
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
            for run in self.allocated_in(id)? {
                let dva = self.metaslabs[id as usize].dva(run.start);
                each(dva, u64::from(run.units) * SECTOR_UNIT);
            }
        }
        Ok(())
    }

    /// Returns the allocated ranges of a metaslab.
    fn allocated_in(&mut self, id: u32) -> Result<Vec<Run>> {
        self.load_metaslab(id)?;
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

    /// Calls `each` for every block of the space maps. Reads all bases.
    ///
    /// # Errors
    /// If a base cannot be read or does not match the log.
    pub(crate) fn own_blocks(&mut self, mut each: impl FnMut(&BlockPtrPhys)) -> Result<()> {
        for id in 0..self.metaslabs.len() as u32 {
            self.load_metaslab(id)?;
        }
        let bases = self.metaslabs.iter().flat_map(|metaslab| &metaslab.base.chain);
        let index = self.index.iter().flatten().filter(|pointer| !pointer.is_hole());
        let log = self.records.iter().flat_map(|record| &record.blocks);
        bases.chain(index).chain(log).for_each(&mut each);
        Ok(())
    }

    /// Compares a complete walk with the allocated ranges. Reads all bases.
    ///
    /// # Errors
    /// If a base cannot be read or does not match the log.
    pub(crate) fn verify(&mut self, walked: &WalkedRanges) -> Result<SpaceReport> {
        let mut report = SpaceReport {
            double: walked.double.clone(),
            outside: walked.outside.clone(),
            ..SpaceReport::default()
        };
        let sector = self.geometry.sector_units();
        for (id, seen) in walked.bitmaps.iter().enumerate() {
            let runs = self.allocated_in(id as u32)?;
            let mut allocated = Vec::new();
            runs.iter().for_each(|run| {
                set(&mut allocated, run.start / sector, run.end() / sector);
            });
            let metaslab = &self.metaslabs[id];
            let note = |found: &mut FoundRanges, a: &[u64], b: &[u64]| {
                let other = b.iter().copied().chain(std::iter::repeat(0));
                let only: Vec<u64> = a.iter().zip(other).map(|(a, b)| a & !b).collect();
                set_runs(&only, |from, to| {
                    let bytes = u64::from((to - from) * sector) * SECTOR_UNIT;
                    found.push(metaslab.dva(from * sector), bytes);
                });
            };
            note(&mut report.leaked, &allocated, seen);
            note(&mut report.unmapped, seen, &allocated);
        }
        Ok(report)
    }
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
