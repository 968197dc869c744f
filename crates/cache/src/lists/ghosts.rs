//! Ghosts: entries that remember evicted blocks.
//!
//! A ghost is an index slot and an entry of 16 bytes in a ring, 24 to 29 bytes in all. The slot
//! holds list, position, and when and how often the block was used. The ring entry holds the hash,
//! by which the slot is found when the entry is popped.
//!
//! Invariants
//!
//! * A ghost exists as long as its slot. An insert that finds it (a *ghost hit*) takes the slot
//!   under the partition's lock and does not touch the ring. The ring entry is skipped when it is
//!   popped. So a ring remembers the latest evictions up to a bound on their weight, whether their
//!   blocks have come back or not.
//! * No slot outlives its ring entry. The thread that makes the slot checks under the partition's
//!   lock that the entry is still in the ring ([`Ghosts::is_over`]). The thread that pops entries
//!   raises `over` before it looks for their slots.
//!
//! Locking: `ghost-sublist`, a leaf lock.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};

use super::draw;
use super::ring::{FreeBlocks, Ring};
use crate::attributes::Class;
use crate::key::OwnerId;

/// A ghost list. There is one per state and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GhostList {
    pub(crate) frequent: bool,
    pub(crate) class: Class,
}

impl GhostList {
    pub(crate) fn number(self) -> usize {
        usize::from(self.frequent) * 2 + self.class as usize
    }
    pub(crate) fn from_number(number: usize) -> Self {
        Self { frequent: number >= 2, class: Class::ALL[number % 2] }
    }
}

/// The ring entry of an evicted block. A weight of zero marks an entry whose content was taken out.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub(crate) struct Ghost {
    pub(crate) hash: u64,
    pub(crate) weight: u32,
    owner: u16,
    /// The low bits of the tick of the eviction.
    tick: u16,
}

const _: () = assert!(size_of::<Ghost>() == 16);

impl Ghost {
    pub(crate) fn new(hash: u64, weight: u32, owner: OwnerId, tick: u32) -> Self {
        Self { hash, weight: weight.max(1), owner: owner.0, tick: tick as u16 }
    }
    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId(self.owner)
    }
}

/// The ghosts of one state and class.
pub(crate) struct Ghosts {
    sublists: Box<[CachePadded<GhostSublist>]>,
    /// Binary logarithm of the number of sublists.
    shift: u32,
    /// Weight of all entries in the rings.
    bytes: AtomicU64,
    /// Entries with a slot.
    live: AtomicU64,
}

struct GhostSublist {
    ring: Mutex<Ring<Ghost>>,
    /// Entries below this position were popped.
    over: AtomicU64,
    /// Entries in the ring. Written under its lock only.
    entries: AtomicU64,
    /// The tick of the coldest entry, if there is one. Written under the lock only.
    oldest: AtomicU32,
}

/// More sublists would leave too few bits of a slot for the position.
const MAX_SUBLISTS: usize = 16;

impl GhostSublist {
    /// Adds `change` to the number of entries. The caller holds the ring's lock and passes the ring
    /// as it is now.
    fn count(&self, ring: &Ring<Ghost>, change: u64) {
        let entries = self.entries.load(Ordering::Relaxed);
        self.entries.store(entries.wrapping_add(change), Ordering::Relaxed);
        if let Some(coldest) = ring.get(ring.tail()) {
            self.oldest.store(coldest.tick.into(), Ordering::Relaxed);
        }
    }
}

impl Ghosts {
    /// Makes `sublists` sublists, or [`MAX_SUBLISTS`] if that is less. Must be a power of two.
    pub(crate) fn new(sublists: usize, free: &Arc<FreeBlocks<Ghost>>) -> Self {
        assert!(sublists.is_power_of_two());
        let sublist = || GhostSublist {
            ring: Mutex::named("ghost-sublist", Ring::new(free.clone())),
            over: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            oldest: AtomicU32::new(0),
        };
        let sublists = sublists.min(MAX_SUBLISTS);
        Self {
            sublists: (0..sublists).map(|_| CachePadded::new(sublist())).collect(),
            shift: sublists.trailing_zeros(),
            bytes: AtomicU64::new(0),
            live: AtomicU64::new(0),
        }
    }

    /// The sublist of a stamped position, and the position in its ring.
    fn at(&self, position: u64) -> (&GhostSublist, u64) {
        (&self.sublists[position as usize & (self.sublists.len() - 1)], position >> self.shift)
    }

    /// A position that includes the number of its sublist.
    fn stamp(&self, sublist: usize, position: u64) -> u64 {
        (position << self.shift) | sublist as u64
    }

