//! The negative filter: whether a name is surely absent from a leaf, without the leaf.
//!
//! A filter block has a slot for each of some leaves. A slot is the set of its leaf's fingerprints,
//! and names the txg in which the leaf was written. It answers for that version of the leaf only,
//! so a slot that was not rewritten with its leaf is void, not wrong.
//!
//! A fingerprint is the position of a name below the prefix of the leaf, scaled to 256 values per
//! name. The set is exact (Elias and Fano: lower bits as bytes, upper bits in unary) and takes ten
//! bits per name. So a name that the leaf does not have finds its fingerprint there once in 256
//! times.
//!
//! # Invariants
//!
//! - Each entry of the leaf adds the fingerprints of its home and of its position, if another name
//!   had taken its home. So "absent" means that no entry has the name, and that its home is free.
//! - Content from a device is not trusted. Any defect makes the answer [`Answer::Maybe`].
//!
//! A filter block changes only in the sync of a txg, see `object/sync_blocks.rs`.

use std::ops::{Deref, Range};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::entry::home_of;
use super::leaf::{Leaf, LeafDefect};
use crate::format::{
    ZAP_DEPTH_MAX, ZAP_FILTER_LEAVES, ZAP_FILTER_MAGIC, ZAP_LEAF_BYTES, ZAP_LEAF_STEP,
    ZapFilterPhys, ZapFilterSlotPhys,
};

const HEAD: usize = size_of::<ZapFilterPhys>();
/// Lower bits of a fingerprint, stored as they are.
const LOW_BITS: u32 = 8;

/// What a filter knows about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The leaf has no entry with this name, and none at its home. The leaf has this depth.
    Absent(u8),
    /// The leaf may have it.
    Maybe,
}

/// What the sync of a txg changes in a filter block.
pub(crate) enum SlotChange<B> {
    /// The leaf is as before.
    Keep,
    /// The leaf was freed.
    Drop,
    /// The txg writes this leaf.
    Leaf(B),
    /// The leaf is as that txg wrote it, and may have no filter yet.
    Stored(B, u64),
}

/// The filter block of a leaf.
pub(super) fn block_of(leaf: u64) -> u64 {
    leaf / ZAP_FILTER_LEAVES as u64
}

/// The leaves of a filter block.
pub(crate) fn leaves_of(index: u64) -> Range<u64> {
    let leaves = ZAP_FILTER_LEAVES as u64;
    index * leaves..(index + 1) * leaves
}

/// Turns a new block of zeros into a filter block without filters, and a damaged one too.
pub(crate) fn open(block: &mut [u8], seed: u64) {
    let is_valid = ZapFilterPhys::ref_from_prefix(block)
        .is_ok_and(|(head, _)| head.magic.get() == ZAP_FILTER_MAGIC && head.seed.get() == seed);
    if is_valid || block.len() < HEAD {
        return;
    }
    block.fill(0);
    let mut head = ZapFilterPhys::new_zeroed();
    (head.magic, head.seed) = (ZAP_FILTER_MAGIC.into(), seed.into());
    block[..HEAD].copy_from_slice(head.as_bytes());
}

/// Looks for a name with this home in the filter of a leaf that was written in txg `leaf_txg`.
pub(super) fn find(block: &[u8], leaf: u64, leaf_txg: u64, home: u64) -> Answer {
    search(block, leaf, leaf_txg, home).unwrap_or(Answer::Maybe)
}

/// Whether the block has a filter of this leaf as that txg wrote it.
pub(crate) fn is_valid(block: &[u8], leaf: u64, leaf_txg: u64) -> bool {
    slot_of(block, leaf, leaf_txg)
        .is_some_and(|slot| slot.names.get() == 0 || data_of(block, slot).is_some())
}

fn slot_of(block: &[u8], leaf: u64, leaf_txg: u64) -> Option<&ZapFilterSlotPhys> {
    let (head, _) = ZapFilterPhys::ref_from_prefix(block).ok()?;
    let slot = &head.slots[leaf as usize % ZAP_FILTER_LEAVES];
    let is_for_leaf = slot.leaf_txg.get() == leaf_txg && leaf_txg != 0;
    let is_plausible = head.magic.get() == ZAP_FILTER_MAGIC && slot.depth <= ZAP_DEPTH_MAX;
    (is_for_leaf && is_plausible).then_some(slot)
}

fn search(block: &[u8], leaf: u64, leaf_txg: u64, home: u64) -> Option<Answer> {
    let slot = slot_of(block, leaf, leaf_txg)?;
    let names = usize::from(slot.names.get());
    if names == 0 {
        return Some(Answer::Absent(slot.depth));
    }
    let (lows, uppers) = data_of(block, slot)?.split_at(names);
    let wanted = fingerprint(home, slot.depth, names);
    let (upper, low) = ((wanted >> LOW_BITS) as usize, wanted as u8);
    // Fingerprints with the same upper bits are ones between two zeros.
    let first = match upper.checked_sub(1) {
        None => 0,
        Some(before) => zero_at(uppers, 2 * names, before)? - before,
    };
    for (index, known) in lows.iter().enumerate().skip(first) {
        let bit = index + upper;
        if uppers.get(bit / 8)? >> (bit % 8) & 1 == 0 {
            break;
        }
        if *known == low {
            return Some(Answer::Maybe);
        }
    }
    Some(Answer::Absent(slot.depth))
}

