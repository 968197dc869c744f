//! Magazines: a few free blocks a class at hand, and the accounts, for a share of the threads.
//!
//! Purpose: let threads allocate and free without meeting each other. A block in a magazine is
//! live to its chunk and warm by construction.
//!
//! The account of a shard is two numbers that only ever grow, in units of the smallest block:
//! `allocated`, stored under the shard's lock, and `freed`, an atomic that a free adds to as
//! its *very last* access to the arena. Their difference over all shards is what is handed
//! out. `freed` also carries the mark that the arena's handles are gone, so it is at once the
//! reference count that keeps the memory: spread over shards while the arena is open, and
//! settled into one number when it closes (see [`super::inner`]). It cannot be a plain store
//! under the lock, because unlocking comes after it and touches memory that may then be gone.
//!
//! Locking: one lock a shard, `arena-shard`; at most one of them is held at a time.

use std::ptr::NonNull;

use super::classes::{CLASSES, MAGAZINE_BLOCKS, MAGAZINE_CLASSES, magazine_capacity};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Mark in `freed`: the arena's handles are gone.
const CLOSED: u64 = 1;
/// What one unit adds to `freed`.
const UNIT: u64 = 2;

/// One share of the threads. Aligned so that shards share no cache line, nor a pair of them.
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) state: Mutex<State>,
    allocated: AtomicU64,
    freed: AtomicU64,
}

/// What the shard's lock protects.
pub(super) struct State {
    /// Buffers handed out less buffers taken back, a class and one for runs. Negative in a
    /// shard whose threads free more than they allocate.
    pub(super) live: [i64; CLASSES + 1],
    /// Bytes asked for, less those given back.
    pub(super) requested: i64,
    pub(super) magazines: [Magazine; MAGAZINE_CLASSES],
}

/// Free blocks of one class, the most recently freed on top.
pub(super) struct Magazine {
    count: u8,
    capacity: u8,
    blocks: [NonNull<u8>; MAGAZINE_BLOCKS],
}

// SAFETY: addresses of free blocks, which belong to the magazine alone.
unsafe impl Send for Magazine {}

impl Shard {
    pub(super) fn new() -> Self {
        let magazine = |class| Magazine {
            count: 0,
            capacity: magazine_capacity(class) as u8,
            blocks: [NonNull::dangling(); MAGAZINE_BLOCKS],
        };
        let state = State {
            live: [0; CLASSES + 1],
            requested: 0,
            magazines: std::array::from_fn(magazine),
        };
        Self {
            state: Mutex::named("arena-shard", state),
            allocated: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    /// Accounts for a buffer that is handed out. `state` proves that the lock is held.
    #[inline]
    pub(super) fn note_alloc(&self, state: &mut State, class: usize, len: usize, units: u64) {
        state.live[class] += 1;
        state.requested += len as i64;
        // A load and a store suffice: writers hold the lock.
        let allocated = self.allocated.load(Ordering::Relaxed);
        self.allocated.store(allocated.wrapping_add(units), Ordering::Relaxed);
    }

    /// Accounts for a buffer that has come back; the last access of a free to the arena.
    /// Returns true if the arena is closed: then the caller settles the units itself.
    #[inline]
    pub(super) fn note_free(&self, units: u64) -> bool {
        // Release: what this thread did to the arena comes before its end.
        self.freed.fetch_add(units * UNIT, Ordering::AcqRel) & CLOSED != 0
    }

    /// Marks the shard closed, and returns the units handed out less those taken back, which
    /// can be negative in one shard. No allocation runs any more.
    pub(super) fn close(&self) -> u64 {
        let freed = self.freed.fetch_or(CLOSED, Ordering::AcqRel) / UNIT;
        self.allocated.load(Ordering::Relaxed).wrapping_sub(freed)
    }

    /// Units ever handed out by this shard, modulo 2^64.
    pub(super) fn allocated(&self) -> u64 {
        // Acquire: a free that is read later is not older than an allocation read here.
        self.allocated.load(Ordering::Acquire)
    }

    /// Units ever taken back by this shard, modulo 2^63.
    pub(super) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire) / UNIT
    }
}

impl Magazine {
    #[inline]
    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        let top = self.count.checked_sub(1)?;
        self.count = top;
        Some(self.blocks[top as usize % MAGAZINE_BLOCKS])
    }

    /// Adds a block, which there must be room for.
    #[inline]
    pub(super) fn push(&mut self, block: NonNull<u8>) {
        debug_assert!(!self.is_full(), "room in the magazine");
        self.blocks[self.count as usize % MAGAZINE_BLOCKS] = block;
        self.count += 1;
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count == self.capacity
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// How many blocks are moved at once between magazine and class.
    pub(super) fn batch(&self) -> usize {
        (self.capacity as usize).div_ceil(2)
    }

    /// Removes up to `count` blocks, those freed longest ago first.
    pub(super) fn take_oldest(&mut self, count: usize, mut f: impl FnMut(NonNull<u8>)) {
        let count = count.min(self.count as usize);
        self.blocks[..count].iter().for_each(|block| f(*block));
        self.blocks.copy_within(count..self.count as usize, 0);
        self.count -= count as u8;
    }
}
