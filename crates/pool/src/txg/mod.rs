//! Transaction groups (txgs): which changes become durable together.
//!
//! Every change starts with a [`Hold`] on the open txg. [`Txgs::next`] tells the sync thread when
//! to commit. [`Txgs::quiesce`] closes the txg: it waits until the txg's holds are gone and opens
//! the next one. The sync thread then writes the txg and reports that with [`Txgs::synced`].
//!
//! # Invariants
//!
//! - At most two txgs are alive, with consecutive numbers: the open one, and the one before it,
//!   which is syncing. So per-txg state has two slots, see [`slot_of`]. The open one quiesces only
//!   after the one before it is durable.
//! - No txg has holds while an earlier one has: changes wait while a txg is being closed. So
//!   changes of one object are in txg order, and no txg has to include a change that a later one
//!   has built upon. The price: once per commit, all changes wait for the longest-running
//!   transaction.
//! - After [`suspend`](Txgs::suspend) or [`close`](Txgs::close) returned, nothing begins. A
//!   suspension of a parked sync thread (`suspension.rs`) ends when its txg is durable.
//!
//! # Locking
//!
//! `txg-cell`, one per cell, and `txg-state`. A thread may lock cells while it holds `txg-state`,
//! never the other way round. Beginning and ending a change lock only the thread's cell, unless the
//! change is throttled or ends the last hold of a closed txg. `throttle.rs` describes throttling.
//!
//! Not done: it knows no blocks and starts no thread.

mod counters;
mod holds;
#[cfg(all(test, forebay_model))]
mod model;
pub(crate) mod outage;
mod suspension;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod throttle;
pub(crate) mod tunables;

use std::time::Duration;

use crossbeam_utils::CachePadded;
use forebay_base::clock::Clock;
use forebay_base::histogram::AtomicHistogram;
use forebay_base::probe;
use forebay_base::sync::atomic::AtomicU64;
use forebay_base::sync::{Arc, Condvar, Mutex, thread_slot};
use forebay_base::waits::{self, WaitKind};

pub use counters::TxgCounters;
pub use holds::Hold;
use holds::{EnterOutcome, HoldCell};
use outage::AskOutage;
pub use suspension::{DevicesWait, Suspension};
use throttle::Dirty;
pub use tunables::TxgTunables;

use crate::error::Result;
use crate::wait::Wait;

/// Returns the slot of a txg's state, 0 or 1.
#[inline]
pub(crate) fn slot_of(txg: u64) -> usize {
    (txg & 1) as usize
}

/// Why [`Txgs::next`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The open txg has changes, and its timeout has passed.
    Timeout,
    /// The open txg has too many dirty bytes.
    Dirty,
    /// A thread waits for the open txg.
    Requested,
    /// The txgs are closed or suspended: the sync thread must exit.
    Ended,
}

/// Why no change can begin.
enum TxgStop {
    Closed,
    Suspended(Suspension),
}

/// State protected by `txg-state`. `synced < open`, all txgs below `open` are quiesced, and the
/// numbers only grow.
struct TxgState {
    /// The open txg.
    open: u64,
    /// Clock time at which `open` was opened.
    opened_ns: u64,
    /// The newest durable txg.
    synced: u64,
    /// The newest txg that a thread waits for.
    wanted: u64,
    /// Whether `open` is quiescing.
    closing: bool,
    /// Cells that still have holds of the quiescing txg.
    cells_left: usize,
    stop: Option<TxgStop>,
    /// Whether `close` was called, even if a suspension stays as the reason to stop.
    closed: bool,
    /// Whether the sync thread waits for `clear`.
    parked: bool,
    /// How often it has parked.
    parks: u64,
    /// Whether it shall repeat the step that failed.
    clear_requested: bool,
    /// Whether it must not park any more.
    parks_ended: bool,
    /// Number of throttled changes.
    throttled: usize,
    /// Clock time at which the last assigned delay ends.
    delay_end_ns: u64,
    /// Number of commits. Each commit cancels all delays assigned before it.
    delay_epoch: u64,
}

impl TxgState {
    /// Assigns a delay. Returns its epoch and its end time.
    fn take_delay_slot(&mut self, now_ns: u64, delay_ns: u64) -> (u64, u64) {
        self.delay_end_ns = self.delay_end_ns.max(now_ns).saturating_add(delay_ns);
        (self.delay_epoch, self.delay_end_ns)
    }
}

