//! Sets of disjoint, non-adjacent ranges, indexed by start and by length.
//!
//! A set has one of two forms. *Packed*, it is a sorted list: 8 bytes per range, and many ranges
//! can be added in one pass. As *trees*, ordered by start and by length, it supports allocation in
//! logarithmic time. The first allocation builds the trees; the next large insertion packs the set
//! again. So only the metaslabs being allocated from use more memory. Positions are units from the
//! start of a metaslab. No range ends past [`MAX_UNITS`], so sums do not overflow.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of units of a metaslab: a terabyte.
pub(crate) const MAX_UNITS: u32 = 1 << 31;

/// Ranges are inserted into trees one by one if they are fewer than this fraction of the set.
const MERGE_SHARE: usize = 8;

/// A range of units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// First unit.
    pub(crate) start: u32,
    /// Length in units.
    pub(crate) units: u32,
}

impl Run {
    /// Creates a range.
    pub(crate) fn new(start: u32, units: u32) -> Self {
        Self { start, units }
    }

    /// Returns the end, exclusive.
    pub(crate) fn end(self) -> u32 {
        self.start + self.units
    }

    /// Whether the two ranges overlap.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end().min(other.end())
    }
}

/// A set of ranges.
#[derive(Debug)]
pub(crate) struct RangeSet {
    form: RangeForm,
    units: u64,
}

#[derive(Debug)]
enum RangeForm {
    /// Sorted ranges, and the longest of them.
    Packed { runs: Vec<Run>, largest: Run },
    /// Ordered by start and by length, for allocation.
    Trees { by_start: BTreeMap<u32, u32>, by_units: BTreeSet<(u32, u32)> },
}

impl Default for RangeSet {
    fn default() -> Self {
        Self::pack(Vec::new())
    }
}

impl RangeSet {
    /// Builds a set; `None` if the ranges are not sorted, or overlap or adjoin.
    pub(crate) fn from_ascending(runs: Vec<Run>) -> Option<Self> {
        let apart = runs.windows(2).all(|pair| pair[0].end() < pair[1].start);
        (apart && runs.iter().all(|run| run.units > 0)).then(|| Self::pack(runs))
    }

    fn pack(runs: Vec<Run>) -> Self {
        let units = runs.iter().map(|run| u64::from(run.units)).sum();
        let largest = runs.iter().max_by_key(|run| run.units).copied().unwrap_or_default();
        Self { form: RangeForm::Packed { runs, largest }, units }
    }

    /// Inserts a range. Returns false and changes nothing if a part of it is in the set.
    #[must_use]
    pub(crate) fn insert(&mut self, run: Run) -> bool {
        if self.overlaps(run) {
            return false;
        }
        let (by_start, by_units) = self.trees();
        let mut merged = run;
        if let Some((&start, &units)) = by_start.range(..run.start).next_back()
            && start + units == run.start
        {
            by_start.remove(&start);
            by_units.remove(&(units, start));
            merged = Run::new(start, units + merged.units);
        }
        if let Some(units) = by_start.remove(&run.end()) {
            by_units.remove(&(units, run.end()));
            merged.units += units;
        }
        by_start.insert(merged.start, merged.units);
        by_units.insert((merged.units, merged.start));
        self.units += u64::from(run.units);
        true
    }

    /// Inserts sorted ranges that do not adjoin. Returns false if a part of one is in the set; some
    /// may have been inserted then.
    #[must_use]
    pub(crate) fn insert_ascending(&mut self, added: &[Run]) -> bool {
        if matches!(self.form, RangeForm::Trees { .. }) && added.len() * MERGE_SHARE < self.len() {
            return added.iter().all(|run| self.insert(*run));
        }
        let old = match &mut self.form {
            RangeForm::Packed { runs, .. } => std::mem::take(runs),
            RangeForm::Trees { by_start, .. } => {
                by_start.iter().map(|(&start, &units)| Run::new(start, units)).collect()
            }
        };
        let merged = merge(&old, added);
        let clean = merged.is_some();
        *self = Self::pack(merged.unwrap_or(old));
        clean
    }

