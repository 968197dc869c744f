//! Changing objects in an open transaction group.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;

use crate::block_cache::BlockRef;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ObjectKind;
use crate::tx::Tx;
use crate::wait::Wait;

use super::RETRIES_MAX;
use super::node::{BlockState, Fetched, Node, NodeState, size_max};
use super::paths;
use super::pending::DirtySlot;
use super::tree::{self, Tree};

/// Minimum bytes of the buffer of a record that is not full yet.
const BUFFER_MIN: usize = 4096;

/// Result of [`Node::modify`].
pub(crate) enum ModifyOutcome<R> {
    /// The block was changed.
    Done(R),
    /// The block is a hole, and [`HoleAction::Leave`] was asked for.
    Hole,
}

/// How to treat a block that is a hole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoleAction {
    /// Create the block, filled with zeros.
    Create,
    /// Leave the hole.
    Leave,
}

/// The bytes of a block that a change needs.
#[derive(Clone, Copy)]
pub(crate) struct WantedBytes {
    /// Minimum length of the buffer.
    pub(crate) bytes: usize,
    /// The change overwrites the whole block, so the old content need not be read.
    pub(crate) whole: bool,
    pub(crate) on_hole: HoleAction,
}

impl Node {
    /// Writes `data` at `offset`, and extends the object if necessary. The caller holds the object
    /// lock, as for all changes of several steps.
    pub(crate) fn write(self: &Arc<Self>, tx: &Tx, offset: u64, data: &[u8]) -> Result<()> {
        self.write_some(tx, offset, data).1
    }

    /// Like [`write`](Self::write), but also returns how many bytes were written. If the write
    /// fails, that prefix of `data` is written, and the object is as after a write of the prefix
    /// alone.
    pub(crate) fn write_some(
        self: &Arc<Self>,
        tx: &Tx,
        offset: u64,
        data: &[u8],
    ) -> (u64, Result<()>) {
        // In non-blocking mode, everything that the write would wait for is in memory before the
        // first change, and stays there while `_held` lives.
        let _held = match tx.wait() {
            Wait::Allowed => Vec::new(),
            Wait::Refused => match self.load_edges(tx, offset, data.len() as u64) {
                Ok(held) => held,
                Err(error) => return (0, Err(error)),
            },
        };
        let mut done = 0;
        let written = self.write_records(tx, offset, data, &mut done);
        if done == 0 {
            return (0, written);
        }
        match self.extend_to(tx, offset + done as u64) {
            Ok(()) => (done as u64, written),
            Err(error) => (0, written.and(Err(error))),
        }
    }

    /// Loads what a write of a range needs: the indirect blocks above it, and the blocks that it
    /// overwrites in part. Does not wait.
    fn load_edges(&self, tx: &Tx, offset: u64, len: u64) -> Result<Vec<BlockRef>> {
        let end = self.check_range(offset, len)?;
        let (shift, record) = (self.record_shift, self.record_bytes() as u64);
        let mut held = Vec::new();
        for block in (offset >> shift)..end.div_ceil(record) {
            let whole = offset <= block << shift && (block + 1) << shift <= end;
            for _ in 0..RETRIES_MAX {
                let missing = {
                    let state = self.lock();
                    self.check_alive(&state)?;
                    match state.find(block) {
                        BlockState::Unknown if !whole => None,
                        BlockState::Stored(ptr) if !whole => Some(ptr),
                        _ if state.must_pin(tx.txg(), block) => None,
                        _ => break,
                    }
                };
                let Some(ptr) = missing else {
                    self.pin(block, Wait::Refused)?;
                    continue;
                };
                if let Some(fetched) = self.fetch(block, &ptr, Wait::Refused)? {
                    held.push(fetched.content);
                    break;
                }
            }
        }
        Ok(held)
    }

    /// Extends the object to at least `end` bytes.
    fn extend_to(self: &Arc<Self>, tx: &Tx, end: u64) -> Result<()> {
        let mut state = self.lock();
        self.check_alive(&state)?;
        match end > state.size {
            true => self.set_size(&mut state, tx, end),
            false => Ok(()),
        }
    }

