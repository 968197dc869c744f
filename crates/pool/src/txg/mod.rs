//! Transaction groups: which changes become durable together.
//!
//! Every change of the pool begins with a [`Hold`] on the open txg. The sync thread, told by
//! [`Txgs::next`], closes that txg ([`Txgs::quiesce`]): it waits until the txg's holds are gone, opens the
//! next one, writes the txg out, and says so ([`Txgs::synced`]).
//!
//! # Invariants
//!
//! - At most two txgs are alive, with numbers in a row: one open, one quiescing or syncing. So whatever
//!   is kept by txg has two slots, see [`slot_of`].
//! - No txg has holds while an earlier one has: what begins while a txg is being closed waits. So changes of one thing are
//!   in the order of their txgs, and a txg never has to take in a change that a later one has built upon. The price
//!   is that all changes wait for the longest that is under way, once a commit.
//! - `synced < quiesced + 1 == open` as [`TxgState`] has them, and numbers only grow.
//! - After [`suspend`](Txgs::suspend) or [`close`](Txgs::close) returned, nothing begins.
//!
//! # Locking
//!
//! `txg-cell`, one a cell; `txg-state`, which may be held while cells are locked, never the other way. Beginning and
//! ending a change lock the thread's cell and nothing else, unless the change is throttled or the last of a closed txg.
//! `throttle.rs` says how changes are slowed down.
//!
//! # What it does not do
//!
//! It knows no blocks and starts no thread: the pool's sync thread asks it what to do.

mod counters;
mod holds;
#[cfg(all(test, not(forebay_model)))]
mod tests;
mod throttle;
pub(crate) mod tunables;

use std::time::Duration;

use crossbeam_utils::CachePadded;
use forebay_base::clock::Clock;
use forebay_base::histogram::AtomicHistogram;
use forebay_base::sync::atomic::AtomicU64;
use forebay_base::sync::{Arc, Condvar, Mutex, thread_slot};

pub use counters::TxgCounters;
pub use holds::Hold;
use holds::{EnterOutcome, HoldCell};
use throttle::Dirty;
pub use tunables::TxgTunables;

use crate::blocking;
use crate::error::{Error, ErrorKind, Result};

/// Which of two slots belongs to a txg.
#[inline]
pub(crate) fn slot_of(txg: u64) -> usize {
    (txg & 1) as usize
}

/// Why the sync thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The open txg has changes and has been open for long.
    Timeout,
    /// The open txg has many changed bytes.
    Dirty,
    /// Somebody waits for the open txg.
    Asked,
    /// The txgs were closed or suspended: there is nothing more to do.
    Ended,
}

/// Why nothing begins any more.
enum TxgStop {
    Closed,
    Suspended(String),
}

/// What `txg-state` protects.
struct TxgState {
    /// The txg that changes join.
    open: u64,
    /// When it was opened.
    opened_ns: u64,
    /// The newest txg that is durable.
    synced: u64,
    /// The newest txg that somebody waits for.
    wanted: u64,
    /// Whether `open` quiesces.
    closing: bool,
    /// Cells with holds of the txg that quiesces.
    cells_left: usize,
    stop: Option<TxgStop>,
    /// Changes that are being slowed down.
    throttled: usize,
    /// When the newest delay ends.
    turn_ns: u64,
    /// Commits so far: each makes all delays before it void.
    era: u64,
}

impl TxgState {
    fn check_running(&self) -> Result<()> {
        match &self.stop {
            None => Ok(()),
            Some(TxgStop::Closed) => Err(Error::new(ErrorKind::Closed, "the pool is closed")),
            Some(TxgStop::Suspended(cause)) => {
                let text = "the pool is suspended: nothing is written until it is imported again";
                Err(Error::new(ErrorKind::Suspended, text).because(cause.as_str()))
            }
        }
    }

    /// Gives out a delay: which era it is of, and when it ends.
    fn take_delay_slot(&mut self, now_ns: u64, delay_ns: u64) -> (u64, u64) {
        self.turn_ns = self.turn_ns.max(now_ns).saturating_add(delay_ns);
        (self.era, self.turn_ns)
    }
}

/// The transaction groups of a pool.
pub struct Txgs {
    cells: Box<[CachePadded<HoldCell>]>,
    state: Mutex<TxgState>,
    /// For the sync thread: something to do, or the last hold is gone.
    work: Condvar,
    /// For those who begin while a txg is being closed.
    opened: Condvar,
    /// For those who wait for a txg.
    durable: Condvar,
    /// For those who are throttled.
    dirty_space: Condvar,
    dirty: CachePadded<Dirty>,
    /// The newest txg that the sync thread was woken for because of its changed bytes.
    dirty_woken: AtomicU64,
    clock: Arc<dyn Clock>,
    tunables: Arc<TxgTunables>,
    counters: Arc<TxgCounters>,
    throttle_ns: AtomicHistogram,
    quiesce_ns: AtomicHistogram,
}

