//! Layout of a leaf: building it from entries, and packing it for storage.

use zerocopy::{FromBytes, IntoBytes};

use super::{HEAD, Leaf, LeafDefect, RECORD_HEAD, Record, SLOT};
use crate::format::{
    ZAP_LEAF_BYTES, ZAP_LEAF_MAGIC, ZAP_LEAF_OPEN, ZAP_LEAF_STEP, ZAP_LEAF_STORED, ZAP_PAGE_BYTES,
    ZapLeafPhys, ZapSlotPhys,
};

/// A forged object may have records of any size.
pub(super) const WRONG_SIZE: LeafDefect = LeafDefect("the record size of its object is wrong");
const RECORDS_TOO_MANY: LeafDefect = LeafDefect("its records are larger than a leaf");

/// Whether the buffer has the size of an open leaf or page.
#[inline]
pub(super) fn has_open_size(bytes: &[u8]) -> bool {
    bytes.len() == ZAP_LEAF_BYTES || bytes.len() == ZAP_PAGE_BYTES
}

/// Fills a leaf with a known number of entries, which are pushed in order.
pub(in crate::zap) struct Builder<'a> {
    bytes: &'a mut [u8],
    head: ZapLeafPhys,
    slots_at: usize,
    records_end: usize,
    next_slot: usize,
}

impl<'a> Builder<'a> {
    /// Starts an open leaf of `count` entries in `bytes`, which has `ZAP_LEAF_BYTES` bytes, or an
    /// open page in `ZAP_PAGE_BYTES`.
    pub(in crate::zap) fn new(
        bytes: &'a mut [u8],
        depth: u8,
        prefix: u32,
        count: usize,
    ) -> Result<Self, LeafDefect> {
        let slots_at = bytes.len().checked_sub(count * SLOT).ok_or(RECORDS_TOO_MANY)?;
        if !has_open_size(bytes) {
            return Err(WRONG_SIZE);
        }
        let head = ZapLeafPhys {
            magic: ZAP_LEAF_MAGIC.into(),
            prefix: prefix.into(),
            depth,
            form: ZAP_LEAF_OPEN,
            count: (count as u16).into(),
            records_end: 0.into(),
            slots_at: (slots_at as u16).into(),
            hole_bytes: 0.into(),
            reserved: [0; 6],
        };
        Ok(Self { bytes, head, slots_at, records_end: HEAD, next_slot: slots_at })
    }

    /// Adds an entry.
    pub(in crate::zap) fn push(
        &mut self,
        position: u64,
        record: Record<'_>,
    ) -> Result<(), LeafDefect> {
        if self.records_end + record.bytes() > self.slots_at || self.next_slot == self.bytes.len() {
            return Err(RECORDS_TOO_MANY);
        }
        let slot = ZapSlotPhys::new(position, self.records_end as u16);
        self.bytes[self.next_slot..self.next_slot + SLOT].copy_from_slice(slot.as_bytes());
        self.next_slot += SLOT;
        self.records_end = put_record(self.bytes, self.records_end, record);
        Ok(())
    }

    /// Writes the header.
    pub(in crate::zap) fn finish(mut self) {
        assert_eq!(self.next_slot, self.bytes.len(), "the number of entries matches");
        self.head.records_end = (self.records_end as u16).into();
        self.bytes[..HEAD].copy_from_slice(self.head.as_bytes());
    }
}

/// Replaces the content of an open leaf.
pub(in crate::zap) fn put_leaf(bytes: &mut [u8], leaf: &[u8]) -> Result<(), LeafDefect> {
    if bytes.len() != leaf.len() {
        return Err(WRONG_SIZE);
    }
    bytes.copy_from_slice(leaf);
    Ok(())
}

/// Writes a record at `at`, where there must be enough space. Returns its end.
#[inline]
pub(super) fn put_record(bytes: &mut [u8], at: usize, record: Record<'_>) -> usize {
    let Record { name, value } = record;
    let into = &mut bytes[at..at + record.bytes()];
    into[0] = name.len() as u8;
    into[1] = value.len() as u8;
    let (name_into, value_into) = into[RECORD_HEAD..].split_at_mut(name.len());
    name_into.copy_from_slice(name);
    value_into.copy_from_slice(value);
    at + record.bytes()
}

/// Copies the entries of leaves into one open leaf. The leaves are in the order of their entries.
pub(super) fn join(
    leaves: &[&Leaf<'_>],
    depth: u8,
    prefix: u32,
    out: &mut [u8],
) -> Result<(), LeafDefect> {
    let count = leaves.iter().map(|leaf| leaf.len()).sum();
    let mut builder = Builder::new(out, depth, prefix, count)?;
    for leaf in leaves {
        for slot in leaf.slots {
            builder.push(slot.position(), leaf.record(*slot)?)?;
        }
    }
    builder.finish();
    Ok(())
}

/// Turns a leaf from [`LeafStore::with_leaf_mut`](super::super::LeafStore::with_leaf_mut) into
/// stored form, at the front of the buffer, and returns its length. The remainder of the buffer is
/// zeros. The buffer can be opened for changes again.
pub(crate) fn pack(bytes: &mut [u8]) -> usize {
    let Ok(leaf) = Leaf::read(bytes) else {
        // Not a valid leaf. Readers report the damage.
        return bytes.len();
    };
    let mut head = *leaf.head;
    let slots_bytes = leaf.slots.len() * SLOT;
    let slots_at = if head.form == ZAP_LEAF_OPEN {
        if head.hole_bytes.get() > 0 {
            compact(bytes);
            head = ZapLeafPhys::read_from_prefix(bytes).map_or(head, |(head, _)| head);
        }
        let from = usize::from(head.slots_at.get());
        let to = usize::from(head.records_end.get()).next_multiple_of(SLOT);
        bytes.copy_within(from..from + slots_bytes, to);
        bytes[usize::from(head.records_end.get())..to].fill(0);
        head.form = ZAP_LEAF_STORED;
        head.slots_at = (to as u16).into();
        bytes[..HEAD].copy_from_slice(head.as_bytes());
        to
    } else {
        usize::from(head.slots_at.get())
    };
    let end = slots_at + slots_bytes;
    bytes[end..].fill(0);
    end.next_multiple_of(ZAP_LEAF_STEP).min(bytes.len())
}

/// Closes the holes among the records of an open leaf. An invalid leaf stays unchanged.
pub(super) fn compact(bytes: &mut [u8]) -> bool {
    let mut copy = [0; ZAP_LEAF_BYTES];
    let Some(copy) = copy.get_mut(..bytes.len()) else { return false };
    let done = Leaf::read(bytes)
        .and_then(|leaf| join(&[&leaf], leaf.depth(), leaf.prefix(), copy))
        .is_ok();
    if done {
        bytes.copy_from_slice(copy);
    }
    done
}