    /// Removes a range. Returns false and changes nothing if a part of it is not in the set.
    #[must_use]
    pub(crate) fn remove(&mut self, run: Run) -> bool {
        let Some(whole) = self.at(run.start).filter(|whole| whole.end() >= run.end()) else {
            return false;
        };
        self.drop_run(whole);
        if whole.start < run.start {
            self.put_run(Run::new(whole.start, run.start - whole.start));
        }
        if run.end() < whole.end() {
            self.put_run(Run::new(run.end(), whole.end() - run.end()));
        }
        true
    }

    /// Removes sorted ranges. Returns false if a part of one is not in the set; some may have been
    /// removed then. A packed set stays packed.
    #[must_use]
    pub(crate) fn remove_ascending(&mut self, removed: &[Run]) -> bool {
        let RangeForm::Packed { runs, .. } = &self.form else {
            return removed.iter().all(|run| self.remove(*run));
        };
        let rest = subtract(runs, removed);
        let clean = rest.is_some();
        if let Some(rest) = rest {
            *self = Self::pack(rest);
        }
        clean
    }

    /// Returns the parts of `run` that are in the set, sorted.
    pub(crate) fn within(&self, run: Run) -> Vec<Run> {
        let part = |found: Run| {
            let start = found.start.max(run.start);
            Run::new(start, found.end().min(run.end()).saturating_sub(start))
        };
        match &self.form {
            RangeForm::Packed { runs, .. } => {
                let from = runs.partition_point(|found| found.end() <= run.start);
                let found = runs[from..].iter().take_while(|found| found.start < run.end());
                found.map(|found| part(*found)).collect()
            }
            RangeForm::Trees { by_start, .. } => {
                let before = by_start.range(..run.start).next_back();
                let found = before.into_iter().chain(by_start.range(run.start..run.end()));
                let parts = found.map(|(&start, &units)| part(Run::new(start, units)));
                parts.filter(|part| part.units > 0).collect()
            }
        }
    }

    /// Whether the set overlaps `run`.
    pub(crate) fn overlaps(&self, run: Run) -> bool {
        match &self.form {
            RangeForm::Packed { runs, .. } => overlapped(runs, run),
            RangeForm::Trees { by_start, .. } => {
                let before = by_start.range(..run.end()).next_back();
                before.is_some_and(|(&start, &units)| Run::new(start, units).overlaps(run))
            }
        }
    }

    /// Returns the longest range.
    pub(crate) fn largest(&self) -> Option<Run> {
        match &self.form {
            RangeForm::Packed { largest, .. } => Some(*largest).filter(|run| run.units > 0),
            RangeForm::Trees { by_units, .. } => {
                by_units.last().map(|&(units, start)| Run::new(start, units))
            }
        }
    }

    /// Removes and returns the longest range.
    pub(crate) fn take_largest(&mut self) -> Option<Run> {
        let run = self.largest()?;
        self.drop_run(run);
        Some(run)
    }

    /// Removes and returns the shortest range of at least `units`.
    pub(crate) fn take_best_fit(&mut self, units: u32) -> Option<Run> {
        let &(found, start) = self.trees().1.range((units, 0)..).next()?;
        let run = Run::new(start, found);
        self.drop_run(run);
        Some(run)
    }

    /// Returns all ranges, sorted.
    pub(crate) fn to_vec(&self) -> Vec<Run> {
        match &self.form {
            RangeForm::Packed { runs, .. } => runs.clone(),
            RangeForm::Trees { by_start, .. } => {
                by_start.iter().map(|(&start, &units)| Run::new(start, units)).collect()
            }
        }
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        match &self.form {
            RangeForm::Packed { runs, .. } => runs.len(),
            RangeForm::Trees { by_start, .. } => by_start.len(),
        }
    }

    /// Number of units in all ranges.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Returns the range that contains the unit `at`.
    fn at(&self, at: u32) -> Option<Run> {
        let run = match &self.form {
            RangeForm::Packed { runs, .. } => {
                runs[..runs.partition_point(|run| run.start <= at)].last().copied()
            }
            RangeForm::Trees { by_start, .. } => {
                by_start.range(..=at).next_back().map(|(&start, &units)| Run::new(start, units))
            }
        };
        run.filter(|run| run.end() > at)
    }

