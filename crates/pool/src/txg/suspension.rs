//! Suspension: a txg that cannot be written, and how it goes on.
//!
//! The sync thread [parks](Txgs::park) if a device fails a step of a commit. The txg stays as it
//! is, in memory and half on the devices. While it is parked, nothing begins and waiters fail.
//! [`clear`](Txgs::clear) lets the sync thread repeat the failed step. The suspension ends when the
//! txg is durable. If a step fails again, the thread parks again and `clear` returns the error.
//!
//! A failure that is not a device's ends the sync thread ([`suspend`](Txgs::suspend)). That
//! suspension lasts until the pool is imported again.
//!
//! Locking: `txg-state`.

use std::fmt;
use std::time::Duration;

use forebay_base::clock::{Clock, SystemClock};

use super::counters::TxgCounters;
use super::{TxgState, TxgStop, Txgs, holds};
use crate::error::{Error, ErrorKind, Result};

/// Intervals after which devices that do not answer are asked again, once they were asked often.
const PATIENT_INTERVALS: u32 = 8;

/// Interval at which a thread that waits for the end of a suspension asks whether to give up.
pub(super) const GIVE_UP_INTERVAL: Duration = Duration::from_millis(250);

/// How a wait for devices has ended that did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicesWait {
    /// They were gone, and are said to be back: the suspension has ended, or the outage.
    Back,
    /// A transaction group became durable, without a suspension in sight, and they answer.
    Durable,
    /// The caller gave up.
    GaveUp,
}

/// Why a pool is suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suspension {
    /// The device that failed, if a device did.
    pub device: Option<String>,
    /// The request that failed: `write`, `flush`, `read`.
    pub operation: Option<String>,
    /// The failure, as a sentence for people.
    pub error: String,
    /// The transaction group that could not be written.
    pub txg: u64,
    /// Wall-clock time of the failure in nanoseconds since 1970; 0 if it is not known.
    pub time_ns: u64,
    /// Whether [`Pool::clear`](crate::Pool::clear) can go on. If not, only another import helps.
    pub resumable: bool,
}

impl Suspension {
    /// The suspension by `error` in a txg. It can be resumed if a device failed.
    pub(crate) fn new(error: &Error, txg: u64, time_ns: u64) -> Self {
        let io = error.device_error();
        Self {
            device: io.map(|io| io.device().to_owned()),
            operation: io.map(|io| io.op().to_string()),
            error: error.to_string(),
            txg,
            time_ns,
            resumable: false,
        }
    }

    /// The error of a call that this suspension refuses.
    fn refusal(&self) -> Error {
        let text = match self.resumable {
            true => {
                "the pool is suspended after a failed write: make the device work, then clear the \
                 pool"
            }
            false => "the pool is suspended after a failure: export it and import it again",
        };
        Error::new(ErrorKind::Suspended, text).because(self.to_string())
    }
}

impl fmt::Display for Suspension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction group {} cannot be written: {}", self.txg, self.error)
    }
}

impl TxgState {
    /// Whether there is a suspension that `clear` can end.
    fn may_resume(&self) -> bool {
        let ends = self.closed || self.parks_ended;
        matches!(&self.stop, Some(TxgStop::Suspended(now)) if now.resumable && !ends)
    }

    pub(super) fn check_running(&self) -> Result<()> {
        match &self.stop {
            None => Ok(()),
            Some(TxgStop::Closed) => Err(Error::new(ErrorKind::Closed, "the pool is closed")),
            Some(TxgStop::Suspended(suspension)) => Err(suspension.refusal()),
        }
    }
}

impl Txgs {
    /// Stops for good after a failure: nothing begins any more, and waiters fail with the cause. A
    /// suspension that is in force stays, but cannot be resumed any more.
    pub fn suspend(&self, cause: &Error) {
        self.suspend_at(cause, self.clock.now_ns());
    }

