//! Dirty bytes, and the throttle that slows changes down while there are many.
//!
//! # The delay
//!
//! Let `x` be the position of the dirty bytes between the start of throttling (0) and their limit
//! (1). A change waits `scale · x² / (1 − x)`. The factor `x / (1 − x)` is the mean queue length of
//! a server with utilisation `x` (M/M/1). It grows without bound as `x` nears 1, so no load hits
//! the limit at full speed. The other factor `x` makes the curve start flat: a load that just
//! reaches the throttled range is hardly delayed and settles without oscillation.
//!
//! Delays run one after another, not in parallel: a change's delay starts when the previous one
//! ends. Otherwise a hundred threads would be slowed down a hundred times less than one.
//!
//! A commit cancels all delays assigned before it: they were computed from outdated dirty bytes.
//!
//! # What counts
//!
//! Space is reserved for each indirect block as if it were full and could not be compressed. Most
//! are nearly empty, and all compress well. They are no dirty data in memory either. So the
//! throttle counts a fourth of that ([`POINTER_SHARE`]), and so does the size at which a txg is
//! committed. Otherwise the indirect blocks of a few directories alone would make a txg large.

use std::time::Duration;

use forebay_base::sync::atomic::{AtomicI64, Ordering};
use forebay_base::waits::{self, WaitKind};

use super::counters::TxgCounters;
use super::tunables::TxgTunables;
use super::{TxgState, Txgs, slot_of};
use crate::error::Error;
use crate::wait::Wait;

/// A cell adds its dirty bytes to the sum when it has this many.
pub(super) const BATCH_BYTES: i64 = 64 << 10;

/// One part in so many of the bytes reserved for indirect blocks counts for the throttle.
const POINTER_SHARE: u64 = 4;

/// Maximum delay of one change. A longer wait only makes sense for a commit, which ends the delay.
const MAX_DELAY_NS: u64 = 100_000_000;

/// Dirty bytes of both txgs, by slot. Each cell may hold up to one batch more.
pub(super) struct Dirty([AtomicI64; 2]);

impl Dirty {
    pub(super) fn new() -> Self {
        Self([AtomicI64::new(0), AtomicI64::new(0)])
    }

    /// Adds to a slot and returns its sum.
    pub(super) fn add(&self, slot: usize, bytes: i64) -> u64 {
        // SeqCst: `Reservation` relies on the order of dirty bytes and reservations.
        let now = self.0[slot].fetch_add(bytes, Ordering::SeqCst) + bytes;
        now.max(0) as u64
    }

    pub(super) fn clear(&self, slot: usize) {
        self.0[slot].store(0, Ordering::SeqCst);
    }

    pub(super) fn of(&self, slot: usize) -> u64 {
        self.0[slot].load(Ordering::SeqCst).max(0) as u64
    }

    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.of(0) + self.of(1)
    }
}

/// Start and end of throttling, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThrottleBounds {
    start: u64,
    max: u64,
    scale_ns: u64,
}

impl ThrottleBounds {
    #[inline]
    pub(super) fn of(tunables: &TxgTunables) -> Self {
        let max = tunables.dirty_max_bytes();
        let start = share(max, tunables.throttle_percent());
        Self { start, max, scale_ns: tunables.throttle_scale_ns() }
    }

    /// Returns the delay of one change at `dirty` dirty bytes, or `None` if it must wait for a
    /// commit.
    pub(super) fn delay_ns(self, dirty: u64) -> Option<u64> {
        let left = self.max.checked_sub(dirty).filter(|left| *left > 0)?;
        let over = dirty.saturating_sub(self.start);
        let span = (self.max - self.start).max(1);
        let numerator = u128::from(self.scale_ns) * u128::from(over) * u128::from(over);
        let delay_ns = numerator / (u128::from(span) * u128::from(left));
        Some(u64::try_from(delay_ns).unwrap_or(u64::MAX).min(MAX_DELAY_NS))
    }
}

/// Returns `percent` of `bytes`.
#[inline]
pub(super) fn share(bytes: u64, percent: u32) -> u64 {
    bytes / 100 * u64::from(percent)
}

impl Txgs {
    /// Whether changes must be throttled.
    #[inline]
    pub(super) fn needs_throttle(&self) -> bool {
        self.dirty.total() > ThrottleBounds::of(&self.tunables).start
    }

