//! A pool of threads for jobs that block.
//!
//! Threads start on demand, up to a limit, and stay until the pool is closed. The queue is bounded:
//! past the limit, callers run their own jobs. Jobs of I/O callbacks are always queued, because a
//! callback must not block. There are never more of them than reads in flight.
//!
//! Threads that wait for something that no other job needs, such as the end of a suspension or the
//! turn of a create that is slowed down, do not count towards the limit, up to [`BLOCKED_MAX`]:
//! others start in their place, and end when they have nothing to do.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_base::sync::thread::{JoinHandle, current_id, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};

/// Largest number of queued jobs, not counting those of I/O callbacks.
const QUEUE_MAX: usize = 1024;

/// Largest number of waiting threads in whose place others start.
const BLOCKED_MAX: usize = 1024;

/// Tells a job how to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// On a thread that may block.
    Run,
    /// No thread is available. The job only reports that, on the thread that queued it.
    Cancelled,
}

/// A job, called once.
pub(crate) type Job = Box<dyn FnOnce(Dispatch) + Send>;

/// State shared by the threads.
struct WorkersShared {
    queue: Mutex<JobQueue>,
    wake: Condvar,
}

struct JobQueue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    max_threads: usize,
    /// Threads that are marked as waiting, of this pool or not.
    blocked: usize,
    closed: bool,
}

impl JobQueue {
    fn thread_limit(&self) -> usize {
        self.max_threads + self.blocked.min(BLOCKED_MAX)
    }

    /// Whether another thread would find a job.
    fn wants_thread(&self, jobs: usize) -> bool {
        self.idle < jobs && self.threads.len() < self.thread_limit() && !self.closed
    }
}

/// The thread pool.
pub(crate) struct Workers {
    shared: Arc<WorkersShared>,
}

/// Marks a thread as waiting until it is dropped.
pub(crate) struct Blocked<'a>(&'a WorkersShared);

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().blocked -= 1;
    }
}

impl Workers {
    /// A pool of up to `max_threads` threads, at least one.
    pub(crate) fn new(max_threads: usize) -> Self {
        let queue = JobQueue {
            jobs: VecDeque::new(),
            threads: Vec::new(),
            idle: 0,
            max_threads: max_threads.max(1),
            blocked: 0,
            closed: false,
        };
        let queue = Mutex::named("fs-workers", queue);
        Self { shared: Arc::new(WorkersShared { queue, wake: Condvar::new() }) }
    }

    /// Queues a job. Returns it if the caller must run it: the queue is full, the system has no
    /// threads, or the pool is closed. `ignore_limit` queues it even if the queue is full.
    pub(crate) fn push(&self, job: Job, ignore_limit: bool) -> Option<Job> {
        let mut queue = self.shared.queue.lock();
        let full = queue.jobs.len() >= QUEUE_MAX && !ignore_limit;
        if queue.closed || full {
            return Some(job);
        }
        // If the system has no more threads, the running ones must do.
        if queue.wants_thread(queue.jobs.len() + 1)
            && !self.start_thread(&mut queue)
            && queue.threads.is_empty()
        {
            return Some(job);
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.wake.notify_one();
        None
    }

    fn start_thread(&self, queue: &mut JobQueue) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = spawn_named("fs-worker", move || shared.work());
        thread.map(|thread| queue.threads.push(thread)).is_ok()
    }

    /// Marks the calling thread as waiting. If it is one of the pool's, another one takes its
    /// place.
    pub(crate) fn blocked(&self) -> Blocked<'_> {
        let mut queue = self.shared.queue.lock();
        queue.blocked += 1;
        if queue.wants_thread(queue.jobs.len()) {
            self.start_thread(&mut queue);
        }
        drop(queue);
        Blocked(&self.shared)
    }

    /// Number of busy threads, and of queued jobs.
    pub(crate) fn load(&self) -> (u64, u64) {
        let queue = self.shared.queue.lock();
        let busy = queue.threads.len().saturating_sub(queue.idle);
        (busy as u64, queue.jobs.len() as u64)
    }

    /// Runs the queued jobs and ends the threads. A worker that calls this does not join itself.
    pub(crate) fn close(&self) {
        let threads = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.wake.notify_all();
        let me = current_id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            // The threads catch panics.
            let _ = thread.join();
        }
    }
}

impl WorkersShared {
    fn work(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    if queue.closed {
                        return;
                    }
                    if queue.threads.len() > queue.thread_limit() {
                        let me = current_id();
                        queue.threads.retain(|thread| thread.thread().id() != me);
                        return;
                    }
                    queue.idle += 1;
                    self.wake.wait(&mut queue);
                    queue.idle -= 1;
                }
            };
            // The request of a job that panics stays unanswered. The thread must survive for other
            // jobs.
            let _ = catch_unwind(AssertUnwindSafe(|| job(Dispatch::Run)));
        }
    }
}
