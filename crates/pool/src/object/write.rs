//! Changing of objects in an open transaction group.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;

use crate::block_cache::BlockRef;
use crate::blocking::{self, blocking_allowed};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ObjectKind;
use crate::tx::Tx;

use super::RETRIES_MAX;
use super::node::{BlockState, Fetched, Node, NodeState, size_max};
use super::paths;
use super::pending::DirtySlot;
use super::tree::{self, Tree};

/// Buffers of records that are not full yet have at least this many bytes.
const BUFFER_MIN: usize = 4096;

/// What [`Node::modify`] found.
pub(crate) enum ModifyOutcome<R> {
    /// It was changed.
    Done(R),
    /// There is no such block, and none was wanted.
    Hole,
}

/// What to do about a block that is a hole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoleAction {
    /// Begin with zeros.
    Create,
    /// Leave it.
    Leave,
}

/// Which bytes of a block are wanted.
#[derive(Clone, Copy)]
pub(crate) struct WantedBytes {
    /// The buffer has at least this many bytes.
    pub(crate) bytes: usize,
    /// All that was there is overwritten: it need not be read.
    pub(crate) whole: bool,
    pub(crate) missing: HoleAction,
}

impl Node {
    /// Writes `data` at `offset`, making the object longer if need be. The caller has its turn, as for all changes
    /// that take several steps.
    pub(crate) fn write(self: &Arc<Self>, tx: &Tx, offset: u64, data: &[u8]) -> Result<()> {
        self.write_some(tx, offset, data).1
    }

    /// The same. Returns how many bytes were written: a beginning of `data` if it fails, as if that had been all.
    pub(crate) fn write_some(
        self: &Arc<Self>,
        tx: &Tx,
        offset: u64,
        data: &[u8],
    ) -> (u64, Result<()>) {
        if blocking::is_non_blocking() {
            // All that would have to be waited for is in memory before the first change, and stays while this is held.
            return match self.bring_edges(tx, offset, data.len() as u64) {
                Ok(_held) => blocking_allowed(|| self.write_some(tx, offset, data)),
                Err(error) => (0, Err(error)),
            };
        }
        let mut done = 0;
        let written = self.write_records(tx, offset, data, &mut done);
        if done == 0 {
            return (0, written);
        }
        match self.reach(tx, offset + done as u64) {
            Ok(()) => (done as u64, written),
            Err(error) => (0, written.and(Err(error))),
        }
    }

    /// Brings what a write of a range needs into memory: what leads to its blocks, and those that it does not overwrite
    /// whole.
    fn bring_edges(&self, tx: &Tx, offset: u64, len: u64) -> Result<Vec<BlockRef>> {
        let end = self.check_range(offset, len)?;
        let (shift, record) = (self.record_shift, self.record_bytes() as u64);
        let mut held = Vec::new();
        for block in (offset >> shift)..end.div_ceil(record) {
            let whole = offset <= block << shift && (block + 1) << shift <= end;
            for _ in 0..RETRIES_MAX {
                let missing = {
                    let state = self.lock();
                    self.check_alive(&state)?;
                    let leads = state.pending[(tx.txg() & 1) as usize].paths.lead_to(block);
                    match state.find(block) {
                        BlockState::Unknown if !whole || !leads => None,
                        BlockState::Stored(ptr) if !whole => Some(ptr),
                        _ => break,
                    }
                };
                let Some(ptr) = missing else {
                    self.pin(block)?;
                    continue;
                };
                if let Some(fetched) = self.fetch(block, &ptr)? {
                    held.push(fetched.content);
                    break;
                }
            }
        }
        Ok(held)
    }

    /// Makes the object at least `end` bytes long.
    fn reach(self: &Arc<Self>, tx: &Tx, end: u64) -> Result<()> {
        let mut state = self.lock();
        self.check_alive(&state)?;
        match end > state.size {
            true => self.set_size(&mut state, tx, end),
            false => Ok(()),
        }
    }