/// The new content of a filter block, in stored form. `block` is its content before, and `change`
/// what the txg does to each of its leaves.
pub(crate) fn rebuild<B: Deref<Target: AsRef<[u8]>>>(
    block: &[u8],
    txg: u64,
    mut change: impl FnMut(usize) -> SlotChange<B>,
) -> Vec<u8> {
    let Ok((old, _)) = ZapFilterPhys::ref_from_prefix(block) else { return block.to_vec() };
    let mut head = ZapFilterPhys { slots: FromZeros::new_zeroed(), ..*old };
    let mut out = vec![0; HEAD];
    for index in 0..ZAP_FILTER_LEAVES {
        let start = out.len();
        let slot = match change(index) {
            SlotChange::Drop => None,
            SlotChange::Keep => copy_slot(block, &old.slots[index], &mut out),
            SlotChange::Leaf(leaf) => slot_for((*leaf).as_ref(), old.seed.get(), txg, &mut out),
            SlotChange::Stored(leaf, txg) => {
                slot_for((*leaf).as_ref(), old.seed.get(), txg, &mut out)
            }
        };
        // Leaves of very short names can have more fingerprints than the block has space for.
        match slot.filter(|_| out.len() <= ZAP_LEAF_BYTES) {
            Some(slot) => head.slots[index] = slot,
            None => out.truncate(start),
        }
    }
    out[..HEAD].copy_from_slice(head.as_bytes());
    out.resize(out.len().next_multiple_of(ZAP_LEAF_STEP).min(ZAP_LEAF_BYTES), 0);
    out
}

/// Adds filters of leaves that are stored to a block that is open for changes.
pub(crate) fn add<B: Deref<Target: AsRef<[u8]>>>(
    block: &mut [u8],
    mut leaf: impl FnMut(usize) -> Option<(B, u64)>,
) {
    let new = rebuild(block, 0, |slot| match leaf(slot) {
        Some((leaf, txg)) => SlotChange::Stored(leaf, txg),
        None => SlotChange::Keep,
    });
    let (head, rest) = block.split_at_mut(new.len());
    head.copy_from_slice(&new);
    rest.fill(0);
}

/// Whether this is a filter block.
pub(super) fn is_block(bytes: &[u8]) -> bool {
    ZapFilterPhys::ref_from_prefix(bytes)
        .is_ok_and(|(head, _)| head.magic.get() == ZAP_FILTER_MAGIC)
}

fn copy_slot(
    block: &[u8],
    old: &ZapFilterSlotPhys,
    out: &mut Vec<u8>,
) -> Option<ZapFilterSlotPhys> {
    if old.leaf_txg.get() == 0 {
        return None;
    }
    let slot = ZapFilterSlotPhys { at: (out.len() as u16).into(), ..*old };
    out.extend_from_slice(data_of(block, old)?);
    Some(slot)
}

/// Appends the filter of a leaf that `txg` wrote.
fn slot_for(leaf: &[u8], seed: u64, txg: u64, out: &mut Vec<u8>) -> Option<ZapFilterSlotPhys> {
    Leaf::read(leaf).and_then(|leaf| put_slot(&leaf, seed, txg, out)).ok()
}

fn put_slot(
    leaf: &Leaf<'_>,
    seed: u64,
    txg: u64,
    out: &mut Vec<u8>,
) -> Result<ZapFilterSlotPhys, LeafDefect> {
    let mut homes = Vec::with_capacity(leaf.len());
    for entry in leaf.entries_from(0) {
        let (position, record) = entry?;
        let home = home_of(seed, record.name);
        homes.push(home);
        if home != position {
            homes.push(position);
        }
    }
    let names = homes.len();
    let mut prints: Vec<u64> =
        homes.into_iter().map(|home| fingerprint(home, leaf.depth(), names)).collect();
    prints.sort_unstable();
    let at = out.len();
    out.extend(prints.iter().map(|print| *print as u8));
    let uppers_at = out.len();
    out.resize(uppers_at + (2 * names).div_ceil(8), 0);
    for (index, print) in prints.iter().enumerate() {
        let bit = (print >> LOW_BITS) as usize + index;
        out[uppers_at + bit / 8] |= 1 << (bit % 8);
    }
    Ok(ZapFilterSlotPhys {
        leaf_txg: txg.into(),
        at: u16::try_from(at).unwrap_or(u16::MAX).into(),
        names: (names as u16).into(),
        depth: leaf.depth(),
        reserved: [0; 3],
    })
}

/// The fingerprint of a position in a leaf of this depth with so many of them: less than 256 times
/// their number.
fn fingerprint(position: u64, depth: u8, names: usize) -> u64 {
    let below = position << (16 + u32::from(depth));
    let values = (names as u128) << LOW_BITS;
    ((u128::from(below) * values) >> 64) as u64
}

/// The data of a slot: lower parts, then upper parts.
fn data_of<'a>(block: &'a [u8], slot: &ZapFilterSlotPhys) -> Option<&'a [u8]> {
    let (at, names) = (usize::from(slot.at.get()), usize::from(slot.names.get()));
    if at < HEAD {
        return None;
    }
    block.get(at..at + names + (2 * names).div_ceil(8))
}

/// The place of the zero with this index among the first `len` bits.
fn zero_at(bits: &[u8], len: usize, index: usize) -> Option<usize> {
    let mut left = index;
    for (at, chunk) in bits.chunks(8).enumerate() {
        let mut bytes = [0xff; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        let mut zeros = !u64::from_le_bytes(bytes);
        let many = zeros.count_ones() as usize;
        if left >= many {
            left -= many;
            continue;
        }
        for _ in 0..left {
            zeros &= zeros - 1;
        }
        return Some(at * 64 + zeros.trailing_zeros() as usize).filter(|bit| *bit < len);
    }
    None
}
