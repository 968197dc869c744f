//! A leaf of a fat directory: reading.
//!
//! A leaf is a header, records, and slots: an ordered array of numbers. A slot has the upper half
//! of a name's hash, a collision number, and the offset of the name's record. Hashes are evenly
//! distributed, so a lookup starts with an interpolation search: it touches the header, one or two
//! cache lines of slots, and the record.
//!
//! Two forms differ in the location of the slots only. In *stored* form, they follow the records,
//! and the leaf ends with them, rounded up to `ZAP_LEAF_STEP`. In *open* form, for changes, they
//! end at the end of the buffer, and new records and slots grow towards each other. Readers handle
//! both alike.
//!
//! # Invariants
//!
//! - `header <= records_end <= slots_at`.
//! - Slots ascend strictly. Each refers to a record between the header and `records_end`.
//!   `hole_bytes` counts the bytes of records that no slot refers to.
//! - All hashes have the prefix of the leaf.
//!
//! Content from a device may violate all of it. [`Leaf::read`] checks what later accesses rely on,
//! each access checks its bounds, and [`Leaf::validate`] checks everything.

mod build;
mod edit;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use zerocopy::FromBytes;

use super::entry::{Value, first_position, prefix_mask};
use crate::format::{
    ZAP_DEPTH_MAX, ZAP_LEAF_BYTES, ZAP_LEAF_MAGIC, ZAP_LEAF_OPEN, ZAP_LEAF_STORED, ZAP_NAME_MAX,
    ZAP_VALUE_MAX, ZapLeafPhys, ZapSlotPhys,
};

pub(crate) use build::pack;
pub(super) use build::{Builder, put_leaf};
pub(super) use edit::{Change, LeafMut, merged};

const HEAD: usize = size_of::<ZapLeafPhys>();
const SLOT: usize = size_of::<ZapSlotPhys>();
/// The two length bytes of a record.
const RECORD_HEAD: usize = 2;
/// Bytes of the longest entry.
pub(super) const ENTRY_MAX: usize = SLOT + RECORD_HEAD + ZAP_NAME_MAX + ZAP_VALUE_MAX;

/// The defect of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafDefect(pub(super) &'static str);

/// A name and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl Record<'_> {
    /// Bytes of the record in the leaf.
    pub(super) fn bytes(&self) -> usize {
        RECORD_HEAD + self.name.len() + self.value.len()
    }

    /// A copy of the value.
    #[inline]
    pub(super) fn value(&self) -> Result<Value, LeafDefect> {
        Value::new(self.value).ok_or(LeafDefect("a value has an invalid length"))
    }
}

/// A leaf with a plausible header.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    head: &'a ZapLeafPhys,
    bytes: &'a [u8],
    records_end: usize,
    slots: &'a [ZapSlotPhys],
}

impl<'a> Leaf<'a> {
    #[inline]
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, LeafDefect> {
        let Ok((head, _)) = ZapLeafPhys::ref_from_prefix(bytes) else {
            return Err(LeafDefect("it is shorter than a leaf's header"));
        };
        let form_is_known = matches!(head.form, ZAP_LEAF_STORED | ZAP_LEAF_OPEN);
        if head.magic.get() != ZAP_LEAF_MAGIC || !form_is_known || bytes.len() > ZAP_LEAF_BYTES {
            return Err(LeafDefect("it is not a leaf of a directory"));
        }
        if head.depth > ZAP_DEPTH_MAX || head.prefix.get() & !prefix_mask(head.depth) != 0 {
            return Err(LeafDefect("its depth or prefix is invalid"));
        }
        let records_end = usize::from(head.records_end.get());
        let slots_at = usize::from(head.slots_at.get());
        let slots_end = slots_at + usize::from(head.count.get()) * SLOT;
        if records_end < HEAD || records_end > slots_at {
            return Err(LeafDefect("its records overlap its slots or its header"));
        }
        let slots = bytes.get(slots_at..slots_end).map(<[ZapSlotPhys]>::ref_from_bytes);
        let Some(Ok(slots)) = slots else {
            return Err(LeafDefect("its slots lie past its end"));
        };
        Ok(Self { head, bytes, records_end, slots })
    }

    /// Number of hash bits that select this leaf.
    #[inline]
    pub(super) fn depth(&self) -> u8 {
        self.head.depth
    }

    /// Those bits, at the upper end.
    pub(super) fn prefix(&self) -> u32 {
        self.head.prefix.get()
    }

    /// The bytes of the leaf, in its current form.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether entries with this hash belong to this leaf.
    #[inline]
    pub(super) fn covers(&self, hash: u32) -> bool {
        hash & prefix_mask(self.head.depth) == self.head.prefix.get()
    }

    /// Whether the leaf is open for changes: a txg that is not synced yet has changed it.
    pub(super) fn is_open(&self) -> bool {
        self.head.form == ZAP_LEAF_OPEN
    }

    /// Whether an entry has this hash.
    pub(super) fn has_hash(&self, hash: u32) -> bool {
        self.count_hashes(hash, hash) > 0
    }

