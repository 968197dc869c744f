//! Holds: who takes part in which txg. A cell for every few threads, so that beginning a change writes
//! no line that another CPU writes.

use std::marker::PhantomData;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicI64, Ordering};
use forebay_base::sync::{Mutex, MutexGuard};

use super::{Txgs, slot_of};

/// Most cells. All of them are locked to close a txg.
const MAX_CELLS: usize = 64;

/// How many cells there are for `cpus` CPUs. The model checker wants to see two whoever begins.
pub(super) fn cell_count(cpus: usize) -> usize {
    if cfg!(forebay_model) { 2 } else { (2 * cpus).next_power_of_two().clamp(4, MAX_CELLS) }
}

/// One cell.
pub(super) struct HoldCell {
    state: Mutex<CellState>,
    // Changed bytes by slot that the sum does not have yet; below a batch in size.
    dirty: [AtomicI64; 2],
}

/// What became of an attempt to begin.
pub(super) enum EnterOutcome {
    /// A hold of this txg is counted.
    Open(u64),
    /// The open txg is being closed.
    Closing,
    /// Nothing begins any more.
    Refused,
}

/// What `txg-cell` protects.
pub(super) struct CellState {
    /// The txg that a change joins. The same in all cells, but for the moment of a change.
    pub(super) open: u64,
    /// Holds of both txgs, by slot.
    pub(super) holds: [u32; 2],
    /// `open` is being closed: what begins waits for the next one. The same in all cells, as `open` is.
    pub(super) closing: bool,
    /// Suspended or closed: nothing begins.
    pub(super) refuses: bool,
}

impl HoldCell {
    pub(super) fn new(open: u64) -> CachePadded<Self> {
        let state = CellState { open, holds: [0; 2], closing: false, refuses: false };
        CachePadded::new(Self {
            state: Mutex::named("txg-cell", state),
            dirty: [AtomicI64::new(0), AtomicI64::new(0)],
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock()
    }

    /// Counts a hold in, if a txg is open.
    #[inline]
    pub(super) fn enter(&self) -> EnterOutcome {
        let mut state = self.state.lock();
        if state.refuses {
            return EnterOutcome::Refused;
        }
        if state.closing {
            return EnterOutcome::Closing;
        }
        let open = state.open;
        state.holds[slot_of(open)] += 1;
        EnterOutcome::Open(open)
    }

    /// Counts a hold out. True if it was this cell's last of a txg that has been closed.
    #[inline]
    pub(super) fn leave(&self, txg: u64) -> bool {
        let mut state = self.state.lock();
        let holds = &mut state.holds[slot_of(txg)];
        debug_assert!(*holds > 0, "a hold of txg {txg} that nobody has");
        *holds -= 1;
        *holds == 0 && state.closing
    }

    /// Notes `bytes`, and returns what is now to be added to the sum: 0 most of the time.
    #[inline]
    pub(super) fn note_dirty(&self, slot: usize, bytes: i64, batch: i64) -> i64 {
        let now = self.dirty[slot].fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now < batch { 0 } else { self.take_dirty(slot) }
    }

    /// Takes all that the sum does not have yet.
    pub(super) fn take_dirty(&self, slot: usize) -> i64 {
        self.dirty[slot].swap(0, Ordering::Relaxed)
    }

    /// What the sum does not have yet.
    pub(super) fn peek_dirty(&self, slot: usize) -> i64 {
        self.dirty[slot].load(Ordering::Relaxed)
    }
}

/// Part in a txg: it does not commit before all its holds are dropped.
///
/// Short-lived: between [`Txgs::begin`] and the drop nothing may wait for a commit, and so nothing may
/// begin again on the same pool, unless without waiting; debug builds panic at the attempt. It stays on its thread.
pub struct Hold<'a> {
    txgs: &'a Txgs,
    cell: usize,
    txg: u64,
    _stays: PhantomData<*const ()>,
}

impl<'a> Hold<'a> {
    pub(super) fn new(txgs: &'a Txgs, cell: usize, txg: u64) -> Self {
        nested::enter(txgs);
        Self { txgs, cell, txg, _stays: PhantomData }
    }

    /// The txg.
    #[inline]
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// Notes that `bytes` more wait for the txg's commit.
    #[inline]
    pub fn dirty(&self, bytes: u64) {
        self.txgs.note(self.cell, self.txg, bytes as i64);
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        nested::leave(self.txgs);
        if self.txgs.cells[self.cell].leave(self.txg) {
            self.txgs.cell_drained();
        }
    }
}

/// Catches a thread that begins while it has a hold: it could wait for a commit that waits for it.
#[cfg(debug_assertions)]
mod nested {
    use std::cell::RefCell;

    use super::Txgs;

    forebay_base::sync::thread_local! {
        // Addresses of the txgs that this thread has holds of, one for each hold.
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    fn address(txgs: &Txgs) -> usize {
        std::ptr::from_ref(txgs).addr()
    }

    pub(super) fn check(txgs: &Txgs) {
        let nested = HELD.with(|held| held.borrow().contains(&address(txgs)));
        assert!(!nested, "a change begins inside a change");
    }

    pub(super) fn enter(txgs: &Txgs) {
        HELD.with(|held| held.borrow_mut().push(address(txgs)));
    }

    /// One hold goes; others of the same txgs, around it, stay known.
    pub(super) fn leave(txgs: &Txgs) {
        HELD.with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|one| *one == address(txgs)) {
                held.remove(at);
            }
        });
    }
}

/// In release builds nothing is checked.
#[cfg(not(debug_assertions))]
mod nested {
    use super::Txgs;

    pub(super) fn check(_: &Txgs) {}
    pub(super) fn enter(_: &Txgs) {}
    pub(super) fn leave(_: &Txgs) {}
}

/// Debug builds panic if the calling thread has a hold on `txgs`.
#[inline]
pub(super) fn check_not_nested(txgs: &Txgs) {
    nested::check(txgs);
}