    /// Delays a change until its delay has passed or a commit has ended.
    #[cold]
    pub(super) fn throttle(&self, wait: Wait) -> Result<(), Error> {
        let _wait = waits::measure(WaitKind::Transaction);
        let began_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        state.throttled += 1;
        let mut counted_full = false;
        let mut delay_slot: Option<(u64, u64)> = None;
        let result = loop {
            if let Err(error) = state.check_running() {
                break Err(error);
            }
            let now_ns = self.clock.now_ns();
            let dirty = self.dirty.total();
            let Some(delay_ns) = ThrottleBounds::of(&self.tunables).delay_ns(dirty) else {
                if !counted_full {
                    counted_full = true;
                    self.counters.add(TxgCounters::FULL, 0, 1);
                }
                self.request_commit(&mut state);
                if let Err(error) = wait.check("free space for dirty data") {
                    break Err(error);
                }
                delay_slot = None;
                let (locked, refused) = self.wait_or_outage(&self.dirty_space, state);
                state = locked;
                if let Err(error) = refused {
                    break Err(error);
                }
                continue;
            };
            if delay_ns > 0
                && let Err(error) = wait.check("the throttle delay of a transaction")
            {
                // No delay is assigned: the retry on another thread gets its own.
                break Err(error);
            }
            let (delay_epoch, due_ns) =
                *delay_slot.get_or_insert_with(|| state.take_delay_slot(now_ns, delay_ns));
            if delay_ns == 0 || delay_epoch != state.delay_epoch || now_ns >= due_ns {
                break Ok(());
            }
            self.dirty_space.wait_timeout(&mut state, Duration::from_nanos(due_ns - now_ns));
        };
        state.throttled -= 1;
        drop(state);
        self.counters.add(TxgCounters::DELAYED, 0, 1);
        self.throttle_ns.record(self.clock.now_ns() - began_ns);
        result
    }

    /// Requests a commit of the open txg.
    fn request_commit(&self, state: &mut TxgState) {
        if state.wanted < state.open {
            state.wanted = state.open;
            self.work.notify_all();
        }
    }

    /// Adds bytes reserved for indirect blocks to the dirty bytes of `txg`.
    #[cold]
    pub(super) fn note_pointers(&self, cell: usize, txg: u64, bytes: u64) {
        let counted = bytes / POINTER_SHARE;
        self.uncounted.add(slot_of(txg), (bytes - counted) as i64);
        self.note(cell, txg, counted as i64);
    }

    /// Adds `bytes` to the dirty bytes of `txg`.
    #[inline]
    pub(super) fn note(&self, cell: usize, txg: u64, bytes: i64) {
        let slot = slot_of(txg);
        let sum = self.cells[cell].add_dirty(slot, bytes, BATCH_BYTES);
        if sum != 0 {
            self.add_to_sum(txg, sum);
        }
    }

    fn add_to_sum(&self, txg: u64, bytes: i64) {
        let now = self.dirty.add(slot_of(txg), bytes);
        if now < self.sync_at_bytes() || self.dirty_woken.load(Ordering::Relaxed) >= txg {
            return;
        }
        // One thread per txg takes the lock.
        if self.dirty_woken.fetch_max(txg, Ordering::Relaxed) < txg {
            let _state = self.state.lock();
            self.work.notify_all();
        }
    }

    /// Dirty bytes at which a txg is committed.
    #[inline]
    pub(crate) fn sync_at_bytes(&self) -> u64 {
        share(self.tunables.dirty_max_bytes(), self.tunables.dirty_sync_percent()).max(1)
    }

    /// Dirty bytes of a txg, including those in cells.
    pub(crate) fn dirty_of(&self, txg: u64) -> u64 {
        self.counted_of(txg) + self.uncounted.of(slot_of(txg))
    }

    /// Those of them that the throttle counts.
    pub(super) fn counted_of(&self, txg: u64) -> u64 {
        let slot = slot_of(txg);
        let in_cells: i64 = self.cells.iter().map(|cell| cell.peek_dirty(slot)).sum();
        (self.dirty.of(slot) as i64 + in_cells).max(0) as u64
    }

    /// Dirty bytes of all txgs, without those still in cells (less than a batch per cell). Reads
    /// four words that rarely change, so it is cheap enough to call before every change.
    #[inline]
    pub fn dirty_estimate(&self) -> u64 {
        self.dirty.total() + self.uncounted.total()
    }

    /// Dirty bytes of all txgs. Reads all cells: for statistics.
    pub fn dirty_bytes(&self) -> u64 {
        // The two txgs have consecutive numbers, so this covers both slots.
        self.dirty_of(0) + self.dirty_of(1)
    }

    /// Adds the dirty bytes in cells to the sum, for a txg without holds.
    pub(super) fn fold(&self, txg: u64) {
        let slot = slot_of(txg);
        for cell in &self.cells {
            let bytes = cell.take_dirty(slot);
            if bytes != 0 {
                self.dirty.add(slot, bytes);
            }
        }
    }
}