impl Txgs {
    /// Txgs of which `synced` is the newest durable one, and the next is open.
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
            throttled: 0,
            turn_ns: 0,
            era: 0,
        };
        Self {
            cells: (0..cells).map(|_| HoldCell::new(open)).collect(),
            state: Mutex::named("txg-state", state),
            work: Condvar::new(),
            opened: Condvar::new(),
            durable: Condvar::new(),
            dirty_space: Condvar::new(),
            dirty: CachePadded::new(Dirty::new()),
            dirty_woken: AtomicU64::new(synced),
            clock,
            tunables,
            counters: Arc::new(TxgCounters::new()),
            throttle_ns: AtomicHistogram::new(),
            quiesce_ns: AtomicHistogram::new(),
        }
    }

    /// Joins the open txg. Waits while too many changed bytes wait for a commit. The calling thread must not
    /// have a hold already, unless it must not wait: an I/O's callback may find itself on a thread that has one.
    ///
    /// # Errors
    /// `Suspended` or `Closed`; `WouldBlock` on a thread that must not wait, if it would have to.
    #[inline]
    pub fn begin(&self) -> Result<Hold<'_>> {
        self.begin_at(thread_slot().index(self.cells.len()))
    }

    /// As [`begin`](Self::begin), in a certain cell: for the model checker, whose threads share one slot.
    #[doc(hidden)]
    #[inline]
    pub fn begin_at(&self, cell: usize) -> Result<Hold<'_>> {
        if !blocking::is_non_blocking() {
            holds::check_not_nested(self);
        }
        if self.is_pressed() {
            self.throttle().inspect_err(|_| self.count_refused())?;
        }
        loop {
            match self.cells[cell].enter() {
                EnterOutcome::Open(txg) => return Ok(Hold::new(self, cell, txg)),
                EnterOutcome::Closing => {
                    blocking::check("the next transaction group")?;
                    self.wait_opened();
                }
                EnterOutcome::Refused => return Err(self.refusal()),
            }
        }
    }

    /// Waits until the txg that is being closed has no holds any more.
    #[cold]
    fn wait_opened(&self) {
        let mut state = self.state.lock();
        if state.closing && state.stop.is_none() {
            self.counters.add(TxgCounters::WAITED_OPEN, 0, 1);
        }
        while state.closing && state.stop.is_none() {
            self.opened.wait(&mut state);
        }
    }

    #[cold]
    fn refusal(&self) -> Error {
        self.count_refused();
        let running = self.state.lock().check_running();
        running.err().unwrap_or_else(|| Error::new(ErrorKind::Closed, "the pool is closed"))
    }

    fn count_refused(&self) {
        self.counters.add(TxgCounters::REFUSED, 0, 1);
    }

    /// For the sync thread: waits until the open txg is to be committed.
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
            // A txg without changes is looked at again after a whole timeout.
            let wait_ns = timeout_ns.checked_sub(passed_ns).filter(|ns| *ns > 0);
            self.work.wait_timeout(&mut state, Duration::from_nanos(wait_ns.unwrap_or(timeout_ns)));
        }
    }

    fn timeout_ns(&self) -> u64 {
        u64::from(self.tunables.txg_timeout_ms()) * 1_000_000
    }

    fn due(&self, state: &TxgState) -> Option<(Wake, usize)> {
        if state.wanted >= state.open {
            return Some((Wake::Asked, 2));
        }
        let dirty = self.dirty_of(state.open);
        if dirty >= self.sync_at_bytes() {
            return Some((Wake::Dirty, 1));
        }
        let late = self.clock.now_ns() - state.opened_ns >= self.timeout_ns();
        (late && dirty > 0).then_some((Wake::Timeout, 0))
    }

    /// For the sync thread: closes the open txg, opens the next one, and returns once the closed txg's
    /// holds are gone. Works also after [`close`](Self::close), for a last commit.
    ///
    /// # Errors
    /// `Suspended`.
    ///
    /// # Panics
    /// If the txg before is not durable.
    pub fn quiesce(&self) -> Result<u64> {
        let began_ns = self.clock.now_ns();
        let mut state = self.state.lock();
        if let Some(TxgStop::Suspended(_)) = &state.stop {
            state.check_running()?;
        }
        // Somebody may have all at rest for a moment.
        while state.closing {
            self.opened.wait(&mut state);
        }
        let txg = state.open;
        assert_eq!(state.synced + 1, txg, "the txg before {txg} is not durable");
        state.closing = true;
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

    /// Runs `f` at a moment when no change is under way: what begins meanwhile waits. `f` must be short, and take no lock
    /// under which anybody begins. The calling thread has no hold.
    ///
    /// # Errors
    /// `Suspended` or `Closed`; then `f` was not run.
    pub fn at_rest(&self, f: impl FnOnce()) -> Result<()> {
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

    /// Lets nobody join `txg` any more, and says how many cells have holds of it. Who drops the last hold of a cell
    /// waits for `txg-state`, which the caller has, until the number is known.
    fn close_cells(&self, txg: u64) -> usize {
        let mut cells: Vec<_> = self.cells.iter().map(|cell| cell.lock()).collect();
        for cell in &mut cells {
            debug_assert_eq!(cell.open, txg);
            debug_assert_eq!(cell.holds[slot_of(txg + 1)], 0, "a hold of a durable txg");
            cell.closing = true;
        }
        cells.iter().filter(|cell| cell.holds[slot_of(txg)] > 0).count()
    }

    /// Opens the next txg.
    fn open_cells(&self, txg: u64) {
        for cell in &self.cells {
            let mut cell = cell.lock();
            cell.open = txg;
            cell.closing = false;
        }
    }

    /// A cell's last hold of the txg that quiesces is gone.
    #[cold]
    fn cell_drained(&self) {
        let mut state = self.state.lock();
        debug_assert!(state.cells_left > 0, "more cells were drained than had holds");
        state.cells_left -= 1;
        if state.cells_left == 0 {
            self.work.notify_all();
        }
    }

    /// For the sync thread: `txg` is durable. Frees its changed bytes and wakes who waits for it.
    ///
    /// # Panics
    /// If another txg than the one that was closed last is meant.
    pub fn synced(&self, txg: u64) {
        self.fold(txg);
        let mut state = self.state.lock();
        assert_eq!(txg, state.synced + 1, "txgs become durable in order");
        assert_eq!(txg + 1, state.open, "txg {txg} was not closed");
        self.dirty.clear(slot_of(txg));
        state.synced = txg;
        state.era += 1;
        state.turn_ns = 0;
        self.durable.notify_all();
        self.dirty_space.notify_all();
        drop(state);
        self.counters.add(TxgCounters::SYNCED, 0, 1);
    }

    /// Waits until `txg` is durable, and asks for its commit. The calling thread must not have a hold.
    ///
    /// # Errors
    /// `Suspended` or `Closed`, if it is not durable.
    pub fn wait_synced(&self, txg: u64) -> Result<()> {
        let mut state = self.state.lock();
        debug_assert!(txg <= state.open, "txg {txg} is not open yet");
        loop {
            if state.synced >= txg {
                return Ok(());
            }
            state.check_running()?;
            holds::check_not_nested(self);
            blocking::check("a transaction group")?;
            if state.wanted < txg {
                state.wanted = txg;
                self.work.notify_all();
            }
            self.durable.wait(&mut state);
        }
    }

    /// Waits until everything that was done before the call is durable, and returns the txg that had to be.
    /// The calling thread must not have a hold.
    ///
    /// # Errors
    /// As [`wait_synced`](Self::wait_synced).
    pub fn sync_now(&self) -> Result<u64> {
        let txg = self.open_txg();
        self.wait_synced(txg)?;
        Ok(txg)
    }

    /// The open txg. May be another one by the time the caller looks.
    pub fn open_txg(&self) -> u64 {
        self.state.lock().open
    }

    /// The newest durable txg.
    pub fn synced_txg(&self) -> u64 {
        self.state.lock().synced
    }

    /// Whether the open txg lets nobody join any more.
    #[cfg(all(test, not(forebay_model)))]
    fn is_closing(&self) -> bool {
        self.state.lock().closing
    }

    /// After a failed write: from now on nothing begins, and who waits learns why. The first cause stays.
    pub fn suspend(&self, cause: &Error) {
        self.stop(TxgStop::Suspended(format!("{cause:?}")));
    }

    /// From now on nothing begins, and who waits learns it. Idempotent.
    pub fn close(&self) {
        self.stop(TxgStop::Closed);
    }

    fn stop(&self, stop: TxgStop) {
        let mut state = self.state.lock();
        let suspends = matches!(stop, TxgStop::Suspended(_));
        let suspended = matches!(state.stop, Some(TxgStop::Suspended(_)));
        // A failure during the last commit of a closed pool is still told.
        if state.stop.is_none() || (suspends && !suspended) {
            state.stop = Some(stop);
        }
        for cell in &self.cells {
            cell.lock().refuses = true;
        }
        self.work.notify_all();
        self.opened.notify_all();
        self.durable.notify_all();
        self.dirty_space.notify_all();
    }

    /// Whether nothing begins any more, and why.
    ///
    /// # Errors
    /// `Suspended` or `Closed`.
    pub fn check_running(&self) -> Result<()> {
        self.state.lock().check_running()
    }

    /// What was counted.
    pub fn counters(&self) -> &Arc<TxgCounters> {
        &self.counters
    }

    /// How long changes were slowed down, in nanoseconds.
    pub fn throttle_ns(&self) -> &AtomicHistogram {
        &self.throttle_ns
    }

    /// How long closing a txg took, in nanoseconds.
    pub fn quiesce_ns(&self) -> &AtomicHistogram {
        &self.quiesce_ns
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
