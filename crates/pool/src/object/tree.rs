//! Trees of blocks: how an object's block numbers become block pointers.
//!
//! A [`Tree`] is a value: a root, its height, and the number of blocks before the end. Nothing in it ever
//! changes; [`update`] makes a new tree out of an old one and a list of changes, writing new indirect blocks
//! on the way and freeing what the new tree does not share.
//!
//! An indirect block holds [`POINTERS`] block pointers. It is stored without the holes at its end.
//! Reading takes no lock here. Updating happens in syncing context only.

use std::ops::Range;

use forebay_base::arena::Buffer;
use forebay_cache::Attributes;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys};
use crate::store::{Store, WriteProps};
use crate::sync_context::SyncContext;

/// Bytes of a full indirect block.
pub(crate) const INDIRECT_BYTES: usize = 32 << 10;
/// Pointers in an indirect block, as a power of two.
pub(crate) const POINTERS_SHIFT: u32 = 9;
/// Pointers in an indirect block.
pub(crate) const POINTERS: usize = 1 << POINTERS_SHIFT;
/// Blocks are numbered below this: seven levels of indirect blocks, and never a shift too far.
pub(crate) const BLOCKS_MAX: u64 = 1 << (7 * POINTERS_SHIFT - 1);
const LEVELS_MAX: u8 = 8;
/// Indirect blocks are trimmed to multiples of this many bytes.
const TRIM_BYTES: usize = 512;

const _: () = assert!(POINTERS * size_of::<BlockPtrPhys>() == INDIRECT_BYTES);

/// A tree of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    /// Points to the only block (one level), to an indirect block (more), or nowhere.
    pub(crate) root: BlockPtrPhys,
    /// 0: empty. 1: `root` is block 0. More: that many less one levels of indirect blocks.
    pub(crate) levels: u8,
    /// One more than the number of the last block that is no hole, at least.
    pub(crate) blocks: u64,
}

impl Tree {
    /// A tree of holes.
    pub(crate) const EMPTY: Self = Self { root: BlockPtrPhys::HOLE, levels: 0, blocks: 0 };

    /// A tree as it was found on a device.
    ///
    /// # Errors
    /// When the numbers contradict each other.
    pub(crate) fn from_parts(root: BlockPtrPhys, levels: u8, blocks: u64) -> Result<Self> {
        let height_fits = levels <= LEVELS_MAX && blocks <= capacity(levels);
        let root_fits = root.is_hole() || (levels > 0 && root.level == levels - 1);
        if blocks > BLOCKS_MAX || !height_fits || !root_fits {
            let text =
                format!("a tree of {levels} levels and {blocks} blocks has the root {root:?}");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Self { root, levels, blocks })
    }

    /// Number of the indirect block of the lowest level that points to `block`.
    pub(crate) fn parent_of(block: u64) -> u64 {
        block >> POINTERS_SHIFT
    }
}

/// Blocks that a tree of that height can have.
pub(crate) const fn capacity(levels: u8) -> u64 {
    match levels {
        0 => 0,
        1..=8 => 1 << ((levels - 1) as u32 * POINTERS_SHIFT),
        _ => u64::MAX,
    }
}

/// Levels that a tree with a block of that number has at least.
pub(crate) fn levels_for(block: u64) -> u8 {
    let mut levels = 1;
    while capacity(levels) <= block {
        levels += 1;
    }
    levels
}

/// Blocks beneath one pointer of a block at `level`.
fn span(level: u8) -> u64 {
    capacity(level)
}

/// The pointers of an indirect block that `parent` points to.
///
/// # Errors
/// When the block is no such thing: it is not of that kind and height, or too long.
pub(crate) fn pointers<'a>(parent: &BlockPtrPhys, content: &'a [u8]) -> Result<&'a [BlockPtrPhys]> {
    let right = parent.block_kind() == Some(BlockKind::Indirect) && content.len() <= INDIRECT_BYTES;
    let found = if right { <[BlockPtrPhys]>::ref_from_bytes(content).ok() } else { None };
    found.ok_or_else(|| misplaced(parent, "an indirect block"))
}

fn misplaced(ptr: &BlockPtrPhys, wanted: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{wanted} was expected where {ptr:?} is"))
}

/// The pointer at `index`, checked to be of the level below.
fn child(parent: &BlockPtrPhys, pointers: &[BlockPtrPhys], index: usize) -> Result<BlockPtrPhys> {
    let child = pointers.get(index).copied().unwrap_or(BlockPtrPhys::HOLE);
    if !child.is_hole() && child.level.wrapping_add(1) != parent.level {
        return Err(misplaced(&child, "a pointer of the level below"));
    }
    Ok(child)
}

