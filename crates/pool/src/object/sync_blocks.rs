//! Writing an object's changes out, in syncing context.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys, ObjectKind};
use crate::store::{Content, PackJob, Packed, Packer, Packing, WritePayload, WriteProps};
use crate::sync_context::SyncContext;
use crate::zap;

use super::node::{DataFields, Node};
use super::pending::DirtySlot;
use super::tree::{self, PointerChange, TreeChanges};

/// Blocks are trimmed to multiples of this many bytes.
const TRIM_BYTES: usize = 512;

/// What a txg has changed of an object.
pub(crate) struct DirtyBlocks {
    freed: Vec<std::ops::Range<u64>>,
    /// Ascending.
    blocks: Vec<u64>,
}

impl Node {
    /// What the txg `txg` has changed; nothing if the same txg has destroyed the object. Blocks are packed by `jobs` that are added:
    /// as `packer` packs records, or leaves, of which this object has either.
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
            self.objset.store.cache().sub_dirty(pending.dirty_bytes);
            return None;
        }
        let pending = &state.pending[(txg & 1) as usize];
        debug_assert_eq!(pending.txg, txg, "the object was listed by this txg");
        let mut contents: Vec<_> = pending
            .blocks
            .iter()
            .filter_map(|(block, slot)| match slot {
                DirtySlot::Dirty(content) => Some((*block, Arc::clone(content))),
                DirtySlot::Written(_) => None,
            })
            .collect();
        let freed = pending.freed.clone();
        drop(state);
        contents.sort_unstable_by_key(|(block, _)| *block);
        let blocks = contents.iter().map(|(block, _)| *block).collect();
        let pack = self.pack();
        jobs.extend(contents.into_iter().map(|(_, content)| {
            let packer = packer.clone();
            PackJob { bytes: content.len(), work: Box::new(move || pack(&packer, content)) }
        }));
        Some(DirtyBlocks { freed, blocks })
    }

    /// Writes what the txg of `ctx` has changed, and returns what the dnode has to say then.
    ///
    /// `packing` has its blocks next. `data` is how records are written, `metadata` how leaves and indirect blocks are.
    pub(crate) fn sync(
        self: &Arc<Self>,
        ctx: &mut SyncContext<'_>,
        work: DirtyBlocks,
        packing: &mut Packing<'_>,
        (data, metadata): (&WriteProps, &WriteProps),
    ) -> Result<DataFields> {
        let props = match self.kind {
            ObjectKind::Zap => {
                // Who inserts into a leaf has looked at it: its new version is no candidate.
                let cache = Some(self.attributes().again());
                WriteProps { kind: BlockKind::ZapLeaf, level: 0, fill: 1, cache, ..*metadata }
            }
            _ => {
                let cache = Some(self.attributes());
                WriteProps { kind: BlockKind::Data, level: 0, fill: 1, cache, ..*data }
            }
        };
        let mut written = Vec::with_capacity(work.blocks.len());
        for block in work.blocks {
            let packed = match packing.next().expect("each block is packed") {
                // Others were being packed at the same time, and wanted memory too.
                Err(error) if error.kind() == ErrorKind::NoMemory => {
                    self.pack_again(ctx.txg, block, &ctx.store.packer(&props), error)
                }
                packed => packed,
            };
            let ptr = packed.and_then(|packed| match packed {
                Some(packed) => self.write_packed(ctx, block, packed, &props),
                None => Ok(BlockPtrPhys::HOLE),
            });
            let ptr = ptr.map_err(|error| self.naming(block, error))?;
            self.settle(ctx, block, ptr);
            written.push(PointerChange { block, ptr });
        }
        let old = self.lock().tree;
        let changes = TreeChanges { freed: &work.freed, written: &written };
        let tree = tree::update(ctx, &old, changes, metadata)?;
        let cost = ctx.take_allocated();
        let mut state = self.lock();
        state.tree = tree;
        state.pins.clear();
        state.allocated = state.allocated.saturating_add_signed(cost);
        let pending = std::mem::take(&mut state.pending[(ctx.txg & 1) as usize]);
        // A later txg may have changed the length already; this one's is what belongs to its blocks.
        let size = pending.size.unwrap_or(state.synced_size);
        state.synced_size = size;
        state.synced_entries = pending.entries.or(state.synced_entries);
        let (allocated, entries) = (state.allocated, pending.entries);
        drop(state);
        self.objset.store.cache().sub_dirty(pending.dirty_bytes);
        Ok(DataFields { tree, size, allocated, entries })
    }

    /// How its blocks are packed.
    fn pack(&self) -> fn(&Packer, Arc<Buffer>) -> Result<Option<Packed>> {
        match self.kind {
            ObjectKind::Zap => pack_leaf,
            _ => pack_record,
        }
    }

    /// Packs a block of a txg, of which it was told before that it cannot be.
    fn pack_again(
        &self,
        txg: u64,
        block: u64,
        packer: &Packer,
        error: Error,
    ) -> Result<Option<Packed>> {
        let content = match self.lock().pending[(txg & 1) as usize].blocks.get(&block) {
            Some(DirtySlot::Dirty(content)) => Arc::clone(content),
            _ => return Err(error),
        };
        self.pack()(packer, content)
    }

    /// Writes a block that is packed.
    fn write_packed(
        &self,
        ctx: &mut SyncContext<'_>,
        block: u64,
        packed: Packed,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let Packed { content, sealed } = packed;
        let content = match content {
            Content::Own(content) => return ctx.write_sealed(content, sealed, props),
            Content::Shared(content) => content,
        };
        let placed = ctx.store.place(&sealed, &content, props, ctx.space)?;
        let ptr = placed.bp;
        ctx.born(&ptr);
        // The buffer itself goes into the cache; who reads the block meanwhile waits for the lock.
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
        ctx.store.submit(placed, WritePayload::new(sealed, held));
        Ok(ptr)
    }

    /// The block is written: who reads it follows its pointer from now on. Its buffer goes now rather than at the
    /// end of the txg.
    fn settle(&self, ctx: &SyncContext<'_>, block: u64, ptr: BlockPtrPhys) {
        let mut state = self.lock();
        let pending = &mut state.pending[(ctx.txg & 1) as usize];
        let Some(slot) = pending.blocks.get_mut(&block) else { return };
        let old = std::mem::replace(slot, DirtySlot::Written(ptr));
        if let DirtySlot::Dirty(buffer) = old {
            let bytes = buffer.footprint() as u64;
            pending.dirty_bytes -= bytes;
            drop(state);
            self.objset.store.cache().sub_dirty(bytes);
        }
    }
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

/// A record without the zeros at its end; nothing if it has nothing else.
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

/// Length without zeros at the end, in multiples of [`TRIM_BYTES`] unless the content itself is shorter.
fn trimmed_len(content: &[u8]) -> usize {
    let used = content.chunks(TRIM_BYTES).rposition(|chunk| chunk.iter().any(|byte| *byte != 0));
    used.map_or(0, |last| ((last + 1) * TRIM_BYTES).min(content.len()))
}
