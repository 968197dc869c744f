//! Writes the changes of an object, in syncing context.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys, ObjectKind, ZAP_FILTER_LEAVES, ZapBlock};
use crate::store::codec::Sealed;
use crate::store::{Content, PackJob, Packed, Packer, Packing, WritePayload, WriteProps};
use crate::sync_context::SyncContext;
use crate::zap::{self, SlotChange};

use super::node::{DataFields, Node, NodeState};
use super::pending::DirtySlot;
use super::tree::{self, PointerChange, TreeChanges};

/// Blocks are trimmed to multiples of this many bytes.
const TRIM_BYTES: usize = 512;

/// Changes of an object in one txg.
pub(crate) struct DirtyBlocks {
    freed: Vec<std::ops::Range<u64>>,
    preallocated: Vec<std::ops::Range<u64>>,
    /// Preallocated blocks that are not written and count fewer bytes than a whole block.
    parts: Vec<PointerChange>,
    /// Ascending.
    blocks: Vec<u64>,
}

impl Node {
    /// Takes the changes of a txg; `None` if the same txg destroyed the object. Appends one job per
    /// block to `jobs`. Each job packs its block with `packer`, which fits the kind of this object
    /// (records or leaves).
    pub(crate) fn take_dirty_blocks(
        &self,
        txg: u64,
        packer: &Packer,
        jobs: &mut Vec<PackJob>,
    ) -> Option<DirtyBlocks> {
        let mut state = self.lock();
        if state.destroyed == Some(txg) {
            let pending = std::mem::take(&mut state.pending[(txg & 1) as usize]);
            drop(state);
            self.io.store.cache().sub_dirty(pending.dirty_bytes);
            return None;
        }
        let pending = &state.pending[(txg & 1) as usize];
        debug_assert_eq!(pending.txg, txg, "only dirty objects of the txg are synced");
        let mut contents: Vec<_> = pending
            .blocks
            .iter()
            .filter_map(|(block, slot)| match slot {
                DirtySlot::Dirty(content) => Some((*block, Arc::clone(content))),
                DirtySlot::Written(_) => None,
            })
            .collect();
        let freed = pending.freed.clone();
        let preallocated = pending.preallocated.ranges.clone();
        let parts = pending.preallocated.parts.iter();
        let parts = parts.filter(|part| !pending.blocks.contains_key(part.0));
        let part = |(block, bytes): (&u64, &u64)| PointerChange {
            block: *block,
            ptr: BlockPtrPhys::preallocated(0, pointer_bytes(*bytes)),
        };
        let parts = parts.map(part).collect();
        drop(state);
        contents.sort_unstable_by_key(|(block, _)| *block);
        let blocks = contents.iter().map(|(block, _)| *block).collect();
        let pack = self.pack();
        for (block, content) in &contents {
            let (packer, content) = (packer.clone(), Arc::clone(content));
            let bytes = content.len();
            let filter = match ZapBlock::of(*block) {
                ZapBlock::Filter(index) if self.kind == ObjectKind::Zap => Some(index),
                _ => None,
            };
            let work: Box<dyn FnOnce() -> _ + Send> = match filter {
                None => Box::new(move || pack(&packer, content)),
                Some(index) => {
                    let changes = slot_changes(index, &contents, &freed);
                    Box::new(move || pack_filter(&packer, txg, &content, changes))
                }
            };
            jobs.push(PackJob { bytes, work });
        }
        Some(DirtyBlocks { freed, preallocated, parts, blocks })
    }

