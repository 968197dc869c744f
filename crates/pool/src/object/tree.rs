//! Trees of blocks: they map the block numbers of an object to block pointers.
//!
//! A [`Tree`] is an immutable value: a root, its height, and the number of blocks. [`update`] makes
//! a new tree from an old one and a list of changes. It writes new indirect blocks and frees the
//! old ones that the new tree does not share.
//!
//! An indirect block holds [`POINTERS`] block pointers and is stored without the null pointers at
//! its end. A hole is a null pointer or a preallocated one, which stands for all blocks beneath it.
//!
//! # Locking
//!
//! None. Trees are read anywhere, and updated in syncing context only.

use std::ops::Range;

use forebay_base::arena::Buffer;
use zerocopy::{FromBytes, IntoBytes};

use crate::block_label::INDIRECT_BLOCKS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockKind, BlockPtrPhys};
use crate::store::{Store, WriteProps};
use crate::sync_context::SyncContext;
use crate::wait::Wait;

pub(crate) use crate::format::{POINTERS_SHIFT, capacity};

/// Bytes of a full indirect block.
pub(crate) const INDIRECT_BYTES: usize = 32 << 10;
/// Pointers in an indirect block.
pub(crate) const POINTERS: usize = 1 << POINTERS_SHIFT;
/// Block numbers are below this limit: seven levels of indirect blocks, and no shift overflows.
pub(crate) const BLOCKS_MAX: u64 = 1 << (7 * POINTERS_SHIFT - 1);
const LEVELS_MAX: u8 = 8;
/// Indirect blocks are trimmed to multiples of this many bytes.
const TRIM_BYTES: usize = 512;

const _: () = assert!(POINTERS * size_of::<BlockPtrPhys>() == INDIRECT_BYTES);

/// A tree of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    /// Points to the only block (one level), to an indirect block (more levels), or is null.
    pub(crate) root: BlockPtrPhys,
    /// 0: empty. 1: `root` points to block 0. `n`: `n - 1` levels of indirect blocks.
    pub(crate) levels: u8,
    /// An upper bound: all blocks from this number on are holes.
    pub(crate) blocks: u64,
}

impl Tree {
    /// A tree of holes.
    pub(crate) const EMPTY: Self = Self { root: BlockPtrPhys::HOLE, levels: 0, blocks: 0 };

    /// A tree from fields that come from a device.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the fields contradict each other.
    pub(crate) fn from_parts(root: BlockPtrPhys, levels: u8, blocks: u64) -> Result<Self> {
        let height_fits = levels <= LEVELS_MAX && blocks <= capacity(levels);
        let root_fits = root.is_null() || (levels > 0 && root.level == levels - 1);
        if blocks > BLOCKS_MAX || !height_fits || !root_fits {
            let text = format!(
                "a tree of {levels} levels and {blocks} blocks cannot have the root {root:?}"
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(Self { root, levels, blocks })
    }

    /// Index of the level-1 indirect block that points to `block`.
    pub(crate) fn parent_of(block: u64) -> u64 {
        block >> POINTERS_SHIFT
    }

    /// The blocks whose pointers are beside that of `block`: the first one, and their number.
    pub(crate) fn siblings_of(block: u64) -> (u64, u64) {
        (Self::parent_of(block) << POINTERS_SHIFT, POINTERS as u64)
    }
}

/// Minimum height of a tree that contains the block.
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

/// The pointers of the indirect block that `parent` points to.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if `parent` does not point to an indirect block, or the content is too
/// long.
pub(crate) fn pointers<'a>(parent: &BlockPtrPhys, content: &'a [u8]) -> Result<&'a [BlockPtrPhys]> {
    let right = parent.block_kind() == Some(BlockKind::Indirect) && content.len() <= INDIRECT_BYTES;
    let found = if right { <[BlockPtrPhys]>::ref_from_bytes(content).ok() } else { None };
    found.ok_or_else(|| misplaced(parent, "an indirect block"))
}

fn misplaced(ptr: &BlockPtrPhys, wanted: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("found {ptr:?} instead of {wanted}"))
}

