//! Scrubs a pool: reads every copy of every block and rewrites bad copies from good ones.
//!
//! A pool has one scrub at a time. Its [record](ScrubStatus) with the bookmark is in each root
//! block, so a scrub goes on after an export or a crash. A thread *drives* it: the caller of
//! [`Pool::scrub`], or a thread of the pool after [`Pool::start_scrub`]. The record advances with
//! each block that was read and, if necessary, healed, all in one step. So the bookmark that a
//! commit stores fits the counts beside it.
//!
//! Drivers are numbered. A thread that waits for a driver stops waiting when another one has begun:
//! the first has ended, and the second has carried out its request before anything else.
//!
//! # Locking
//!
//! `pool-scrub` protects the record and the requests to the driver, for a look. Threads that wait
//! for the driver, and a driver that waits for its rate, sleep on it. `pool-scrub-thread` holds the
//! handle of the pool's thread. `pool-check` admits one check at a time.

mod counters;
mod drive;
mod record;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::ops::ControlFlow;
use std::time::Duration;

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::devices::Devices;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{ScrubPhys, ScrubState};

use super::walk::{Bookmark, Parents};
use super::{CheckProgress, LoggedDamage, Pool, PoolInner};

pub use crate::tunables::ScrubTunables;
pub use counters::ScrubCounters;
use record::ScrubRecord;
pub use record::ScrubStatus;

/// Interval at which a waiting thread reports progress and looks at the clock.
pub(super) const WAIT: Duration = Duration::from_millis(100);

/// Progress of a scrub.
pub type ScrubProgress = CheckProgress;

/// Result of a scrub, over all the times that it was resumed.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Whether the walk reached the end.
    pub complete: bool,
    /// The state that the scrub is in; running if an export has interrupted it.
    pub state: ScrubState,
    /// Blocks processed.
    pub blocks: u64,
    /// Bytes processed, all copies.
    pub bytes: u64,
    /// Bad copies that were rewritten.
    pub healed: u64,
    /// Damaged labels that were rewritten when the walk reached the end.
    pub labels_healed: u64,
    /// Blocks without a good copy, and objects that are invalid, as far as the error log has space
    /// for them.
    pub lost: Vec<LoggedDamage>,
    /// Number of such blocks and objects.
    pub lost_count: u64,
}

/// The scrub of a pool, and what scrubs and checks share.
pub(super) struct Scrubs {
    run: Mutex<ScrubRun>,
    /// Wakes threads that wait for a driver, and a driver that waits.
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    check: Mutex<()>,
    /// Blocks that walks look pointers up in.
    pub(super) parents: Parents,
    /// Whether a scrub or check has locked `space`.
    holds_space: AtomicBool,
    counters: ScrubCounters,
    /// Labels that the newest scrub has rewritten.
    labels_healed: AtomicU64,
}

/// Protected by `pool-scrub`.
struct ScrubRun {
    record: ScrubRecord,
    /// What was so when the walk began, or went on after an import.
    began: Option<Conditions>,
    /// The state that the driver is asked to leave the scrub in.
    request: Option<ScrubState>,
    /// Number of drivers since the import. Tells a thread that waits for a driver whether the
    /// active one is another.
    drivers: u64,
    /// How the newest driver that is not active any more has ended.
    outcome: Option<Outcome>,
    /// Walks in progress, of the scrub and of checks.
    jobs: usize,
    /// Whether no walk may begin any more.
    closed: bool,
}

/// What must not change during a walk that makes devices of mirrors whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Conditions {
    /// What was healed before a flush failed may be lost.
    pub(super) flush_failures: u64,
    /// Places of a block are numbered by devices in use: a walk may pass one when these change.
    use_changes: u64,
}

impl Conditions {
    pub(super) fn now(devices: &Devices) -> Self {
        let use_changes = devices.iter().map(|vdev| vdev.status().use_changes()).sum();
        Self { flush_failures: devices.flush_failures(), use_changes }
    }
}

/// How a driver has ended.
struct Outcome {
    status: ScrubStatus,
    /// The error that ended it, or that of its last commit: kind and text.
    failure: Option<Failure>,
}

/// Kind and text of an error.
type Failure = (ErrorKind, String);

fn failure_of<T>(result: &Result<T>) -> Option<Failure> {
    result.as_ref().err().map(|error| (error.kind(), error.to_string()))
}

