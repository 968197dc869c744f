//! Shrinking directories: leaves merge with their buddies, buffer pages follow their leaves, and
//! the last leaf becomes a micro directory.
//!
//! A merge may have to read the buddy. It is tried only when the used bytes of a leaf fall below a
//! multiple of [`DUE_STEP`], and when the leaf becomes empty.

use forebay_base::probe;

use super::access::LeafAccess;
use super::buffer::PAGE_SPAN;
use super::entry::{leaf_id, prefix_mask};
use super::fat::Fat;
use super::leaf::{Leaf, LeafMut, merged, put_leaf};
use super::micro::Micro;
use super::store::{LeafLookup, LeafStore};
use super::{DirectoryForm, OpStep};
use crate::Result;
use crate::format::{ZAP_LEAF_BYTES, ZAP_PAGE_BYTES, ZapBlock, ZapFatPhys};

/// Maximum used bytes of a merged leaf. It leaves free space before the next split.
const MERGED_MAX: usize = ZAP_LEAF_BYTES * 5 / 8;
/// The same for buffer pages.
const MERGED_PAGE_MAX: usize = ZAP_PAGE_BYTES * 5 / 8;
const DUE_STEP: usize = ZAP_LEAF_BYTES / 16;
/// Conversion of the only leaf is tried after every removal that leaves at most this many used
/// bytes.
const MICRO_DUE: usize = 512;

/// Whether to try a merge after a removal from a leaf that used `before` bytes.
pub(super) fn is_due(leaf: &Leaf<'_>, before: usize) -> bool {
    let used = leaf.used_bytes();
    if leaf.depth() == 0 {
        return used <= MICRO_DUE;
    }
    used <= MERGED_MAX && (leaf.len() == 0 || used / DUE_STEP != before / DUE_STEP)
}

/// Merges the leaf of a hash with its buddy, or converts a directory of one leaf to micro, if the
/// result is small enough. Returns whether leaves merged, in which case the merged leaf may merge
/// again. The name that was removed before can come back without more space: `removed` is its hash,
/// and the bytes that it needs in a micro directory.
pub(super) fn try_merge<S: LeafStore>(
    form: &mut DirectoryForm,
    access: LeafAccess<'_, S>,
    tx: &S::Tx,
    removed: (u32, usize),
) -> Result<OpStep<bool, S::Ticket>> {
    let (hash, removed) = removed;
    // As the removal, it has no use for filters.
    let access = LeafAccess { reads_filters: false, ..access };
    let DirectoryForm::Fat(fat) = form else {
        return Ok(OpStep::Done(false));
    };
    let found = fat.with_leaf_of(access, hash, |leaf| Ok((leaf.depth(), leaf.used_bytes())))?;
    let (depth, used) = match found {
        OpStep::Done(found) => found,
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
    };
    if fat.may_stop_aid(access.store) && used <= MERGED_MAX {
        // A name that was in a page would come back to the leaf.
        if let OpStep::NotResident(ticket) = fat.edit(access, tx, hash, |_| Ok(()))? {
            return Ok(OpStep::NotResident(ticket));
        }
        fat.stop_aid(access.store, tx)?;
        return Ok(OpStep::Done(true));
    }
    if depth == 0 {
        if fat.is_aided() {
            // Its change buffer has names.
            return Ok(OpStep::Done(false));
        }
        return Ok(match to_micro(fat, access, tx, removed)? {
            OpStep::Done(Some(micro)) => {
                *form = DirectoryForm::Micro(micro);
                OpStep::Done(false)
            }
            OpStep::Done(None) => OpStep::Done(false),
            OpStep::NotResident(ticket) => OpStep::NotResident(ticket),
        });
    }
    merge(fat, access, tx, hash, depth, used)
}

/// Merges the buffer page of a hash with its buddy if it is deeper than the leaf there needs.
/// Names that do not fit move to the leaf. Returns whether pages merged, in which case the merged
/// page may merge again.
pub(super) fn try_merge_pages<S: LeafStore>(
    fat: &mut Fat,
    access: LeafAccess<'_, S>,
    tx: &S::Tx,
    hash: u32,
) -> Result<OpStep<bool, S::Ticket>> {
    let pages = fat.header.pages.get();
    let Some(leaf_depth) = fat.table.get(hash) else {
        return Ok(OpStep::Done(false));
    };
    if pages <= 1 {
        return Ok(OpStep::Done(false));
    }
    let found = fat.with_page_of(access, hash, |page| Ok((page.depth(), page.used_bytes())))?;
    let (depth, used) = match found {
        OpStep::Done(found) => found,
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
    };
    // A page that splits has two levels to go until it merges again.
    if depth == 0 || depth + PAGE_SPAN <= leaf_depth + 1 {
        return Ok(OpStep::Done(false));
    }
    let low_hash = hash & prefix_mask(depth - 1);
    let high_hash = low_hash | 1 << (32 - u32::from(depth));
    let buddy = if hash & prefix_mask(depth) == low_hash { high_hash } else { low_hash };
    let found = fat.with_page_of(access, buddy, |page| Ok((page.depth(), page.used_bytes())))?;
    match found {
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        OpStep::Done((other, _)) if other != depth => return Ok(OpStep::Done(false)),
        OpStep::Done((_, more)) if used + more <= MERGED_PAGE_MAX => {}
        OpStep::Done(_) => return fat.merge_names(access, tx, hash),
    }
    merge_pages(fat, access, tx, (low_hash, high_hash), depth)
}