/// The transaction groups of a pool.
pub struct Txgs {
    cells: Box<[CachePadded<HoldCell>]>,
    state: Mutex<TxgState>,
    /// Wakes the sync thread: a commit is due, or the last hold is gone.
    work: Condvar,
    /// Wakes changes that wait for the next txg to open.
    opened: Condvar,
    /// Wakes threads that wait for a txg to become durable.
    durable: Condvar,
    /// Wakes throttled changes.
    dirty_space: Condvar,
    /// Dirty bytes that the throttle counts.
    dirty: CachePadded<Dirty>,
    /// Bytes reserved for indirect blocks that it does not count.
    uncounted: CachePadded<Dirty>,
    /// The newest txg for which the sync thread was woken because of dirty bytes.
    dirty_woken: AtomicU64,
    /// Says which device does not answer; `None` if none comes back by itself.
    outages: Option<AskOutage>,
    clock: Arc<dyn Clock>,
    tunables: Arc<TxgTunables>,
    counters: Arc<TxgCounters>,
    throttle_ns: AtomicHistogram,
    quiesce_ns: AtomicHistogram,
    sync_ns: AtomicHistogram,
}

impl Txgs {
    /// Creates txgs with `synced` as the newest durable txg and the next one open.
    pub fn new(synced: u64, clock: Arc<dyn Clock>, tunables: Arc<TxgTunables>) -> Self {
        let open = synced + 1;
        let cells = holds::cell_count(forebay_base::memory::cpus());
        let state = TxgState {
            open,
            opened_ns: clock.now_ns(),
            synced,
            wanted: synced,
            closing: false,
            cells_left: 0,
            stop: None,
            closed: false,
            parked: false,
            parks: 0,
            clear_requested: false,
            parks_ended: false,
            throttled: 0,
            delay_end_ns: 0,
            delay_epoch: 0,
        };
        Self {
            cells: (0..cells).map(|_| HoldCell::new(open)).collect(),
            state: Mutex::named("txg-state", state),
            work: Condvar::new(),
            opened: Condvar::new(),
            durable: Condvar::new(),
            dirty_space: Condvar::new(),
            dirty: CachePadded::new(Dirty::new()),
            uncounted: CachePadded::new(Dirty::new()),
            dirty_woken: AtomicU64::new(synced),
            outages: None,
            clock,
            tunables,
            counters: Arc::new(TxgCounters::new()),
            throttle_ns: AtomicHistogram::new(),
            quiesce_ns: AtomicHistogram::new(),
            sync_ns: AtomicHistogram::new(),
        }
    }