/// The pointer of the indirect block of level 1 that covers `block`; a hole if there is none. For trees of
/// two levels or more. Reads what is above it.
pub(crate) fn lowest_indirect(store: &Store, tree: &Tree, block: u64) -> Result<BlockPtrPhys> {
    descend(store, tree, block, 1)
}

/// The pointer of `block`; a hole if there is none. Reads all indirect blocks on the way.
pub(crate) fn lookup(store: &Store, tree: &Tree, block: u64) -> Result<BlockPtrPhys> {
    descend(store, tree, block, 0)
}

/// The pointer of the block at level `down_to` that leads to `block`, or is it; a hole if there is none. Reads all indirect blocks on the way.
pub(crate) fn descend(store: &Store, tree: &Tree, block: u64, down_to: u8) -> Result<BlockPtrPhys> {
    if block >= capacity(tree.levels) {
        return Ok(BlockPtrPhys::HOLE);
    }
    let mut ptr = tree.root;
    while !ptr.is_hole() && ptr.level > down_to {
        let content = store.read(&ptr, Attributes::METADATA)?;
        let index = (block / span(ptr.level)) as usize % POINTERS;
        ptr = child(&ptr, pointers(&ptr, &content)?, index)?;
    }
    Ok(ptr)
}

/// The highest indirect block on the way to `block` that is not in memory, if one is not.
pub(crate) fn missing_above(
    store: &Store,
    tree: &Tree,
    block: u64,
) -> Result<Option<BlockPtrPhys>> {
    if block >= capacity(tree.levels) {
        return Ok(None);
    }
    let mut ptr = tree.root;
    while !ptr.is_hole() && ptr.level > 0 {
        let Some(content) = store.peek(&ptr) else { return Ok(Some(ptr)) };
        let index = (block / span(ptr.level)) as usize % POINTERS;
        ptr = child(&ptr, pointers(&ptr, &content)?, index)?;
    }
    Ok(None)
}

/// What somebody looks for in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeekTarget {
    Data,
    Hole,
}

/// The first block of a range that is data, or a hole. Reads indirect blocks on the way, but for those that have none
/// of it.
pub(crate) fn seek(
    store: &Store,
    tree: &Tree,
    range: Range<u64>,
    wanted: SeekTarget,
) -> Result<Option<u64>> {
    let capacity = capacity(tree.levels);
    if range.start < range.end.min(capacity) {
        let inside = range.start..range.end.min(capacity);
        let found = seek_beneath(store, &tree.root, (tree.levels - 1, 0), &inside, wanted)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    let behind = range.start.max(capacity);
    Ok((wanted == SeekTarget::Hole && behind < range.end).then_some(behind))
}

/// The same beneath a pointer at `level`, whose first block is `first`.
fn seek_beneath(
    store: &Store,
    ptr: &BlockPtrPhys,
    (level, first): (u8, u64),
    range: &Range<u64>,
    wanted: SeekTarget,
) -> Result<Option<u64>> {
    if ptr.is_hole() || level == 0 {
        let is_hole = ptr.is_hole();
        return Ok((is_hole == (wanted == SeekTarget::Hole)).then_some(first.max(range.start)));
    }
    if wanted == SeekTarget::Hole && ptr.fill.get() == capacity(level + 1) {
        return Ok(None);
    }
    let content = store.read(ptr, Attributes::METADATA)?;
    let found = pointers(ptr, &content)?;
    let from = (range.start.saturating_sub(first) / span(level)) as usize;
    for index in from..POINTERS {
        let first = first + index as u64 * span(level);
        if first >= range.end || (wanted == SeekTarget::Data && index >= found.len()) {
            break;
        }
        let below = child(ptr, found, index)?;
        let hit = seek_beneath(store, &below, (level - 1, first), range, wanted)?;
        if hit.is_some() {
            return Ok(hit);
        }
    }
    Ok(None)
}

/// One block's new pointer; a hole frees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerChange {
    pub(crate) block: u64,
    pub(crate) ptr: BlockPtrPhys,
}

/// What is to happen to a tree: first `freed`, then `written`. Both ascending, without overlaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeChanges<'a> {
    pub(crate) freed: &'a [Range<u64>],
    pub(crate) written: &'a [PointerChange],
}

impl<'a> TreeChanges<'a> {
    fn within(self, range: &Range<u64>) -> Self {
        let first = self.written.partition_point(|change| change.block < range.start);
        let end = self.written.partition_point(|change| change.block < range.end);
        let from = self.freed.partition_point(|freed| freed.end <= range.start);
        let to = self.freed.partition_point(|freed| freed.start < range.end);
        Self { freed: &self.freed[from..to.max(from)], written: &self.written[first..end] }
    }

