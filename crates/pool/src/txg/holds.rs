//! Holds: participation of threads in txgs. Threads are spread over cells, so that beginning a
//! change writes no cache line that another CPU writes.

use std::marker::PhantomData;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicI64, Ordering};
use forebay_base::sync::{Mutex, MutexGuard};

use super::{Txgs, slot_of};

/// Maximum number of cells. Closing a txg locks all of them.
const MAX_CELLS: usize = 64;

/// Number of cells for `cpus` CPUs. The model checker uses two.
pub(super) fn cell_count(cpus: usize) -> usize {
    if cfg!(forebay_model) { 2 } else { (2 * cpus).next_power_of_two().clamp(4, MAX_CELLS) }
}

/// Holds and dirty bytes of a few threads.
pub(super) struct HoldCell {
    state: Mutex<CellState>,
    // Dirty bytes by slot that are not yet in the sum; less than a batch.
    dirty: [AtomicI64; 2],
}

/// Outcome of an attempt to begin a change.
pub(super) enum EnterOutcome {
    /// The hold is counted in this txg.
    Open(u64),
    /// The open txg is being closed.
    Closing,
    /// The txgs are suspended or closed.
    Refused,
}

/// State protected by `txg-cell`.
pub(super) struct CellState {
    /// The open txg. Equal in all cells, except while it is being updated.
    pub(super) open: u64,
    /// Number of holds by txg slot.
    pub(super) holds: [u32; 2],
    /// Whether `open` is closing: changes wait for the next txg. Equal in all cells, like `open`.
    pub(super) closing: bool,
    /// Whether the txgs are suspended or closed.
    pub(super) stopped: bool,
}

impl HoldCell {
    pub(super) fn new(open: u64) -> CachePadded<Self> {
        let state = CellState { open, holds: [0; 2], closing: false, stopped: false };
        CachePadded::new(Self {
            state: Mutex::named("txg-cell", state),
            dirty: [AtomicI64::new(0), AtomicI64::new(0)],
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock()
    }

    /// Counts a hold in the open txg.
    #[inline]
    pub(super) fn enter(&self) -> EnterOutcome {
        let mut state = self.state.lock();
        if state.stopped {
            return EnterOutcome::Refused;
        }
        if state.closing {
            return EnterOutcome::Closing;
        }
        let open = state.open;
        state.holds[slot_of(open)] += 1;
        EnterOutcome::Open(open)
    }

    /// Removes a hold. Returns true if it was the cell's last hold of a closing txg.
    #[inline]
    pub(super) fn leave(&self, txg: u64) -> bool {
        let mut state = self.state.lock();
        let holds = &mut state.holds[slot_of(txg)];
        debug_assert!(*holds > 0, "a hold of txg {txg} was dropped twice");
        *holds -= 1;
        *holds == 0 && state.closing
    }

    /// Adds `bytes`. Returns the number of bytes to add to the sum: 0 most of the time.
    #[inline]
    pub(super) fn add_dirty(&self, slot: usize, bytes: i64, batch: i64) -> i64 {
        let now = self.dirty[slot].fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now < batch { 0 } else { self.take_dirty(slot) }
    }

    /// Removes and returns the bytes that are not yet in the sum.
    pub(super) fn take_dirty(&self, slot: usize) -> i64 {
        self.dirty[slot].swap(0, Ordering::Relaxed)
    }

    /// Returns the bytes that are not yet in the sum.
    pub(super) fn peek_dirty(&self, slot: usize) -> i64 {
        self.dirty[slot].load(Ordering::Relaxed)
    }
}

/// Participation in a txg: the txg cannot commit before all its holds are dropped.
///
/// A hold must be short-lived. Its thread must not wait for a commit, and so must not begin again
/// on the same pool, except in non-blocking mode. Debug builds panic on violations. A hold cannot
/// move to another thread.
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

    /// Returns the txg.
    #[inline]
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// Adds `bytes` to the dirty bytes of the txg.
    #[inline]
    pub fn dirty(&self, bytes: u64) {
        self.txgs.note(self.cell, self.txg, bytes as i64);
    }

    /// Adds `bytes` reserved for indirect blocks to the dirty bytes of the txg. Space is
    /// reserved for all of them; the throttle counts a part.
    #[inline]
    pub fn dirty_pointers(&self, bytes: u64) {
        if bytes > 0 {
            self.txgs.note_pointers(self.cell, self.txg, bytes);
        }
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

/// Detects a thread that begins while it has a hold: it could wait for a commit that waits for it.
#[cfg(debug_assertions)]
mod nested {
    use std::cell::RefCell;

    use super::Txgs;

    forebay_base::sync::thread_local! {
        // Addresses of the txgs of this thread's holds, one entry per hold.
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    fn address(txgs: &Txgs) -> usize {
        std::ptr::from_ref(txgs).addr()
    }

    pub(super) fn check(txgs: &Txgs) {
        let nested = HELD.with(|held| held.borrow().contains(&address(txgs)));
        assert!(!nested, "a transaction began while its thread had another one");
    }

    pub(super) fn enter(txgs: &Txgs) {
        HELD.with(|held| held.borrow_mut().push(address(txgs)));
    }

    /// Removes one hold. Outer holds on the same txgs stay.
    pub(super) fn leave(txgs: &Txgs) {
        HELD.with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|one| *one == address(txgs)) {
                held.remove(at);
            }
        });
    }
}

/// Release builds do not check.
#[cfg(not(debug_assertions))]
mod nested {
    use super::Txgs;

    pub(super) fn check(_: &Txgs) {}
    pub(super) fn enter(_: &Txgs) {}
    pub(super) fn leave(_: &Txgs) {}
}

/// Panics in debug builds if the calling thread has a hold on `txgs`.
#[inline]
pub(super) fn check_not_nested(txgs: &Txgs) {
    nested::check(txgs);
}