    fn put_run(&mut self, run: Run) {
        let (by_start, by_units) = self.trees();
        by_start.insert(run.start, run.units);
        by_units.insert((run.units, run.start));
        self.units += u64::from(run.units);
    }

    fn drop_run(&mut self, run: Run) {
        let (by_start, by_units) = self.trees();
        by_start.remove(&run.start);
        by_units.remove(&(run.units, run.start));
        self.units -= u64::from(run.units);
    }

    /// Returns the trees; builds them if necessary.
    fn trees(&mut self) -> (&mut BTreeMap<u32, u32>, &mut BTreeSet<(u32, u32)>) {
        if let RangeForm::Packed { runs, .. } = &self.form {
            let by_start = runs.iter().map(|run| (run.start, run.units)).collect();
            let by_units = runs.iter().map(|run| (run.units, run.start)).collect();
            self.form = RangeForm::Trees { by_start, by_units };
        }
        match &mut self.form {
            RangeForm::Trees { by_start, by_units } => (by_start, by_units),
            RangeForm::Packed { .. } => unreachable!("they were just made"),
        }
    }
}

/// Whether a range of the sorted list overlaps `run`.
pub(crate) fn overlapped(runs: &[Run], run: Run) -> bool {
    let after = runs.partition_point(|it| it.end() <= run.start);
    runs.get(after).is_some_and(|it| it.overlaps(run))
}

/// Merges two sorted lists and joins adjacent ranges; `None` if ranges overlap.
pub(crate) fn merge(a: &[Run], b: &[Run]) -> Option<Vec<Run>> {
    let mut merged: Vec<Run> = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x.start <= y.start => a.next(),
            (_, Some(_)) => b.next(),
            (Some(_), None) => a.next(),
            (None, None) => return Some(merged),
        };
        let &run = next?;
        match merged.last_mut() {
            Some(last) if last.end() > run.start => return None,
            Some(last) if last.end() == run.start => last.units += run.units,
            _ => merged.push(run),
        }
    }
}

/// Removes ranges from a sorted list; `None` if a part of one is not in it.
fn subtract(runs: &[Run], removed: &[Run]) -> Option<Vec<Run>> {
    let mut rest = Vec::with_capacity(runs.len() + removed.len());
    let mut cuts = removed.iter().peekable();
    for run in runs {
        let mut start = run.start;
        while let Some(cut) = cuts.next_if(|cut| cut.start < run.end()) {
            if cut.start < start || cut.end() > run.end() {
                return None;
            }
            if cut.start > start {
                rest.push(Run::new(start, cut.start - start));
            }
            start = cut.end();
        }
        if start < run.end() {
            rest.push(Run::new(start, run.end() - start));
        }
    }
    cuts.next().is_none().then_some(rest)
}

/// Unites two sorted lists of disjoint ranges, which may overlap each other.
pub(crate) fn unite(a: &[Run], b: &[Run]) -> Vec<Run> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    all.dedup_by(|run, last| {
        let meets = last.end() >= run.start;
        if meets {
            last.units = last.units.max(run.end() - last.start);
        }
        meets
    });
    all
}

/// Sorts ranges and joins adjacent ones. Fails with a range that overlaps another.
pub(crate) fn normalize(runs: &mut Vec<Run>) -> Result<(), Run> {
    runs.sort_unstable();
    let mut kept = 0usize;
    for at in 0..runs.len() {
        let run = runs[at];
        match kept.checked_sub(1).map(|last: usize| runs[last]) {
            Some(last) if last.end() > run.start => return Err(run),
            Some(last) if last.end() == run.start => runs[kept - 1].units += run.units,
            _ => {
                runs[kept] = run;
                kept += 1;
            }
        }
    }
    runs.truncate(kept);
    Ok(())
}

/// Appends a range to a list, or joins it with the last one if they adjoin. Returns whether the
/// list grew.
#[inline]
pub(crate) fn note(runs: &mut Vec<Run>, run: Run) -> bool {
    if let Some(last) = runs.last_mut() {
        if last.end() == run.start {
            last.units += run.units;
            return false;
        }
        if run.end() == last.start {
            *last = Run::new(run.start, last.units + run.units);
            return false;
        }
    }
    runs.push(run);
    true
}
