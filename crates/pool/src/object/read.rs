//! Reading of objects.
//!
//! A read of a cached block takes the object's lock once, to find out where the block is, and pins the block in the
//! cache. Where the cache had it is remembered beside the pinned indirect block that points to it, so that the next
//! read spares the cache's index.
//!
//! A read of one block that was found so before is a *probe*: few instructions, so that the processor has begun to fetch
//! what comes next while it waits for memory. It is not noted for read-ahead, unless a stream may expect it: reads of what is
//! cached, in no order, then write nothing of an object but its lock. All else, and all that a probe does not settle, takes
//! the long way.

use forebay_base::sync::{MutexGuard, hint};
use forebay_cache::Place;

use crate::block_key::BlockKey;
use crate::error::{ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::readahead;

use super::RETRIES_MAX;
use super::node::{BlockState, Node, NodeState};

/// Bytes of a processor's cache line.
const CACHE_LINE_BYTES: usize = 64;
/// Lines of a block that are fetched before it is known that the block is still there.
const LINES_AHEAD: usize = 4;

/// What a look at an object's state came to.
enum BlockLookup {
    /// The bytes are copied.
    Done,
    /// They are in that block, which the cache may have at that place.
    Stored(BlockPtrPhys, Place),
    /// They are in that block, which the cache does not have.
    Gone(BlockPtrPhys),
    /// The indirect block that knows is not pinned.
    Unknown,
}

/// A part of a read: bytes of one block.
struct Part<'a> {
    block: u64,
    within: usize,
    out: &'a mut [u8],
}

impl Part<'_> {
    /// Has the processor fetch the beginning of what will be copied of a block whose content may begin there. It follows a copy
    /// once that has begun: what takes long is the beginning.
    #[inline]
    fn prefetch_content(&self, content: *const u8) {
        let from = content.wrapping_add(self.within);
        let lines = self.out.len().div_ceil(CACHE_LINE_BYTES).min(LINES_AHEAD);
        (0..lines).for_each(|line| hint::prefetch(from.wrapping_add(line * CACHE_LINE_BYTES)));
    }
}

