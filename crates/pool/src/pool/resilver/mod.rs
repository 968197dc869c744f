//! Resilvers: bring the blocks that devices of mirrors miss onto them.
//!
//! A resilver walks the pool as a scrub does, and leaves out subtrees that are older than all that
//! is missed. Of the other blocks it reads the copies on devices that miss them, and rewrites the
//! bad ones; on a device that misses everything it writes without reading. Blocks of data wait for
//! others, and are visited by several threads, in the order of the device ([`batch`]). At its end
//! these devices miss nothing older any more. What they miss is in the labels, but where a resilver
//! is is not: after an import it starts over.
//!
//! # Locking
//!
//! `pool-resilver` protects the status, for a look; threads that wait for the end sleep on it.
//! `pool-resilver-thread` holds the handle of the thread.

mod batch;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::format::BlockPtrPhys;
use crate::store::Store;

use super::scrub::{Conditions, WAIT};
use super::walk::{
    BlockLocation, Bookmark, PostponedBlock, SliceEnd, Step, VisitedBlock, Visitor, Walk,
    kind_of_invalid,
};
use super::{Pool, PoolInner};
use batch::Batch;

/// Walks in a row, for devices that fail writes meanwhile.
const ROUNDS_MAX: usize = 3;

/// The newest resilver since the import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ResilverStatus {
    /// Whether it runs.
    pub is_active: bool,
    /// Blocks that a device was known to miss, and that were read.
    pub blocks: u64,
    /// Bytes of these blocks, all copies.
    pub bytes: u64,
    /// What `bytes` will be at most, if a device misses all blocks; 0 if unknown.
    pub total_bytes: u64,
    /// Copies that were written.
    pub written: u64,
    /// Blocks without a good copy, and invalid objects.
    pub lost: u64,
    /// Time that it has been running, in nanoseconds.
    pub active_ns: u64,
}

impl ResilverStatus {
    /// Average rate so far in bytes per second; 0 if unknown.
    pub fn bytes_per_second(&self) -> u64 {
        let per_second = u128::from(self.bytes) * 1_000_000_000;
        per_second.checked_div(self.active_ns.into()).unwrap_or(0) as u64
    }

    /// Estimate of the time left, at the average rate so far; `None` if unknown.
    pub fn left(&self) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(self.bytes);
        let seconds = left.checked_div(self.bytes_per_second());
        seconds.filter(|_| self.total_bytes > 0).map(Duration::from_secs)
    }
}

impl fmt::Display for ResilverStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, written, lost, .. } = self;
        write!(f, "{blocks} missed blocks read, {written} copies written, {lost} lost")
    }
}

/// The resilvers of a pool.
pub(super) struct Resilvers {
    run: Mutex<Run>,
    ended: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Protected by `pool-resilver`.
#[derive(Default)]
struct Run {
    status: ResilverStatus,
    /// Whether a device came back meanwhile, so that another walk is necessary.
    again: bool,
    /// Whether a suspension of the pool has ended it.
    suspended: bool,
}

impl Resilvers {
    pub(super) fn new() -> Self {
        Self {
            run: Mutex::named("pool-resilver", Run::default()),
            ended: Condvar::new(),
            thread: Mutex::named("pool-resilver-thread", None),
        }
    }

    /// Whether one runs.
    pub(super) fn is_active(&self) -> bool {
        self.run.lock().status.is_active
    }

    /// Waits for the end of the thread. `closed` of the pool is set.
    pub(super) fn shut_down(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Ends the status after a panic, or if there is no thread.
struct EndGuard<'a>(&'a Resilvers);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.run.lock().status.is_active = false;
        self.0.ended.notify_all();
    }
}

impl Pool {
    /// Starts to bring the blocks that devices in use miss onto them, in a thread of the pool.
    /// Returns whether there is something to do. Does it again at the end if it runs already.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`], [`ErrorKind::Closed`], [`ErrorKind::NoMemory`].
    pub fn start_resilver(&self) -> Result<bool> {
        let inner = &self.inner;
        inner.check_writable()?;
        let devices = &inner.devices;
        if devices.missed_from().is_none() && !inner.has_replaced() && !devices.replaces_log() {
            return Ok(false);
        }
        {
            let mut run = inner.resilver.run.lock();
            run.again = run.status.is_active;
            if run.again {
                return Ok(true);
            }
            run.status = ResilverStatus { is_active: true, ..ResilverStatus::default() };
            run.suspended = false;
        }
        let worker = Arc::clone(inner);
        let spawned = thread::spawn_named("forebay-resilver", move || worker.run_resilver());
        let thread = spawned.map_err(|error| {
            drop(EndGuard(&inner.resilver));
            Error::no_thread("the resilver", error)
        })?;
        let before = inner.resilver.thread.lock().replace(thread);
        // It has ended its work.
        before.map(JoinHandle::join);
        Ok(true)
    }