    /// As [`suspend`](Self::suspend), at a given time. Cannot panic.
    pub(crate) fn suspend_at(&self, cause: &Error, time_ns: u64) {
        let mut state = self.state.lock();
        match &mut state.stop {
            Some(TxgStop::Suspended(suspension)) => suspension.resumable = false,
            // A failure of the last commit of a closed pool is still reported.
            _ => {
                self.counters.add(TxgCounters::SUSPENDED, 0, 1);
                let suspension = Suspension::new(cause, state.synced + 1, time_ns);
                state.stop = Some(TxgStop::Suspended(suspension));
            }
        }
        state.parked = false;
        self.stop_all(&mut state);
    }

    /// For the sync thread: suspends because of `cause`, and waits. Returns whether the failed step
    /// shall be repeated; if not, the txgs are closed, or only another import helps.
    pub(crate) fn park(&self, cause: &Error, txg: u64) -> bool {
        let mut state = self.state.lock();
        let is_final = |stop: &TxgStop| matches!(stop, TxgStop::Suspended(suspension) if !suspension.resumable);
        if state.closed || state.parks_ended || state.stop.as_ref().is_some_and(is_final) {
            return false;
        }
        self.counters.add(TxgCounters::SUSPENDED, 0, 1);
        let mut suspension = Suspension::new(cause, txg, self.clock.now_ns());
        suspension.resumable = true;
        state.stop = Some(TxgStop::Suspended(suspension));
        state.parked = true;
        state.parks += 1;
        self.stop_all(&mut state);
        while !state.clear_requested && state.may_resume() {
            self.work.wait(&mut state);
        }
        state.parked = false;
        std::mem::take(&mut state.clear_requested) && state.may_resume()
    }

    /// Ends a park without repeating the step, and forbids others: the pool is exported. The sync
    /// thread then lets go of `space`, which scrubs and discards may wait for. A step that is being
    /// repeated already comes to its end first, so that the export does not give up a txg that
    /// `clear` saves. On return, a suspension is final.
    pub(crate) fn end_parks(&self) {
        let mut state = self.state.lock();
        state.parks_ended = true;
        self.work.notify_all();
        self.durable.notify_all();
        while matches!(&state.stop, Some(TxgStop::Suspended(now)) if now.resumable) {
            self.durable.wait(&mut state);
        }
    }

    /// Lets the sync thread repeat the step that failed, and waits until its txg is durable. Does
    /// nothing if the txgs are not suspended.
    ///
    /// # Errors
    /// `Suspended`, with the new cause, if the step or a later one of the same txg fails, or if the
    /// suspension cannot be resumed. `Closed`.
    pub fn clear(&self) -> Result<()> {
        let mut state = self.state.lock();
        let parks = state.parks;
        if state.parked {
            state.clear_requested = true;
            self.work.notify_all();
        }
        loop {
            match &state.stop {
                Some(TxgStop::Suspended(now))
                    if now.resumable && !state.closed && state.parks == parks =>
                {
                    self.durable.wait(&mut state);
                }
                _ => return state.check_running(),
            }
        }
    }

    /// Waits while the txgs are suspended and can be cleared, and while a device is away. Returns
    /// false if `give_up` says so, which is asked now and then, without locks.
    ///
    /// # Errors
    /// `Suspended` if only another import helps, or the txgs are being closed; `Closed`.
    pub fn wait_resumed(&self, give_up: &dyn Fn() -> bool) -> Result<bool> {
        loop {
            if give_up() {
                return Ok(false);
            }
            let outage = self.outage();
            let mut state = self.state.lock();
            if !state.may_resume() {
                state.check_running()?;
                if outage.is_none() {
                    return Ok(true);
                }
            }
            self.durable.wait_timeout(&mut state, GIVE_UP_INTERVAL);
        }
    }