impl Scrubs {
    pub(super) fn new(phys: &ScrubPhys) -> Self {
        let run = ScrubRun {
            record: ScrubRecord::of(phys),
            began: None,
            request: None,
            drivers: 0,
            outcome: None,
            jobs: 0,
            closed: false,
        };
        Self {
            run: Mutex::named("pool-scrub", run),
            changed: Condvar::new(),
            thread: Mutex::named("pool-scrub-thread", None),
            check: Mutex::named("pool-check", ()),
            parents: Parents::new(),
            holds_space: AtomicBool::new(false),
            counters: ScrubCounters::new(),
            labels_healed: AtomicU64::new(0),
        }
    }

    /// The record, for the root block.
    pub(super) fn phys(&self, devices: &Devices) -> ScrubPhys {
        let run = self.run.lock();
        let mut record = run.record;
        if run.has_passed_copies(devices) {
            record.at = Bookmark::START;
        }
        record.phys()
    }

    pub(super) fn counters(&self) -> &ScrubCounters {
        &self.counters
    }

    pub(super) fn count_slice(&self, overtaken: bool) {
        self.counters.add(ScrubCounters::SCRUB_SLICES, 0, 1);
        self.counters.add(ScrubCounters::SCRUB_SLICES_OVERTAKEN, 0, u64::from(overtaken));
    }

    /// Counts a commit that had to wait.
    pub(super) fn count_wait(&self) {
        self.counters.add(ScrubCounters::COMMITS_WAITED_FOR_SCRUB, 0, 1);
    }

    /// A scrub or check has locked `space`, or is about to release it.
    pub(super) fn set_holds_space(&self, holds: bool) {
        self.holds_space.store(holds, Ordering::SeqCst);
    }

    pub(super) fn holds_space(&self) -> bool {
        self.holds_space.load(Ordering::SeqCst)
    }

    /// Waits until no other check runs.
    pub(super) fn one_check(&self) -> MutexGuard<'_, ()> {
        self.check.lock()
    }

    /// Registers a walk, so that an export waits for its end.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub(super) fn begin_job(&self, pool: &PoolInner) -> Result<Job<'_>> {
        self.run.lock().begin_job(pool)?;
        Ok(Job(self))
    }

    /// Lets no walk begin any more, and waits until the running ones have ended. `closed` of the
    /// pool is set. A scrub stays in its state, so that the next import can resume it.
    pub(super) fn shut_down(&self) {
        let mut run = self.run.lock();
        run.closed = true;
        self.changed.notify_all();
        while run.jobs > 0 {
            self.changed.wait(&mut run);
        }
        drop(run);
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// A walk in progress.
pub(super) struct Job<'a>(&'a Scrubs);

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let jobs = {
            let mut run = self.0.run.lock();
            run.jobs -= 1;
            run.jobs
        };
        self.0.changed.notify_all();
        if jobs == 0 {
            self.0.parents.clear();
        }
    }
}

impl Pool {
    /// Scrubs the pool in the calling thread: goes on with a scrub that was paused or interrupted,
    /// else commits the open txg and starts a new one, which reads every copy of every block that
    /// is in use during the whole scrub. Changes and commits go on meanwhile.
    ///
    /// `progress` is called periodically, and pauses the scrub by returning
    /// [`ControlFlow::Break`]. It must not export the pool. [`pause_scrub`](Self::pause_scrub),
    /// [`stop_scrub`](Self::stop_scrub) and an export end the scrub as well, between two blocks.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the scrub is active already, the error that stopped it, and that of
    /// the commit of its result. Problems found are not errors; the report lists them.
    pub fn scrub(
        &self,
        progress: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        let inner = &self.inner;
        inner.begin_scrub()?;
        inner.drive_scrub(progress)
    }