    fn write_records(
        self: &Arc<Self>,
        tx: &Tx,
        offset: u64,
        data: &[u8],
        done_bytes: &mut usize,
    ) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        while *done_bytes < data.len() {
            let done = *done_bytes;
            let at = offset + done as u64;
            let within = at as usize & (self.record_bytes() - 1);
            let part = (self.record_bytes() - within).min(data.len() - done);
            let wanted = WantedBytes {
                bytes: within + part,
                whole: part == self.record_bytes(),
                missing: HoleAction::Create,
            };
            self.modify(tx, at >> self.record_shift, wanted, |buffer| {
                buffer[within..within + part].copy_from_slice(&data[done..done + part]);
            })?;
            *done_bytes += part;
        }
        Ok(())
    }

    /// Makes the object `size` bytes long; what was behind is gone, what is new reads as zeros. All of that, or nothing.
    pub(crate) fn truncate(self: &Arc<Self>, tx: &Tx, size: u64) -> Result<()> {
        self.check_range(size, 0)?;
        let old = {
            let mut state = self.lock();
            self.check_alive(&state)?;
            self.list(&mut state, tx)?;
            state.size
        };
        if size < old {
            let within = size as usize & (self.record_bytes() - 1);
            let edge =
                (within > 0).then(|| (size >> self.record_shift, within..self.record_bytes()));
            let freed = size.div_ceil(self.record_bytes() as u64)..u64::MAX;
            self.clear(tx, edge.as_slice(), freed)?;
        }
        let mut state = self.lock();
        self.check_alive(&state)?;
        self.set_size(&mut state, tx, size)
    }

    /// Makes a range read as zeros, and gives back the blocks that lie in it. The length stays. All
    /// of that, or nothing.
    pub(crate) fn punch(self: &Arc<Self>, tx: &Tx, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, 0)?;
        let end = offset.saturating_add(len).min(self.size());
        if end <= offset {
            return Ok(());
        }
        let record = self.record_bytes() as u64;
        let (first, last) = (offset.div_ceil(record), end / record);
        let within = |at: u64| (at % record) as usize;
        if first > last {
            return self.zero(tx, last, within(offset)..within(end));
        }
        let mut edges = Vec::with_capacity(2);
        if within(offset) > 0 {
            edges.push((first - 1, within(offset)..self.record_bytes()));
        }
        if within(end) > 0 {
            edges.push((last, 0..within(end)));
        }
        self.clear(tx, &edges, first..last)
    }

    /// Makes bytes of blocks zeros, and frees others: all, or nothing.
    fn clear(
        self: &Arc<Self>,
        tx: &Tx,
        edges: &[(u64, Range<usize>)],
        freed: Range<u64>,
    ) -> Result<()> {
        for (block, _) in edges {
            // Whatever can fail does so now.
            self.zero(tx, *block, 0..0)?;
        }
        if !freed.is_empty() {
            self.free_blocks(tx, freed)?;
        }
        edges.iter().try_for_each(|(block, range)| self.zero(tx, *block, range.clone()))
    }

    fn zero(self: &Arc<Self>, tx: &Tx, block: u64, range: Range<usize>) -> Result<()> {
        let wanted = WantedBytes { bytes: 0, whole: false, missing: HoleAction::Leave };
        self.modify(tx, block, wanted, |buffer| {
            let end = range.end.min(buffer.len());
            if let Some(bytes) = buffer.get_mut(range.start..end) {
                bytes.fill(0);
            }
        })?;
        Ok(())
    }

    /// Frees whole blocks.
    pub(crate) fn free_blocks(self: &Arc<Self>, tx: &Tx, range: Range<u64>) -> Result<()> {
        for end in paths::ends(&range, u64::MAX) {
            self.read_above(tx, end, &range)?;
        }
        let mut state = self.lock();
        self.check_alive(&state)?;
        self.list(&mut state, tx)?;
        let levels = state.height();
        let pending = state.pending_mut(tx.txg());
        pending
            .paths
            .free(levels, &range, |count| tx.dirty(self.objset.cost_of_indirect(count)))?;
        let freed = pending.free(range);
        drop(state);
        self.objset.store.cache().sub_dirty(freed);
        Ok(())
    }

    /// Reads what leads to `end`, and to blocks that are not in `range` too: the sync will have to, and if it cannot, the
    /// pool is suspended.
    fn read_above(&self, tx: &Tx, end: u64, range: &Range<u64>) -> Result<()> {
        let tree = {
            let state = self.lock();
            let known = state.pending[(tx.txg() & 1) as usize].paths.lead_to(end);
            if known || end >= state.tree.blocks || !matches!(state.find(end), BlockState::Unknown)
            {
                return Ok(());
            }
            state.tree
        };
        if !paths::covers(range, 1, Tree::parent_of(end)) {
            return self.pin(end);
        }
        let store = &self.objset.store;
        let _reading = store.readers().enter();
        let read = tree::lowest_indirect(store, &tree, end);
        read.map(|_| ()).map_err(|error| self.naming(end, error))
    }

    fn set_size(self: &Arc<Self>, state: &mut NodeState, tx: &Tx, size: u64) -> Result<()> {
        self.list(state, tx)?;
        state.size = size;
        state.pending_mut(tx.txg()).size = Some(size);
        Ok(())
    }

    /// Has the txg's sync look at this object.
    pub(super) fn list(self: &Arc<Self>, state: &mut NodeState, tx: &Tx) -> Result<()> {
        if state.pending[(tx.txg() & 1) as usize].txg == 0 {
            self.objset.charge_dnode(tx, self.number)?;
            self.objset.list_dirty(tx.txg(), self)?;
            state.pending_mut(tx.txg());
        }
        Ok(())
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<u64> {
        let limit = size_max(self.record_shift);
        offset.checked_add(len).filter(|end| *end <= limit).ok_or_else(|| {
            let text = format!(
                "object {}: {len} bytes at {offset} lie past the largest possible object ({limit} bytes)",
                self.number
            );
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Changes a block's bytes in the txg of `tx`: finds the txg's buffer, or makes one from what is newest.
    pub(crate) fn modify<R>(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        wanted: WantedBytes,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<ModifyOutcome<R>> {
        let mut fetched: Option<Fetched> = None;
        for _ in 0..RETRIES_MAX {
            let missing = {
                let mut state = self.lock();
                self.check_alive(&state)?;
                match self.try_modify(&mut state, tx, block, wanted, fetched.as_ref())? {
                    ModifyStep::Ready => {
                        let buffer = dirty_mut(&mut state, tx, block);
                        return Ok(ModifyOutcome::Done(f(buffer)));
                    }
                    ModifyStep::Hole => return Ok(ModifyOutcome::Hole),
                    ModifyStep::Fetch(ptr) => Some(ptr),
                    ModifyStep::Pin => None,
                }
            };
            match missing {
                Some(ptr) => fetched = self.fetch(block, &ptr)?,
                None => self.pin(block)?,
            }
        }
        Err(self.keeps_changing(block))
    }

    /// Whether there is nothing at a block: neither stored nor in a txg. Waits if an indirect block has to be read.
    pub(crate) fn is_hole(&self, block: u64) -> Result<bool> {
        for _ in 0..RETRIES_MAX {
            {
                let state = self.lock();
                self.check_alive(&state)?;
                match state.find(block) {
                    BlockState::Hole => return Ok(true),
                    BlockState::Dirty(_) | BlockState::Stored(_) => return Ok(false),
                    BlockState::Unknown => {}
                }
            }
            self.pin(block)?;
        }
        Err(self.keeps_changing(block))
    }

    /// The error of who has tried often enough.
    pub(super) fn keeps_changing(&self, block: u64) -> Error {
        self.naming(block, Error::new(ErrorKind::Corrupt, "it moves faster than it can be read"))
    }

    /// Sees to it that the txg has a buffer of the block, if that needs no reading.
    pub(crate) fn try_modify(
        self: &Arc<Self>,
        state: &mut NodeState,
        tx: &Tx,
        block: u64,
        wanted: WantedBytes,
        fetched: Option<&Fetched>,
    ) -> Result<ModifyStep> {
        let slot = (tx.txg() & 1) as usize;
        if let Some(DirtySlot::Dirty(buffer)) = state.pending[slot].blocks.get(&block)
            && buffer.len() >= wanted.bytes
        {
            return Ok(ModifyStep::Ready);
        }
        let store = &self.objset.store;
        // The first change under an indirect block reads it, even if it need not be known where the block was: the
        // sync will have to, and if it cannot, the pool is suspended.
        let leads = state.pending[slot].paths.lead_to(block);
        let mut stale = None;
        let is_hole = matches!(state.find(block), BlockState::Hole);
        let new = match state.find(block) {
            BlockState::Unknown if !wanted.whole || !leads => return Ok(ModifyStep::Pin),
            _ if wanted.whole => store.cache().alloc(self.record_bytes())?,
            BlockState::Unknown => return Ok(ModifyStep::Pin),
            BlockState::Hole if wanted.missing == HoleAction::Leave => return Ok(ModifyStep::Hole),
            BlockState::Hole => self.buffer_of(&[], wanted.bytes)?,
            BlockState::Dirty(buffer) => self.buffer_of(buffer, wanted.bytes)?,
            BlockState::Stored(ptr) => {
                stale = Some(ptr);
                match fetched.filter(|fetched| fetched.ptr == ptr) {
                    Some(fetched) => self.buffer_of(&fetched.content, wanted.bytes)?,
                    None => match store.peek(&ptr) {
                        Some(content) => self.buffer_of(&content, wanted.bytes)?,
                        None => return Ok(ModifyStep::Fetch(ptr)),
                    },
                }
            }
        };
        self.put_dirty(state, tx, (block, is_hole), new)?;
        if let Some(ptr) = stale.filter(|_| self.kind == ObjectKind::Zap) {
            // Who looks for the leaf finds the dirty one from now on.
            store.cache().cache().remove(&store.key(&ptr));
        }
        Ok(ModifyStep::Ready)
    }

    /// Gives the txg a buffer of a block.
    fn put_dirty(
        self: &Arc<Self>,
        state: &mut NodeState,
        tx: &Tx,
        (block, is_hole): (u64, bool),
        new: Buffer,
    ) -> Result<()> {
        let cache = self.objset.store.cache();
        self.list(state, tx)?;
        let bytes = new.footprint() as u64;
        let levels = state.height();
        let pending = state.pending_mut(tx.txg());
        let before = match pending.blocks.get(&block) {
            Some(DirtySlot::Dirty(old)) => old.footprint() as u64,
            _ => 0,
        };
        let cost = |bytes| self.objset.cost_of_block(self.kind, bytes);
        if pending.blocks.contains_key(&block) {
            // A record that is written bit by bit grows within its txg.
            tx.dirty(cost(bytes).saturating_sub(if before > 0 { cost(before) } else { 0 }))?;
        } else {
            pending.paths.write(levels, block, |count| {
                tx.dirty(cost(bytes) + self.objset.cost_of_indirect(count))
            })?;
        }
        pending.blocks.insert(block, DirtySlot::Dirty(Arc::new(new)));
        pending.dirty_bytes += bytes - before;
        if is_hole || before > 0 {
            pending.new_bytes += bytes - before;
        }
        cache.add_dirty(bytes);
        cache.sub_dirty(before);
        Ok(())
    }

    /// A buffer that begins with `content`, has room for `bytes`, and is zeros else.
    fn buffer_of(&self, content: &[u8], bytes: usize) -> Result<Buffer> {
        if content.len() > self.record_bytes() {
            let text = format!(
                "object {}: a block of {} bytes is longer than its records",
                self.number,
                content.len()
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let needed = bytes.max(content.len()).max(BUFFER_MIN).next_power_of_two();
        let mut buffer = self.objset.store.cache().alloc(needed.min(self.record_bytes()))?;
        buffer[..content.len()].copy_from_slice(content);
        buffer[content.len()..].fill(0);
        Ok(buffer)
    }
}

/// What [`Node::try_modify`] needs next.
pub(crate) enum ModifyStep {
    Ready,
    Hole,
    Fetch(crate::format::BlockPtrPhys),
    Pin,
}

/// The txg's buffer of a block, if it has one of at least so many bytes.
#[inline]
pub(crate) fn dirty_of<'a>(
    state: &'a mut NodeState,
    tx: &Tx,
    block: u64,
    bytes: usize,
) -> Option<&'a mut [u8]> {
    let pending = &mut state.pending[(tx.txg() & 1) as usize];
    if pending.txg != tx.txg() {
        return None;
    }
    match pending.blocks.get_mut(&block) {
        Some(DirtySlot::Dirty(buffer)) if buffer.len() >= bytes => {
            Some(Arc::get_mut(buffer).expect("an open txg's buffer has one owner"))
        }
        _ => None,
    }
}

/// The txg's buffer of a block, which [`Node::try_modify`] has seen to.
pub(crate) fn dirty_mut<'a>(state: &'a mut NodeState, tx: &Tx, block: u64) -> &'a mut [u8] {
    match state.pending_mut(tx.txg()).blocks.get_mut(&block) {
        Some(DirtySlot::Dirty(buffer)) => {
            Arc::get_mut(buffer).expect("an open txg's buffer has one owner")
        }
        _ => unreachable!("the txg was given a buffer under this lock"),
    }
}