/// Merges two buffer pages of this depth.
fn merge_pages<S: LeafStore>(
    fat: &mut Fat,
    access: LeafAccess<'_, S>,
    tx: &S::Tx,
    (low_hash, high_hash): (u32, u32),
    depth: u8,
) -> Result<OpStep<bool, S::Ticket>> {
    let store = access.store;
    let mut high = Vec::new();
    let copied = fat.with_page_of(access, high_hash, |page| {
        high = page.bytes().to_vec();
        Ok(())
    })?;
    if let OpStep::NotResident(ticket) = copied {
        return Ok(OpStep::NotResident(ticket));
    }
    let mut both = [0; ZAP_PAGE_BYTES];
    // Makes the lower page dirty too, so nothing fails after the upper page is freed.
    let joined = fat.edit_page(access, tx, low_hash, |low| {
        merged(&low.leaf()?, &Leaf::read(&high)?, &mut both)
    })?;
    if let OpStep::NotResident(ticket) = joined {
        return Ok(OpStep::NotResident(ticket));
    }
    let old = fat.header;
    let pages = old.pages.get() - 1;
    // How deep the others are is not known. A single page has no depth.
    let page_depth = if pages == 1 { 0 } else { old.page_depth };
    let header = ZapFatPhys { pages: pages.into(), page_depth, ..old };
    fat.put_aid(store, tx, header)?;
    if let Err(error) = store.free_leaf(tx, ZapBlock::Page(leaf_id(high_hash, depth))) {
        fat.put_aid(store, tx, old)?;
        return Err(error);
    }
    let low_id = ZapBlock::Page(leaf_id(low_hash, depth));
    let put =
        store.with_leaf_mut(tx, low_id, None, access.fetched, |bytes| put_leaf(bytes, &both))?;
    assert!(matches!(put, LeafLookup::Resident(Ok(()))), "the page is open and whole");
    fat.header = header;
    fat.pages.resize(page_depth);
    fat.pages.set(low_hash, depth - 1);
    Ok(OpStep::Done(true))
}

/// Merges the leaf of a hash with its buddy.
fn merge<S: LeafStore>(
    fat: &mut Fat,
    access: LeafAccess<'_, S>,
    tx: &S::Tx,
    hash: u32,
    depth: u8,
    used: usize,
) -> Result<OpStep<bool, S::Ticket>> {
    let store = access.store;
    let low_hash = hash & prefix_mask(depth - 1);
    let high_hash = low_hash | 1 << (32 - u32::from(depth));
    let buddy = if hash & prefix_mask(depth) == low_hash { high_hash } else { low_hash };
    let fits = fat.with_leaf_of(access, buddy, |leaf| {
        Ok(leaf.depth() == depth && leaf.used_bytes() + used <= MERGED_MAX)
    })?;
    match fits {
        OpStep::Done(true) => {}
        OpStep::Done(false) => return Ok(OpStep::Done(false)),
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
    }
    let mut high = Vec::new();
    let copied = fat.with_leaf_of(access, high_hash, |leaf| {
        high = leaf.bytes().to_vec();
        Ok(())
    })?;
    if let OpStep::NotResident(ticket) = copied {
        return Ok(OpStep::NotResident(ticket));
    }
    let mut both = vec![0; ZAP_LEAF_BYTES];
    // Makes the lower leaf dirty too, so nothing fails after the upper leaf is freed.
    let joined =
        fat.edit(access, tx, low_hash, |low| merged(&low.leaf()?, &Leaf::read(&high)?, &mut both))?;
    if let OpStep::NotResident(ticket) = joined {
        return Ok(OpStep::NotResident(ticket));
    }
    let (low_id, high_id) = (leaf_id(low_hash, depth), leaf_id(high_hash, depth));
    fat.move_leaves(store, tx, depth, depth - 1)?;
    if let Err(error) = store.free_leaf(tx, ZapBlock::Leaf(high_id)) {
        fat.move_leaves(store, tx, depth - 1, depth)?;
        return Err(error);
    }
    fat.rewrite(access, tx, low_id, &both)?;
    probe!(leaf_merge, low_id, depth);
    fat.table.set(low_hash, depth - 1);
    Ok(OpStep::Done(true))
}

/// A micro directory with the entries of the only leaf, if they take at most half of the inline
/// capacity, and leave `room` bytes. An empty one leaves what there is: an undone removal of a long
/// name then makes a leaf again.
fn to_micro<S: LeafStore>(
    fat: &mut Fat,
    access: LeafAccess<'_, S>,
    tx: &S::Tx,
    room: usize,
) -> Result<OpStep<Option<Micro>, S::Ticket>> {
    let store = access.store;
    let mut micro = Micro::new(fat.header.head.seed.get());
    let inline = store.inline_capacity(tx)?;
    let capacity = (inline / 2).min(inline.saturating_sub(room));
    let fits = fat.edit(access, tx, 0, |leaf: &mut LeafMut<'_>| {
        micro = Micro::new(micro.seed());
        for entry in leaf.leaf()?.entries_from(0) {
            let (position, record) = entry?;
            record.value()?;
            micro.push(position, record.name, record.value);
            if micro.content().len() > capacity {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    match fits {
        OpStep::Done(true) => {}
        OpStep::Done(false) => return Ok(OpStep::Done(None)),
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
    }
    store.set_inline(tx, micro.content())?;
    if let Err(error) = store.free_leaf(tx, ZapBlock::Leaf(0)) {
        fat.put_header(store, tx)?;
        return Err(error);
    }
    Ok(OpStep::Done(Some(micro)))
}