    fn is_empty(self) -> bool {
        self.freed.is_empty() && self.written.is_empty()
    }

    /// Whether one freed range covers all of `range`.
    fn frees_all_of(self, range: &Range<u64>) -> bool {
        self.freed.iter().any(|freed| freed.start <= range.start && range.end <= freed.end)
    }
}

/// The tree after `changes`. `props` says how its indirect blocks are written (kind, level and fill are set
/// here).
pub(crate) fn update(
    ctx: &mut SyncContext<'_>,
    tree: &Tree,
    changes: TreeChanges<'_>,
    props: &WriteProps,
) -> Result<Tree> {
    let blocks = blocks_after(tree, changes);
    let mut levels = tree.levels;
    while capacity(levels) < blocks {
        levels += 1;
    }
    assert!(levels <= LEVELS_MAX, "block numbers are bounded");
    if levels == 0 {
        return Ok(Tree::EMPTY);
    }
    let old = Subtree { ptr: tree.root, levels: tree.levels };
    let root = rewrite(ctx, old, (levels - 1, 0), changes, props)?;
    if root.is_hole() {
        return Ok(Tree { root, levels: 0, blocks: 0 });
    }
    Ok(Tree { root, levels, blocks })
}

/// One more than the last block that can be there afterwards.
fn blocks_after(tree: &Tree, changes: TreeChanges<'_>) -> u64 {
    let mut blocks = tree.blocks;
    if let Some(freed) = changes.freed.last()
        && freed.end >= blocks
    {
        blocks = blocks.min(freed.start);
    }
    let last = changes.written.iter().rev().find(|change| !change.ptr.is_hole());
    blocks.max(last.map_or(0, |change| change.block + 1))
}

/// What lay where a new block goes: a subtree that may be lower than what it becomes, if the tree grows.
#[derive(Clone, Copy)]
struct Subtree {
    ptr: BlockPtrPhys,
    /// Of the whole old tree, as seen from here.
    levels: u8,
}

/// The new pointer at `level` whose first block is `first`.
fn rewrite(
    ctx: &mut SyncContext<'_>,
    old: Subtree,
    (level, first): (u8, u64),
    changes: TreeChanges<'_>,
    props: &WriteProps,
) -> Result<BlockPtrPhys> {
    let range = first..first.saturating_add(capacity(level + 1));
    let changes = changes.within(&range);
    let grows = !old.ptr.is_hole() && old.levels < level + 1;
    if changes.is_empty() && !grows {
        return Ok(old.ptr);
    }
    if old.ptr.is_hole() && changes.written.is_empty() {
        return Ok(old.ptr);
    }
    if level == 0 {
        return rewrite_block(ctx, old.ptr, changes, &range);
    }
    if changes.frees_all_of(&range) && changes.written.is_empty() {
        free_tree(ctx, &old.ptr)?;
        return Ok(BlockPtrPhys::HOLE);
    }
    let mut content = load_indirect(ctx.store, old, level)?;
    for index in touched(changes, level, &range, grows) {
        let (children, _) = <[BlockPtrPhys]>::mut_from_prefix_with_elems(&mut content, POINTERS)
            .map_err(|_| misplaced(&old.ptr, "an indirect block"))?;
        let below = match grows && index == 0 {
            true => old,
            false => Subtree { ptr: children[index], levels: level },
        };
        let child_first = range.start + index as u64 * span(level);
        children[index] = BlockPtrPhys::HOLE;
        let new = rewrite(ctx, below, (level - 1, child_first), changes, props)?;
        let (children, _) = <[BlockPtrPhys]>::mut_from_prefix_with_elems(&mut content, POINTERS)
            .map_err(|_| misplaced(&old.ptr, "an indirect block"))?;
        children[index] = new;
    }
    let mut attributes = Attributes::METADATA;
    if !grows && !old.ptr.is_hole() {
        ctx.free(&old.ptr)?;
        // It was asked for just now: its new version is no candidate.
        attributes = attributes.again();
    }
    let props = WriteProps { cache: Some(attributes), ..*props };
    store_indirect(ctx, content, level, &props)
}

fn rewrite_block(
    ctx: &mut SyncContext<'_>,
    old: BlockPtrPhys,
    changes: TreeChanges<'_>,
    range: &Range<u64>,
) -> Result<BlockPtrPhys> {
    let new = match changes.written.last() {
        Some(change) => change.ptr,
        None if changes.frees_all_of(range) => BlockPtrPhys::HOLE,
        None => return Ok(old),
    };
    if !old.is_hole() {
        ctx.free(&old)?;
    }
    Ok(new)
}

