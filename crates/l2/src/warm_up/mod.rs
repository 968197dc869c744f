//! The warm-up: after a restart, inserts blocks into memory before they are requested.
//!
//! Blocks read in the order of their addresses share reads. Once the rebuild has read a segment and
//! all newer ones, several threads look up its current blocks, read these in large ranges, and
//! insert them into the cache's [free capacity](forebay_cache::WarmUp), newest segment first.
//! Values that were only in memory at the close were written last and come first.
//!
//! # Invariants
//!
//! - No old block returns. The thread takes the key's slot in the cache first. Then it checks that
//!   the index has the block at that address and sequence number, that a load would be served from
//!   there, and that the L2 is open. Only then it publishes the block. A later overwrite or removal
//!   takes the slot over. An earlier one has removed the record from the index, unless the L2 was
//!   no longer open.
//! - No caller waits for it: a slot is taken only when the bytes are in memory, and its reads have
//!   a lower priority than loads.
//! - It evicts nothing and ends when no capacity is free. It goes once through the log as of the
//!   open. Later blocks have been in memory since.
//! - Its memory is bounded: the records of a few batches, and a few ranges in flight.
//!
//! Locking: `l2-warm-up`, held to read or change the status, or to wait for the end; no lock is
//! taken under it. `l2-warm-up-scan` is held while a thread finds the next batches, over reads and
//! waits for the rebuild (`l2-rebuild`). Only warm-up threads take it.
//!
//! Not done: the number of threads does not adapt. The logs are read again after the rebuild.

mod insert;
mod scan;

use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Key, WarmUp};

use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::shared::L2Shared;
use insert::ReadPlan;
use scan::LogScan;

/// The status of the warm-up; see [`L2::warm_up`](crate::L2::warm_up).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarmUpStatus {
    /// It was not started.
    #[default]
    NotAsked,
    /// It waits for the rebuild, or reads.
    Running,
    /// It has ended.
    Ended(WarmUpOutcome),
}

/// How the warm-up ended, in the order of the counter's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarmUpOutcome {
    /// It processed all blocks of the L2.
    Done = 0,
    /// Memory had no free capacity or evicted a block, or no memory was free for reads.
    NoCapacity = 1,
    /// The codec cannot decode keys.
    NoKeys = 2,
    /// The tunable `warm_up` is off.
    Disabled = 3,
    /// The L2 or the cache was closed.
    Closed = 4,
    /// The device has failed or hangs, no thread could be created, or the cache's weigher panicked.
    Failed = 5,
}

/// The status, and the threads that wait for its end.
pub(crate) struct WarmUpState {
    state: Mutex<WarmUpStatus>,
    changed: Condvar,
}

impl WarmUpState {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::named("l2-warm-up", WarmUpStatus::NotAsked), changed: Condvar::new() }
    }

    /// Starts the warm-up. Returns false if it was started before.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let first = *state == WarmUpStatus::NotAsked;
        if first {
            *state = WarmUpStatus::Running;
        }
        first
    }

    pub(crate) fn state(&self) -> WarmUpStatus {
        *self.state.lock()
    }

    /// Waits until the warm-up does not run.
    pub(crate) fn wait(&self) -> WarmUpStatus {
        let mut state = self.state.lock();
        while *state == WarmUpStatus::Running {
            self.changed.wait(&mut state);
        }
        *state
    }
}

/// The state that the warm-up's threads share.
struct WarmUpJob<K: Key, V: Send + Sync + 'static> {
    target: WarmUp<K, V>,
    scan: Mutex<LogScan>,
}

/// The other threads. They are always joined, because a caller that sees the end may free what they
/// use.
struct Helpers(Vec<JoinHandle<WarmUpOutcome>>);

impl Helpers {
    /// Joins the threads. Returns the first outcome other than `Done`.
    fn join(&mut self) -> Option<WarmUpOutcome> {
        let mut end = None;
        for helper in self.0.drain(..) {
            let other = helper.join().unwrap_or(WarmUpOutcome::Failed);
            if other != WarmUpOutcome::Done {
                end = end.or(Some(other));
            }
        }
        end
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.join();
    }
}

/// Sets the outcome when dropped, also after a panic of the user's weigher.
struct EndGuard<'a, K: Key, V: Send + Sync + 'static>(&'a L2Shared<K, V>, WarmUpOutcome);

impl<K: Key, V: Send + Sync + 'static> Drop for EndGuard<'_, K, V> {
    fn drop(&mut self) {
        self.0.end_warm_up(self.1);
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Ends the warm-up with this outcome.
    pub(crate) fn end_warm_up(&self, end: WarmUpOutcome) {
        self.counters.add(L2Counters::WARM_UP_ENDED, end as usize, 1);
        *self.warm_up_state.state.lock() = WarmUpStatus::Ended(end);
        self.warm_up_state.changed.notify_all();
    }

    /// The body of the first warm-up thread.
    pub(crate) fn warm_up(self: &Arc<Self>, target: WarmUp<K, V>) {
        self.enter_thread();
        let mut end_guard = EndGuard(self, WarmUpOutcome::Failed);
        end_guard.1 = match self.rebuild.wait_begun() {
            Some(newest) => self.run_warm_up(target, newest),
            None => self.closed_outcome(),
        };
    }

    fn run_warm_up(self: &Arc<Self>, target: WarmUp<K, V>, newest: u64) -> WarmUpOutcome {
        let scan = Mutex::named("l2-warm-up-scan", LogScan::new(self, newest));
        let job = Arc::new(WarmUpJob { target, scan });
        let helpers = (1..self.tunables.warm_up_threads())
            .map_while(|number| {
                let (shared, job) = (Arc::clone(self), Arc::clone(&job));
                let body = move || {
                    shared.enter_thread();
                    shared.run_job(&job)
                };
                spawn_named(&format!("l2-warm-up-{number}"), body).ok()
            })
            .collect();
        let mut helpers = Helpers(helpers);
        let end = self.run_job(&job);
        match (end, helpers.join()) {
            (WarmUpOutcome::Done, Some(other)) => other,
            _ => end,
        }
    }

    fn run_job(&self, job: &WarmUpJob<K, V>) -> WarmUpOutcome {
        loop {
            if !self.status.is_open() {
                return self.closed_outcome();
            }
            if job.target.bytes() == 0 {
                return WarmUpOutcome::NoCapacity;
            }
            let batches = job.scan.lock().next_batches(self);
            let found = match batches {
                Ok(batches) if batches.is_empty() && !self.status.is_open() => {
                    return self.closed_outcome();
                }
                Ok(batches) if batches.is_empty() => return WarmUpOutcome::Done,
                Ok(batches) => self.current_blocks(&batches),
                Err(error) => Err(error),
            };
            let insert = match found {
                Ok(found) => ReadPlan::new(self, &found).run(&job.target),
                Err(error) => Err(self.read_failure_outcome(&error)),
            };
            if let Err(end) = insert {
                return end;
            }
        }
    }

    fn closed_outcome(&self) -> WarmUpOutcome {
        match self.status.refusal() {
            Some(crate::AdmissionRefusal::Failed) => WarmUpOutcome::Failed,
            _ => WarmUpOutcome::Closed,
        }
    }

    /// The outcome of a read that did not begin or did not end.
    fn read_failure_outcome(&self, error: &IoError) -> WarmUpOutcome {
        match error {
            IoError::NoMemory(_) => WarmUpOutcome::NoCapacity,
            IoError::Stalled(_) | IoError::Device(_) => WarmUpOutcome::Failed,
        }
    }
}