/// The pointer at `index`. Fails if it is not of the level below.
pub(super) fn child(
    parent: &BlockPtrPhys,
    pointers: &[BlockPtrPhys],
    index: usize,
) -> Result<BlockPtrPhys> {
    let child = pointers.get(index).copied().unwrap_or(BlockPtrPhys::HOLE);
    if !child.is_null() && child.level.wrapping_add(1) != parent.level {
        return Err(misplaced(&child, "a pointer of the level below"));
    }
    Ok(child)
}

/// The pointer of the level-1 indirect block above `block`; null if there is none. The tree has two
/// levels or more. Reads the indirect blocks above the result.
pub(crate) fn lowest_indirect(
    store: &Store,
    tree: &Tree,
    block: u64,
    wait: Wait,
) -> Result<BlockPtrPhys> {
    descend(store, tree, block, 1, wait)
}

/// The pointer of `block`; null if it is a hole. Reads all indirect blocks on the path.
pub(crate) fn lookup(store: &Store, tree: &Tree, block: u64, wait: Wait) -> Result<BlockPtrPhys> {
    descend(store, tree, block, 0, wait)
}

/// The pointer at level `down_to` on the path to `block`; null if there is none. Reads all indirect
/// blocks above it.
pub(crate) fn descend(
    store: &Store,
    tree: &Tree,
    block: u64,
    down_to: u8,
    wait: Wait,
) -> Result<BlockPtrPhys> {
    if block >= capacity(tree.levels) {
        return Ok(BlockPtrPhys::HOLE);
    }
    let mut ptr = tree.root;
    while !ptr.is_hole() && ptr.level > down_to {
        let address = ptr.copies[0].raw();
        let content = store.read_traced(&ptr, INDIRECT_BLOCKS, address, wait)?;
        let index = (block / span(ptr.level)) as usize % POINTERS;
        ptr = child(&ptr, pointers(&ptr, &content)?, index)?;
    }
    Ok(ptr)
}

/// The highest indirect block on the path to `block` that is not in memory, if any.
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

/// The kind of range that a search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeekTarget {
    Data,
    Hole,
}

/// The first block of a range that is data, or a hole. Reads the indirect blocks on the path,
/// except those whose fill count rules out a match.
pub(crate) fn seek(
    store: &Store,
    tree: &Tree,
    range: Range<u64>,
    wanted: SeekTarget,
    wait: Wait,
) -> Result<Option<u64>> {
    let capacity = capacity(tree.levels);
    if range.start < range.end.min(capacity) {
        let inside = range.start..range.end.min(capacity);
        let found = seek_beneath(store, &tree.root, (tree.levels - 1, 0), &inside, wanted, wait)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    let after = range.start.max(capacity);
    Ok((wanted == SeekTarget::Hole && after < range.end).then_some(after))
}

/// Searches beneath a pointer at `level` whose first block is `first`.
fn seek_beneath(
    store: &Store,
    ptr: &BlockPtrPhys,
    (level, first): (u8, u64),
    range: &Range<u64>,
    wanted: SeekTarget,
    wait: Wait,
) -> Result<Option<u64>> {
    if ptr.is_hole() || level == 0 {
        let is_hole = ptr.is_hole();
        return Ok((is_hole == (wanted == SeekTarget::Hole)).then_some(first.max(range.start)));
    }
    if wanted == SeekTarget::Hole && ptr.fill.get() == capacity(level + 1) {
        return Ok(None);
    }
    let content = store.read_with(ptr, INDIRECT_BLOCKS, wait)?;
    let found = pointers(ptr, &content)?;
    let from = (range.start.saturating_sub(first) / span(level)) as usize;
    for index in from..POINTERS {
        let first = first + index as u64 * span(level);
        if first >= range.end || (wanted == SeekTarget::Data && index >= found.len()) {
            break;
        }
        let below = child(ptr, found, index)?;
        let hit = seek_beneath(store, &below, (level - 1, first), range, wanted, wait)?;
        if hit.is_some() {
            return Ok(hit);
        }
    }
    Ok(None)
}

/// Number of blocks with data in a range. Reads the indirect blocks at its ends, as far as the fill
/// counts of their pointers do not tell.
pub(crate) fn filled(store: &Store, tree: &Tree, range: &Range<u64>, wait: Wait) -> Result<u64> {
    match tree.levels {
        0 => Ok(0),
        levels => filled_beneath(store, &tree.root, (levels - 1, 0), range, wait),
    }
}

fn filled_beneath(
    store: &Store,
    ptr: &BlockPtrPhys,
    (level, first): (u8, u64),
    range: &Range<u64>,
    wait: Wait,
) -> Result<u64> {
    let end = first.saturating_add(capacity(level + 1));
    let blocks = range.end.min(end).saturating_sub(range.start.max(first));
    if blocks == 0 || ptr.is_hole() {
        return Ok(0);
    }
    if blocks == end - first || ptr.fill.get() == capacity(level + 1) {
        return Ok(ptr.fill.get().min(blocks));
    }
    let content = store.read_with(ptr, INDIRECT_BLOCKS, wait)?;
    let found = pointers(ptr, &content)?;
    let from = (range.start.saturating_sub(first) / span(level)) as usize;
    let mut filled = 0;
    for index in from..found.len() {
        let first = first + index as u64 * span(level);
        if first >= range.end {
            break;
        }
        let below = child(ptr, found, index)?;
        filled += filled_beneath(store, &below, (level - 1, first), range, wait)?;
    }
    Ok(filled)
}

/// The new pointer of a block. Null frees the block, but leaves a preallocated hole. A preallocated
/// pointer changes holes only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerChange {
    pub(crate) block: u64,
    pub(crate) ptr: BlockPtrPhys,
}

