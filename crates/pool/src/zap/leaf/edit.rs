//! Changing a leaf.

use zerocopy::IntoBytes;

use super::build::{WRONG_SIZE, compact, has_open_size, join, put_record};
use super::{HEAD, Leaf, LeafDefect, Record, SLOT};
use crate::format::{ZAP_DEPTH_MAX, ZAP_LEAF_OPEN, ZAP_LEAF_STORED, ZapLeafPhys, ZapSlotPhys};
use crate::zap::entry::{HashedName, Value, first_position, hash_at, next_collision, prefix_mask};

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::zap) enum Change {
    /// Done, with the old value of the name.
    Done(Option<Value>),
    /// Nothing changed: the name exists with this value.
    Exists(Value),
    /// Nothing changed: the name does not exist.
    Missing,
    /// Nothing changed: there is not enough space.
    Full,
}

/// A leaf open for changes, in a buffer of `ZAP_LEAF_BYTES`, or a page in one of `ZAP_PAGE_BYTES`.
pub(in crate::zap) struct LeafMut<'a> {
    bytes: &'a mut [u8],
    head: ZapLeafPhys,
}

impl<'a> LeafMut<'a> {
    /// Opens a leaf. A leaf in stored form is validated, and its slots move to the end of the
    /// buffer.
    #[inline]
    pub(in crate::zap) fn open(bytes: &'a mut [u8]) -> Result<Self, LeafDefect> {
        if !has_open_size(bytes) {
            return Err(WRONG_SIZE);
        }
        let leaf = Leaf::read(bytes)?;
        let head = *leaf.head;
        if head.form == ZAP_LEAF_STORED {
            return Self::expand(bytes);
        }
        let slots_end = usize::from(head.slots_at.get()) + leaf.slots.len() * SLOT;
        if slots_end != bytes.len() {
            return Err(LeafDefect("its slots do not end at the end of the buffer"));
        }
        Ok(Self { bytes, head })
    }

    #[cold]
    fn expand(bytes: &'a mut [u8]) -> Result<Self, LeafDefect> {
        let leaf = Leaf::read(bytes)?;
        leaf.validate()?;
        let mut head = *leaf.head;
        let slots_bytes = leaf.slots.len() * SLOT;
        let from = usize::from(head.slots_at.get());
        let to = bytes.len() - slots_bytes;
        bytes.copy_within(from..from + slots_bytes, to);
        head.form = ZAP_LEAF_OPEN;
        head.slots_at = (to as u16).into();
        let mut this = Self { bytes, head };
        this.put_head();
        Ok(this)
    }

