//! Writes blocks of the syncing txg to other places, because writes to their places failed.
//!
//! A block that a txg has written is found from the root: all blocks above it are of the same txg.
//! So this walks the blocks of the txg only, writes those that failed and all above them anew, and
//! frees their old places. Their content is in memory until a flush covers it.
//!
//! Readers may use an old pointer until the next txg begins. They find the content in memory
//! ([`Store::replaced`](crate::store::Store::replaced)).

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::Ordering;
use forebay_cache::Attributes;
use zerocopy::IntoBytes;

use super::dnodes::{dnode_at, put_dnode};
use super::{Objset, Weak, shard_of};
use crate::error::Result;
use crate::format::{BlockKind, BlockPtrPhys, Compression, DNODES_PER_BLOCK, ObjsetPhys};
use crate::object::DataFields;
use crate::object::tree::{self, Tree};
use crate::store::WriteProps;
use crate::store::barrier::FailedBlocks;
use crate::sync_context::SyncContext;

/// An object whose tree has changed.
struct MovedObject {
    number: u64,
    created_txg: u64,
    old: Tree,
    new: Tree,
    /// Change of its allocated bytes.
    cost: i64,
}

/// Makes new content of a level-0 block, given its number; `None` if nothing changes.
type Inner<'a> = dyn FnMut(&mut SyncContext<'_>, u64, &[u8]) -> Result<Option<Buffer>> + 'a;

impl Objset {
    /// Writes the blocks elsewhere that failed in the txg of `ctx`. Returns `None` if this objset
    /// has none of them.
    pub(crate) fn relocate(
        &self,
        ctx: &mut SyncContext<'_>,
        failed: &FailedBlocks,
    ) -> Result<Option<ObjsetPhys>> {
        let mut ctx = ctx.with_store(&self.io.store);
        let old = self.tree();
        let mut moved = Vec::new();
        let root = rewrite(&mut ctx, &old.root, 0, failed, &mut |ctx, block, content| {
            move_objects(ctx, block, content, failed, &mut moved)
        })?;
        if root == old.root {
            return Ok(None);
        }
        let cost = moved.iter().map(|object| object.cost).sum::<i64>() + ctx.take_allocated();
        // Objects that are opened from now on have their new trees.
        *self.tree.lock() = Tree { root, ..old };
        moved.iter().for_each(|object| self.install(object));
        let allocated = self.allocated_bytes().saturating_add_signed(cost);
        self.allocated.store(allocated, Ordering::Relaxed);
        Ok(Some(self.phys()))
    }

    /// Replaces the tree of an object that is open.
    fn install(&self, moved: &MovedObject) {
        let node =
            self.nodes[shard_of(moved.number)].lock().get(&moved.number).and_then(Weak::upgrade);
        let Some(node) = node.filter(|node| node.created_txg == moved.created_txg) else { return };
        let mut state = node.lock();
        if state.tree.root == moved.old.root {
            state.tree = moved.new;
            state.pins.clear();
            state.allocated = state.allocated.saturating_add_signed(moved.cost);
        }
    }
}

/// Moves the blocks of the objects of a block of dnodes.
fn move_objects(
    ctx: &mut SyncContext<'_>,
    block: u64,
    content: &[u8],
    failed: &FailedBlocks,
    moved: &mut Vec<MovedObject>,
) -> Result<Option<Buffer>> {
    let above = ctx.take_allocated();
    let mut new_content = None;
    for index in 0..DNODES_PER_BLOCK {
        let Some(mut dnode) = dnode_at(content, index).filter(|dnode| dnode.kind != 0) else {
            continue;
        };
        let Ok(old) = DataFields::tree_of(&dnode) else { continue };
        let root = rewrite(ctx, &old.root, 0, failed, &mut |_, _, _| Ok(None))?;
        let cost = ctx.take_allocated();
        if root == old.root {
            continue;
        }
        let new = Tree { root, ..old };
        let number = block * DNODES_PER_BLOCK as u64 + index as u64;
        let created_txg = dnode.created_txg.get();
        moved.push(MovedObject { number, created_txg, old, new, cost });
        dnode.root = root;
        let allocated = dnode.allocated_bytes.get().saturating_add_signed(cost);
        dnode.allocated_bytes = allocated.into();
        if new_content.is_none() {
            new_content = Some(copy_of(ctx, content)?);
        }
        if let Some(new_content) = &mut new_content {
            put_dnode(new_content, index, &dnode);
        }
    }
    ctx.add_allocated(above);
    Ok(new_content)
}

/// Returns the new pointer of a block: the same if neither it nor a block beneath it has failed.
/// `first` is the number of the first block beneath it.
fn rewrite(
    ctx: &mut SyncContext<'_>,
    ptr: &BlockPtrPhys,
    first: u64,
    failed: &FailedBlocks,
    inner: &mut Inner<'_>,
) -> Result<BlockPtrPhys> {
    if ptr.is_hole() || ptr.birth_txg.get() != ctx.txg {
        return Ok(*ptr);
    }
    let has_failed = ptr.copies[0].get().is_some_and(|dva| failed.contains(dva));
    let holds_pointers = ptr.level > 0 || ptr.block_kind() == Some(BlockKind::Dnode);
    if !has_failed && !holds_pointers {
        return Ok(*ptr);
    }
    let attributes = match ptr.block_kind() {
        Some(BlockKind::Data) => Attributes::DATA,
        _ => Attributes::METADATA,
    };
    let content = ctx.repeat(|| ctx.store.read(ptr, attributes))?;
    let changed = match ptr.level {
        0 => inner(ctx, first, &content)?,
        _ => rewrite_children(ctx, ptr, (first, &content), failed, inner)?,
    };
    let changed = match changed {
        None if has_failed => Some(copy_of(ctx, &content)?),
        changed => changed,
    };
    drop(content);
    let Some(changed) = changed else { return Ok(*ptr) };
    let props = WriteProps {
        kind: ptr.block_kind().unwrap_or(BlockKind::Data),
        level: ptr.level,
        compression: Compression::from_raw(ptr.compression).unwrap_or(Compression::Off),
        copies: ptr.copy_count(),
        txg: ctx.txg,
        fill: ptr.fill.get(),
        cache: Some(attributes),
    };
    let new = ctx.write_new(changed, &props)?;
    ctx.free_unwritten(ptr)?;
    Ok(new)
}

/// Returns the new content of an indirect block, if it changes.
fn rewrite_children(
    ctx: &mut SyncContext<'_>,
    ptr: &BlockPtrPhys,
    (first, content): (u64, &[u8]),
    failed: &FailedBlocks,
    inner: &mut Inner<'_>,
) -> Result<Option<Buffer>> {
    let mut children = tree::children(ptr, content)?;
    let mut changed = false;
    for (index, child) in children.iter_mut().enumerate() {
        let first = first + index as u64 * tree::capacity(ptr.level);
        let new = rewrite(ctx, child, first, failed, inner)?;
        changed |= new != *child;
        *child = new;
    }
    if !changed {
        return Ok(None);
    }
    copy_of(ctx, children.as_bytes()).map(Some)
}

fn copy_of(ctx: &SyncContext<'_>, content: &[u8]) -> Result<Buffer> {
    let mut copy = ctx.repeat(|| ctx.store.cache().alloc(content.len()))?;
    copy.copy_from_slice(content);
    Ok(copy)
}