    /// Writes the changes of the txg of `ctx`, and returns the new data fields of the dnode.
    ///
    /// `packing` yields the packed blocks of this object next. `data` has the write properties of
    /// records, `metadata` those of leaves and indirect blocks.
    pub(crate) fn sync(
        self: &Arc<Self>,
        ctx: &mut SyncContext<'_>,
        work: DirtyBlocks,
        packing: &mut Packing<'_>,
        (data, metadata): (&WriteProps, &WriteProps),
    ) -> Result<DataFields> {
        let props = match self.kind {
            ObjectKind::Zap => {
                // The insert has just accessed the leaf. Its new version counts as used before, so
                // it need not pass admission.
                let cache = Some(self.attributes().again());
                WriteProps { kind: BlockKind::ZapLeaf, level: 0, fill: 1, cache, ..*metadata }
            }
            _ => {
                let cache = Some(self.attributes());
                WriteProps { kind: BlockKind::Data, level: 0, fill: 1, cache, ..*data }
            }
        };
        // Leaves that only got names from a change buffer are not used again soon. But an L2 is
        // never offered blocks that are used once, and the next sweep would read the leaves from
        // the device.
        let moved = std::mem::take(&mut self.lock().pending[(ctx.txg & 1) as usize].moved);
        let has_l2 = ctx.store.l2().takes(ctx.store.owner(), self.attributes().class);
        let once = WriteProps { cache: Some(self.attributes().once()), ..props };
        let again = props;
        let mut written = work.parts;
        written.reserve(work.blocks.len());
        for block in work.blocks {
            let props = if !has_l2 && moved.contains(&block) { once } else { again };
            let packed = match packing.next().expect("there is one pack job per block") {
                // Concurrent pack jobs used up the memory. Pack this block again, alone.
                Err(error) if error.kind() == ErrorKind::NoMemory => {
                    self.pack_again(ctx, block, &ctx.store.packer(&props), error)
                }
                packed => packed,
            };
            let ptr = packed.and_then(|packed| match packed {
                Some(packed) => self.write_packed(ctx, block, packed, &props),
                None => Ok(BlockPtrPhys::HOLE),
            });
            let ptr = ptr.map_err(|error| self.block_error(block, error))?;
            self.release_buffer(ctx, block, ptr);
            written.push(PointerChange { block, ptr });
        }
        written.sort_unstable_by_key(|change| change.block);
        let old = self.lock().tree;
        let block_bytes = self.cost_of_block(self.record_bytes() as u64);
        let changes = TreeChanges {
            freed: &work.freed,
            preallocated: &work.preallocated,
            preallocated_bytes: pointer_bytes(block_bytes),
            written: &written,
        };
        let tree = tree::update(ctx, &old, changes, metadata)?;
        let cost = ctx.take_allocated();
        let mut state = self.lock();
        state.tree = tree;
        state.pins.clear();
        state.allocated = state.allocated.saturating_add_signed(cost);
        let pending = std::mem::take(&mut state.pending[(ctx.txg & 1) as usize]);
        // A later txg may have changed the length. This txg's own length belongs to its blocks.
        let size = pending.size.unwrap_or(state.synced_size);
        state.synced_size = size;
        state.synced_counts = pending.counts.or(state.synced_counts);
        let (allocated, counts) = (state.allocated, pending.counts);
        drop(state);
        self.io.store.cache().sub_dirty(pending.dirty_bytes);
        Ok(DataFields { tree, size, allocated, counts })
    }

    /// The function that packs the blocks of this object.
    fn pack(&self) -> fn(&Packer, Arc<Buffer>) -> Result<Option<Packed>> {
        match self.kind {
            ObjectKind::Zap => pack_leaf,
            _ => pack_record,
        }
    }

    /// Packs a block again whose pack job failed with `error`.
    fn pack_again(
        &self,
        ctx: &SyncContext<'_>,
        block: u64,
        packer: &Packer,
        error: Error,
    ) -> Result<Option<Packed>> {
        let content = match self.lock().pending[(ctx.txg & 1) as usize].blocks.get(&block) {
            Some(DirtySlot::Dirty(content)) => Arc::clone(content),
            _ => return Err(error),
        };
        if let ZapBlock::Filter(index) = ZapBlock::of(block)
            && self.kind == ObjectKind::Zap
        {
            return ctx.repeat(|| {
                let changes = self.changes_of_written(ctx.txg, index);
                pack_filter(packer, ctx.txg, &content, changes)
            });
        }
        ctx.repeat(|| self.pack()(packer, Arc::clone(&content)))
    }