    /// Read access to the leaf.
    #[inline]
    pub(in crate::zap) fn leaf(&self) -> Result<Leaf<'_>, LeafDefect> {
        Leaf::read(self.bytes)
    }

    /// Adds a name if it does not exist.
    #[inline]
    pub(in crate::zap) fn insert(
        &mut self,
        name: HashedName<'_>,
        value: &[u8],
    ) -> Result<Change, LeafDefect> {
        let leaf = self.leaf()?;
        let first = leaf.lower_bound(first_position(name.hash()));
        let alike = leaf.slots[first..].iter().take_while(|slot| slot.hash() == name.hash());
        let (mut alike_len, mut index, mut position) = (0, first, name.home);
        for slot in alike {
            let record = leaf.record(*slot)?;
            if record.name == name.name {
                return Ok(Change::Exists(record.value()?));
            }
            alike_len += 1;
        }
        if alike_len > 0 {
            let alike = &leaf.slots[first..first + alike_len];
            // A leaf has far fewer slots than there are collision numbers.
            while alike.iter().any(|slot| slot.position() == position) {
                position = next_collision(position);
            }
            index += alike.partition_point(|slot| slot.position() < position);
        }
        Ok(self.append_at(index, position, Record { name: name.name, value }))
    }

    /// Adds a name at a certain position.
    ///
    /// # Errors
    /// If the leaf has the name, or another name at that position.
    pub(in crate::zap) fn insert_at(
        &mut self,
        position: u64,
        record: Record<'_>,
    ) -> Result<Change, LeafDefect> {
        self.insert_beside(position, record, 0)
    }

    /// As [`insert_at`](Self::insert_at), if that leaves so many bytes.
    pub(in crate::zap) fn insert_beside(
        &mut self,
        position: u64,
        record: Record<'_>,
        room: usize,
    ) -> Result<Change, LeafDefect> {
        let leaf = self.leaf()?;
        if leaf.find(hash_at(position), record.name)?.is_some() {
            return Err(LeafDefect("it has a name that is in the change buffer too"));
        }
        let index = leaf.lower_bound(position);
        if leaf.has_position(position) {
            return Err(LeafDefect("it has a name at the position of one in the change buffer"));
        }
        let used = HEAD + leaf.used_bytes() + SLOT + record.bytes();
        if used + room > self.bytes.len() {
            return Ok(Change::Full);
        }
        Ok(self.append_at(index, position, record))
    }

    #[inline]
    fn append_at(&mut self, index: usize, position: u64, record: Record<'_>) -> Change {
        if !self.make_space(SLOT + record.bytes()) {
            return Change::Full;
        }
        let at = self.append(record);
        self.insert_slot(index, ZapSlotPhys::new(position, at));
        self.put_head();
        Change::Done(None)
    }

    /// Replaces the value of a name. The position stays.
    pub(in crate::zap) fn replace(
        &mut self,
        hash: u32,
        name: &[u8],
        value: &[u8],
    ) -> Result<Change, LeafDefect> {
        let leaf = self.leaf()?;
        let Some((index, old)) = leaf.locate(hash, name)? else {
            return Ok(Change::Missing);
        };
        let old_value = old.value()?;
        let (slot, old_bytes) = (leaf.slots[index], old.bytes());
        let new = Record { name, value };
        if new.bytes() <= old_bytes {
            put_record(self.bytes, slot.at(), new);
            self.add_hole(old_bytes - new.bytes());
        } else {
            if !self.make_space(new.bytes()) {
                return Ok(Change::Full);
            }
            // `make_space` may have moved the records, but not the slots.
            let at = self.append(new);
            let slot_at = self.slots_at() + index * SLOT;
            let new_slot = ZapSlotPhys::new(slot.position(), at);
            self.bytes[slot_at..slot_at + SLOT].copy_from_slice(new_slot.as_bytes());
            self.add_hole(old_bytes);
        }
        self.put_head();
        Ok(Change::Done(Some(old_value)))
    }

    /// Removes a name.
    pub(in crate::zap) fn remove(&mut self, hash: u32, name: &[u8]) -> Result<Change, LeafDefect> {
        let leaf = self.leaf()?;
        let Some((index, record)) = leaf.locate(hash, name)? else {
            return Ok(Change::Missing);
        };
        let value = record.value()?;
        let (at, bytes) = (leaf.slots[index].at(), record.bytes());
        let slots_at = self.slots_at();
        self.bytes.copy_within(slots_at..slots_at + index * SLOT, slots_at + SLOT);
        self.head.slots_at = ((slots_at + SLOT) as u16).into();
        self.head.count = (self.head.count.get().saturating_sub(1)).into();
        if self.head.count.get() == 0 {
            self.head.records_end = (HEAD as u16).into();
            self.head.hole_bytes = 0.into();
        } else if at + bytes == self.records_end() {
            self.head.records_end = (at as u16).into();
        } else {
            self.add_hole(bytes);
        }
        self.put_head();
        Ok(Change::Done(Some(value)))
    }

    /// Whether splits can separate some entries from the others or from an entry with this hash.
    pub(in crate::zap) fn can_split(&self, hash: u32) -> Result<bool, LeafDefect> {
        let leaf = self.leaf()?;
        let differs = |slot: &ZapSlotPhys| (slot.hash() ^ hash) & prefix_mask(ZAP_DEPTH_MAX) != 0;
        Ok(leaf.depth() < ZAP_DEPTH_MAX
            && (leaf.slots.first().is_some_and(differs) || leaf.slots.last().is_some_and(differs)))
    }

    /// Fills `low` and `high` with the two leaves of a split. This leaf stays unchanged.
    pub(in crate::zap) fn halves(&self, low: &mut [u8], high: &mut [u8]) -> Result<(), LeafDefect> {
        let leaf = self.leaf()?;
        let depth = leaf.depth() + 1;
        let middle = leaf.prefix() | 1 << (32 - u32::from(depth));
        let cut = leaf.lower_bound(first_position(middle));
        let (low_slots, high_slots) = leaf.slots.split_at(cut);
        join(&[&Leaf { slots: low_slots, ..leaf }], depth, leaf.prefix(), low)?;
        join(&[&Leaf { slots: high_slots, ..leaf }], depth, middle, high)
    }

    fn records_end(&self) -> usize {
        usize::from(self.head.records_end.get())
    }

    fn slots_at(&self) -> usize {
        usize::from(self.head.slots_at.get())
    }

    fn put_head(&mut self) {
        self.bytes[..HEAD].copy_from_slice(self.head.as_bytes());
    }

    fn add_hole(&mut self, bytes: usize) {
        self.head.hole_bytes = self.head.hole_bytes.get().saturating_add(bytes as u16).into();
    }

    /// Whether `bytes` are free between records and slots, after closing holes if necessary.
    #[inline]
    fn make_space(&mut self, bytes: usize) -> bool {
        let free = self.slots_at() - self.records_end();
        if bytes <= free {
            return true;
        }
        if bytes > free + usize::from(self.head.hole_bytes.get()) || !compact(self.bytes) {
            return false;
        }
        match self.leaf().map(|leaf| *leaf.head) {
            Ok(head) => self.head = head,
            Err(_) => return false,
        }
        bytes <= self.slots_at() - self.records_end()
    }

    /// Appends a record, for which there must be enough space. Returns its offset.
    #[inline]
    fn append(&mut self, record: Record<'_>) -> u16 {
        let at = self.head.records_end.get();
        let end = put_record(self.bytes, usize::from(at), record);
        self.head.records_end = (end as u16).into();
        at
    }

    /// Inserts a slot, for which there must be enough space.
    #[inline]
    fn insert_slot(&mut self, index: usize, slot: ZapSlotPhys) {
        let old_at = self.slots_at();
        let new_at = old_at - SLOT;
        let slot_at = new_at + index * SLOT;
        self.bytes.copy_within(old_at..old_at + index * SLOT, new_at);
        self.bytes[slot_at..slot_at + SLOT].copy_from_slice(slot.as_bytes());
        self.head.slots_at = (new_at as u16).into();
        self.head.count = (self.head.count.get() + 1).into();
    }
}

/// Fills `out` with the leaf that two buddies merge into.
pub(in crate::zap) fn merged(
    low: &Leaf<'_>,
    high: &Leaf<'_>,
    out: &mut [u8],
) -> Result<(), LeafDefect> {
    let depth =
        low.depth().checked_sub(1).ok_or(LeafDefect("a leaf of all hashes has no buddy"))?;
    let prefix = low.prefix() & prefix_mask(depth);
    let middle = prefix | 1 << (31 - u32::from(depth));
    if high.depth() != low.depth() || low.prefix() != prefix || high.prefix() != middle {
        return Err(LeafDefect("two leaves to merge are not buddies"));
    }
    join(&[low, high], depth, prefix, out)
}