    /// Whether an entry has this position.
    pub(super) fn has_position(&self, position: u64) -> bool {
        let index = self.lower_bound(position);
        self.slots.get(index).is_some_and(|slot| slot.position() == position)
    }

    /// Number of entries with hashes from `low` to `high`.
    pub(super) fn count_hashes(&self, low: u32, high: u32) -> usize {
        let first = self.lower_bound(first_position(low));
        let end = first_position(high) | 0xffff;
        let upper = match end == first_position(u32::MAX) | 0xffff {
            true => self.slots.len(),
            false => self.lower_bound(end + 1),
        };
        upper.saturating_sub(first)
    }

    /// Bytes that the entries use.
    pub(super) fn used_bytes(&self) -> usize {
        let records = self.records_end - HEAD;
        self.slots.len() * SLOT + records.saturating_sub(usize::from(self.head.hole_bytes.get()))
    }

    /// Length in stored form before rounding up.
    pub(super) fn packed_bytes(&self) -> usize {
        let records = self.used_bytes() - self.slots.len() * SLOT;
        (HEAD + records).next_multiple_of(SLOT) + self.slots.len() * SLOT
    }

    /// The record of a name.
    #[inline]
    pub(super) fn find(&self, hash: u32, name: &[u8]) -> Result<Option<Record<'a>>, LeafDefect> {
        Ok(self.locate(hash, name)?.map(|(_, record)| record))
    }

    /// The record of a name and the index of its slot.
    #[inline]
    pub(super) fn locate(
        &self,
        hash: u32,
        name: &[u8],
    ) -> Result<Option<(usize, Record<'a>)>, LeafDefect> {
        let from = self.lower_bound(first_position(hash));
        for (index, slot) in self.slots.iter().enumerate().skip(from) {
            if slot.hash() != hash {
                break;
            }
            let record = self.record(*slot)?;
            if record.name == name {
                return Ok(Some((index, record)));
            }
        }
        Ok(None)
    }

    /// Entries from a position on, with their positions.
    pub(super) fn entries_from(
        &self,
        position: u64,
    ) -> impl Iterator<Item = Result<(u64, Record<'a>), LeafDefect>> {
        let slots = &self.slots[self.lower_bound(position)..];
        slots.iter().map(|slot| Ok((slot.position(), self.record(*slot)?)))
    }

    /// Validates everything that readers and writers rely on.
    pub(super) fn validate(&self) -> Result<(), LeafDefect> {
        let mut live = 0;
        let mut before = None;
        for slot in self.slots {
            if !self.covers(slot.hash()) {
                return Err(LeafDefect("a hash belongs to another leaf"));
            }
            if before.is_some_and(|before| before >= slot.position()) {
                return Err(LeafDefect("its slots are out of order"));
            }
            before = Some(slot.position());
            live += self.record(*slot)?.bytes();
        }
        if live + usize::from(self.head.hole_bytes.get()) != self.records_end - HEAD {
            return Err(LeafDefect("its records do not add up"));
        }
        Ok(())
    }

    #[inline]
    fn record(&self, slot: ZapSlotPhys) -> Result<Record<'a>, LeafDefect> {
        const OUTSIDE: LeafDefect = LeafDefect("a record lies outside of the leaf");
        if slot.at() < HEAD {
            return Err(OUTSIDE);
        }
        match self.bytes.get(slot.at()..self.records_end) {
            Some([name_bytes, value_bytes, rest @ ..]) => {
                let (name_bytes, value_bytes) =
                    (usize::from(*name_bytes), usize::from(*value_bytes));
                let both = rest.get(..name_bytes + value_bytes).ok_or(OUTSIDE)?;
                let (name, value) = both.split_at(name_bytes);
                if name.is_empty() {
                    return Err(LeafDefect("a name is empty"));
                }
                Ok(Record { name, value })
            }
            _ => Err(OUTSIDE),
        }
    }

    /// Index of the slot where a search for this hash starts, if there are slots. Hashes after the
    /// prefix are evenly distributed, so the start is near.
    #[inline]
    pub(super) fn interpolate(&self, hash: u32) -> usize {
        ((u64::from(hash << self.head.depth) * self.slots.len() as u64) >> 32) as usize
    }

    /// Index of the first slot at or after a position.
    #[inline]
    fn lower_bound(&self, position: u64) -> usize {
        /// Slots that the first step examines to either side of the start: a cache line.
        const STEP: usize = 8;
        let slots = self.slots;
        if slots.is_empty() {
            return 0;
        }
        let start = self.interpolate((position >> 16) as u32);
        let (mut low, mut high) = (start, start);
        let mut step = STEP;
        if slots[low].position() < position {
            high = slots.len();
            low += 1;
            while low + step < slots.len() {
                if slots[low + step].position() >= position {
                    high = low + step;
                    break;
                }
                low += step + 1;
                step *= 2;
            }
        } else {
            low = 0;
            while high >= step {
                if slots[high - step].position() < position {
                    low = high - step + 1;
                    break;
                }
                high -= step;
                step *= 2;
            }
        }
        low + slots[low..high].partition_point(|slot| slot.position() < position)
    }
}