/// Changes of a tree: `freed` applies first, then `preallocated`, then `written`. All are ascending
/// and do not overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeChanges<'a> {
    pub(crate) freed: &'a [Range<u64>],
    /// Blocks that become preallocated if they are holes.
    pub(crate) preallocated: &'a [Range<u64>],
    /// Bytes that each of them counts.
    pub(crate) preallocated_bytes: u32,
    pub(crate) written: &'a [PointerChange],
}

impl<'a> TreeChanges<'a> {
    /// Changes that only write blocks.
    pub(crate) fn written(written: &'a [PointerChange]) -> Self {
        Self { freed: &[], preallocated: &[], preallocated_bytes: 0, written }
    }

    fn within(self, range: &Range<u64>) -> Self {
        let first = self.written.partition_point(|change| change.block < range.start);
        let end = self.written.partition_point(|change| change.block < range.end);
        Self {
            freed: overlapping(self.freed, range),
            preallocated: overlapping(self.preallocated, range),
            written: &self.written[first..end],
            ..self
        }
    }

    fn is_empty(self) -> bool {
        self.freed.is_empty() && self.preallocated.is_empty() && self.written.is_empty()
    }

    /// Whether one freed range covers all of `range`.
    fn frees_all_of(self, range: &Range<u64>) -> bool {
        covers(self.freed, range)
    }

    /// Whether the changes leave a subtree of `blocks` blocks as it is: they only preallocate, and
    /// all of it is data or preallocated already.
    fn keeps(self, old: &BlockPtrPhys, blocks: u64, range: &Range<u64>) -> bool {
        let only_preallocates = self.freed.is_empty() && self.written.is_empty();
        let has_none = match old.is_preallocated() {
            // All of it may count more bytes afterwards.
            true => !covers(self.preallocated, range),
            false => old.fill.get() == blocks,
        };
        only_preallocates && has_none
    }
}

/// The ranges, ascending, that overlap `range`.
fn overlapping<'a>(ranges: &'a [Range<u64>], range: &Range<u64>) -> &'a [Range<u64>] {
    let from = ranges.partition_point(|one| one.end <= range.start);
    let to = ranges.partition_point(|one| one.start < range.end);
    &ranges[from..to.max(from)]
}

/// Whether one of the ranges covers all of `range`.
fn covers(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    ranges.iter().any(|one| one.start <= range.start && range.end <= one.end)
}

/// The tree after `changes`. `props` has the write properties of its indirect blocks; kind, level
/// and fill are set here.
///
/// Reads the old indirect blocks that have both changed and unchanged children. What frees all
/// blocks beneath an indirect block, and what preallocates where there is no hole, does not read
/// it.
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
    if root.is_null() {
        return Ok(Tree { root, levels: 0, blocks: 0 });
    }
    Ok(Tree { root, levels, blocks })
}

