//! The lists: the order in which blocks, and the memory of blocks, came.
//!
//! A [`MultiList`] stands for one state and class; it is split into sublists with a lock each.
//! A thread adds to a sublist of its own (shared by as many threads as there are more of them than
//! sublists), so that adding moves no cache line between processors; a header's position names the
//! sublist. The evictor draws a sublist by its number of blocks: then a block stays as long
//! whichever thread brought it, however unevenly they bring. A sublist is a [`ring::Ring`]: a
//! queue of header numbers, pushed at the head and taken at the tail. There are no links in the
//! headers. A block that leaves the cache before its turn stays in the ring as a number that no
//! longer fits its header's state and position, and is passed over (or squeezed out by
//! [`ring::Ring::compact`]). So removal takes no list lock, and a list is touched on insert and by the
//! evictor only.
//!
//! Ghosts are kept likewise, see [`ghosts`].
//!
//! Locking: `sublist` and `ghost-sublist` are leaf locks, never more than one at a time.

pub(crate) mod ghosts;
pub(crate) mod ring;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Mutex, MutexGuard, thread_slot};

use ring::Ring;

/// One state of one class.
pub(crate) struct MultiList {
    sublists: Box<[CachePadded<Sublist>]>,
}

pub(crate) struct Sublist {
    /// Which one, of two to the power of `shift`.
    nth: u32,
    shift: u32,
    ring: Mutex<Ring<u32>>,
    /// Weights and numbers of blocks that came. Written under the ring's lock only.
    added: Tally,
    /// Weights and numbers of blocks that went.
    removed: Tally,
}

#[derive(Default)]
struct Tally {
    bytes: AtomicU64,
    blocks: AtomicU64,
}

impl MultiList {
    /// With `sublists` of them, a power of two.
    pub(crate) fn new(sublists: usize) -> Self {
        assert!(sublists.is_power_of_two());
        let sublist = |nth: usize| Sublist {
            nth: nth as u32,
            shift: sublists.trailing_zeros(),
            ring: Mutex::named("sublist", Ring::new()),
            added: Tally::default(),
            removed: Tally::default(),
        };
        Self { sublists: (0..sublists).map(|n| CachePadded::new(sublist(n))).collect() }
    }

    /// The one that the calling thread adds to.
    pub(crate) fn mine(&self) -> &Sublist {
        &self.sublists[thread_slot().index(self.sublists.len())]
    }

    /// The one that a header's position names.
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

    /// A position in the ring as a header's state keeps it: in 32 bits, the lowest of which name the
    /// sublist, so that a ring's entry cannot mean a header that was reused elsewhere.
    pub(crate) fn stamp(&self, position: u64) -> u32 {
        ((position << self.shift) as u32) | self.nth
    }

    /// Counts a block in: its state has just come to say that it is here. The caller holds the ring's
    /// lock, so that this takes no atomic update.
    pub(crate) fn count_in(&self, _locked: &Ring<u32>, weight: u32) {
        let add = |cell: &AtomicU64, n: u64| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.added.bytes, u64::from(weight));
        add(&self.added.blocks, 1);
    }

    /// Counts blocks out: their states have just ceased to say that they are here.
    pub(crate) fn count_out(&self, bytes: u64, blocks: u64) {
        if blocks > 0 {
            self.removed.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.removed.blocks.fetch_add(blocks, Ordering::Relaxed);
        }
    }

    /// Weights of the blocks whose state says that they are in this list.
    pub(crate) fn bytes(&self) -> u64 {
        difference(&self.added.bytes, &self.removed.bytes)
    }

    /// How many they are.
    pub(crate) fn blocks(&self) -> u64 {
        difference(&self.added.blocks, &self.removed.blocks)
    }

    /// Blocks that ever came and went, for the evenness of sublists.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.added.blocks.load(Ordering::Relaxed), self.removed.blocks.load(Ordering::Relaxed))
    }
}

/// A block may be counted out by one thread before another has counted it in.
fn difference(added: &AtomicU64, removed: &AtomicU64) -> u64 {
    let difference = added.load(Ordering::Relaxed).wrapping_sub(removed.load(Ordering::Relaxed));
    (difference as i64).max(0) as u64
}

/// One of several, each as likely as it has blocks. `below` gives a random number below its argument.
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
    // The numbers may have changed since they were added up; then it is the last.
    last
}
