//! Jobs done side by side, whose results are taken in the order in which the jobs were given.
//!
//! Whoever writes a txg finds room for one block after the other, but can have them packed by all processors before that is their
//! turn. Threads help as long as there are many jobs; they are started for the first such batch. The taker never waits for a job that
//! nobody has taken up, but does it: without helpers it does them all.
//!
//! # Invariants
//!
//! - Results come in the order of the jobs, each once.
//! - Results that nobody has taken yet are bounded, in number and in bytes of their jobs; one there may always be. Jobs themselves are not: who
//!   gives them has what they work on in memory anyway.
//! - What is left of a batch when its taker goes is dropped, whenever it is done.
//!
//! # Locking
//!
//! `worker-pool-batch` for as long as a batch is taken; `worker-pool`, a leaf lock: neither jobs nor results are dropped under it.

use std::collections::VecDeque;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Results that nobody has taken yet, at most.
const RESULTS_MAX: usize = 32;
/// Fewer jobs than this are not worth waking a thread.
const WAKE_JOBS_MIN: usize = 8;

/// What is to be done, and how many bytes of memory that is about.
pub(crate) struct Job<T> {
    pub(crate) bytes: usize,
    pub(crate) work: Box<dyn FnOnce() -> T + Send>,
}

/// A line of jobs, and the threads that help with them.
pub(crate) struct WorkerPool<T: Send + 'static> {
    shared: Arc<WorkerShared<T>>,
    helpers: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    batch_lock: Mutex<()>,
}

struct WorkerShared<T> {
    state: Mutex<WorkerState<T>>,
    /// For helpers: there is something to do, or no more.
    work: Condvar,
    /// For the taker: the next result is there.
    ready: Condvar,
}

struct WorkerState<T> {
    /// The number of the job whose result is taken next.
    first: u64,
    /// From that one on, jobs that somebody has taken up: their bytes, and their results.
    done: VecDeque<(usize, Option<T>)>,
    /// Bytes of those, and how many there may be.
    done_bytes: usize,
    most_bytes: usize,
    /// Jobs that nobody has taken up: the ones after those.
    jobs: VecDeque<Job<T>>,
    idle: usize,
    taker_waits: bool,
    stopping: bool,
    /// A job has panicked on a helper.
    panicked: bool,
}

impl<T> WorkerState<T> {
    /// Takes a job up, unless too much is done ahead.
    fn claim(&mut self) -> Option<(u64, Job<T>)> {
        let next = self.jobs.front()?.bytes;
        let full = self.done.len() >= RESULTS_MAX || self.done_bytes + next > self.most_bytes;
        if full && !self.done.is_empty() {
            return None;
        }
        let job = self.jobs.pop_front()?;
        let number = self.first + self.done.len() as u64;
        self.done.push_back((job.bytes, None));
        self.done_bytes += job.bytes;
        Some((number, job))
    }

    /// Notes a result, or gives it back if nobody wants it any more. Whether it is the next one.
    fn settle(&mut self, number: u64, result: T) -> Result<bool, T> {
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

    /// Whether to wake helpers: not for each result that is taken.
    fn wants_help(&self) -> bool {
        let has_capacity =
            self.done.len() <= RESULTS_MAX / 2 && self.done_bytes <= self.most_bytes / 2;
        has_capacity && self.idle > 0 && self.jobs.len() >= WAKE_JOBS_MIN
    }
}

impl<T: Send + 'static> WorkerPool<T> {
    /// A line with up to so many threads to help, which have up to so many bytes of jobs done before their results are taken.
    pub(crate) fn new(helpers: usize, most_bytes: usize) -> Self {
        let state = WorkerState {
            first: 0,
            done: VecDeque::new(),
            done_bytes: 0,
            most_bytes,
            jobs: VecDeque::new(),
            idle: 0,
            taker_waits: false,
            stopping: false,
            panicked: false,
        };
        let state = Mutex::named("worker-pool", state);
        let shared = Arc::new(WorkerShared { state, work: Condvar::new(), ready: Condvar::new() });
        let threads = Mutex::named("worker-pool-threads", Vec::new());
        Self { shared, helpers, threads, batch_lock: Mutex::named("worker-pool-batch", ()) }
    }

    /// Has a batch of jobs done. Who comes while another batch is taken waits.
    pub(crate) fn give(&self, jobs: Vec<Job<T>>) -> OrderedResults<'_, T> {
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
            // If the system refuses one, there is less help.
            let Ok(thread) = thread::spawn_named(&name, move || help(&shared)) else { return };
            threads.push(thread);
        }
    }
}

impl<T: Send + 'static> Drop for WorkerPool<T> {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.work.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // Its panic was told to the taker.
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
    /// The next result; nothing after the last one.
    ///
    /// # Panics
    /// If a job has panicked.
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
                let settled = state.settle(number, result);
                debug_assert!(settled.is_ok(), "the taker is here");
            } else if state.done.is_empty() {
                return None;
            } else {
                state.taker_waits = true;
                self.shared.ready.wait(&mut state);
                state.taker_waits = false;
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

/// The life of a helper.
fn help<T>(shared: &WorkerShared<T>) {
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
        match state.settle(number, result) {
            Ok(is_next) => {
                if is_next && state.taker_waits {
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

/// Tells the taker when a job has panicked.
struct PanicGuard<'a, T>(&'a WorkerShared<T>);

impl<T> Drop for PanicGuard<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().panicked = true;
        self.0.ready.notify_one();
    }
}