impl Node {
    /// Fills `out` from `offset` on, and returns how many bytes there were before the end.
    #[inline]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let within = offset as usize & (self.record_bytes() - 1);
        let mut part = Part { block: offset >> self.record_shift, within, out };
        let state = self.lock();
        let Some((key, slot_hint)) = self.probe(&state, offset, &part) else {
            return self.read_noted(state, offset, part.out, None);
        };
        drop(state);
        let Some(content) = self.objset.store.peek_key_at(&key, slot_hint) else {
            return self.read_noted(self.lock(), offset, part.out, Some(key));
        };
        copy_out(&content, &mut part);
        if content.place() != slot_hint {
            self.lock().pins.set_hint(part.block, content.place(), &content);
        }
        Ok(part.out.len())
    }

    /// What is to be read, and where the cache had it: if that is all in one block, and it need not be noted.
    #[inline]
    fn probe(&self, state: &NodeState, offset: u64, part: &Part<'_>) -> Option<(BlockKey, Place)> {
        if part.out.is_empty() || part.out.len() > self.record_bytes() - part.within {
            return None;
        }
        let known = state.pins.known(part.block)?;
        let store = &self.objset.store;
        store.prefetch_header(known.slot_hint);
        part.prefetch_content(known.content);
        let end = offset.saturating_add(part.out.len() as u64);
        let settled = end <= state.size && state.is_quiet(part.block);
        settled.then(|| (store.key(known.ptr), known.slot_hint))
    }

    /// As [`read`](Self::read), whatever is to be read and wherever that is. `gone`: a block that the cache was asked
    /// for in vain just now.
    #[inline(never)]
    fn read_noted(
        &self,
        mut state: MutexGuard<'_, NodeState>,
        offset: u64,
        out: &mut [u8],
        gone: Option<BlockKey>,
    ) -> Result<usize> {
        let len = (out.len() as u64).min(state.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let mut parts = self.parts(offset, &mut out[..len]);
        let mut first = parts.next();
        let last = (offset + len as u64 - 1) >> self.record_shift;
        let blocks = (offset >> self.record_shift)..last + 1;
        let again = state.readahead.take_unserved(&blocks);
        let plan = if again { None } else { self.note_read(&mut state, &blocks) };
        let postponed = state.readahead.take_postponed();
        let found = match first
            .as_mut()
            .map_or(BlockLookup::Done, |part| self.lookup_block(&state, part))
        {
            BlockLookup::Stored(ptr, _) if gone == Some(self.objset.store.key(&ptr)) => {
                BlockLookup::Gone(ptr)
            }
            found => found,
        };
        drop(state);
        for plan in [postponed, plan].into_iter().flatten() {
            self.read_ahead(plan);
        }
        let finished = || {
            if let Some(part) = &mut first {
                self.finish(found, part, again)?;
            }
            parts.try_for_each(|mut part| {
                let found = self.lookup_block(&self.lock(), &mut part);
                self.finish(found, &mut part, again)
            })
        };
        match finished() {
            Ok(()) => Ok(len),
            Err(error) => {
                if error.kind() == ErrorKind::WouldBlock {
                    self.lock().readahead.put_unserved(blocks);
                }
                Err(error)
            }
        }
    }

    /// Cuts a read where blocks end.
    fn parts<'a>(
        &self,
        offset: u64,
        out: &'a mut [u8],
    ) -> impl Iterator<Item = Part<'a>> + use<'a> {
        let (shift, record) = (self.record_shift, self.record_bytes());
        let (mut at, mut rest) = (offset, out);
        std::iter::from_fn(move || {
            let within = at as usize & (record - 1);
            let len = (record - within).min(rest.len());
            let (out, behind) = std::mem::take(&mut rest).split_at_mut(len);
            let part = Part { block: at >> shift, within, out };
            (rest, at) = (behind, at + len as u64);
            (len > 0).then_some(part)
        })
    }

    #[inline]
    fn lookup_block(&self, state: &NodeState, part: &mut Part<'_>) -> BlockLookup {
        let (slot_hint, content) = state.pins.hint(part.block);
        self.objset.store.prefetch_header(slot_hint);
        if let Some(content) = content {
            part.prefetch_content(content);
        }
        match state.find(part.block) {
            BlockState::Dirty(buffer) => copy_out(buffer, part),
            BlockState::Hole => part.out.fill(0),
            BlockState::Stored(ptr) => return BlockLookup::Stored(ptr, slot_hint),
            BlockState::Unknown => return BlockLookup::Unknown,
        }
        BlockLookup::Done
    }

    /// Goes on until the bytes are there. `again`: what the read found was noted already.
    fn finish(&self, mut found: BlockLookup, part: &mut Part<'_>, again: bool) -> Result<()> {
        for _ in 0..RETRIES_MAX {
            match found {
                BlockLookup::Done => return Ok(()),
                BlockLookup::Unknown => self.pin(part.block)?,
                BlockLookup::Stored(ptr, slot_hint) => {
                    if let Some(content) = self.objset.store.peek_at(&ptr, slot_hint) {
                        copy_out(&content, part);
                        if content.place() != slot_hint {
                            self.lock().pins.set_hint(part.block, content.place(), &content);
                        }
                        return Ok(());
                    }
                    found = BlockLookup::Gone(ptr);
                    continue;
                }
                BlockLookup::Gone(ptr) => {
                    if !again {
                        let found = match self.objset.store.is_read_ahead(&ptr) {
                            true => readahead::ReadOutcome::InFlight,
                            false => readahead::ReadOutcome::Miss,
                        };
                        self.lock().readahead.set_found(found);
                    }
                    if let Some(fetched) = self.fetch(part.block, &ptr)? {
                        copy_out(&fetched.content, part);
                        return Ok(());
                    }
                }
            }
            found = self.lookup_block(&self.lock(), part);
        }
        Err(self.keeps_changing(part.block))
    }
}

/// Copies from a block that may be shorter than a record: the rest is zeros.
#[inline]
fn copy_out(content: &[u8], part: &mut Part<'_>) {
    let there = content.get(part.within..).unwrap_or_default();
    let len = there.len().min(part.out.len());
    let (out, behind) = part.out.split_at_mut(len);
    out.copy_from_slice(&there[..len]);
    if !behind.is_empty() {
        behind.fill(0);
    }
}
