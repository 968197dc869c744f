//! Preallocated holes: ranges without content that count as allocated space.
//!
//! A preallocated hole reads as zeros. Its bytes are part of the object's allocated bytes until it
//! is written, freed or truncated. The space itself is not reserved. A pointer of an indirect block
//! can stand for all blocks beneath it, so a range takes few pointers, however long it is.
//!
//! Locking: the caller holds the object lock, as for all changes of several steps.

use std::ops::Range;

use forebay_base::sync::Arc;

use crate::block_label::INDIRECT_BLOCKS;
use crate::error::Result;
use crate::format::BlockPtrPhys;
use crate::store::Store;
use crate::tx::Tx;
use crate::wait::Wait;

use super::node::{Node, NodeState};
use super::paths;
use super::pending::overlap;
use super::tree::{self, POINTERS, POINTERS_SHIFT, Tree, capacity};

/// The last block of a range counts a multiple of this many bytes.
const UNIT_BYTES: u64 = 4096;
/// Indirect blocks that one step of a preallocation reads, and thereby about the most that it
/// changes.
pub(crate) const PREALLOCATE_READS: usize = 256;

/// What preallocating a range of blocks changes in a tree. Reads every indirect block that the sync
/// will read.
struct Survey<'a> {
    store: &'a Store,
    range: &'a Range<u64>,
    /// What the unsynced txgs freed. The sync does not read an indirect block that one of these
    /// ranges covers.
    freed: Vec<Range<u64>>,
    /// Bytes that each block counts.
    block_bytes: u64,
    /// Bytes that the holes count more than before.
    added_bytes: u64,
    /// Level, and index within the level, of the indirect blocks that change.
    indirect: Vec<(u8, u64)>,
    /// Indirect blocks that may still be read.
    reads_left: usize,
    /// The first block that was not surveyed, if too many indirect blocks would have been read.
    stopped_at: Option<u64>,
    wait: Wait,
}

impl Survey<'_> {
    fn visit(&mut self, ptr: &BlockPtrPhys, (level, first): (u8, u64)) -> Result<()> {
        let end = first.saturating_add(capacity(level + 1));
        let inside = self.range.start.max(first)..self.range.end.min(end);
        if inside.is_empty() || self.stopped_at.is_some() {
            return Ok(());
        }
        if self.freed.iter().any(|freed| freed.start <= first && end <= freed.end) {
            self.hole(&BlockPtrPhys::HOLE, level, &inside);
            return Ok(());
        }
        if ptr.is_preallocated() && level > 0 {
            return Ok(());
        }
        if ptr.is_hole() {
            self.hole(ptr, level, &inside);
            return Ok(());
        }
        let is_freed = self.freed.iter().any(|freed| overlap(freed, &(first..end)) > 0);
        if level == 0 || (ptr.fill.get() == capacity(level + 1) && !is_freed) {
            return Ok(());
        }
        if self.reads_left == 0 {
            self.stopped_at = Some(inside.start);
            return Ok(());
        }
        self.reads_left -= 1;
        let content = self.store.read_with(ptr, INDIRECT_BLOCKS, self.wait)?;
        let (children, span) = (tree::pointers(ptr, &content)?, capacity(level));
        let before = self.added_bytes;
        let from = ((inside.start - first) / span) as usize;
        for index in from..POINTERS.min(((inside.end - first).div_ceil(span)) as usize) {
            let child = tree::child(ptr, children, index)?;
            self.visit(&child, (level - 1, first + index as u64 * span))?;
        }
        if self.added_bytes > before {
            self.indirect.push((level, first / capacity(level + 1)));
        }
        Ok(())
    }

    /// A part of the range lies in a hole whose pointer is at `level`. New indirect blocks replace
    /// the pointer where the range covers it in part.
    fn hole(&mut self, ptr: &BlockPtrPhys, level: u8, inside: &Range<u64>) {
        let bytes = self.block_bytes.saturating_sub(u64::from(ptr.logical_bytes.get()));
        self.added_bytes += (inside.end - inside.start).saturating_mul(bytes);
        for block in [inside.start, inside.end - 1] {
            let above =
                (1..=level).map(|level| (level, block >> (u32::from(level) * POINTERS_SHIFT)));
            self.indirect
                .extend(above.filter(|(level, at)| !paths::covers(self.range, *level, *at)));
        }
    }
}

impl NodeState {
    /// The first block from which on there are neither blocks nor preallocated holes.
    pub(super) fn blocks_end(&self) -> u64 {
        let pending = self.pending.iter().map(|pending| pending.preallocated.end());
        pending.fold(self.tree.blocks, u64::max)
    }

    /// Bytes that a hole counts, as far as known. `block_bytes` is what a whole block counts.
    pub(super) fn preallocated_bytes(&self, block: u64, block_bytes: u64) -> u64 {
        let newer = usize::from(self.pending[1].txg > self.pending[0].txg);
        for pending in [&self.pending[newer], &self.pending[1 - newer]] {
            if pending.blocks.contains_key(&block) {
                return 0;
            }
            let bytes = pending.preallocated.bytes_of(block, block_bytes);
            if bytes > 0 || pending.frees(block) {
                return bytes;
            }
        }
        let ptr = match self.tree.levels {
            _ if block >= self.tree.blocks => None,
            1 => Some(self.tree.root),
            _ => self.pins.find(Tree::parent_of(block), block),
        };
        let ptr = ptr.filter(BlockPtrPhys::is_preallocated);
        ptr.map_or(0, |ptr| u64::from(ptr.logical_bytes.get()))
    }
}

