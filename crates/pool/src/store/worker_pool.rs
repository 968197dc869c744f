//! An ordered worker pool: runs jobs on several threads and returns their results in job order.
//!
//! The sync thread places one block after the other. The pool packs blocks on all CPUs before they
//! are placed. Helper threads are started for the first large batch and idle during small ones. The
//! consumer never waits for a job that no thread has claimed: it runs the job itself. Without
//! helpers it runs them all.
//!
//! # Invariants
//!
//! - Results are returned in job order, each exactly once.
//! - Results not yet taken are limited, in number and in bytes of their jobs. At least one is
//!   always allowed. Jobs are not limited: their input is in memory anyway.
//! - The rest of a batch is dropped when its consumer is dropped, even if a helper finishes later.
//!
//! # Locking
//!
//! `worker-pool-batch` is held while a batch is consumed. `worker-pool` is a leaf lock; neither
//! jobs nor results are dropped under it.

use std::collections::VecDeque;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Maximum number of results that are not yet taken.
const RESULTS_MAX: usize = 32;
/// Batches with fewer jobs do not wake helpers.
const WAKE_JOBS_MIN: usize = 8;

/// A job, with its memory use in bytes.
pub(crate) struct Job<T> {
    pub(crate) bytes: usize,
    pub(crate) work: Box<dyn FnOnce() -> T + Send>,
}

/// Runs batches of jobs with the help of threads.
pub(crate) struct WorkerPool<T: Send + 'static> {
    shared: Arc<WorkerShared<T>>,
    helpers: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    batch_lock: Mutex<()>,
}

struct WorkerShared<T> {
    state: Mutex<WorkerState<T>>,
    /// Wakes helpers: there are jobs, or the pool stops.
    work: Condvar,
    /// Wakes the consumer: the next result is ready.
    ready: Condvar,
}

struct WorkerState<T> {
    /// Number of the job whose result is taken next.
    first: u64,
    /// Claimed jobs from `first` on: their bytes, and their results once they are done.
    done: VecDeque<(usize, Option<T>)>,
    /// Bytes of `done`, and their limit.
    done_bytes: usize,
    max_bytes: usize,
    /// Unclaimed jobs. They follow those in `done`.
    jobs: VecDeque<Job<T>>,
    idle: usize,
    consumer_waits: bool,
    stopping: bool,
    /// Whether a job panicked on a helper.
    panicked: bool,
}

impl<T> WorkerState<T> {
    /// Claims a job, unless too many results wait to be taken.
    fn claim(&mut self) -> Option<(u64, Job<T>)> {
        let next = self.jobs.front()?.bytes;
        let full = self.done.len() >= RESULTS_MAX || self.done_bytes + next > self.max_bytes;
        if full && !self.done.is_empty() {
            return None;
        }
        let job = self.jobs.pop_front()?;
        let number = self.first + self.done.len() as u64;
        self.done.push_back((job.bytes, None));
        self.done_bytes += job.bytes;
        Some((number, job))
    }

    /// Stores a result, or returns it if its batch was dropped. Returns whether it is the next
    /// result.
    fn complete(&mut self, number: u64, result: T) -> Result<bool, T> {
        let at = number.checked_sub(self.first).and_then(|at| self.done.get_mut(at as usize));
        match at {
            Some((_, slot)) => {
                *slot = Some(result);
                Ok(number == self.first)
            }
            None => Err(result),
        }
    }

    fn take(&mut self) -> Option<T> {
        let (_, result) = self.done.front_mut()?;
        let result = result.take()?;
        self.pop();
        Some(result)
    }

    fn pop(&mut self) {
        if let Some((bytes, _)) = self.done.pop_front() {
            self.done_bytes -= bytes;
            self.first += 1;
        }
    }

    /// Whether to wake helpers. Hysteresis avoids a wake-up per result.
    fn wants_help(&self) -> bool {
        let has_capacity =
            self.done.len() <= RESULTS_MAX / 2 && self.done_bytes <= self.max_bytes / 2;
        has_capacity && self.idle > 0 && self.jobs.len() >= WAKE_JOBS_MIN
    }
}

