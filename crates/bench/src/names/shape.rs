//! The fill of directories' leaves while they grow and shrink, without timing.

use super::{DIRECTORIES, Directories, Load, Pooled, fail};
use crate::options::Failure;
use crate::report::Record;

/// Directories with at most this many leaves are ignored.
const FEW_LEAVES: u64 = 16;
/// Growth between two checks, in percent.
const STEP_PERCENT: u64 = 5;
/// Share of the names that is removed first, in percent.
const FIRST_REMOVED_PERCENT: u64 = 90;

/// Grows the directories, shrinks and empties them, and checks their leaves meanwhile.
pub(crate) fn shape(pooled: &Pooled, load: &Load, record: Record) -> Result<Record, Failure> {
    let names = load.names();
    let empty_bytes = pooled.data.allocated_bytes();
    let (mut at, mut next_look, mut looks) = (names.start, DIRECTORIES, 0u64);
    let mut least_fill = 1.0f64;
    while at < names.end {
        let end = names.end.min(at + next_look.min(load.batch));
        pooled.insert(at..end).map_err(fail)?;
        at = end;
        let there = at - names.start;
        if there >= next_look || at == names.end {
            next_look = there + (there * STEP_PERCENT / 100).max(DIRECTORIES);
            looks += 1;
            least_fill = least_fill.min(least(pooled)?);
        }
    }
    let full = Fill::of(pooled)?;
    let kept = load.count * (100 - FIRST_REMOVED_PERCENT) / 100;
    // Every tenth name of each directory stays, independent of age.
    let stays = |number: u64| (number / DIRECTORIES).is_multiple_of(10);
    remove(pooled, load, |number| !stays(number))?;
    let (few, few_least) = (Fill::of(pooled)?, least(pooled)?);
    remove(pooled, load, stays)?;
    pooled.pool.sync()?;
    let after = Fill::of(pooled)?;
    Ok(record
        .figure("looks", looks as f64)
        .figure("least_leaf_fill", least_fill)
        .figure("leaf_fill", full.ratio())
        .figure("bytes_per_entry", full.stored as f64 / full.entries.max(1) as f64)
        .figure("kept_names", kept as f64)
        .figure("leaf_fill_after_90_percent", few.ratio())
        .figure("least_leaf_fill_after_90_percent", few_least)
        .figure("leaves_after_all", after.leaves as f64)
        .figure("bytes_not_given_back", {
            pooled.data.allocated_bytes().saturating_sub(empty_bytes) as f64
        }))
}

fn remove(pooled: &Pooled, load: &Load, goes: impl Fn(u64) -> bool) -> Result<(), Failure> {
    let names = load.names();
    for first in names.clone().step_by(load.batch as usize) {
        let tx = pooled.pool.begin_freeing()?;
        for number in (first..names.end.min(first + load.batch)).filter(|n| goes(*n)) {
            let name = super::Name::new(number);
            pooled.directories[super::directory_of(number)].remove(&tx, name.bytes())?;
        }
    }
    Ok(())
}

/// Totals over all directories.
#[derive(Default)]
struct Fill {
    entries: u64,
    leaves: u64,
    used: u64,
    stored: u64,
}

impl Fill {
    fn of(pooled: &Pooled) -> Result<Self, Failure> {
        let mut fill = Self::default();
        for directory in &pooled.directories {
            let stats = directory.stats()?;
            fill.entries += stats.entries;
            fill.leaves += stats.leaves;
            fill.used += stats.used_bytes;
            fill.stored += stats.stored_bytes;
        }
        Ok(fill)
    }

    fn ratio(&self) -> f64 {
        if self.stored == 0 { 1.0 } else { self.used as f64 / self.stored as f64 }
    }
}

/// Least fill of the directories with more than a few leaves.
fn least(pooled: &Pooled) -> Result<f64, Failure> {
    let mut least = 1.0f64;
    for directory in &pooled.directories {
        let stats = directory.stats()?;
        if stats.leaves > FEW_LEAVES {
            least = least.min(stats.fill());
        }
    }
    Ok(least)
}