    /// Joins the open txg. Waits while too much data is dirty. The calling thread must not have a
    /// hold.
    ///
    /// # Errors
    /// `Suspended` or `Closed`.
    #[inline]
    pub fn begin(&self) -> Result<Hold<'_>> {
        self.begin_with(Wait::Allowed)
    }

    /// As [`begin`](Self::begin), but waits only if it may. In non-blocking mode the calling thread
    /// may have a hold: it may run an I/O callback.
    ///
    /// # Errors
    /// As [`begin`](Self::begin), and `WouldBlock`.
    #[inline]
    pub fn begin_with(&self, wait: Wait) -> Result<Hold<'_>> {
        self.join(thread_slot().index(self.cells.len()), wait)
    }

    /// As [`begin`](Self::begin), in a given cell. For the model checker, whose threads share one
    /// slot.
    #[doc(hidden)]
    pub fn begin_at(&self, cell: usize) -> Result<Hold<'_>> {
        self.join(cell, Wait::Allowed)
    }

    #[inline]
    fn join(&self, cell: usize, wait: Wait) -> Result<Hold<'_>> {
        if wait == Wait::Allowed {
            holds::check_not_nested(self);
        }
        if self.needs_throttle() {
            self.throttle(wait).inspect_err(|_| self.count_refused())?;
        }
        loop {
            match self.cells[cell].enter() {
                EnterOutcome::Open(txg) => return Ok(Hold::new(self, cell, txg)),
                EnterOutcome::Closing => {
                    wait.check("the next transaction group")?;
                    self.wait_opened();
                }
                EnterOutcome::Refused => self.check_refused()?,
            }
        }
    }

    /// Waits until the closing txg has no holds and the next one is open.
    #[cold]
    fn wait_opened(&self) {
        let _wait = waits::measure(WaitKind::Transaction);
        let mut state = self.state.lock();
        if state.closing && state.stop.is_none() {
            self.counters.add(TxgCounters::WAITED_OPEN, 0, 1);
        }
        while state.closing && state.stop.is_none() {
            self.opened.wait(&mut state);
        }
    }

    /// Returns why a cell has refused a change; `Ok` if the suspension has ended since.
    #[cold]
    fn check_refused(&self) -> Result<()> {
        self.check_running().inspect_err(|_| self.count_refused())
    }

    fn count_refused(&self) {
        self.counters.add(TxgCounters::REFUSED, 0, 1);
    }

    /// For the sync thread: waits until a commit of the open txg is due.
    pub fn next(&self) -> Wake {
        let mut state = self.state.lock();
        loop {
            if state.stop.is_some() {
                return Wake::Ended;
            }
            if let Some((wake, cause)) = self.due(&state) {
                self.counters.add(TxgCounters::WOKEN, cause, 1);
                return wake;
            }
            let timeout_ns = self.timeout_ns();
            let passed_ns = self.clock.now_ns() - state.opened_ns;
            // A txg without changes is checked again after a full timeout.
            let wait_ns = timeout_ns.checked_sub(passed_ns).filter(|ns| *ns > 0);
            self.work.wait_timeout(&mut state, Duration::from_nanos(wait_ns.unwrap_or(timeout_ns)));
        }
    }

    fn timeout_ns(&self) -> u64 {
        u64::from(self.tunables.txg_timeout_ms()) * 1_000_000
    }

    fn due(&self, state: &TxgState) -> Option<(Wake, usize)> {
        if state.wanted >= state.open {
            return Some((Wake::Requested, 2));
        }
        let dirty = self.counted_of(state.open);
        if dirty >= self.sync_at_bytes() {
            return Some((Wake::Dirty, 1));
        }
        let late = self.clock.now_ns() - state.opened_ns >= self.timeout_ns();
        (late && dirty > 0).then_some((Wake::Timeout, 0))
    }

    /// For the sync thread: closes the open txg, waits until its holds are gone, opens the next
    /// one, and returns the closed txg. Works after [`close`](Self::close) too, for the last
    /// commit.
    ///
    /// # Errors
    /// `Suspended`.
    ///
    /// # Panics
    /// If the previous txg is not durable.
    pub fn quiesce(&self) -> Result<u64> {
        let began_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        if let Some(TxgStop::Suspended(_)) = &state.stop {
            state.check_running()?;
        }
        // `run_between_transactions` may have closed the cells for a moment.
        while state.closing {
            self.opened.wait(&mut state);
        }
        let txg = state.open;
        assert_eq!(state.synced + 1, txg, "the txg before {txg} is not durable");
        state.closing = true;
        probe!(txg_quiesce, txg);
        state.cells_left = self.close_cells(txg);
        while state.cells_left > 0 {
            self.work.wait(&mut state);
            if let Some(TxgStop::Suspended(_)) = &state.stop {
                state.check_running()?;
            }
        }
        self.open_cells(txg + 1);
        state.open = txg + 1;
        state.opened_ns = self.clock.now_ns();
        state.closing = false;
        self.opened.notify_all();
        drop(state);
        self.fold(txg);
        self.counters.add(TxgCounters::QUIESCED, 0, 1);
        self.quiesce_ns.record(self.clock.now_ns() - began_ns);
        Ok(txg)
    }

    /// Runs `f` while no change is in progress. Changes that begin meanwhile wait. `f` must be
    /// short, and must not take a lock under which a thread may begin a change. The calling thread
    /// must not have a hold.
    ///
    /// # Errors
    /// `Suspended` or `Closed`; `f` was not run.
    pub fn run_between_transactions(&self, f: impl FnOnce()) -> Result<()> {
        holds::check_not_nested(self);
        let mut state = self.state.lock();
        state.check_running()?;
        while state.closing {
            self.opened.wait(&mut state);
            state.check_running()?;
        }
        let open = state.open;
        state.closing = true;
        state.cells_left = self.close_cells(open);
        while state.cells_left > 0 {
            self.work.wait(&mut state);
        }
        f();
        self.open_cells(open);
        state.closing = false;
        self.opened.notify_all();
        Ok(())
    }

    /// Closes all cells for `txg` and returns the number of cells with holds of it. The caller
    /// holds `txg-state`, so a thread that drops the last hold of a cell waits until the number is
    /// known.
    fn close_cells(&self, txg: u64) -> usize {
        let mut cells: Vec<_> = self.cells.iter().map(|cell| cell.lock()).collect();
        for cell in &mut cells {
            debug_assert_eq!(cell.open, txg);
            debug_assert_eq!(cell.holds[slot_of(txg + 1)], 0, "a hold of a durable txg");
            cell.closing = true;
        }
        cells.iter().filter(|cell| cell.holds[slot_of(txg)] > 0).count()
    }

    /// Opens `txg` in all cells.
    fn open_cells(&self, txg: u64) {
        for cell in &self.cells {
            let mut cell = cell.lock();
            cell.open = txg;
            cell.closing = false;
        }
    }

    /// Called when the last hold of the quiescing txg leaves a cell.
    #[cold]
    fn cell_drained(&self) {
        let mut state = self.state.lock();
        debug_assert!(state.cells_left > 0, "more cells were drained than had holds");
        state.cells_left -= 1;
        if state.cells_left == 0 {
            self.work.notify_all();
        }
    }

    /// For the sync thread: `txg` is durable. Clears its dirty bytes and wakes waiters.
    ///
    /// # Panics
    /// If `txg` is not the txg that was closed last.
    pub fn synced(&self, txg: u64) {
        self.fold(txg);
        let mut state = self.state.lock();
        assert_eq!(txg, state.synced + 1, "txgs become durable in order");
        assert_eq!(txg + 1, state.open, "txg {txg} was not closed");
        self.dirty.clear(slot_of(txg));
        self.uncounted.clear(slot_of(txg));
        state.synced = txg;
        state.delay_epoch += 1;
        state.delay_end_ns = 0;
        self.resume(&mut state);
        self.opened.notify_all();
        self.durable.notify_all();
        self.dirty_space.notify_all();
        // The next txg opened when this one was closed.
        let closed_ns = state.opened_ns;
        drop(state);
        self.counters.add(TxgCounters::SYNCED, 0, 1);
        self.sync_ns.record(self.clock.now_ns() - closed_ns);
    }

    /// Requests a commit of `txg` and waits until it is durable. The calling thread must not have a
    /// hold.
    ///
    /// # Errors
    /// `Suspended` or `Closed`, if `txg` is not durable; `Suspended` also if a device is away.
    pub fn wait_synced(&self, txg: u64) -> Result<()> {
        let _wait = waits::measure(WaitKind::Transaction);
        let mut state = self.state.lock();
        debug_assert!(txg <= state.open, "txg {txg} is not open yet");
        loop {
            if state.synced >= txg {
                return Ok(());
            }
            state.check_running()?;
            holds::check_not_nested(self);
            if state.wanted < txg {
                state.wanted = txg;
                self.work.notify_all();
            }
            let (locked, refused) = self.wait_or_outage(&self.durable, state);
            state = locked;
            if state.synced < txg {
                refused?;
            }
        }
    }

    /// Waits until all changes made before the call are durable, and returns their txg. The calling
    /// thread must not have a hold.
    ///
    /// # Errors
    /// As [`wait_synced`](Self::wait_synced).
    pub fn sync_now(&self) -> Result<u64> {
        let txg = self.open_txg();
        self.wait_synced(txg)?;
        Ok(txg)
    }

    /// Waits until the txg is durable that was closed last: if one is being written, until that
    /// has ended. The calling thread must not have a hold.
    ///
    /// # Errors
    /// As [`wait_synced`](Self::wait_synced).
    pub(crate) fn wait_closed(&self) -> Result<()> {
        self.wait_synced(self.open_txg() - 1)
    }

    /// Returns the open txg, which may be closed before the caller uses the number.
    pub fn open_txg(&self) -> u64 {
        self.state.lock().open
    }

    /// The newest durable txg.
    pub fn synced_txg(&self) -> u64 {
        self.state.lock().synced
    }

    /// Whether the open txg is closing.
    #[cfg(all(test, not(forebay_model)))]
    fn is_closing(&self) -> bool {
        self.state.lock().closing
    }

    /// Stops: nothing begins any more, and waiters fail. Idempotent. The cause of a suspension
    /// stays.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if state.stop.is_none() {
            state.stop = Some(TxgStop::Closed);
        }
        self.stop_all(&mut state);
    }

    /// Checks whether changes can begin.
    ///
    /// # Errors
    /// `Suspended` or `Closed`.
    pub fn check_running(&self) -> Result<()> {
        self.state.lock().check_running()
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<TxgCounters> {
        &self.counters
    }

    /// Histogram of throttle delays, in nanoseconds.
    pub fn throttle_ns(&self) -> &AtomicHistogram {
        &self.throttle_ns
    }

    /// Histogram of the time that closing a txg took, in nanoseconds.
    pub fn quiesce_ns(&self) -> &AtomicHistogram {
        &self.quiesce_ns
    }

    /// Histogram of the time from closing a txg until it was durable, in nanoseconds. It includes
    /// the time that the pool was suspended.
    pub fn sync_ns(&self) -> &AtomicHistogram {
        &self.sync_ns
    }
}

impl std::fmt::Debug for Txgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dirty_bytes = self.dirty_bytes();
        let state = self.state.lock();
        f.debug_struct("Txgs")
            .field("open", &state.open)
            .field("synced", &state.synced)
            .field("wanted", &state.wanted)
            .field("dirty_bytes", &dirty_bytes)
            .field("throttled", &state.throttled)
            .finish_non_exhaustive()
    }
}