/// An upper bound of the block count after the changes.
fn blocks_after(tree: &Tree, changes: TreeChanges<'_>) -> u64 {
    let mut blocks = tree.blocks;
    if let Some(freed) = changes.freed.last()
        && freed.end >= blocks
    {
        blocks = blocks.min(freed.start);
    }
    let last = changes.written.iter().rev().find(|change| !change.ptr.is_null());
    let preallocated = changes.preallocated.last().map_or(0, |range| range.end);
    blocks.max(last.map_or(0, |change| change.block + 1)).max(preallocated)
}

/// The old subtree at the position of a new block. It may be lower than the new block if the tree
/// grows.
#[derive(Clone, Copy)]
struct Subtree {
    ptr: BlockPtrPhys,
    /// Height of the old subtree.
    levels: u8,
}

/// The new pointer at `level` for the subtree whose first block is `first`.
fn rewrite(
    ctx: &mut SyncContext<'_>,
    old: Subtree,
    (level, first): (u8, u64),
    changes: TreeChanges<'_>,
    props: &WriteProps,
) -> Result<BlockPtrPhys> {
    let blocks = capacity(level + 1);
    let range = first..first.saturating_add(blocks);
    let mut changes = changes.within(&range);
    if level == 0 {
        return rewrite_block(ctx, old.ptr, changes, &range);
    }
    let mut old = old;
    if changes.frees_all_of(&range) {
        free_tree(ctx, &old.ptr)?;
        old = Subtree { ptr: BlockPtrPhys::HOLE, levels: level + 1 };
    }
    if old.ptr.is_null() {
        changes.freed = &[];
    }
    let grows = !old.ptr.is_null() && old.levels < level + 1;
    if !grows && (changes.is_empty() || changes.keeps(&old.ptr, blocks, &range)) {
        return Ok(old.ptr);
    }
    if changes.written.is_empty() && covers(changes.preallocated, &range) && old.ptr.is_hole() {
        let new = BlockPtrPhys::preallocated(level, changes.preallocated_bytes);
        free_tree(ctx, &old.ptr)?;
        ctx.preallocate(&new);
        return Ok(new);
    }
    let mut content = ctx.repeat(|| load_indirect(ctx.store, old, level))?;
    let mut changed = grows;
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
        changed |= new != below.ptr;
    }
    if !changed {
        return Ok(old.ptr);
    }
    let mut attributes = INDIRECT_BLOCKS;
    if !grows && !old.ptr.is_hole() {
        ctx.free_or_leak(&old.ptr)?;
        // The update has just read the block. Its new version counts as used before, so it need not
        // pass admission.
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
    let kept = if changes.frees_all_of(range) { BlockPtrPhys::HOLE } else { old };
    let kept = match covers(changes.preallocated, range) {
        true => preallocate(kept, changes.preallocated_bytes),
        false => kept,
    };
    let new = match changes.written.last() {
        None => kept,
        Some(change) if change.ptr.is_preallocated() => {
            preallocate(kept, change.ptr.logical_bytes.get())
        }
        // A block of zeros leaves the preallocated hole.
        Some(change) if change.ptr.is_hole() && kept.is_preallocated() => kept,
        Some(change) => change.ptr,
    };
    if new == old {
        return Ok(old);
    }
    if !old.is_null() {
        ctx.free_or_leak(&old)?;
    }
    if new.is_preallocated() {
        ctx.preallocate(&new);
    }
    Ok(new)
}

/// The pointer of a block of level 0 after it was preallocated.
fn preallocate(ptr: BlockPtrPhys, bytes: u32) -> BlockPtrPhys {
    match ptr.is_hole() {
        true => BlockPtrPhys::preallocated(0, bytes.max(ptr.logical_bytes.get())),
        false => ptr,
    }
}