    /// As [`scrub`](Self::scrub), in a thread of the pool. Does nothing if the scrub is active.
    ///
    /// # Errors
    /// The error of starting it. An error that stops it later is logged, and returned by
    /// [`wait_scrub`](Self::wait_scrub).
    pub fn start_scrub(&self) -> Result<()> {
        let inner = &self.inner;
        match inner.begin_scrub() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::InUse => return Ok(()),
            Err(error) => return Err(error),
        }
        let driver = Arc::clone(inner);
        let spawned = thread::spawn_named("forebay-scrub", move || {
            let driven = driver.drive_scrub(&mut |_| ControlFlow::Continue(()));
            if let Err(error) = driven {
                tracing::error!(pool = &*driver.name, %error, "scrub failed");
            }
        });
        let thread = spawned.map_err(|error| {
            let error = Error::no_thread("the scrub", error);
            inner.scrub.leave(Some((error.kind(), error.to_string())));
            error
        })?;
        let before = inner.scrub.thread.lock().replace(thread);
        // Its scrub has ended, so this does not wait for a walk.
        before.map(JoinHandle::join);
        Ok(())
    }

    /// Goes on with a scrub that an export or a crash has interrupted, in a thread of the pool.
    /// Returns whether there is one.
    ///
    /// # Errors
    /// As [`start_scrub`](Self::start_scrub).
    pub fn resume_scrub(&self) -> Result<bool> {
        if self.scrub_status().state != ScrubState::Running {
            return Ok(false);
        }
        self.start_scrub().map(|()| true)
    }

    /// Pauses the scrub, durably. It ends between two blocks.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no scrub is running, and the errors of [`sync`](Self::sync).
    pub fn pause_scrub(&self) -> Result<()> {
        self.end_scrub(ScrubState::Paused)
    }

    /// Stops the scrub, durably. It ends between two blocks, and cannot be resumed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no scrub is running or paused, and the errors of
    /// [`sync`](Self::sync).
    pub fn stop_scrub(&self) -> Result<()> {
        self.end_scrub(ScrubState::Stopped)
    }

    fn end_scrub(&self, wanted: ScrubState) -> Result<()> {
        self.inner.check_writable()?;
        let scrub = &self.inner.scrub;
        let mut run = scrub.run.lock();
        if !run.may_end(wanted) {
            let text = format!("pool {}: no scrub is running", self.inner.name);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        // A pause does not turn the stop of another thread into a pause.
        if run.request != Some(ScrubState::Stopped) {
            run.request = Some(wanted);
        }
        scrub.changed.notify_all();
        let driver = run.drivers;
        while run.record.status.is_active && run.drivers == driver {
            scrub.changed.wait(&mut run);
        }
        // Another thread may have started the scrub again. It has carried out the request first.
        if run.drivers == driver {
            run.carry_out();
        }
        drop(run);
        self.sync()
    }

    /// Sets the maximum rate of the scrub in bytes per second, all copies; 0 for the tunable
    /// `scrub_rate_bytes`. It lasts until the scrub ends.
    pub fn set_scrub_rate(&self, rate_bytes: u64) {
        let scrub = &self.inner.scrub;
        scrub.run.lock().record.status.rate_bytes = rate_bytes;
        scrub.changed.notify_all();
    }

    /// Sets how many seconds after the end of a scrub the next one is [due](ScrubStatus::due),
    /// durably; 0 for never.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    pub fn set_scrub_interval(&self, seconds: u64) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.scrub.run.lock().record.status.every_s = seconds;
        self.sync()
    }

    /// State and progress of the newest scrub.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.inner.scrub.run.lock().record.status
    }

    /// Waits until the thread that works on the scrub has ended, and returns the result.
    /// `progress` is called periodically, and ends the wait, but not the scrub, by returning
    /// [`ControlFlow::Break`]. Returns the result of the thread before if none works on the scrub.
    ///
    /// # Errors
    /// The error that stopped the scrub, and that of the commit of its result.
    pub fn wait_scrub(
        &self,
        progress: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        let scrub = &self.inner.scrub;
        let mut run = scrub.run.lock();
        let driver = run.drivers;
        while run.record.status.is_active && run.drivers == driver {
            scrub.changed.wait_timeout(&mut run, WAIT);
            let now = run.progress();
            drop(run);
            let flow = progress(&now);
            run = scrub.run.lock();
            if flow.is_break() {
                let status = run.record.status;
                drop(run);
                return Ok(self.inner.scrub_report(&status));
            }
        }
        let (status, failure) = match &run.outcome {
            Some(outcome) => (outcome.status, outcome.failure.clone()),
            None => (run.record.status, None),
        };
        drop(run);
        match failure {
            Some((kind, text)) => Err(Error::new(kind, text)),
            None => Ok(self.inner.scrub_report(&status)),
        }
    }
}

impl Scrubs {
    /// The driver has ended, or could not begin, with this error if it failed.
    fn leave(&self, failure: Option<Failure>) {
        self.run.lock().leave(failure);
        self.changed.notify_all();
    }
}

