//! Search for data and holes in an object, record by record, and the sum of the holes in a range.
//!
//! A search works on one snapshot: it copies the changes of the txgs and the root of the tree under
//! the state lock, then walks the tree without the lock. A hole that covers a whole indirect block
//! is skipped in one step. An indirect block without holes, according to its fill
//! count, is skipped too.

use std::ops::Range;

use crate::error::Result;
use crate::wait::Wait;

use super::node::{Node, NodeState};
use super::pending::{DirtySlot, Pending};
use super::tree::{self, SeekTarget, Tree};

/// Changes of a txg from a block on.
struct TxgChanges {
    /// Written blocks, ascending, and whether each holds data.
    blocks: Vec<(u64, bool)>,
    freed: Vec<Range<u64>>,
}

impl TxgChanges {
    fn of(pending: &Pending, from: u64) -> Self {
        let written = pending.blocks.iter().filter(|(block, _)| **block >= from);
        let mut blocks: Vec<_> = written
            .map(|(block, slot)| match slot {
                DirtySlot::Dirty(_) => (*block, true),
                DirtySlot::Written(ptr) => (*block, !ptr.is_hole()),
            })
            .collect();
        blocks.sort_unstable();
        Self { blocks, freed: pending.freed.clone() }
    }

    /// Whether the block holds data, if the txg changed it, and the first later block for which the
    /// answer may differ.
    fn at(&self, block: u64) -> Option<(bool, u64)> {
        if let Ok(at) = self.blocks.binary_search_by_key(&block, |(at, _)| *at) {
            return Some((self.blocks[at].1, block + 1));
        }
        let freed = self.freed.partition_point(|range| range.end <= block);
        let freed = self.freed.get(freed).filter(|range| range.start <= block)?;
        let written = self.blocks.partition_point(|(at, _)| *at <= block);
        let end = self.blocks.get(written).map_or(freed.end, |(at, _)| freed.end.min(*at));
        Some((false, end))
    }

    /// The first block from `block` on that the txg changed.
    fn next(&self, block: u64) -> Option<u64> {
        let written = self.blocks.partition_point(|(at, _)| *at < block);
        let written = self.blocks.get(written).map(|(at, _)| *at);
        let freed = self.freed.partition_point(|range| range.end <= block);
        let freed = self.freed.get(freed).map(|range| range.start.max(block));
        written.into_iter().chain(freed).min()
    }
}

/// The state of an object at one moment.
struct ObjectSnapshot {
    tree: Tree,
    size: u64,
    /// The newer txg first.
    changes: [TxgChanges; 2],
}

impl ObjectSnapshot {
    fn of(state: &NodeState, from: u64) -> Self {
        let newer = usize::from(state.pending[1].txg > state.pending[0].txg);
        let changes = [newer, 1 - newer].map(|at| TxgChanges::of(&state.pending[at], from));
        Self { tree: state.tree, size: state.size, changes }
    }

    /// Whether the block holds data; `None` if no txg changed it and the tree decides. Also returns
    /// the first later block for which the answer may differ.
    fn changed(&self, block: u64) -> (Option<bool>, u64) {
        let [newer, older] = &self.changes;
        let next = |changes: &TxgChanges| changes.next(block + 1).unwrap_or(u64::MAX);
        match (newer.at(block), older.at(block)) {
            (Some((data, end)), _) => (Some(data), end),
            (None, Some((data, end))) => (Some(data), end.min(next(newer))),
            (None, None) => (None, next(newer).min(next(older))),
        }
    }
}

impl Node {
    /// The next offset from `from` on with data or with a hole. The end of the object counts as a
    /// hole. Returns `None` if nothing is found, or if `from` is not before the end.
    pub(crate) fn seek(&self, from: u64, wanted: SeekTarget, wait: Wait) -> Result<Option<u64>> {
        let store = &self.io.store;
        let _reading = store.readers().enter();
        let mut block = from >> self.record_shift;
        let snapshot = ObjectSnapshot::of(&self.lock(), block);
        let found = |at: u64| Ok(Some(at.max(from)));
        if from >= snapshot.size {
            return Ok(None);
        }
        let end = ((snapshot.size - 1) >> self.record_shift) + 1;
        while block < end {
            let (data, next) = snapshot.changed(block);
            let hit = match data {
                Some(data) => (data == (wanted == SeekTarget::Data)).then_some(block),
                None => {
                    let hit = tree::seek(store, &snapshot.tree, block..next.min(end), wanted, wait);
                    hit.map_err(|error| self.block_error(block, error))?
                }
            };
            match hit {
                Some(hit) => return found(hit << self.record_shift),
                None => block = next,
            }
        }
        if wanted == SeekTarget::Hole { found(snapshot.size) } else { Ok(None) }
    }

    /// Bytes of holes in a range, in whole records but at most `len`. What is behind the end is a
    /// hole.
    pub(crate) fn hole_bytes(&self, offset: u64, len: u64, wait: Wait) -> Result<u64> {
        let store = &self.io.store;
        let _reading = store.readers().enter();
        let record = self.record_bytes() as u64;
        let mut block = offset >> self.record_shift;
        let end = offset.saturating_add(len).div_ceil(record);
        let snapshot = ObjectSnapshot::of(&self.lock(), block);
        let mut holes = 0;
        while block < end {
            let (data, next) = snapshot.changed(block);
            let range = block..next.min(end);
            holes += match data {
                Some(true) => 0,
                Some(false) => range.end - range.start,
                None => {
                    let filled = tree::filled(store, &snapshot.tree, &range, wait);
                    let filled = filled.map_err(|error| self.block_error(block, error))?;
                    (range.end - range.start).saturating_sub(filled)
                }
            };
            block = range.end;
        }
        Ok(holes.saturating_mul(record).min(len))
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