    /// Starts the resilver again that the suspension has ended, after a clear.
    pub(super) fn resume_resilver(&self) {
        let was_suspended = self.inner.resilver.run.lock().suspended;
        if was_suspended && let Err(error) = self.start_resilver() {
            tracing::warn!(pool = self.name(), %error, "the resilver does not go on");
        }
    }

    /// Progress of the newest resilver.
    pub fn resilver_status(&self) -> ResilverStatus {
        self.inner.resilver.run.lock().status
    }

    /// Waits until no resilver runs, and returns its status.
    pub fn wait_resilver(&self) -> ResilverStatus {
        self.wait_resilver_with(&mut |_| ControlFlow::Continue(()))
    }

    /// As [`wait_resilver`](Self::wait_resilver). `progress` is called several times a second, and
    /// ends the wait, but not the resilver, by returning [`ControlFlow::Break`].
    pub fn wait_resilver_with(
        &self,
        progress: &mut dyn FnMut(&ResilverStatus) -> ControlFlow<()>,
    ) -> ResilverStatus {
        let resilver = &self.inner.resilver;
        let mut run = resilver.run.lock();
        while run.status.is_active {
            resilver.ended.wait_timeout(&mut run, WAIT);
            let status = run.status;
            drop(run);
            if progress(&status).is_break() {
                return status;
            }
            run = resilver.run.lock();
        }
        run.status
    }
}

impl PoolInner {
    fn run_resilver(self: &Arc<Self>) {
        let guard = EndGuard(&self.resilver);
        let pool = &*self.name;
        self.events().note(EventKind::ResilverBegan, Event::default());
        let mut rounds = 0;
        loop {
            let walked = self.resilver_once().and_then(|found| {
                if self.devices.replaces_log() {
                    self.catch_up_log()?;
                }
                Ok(found)
            });
            self.finish_replacements();
            match &walked {
                Ok(_) => tracing::info!(pool, "resilver ended a walk"),
                Err(error) => tracing::error!(pool, %error, "resilver failed"),
            }
            let is_suspended =
                matches!(&walked, Err(error) if error.kind() == ErrorKind::Suspended);
            // Before it looks whether the pool was cleared: a clear that does not see it has ended
            // the suspension already.
            self.resilver.run.lock().suspended = is_suspended;
            let is_cleared = is_suspended && self.txgs.suspension().is_none();
            let mut run = self.resilver.run.lock();
            rounds += 1;
            let may_go_on = (matches!(walked, Ok(true)) || is_cleared) && rounds < ROUNDS_MAX;
            // Requests that came meanwhile count anew.
            if std::mem::take(&mut run.again) {
                rounds = 0;
            } else if !may_go_on || self.devices.missed_from().is_none() {
                run.status.is_active = false;
                self.events().note(EventKind::ResilverEnded, Event::because(run.status));
            }
            if self.closed.load(Ordering::Acquire) {
                run.status.is_active = false;
            }
            if !run.status.is_active {
                // In the same step, so that the start of the next one finds this one ended.
                self.resilver.ended.notify_all();
                std::mem::forget(guard);
                return;
            }
        }
    }

    /// One walk. Returns whether it has found or rewritten all. If a flush or a device has failed
    /// meanwhile, the devices still miss blocks afterwards.
    fn resilver_once(self: &Arc<Self>) -> Result<bool> {
        let _job = self.scrub.begin_job(self)?;
        // A device that comes back from here on is one that the walk may not have covered.
        let began = Conditions::now(&self.devices);
        // What a device misses ends with the txg after the one that is open when it comes back.
        self.txgs.sync_now()?;
        let until = self.txgs.synced_txg();
        let Some(oldest) = self.devices.missed_from() else { return Ok(true) };
        let clocked = Clocked::Until(self.clock.now_ns());
        let mut resilverer = Resilverer::new(self, (oldest, until), clocked);
        // It misses all blocks.
        if oldest <= 1 {
            let total_bytes = self.space_stats.lock().allocated_bytes;
            resilverer.count(|status| status.total_bytes = total_bytes);
        }
        let complete = Walk::new(self, until, Bookmark::START, &mut resilverer).run()?
            && match resilverer.visit_batch() {
                Err(SliceEnd::Failed(error) | SliceEnd::Ended(error)) => return Err(error),
                ended => ended.is_ok(),
            };
        match complete && resilverer.lost == 0 {
            true => self.caught_up(until, began).map(|()| true),
            false => Ok(false),
        }
    }

