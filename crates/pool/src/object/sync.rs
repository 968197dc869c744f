//! Writing an object's changes out, in syncing context.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;

use crate::error::Result;
use crate::format::{BlockKind, BlockPtrPhys, ObjectKind};
use crate::store::{WritePayload, WriteProps};
use crate::sync::SyncContext;
use crate::zap;

use super::node::{DataFields, Node};
use super::pending::Slot;
use super::tree::{self, Change, Changes};

/// Blocks are trimmed to multiples of this many bytes.
const TRIM_BYTES: usize = 512;

/// What a group has changed of an object.
struct Work {
    freed: Vec<std::ops::Range<u64>>,
    blocks: Vec<(u64, Arc<Buffer>)>,
}

impl Node {
    /// Writes what the group of `ctx` has changed, and returns what the dnode has to say then; nothing if the
    /// same group has destroyed the object.
    ///
    /// `data` is how records are written, `metadata` how leaves and indirect blocks are.
    pub(crate) fn sync(
        self: &Arc<Self>,
        ctx: &mut SyncContext<'_>,
        data: &WriteProps,
        metadata: &WriteProps,
    ) -> Result<Option<DataFields>> {
        let Some(work) = self.take_work(ctx.txg) else { return Ok(None) };
        let mut written = Vec::with_capacity(work.blocks.len());
        for (block, content) in work.blocks {
            let ptr = match self.kind {
                ObjectKind::Zap => self.write_leaf(ctx, content, metadata),
                _ => self.write_record(ctx, block, content, data),
            };
            let ptr = ptr.map_err(|error| self.naming(block, error))?;
            self.settle(ctx, block, ptr);
            written.push(Change { block, ptr });
        }
        let old = self.lock().tree;
        let changes = Changes { freed: &work.freed, written: &written };
        let tree = tree::update(ctx, &old, changes, metadata)?;
        let cost = ctx.take_allocated();
        let mut state = self.lock();
        state.tree = tree;
        state.pins.clear();
        state.allocated = state.allocated.saturating_add_signed(cost);
        let pending = std::mem::take(&mut state.pending[(ctx.txg & 1) as usize]);
        // A later group may have changed the length already; this one's is what belongs to its blocks.
        let size = pending.size.unwrap_or(state.synced_size);
        state.synced_size = size;
        state.synced_entries = pending.entries.or(state.synced_entries);
        let (allocated, entries) = (state.allocated, pending.entries);
        drop(state);
        self.objset.store.cache().sub_dirty(pending.dirty_bytes);
        Ok(Some(DataFields { tree, size, allocated, entries }))
    }

    fn take_work(&self, txg: u64) -> Option<Work> {
        let mut state = self.lock();
        if state.destroyed == Some(txg) {
            let pending = std::mem::take(&mut state.pending[(txg & 1) as usize]);
            drop(state);
            self.objset.store.cache().sub_dirty(pending.dirty_bytes);
            return None;
        }
        let pending = &state.pending[(txg & 1) as usize];
        debug_assert_eq!(pending.txg, txg, "the object was listed by this group");
        let mut blocks: Vec<_> = pending
            .blocks
            .iter()
            .filter_map(|(block, slot)| match slot {
                Slot::Dirty(content) => Some((*block, Arc::clone(content))),
                Slot::Written(_) => None,
            })
            .collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        Some(Work { freed: pending.freed.clone(), blocks })
    }

    fn write_record(
        &self,
        ctx: &mut SyncContext<'_>,
        block: u64,
        content: Arc<Buffer>,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let len = trimmed_len(&content);
        if len == 0 {
            return Ok(BlockPtrPhys::HOLE);
        }
        let cache = Some(self.attributes());
        let props = WriteProps { kind: BlockKind::Data, level: 0, fill: 1, cache, ..*props };
        if len < content.len() {
            let mut copy = ctx.store.cache().alloc(len)?;
            copy.copy_from_slice(&content[..len]);
            return ctx.write_new(copy, &props);
        }
        let sealed = ctx.store.seal(&content, &props)?;
        let placed = ctx.store.place(&sealed, &content, &props, ctx.space)?;
        let ptr = placed.bp;
        ctx.born(&ptr);
        // The buffer itself goes into the cache; who reads the block meanwhile waits for the lock.
        let mut state = self.lock();
        let pending = &mut state.pending[(ctx.txg & 1) as usize];
        let held = match pending.blocks.remove(&block) {
            Some(Slot::Dirty(buffer)) => {
                drop(content);
                let bytes = buffer.footprint() as u64;
                pending.dirty_bytes -= bytes;
                ctx.store.cache().sub_dirty(bytes);
                match Arc::try_unwrap(buffer) {
                    Ok(buffer) => ctx.store.hold(&ptr, buffer, cache),
                    Err(shared) => ctx.store.hold_shared(&ptr, shared),
                }
            }
            _ => ctx.store.hold_shared(&ptr, content),
        };
        pending.blocks.insert(block, Slot::Written(ptr));
        drop(state);
        ctx.store.submit(placed, WritePayload::new(sealed, held));
        Ok(ptr)
    }

    fn write_leaf(
        &self,
        ctx: &mut SyncContext<'_>,
        content: Arc<Buffer>,
        props: &WriteProps,
    ) -> Result<BlockPtrPhys> {
        let mut full = ctx.store.cache().alloc(content.len())?;
        full.copy_from_slice(&content);
        drop(content);
        let len = zap::pack(&mut full);
        let mut leaf = ctx.store.cache().alloc(len)?;
        leaf.copy_from_slice(&full[..len]);
        // Who inserts into a leaf has looked at it: its new version is no newcomer.
        let cache = Some(self.attributes().again());
        ctx.write_new(
            leaf,
            &WriteProps { kind: BlockKind::ZapLeaf, level: 0, fill: 1, cache, ..*props },
        )
    }

    /// The block is written: who reads it follows its pointer from now on. Its buffer goes now rather than at the
    /// end of the group.
    fn settle(&self, ctx: &SyncContext<'_>, block: u64, ptr: BlockPtrPhys) {
        let mut state = self.lock();
        let pending = &mut state.pending[(ctx.txg & 1) as usize];
        let Some(slot) = pending.blocks.get_mut(&block) else { return };
        let old = std::mem::replace(slot, Slot::Written(ptr));
        if let Slot::Dirty(buffer) = old {
            let bytes = buffer.footprint() as u64;
            pending.dirty_bytes -= bytes;
            drop(state);
            self.objset.store.cache().sub_dirty(bytes);
        }
    }
}

/// Length without zeros at the end, in multiples of [`TRIM_BYTES`] unless the content itself is shorter.
fn trimmed_len(content: &[u8]) -> usize {
    let used = content.chunks(TRIM_BYTES).rposition(|chunk| chunk.iter().any(|byte| *byte != 0));
    used.map_or(0, |last| ((last + 1) * TRIM_BYTES).min(content.len()))
}
