//! The warm-up: after a restart, blocks are put back into memory before anybody asks for them.
//!
//! A block that is asked for costs a read of its own; read in the order in which they lie, many blocks cost one. So once it is
//! known what a segment holds, and all that are newer, some threads look up in the index which of its blocks are
//! current, read those in large pieces, and put them into the cache's [spare room](forebay_cache::SpareRoom), from the newest segment to the oldest.
//! What was in memory only when the level was closed was written last, and comes first.
//!
//! # Invariants
//!
//! - Nothing old comes back. The key's slot in the cache is taken first, then it is looked whether the index still has the block at that place, in
//!   that use of its segment, whether a load would be served from there, and whether the level is open; only then the block is published. Who overwrites or removes the key later takes the slot
//!   over; who did so earlier has taken the record out of the index, unless the level was not open any more by then.
//! - Nobody waits for it: a slot is taken when the bytes are there. Its reads have a lower priority than loads have.
//! - It evicts nothing, and ends when no room is spare. It goes once through the log as it was when the level was opened: what was written since was in
//!   memory since.
//! - What it holds is bounded: a lot of batches' records, and a few pieces on their way.
//!
//! Locking: `l2-warm-up` for a look, or for a wait until it has ended; nothing else is locked under it. `l2-warm-up-scan` is held by one of its threads
//! while that finds out which batches are next: over reads, and while it waits for the rebuild (`l2-rebuild`). Only its threads take it.
//!
//! # What it does not do
//!
//! It does not adapt the number of its threads, which is larger than processors would ask for: beside many threads that read what is in memory
//! already, one thread gets one thread's share of the processors.
//!
//! It knows nothing of what the rebuild has read: it reads logs a second time, which are a hundredth of what there is.

mod insert;
mod scan;

use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Key, SpareRoom};

use crate::counters::L2Counters;
use crate::device_io::IoError;
use crate::shared::L2Shared;
use insert::ReadPlan;
use scan::LogScan;

/// How putting blocks back into memory goes, see [`L2::warm_up`](crate::Level::warm_up).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarmUpStatus {
    /// Nobody has asked for it.
    #[default]
    NotAsked,
    /// It waits for the rebuild, or reads.
    Running,
    /// It has ended.
    Ended(WarmUpOutcome),
}

/// How it ended. The order is that of counter labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarmUpOutcome {
    /// All that the level has was looked at.
    Done = 0,
    /// Memory had no room left that nobody needed, or had to evict something, or there was no memory for reads.
    NoCapacity = 1,
    /// The codec cannot make keys of what is written.
    NoKeys = 2,
    /// It was switched off.
    Disabled = 3,
    /// The level or the cache was closed.
    Closed = 4,
    /// The level's device has failed or hangs, there was no thread, or the cache's weigher panicked.
    Failed = 5,
}

/// Whether it runs, and who waits for that.
pub(crate) struct WarmUpState {
    state: Mutex<WarmUpStatus>,
    changed: Condvar,
}

impl WarmUpState {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::named("l2-warm-up", WarmUpStatus::NotAsked), changed: Condvar::new() }
    }

    /// False if it has begun before.
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

    /// Waits until it does not run.
    pub(crate) fn wait(&self) -> WarmUpStatus {
        let mut state = self.state.lock();
        while *state == WarmUpStatus::Running {
            self.changed.wait(&mut state);
        }
        *state
    }
}

/// What its threads share.
struct WarmUpJob<K: Key, V: Send + Sync + 'static> {
    target: SpareRoom<K, V>,
    scan: Mutex<LogScan>,
}

/// The other threads. They are waited for in every case: whoever is told that it has ended may take away what they use.
struct Helpers(Vec<JoinHandle<WarmUpOutcome>>);

impl Helpers {
    /// Waits for them. How those ended that were not done, if any.
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

/// Tells how it has ended, also if it does so by a panic of the user's weigher.
struct EndGuard<'a, K: Key, V: Send + Sync + 'static>(&'a L2Shared<K, V>, WarmUpOutcome);

impl<K: Key, V: Send + Sync + 'static> Drop for EndGuard<'_, K, V> {
    fn drop(&mut self) {
        self.0.end_warm_up(self.1);
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// It has begun, and has ended so.
    pub(crate) fn end_warm_up(&self, end: WarmUpOutcome) {
        self.counters.add(L2Counters::WARM_UP_ENDED, end as usize, 1);
        *self.warm_up_state.state.lock() = WarmUpStatus::Ended(end);
        self.warm_up_state.changed.notify_all();
    }

    /// The thread's body.
    pub(crate) fn warm_up(self: &Arc<Self>, target: SpareRoom<K, V>) {
        self.enter_thread();
        let mut end_guard = EndGuard(self, WarmUpOutcome::Failed);
        end_guard.1 = match self.rebuild.wait_begun() {
            Some(newest) => self.run_warm_up(target, newest),
            None => self.closed_outcome(),
        };
    }

    fn run_warm_up(self: &Arc<Self>, target: SpareRoom<K, V>, newest: u64) -> WarmUpOutcome {
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

    /// What a read that did not even begin, or did not end, means.
    fn read_failure_outcome(&self, error: &IoError) -> WarmUpOutcome {
        match error {
            IoError::NoMemory(_) => WarmUpOutcome::NoCapacity,
            IoError::Stalled(_) | IoError::Device(_) => WarmUpOutcome::Failed,
        }
    }
}