    /// All blocks of txgs up to `until` were found or rewritten. From now on devices miss nothing
    /// older, unless a flush or a device has failed since the walk began.
    fn caught_up(&self, until: u64, began: Conditions) -> Result<()> {
        // A block that waited is left out if the tree of a txg that is being written has it no
        // more. A crash may undo that txg: no label may call a device whole before it is durable.
        self.txgs.wait_closed()?;
        if Conditions::now(&self.devices) != began {
            // What was rewritten may be lost, so the devices still miss it.
            return Ok(());
        }
        self.devices.caught_up(until, began.flush_failures)?;
        self.txgs.sync_now().map(drop)
    }
}

/// Who adds the time that passes to the status.
enum Clocked {
    /// The walk. It has added the time until this one.
    Until(u64),
    /// Another thread, beside which this one works.
    ByAnother,
}

/// Rewrites what devices miss.
struct Resilverer<'a> {
    pool: &'a Arc<PoolInner>,
    oldest: u64,
    until: u64,
    lost: u64,
    clocked: Clocked,
    /// Blocks that wait.
    batch: Batch,
}

impl<'a> Resilverer<'a> {
    fn new(pool: &'a Arc<PoolInner>, (oldest, until): (u64, u64), clocked: Clocked) -> Self {
        Self { pool, oldest, until, lost: 0, clocked, batch: Batch::default() }
    }

    fn count(&mut self, add: impl FnOnce(&mut ResilverStatus)) {
        let status = &mut self.pool.resilver.run.lock().status;
        if let Clocked::Until(until_ns) = &mut self.clocked {
            let now_ns = self.pool.clock.now_ns();
            status.active_ns += now_ns.saturating_sub(*until_ns);
            *until_ns = now_ns;
        }
        add(status);
    }

    fn lose(&mut self, location: &BlockLocation, error: &Error) {
        tracing::error!(%location, %error, "resilver found damage");
        self.lost += 1;
        self.count(|status| status.lost += 1);
    }
}

impl Visitor for Resilverer<'_> {
    fn proceed(&mut self, _: &Bookmark) -> Step {
        match self.pool.closed.load(Ordering::Acquire) {
            true => Err(SliceEnd::Interrupted),
            false => Ok(()),
        }
    }

    fn oldest(&self) -> u64 {
        self.oldest
    }

    fn wants(&self, store: &Store, ptr: &BlockPtrPhys, copy: usize) -> bool {
        store.misses(ptr, copy)
    }

    fn postpone(&mut self, block: PostponedBlock<'_>) -> Step<bool> {
        let PostponedBlock { store, ptr, .. } = block;
        if !(0..store.place_count(ptr)).any(|copy| self.wants(store, ptr, copy)) {
            return Ok(false);
        }
        if self.batch.push(block) {
            self.visit_batch()?;
        }
        Ok(true)
    }

    fn block(&mut self, block: VisitedBlock<'_>) -> Step {
        let mut written = 0;
        for (copy, _) in &block.bad {
            match self.pool.heal(&block, *copy) {
                Ok(true) => written += 1,
                Ok(false) => return Err(SliceEnd::Overtaken),
                // A device comes back by itself: nothing is lost.
                Err(error) if self.pool.devices.outage().is_some() => return Err(error.into()),
                // No other side has it, or none can read it.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.lose(block.location, &error);
                    let errors = self.pool.store.errors();
                    errors.note(block.range(), block.damage(), self.until);
                }
                // The device takes no blocks.
                Err(error) => return Err(error.into()),
            }
        }
        let bytes = block.extents.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.count(|status| {
            status.blocks += 1;
            status.bytes += bytes;
            status.written += written;
        });
        Ok(())
    }

    fn damaged(&mut self, location: &BlockLocation, error: Error) {
        self.lose(location, &error);
        let errors = self.pool.store.errors();
        errors.note(location.to_the_end(), kind_of_invalid(&error), self.until);
    }
}
