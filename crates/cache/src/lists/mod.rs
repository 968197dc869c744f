//! The lists: the order of resident blocks ([`MultiList`]) and of ghosts ([`ghosts`]).
//!
//! A multilist stands for one state and class, and is split into sublists with a lock each. A
//! thread adds to its own sublist, so adding moves no cache line between processors. A header's
//! position includes the number of the sublist. The evictor draws a sublist with probability
//! proportional to its blocks, so a block stays equally long whichever thread has inserted it.
//!
//! A sublist is a [`ring::Ring`] of header numbers, pushed at the head and popped at the tail.
//! Headers have no links. A block that leaves the cache early stays in the ring as a stale number,
//! which no longer matches its header's state. The evictor skips it, or [`ring::Ring::compact`]
//! removes it. So removal takes no list lock. Only inserts and the evictor touch a list.
//!
//! Locking: `sublist` and `ghost-sublist` are leaf locks, never more than one at a time.

pub(crate) mod ghosts;
pub(crate) mod ring;

use crossbeam_utils::CachePadded;
use forebay_base::probe;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, MutexGuard, thread_slot};

use crate::attributes::Class;
use crate::header::List;
use ring::{FreeBlocks, Ring};

/// The blocks of one state and class.
pub(crate) struct MultiList {
    sublists: Box<[CachePadded<Sublist>]>,
}

pub(crate) struct Sublist {
    /// For probes: the list's number and class, as in a header's state.
    list_and_class: u8,
    /// Number of this sublist, below two to the power of `shift`.
    nth: u32,
    shift: u32,
    ring: Mutex<Ring<u32>>,
    /// Weight and number of blocks that were added. Written under the ring's lock only.
    added: Tally,
    /// Weight and number of blocks that were removed.
    removed: Tally,
}

#[derive(Default)]
struct Tally {
    bytes: AtomicU64,
    blocks: AtomicU64,
}

impl MultiList {
    /// Makes `sublists` sublists, a power of two. Lists may share `free`.
    pub(crate) fn new(
        (list, class): (List, Class),
        sublists: usize,
        free: &Arc<FreeBlocks<u32>>,
    ) -> Self {
        assert!(sublists.is_power_of_two());
        let sublist = |nth: usize| Sublist {
            list_and_class: (list as u8) << 1 | class as u8,
            nth: nth as u32,
            shift: sublists.trailing_zeros(),
            ring: Mutex::named("sublist", Ring::new(free.clone())),
            added: Tally::default(),
            removed: Tally::default(),
        };
        Self { sublists: (0..sublists).map(|n| CachePadded::new(sublist(n))).collect() }
    }

    /// The sublist to which the calling thread adds.
    pub(crate) fn mine(&self) -> &Sublist {
        &self.sublists[thread_slot().index(self.sublists.len())]
    }

    /// The sublist of a stamped position.
    pub(crate) fn at(&self, stamp: u32) -> &Sublist {
        &self.sublists[stamp as usize & (self.sublists.len() - 1)]
    }

    pub(crate) fn nth(&self, n: usize) -> &Sublist {
        &self.sublists[n]
    }

    pub(crate) fn len(&self) -> usize {
        self.sublists.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sublist> + Clone {
        self.sublists.iter().map(|s| &**s)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(Sublist::bytes).sum()
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.iter().map(Sublist::blocks).sum()
    }
}

impl Sublist {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ring<u32>> {
        self.ring.lock()
    }

    /// A ring position as a header's state stores it: 32 bits, of which the lowest are the number
    /// of the sublist. So a ring entry cannot match a header that was reused in another sublist.
    pub(crate) fn stamp(&self, position: u64) -> u32 {
        ((position << self.shift) as u32) | self.nth
    }

    /// Counts a block whose state has just changed to this list. The caller holds the ring's lock,
    /// so this is no atomic update.
    pub(crate) fn count_in(&self, _locked: &Ring<u32>, weight: u32) {
        let add = |cell: &AtomicU64, n: u64| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.added.bytes, u64::from(weight));
        add(&self.added.blocks, 1);
        probe!(sublist_insert, self.list_and_class, self.nth, weight);
    }

    /// Subtracts blocks whose states have just left this list.
    pub(crate) fn count_out(&self, bytes: u64, blocks: u64) {
        if blocks > 0 {
            self.removed.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.removed.blocks.fetch_add(blocks, Ordering::Relaxed);
            probe!(sublist_remove, self.list_and_class, self.nth, blocks, bytes);
        }
    }

    /// Weight of the blocks whose state names this list.
    pub(crate) fn bytes(&self) -> u64 {
        difference(&self.added.bytes, &self.removed.bytes)
    }

    /// Number of the blocks whose state names this list.
    pub(crate) fn blocks(&self) -> u64 {
        difference(&self.added.blocks, &self.removed.blocks)
    }

    /// Blocks ever added and removed, for the unevenness of sublists.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.added.blocks.load(Ordering::Relaxed), self.removed.blocks.load(Ordering::Relaxed))
    }
}

/// A block may be subtracted by one thread before another has added it.
fn difference(added: &AtomicU64, removed: &AtomicU64) -> u64 {
    let difference = added.load(Ordering::Relaxed).wrapping_sub(removed.load(Ordering::Relaxed));
    (difference as i64).max(0) as u64
}

/// Draws an index with probability proportional to its blocks. `below` returns a random number
/// below its argument.
pub(crate) fn draw(
    blocks: impl Iterator<Item = u64> + Clone,
    below: impl FnOnce(u64) -> u64,
) -> Option<usize> {
    let all: u64 = blocks.clone().sum();
    let mut drawn = if all > 0 { below(all) } else { return None };
    let mut last = None;
    for (nth, blocks) in blocks.enumerate().filter(|(_, blocks)| *blocks > 0) {
        last = Some(nth);
        if drawn < blocks {
            break;
        }
        drawn -= blocks;
    }
    // The numbers may have changed since they were summed. Then it is the last index.
    last
}
