//! A partition: a sorted array with gaps.
//!
//! The *home* of a slot is its order, taken as a fraction of the number of homes. Slots are in
//! strictly ascending order. No slot is before its home, and no slot between a home and its slot is
//! empty. This is Robin Hood hashing with ties broken by the hash. So
//!
//! - a search begins at the home and ends at the first slot that is empty or not smaller;
//! - any number of homes is possible. Growing and shrinking move the slots once, in order and in
//!   place, so a table can grow by an eighth and is never half empty after it has grown;
//! - nothing wraps around: a *tail* behind the homes holds slots pushed past the end.
//!
//! The last slot is always empty, which bounds every search.

use super::slot::{Slot, order_of};
use super::slot_array::{NoMemory, SlotArray};
use crate::record::{BlockAddr, KeyHash, Record};

/// The table grows above this share of homes in use, in 256ths.
const MAX_LOAD: u64 = 235;
/// It shrinks below this share ...
const MIN_LOAD: u64 = 192;
/// ... to this one, which also sizes a table whose number of records is known.
const TARGET_LOAD: u64 = 216;
/// Maximum factor by which a table grows at once for expected records.
const MAX_GROWTH: u32 = 4;
/// Homes of the smallest table.
const MIN_HOMES: u32 = 8;
/// Minimum growth, in homes.
const MIN_STEP: u32 = 4;
/// More slots than a `u32` can count.
const TOO_MANY: NoMemory = NoMemory::Heap { bytes: usize::MAX };
/// The longest initial tail.
const MAX_TAIL: usize = 32;

#[derive(Debug)]
pub(super) struct Table {
    slots: SlotArray,
    homes: u32,
    len: u32,
    /// Bits of the order that all slots of this partition share.
    shared_bits: u8,
}

/// How a full table grows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Growth {
    /// By an eighth, so that it is never much larger than needed.
    Gradual,
    /// Toward the expected number of records, at least by an eighth and at most to [`MAX_GROWTH`]
    /// times its size. `retain` releases the excess.
    Expecting {
        /// The expected number of records in the table.
        records: u64,
    },
}

/// The outcome of an insert.
#[derive(Debug)]
pub(super) enum PutOutcome {
    Inserted,
    Replaced(Slot),
    Stale,
}

/// The home of a slot with this order.
#[inline]
fn home_of(order: u64, shared_bits: u8, homes: u32) -> usize {
    ((u128::from(order << shared_bits) * u128::from(homes)) >> 64) as usize
}

/// Homes for this number of records.
fn homes_for(records: u64) -> Result<u32, NoMemory> {
    let homes = records.saturating_mul(256).div_ceil(TARGET_LOAD);
    u32::try_from(homes).map(|homes| homes.max(MIN_HOMES)).map_err(|_| TOO_MANY)
}

fn tail_of(homes: u32) -> usize {
    MAX_TAIL.min(4 + homes as usize / 16)
}

