//! The lists: the order in which blocks, and the memory of blocks, came.
//!
//! A [`MultiList`] stands for one state and class; it is split into sublists with a lock each,
//! and an entry lies in the sublist that its hash selects. A sublist is a [`ring::Ring`]: a
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
use forebay_base::sync::{Mutex, MutexGuard};

use ring::Ring;

/// Which sublist of `count` a hash belongs to. From the same bits as the index's
/// partition, so that a batch from one sublist meets few partitions.
#[inline]
pub(crate) fn sublist_of(hash: u64, count: usize) -> usize {
    (((hash >> 48) * count as u64) >> 16) as usize
}

/// One state of one class.
pub(crate) struct MultiList {
    sublists: Box<[CachePadded<Sublist>]>,
}

pub(crate) struct Sublist {
    /// Which one of how many.
    nth: u32,
    of: u32,
    ring: Mutex<Ring<u32>>,
    /// Weights and numbers of blocks that came. Written under the ring's lock only.
    came: Tally,
    /// Weights and numbers of blocks that went.
    went: Tally,
}

#[derive(Default)]
struct Tally {
    bytes: AtomicU64,
    blocks: AtomicU64,
}

impl MultiList {
    pub(crate) fn new(sublists: usize) -> Self {
        let sublist = |nth: usize| Sublist {
            nth: nth as u32,
            of: sublists as u32,
            ring: Mutex::named("sublist", Ring::new()),
            came: Tally::default(),
            went: Tally::default(),
        };
        Self { sublists: (0..sublists).map(|n| CachePadded::new(sublist(n))).collect() }
    }

    pub(crate) fn of(&self, hash: u64) -> &Sublist {
        &self.sublists[sublist_of(hash, self.sublists.len())]
    }

    pub(crate) fn nth(&self, n: usize) -> &Sublist {
        &self.sublists[n]
    }

    pub(crate) fn len(&self) -> usize {
        self.sublists.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sublist> {
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

    /// A position in the ring as a header's state keeps it: in 32 bits, and different from those of
    /// all other sublists, so that a ring's entry cannot mean a header that was reused elsewhere.
    pub(crate) fn stamp(&self, position: u64) -> u32 {
        (position as u32).wrapping_mul(self.of).wrapping_add(self.nth)
    }

    /// Counts a block in: its state has just come to say that it is here. The caller holds the ring's
    /// lock, so that this takes no atomic update.
    pub(crate) fn count_in(&self, _locked: &Ring<u32>, weight: u32) {
        let add = |cell: &AtomicU64, n: u64| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.came.bytes, u64::from(weight));
        add(&self.came.blocks, 1);
    }

    /// Counts blocks out: their states have just ceased to say that they are here.
    pub(crate) fn count_out(&self, bytes: u64, blocks: u64) {
        if blocks > 0 {
            self.went.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.went.blocks.fetch_add(blocks, Ordering::Relaxed);
        }
    }

    /// Weights of the blocks whose state says that they are in this list.
    pub(crate) fn bytes(&self) -> u64 {
        left(&self.came.bytes, &self.went.bytes)
    }

    /// How many they are.
    pub(crate) fn blocks(&self) -> u64 {
        left(&self.came.blocks, &self.went.blocks)
    }

    /// Blocks that ever came and went, for the evenness of sublists.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.came.blocks.load(Ordering::Relaxed), self.went.blocks.load(Ordering::Relaxed))
    }
}

/// A block may be counted out by one thread before another has counted it in.
fn left(came: &AtomicU64, went: &AtomicU64) -> u64 {
    let left = came.load(Ordering::Relaxed).wrapping_sub(went.load(Ordering::Relaxed));
    (left as i64).max(0) as u64
}
