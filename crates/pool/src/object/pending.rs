//! Changes of an object in a transaction group, until the txg is durable.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use hashbrown::{HashMap, HashSet};

use crate::format::BlockPtrPhys;
use crate::zap::ZapCounts;

use super::paths::Paths;

/// A record that a txg has written.
pub(crate) enum DirtySlot {
    /// The content. While the txg is open, the `Arc` has one owner, so the content changes in
    /// place. During the sync the writer shares it.
    Dirty(Arc<Buffer>),
    /// The syncing txg has written the record there. The block stays in the cache until the write
    /// has ended.
    Written(BlockPtrPhys),
}

/// Changes of one txg.
#[derive(Default)]
pub(crate) struct Pending {
    /// The txg; 0 if there is none.
    pub(crate) txg: u64,
    /// Length of the object, if the txg changed it.
    pub(crate) size: Option<u64>,
    /// Counts of the directory after the newest change in this txg, if the object is a directory.
    pub(crate) counts: Option<ZapCounts>,
    /// Blocks freed before any of `blocks` was written. The ranges are ascending and do not touch.
    pub(crate) freed: Vec<Range<u64>>,
    /// Holes preallocated after `freed` and before any of `blocks` was written.
    pub(crate) preallocated: Preallocated,
    /// Records written.
    pub(crate) blocks: HashMap<u64, DirtySlot>,
    /// Leaves of a directory that were changed only to add names that were buffered.
    pub(crate) moved: HashSet<u64>,
    /// Indirect blocks that these changes rewrite.
    pub(crate) paths: Paths,
    /// Bytes of memory that `blocks` hold.
    pub(crate) dirty_bytes: u64,
    /// Estimate of how many bytes were written into holes. Includes records that are already on the
    /// device.
    pub(crate) new_bytes: u64,
    /// Estimate of how many bytes `preallocated` counts more than what it replaces.
    pub(crate) preallocated_bytes: u64,
    /// Estimate of how many bytes of preallocated holes were written or freed.
    pub(crate) replaced_bytes: u64,
}

/// Preallocated holes of a txg.
#[derive(Default)]
pub(crate) struct Preallocated {
    /// Whole blocks. The ranges are ascending and do not touch.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Other blocks, and the bytes that each counts.
    pub(crate) parts: BTreeMap<u64, u64>,
}

impl Pending {
    /// Whether the txg has freed the block. The caller has looked it up in `blocks` first.
    pub(crate) fn frees(&self, block: u64) -> bool {
        let at = self.freed.partition_point(|range| range.end <= block);
        self.freed.get(at).is_some_and(|range| range.start <= block)
    }

    /// Whether the txg has freed all older content.
    pub(crate) fn frees_all(&self) -> bool {
        self.freed.first().is_some_and(|range| *range == (0..u64::MAX))
    }

    /// Whether the txg changed no content.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.freed.is_empty() && self.preallocated.is_empty()
    }

    /// Number of blocks in a range that were written.
    pub(crate) fn written_in(&self, range: &Range<u64>) -> u64 {
        self.blocks.keys().filter(|block| range.contains(block)).count() as u64
    }

    /// Readers of a block follow this pointer from now on. Returns the bytes of memory released.
    pub(crate) fn set_written(&mut self, block: u64, ptr: BlockPtrPhys) -> u64 {
        let Some(slot) = self.blocks.get_mut(&block) else { return 0 };
        let bytes = match std::mem::replace(slot, DirtySlot::Written(ptr)) {
            DirtySlot::Dirty(buffer) => buffer.footprint() as u64,
            DirtySlot::Written(_) => 0,
        };
        self.dirty_bytes -= bytes;
        bytes
    }

    /// Frees a range and drops what was written there. Returns the bytes of memory released. A
    /// whole preallocated block counts `block_bytes`.
    pub(crate) fn free(&mut self, range: Range<u64>, block_bytes: u64) -> u64 {
        let mut bytes = 0;
        self.blocks.retain(|block, slot| {
            let freed = range.contains(block);
            if let (true, DirtySlot::Dirty(buffer)) = (freed, slot) {
                bytes += buffer.footprint() as u64;
            }
            !freed
        });
        self.moved.retain(|block| !range.contains(block));
        self.dirty_bytes -= bytes;
        self.new_bytes = self.new_bytes.saturating_sub(bytes);
        let preallocated = self.preallocated.remove(&range, block_bytes);
        self.preallocated_bytes = self.preallocated_bytes.saturating_sub(preallocated);
        add_range(&mut self.freed, range);
        if self.frees_all() {
            (self.preallocated_bytes, self.replaced_bytes) = (0, 0);
        }
        bytes
    }
}