/// A full copy of the indirect block to change.
fn load_indirect(store: &Store, old: Subtree, level: u8) -> Result<Buffer> {
    let mut content = store.cache().alloc_zeroed(INDIRECT_BYTES)?;
    if !old.ptr.is_hole() && old.levels == level + 1 {
        let block = store.read(&old.ptr, Attributes::METADATA)?;
        let found = pointers(&old.ptr, &block)?;
        for index in 0..found.len() {
            child(&old.ptr, found, index)?;
        }
        content[..block.len()].copy_from_slice(&block);
    }
    Ok(content)
}

/// Which children of a block at `level` over `range` have changes.
fn touched(changes: TreeChanges<'_>, level: u8, range: &Range<u64>, grows: bool) -> Vec<usize> {
    let of = |block: u64| ((block - range.start) / span(level)) as usize;
    let mut found: Vec<usize> = changes.written.iter().map(|change| of(change.block)).collect();
    found.dedup();
    for freed in changes.freed {
        let (start, end) = (freed.start.max(range.start), freed.end.min(range.end));
        found.extend(of(start)..=of(end - 1));
    }
    if grows {
        found.push(0);
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn store_indirect(
    ctx: &mut SyncContext<'_>,
    content: Buffer,
    level: u8,
    props: &WriteProps,
) -> Result<BlockPtrPhys> {
    let children = <[BlockPtrPhys]>::ref_from_bytes(&content)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "an indirect block has an odd length"))?;
    let Some(last) = children.iter().rposition(|child| !child.is_hole()) else {
        return Ok(BlockPtrPhys::HOLE);
    };
    let fill = children.iter().map(|child| child.fill.get()).sum();
    let bytes = children[..=last].as_bytes().len().next_multiple_of(TRIM_BYTES);
    let mut trimmed = ctx.store.cache().alloc(bytes)?;
    trimmed.copy_from_slice(&content[..bytes]);
    let props = WriteProps { kind: BlockKind::Indirect, level, fill, ..*props };
    ctx.write_new(trimmed, &props)
}

/// Frees everything beneath a pointer, and what it points to. What cannot be read is not freed, but counted: a bad
/// block must not keep a pool from working.
pub(crate) fn free_tree(ctx: &mut SyncContext<'_>, ptr: &BlockPtrPhys) -> Result<()> {
    if ptr.is_hole() {
        return Ok(());
    }
    if ptr.level > 0 {
        for child in or_leak(ctx, read_children(ctx.store, ptr))?.unwrap_or_default() {
            free_tree(ctx, &child)?;
        }
    }
    let freed = ctx.free(ptr);
    or_leak(ctx, freed).map(|_| ())
}

/// Nothing, and a leak counted, if something was unreadable.
fn or_leak<T>(ctx: &SyncContext<'_>, read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device) => {
            ctx.leak();
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What a walk over a tree's blocks does with each pointer. The number is the first block beneath it.
pub(crate) type Visit<'a, E> = dyn FnMut(&BlockPtrPhys, u64) -> Result<(), E> + 'a;

/// Visits every pointer of a tree that is no hole, parents first, in order, until a visit ends it. A damaged indirect
/// block is given to `damaged`, and what is beneath it left out.
pub(crate) fn walk<E>(
    store: &Store,
    ptr: &BlockPtrPhys,
    first: u64,
    visit: &mut Visit<'_, E>,
    damaged: &mut dyn FnMut(&BlockPtrPhys, u64, Error),
) -> Result<(), E> {
    if ptr.is_hole() {
        return Ok(());
    }
    visit(ptr, first)?;
    if ptr.level == 0 {
        return Ok(());
    }
    let children = read_children(store, ptr);
    let children = match children {
        Ok(children) => children,
        Err(error) => {
            damaged(ptr, first, error);
            return Ok(());
        }
    };
    for (index, child) in children.iter().enumerate() {
        walk(store, child, first + index as u64 * span(ptr.level), visit, damaged)?;
    }
    Ok(())
}

fn read_children(store: &Store, ptr: &BlockPtrPhys) -> Result<Vec<BlockPtrPhys>> {
    if ptr.level >= LEVELS_MAX {
        return Err(misplaced(ptr, "a pointer of a lower level"));
    }
    let content = store.read(ptr, Attributes::METADATA.once())?;
    let found = pointers(ptr, &content)?;
    (0..found.len()).map(|index| child(ptr, found, index)).collect()
}