    /// Adds ghosts of blocks of the `nth` sublist, and stores the stamped position of each.
    pub(crate) fn push_all<'a>(
        &self,
        nth: usize,
        ghosts: impl Iterator<Item = (Ghost, &'a mut u64)>,
    ) {
        let nth = nth & (self.sublists.len() - 1);
        let sublist = &self.sublists[nth];
        let (mut bytes, mut entries) = (0, 0);
        let mut ring = sublist.ring.lock();
        for (ghost, stamp) in ghosts {
            *stamp = self.stamp(nth, ring.push(ghost));
            bytes += u64::from(ghost.weight);
            entries += 1;
        }
        // Under the lock: a thread that pops the entries subtracts their weight.
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        sublist.count(&ring, entries);
    }

    /// Whether an entry was popped. Then it must not have a slot.
    pub(crate) fn is_over(&self, position: u64) -> bool {
        let (sublist, position) = self.at(position);
        sublist.over.load(Ordering::SeqCst) > position
    }

    /// Counts ghosts that got a slot, and ghosts that lost theirs.
    pub(crate) fn count_slots(&self, made: u64, removed: u64) {
        if made == removed {
            return;
        }
        self.live.fetch_add(made.wrapping_sub(removed), Ordering::Relaxed);
    }

    /// Pops up to `most` of the oldest entries of one sublist, each with its position.
    pub(crate) fn pop(&self, nth: usize, most: usize, out: &mut Vec<(u64, Ghost)>) {
        let start = out.len();
        let sublist = &self.sublists[nth];
        let mut ring = sublist.ring.lock();
        let entries = std::iter::from_fn(|| ring.pop()).take(most);
        out.extend(entries.map(|(position, ghost)| (self.stamp(nth, position), ghost)));
        sublist.over.store(ring.tail(), Ordering::SeqCst);
        sublist.count(&ring, 0u64.wrapping_sub((out.len() - start) as u64));
        drop(ring);
        let bytes: u64 = out[start..].iter().map(|(_, g)| u64::from(g.weight)).sum();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes the content of all entries for which `wanted` is true out of the rings.
    pub(crate) fn extract(&self, wanted: impl Fn(&Ghost) -> bool) -> Vec<(u64, Ghost)> {
        let mut out = Vec::new();
        for (nth, sublist) in self.sublists.iter().enumerate() {
            let mut ring = sublist.ring.lock();
            for position in ring.tail()..ring.next_position() {
                if let Some(ghost) = ring.get_mut(position).filter(|g| g.weight > 0 && wanted(g)) {
                    out.push((self.stamp(nth, position), std::mem::take(ghost)));
                }
            }
            while ring.get(ring.tail()).is_some_and(|ghost| ghost.weight == 0) {
                ring.pop();
                sublist.count(&ring, 1u64.wrapping_neg());
            }
            sublist.over.store(ring.tail(), Ordering::SeqCst);
            ring.trim();
        }
        let bytes: u64 = out.iter().map(|(_, g)| u64::from(g.weight)).sum();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        out
    }

    /// Copies all entries, for audits.
    pub(crate) fn all(&self) -> Vec<(u64, Ghost)> {
        let mut out = Vec::new();
        for (nth, sublist) in self.sublists.iter().enumerate() {
            let ring = sublist.ring.lock();
            let positions = ring.tail()..ring.next_position();
            out.extend(positions.filter_map(|p| Some((self.stamp(nth, p), ring.get(p)?))));
        }
        out
    }

    /// Draws a sublist with probability proportional to its entries; `None` if there are none.
    pub(crate) fn draw(&self, below: impl FnOnce(u64) -> u64) -> Option<usize> {
        draw(self.sublists.iter().map(|s| s.entries.load(Ordering::Relaxed)), below)
    }

    /// Weight and number of all entries, including those whose blocks came back, and the age of the
    /// oldest in ticks.
    pub(crate) fn remembered(&self, now: u32) -> (u64, u64, u32) {
        let filled = self.sublists.iter().filter(|s| s.entries.load(Ordering::Relaxed) > 0);
        let ages = filled.map(|s| now.wrapping_sub(s.oldest.load(Ordering::Relaxed)));
        let oldest = ages.map(|age| age & u32::from(u16::MAX)).max().unwrap_or(0);
        (self.bytes.load(Ordering::Relaxed), self.entries(), oldest)
    }

    fn entries(&self) -> u64 {
        self.sublists.iter().map(|s| s.entries.load(Ordering::Relaxed)).sum()
    }

    /// Entries with a slot.
    pub(crate) fn count(&self) -> u64 {
        // Slots are counted after they are made, so the sum may be negative for a moment.
        (self.live.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// Weight of the blocks that ghosts stand for: that of all entries, times the share with a
    /// slot.
    pub(crate) fn bytes(&self) -> u64 {
        let (bytes, all) = (self.bytes.load(Ordering::Relaxed), self.entries());
        let live = self.count().min(all);
        match bytes.checked_mul(live) {
            // Called often, and a division of 128 bits is slow.
            Some(product) => product / all.max(1),
            None => (u128::from(bytes) * u128::from(live) / u128::from(all.max(1))) as u64,
        }
    }

    /// Memory of the rings in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.sublists.iter().map(|s| s.ring.lock().bytes()).sum()
    }
}