    /// What a txg does to the leaves of a filter block. The txg has written some of them. Such a
    /// leaf has no filter if it is not in memory any more.
    fn changes_of_written(&self, txg: u64, index: u64) -> Vec<SlotChange<Arc<Vec<u8>>>> {
        let store = &self.io.store;
        let state = self.lock();
        let pending = &state.pending[(txg & 1) as usize];
        let first = index * ZAP_FILTER_LEAVES as u64;
        let change = |leaf| {
            let block = ZapBlock::Leaf(leaf).block();
            match pending.blocks.get(&block) {
                Some(DirtySlot::Dirty(leaf)) => SlotChange::Leaf(Arc::new(leaf.to_vec())),
                Some(DirtySlot::Written(ptr)) => match store.peek(ptr) {
                    Some(leaf) => SlotChange::Leaf(Arc::new(leaf.to_vec())),
                    None => SlotChange::Drop,
                },
                None if pending.frees(block) => SlotChange::Drop,
                None => SlotChange::Keep,
            }
        };
        (first..first + ZAP_FILTER_LEAVES as u64).map(change).collect()
    }

    /// Writes a packed block.
    fn write_packed(
        &self,
        ctx: &mut SyncContext<'_>,
        block: u64,
        packed: Packed,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let Packed { content, sealed } = packed;
        let content = match content {
            Content::Own(content) => return self.write_copy(ctx, block, (content, sealed), props),
            Content::Shared(content) => content,
        };
        let placed = ctx.place(&sealed, &content, props)?;
        let ptr = placed.bp;
        // The buffer itself goes into the cache. Readers of the block wait for the lock meanwhile.
        let mut state = self.lock();
        let pending = &mut state.pending[(ctx.txg & 1) as usize];
        let held = match pending.blocks.remove(&block) {
            Some(DirtySlot::Dirty(buffer)) => {
                drop(content);
                let bytes = buffer.footprint() as u64;
                pending.dirty_bytes -= bytes;
                ctx.store.cache().sub_dirty(bytes);
                match Arc::try_unwrap(buffer) {
                    Ok(buffer) => ctx.store.hold(&ptr, buffer, props.cache),
                    Err(shared) => ctx.store.hold_shared(&ptr, shared),
                }
            }
            _ => ctx.store.hold_shared(&ptr, content),
        };
        pending.blocks.insert(block, DirtySlot::Written(ptr));
        drop(state);
        ctx.submit(placed, WritePayload::new(sealed, held))?;
        Ok(ptr)
    }

    /// Writes a packed block that is a copy of the txg's buffer.
    fn write_copy(
        &self,
        ctx: &mut SyncContext<'_>,
        block: u64,
        (content, sealed): (Buffer, Sealed),
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let placed = ctx.place(&sealed, &content, props)?;
        let ptr = placed.bp;
        if !self.is_filter(block) {
            let held = ctx.store.hold(&ptr, content, props.cache);
            ctx.submit(placed, WritePayload::new(sealed, held))?;
            return Ok(ptr);
        }
        // The open txg opens the block before this, and gets the new content here, or after it,
        // and copies what was written. It never keeps the content of before.
        let mut state = self.lock();
        hand_on_filter(&mut state, ctx.txg, block, &content);
        let held = ctx.store.hold(&ptr, content, props.cache);
        let bytes = state.pending[(ctx.txg & 1) as usize].set_written(block, ptr);
        drop(state);
        ctx.store.cache().sub_dirty(bytes);
        ctx.submit(placed, WritePayload::new(sealed, held))?;
        Ok(ptr)
    }

    fn is_filter(&self, block: u64) -> bool {
        self.kind == ObjectKind::Zap && matches!(ZapBlock::of(block), ZapBlock::Filter(_))
    }

