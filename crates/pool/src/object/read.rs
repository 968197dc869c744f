//! Reading of objects.
//!
//! A read of a cached block takes the object's state lock once to find the block pointer, then pins
//! the block in the cache. The cache slot of the block is remembered beside the pinned indirect
//! block, so the next read skips the index of the cache.
//!
//! A *probe* serves a read within one block whose slot hint is known. It has few instructions, so
//! the processor starts later loads while it waits for memory. It is not reported to read-ahead
//! unless a stream may expect the block: random reads of cached blocks write nothing of an object
//! but its lock. All other reads, and all that a probe cannot serve, take the slow path.
//!
//! A read of several blocks that must not wait looks first whether one is missing: it is repeated
//! then, and what it had copied would be copied again. A stream that is faster than its device
//! would copy most of its bytes twice or three times.

use std::ops::Range;

use forebay_base::sync::{MutexGuard, hint};
use forebay_cache::SlotHint;

use crate::block_key::BlockKey;
use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::readahead;
use crate::trace::TraceOutcome;
use crate::wait::Wait;

use super::RETRIES_MAX;
use super::node::{BlockState, Node, NodeState};

/// Bytes of a processor's cache line.
const CACHE_LINE_BYTES: usize = 64;
/// Cache lines of a block that are prefetched before its slot hint is validated.
const PREFETCH_LINES: usize = 4;
/// Blocks that a read which must not wait looks for before it copies, at most.
const SAMPLES: u64 = 8;

/// Result of looking up a block in the state of an object.
enum BlockLookup {
    /// The bytes are copied.
    Done,
    /// The block is stored, and the cache may have it at this slot.
    Stored(BlockPtrPhys, SlotHint),
    /// The block is stored, and the cache does not have it.
    NotCached(BlockPtrPhys),
    /// The indirect block with the pointer is not pinned.
    Unknown,
}

/// The part of a read that lies in one block.
struct Part<'a> {
    block: u64,
    within: usize,
    out: &'a mut [u8],
}

impl Part<'_> {
    /// Prefetches the first cache lines that the read will copy, if the block's content begins at
    /// `content`. The hardware prefetcher follows once the copy has begun.
    #[inline]
    fn prefetch_content(&self, content: *const u8) {
        let from = content.wrapping_add(self.within);
        let lines = self.out.len().div_ceil(CACHE_LINE_BYTES).min(PREFETCH_LINES);
        (0..lines).for_each(|line| hint::prefetch(from.wrapping_add(line * CACHE_LINE_BYTES)));
    }
}

