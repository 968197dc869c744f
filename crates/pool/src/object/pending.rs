//! Changes of an object in a transaction group, until the txg is durable.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use hashbrown::HashMap;

use crate::format::BlockPtrPhys;

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
    /// Entry count of the directory after the newest change in this txg, if the object is a
    /// directory.
    pub(crate) entries: Option<u64>,
    /// Blocks freed before any of `blocks` was written. The ranges are ascending and do not touch.
    pub(crate) freed: Vec<Range<u64>>,
    /// Records written.
    pub(crate) blocks: HashMap<u64, DirtySlot>,
    /// Indirect blocks that these changes rewrite.
    pub(crate) paths: Paths,
    /// Bytes of memory that `blocks` hold.
    pub(crate) dirty_bytes: u64,
    /// Estimate of how many bytes were written into holes. Includes records that are already on the
    /// device.
    pub(crate) new_bytes: u64,
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
        self.blocks.is_empty() && self.freed.is_empty()
    }

    /// Frees a range and drops what was written there. Returns the bytes of memory released.
    pub(crate) fn free(&mut self, range: Range<u64>) -> u64 {
        let mut bytes = 0;
        self.blocks.retain(|block, slot| {
            let freed = range.contains(block);
            if let (true, DirtySlot::Dirty(buffer)) = (freed, slot) {
                bytes += buffer.footprint() as u64;
            }
            !freed
        });
        self.dirty_bytes -= bytes;
        self.new_bytes = self.new_bytes.saturating_sub(bytes);
        let from = self.freed.partition_point(|old| old.end < range.start);
        let to = self.freed.partition_point(|old| old.start <= range.end);
        let start = self.freed.get(from).map_or(range.start, |old| old.start.min(range.start));
        let last = to.checked_sub(1).and_then(|last| self.freed.get(last));
        let end = last.filter(|_| to > from).map_or(range.end, |old| old.end.max(range.end));
        let merged = if to > from { start.min(range.start)..end } else { range };
        self.freed.splice(from..to, [merged]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_merge_like_a_set() {
        let mut rng = forebay_base::rng::SmallRng::from_seed(7);
        for _ in 0..500 {
            let mut pending = Pending::default();
            let mut model = [false; 64];
            for _ in 0..12 {
                let start = rng.below(60);
                let end = start + 1 + rng.below(4);
                pending.free(start..end);
                model[start as usize..end as usize].fill(true);
                for (block, freed) in model.iter().enumerate() {
                    assert_eq!(pending.frees(block as u64), *freed, "block {block}");
                }
                for two in pending.freed.windows(2) {
                    assert!(two[0].end < two[1].start, "{:?}", pending.freed);
                }
            }
        }
    }
}