impl ScrubRun {
    /// Whether the walk may have passed bad copies of a device that it makes whole: it has to begin
    /// again.
    fn has_passed_copies(&self, devices: &Devices) -> bool {
        let changed = self.began.is_some_and(|began| began != Conditions::now(devices));
        changed && devices.catches_up()
    }

    fn begin_job(&mut self, pool: &PoolInner) -> Result<()> {
        if self.closed {
            let text = format!("pool {} was exported; import it again", pool.name);
            return Err(Error::new(ErrorKind::Closed, text));
        }
        self.jobs += 1;
        Ok(())
    }

    /// Begins to drive the scrub. Returns whether it goes on; if not, the driver starts a new one.
    /// [`leave`](Self::leave) ends this.
    fn begin_driver(&mut self, pool: &PoolInner) -> Result<bool> {
        if self.record.status.is_active {
            let text = format!("pool {}: a scrub is running already", pool.name);
            return Err(Error::new(ErrorKind::InUse, text));
        }
        self.begin_job(pool)?;
        // The driver before may have failed before it saw a request.
        self.carry_out();
        self.drivers += 1;
        let status = &mut self.record.status;
        status.is_active = true;
        let goes_on = matches!(status.state, ScrubState::Running | ScrubState::Paused);
        if goes_on {
            status.state = ScrubState::Running;
        }
        self.began.get_or_insert_with(|| Conditions::now(&pool.devices));
        Ok(goes_on)
    }

    fn leave(&mut self, failure: Option<Failure>) {
        self.record.status.is_active = false;
        self.outcome = Some(Outcome { status: self.record.status, failure });
        self.jobs -= 1;
    }

    fn progress(&self) -> ScrubProgress {
        let status = &self.record.status;
        ScrubProgress {
            blocks: status.blocks,
            bytes: status.bytes,
            total_bytes: status.total_bytes,
            problems: status.lost,
        }
    }

    /// Whether the scrub is in a state that can be changed to `wanted`.
    fn may_end(&self, wanted: ScrubState) -> bool {
        match self.record.status.state {
            ScrubState::Running => true,
            ScrubState::Paused => wanted == ScrubState::Stopped,
            _ => false,
        }
    }

    /// Carries out the request, if there is one, unless the scrub has ended meanwhile. It is not
    /// walking.
    fn carry_out(&mut self) {
        if let Some(wanted) = self.request.take()
            && self.may_end(wanted)
        {
            self.end(wanted);
        }
    }

    /// Changes the state of a scrub that is not walking.
    fn end(&mut self, state: ScrubState) {
        let status = &mut self.record.status;
        status.state = state;
        if matches!(state, ScrubState::Finished | ScrubState::Stopped) {
            status.ended = unix_seconds();
            status.rate_bytes = 0;
        }
    }
}

impl PoolInner {
    /// The result of the newest scrub so far.
    fn scrub_report(&self, status: &ScrubStatus) -> ScrubReport {
        ScrubReport {
            complete: status.state == ScrubState::Finished,
            state: status.state,
            blocks: status.blocks,
            bytes: status.bytes,
            healed: status.healed,
            labels_healed: self.scrub.labels_healed.load(Ordering::Relaxed),
            lost: self.damage_of_scrub(status.txg),
            lost_count: status.lost,
        }
    }

    /// Makes the calling thread the driver of the scrub, which is new or goes on.
    fn begin_scrub(&self) -> Result<()> {
        self.check_writable()?;
        let goes_on = self.scrub.run.lock().begin_driver(self)?;
        if goes_on {
            return Ok(());
        }
        let synced = self.txgs.sync_now();
        if synced.is_err() {
            self.scrub.leave(failure_of(&synced));
        }
        synced?;
        let txg = self.txgs.synced_txg();
        let total_bytes = self.space_stats.lock().allocated_bytes;
        let mut run = self.scrub.run.lock();
        let ScrubStatus { rate_bytes, every_s, .. } = run.record.status;
        let started = unix_seconds();
        let (state, is_active) = (ScrubState::Running, true);
        let new = ScrubStatus {
            state,
            is_active,
            txg,
            started,
            total_bytes,
            rate_bytes,
            every_s,
            ..Default::default()
        };
        run.record = ScrubRecord { status: new, at: Bookmark::START };
        run.began = Some(Conditions::now(&self.devices));
        Ok(())
    }
}

fn unix_seconds() -> u64 {
    SystemWallClock.unix_time().seconds.max(0) as u64
}