impl<T: Send + 'static> WorkerPool<T> {
    /// Creates a pool with up to `helpers` threads that run at most `max_bytes` bytes of jobs
    /// ahead.
    pub(crate) fn new(helpers: usize, max_bytes: usize) -> Self {
        let state = WorkerState {
            first: 0,
            done: VecDeque::new(),
            done_bytes: 0,
            max_bytes,
            jobs: VecDeque::new(),
            idle: 0,
            consumer_waits: false,
            stopping: false,
            panicked: false,
        };
        let state = Mutex::named("worker-pool", state);
        let shared = Arc::new(WorkerShared { state, work: Condvar::new(), ready: Condvar::new() });
        let threads = Mutex::named("worker-pool-threads", Vec::new());
        Self { shared, helpers, threads, batch_lock: Mutex::named("worker-pool-batch", ()) }
    }

    /// Starts a batch. Waits while another batch is being consumed.
    pub(crate) fn submit(&self, jobs: Vec<Job<T>>) -> OrderedResults<'_, T> {
        let batch_lock = self.batch_lock.lock();
        if jobs.len() >= WAKE_JOBS_MIN {
            self.start();
        }
        let mut state = self.shared.state.lock();
        state.jobs = jobs.into();
        if state.wants_help() {
            self.shared.work.notify_all();
        }
        drop(state);
        OrderedResults { shared: &self.shared, _batch_lock: batch_lock }
    }

    fn start(&self) {
        let mut threads = self.threads.lock();
        while threads.len() < self.helpers {
            let shared = Arc::clone(&self.shared);
            let name = format!("forebay-pack-{}", threads.len());
            // If the system refuses a thread, the pool works with fewer.
            let Ok(thread) = thread::spawn_named(&name, move || run_helper(&shared)) else {
                return;
            };
            threads.push(thread);
        }
    }
}

impl<T: Send + 'static> Drop for WorkerPool<T> {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.work.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // The consumer has already reported a panic of the helper.
            let _ = thread.join();
        }
    }
}

/// The results of a batch, in order.
pub(crate) struct OrderedResults<'a, T> {
    shared: &'a WorkerShared<T>,
    _batch_lock: MutexGuard<'a, ()>,
}

impl<T> OrderedResults<'_, T> {
    /// Returns the next result; `None` after the last one.
    ///
    /// # Panics
    /// If a job panicked on a helper.
    pub(crate) fn next(&mut self) -> Option<T> {
        let mut state = self.shared.state.lock();
        loop {
            assert!(!state.panicked, "a helper has panicked");
            if let Some(result) = state.take() {
                if state.wants_help() {
                    self.shared.work.notify_all();
                }
                return Some(result);
            }
            if let Some((number, job)) = state.claim() {
                drop(state);
                let result = (job.work)();
                state = self.shared.state.lock();
                let completed = state.complete(number, result);
                debug_assert!(completed.is_ok(), "the consumer holds the batch");
            } else if state.done.is_empty() {
                return None;
            } else {
                state.consumer_waits = true;
                self.shared.ready.wait(&mut state);
                state.consumer_waits = false;
            }
        }
    }
}

impl<T> Drop for OrderedResults<'_, T> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.first += state.done.len() as u64;
        state.done_bytes = 0;
        let left = (std::mem::take(&mut state.done), std::mem::take(&mut state.jobs));
        drop(state);
        drop(left);
    }
}

/// The main loop of a helper.
fn run_helper<T>(shared: &WorkerShared<T>) {
    let mut state = shared.state.lock();
    while !state.stopping {
        let Some((number, job)) = state.claim() else {
            state.idle += 1;
            shared.work.wait(&mut state);
            state.idle -= 1;
            continue;
        };
        drop(state);
        let guard = PanicGuard(shared);
        let result = (job.work)();
        std::mem::forget(guard);
        state = shared.state.lock();
        match state.complete(number, result) {
            Ok(is_next) => {
                if is_next && state.consumer_waits {
                    shared.ready.notify_one();
                }
            }
            Err(stale) => {
                drop(state);
                drop(stale);
                state = shared.state.lock();
            }
        }
    }
}

/// Reports a panic of a job to the consumer.
struct PanicGuard<'a, T>(&'a WorkerShared<T>);

impl<T> Drop for PanicGuard<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().panicked = true;
        self.0.ready.notify_one();
    }
}