impl Node {
    /// Reads into `out` from `offset` on. Returns the number of bytes before the end of the object.
    #[inline]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8], wait: Wait) -> Result<usize> {
        let within = offset as usize & (self.record_bytes() - 1);
        let mut part = Part { block: offset >> self.record_shift, within, out };
        let state = self.lock();
        let Some((key, slot_hint)) = self.probe(&state, offset, &part) else {
            return self.read_noted(state, offset, part.out, None, wait);
        };
        drop(state);
        let Some(content) = self.io.store.peek_key_at(&key, slot_hint) else {
            return self.read_noted(self.lock(), offset, part.out, Some(key), wait);
        };
        copy_out(&content, &mut part);
        self.note_hit(part.block, content.len());
        if content.slot_hint() != slot_hint {
            self.lock().pins.set_hint(part.block, content.slot_hint(), &content);
        }
        Ok(part.out.len())
    }

    /// The key and the slot hint of the block to read, if the read lies in one block and need not
    /// be reported to read-ahead.
    #[inline]
    fn probe(
        &self,
        state: &NodeState,
        offset: u64,
        part: &Part<'_>,
    ) -> Option<(BlockKey, SlotHint)> {
        if part.out.is_empty() || part.out.len() > self.record_bytes() - part.within {
            return None;
        }
        let known = state.pins.known(part.block)?;
        let store = &self.io.store;
        store.prefetch_header(known.slot_hint);
        part.prefetch_content(known.content);
        let end = offset.saturating_add(part.out.len() as u64);
        let settled = end <= state.size && state.may_skip_report(part.block);
        settled.then(|| (store.key(known.ptr), known.slot_hint))
    }

    /// The slow path of [`read`](Self::read). `not_cached` is a block that the cache was just found
    /// not to have.
    #[inline(never)]
    fn read_noted(
        &self,
        mut state: MutexGuard<'_, NodeState>,
        offset: u64,
        out: &mut [u8],
        not_cached: Option<BlockKey>,
        wait: Wait,
    ) -> Result<usize> {
        let len = (out.len() as u64).min(state.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let mut parts = self.parts(offset, &mut out[..len]);
        let mut first = parts.next();
        let last = (offset + len as u64 - 1) >> self.record_shift;
        let blocks = (offset >> self.record_shift)..last + 1;
        let is_retry = state.readahead.take_unserved(&blocks);
        let plan = if is_retry { None } else { self.note_read(&mut state, &blocks) };
        let postponed = state.readahead.take_postponed();
        let found = match first
            .as_mut()
            .map_or(BlockLookup::Done, |part| self.lookup_block(&state, part))
        {
            BlockLookup::Stored(ptr, _) if not_cached == Some(self.io.store.key(&ptr)) => {
                BlockLookup::NotCached(ptr)
            }
            found => found,
        };
        drop(state);
        for plan in postponed {
            // It may be far ahead, so it is not worth a wait.
            self.read_ahead(plan, Wait::Refused);
        }
        if let Some(plan) = plan {
            self.read_ahead(plan, wait);
        }
        let mut done = blocks.start;
        let finished = || {
            self.check_blocks(&blocks, is_retry, wait)?;
            if let Some(part) = &mut first {
                self.finish(found, part, is_retry, wait)?;
                done += 1;
            }
            parts.try_for_each(|mut part| {
                let found = self.lookup_block(&self.lock(), &mut part);
                self.finish(found, &mut part, is_retry, wait)?;
                done += 1;
                Ok::<_, Error>(())
            })
        };
        match finished() {
            Ok(()) => Ok(len),
            Err(error) => {
                if error.kind() == ErrorKind::WouldBlock {
                    if self.io.store.is_traced() {
                        let repeat = |block| self.io.store.trace_repeat(self.attributes(), block);
                        (blocks.start..done).for_each(repeat);
                    }
                    self.lock().readahead.put_unserved(blocks);
                }
                Err(error)
            }
        }
    }

    /// Fails in non-blocking mode if a read of several blocks would wait for one of them.
    fn check_blocks(&self, blocks: &Range<u64>, is_retry: bool, wait: Wait) -> Result<()> {
        let Some((block, ptr)) = self.missing_block(blocks, wait) else { return Ok(()) };
        self.note_not_cached(&ptr, is_retry);
        let fetched = self.fetch(block, &ptr, wait)?;
        if fetched.is_some() && self.io.store.is_traced() {
            // The device has answered at once. The access was reported, and the copy is to come.
            self.io.store.trace_repeat(self.attributes(), block);
        }
        Ok(())
    }

    /// A block that a read of several would have to wait for, but must not. Looks at a few of them.
    fn missing_block(&self, blocks: &Range<u64>, wait: Wait) -> Option<(u64, BlockPtrPhys)> {
        let count = blocks.end - blocks.start;
        if wait == Wait::Allowed || count == 1 {
            return None;
        }
        let store = &self.io.store;
        let mut looked_at = blocks.clone().step_by(count.div_ceil(SAMPLES) as usize);
        looked_at.find_map(|block| {
            let ptr = self.locate(block).flatten()?;
            let is_cached = store.cache().cache().contains(&store.key(&ptr));
            (!is_cached).then_some((block, ptr))
        })
    }

    /// Tells read-ahead that a read has found a block not in the cache.
    fn note_not_cached(&self, ptr: &BlockPtrPhys, is_retry: bool) {
        if !is_retry {
            let found = match self.io.store.is_read_ahead(ptr) {
                true => readahead::ReadOutcome::InFlight,
                false => readahead::ReadOutcome::Miss,
            };
            self.lock().readahead.set_found(found);
        }
    }

    /// Reports to a trace that a block was in memory.
    #[inline]
    pub(super) fn note_hit(&self, block: u64, bytes: usize) {
        let store = &self.io.store;
        if store.is_traced() {
            store.trace_access(self.attributes(), (block, bytes), TraceOutcome::Hit);
        }
    }

    /// Splits a read at block boundaries.
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
        self.io.store.prefetch_header(slot_hint);
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

    /// Repeats lookup and fetch until the bytes are copied. `is_retry`: the read was reported to
    /// read-ahead before.
    fn finish(
        &self,
        mut found: BlockLookup,
        part: &mut Part<'_>,
        is_retry: bool,
        wait: Wait,
    ) -> Result<()> {
        for _ in 0..RETRIES_MAX {
            match found {
                BlockLookup::Done => return Ok(()),
                BlockLookup::Unknown => self.pin(part.block, wait)?,
                BlockLookup::Stored(ptr, slot_hint) => {
                    if let Some(content) = self.io.store.peek_at(&ptr, slot_hint) {
                        copy_out(&content, part);
                        self.note_hit(part.block, content.len());
                        if content.slot_hint() != slot_hint {
                            self.lock().pins.set_hint(part.block, content.slot_hint(), &content);
                        }
                        return Ok(());
                    }
                    found = BlockLookup::NotCached(ptr);
                    continue;
                }
                BlockLookup::NotCached(ptr) => {
                    self.note_not_cached(&ptr, is_retry);
                    if let Some(fetched) = self.fetch(part.block, &ptr, wait)? {
                        copy_out(&fetched.content, part);
                        return Ok(());
                    }
                }
            }
            found = self.lookup_block(&self.lock(), part);
        }
        Err(self.too_many_retries(part.block))
    }
}

/// Copies from a block that may be shorter than a record. The remainder is filled with zeros.
#[inline]
fn copy_out(content: &[u8], part: &mut Part<'_>) {
    let stored = content.get(part.within..).unwrap_or_default();
    let len = stored.len().min(part.out.len());
    let (out, behind) = part.out.split_at_mut(len);
    out.copy_from_slice(&stored[..len]);
    if !behind.is_empty() {
        behind.fill(0);
    }
}
