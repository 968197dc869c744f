//! Threads for what must wait.
//!
//! They are started when there is work for them, up to a bound, and stay. The queue is bounded as well: who asks for a job past
//! the bound does it. What a callback of the I/O engine hands over is always queued, because a callback must not wait; there are
//! never more of these than reads on their way.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex};

/// Jobs in the queue that callers put there, at most.
const QUEUE_MAX: usize = 1024;

/// On what thread a job is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// One that may wait.
    Run,
    /// The one that handed it over, because there is no other: nothing is to be done but to say so.
    Cancelled,
}

/// Something to do.
pub(crate) type Job = Box<dyn FnOnce(Dispatch) + Send>;

/// What the threads share.
struct WorkersShared {
    queue: Mutex<JobQueue>,
    wake: Condvar,
}

struct JobQueue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    max_threads: usize,
    closed: bool,
}

/// The threads.
pub(crate) struct Workers {
    shared: Arc<WorkersShared>,
}

impl Workers {
    /// At most so many threads; at least one.
    pub(crate) fn new(max_threads: usize) -> Self {
        let queue = JobQueue {
            jobs: VecDeque::new(),
            threads: Vec::new(),
            idle: 0,
            max_threads: max_threads.max(1),
            closed: false,
        };
        let queue = Mutex::named("fs-workers", queue);
        Self { shared: Arc::new(WorkersShared { queue, wake: Condvar::new() }) }
    }

    /// Queues a job; gives it back if that is for the caller to do: too many wait, there are no threads, or they have ended.
    pub(crate) fn push(&self, job: Job, ignore_limit: bool) -> Option<Job> {
        let mut queue = self.shared.queue.lock();
        let full = queue.jobs.len() >= QUEUE_MAX && !ignore_limit;
        if queue.closed || full {
            return Some(job);
        }
        if queue.idle <= queue.jobs.len() && queue.threads.len() < queue.max_threads {
            let shared = Arc::clone(&self.shared);
            match spawn_named("fs-worker", move || shared.work()) {
                Ok(thread) => queue.threads.push(thread),
                // The system has no thread to give: those that there are will do.
                Err(_) if !queue.threads.is_empty() => {}
                Err(_) => return Some(job),
            }
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.wake.notify_one();
        None
    }

    /// Threads that have a job, and jobs that have no thread.
    pub(crate) fn load(&self) -> (u64, u64) {
        let queue = self.shared.queue.lock();
        let busy = queue.threads.len().saturating_sub(queue.idle);
        (busy as u64, queue.jobs.len() as u64)
    }

    /// Does what is queued, and ends the threads. A worker does not wait for itself.
    pub(crate) fn close(&self) {
        let threads = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.wake.notify_all();
        let me = forebay_base::sync::thread::current_id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            // Panics were caught.
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
                    queue.idle += 1;
                    self.wake.wait(&mut queue);
                    queue.idle -= 1;
                }
            };
            // Whoever asked has no answer; the thread goes on for others.
            let _ = catch_unwind(AssertUnwindSafe(|| job(Dispatch::Run)));
        }
    }
}