    /// Commits the open txg, and waits until it is durable. If a device is gone, that suspends the
    /// txgs: so people learn of it, and `clear` ends the wait. If it is away, the wait ends once it
    /// is back. `give_up` is asked now and then, without locks.
    ///
    /// # Errors
    /// As [`wait_resumed`](Self::wait_resumed).
    pub fn wait_for_devices(&self, give_up: &dyn Fn() -> bool) -> Result<DevicesWait> {
        holds::check_not_nested(self);
        let (txg, parks) = {
            let mut state = self.state.lock();
            state.wanted = state.wanted.max(state.open);
            self.work.notify_all();
            (state.open, state.parks - u64::from(state.may_resume()))
        };
        let mut was_away = false;
        loop {
            if give_up() {
                return Ok(DevicesWait::GaveUp);
            }
            was_away |= self.outage().is_some();
            let mut state = self.state.lock();
            if state.synced >= txg {
                return Ok(match was_away || state.parks > parks {
                    true => DevicesWait::Back,
                    false => DevicesWait::Durable,
                });
            }
            if !state.may_resume() {
                state.check_running()?;
            }
            self.durable.wait_timeout(&mut state, GIVE_UP_INTERVAL);
        }
    }

    /// Goes on with a wait for devices that has `ended` so: waits while `are_silent` says that some
    /// do not answer, and at least one interval if nothing says that they were gone. Commits
    /// nothing. `are_silent` and `give_up` are asked now and then, without locks.
    ///
    /// # Errors
    /// As [`wait_resumed`](Self::wait_resumed).
    pub(crate) fn wait_while_silent(
        &self,
        mut ended: DevicesWait,
        are_silent: &dyn Fn() -> bool,
        give_up: &dyn Fn() -> bool,
    ) -> Result<DevicesWait> {
        let first = u32::from(ended == DevicesWait::Durable);
        for intervals in 0_u32.. {
            if ended == DevicesWait::GaveUp || give_up() {
                return Ok(DevicesWait::GaveUp);
            }
            let is_due = intervals < PATIENT_INTERVALS || intervals % PATIENT_INTERVALS == 0;
            if intervals >= first && is_due {
                if !are_silent() {
                    break;
                }
                ended = DevicesWait::Back;
            }
            self.wait_interval()?;
        }
        Ok(ended)
    }

    /// Waits for one interval, however many txgs become durable meanwhile.
    ///
    /// # Errors
    /// As [`wait_resumed`](Self::wait_resumed).
    fn wait_interval(&self) -> Result<()> {
        let clock = SystemClock::new();
        let mut state = self.state.lock();
        loop {
            if !state.may_resume() {
                state.check_running()?;
            }
            let passed = Duration::from_nanos(clock.now_ns());
            let Some(left) = GIVE_UP_INTERVAL.checked_sub(passed).filter(|left| !left.is_zero())
            else {
                return Ok(());
            };
            self.durable.wait_timeout(&mut state, left);
        }
    }

    /// Ends a suspension: a txg has become durable. Called under `txg-state`.
    pub(super) fn resume(&self, state: &mut TxgState) {
        let Some(TxgStop::Suspended(suspension)) = &state.stop else { return };
        if !suspension.resumable {
            return;
        }
        self.counters.add(TxgCounters::RESUMED, 0, 1);
        state.stop = state.closed.then_some(TxgStop::Closed);
        if !state.closed {
            for cell in &self.cells {
                cell.lock().stopped = false;
            }
        }
    }

    /// Why the txgs are suspended.
    pub fn suspension(&self) -> Option<Suspension> {
        match &self.state.lock().stop {
            Some(TxgStop::Suspended(suspension)) => Some(suspension.clone()),
            _ => None,
        }
    }

    /// Whether [`close`](Self::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Refuses new changes and wakes all waiters. The caller has set the stop.
    pub(super) fn stop_all(&self, _state: &mut TxgState) {
        for cell in &self.cells {
            cell.lock().stopped = true;
        }
        self.work.notify_all();
        self.opened.notify_all();
        self.durable.notify_all();
        self.dirty_space.notify_all();
    }
}