    /// May wait whatever the mode of `tx` is.
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
                on_hole: HoleAction::Create,
            };
            // Must not stop half-way.
            self.modify(tx, at >> self.record_shift, wanted, Wait::Allowed, |buffer| {
                buffer[within..within + part].copy_from_slice(&data[done..done + part]);
            })?;
            *done_bytes += part;
        }
        Ok(())
    }

    /// Sets the length to `size` bytes. Content behind the new end is freed; new content reads as
    /// zeros. Atomic: a failure leaves the object unchanged.
    pub(crate) fn truncate(self: &Arc<Self>, tx: &Tx, size: u64) -> Result<()> {
        self.check_range(size, 0)?;
        let freed = size.div_ceil(self.record_bytes() as u64)..u64::MAX;
        let (old, blocks_end) = {
            let mut state = self.lock();
            self.check_alive(&state)?;
            self.mark_dirty(&mut state, tx)?;
            (state.size, state.blocks_end())
        };
        // As on Linux, the old size frees what is preallocated behind it, and a larger one does
        // not.
        if size < old || size == old && blocks_end > freed.start {
            let within = size as usize & (self.record_bytes() - 1);
            let edge =
                (within > 0).then(|| (size >> self.record_shift, within..self.record_bytes()));
            self.clear(tx, edge.as_slice(), freed)?;
        }
        let mut state = self.lock();
        self.check_alive(&state)?;
        self.set_size(&mut state, tx, size)
    }

    /// Makes a range read as zeros and frees the blocks inside. The length stays. Atomic: a failure
    /// leaves the object unchanged.
    pub(crate) fn punch(self: &Arc<Self>, tx: &Tx, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, 0)?;
        let record = self.record_bytes() as u64;
        let there = {
            let state = self.lock();
            state.size.max(state.blocks_end().saturating_mul(record))
        };
        let end = offset.saturating_add(len).min(there);
        if end <= offset {
            return Ok(());
        }
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

    /// Fills parts of blocks with zeros and frees other blocks. Atomic: a failure changes nothing.
    fn clear(
        self: &Arc<Self>,
        tx: &Tx,
        edges: &[(u64, Range<usize>)],
        freed: Range<u64>,
    ) -> Result<()> {
        for (block, _) in edges {
            // Get all buffers first: no later step can fail.
            self.zero(tx, *block, 0..0)?;
        }
        if !freed.is_empty() {
            self.free_blocks(tx, freed)?;
        }
        edges.iter().try_for_each(|(block, range)| self.zero(tx, *block, range.clone()))
    }

    fn zero(self: &Arc<Self>, tx: &Tx, block: u64, range: Range<usize>) -> Result<()> {
        let wanted = WantedBytes { bytes: 0, whole: false, on_hole: HoleAction::Leave };
        self.modify(tx, block, wanted, tx.wait(), |buffer| {
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
        self.mark_dirty(&mut state, tx)?;
        let levels = state.height();
        let pending = state.pending_mut(tx.txg());
        pending.paths.free(levels, &range, |count| {
            tx.dirty_with_pointers(0, self.cost_of_indirect(count))
        })?;
        let block_bytes = self.cost_of_block(self.record_bytes() as u64);
        let freed = pending.free(range.clone(), block_bytes);
        if !pending.frees_all() {
            let tree = state.tree;
            let replaced = self.preallocated_in(&tree, &range);
            state.pending_mut(tx.txg()).replaced_bytes += replaced;
        }
        drop(state);
        self.io.store.cache().sub_dirty(freed);
        Ok(())
    }

    /// Reads the indirect blocks above `end` that also lead to blocks outside `range`: the sync
    /// needs them.
    fn read_above(&self, tx: &Tx, end: u64, range: &Range<u64>) -> Result<()> {
        let tree = {
            let state = self.lock();
            if !state.must_pin(tx.txg(), end) {
                return Ok(());
            }
            state.tree
        };
        if !paths::covers(range, 1, Tree::parent_of(end)) {
            return self.pin(end, tx.wait());
        }
        let store = &self.io.store;
        let _reading = store.readers().enter();
        let read = tree::lowest_indirect(store, &tree, end, tx.wait());
        read.map(|_| ()).map_err(|error| self.lost_pointers(end, error))
    }

    fn set_size(self: &Arc<Self>, state: &mut NodeState, tx: &Tx, size: u64) -> Result<()> {
        self.mark_dirty(state, tx)?;
        state.size = size;
        state.pending_mut(tx.txg()).size = Some(size);
        Ok(())
    }

    /// Adds the object to the txg's list of dirty objects.
    pub(super) fn mark_dirty(self: &Arc<Self>, state: &mut NodeState, tx: &Tx) -> Result<()> {
        if state.pending[(tx.txg() & 1) as usize].txg == 0 {
            self.owner.list_dirty(tx, self)?;
            state.pending_mut(tx.txg());
        }
        Ok(())
    }

    pub(super) fn check_range(&self, offset: u64, len: u64) -> Result<u64> {
        let limit = size_max(self.record_shift);
        offset.checked_add(len).filter(|end| *end <= limit).ok_or_else(|| {
            let text = format!(
                "object {}: {len} bytes at {offset} exceed the maximum object length of {limit} bytes",
                self.number
            );
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Changes the bytes of a block in the txg of `tx`. Uses the txg's buffer, or makes one from
    /// the newest content.
    pub(crate) fn modify<R>(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        wanted: WantedBytes,
        wait: Wait,
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
                Some(ptr) => fetched = self.fetch(block, &ptr, wait)?,
                None => self.pin(block, wait)?,
            }
        }
        Err(self.too_many_retries(block))
    }

    /// Whether a block is a hole, both in the tree and in the txgs. May have to read an
    /// indirect block.
    pub(crate) fn is_hole(&self, block: u64, wait: Wait) -> Result<bool> {
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
            self.pin(block, wait)?;
        }
        Err(self.too_many_retries(block))
    }

    /// The error after [`RETRIES_MAX`] attempts.
    pub(super) fn too_many_retries(&self, block: u64) -> Error {
        self.block_error(
            block,
            Error::new(
                ErrorKind::Corrupt,
                "it was replaced during each of many attempts to read it",
            ),
        )
    }

    /// Ensures that the txg has a buffer of the block, or returns what to fetch first.
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
        let store = &self.io.store;
        // The first change under an indirect block reads that block, even if the old block pointer
        // is not needed.
        let mut stale = None;
        let is_hole = matches!(state.find(block), BlockState::Hole);
        let new = match state.find(block) {
            BlockState::Hole if wanted.on_hole == HoleAction::Leave => return Ok(ModifyStep::Hole),
            _ if state.must_pin(tx.txg(), block) => return Ok(ModifyStep::Pin),
            _ if wanted.whole => store.cache().alloc(self.record_bytes())?,
            BlockState::Unknown => return Ok(ModifyStep::Pin),
            BlockState::Hole => self.buffer_of(&[], wanted.bytes)?,
            BlockState::Dirty(buffer) => self.buffer_of(buffer, wanted.bytes)?,
            BlockState::Stored(ptr) => {
                stale = Some(ptr);
                match fetched.filter(|fetched| fetched.ptr == ptr) {
                    Some(fetched) => self.buffer_of(&fetched.content, wanted.bytes)?,
                    None => match store.peek(&ptr) {
                        Some(content) => {
                            self.note_hit(block, content.len());
                            self.buffer_of(&content, wanted.bytes)?
                        }
                        None => return Ok(ModifyStep::Fetch(ptr)),
                    },
                }
            }
        };
        self.put_dirty(state, tx, (block, is_hole), new)?;
        if let Some(ptr) = stale.filter(|_| self.kind == ObjectKind::Zap) {
            // Lookups find the dirty leaf from now on.
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
        let cache = self.io.store.cache();
        self.mark_dirty(state, tx)?;
        let bytes = new.footprint() as u64;
        let block_bytes = self.cost_of_block(self.record_bytes() as u64);
        let replaced = if is_hole { state.preallocated_bytes(block, block_bytes) } else { 0 };
        let levels = state.height();
        let pending = state.pending_mut(tx.txg());
        let before = match pending.blocks.get(&block) {
            Some(DirtySlot::Dirty(old)) => old.footprint() as u64,
            _ => 0,
        };
        if pending.blocks.contains_key(&block) {
            // A record that is written in pieces grows within its txg.
            let paid = if before > 0 { self.cost_of_block(before) } else { 0 };
            tx.dirty(self.cost_of_block(bytes).saturating_sub(paid))?;
        } else {
            pending.paths.write(levels, block, |count| {
                tx.dirty_with_pointers(self.cost_of_block(bytes), self.cost_of_indirect(count))
            })?;
        }
        pending.blocks.insert(block, DirtySlot::Dirty(Arc::new(new)));
        pending.dirty_bytes += bytes - before;
        if is_hole || before > 0 {
            pending.new_bytes += bytes - before;
            pending.replaced_bytes += replaced;
        }
        cache.add_dirty(bytes);
        cache.sub_dirty(before);
        Ok(())
    }

    /// A buffer of at least `bytes` bytes that begins with `content`, followed by zeros.
    fn buffer_of(&self, content: &[u8], bytes: usize) -> Result<Buffer> {
        if content.len() > self.record_bytes() {
            let text = format!(
                "object {}: it has a block of {} bytes, longer than its record size",
                self.number,
                content.len()
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let needed = bytes.max(content.len()).max(BUFFER_MIN).next_power_of_two();
        let mut buffer = self.io.store.cache().alloc(needed.min(self.record_bytes()))?;
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

/// The txg's buffer of a block, if it has one of at least `bytes` bytes.
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

/// The txg's buffer of a block, after [`Node::try_modify`] returned [`ModifyStep::Ready`].
pub(crate) fn dirty_mut<'a>(state: &'a mut NodeState, tx: &Tx, block: u64) -> &'a mut [u8] {
    match state.pending_mut(tx.txg()).blocks.get_mut(&block) {
        Some(DirtySlot::Dirty(buffer)) => {
            Arc::get_mut(buffer).expect("an open txg's buffer has one owner")
        }
        _ => unreachable!("try_modify returned Ready under this lock"),
    }
}