impl Table {
    pub(super) fn new(shared_bits: u8) -> Self {
        Self { slots: SlotArray::none(), homes: 0, len: 0, shared_bits }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Prefetches the slots where a search would begin.
    #[inline]
    pub(super) fn prefetch(&self, order: u64) {
        if let Some(slot) = self.slots.as_slice().get(home_of(order, self.shared_bits, self.homes))
        {
            forebay_base::sync::hint::prefetch(slot);
        }
    }

    /// The position of the slot with this order, or the position to insert it.
    #[inline]
    fn search(&self, order: u64) -> Result<usize, usize> {
        let slots = self.slots.as_slice();
        if slots.is_empty() {
            return Err(0);
        }
        let mut at = home_of(order, self.shared_bits, self.homes);
        loop {
            let slot = slots[at];
            if slot.is_empty() || slot.order() > order {
                return Err(at);
            }
            if slot.order() == order {
                return Ok(at);
            }
            at += 1;
        }
    }

    #[inline]
    pub(super) fn find(&self, hash: KeyHash) -> Option<Record> {
        self.search(order_of(hash)).ok().map(|at| self.slots.as_slice()[at].record())
    }

    /// The slot of the key hash.
    pub(super) fn of(&mut self, hash: KeyHash) -> Option<&mut Slot> {
        let at = self.search(order_of(hash)).ok()?;
        Some(&mut self.slots.as_mut_slice()[at])
    }

    /// The slot of the key hash, if it is still at `addr`.
    pub(super) fn at(&mut self, hash: KeyHash, addr: BlockAddr) -> Option<&mut Slot> {
        self.of(hash).filter(|slot| slot.addr() == addr)
    }

    /// Inserts a slot. An existing slot of the key hash is replaced if `newer` says so of their
    /// addresses.
    pub(super) fn put(
        &mut self,
        slot: Slot,
        newer: impl Fn(BlockAddr, BlockAddr) -> bool,
        growth: Growth,
    ) -> Result<PutOutcome, NoMemory> {
        let mut at = match self.search(slot.order()) {
            Ok(at) => {
                let old = &mut self.slots.as_mut_slice()[at];
                return Ok(if newer(old.addr(), slot.addr()) {
                    PutOutcome::Replaced(std::mem::replace(old, slot))
                } else {
                    PutOutcome::Stale
                });
            }
            Err(at) => at,
        };
        loop {
            let full = self.is_beyond(MAX_LOAD);
            let slots = self.slots.as_mut_slice();
            let behind = slots.get(at..).unwrap_or_default();
            let gap = behind.iter().position(|slot| slot.is_empty());
            match gap {
                Some(gap) if !full && at + gap + 1 < slots.len() => {
                    slots.copy_within(at..at + gap, at + 1);
                    slots[at] = slot;
                    self.len += 1;
                    return Ok(PutOutcome::Inserted);
                }
                _ => self.grow(growth)?,
            }
            at = match self.search(slot.order()) {
                Ok(_) => unreachable!("growing adds nothing"),
                Err(at) => at,
            };
        }
    }

    /// Removes and returns the slot of the key hash, if `wanted` accepts it.
    pub(super) fn take(&mut self, hash: KeyHash, wanted: impl Fn(Slot) -> bool) -> Option<Slot> {
        let at = self.search(order_of(hash)).ok()?;
        let slot = self.slots.as_slice()[at];
        if !wanted(slot) {
            return None;
        }
        self.shift_back(at);
        self.len -= 1;
        Some(slot)
    }

    /// Moves the following slots back by one, up to the first that is at home (backward shift
    /// deletion).
    fn shift_back(&mut self, at: usize) {
        let (shared_bits, homes) = (self.shared_bits, self.homes);
        let slots = self.slots.as_mut_slice();
        let displaced = |at: usize, slot: Slot| {
            !slot.is_empty() && home_of(slot.order(), shared_bits, homes) < at
        };
        let mut end = at + 1;
        while displaced(end, slots[end]) {
            end += 1;
        }
        slots.copy_within(at + 1..end, at);
        slots[end - 1] = Slot::EMPTY;
    }

    /// Keeps the slots that `wanted` accepts, and shrinks. Returns the number of removed slots.
    pub(super) fn retain(&mut self, wanted: impl Fn(Slot) -> bool) -> usize {
        let before = self.len;
        let slots = self.slots.as_mut_slice();
        for slot in slots.iter_mut().filter(|slot| !slot.is_empty()) {
            if !wanted(*slot) {
                *slot = Slot::EMPTY;
                self.len -= 1;
            }
        }
        if self.len < before {
            // Some slots may be behind a gap now.
            self.redistribute(self.homes);
        }
        self.shrink();
        (before - self.len) as usize
    }

    /// Supersedes the blocks at the addresses that `wanted` accepts. Returns how many were not bad.
    pub(super) fn supersede(&mut self, wanted: impl Fn(BlockAddr) -> bool) -> u64 {
        let slots = self.slots.as_mut_slice().iter_mut();
        let chosen = slots.filter(|slot| !slot.is_empty() && wanted(slot.addr()));
        chosen.map(|slot| u64::from(slot.supersede())).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.as_slice().iter().copied().filter(|slot| !slot.is_empty())
    }

    /// Whether at least this share of homes is in use.
    fn is_beyond(&self, load: u64) -> bool {
        u64::from(self.len) * 256 >= u64::from(self.homes) * load
    }

    fn grow(&mut self, growth: Growth) -> Result<(), NoMemory> {
        if u64::from(self.len) * 2 >= u64::from(self.homes) {
            let step = match growth {
                Growth::Gradual => self.homes / 8,
                Growth::Expecting { records } => {
                    let most = self.homes.saturating_mul(MAX_GROWTH);
                    let wanted = homes_for(records).unwrap_or(most).min(most);
                    wanted.saturating_sub(self.homes).max(self.homes / 8)
                }
            };
            let step = step.max(MIN_STEP);
            let homes = self.homes.checked_add(step).ok_or(TOO_MANY)?;
            return self.grow_to(homes.max(MIN_HOMES), 0);
        }
        // More homes would not help: too many slots have the same one, which a good hash does not
        // cause.
        self.grow_to(self.homes, self.slots.len() - self.homes as usize)
    }

    /// Releases memory if much more is in use than needed.
    pub(super) fn shrink(&mut self) {
        if self.len == 0 {
            (self.slots, self.homes) = (SlotArray::none(), 0);
            return;
        }
        if self.is_beyond(MIN_LOAD) {
            return;
        }
        let Ok(homes) = homes_for(u64::from(self.len)) else { return };
        if homes < self.homes {
            let end = self.redistribute(homes);
            self.homes = homes;
            // Without memory for a smaller array, the larger one stays.
            let _ = self.slots.resize((homes as usize + tail_of(homes)).max(end + 2));
        }
    }

    /// Moves every slot to its position for `homes`. No slot may be left of that, so the move runs
    /// in place from the left. Returns the end of the last slot.
    fn redistribute(&mut self, homes: u32) -> usize {
        let shared_bits = self.shared_bits;
        let slots = self.slots.as_mut_slice();
        let mut next = 0;
        for from in 0..slots.len() {
            let slot = slots[from];
            if slot.is_empty() {
                continue;
            }
            next = next.max(home_of(slot.order(), shared_bits, homes));
            slots[from] = Slot::EMPTY;
            slots[next] = slot;
            next += 1;
        }
        next
    }

    /// Grows to `homes`, with a tail of at least `tail` slots.
    fn grow_to(&mut self, homes: u32, tail: usize) -> Result<(), NoMemory> {
        debug_assert!(homes >= self.homes);
        let shared_bits = self.shared_bits;
        let home = |slot: Slot| home_of(slot.order(), shared_bits, homes);
        let end = self.iter().fold(0, |next, slot| next.max(home(slot)) + 1);
        let tail = tail_of(homes).max(2 * tail);
        let wanted = (homes as usize + tail).max(end + tail_of(homes)).max(self.slots.len());
        // Moves all slots to the right end first, then from the left to their positions. New pages
        // are written before they are read: a page that is read first is mapped twice, the second
        // time on all processors.
        let before = self.slots.len();
        self.slots.resize(wanted)?;
        let slots = self.slots.as_mut_slice();
        let mut first = slots.len();
        for from in (0..before).rev() {
            let slot = slots[from];
            if !slot.is_empty() {
                first -= 1;
                slots[from] = Slot::EMPTY;
                slots[first] = slot;
            }
        }
        self.homes = homes;
        self.redistribute(homes);
        Ok(())
    }

    /// Panics unless the invariants of the module head hold.
    #[cfg(test)]
    pub(super) fn audit(&self) {
        let slots = self.slots.as_slice();
        assert!(slots.last().is_none_or(|slot| slot.is_empty()), "the last slot is not empty");
        let mut before: Option<u64> = None;
        let mut run = 0;
        for (at, slot) in slots.iter().enumerate() {
            if slot.is_empty() {
                run = 0;
                continue;
            }
            let home = home_of(slot.order(), self.shared_bits, self.homes);
            assert!(home <= at, "slot {at} is before its home {home}");
            assert!(at - home <= run, "slot {at} is not reached from its home {home}");
            assert!(before.is_none_or(|before| before < slot.order()), "slot {at} is out of order");
            before = Some(slot.order());
            run += 1;
        }
        assert_eq!(self.iter().count(), self.len(), "records and their count");
    }
}
