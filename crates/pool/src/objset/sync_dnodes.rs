//! Writes the changes of an objset, in syncing context.

use forebay_base::arena::Buffer;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::Attributes;

use crate::block_label::DNODE_BLOCKS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BlockKind, BlockPtrPhys, DNODE_BLOCK_BYTES, DNODES_PER_BLOCK, DnodePhys, ObjectKind, ObjsetPhys,
};
use crate::object::tree::{self, PointerChange, TreeChanges};
use crate::object::{DataFields, Node};
use crate::store::WriteProps;
use crate::sync_context::SyncContext;
use crate::wait::Wait;

use super::dnodes::{DirtyDnodeSnapshot, dnode_at, position_of, put_dnode};
use super::{Objset, WriteSettings};

/// An object whose blocks are written.
struct Synced {
    number: u64,
    created_txg: u64,
    data: DataFields,
}

impl Objset {
    /// Writes the changes of the txg of `ctx`. Returns `None` if there are none.
    pub(crate) fn sync(self: &Arc<Self>, ctx: &mut SyncContext<'_>) -> Result<Option<ObjsetPhys>> {
        let mut ctx = ctx.with_store(&self.io.store);
        let settings = self.settings.lock().of_txg(ctx.txg);
        let (data, metadata) = settings.props(ctx.txg);
        let nodes = self.take_dirty(ctx.txg);
        let synced = self.sync_nodes(&mut ctx, (&data, &metadata), &nodes);
        if synced.is_err() {
            // The pool is suspended. Readers still find the changes of these nodes.
            self.dirty[(ctx.txg & 1) as usize][0].lock().extend(nodes);
        }
        synced
    }

    fn sync_nodes(
        &self,
        ctx: &mut SyncContext<'_>,
        (data, metadata): (&WriteProps, &WriteProps),
        nodes: &[Arc<Node>],
    ) -> Result<Option<ObjsetPhys>> {
        let mut dirty_blocks = self.dnodes.of_txg(ctx.txg);
        if nodes.is_empty() && dirty_blocks.is_empty() {
            self.dnodes.drop_txg(ctx.txg);
            return Ok(None);
        }
        let mut cost = 0i64;
        let mut fields = Vec::with_capacity(nodes.len());
        let (data_packer, metadata_packer) =
            (self.io.store.packer(data), self.io.store.packer(metadata));
        let mut jobs = Vec::new();
        let work: Vec<_> = nodes
            .iter()
            .filter_map(|node| {
                let packer = match node.kind {
                    ObjectKind::Zap => &metadata_packer,
                    _ => &data_packer,
                };
                Some((node, node.take_dirty_blocks(ctx.txg, packer, &mut jobs)?))
            })
            .collect();
        let mut packing = self.io.store.pack(jobs);
        for (node, work) in work {
            let before = node.lock().allocated;
            let synced = node.sync(ctx, work, &mut packing, (data, metadata))?;
            let change = (synced.allocated as i64).saturating_sub(before as i64);
            cost = cost.saturating_add(change);
            fields.push(Synced {
                number: node.number,
                created_txg: node.created_txg,
                data: synced,
            });
        }
        drop(packing);
        add_blocks_of(&fields, &mut dirty_blocks);
        ctx.repeat(|| self.read_ahead(&dirty_blocks))?;
        let old = self.tree();
        let mut written = Vec::with_capacity(dirty_blocks.len());
        let mut objects = 0i64;
        let mut fields = fields.as_slice();
        for dirty in &dirty_blocks {
            let own = fields.partition_point(|synced| position_of(synced.number).0 == dirty.block);
            let (of_block, rest) = fields.split_at(own);
            fields = rest;
            let (ptr, delta) = self.write_block(ctx, &old, dirty, of_block, metadata)?;
            objects += delta;
            written.push(PointerChange { block: dirty.block, ptr });
        }
        let changes = TreeChanges::written(&written);
        self.replaces_tree.store(true, Ordering::SeqCst);
        let updated = tree::update(ctx, &old, changes, metadata).map(|new| *self.tree.lock() = new);
        self.replaces_tree.store(false, Ordering::SeqCst);
        updated?;
        cost = cost.saturating_add(ctx.take_allocated());
        let bytes = self.dnodes.drop_txg(ctx.txg);
        self.io.store.cache().sub_dirty(bytes);
        self.objects.store(self.objects().saturating_add_signed(objects), Ordering::Relaxed);
        let allocated = self.allocated_bytes().saturating_add_signed(cost);
        self.allocated.store(allocated, Ordering::Relaxed);
        Ok(Some(self.phys()))
    }

    /// The objset in the newest synced txg.
    pub(crate) fn phys(&self) -> ObjsetPhys {
        let tree = self.tree();
        ObjsetPhys {
            root: tree.root,
            blocks: tree.blocks.into(),
            objects: self.objects().into(),
            allocated_bytes: self.allocated_bytes().into(),
            levels: tree.levels,
            reserved: [0; 7],
        }
    }

