//! Shards: magazines of free blocks, and counts, for a share of the threads.
//!
//! Threads of different shards allocate and free without contention. A block in a magazine is live
//! in its chunk, so its pages are backed.
//!
//! A shard has two counts that only grow, in units of the smallest block. `allocated` is stored
//! under the lock of the shard. `freed` is an atomic to which a free adds as its *last* access to
//! the arena. Their difference over all shards is the size of live buffers. `freed` also has the
//! bit [`CLOSED`], so it is the reference count that keeps the memory: distributed over shards
//! while the arena is open, and summed into one number when it closes ([`super::inner`]). A free
//! cannot add under the lock, because unlocking would access memory that may be freed.
//!
//! Locking: one lock per shard, `arena-shard`; a thread holds at most one of them.

use std::ptr::NonNull;

use super::classes::{CLASSES, MAGAZINE_BLOCKS, MAGAZINE_CLASSES, magazine_capacity};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Bit in `freed`: all handles of the arena are dropped.
const CLOSED: u64 = 1;
/// Value of one unit in `freed`.
const UNIT: u64 = 2;

/// The state for a share of the threads. The alignment keeps shards on separate pairs of cache
/// lines.
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) state: Mutex<ShardState>,
    allocated: AtomicU64,
    freed: AtomicU64,
}

/// The state that the lock of a shard protects.
pub(super) struct ShardState {
    /// Allocated minus freed buffers, per class and for runs. Negative in a shard whose threads
    /// free more than they allocate.
    pub(super) live: [i64; CLASSES + 1],
    /// Requested bytes of allocated minus freed buffers.
    pub(super) requested: i64,
    pub(super) magazines: [Magazine; MAGAZINE_CLASSES],
}

/// A stack of free blocks of one class.
pub(super) struct Magazine {
    count: u8,
    capacity: u8,
    blocks: [NonNull<u8>; MAGAZINE_BLOCKS],
}

// SAFETY: addresses of free blocks, which only the magazine owns.
unsafe impl Send for Magazine {}

impl Shard {
    pub(super) fn new() -> Self {
        let magazine = |class| Magazine {
            count: 0,
            capacity: magazine_capacity(class) as u8,
            blocks: [NonNull::dangling(); MAGAZINE_BLOCKS],
        };
        let state = ShardState {
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

    /// Counts an allocated buffer. `state` proves that the lock is held.
    #[inline]
    pub(super) fn record_alloc(
        &self,
        state: &mut ShardState,
        class: usize,
        len: usize,
        units: u64,
    ) {
        state.live[class] += 1;
        state.requested += len as i64;
        // A load and a store suffice, because writers hold the lock.
        let allocated = self.allocated.load(Ordering::Relaxed);
        self.allocated.store(allocated.wrapping_add(units), Ordering::Relaxed);
    }

    /// Counts a freed buffer. This is the last access of a free to the arena, unless it returns
    /// true: the arena is closed, and the caller releases the units.
    #[inline]
    pub(super) fn record_free(&self, units: u64) -> bool {
        // Release: accesses of this thread to the arena happen before its destruction.
        self.freed.fetch_add(units * UNIT, Ordering::AcqRel) & CLOSED != 0
    }

    /// Marks the shard closed, and returns allocated minus freed units, which can be negative in
    /// one shard. No allocation runs any more.
    pub(super) fn close(&self) -> u64 {
        let freed = self.freed.fetch_or(CLOSED, Ordering::AcqRel) / UNIT;
        self.allocated.load(Ordering::Relaxed).wrapping_sub(freed)
    }

    /// Units that this shard has allocated, modulo 2^64.
    pub(super) fn allocated(&self) -> u64 {
        // Acquire: later reads of `freed` are not older than this value.
        self.allocated.load(Ordering::Acquire)
    }

    /// Units that this shard has freed, modulo 2^63.
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

    /// Adds a block. The magazine must not be full.
    #[inline]
    pub(super) fn push(&mut self, block: NonNull<u8>) {
        debug_assert!(!self.is_full(), "the magazine is not full");
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

    /// Number of blocks that move at once between magazine and class.
    pub(super) fn batch(&self) -> usize {
        (self.capacity as usize).div_ceil(2)
    }

    /// Removes up to `count` blocks, oldest first, and passes them to `f`.
    pub(super) fn drain_oldest(&mut self, count: usize, mut f: impl FnMut(NonNull<u8>)) {
        let count = count.min(self.count as usize);
        self.blocks[..count].iter().for_each(|block| f(*block));
        self.blocks.copy_within(count..self.count as usize, 0);
        self.count -= count as u8;
    }
}