impl Preallocated {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.parts.is_empty()
    }

    /// One more than the last block; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        let part = self.parts.last_key_value().map_or(0, |(block, _)| block + 1);
        self.ranges.last().map_or(0, |range| range.end).max(part)
    }

    /// Bytes that a block counts; 0 if it is not preallocated. A whole block counts `block_bytes`.
    pub(crate) fn bytes_of(&self, block: u64, block_bytes: u64) -> u64 {
        match overlap_of(&self.ranges, &(block..block + 1)) {
            0 => self.parts.get(&block).copied().unwrap_or(0),
            _ => block_bytes,
        }
    }

    /// Number of whole blocks in a range.
    pub(crate) fn overlap(&self, range: &Range<u64>) -> u64 {
        overlap_of(&self.ranges, range)
    }

    /// Adds whole blocks.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        self.parts.retain(|block, _| !range.contains(block));
        if !range.is_empty() {
            add_range(&mut self.ranges, range);
        }
    }

    /// Adds a block that counts fewer bytes than a whole one.
    pub(crate) fn add_part(&mut self, block: u64, bytes: u64) {
        if overlap_of(&self.ranges, &(block..block + 1)) == 0 {
            let part = self.parts.entry(block).or_default();
            *part = bytes.max(*part);
        }
    }

    /// Removes all blocks in a range. Returns the bytes that they counted.
    fn remove(&mut self, range: &Range<u64>, block_bytes: u64) -> u64 {
        let mut bytes = overlap_of(&self.ranges, range).saturating_mul(block_bytes);
        self.parts.retain(|block, part| {
            let kept = !range.contains(block);
            bytes += if kept { 0 } else { *part };
            kept
        });
        remove_range(&mut self.ranges, range);
        bytes
    }
}

/// Adds a range that is not empty to ascending ranges that do not touch.
fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    let from = ranges.partition_point(|old| old.end < range.start);
    let to = ranges.partition_point(|old| old.start <= range.end);
    let start = ranges.get(from).map_or(range.start, |old| old.start.min(range.start));
    let last = to.checked_sub(1).and_then(|last| ranges.get(last));
    let end = last.filter(|_| to > from).map_or(range.end, |old| old.end.max(range.end));
    let merged = if to > from { start.min(range.start)..end } else { range };
    ranges.splice(from..to, [merged]);
}

/// Removes a range from ascending ranges that do not touch.
fn remove_range(ranges: &mut Vec<Range<u64>>, range: &Range<u64>) {
    let from = ranges.partition_point(|old| old.end <= range.start);
    let to = ranges.partition_point(|old| old.start < range.end);
    if from >= to {
        return;
    }
    let before = ranges[from].start..range.start;
    let after = range.end..ranges[to - 1].end;
    let kept = [before, after].into_iter().filter(|part| !part.is_empty());
    ranges.splice(from..to, kept);
}

/// Number of blocks that two ranges share.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// Number of blocks of ascending ranges inside a range.
fn overlap_of(ranges: &[Range<u64>], range: &Range<u64>) -> u64 {
    let from = ranges.partition_point(|one| one.end <= range.start);
    let inside = ranges[from..].iter().take_while(|one| one.start < range.end);
    inside.map(|one| overlap(one, range)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_and_preallocated_ranges_behave_like_sets() {
        let mut rng = forebay_base::rng::SmallRng::from_seed(7);
        for _ in 0..500 {
            let mut pending = Pending::default();
            let mut model = [false; 64];
            let mut preallocated = [false; 64];
            for _ in 0..12 {
                let start = rng.below(60);
                let end = start + 1 + rng.below(4);
                if rng.below(2) == 0 {
                    pending.preallocated.add(start..end);
                    preallocated[start as usize..end as usize].fill(true);
                    continue;
                }
                preallocated[start as usize..end as usize].fill(false);
                pending.free(start..end, 1);
                model[start as usize..end as usize].fill(true);
                for (block, freed) in model.iter().enumerate() {
                    assert_eq!(pending.frees(block as u64), *freed, "block {block}");
                    let bytes = pending.preallocated.bytes_of(block as u64, 7);
                    assert_eq!(bytes, if preallocated[block] { 7 } else { 0 }, "block {block}");
                }
                for two in pending.freed.windows(2) {
                    assert!(two[0].end < two[1].start, "{:?}", pending.freed);
                }
            }
        }
    }
}