impl Node {
    /// Makes the holes in a range count as allocated, from its start on until so many indirect
    /// blocks were read. Returns the length of that part in bytes. The length of the object stays.
    /// A failure leaves the object unchanged.
    pub(crate) fn preallocate(
        self: &Arc<Self>,
        tx: &Tx,
        offset: u64,
        len: u64,
        reads_max: usize,
    ) -> Result<u64> {
        let mut end = self.check_range(offset, len)?;
        let mut whole = offset >> self.record_shift..end >> self.record_shift;
        let block_bytes = self.cost_of_block(self.record_bytes() as u64);
        let survey = self.survey(&whole, block_bytes, reads_max, tx.wait())?;
        let Survey { added_bytes, mut indirect, stopped_at, .. } = survey;
        if let Some(stop) = stopped_at {
            tx.wait().check("preallocating in steps")?;
            // Not before the first indirect blocks of level 1, as their path was read.
            assert!(whole.start < stop && stop < whole.end, "{stop} is within {whole:?}");
            (whole.end, end) = (stop, stop << self.record_shift);
        }
        let last = whole.end;
        let within = end & (self.record_bytes() as u64 - 1);
        // A record is stored from its start, so what precedes the range counts too.
        let last_bytes = self.cost_of_block(within.next_multiple_of(UNIT_BYTES)).min(block_bytes);
        let has_last = within > 0 && self.is_hole(last, tx.wait())?;
        if has_last && self.lock().must_pin(tx.txg(), last) {
            self.pin(last, tx.wait())?;
        }
        let mut state = self.lock();
        self.check_alive(&state)?;
        self.mark_dirty(&mut state, tx)?;
        let before = state.preallocated_bytes(last, block_bytes);
        let has_last = has_last && before < last_bytes;
        let levels = state.height();
        let known = state.pending.iter().map(|pending| pending.preallocated.overlap(&whole));
        let written = state.pending.iter().map(|pending| pending.written_in(&whole));
        let counted = known.chain(written).sum::<u64>().saturating_mul(block_bytes);
        // The survey has not seen what the syncing txg writes.
        state.pending.iter().for_each(|pending| indirect.extend(pending.paths.changed_in(&whole)));
        let pending = state.pending_mut(tx.txg());
        let pay = |count| tx.dirty_with_pointers(0, self.cost_of_indirect(count));
        if !whole.is_empty() {
            pending.paths.preallocate(levels, &whole, indirect, pay)?;
        }
        let added_bytes = added_bytes.saturating_sub(counted);
        if has_last {
            pending.paths.write(levels, last, pay)?;
            pending.preallocated.add_part(last, last_bytes);
            pending.preallocated_bytes += last_bytes - before;
        }
        pending.preallocated.add(whole);
        pending.preallocated_bytes += added_bytes;
        Ok(end - offset)
    }

    fn survey<'a>(
        &'a self,
        range: &'a Range<u64>,
        block_bytes: u64,
        reads_max: usize,
        wait: Wait,
    ) -> Result<Survey<'a>> {
        let store = &self.io.store;
        let _reading = store.readers().enter();
        self.owner.check_open()?;
        let (tree, height, freed) = {
            let state = self.lock();
            let freed = state.pending.iter().flat_map(|pending| pending.freed.iter().cloned());
            (state.tree, state.height(), freed.collect())
        };
        let mut survey = Survey {
            store,
            range,
            freed,
            block_bytes,
            added_bytes: 0,
            indirect: Vec::new(),
            reads_left: reads_max,
            stopped_at: None,
            wait,
        };
        if tree.levels > 0 {
            let visited = survey.visit(&tree.root, (tree.levels - 1, 0));
            visited.map_err(|error| self.block_error(range.start, error))?;
        }
        let beyond = range.start.max(capacity(tree.levels))..range.end;
        if !beyond.is_empty() && survey.stopped_at.is_none() {
            let height = height.max(tree::levels_for(range.end - 1));
            survey.hole(&BlockPtrPhys::HOLE, height - 1, &beyond);
        }
        Ok(survey)
    }

    /// Bytes that preallocated holes in a range of blocks count, as far as the indirect blocks in
    /// memory tell.
    pub(super) fn preallocated_in(&self, tree: &Tree, range: &Range<u64>) -> u64 {
        match tree.levels {
            0 => 0,
            levels => preallocated_beneath(&self.io.store, &tree.root, (levels - 1, 0), range),
        }
    }
}

fn preallocated_beneath(
    store: &Store,
    ptr: &BlockPtrPhys,
    (level, first): (u8, u64),
    range: &Range<u64>,
) -> u64 {
    let all = first..first.saturating_add(capacity(level + 1));
    let blocks = overlap(&all, range);
    if ptr.is_preallocated() {
        return blocks.saturating_mul(u64::from(ptr.logical_bytes.get()));
    }
    if blocks == 0 || ptr.is_hole() || level == 0 || ptr.fill.get() == capacity(level + 1) {
        return 0;
    }
    let Some(content) = store.peek(ptr) else { return 0 };
    let Ok(children) = tree::pointers(ptr, &content) else { return 0 };
    let beneath = children.iter().enumerate().map(|(index, child)| {
        let first = first + index as u64 * capacity(level);
        let right_level = child.is_null() || child.level.wrapping_add(1) == level;
        if right_level { preallocated_beneath(store, child, (level - 1, first), range) } else { 0 }
    });
    beneath.fold(0, u64::saturating_add)
}
