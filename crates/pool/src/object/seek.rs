//! Where an object has data and where holes, record by record.
//!
//! What is asked is answered from one moment: what txgs have changed is copied under the object's lock, together with the
//! tree; then the tree is walked without it. Holes that take whole indirect blocks are passed in one step, and so are
//! indirect blocks without holes, of which the fill tells.

use std::ops::Range;

use crate::error::Result;

use super::node::{Node, NodeState};
use super::pending::{DirtySlot, Pending};
use super::tree::{self, SeekTarget, Tree};

/// What a txg has changed, from a block on.
struct TxgChanges {
    /// Blocks that it has written, ascending, and whether there is data in them.
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

    /// Whether there is data in a block, if the txg says so; and the first block behind it for which something else may be
    /// true.
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

    /// The first block from `block` on of which the txg says something.
    fn next(&self, block: u64) -> Option<u64> {
        let written = self.blocks.partition_point(|(at, _)| *at < block);
        let written = self.blocks.get(written).map(|(at, _)| *at);
        let freed = self.freed.partition_point(|range| range.end <= block);
        let freed = self.freed.get(freed).map(|range| range.start.max(block));
        written.into_iter().chain(freed).min()
    }
}

/// An object at one moment.
struct ObjectSnapshot {
    tree: Tree,
    size: u64,
    /// The newer txg's, then the older one's.
    changes: [TxgChanges; 2],
}

impl ObjectSnapshot {
    fn of(state: &NodeState, from: u64) -> Self {
        let newer = usize::from(state.pending[1].txg > state.pending[0].txg);
        let changes = [newer, 1 - newer].map(|at| TxgChanges::of(&state.pending[at], from));
        Self { tree: state.tree, size: state.size, changes }
    }

    /// What txgs say of a block; nothing, if the tree has the say. And the first block behind it of which something else
    /// may be true.
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
    /// The next offset from `from` on at which there is data, or, if `wanted` is a hole, none. The end counts as a hole; nothing
    /// is behind it.
    pub(crate) fn seek(&self, from: u64, wanted: SeekTarget) -> Result<Option<u64>> {
        let store = &self.objset.store;
        let _reading = store.readers().enter();
        let mut block = from >> self.record_shift;
        let moment = ObjectSnapshot::of(&self.lock(), block);
        let found = |at: u64| Ok(Some(at.max(from)));
        if from >= moment.size {
            return Ok(None);
        }
        let end = ((moment.size - 1) >> self.record_shift) + 1;
        while block < end {
            let (data, next) = moment.changed(block);
            let hit = match data {
                Some(data) => (data == (wanted == SeekTarget::Data)).then_some(block),
                None => {
                    let hit = tree::seek(store, &moment.tree, block..next.min(end), wanted);
                    hit.map_err(|error| self.naming(block, error))?
                }
            };
            match hit {
                Some(hit) => return found(hit << self.record_shift),
                None => block = next,
            }
        }
        if wanted == SeekTarget::Hole { found(moment.size) } else { Ok(None) }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
