//! How many bytes wait for their commit, and how changes are slowed down while they are many.
//!
//! # The delay
//!
//! Let `x` be how far the changed bytes are from where throttling starts (0) to their maximum (1). A change
//! waits `scale · x² / (1 − x)`. The factor `x / (1 − x)` is the mean queue of a server that is busy a share
//! `x` of its time (M/M/1): without bound as `x` nears 1, so that no load, however strong, runs into the wall at
//! full speed. The other `x` makes the curve leave zero flat: a load that just reaches the throttled range
//! is hardly slowed down, and finds its rate without swinging.
//!
//! Delays are served one after another, not side by side: a change waits from the end of the one
//! before it. Otherwise a hundred threads would be slowed down a hundred times less than one.
//!
//! A commit ends all delays that were given before it: they were reckoned from what is no longer so.

use std::time::Duration;

use forebay_base::sync::atomic::{AtomicI64, Ordering};

use super::counters::TxgCounters;
use super::tunables::TxgTunables;
use super::{TxgState, Txgs, slot_of};
use crate::blocking;
use crate::error::Error;

/// A cell tells the sum of its changed bytes when they are this many.
pub(super) const BATCH_BYTES: i64 = 64 << 10;

/// Longest delay of one change. Past it only the commit helps, and that ends the delay.
const MAX_DELAY_NS: u64 = 100_000_000;

/// Changed bytes of both txgs, by slot. Cells have up to a batch each that is not in here.
pub(super) struct Dirty([AtomicI64; 2]);

impl Dirty {
    pub(super) fn new() -> Self {
        Self([AtomicI64::new(0), AtomicI64::new(0)])
    }

    /// Adds to a slot and returns its sum.
    pub(super) fn add(&self, slot: usize, bytes: i64) -> u64 {
        // Ordered before a look at who waits for room, see `Txgs::clean`.
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

/// Where throttling starts and ends, in bytes.
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

    /// Delay of one change at `dirty` changed bytes, or `None` if it has to wait for a commit.
    pub(super) fn delay_ns(self, dirty: u64) -> Option<u64> {
        let left = self.max.checked_sub(dirty).filter(|left| *left > 0)?;
        let over = dirty.saturating_sub(self.start);
        let span = (self.max - self.start).max(1);
        let numerator = u128::from(self.scale_ns) * u128::from(over) * u128::from(over);
        let delay_ns = numerator / (u128::from(span) * u128::from(left));
        Some(u64::try_from(delay_ns).unwrap_or(u64::MAX).min(MAX_DELAY_NS))
    }
}

/// A share of `bytes`.
#[inline]
pub(super) fn share(bytes: u64, percent: u32) -> u64 {
    bytes / 100 * u64::from(percent)
}

impl Txgs {
    /// Whether a change has to be slowed down.
    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        self.dirty.total() > ThrottleBounds::of(&self.tunables).start
    }

    /// Slows a change down, until its turn or a commit.
    #[cold]
    pub(super) fn throttle(&self) -> Result<(), Error> {
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
                self.ask_locked(&mut state);
                if let Err(error) = blocking::check("space for changed bytes") {
                    break Err(error);
                }
                delay_slot = None;
                self.dirty_space.wait(&mut state);
                continue;
            };
            if delay_ns > 0
                && let Err(error) = blocking::check("the turn of a change")
            {
                // Its turn is not taken: whoever does it on another thread takes one there.
                break Err(error);
            }
            let (era, due_ns) =
                *delay_slot.get_or_insert_with(|| state.take_delay_slot(now_ns, delay_ns));
            if delay_ns == 0 || era != state.era || now_ns >= due_ns {
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

    /// Asks for a commit of the open txg.
    fn ask_locked(&self, state: &mut TxgState) {
        if state.wanted < state.open {
            state.wanted = state.open;
            self.work.notify_all();
        }
    }

    /// Notes that `bytes` of `txg` more wait for their commit.
    #[inline]
    pub(super) fn note(&self, cell: usize, txg: u64, bytes: i64) {
        let slot = slot_of(txg);
        let sum = self.cells[cell].note_dirty(slot, bytes, BATCH_BYTES);
        if sum != 0 {
            self.note_sum(txg, sum);
        }
    }

    fn note_sum(&self, txg: u64, bytes: i64) {
        let now = self.dirty.add(slot_of(txg), bytes);
        if now < self.sync_at_bytes() || self.dirty_woken.load(Ordering::Relaxed) >= txg {
            return;
        }
        // One of those who get here takes the lock, once a txg.
        if self.dirty_woken.fetch_max(txg, Ordering::Relaxed) < txg {
            let _state = self.state.lock();
            self.work.notify_all();
        }
    }

    /// A txg with this many changed bytes is committed.
    #[inline]
    pub(crate) fn sync_at_bytes(&self) -> u64 {
        share(self.tunables.dirty_max_bytes(), self.tunables.dirty_sync_percent()).max(1)
    }

    /// Changed bytes of a txg, cells included.
    pub(super) fn dirty_of(&self, txg: u64) -> u64 {
        let slot = slot_of(txg);
        let in_cells: i64 = self.cells.iter().map(|cell| cell.peek_dirty(slot)).sum();
        (self.dirty.of(slot) as i64 + in_cells).max(0) as u64
    }

    /// Changed bytes that wait for a commit, of all txgs, but for less than a batch a cell. Reads two words that
    /// change rarely, for callers that ask before every change.
    #[inline]
    pub fn dirty_estimate(&self) -> u64 {
        self.dirty.total()
    }

    /// Changed bytes that wait for a commit, of all txgs. Looks at all cells: for statistics.
    pub fn dirty_bytes(&self) -> u64 {
        // Txgs are two numbers in a row, whichever they are.
        self.dirty_of(0) + self.dirty_of(1)
    }

    /// Brings what cells have of a txg whose holds are gone into the sum.
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