/// A full-length copy of the indirect block.
fn load_indirect(store: &Store, old: Subtree, level: u8) -> Result<Buffer> {
    let mut content = store.cache().alloc_zeroed(INDIRECT_BYTES)?;
    if old.ptr.is_preallocated() && old.levels == level + 1 {
        let each = BlockPtrPhys::preallocated(level - 1, old.ptr.logical_bytes.get());
        for child in content.chunks_exact_mut(size_of::<BlockPtrPhys>()) {
            child.copy_from_slice(each.as_bytes());
        }
    }
    if !old.ptr.is_hole() && old.levels == level + 1 {
        let block = store.read(&old.ptr, INDIRECT_BLOCKS)?;
        let found = pointers(&old.ptr, &block)?;
        for index in 0..found.len() {
            child(&old.ptr, found, index)?;
        }
        content[..block.len()].copy_from_slice(&block);
    }
    Ok(content)
}

/// Indexes of the children with changes, of a block at `level` over `range`.
fn touched(changes: TreeChanges<'_>, level: u8, range: &Range<u64>, grows: bool) -> Vec<usize> {
    let of = |block: u64| ((block - range.start) / span(level)) as usize;
    let mut found: Vec<usize> = changes.written.iter().map(|change| of(change.block)).collect();
    found.dedup();
    for each in changes.freed.iter().chain(changes.preallocated) {
        let (start, end) = (each.start.max(range.start), each.end.min(range.end));
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
    let children = <[BlockPtrPhys]>::ref_from_bytes(&content).map_err(|_| {
        Error::new(
            ErrorKind::Corrupt,
            "the length of an indirect block is not a multiple of a pointer's",
        )
    })?;
    let Some(last) = children.iter().rposition(|child| !child.is_null()) else {
        return Ok(BlockPtrPhys::HOLE);
    };
    let fill = children.iter().map(|child| child.fill.get()).sum();
    let bytes = children[..=last].as_bytes().len().next_multiple_of(TRIM_BYTES);
    let mut trimmed = ctx.repeat(|| ctx.store.cache().alloc(bytes))?;
    trimmed.copy_from_slice(&content[..bytes]);
    let props = WriteProps { kind: BlockKind::Indirect, level, fill, ..*props };
    ctx.write_new(trimmed, &props)
}

/// Frees the block that a pointer points to and everything beneath it. Damaged blocks are leaked
/// and counted: they must not stop the pool. If no device answers that may have a block, the commit
/// pauses: nothing is leaked because a device was away.
pub(crate) fn free_tree(ctx: &mut SyncContext<'_>, ptr: &BlockPtrPhys) -> Result<()> {
    if ptr.is_null() {
        return Ok(());
    }
    if ptr.level > 0 && !ptr.is_hole() {
        let children = ctx.or_leak(|ctx| read_children(ctx.store, ptr))?;
        for child in children.unwrap_or_default() {
            free_tree(ctx, &child)?;
        }
    }
    ctx.free_or_leak(ptr)
}

/// Callback of a walk over a tree. Gets a pointer and the number of the first block beneath it.
pub(crate) type Visit<'a, E> = dyn FnMut(&BlockPtrPhys, u64) -> Result<(), E> + 'a;

/// Visits every pointer of a tree that is not null, parents first and in order, until a visit
/// fails. Passes a damaged indirect block to `damaged` and skips everything beneath it.
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
    let content = store.read(ptr, INDIRECT_BLOCKS.once())?;
    children(ptr, &content)
}

/// The pointers in the indirect block that `parent` points to, all checked.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if one of them, or `parent`, cannot be where it is.
pub(crate) fn children(parent: &BlockPtrPhys, content: &[u8]) -> Result<Vec<BlockPtrPhys>> {
    if parent.level >= LEVELS_MAX {
        return Err(misplaced(parent, "a pointer of a lower level"));
    }
    let found = pointers(parent, content)?;
    (0..found.len()).map(|index| child(parent, found, index)).collect()
}

/// As [`children`], of which one is wanted; null if there are not so many.
///
/// # Errors
/// As [`children`], for this one.
pub(crate) fn child_at(
    parent: &BlockPtrPhys,
    content: &[u8],
    index: usize,
) -> Result<BlockPtrPhys> {
    if parent.level >= LEVELS_MAX {
        return Err(misplaced(parent, "a pointer of a lower level"));
    }
    let found = pointers(parent, content)?;
    match index < found.len() {
        true => child(parent, found, index),
        false => Ok(BlockPtrPhys::HOLE),
    }
}