    fn take_dirty(&self, txg: u64) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        for shard in &self.dirty[(txg & 1) as usize] {
            nodes.append(&mut shard.lock());
        }
        nodes.sort_unstable_by_key(|node| node.number);
        nodes
    }

    /// Prefetches all blocks that must be read.
    fn read_ahead(&self, dirty_blocks: &[DirtyDnodeSnapshot]) -> Result<()> {
        let tree = self.tree();
        for dirty in dirty_blocks.iter().filter(|dirty| dirty.changed != u32::MAX) {
            let ptr = tree::lookup(&self.io.store, &tree, dirty.block, Wait::Allowed)?;
            if !ptr.is_hole() {
                self.io.store.prefetch(&ptr, DNODE_BLOCKS, Box::new(|_| {}));
            }
        }
        Ok(())
    }

    /// Rewrites one block of dnodes. Returns its pointer and the change of its object count.
    fn write_block(
        &self,
        ctx: &mut SyncContext<'_>,
        tree: &tree::Tree,
        dirty: &DirtyDnodeSnapshot,
        fields: &[Synced],
        props: &WriteProps,
    ) -> Result<(BlockPtrPhys, i64)> {
        let mut block = ctx.repeat(|| self.io.store.cache().alloc(DNODE_BLOCK_BYTES))?;
        match ctx.repeat(|| self.stored_block_of(tree, dirty.block, Wait::Allowed))? {
            Some(stored) => block.copy_from_slice(&stored),
            None => block.fill(0),
        }
        let before = fill_of(&block);
        self.apply(ctx, &mut block, dirty)?;
        for synced in fields {
            let (_, index) = position_of(synced.number);
            let mut dnode = dnode_at(&block, index).unwrap_or(DnodePhys::FREE);
            if dnode.kind == 0 || dnode.created_txg.get() != synced.created_txg {
                // Destruction waits for changes of the object, and a destroyed object cannot be
                // changed.
                debug_assert!(false, "object {} changed while it was destroyed", synced.number);
                let text = format!("object {} changed while it was destroyed", synced.number);
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            synced.data.put(&mut dnode);
            put_dnode(&mut block, index, &dnode);
        }
        let fill = fill_of(&block);
        let delta = fill as i64 - before as i64;
        if fill < DNODES_PER_BLOCK as u64 && fill < before {
            self.numbers.note_free(dirty.block);
        }
        if fill == 0 {
            return Ok((BlockPtrPhys::HOLE, delta));
        }
        let cache = Some(DNODE_BLOCKS);
        let props = WriteProps { kind: BlockKind::Dnode, level: 0, fill, cache, ..*props };
        Ok((ctx.write_new(block, &props)?, delta))
    }

    /// Applies dirty dnodes to a block, and frees the blocks of destroyed objects.
    fn apply(
        &self,
        ctx: &mut SyncContext<'_>,
        block: &mut Buffer,
        dirty: &DirtyDnodeSnapshot,
    ) -> Result<()> {
        let Some(buffer) = &dirty.dnodes else { return Ok(()) };
        for index in (0..DNODES_PER_BLOCK).filter(|index| dirty.changed & 1 << index != 0) {
            let old = dnode_at(block, index).unwrap_or(DnodePhys::FREE);
            let mut new = dnode_at(buffer, index).unwrap_or(DnodePhys::FREE);
            if dirty.reset & 1 << index != 0 {
                match DataFields::tree_of(&old) {
                    Ok(old) => tree::free_tree(ctx, &old.root)?,
                    Err(_) => ctx.leak(),
                }
                DataFields::EMPTY.put(&mut new);
            } else {
                // Copy without validation: an error here would suspend the pool because of one
                // object.
                DataFields::copy_unchecked(&old, &mut new);
            }
            put_dnode(block, index, &new);
        }
        Ok(())
    }
}

impl WriteSettings {
    /// Write properties of records and of metadata in a txg.
    fn props(&self, txg: u64) -> (WriteProps, WriteProps) {
        let metadata = WriteProps {
            kind: BlockKind::Dnode,
            level: 0,
            compression: self.metadata_compression,
            copies: usize::from(self.metadata_copies),
            txg,
            fill: 1,
            cache: Some(Attributes::METADATA),
        };
        let data = WriteProps {
            kind: BlockKind::Data,
            compression: self.data_compression,
            copies: usize::from(self.data_copies),
            cache: Some(Attributes::DATA),
            ..metadata
        };
        (data, metadata)
    }
}

/// Adds the blocks of objects that have new data but no dirty dnode.
fn add_blocks_of(fields: &[Synced], dirty_blocks: &mut Vec<DirtyDnodeSnapshot>) {
    let known = dirty_blocks.len();
    for synced in fields {
        let (block, _) = position_of(synced.number);
        let is_known =
            dirty_blocks[..known].binary_search_by_key(&block, |dirty| dirty.block).is_ok();
        let is_last = dirty_blocks
            .last()
            .is_some_and(|last| dirty_blocks.len() > known && last.block == block);
        if !is_known && !is_last {
            dirty_blocks.push(DirtyDnodeSnapshot { block, changed: 0, reset: 0, dnodes: None });
        }
    }
    dirty_blocks.sort_unstable_by_key(|dirty| dirty.block);
}

/// Number of dnodes in use.
fn fill_of(block: &[u8]) -> u64 {
    let used = |index: &usize| dnode_at(block, *index).is_some_and(|dnode| dnode.kind != 0);
    (0..DNODES_PER_BLOCK).filter(used).count() as u64
}