    /// Readers follow the pointer of the written block from now on. Releases the block's buffer now
    /// rather than at the end of the txg.
    fn release_buffer(&self, ctx: &SyncContext<'_>, block: u64, ptr: BlockPtrPhys) {
        let bytes = self.lock().pending[(ctx.txg & 1) as usize].set_written(block, ptr);
        self.io.store.cache().sub_dirty(bytes);
    }
}

/// Gives the new content of a filter block to the open txg, if that has opened the block.
fn hand_on_filter(state: &mut NodeState, txg: u64, block: u64, content: &[u8]) {
    let next = &mut state.pending[((txg + 1) & 1) as usize];
    if next.txg == txg + 1
        && let Some(DirtySlot::Dirty(buffer)) = next.blocks.get_mut(&block)
    {
        let buffer = Arc::get_mut(buffer).expect("an open txg's buffer has one owner");
        buffer[..content.len()].copy_from_slice(content);
        buffer[content.len()..].fill(0);
    }
}

/// The bytes that a preallocated pointer counts per block.
fn pointer_bytes(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn pack_leaf(packer: &Packer, content: Arc<Buffer>) -> Result<Option<Packed>> {
    let mut full = packer.alloc(content.len())?;
    full.copy_from_slice(&content);
    drop(content);
    let len = zap::pack(&mut full);
    let mut leaf = packer.alloc(len)?;
    leaf.copy_from_slice(&full[..len]);
    packer.pack(Content::Own(leaf)).map(Some)
}

/// What a txg does to the leaves of a filter block. `contents` is what it writes, ascending.
fn slot_changes(
    index: u64,
    contents: &[(u64, Arc<Buffer>)],
    freed: &[std::ops::Range<u64>],
) -> Vec<SlotChange<Arc<Buffer>>> {
    let first = index * ZAP_FILTER_LEAVES as u64;
    let change = |leaf| {
        let block = ZapBlock::Leaf(leaf).block();
        match contents.binary_search_by_key(&block, |(block, _)| *block) {
            Ok(at) => SlotChange::Leaf(Arc::clone(&contents[at].1)),
            Err(_) if freed.iter().any(|range| range.contains(&block)) => SlotChange::Drop,
            Err(_) => SlotChange::Keep,
        }
    };
    (first..first + ZAP_FILTER_LEAVES as u64).map(change).collect()
}

/// Packs a filter block whose leaves have changed.
fn pack_filter<B: AsRef<[u8]>>(
    packer: &Packer,
    txg: u64,
    content: &[u8],
    changes: Vec<SlotChange<Arc<B>>>,
) -> Result<Option<Packed>> {
    let mut changes = changes.into_iter();
    let new = zap::rebuild_filter(content, txg, |_| changes.next().unwrap_or(SlotChange::Keep));
    let mut block = packer.alloc(new.len())?;
    block.copy_from_slice(&new);
    packer.pack(Content::Own(block)).map(Some)
}

/// Packs a record without its trailing zeros; `None` if it holds only zeros.
fn pack_record(packer: &Packer, content: Arc<Buffer>) -> Result<Option<Packed>> {
    let len = trimmed_len(&content);
    if len == 0 {
        return Ok(None);
    }
    if len == content.len() {
        return packer.pack(Content::Shared(content)).map(Some);
    }
    let mut copy = packer.alloc(len)?;
    copy.copy_from_slice(&content[..len]);
    packer.pack(Content::Own(copy)).map(Some)
}

/// Length without trailing zeros, in multiples of [`TRIM_BYTES`] unless the content itself is
/// shorter.
fn trimmed_len(content: &[u8]) -> usize {
    let used = content.chunks(TRIM_BYTES).rposition(|chunk| chunk.iter().any(|byte| *byte != 0));
    used.map_or(0, |last| ((last + 1) * TRIM_BYTES).min(content.len()))
}
