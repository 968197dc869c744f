//! Flushes an inode's dirty pages from the kernel, before a request that depends on them.
//!
//! Pages of mappings, and of the kernel's write-back cache, have content that no request has
//! delivered yet. A rename, a link, or a search for holes must come after that content.
//!
//! This needs its own thread, because it waits for replies to writes. A receiving thread could not
//! receive them meanwhile, and a worker thread may be needed to answer them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_base::sync::{Arc, Condvar, Mutex, thread};

type Job = Box<dyn FnOnce() + Send>;

/// The write-back thread and its queue.
#[derive(Clone)]
pub(super) struct WriteBack {
    shared: Arc<WriteBackShared>,
}

struct WriteBackShared {
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    queue: Mutex<WriteBackQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct WriteBackQueue {
    jobs: VecDeque<(u64, Job)>,
    /// The thread is running.
    running: bool,
}

impl Default for WriteBack {
    fn default() -> Self {
        let queue = Mutex::named("mount-write-back", WriteBackQueue::default());
        let thread = Mutex::named("mount-thread", None);
        Self { shared: Arc::new(WriteBackShared { thread, queue, wake: Condvar::new() }) }
    }
}

impl WriteBack {
    /// Starts the thread. If the system has none, jobs run without a flush.
    pub(super) fn start(&self, flush_pages: impl Fn(u64) + Send + 'static) {
        let shared = self.shared.clone();
        self.shared.queue.lock().running = true;
        match thread::spawn_named("fuse-write-back", move || shared.work(&flush_pages)) {
            Ok(thread) => *self.shared.thread.lock() = Some(thread),
            Err(_) => self.shared.queue.lock().running = false,
        }
    }

    /// Runs `job` after the dirty pages of `ino` are flushed.
    pub(super) fn run_after(&self, ino: u64, job: Job) {
        let mut queue = self.shared.queue.lock();
        if !queue.running {
            drop(queue);
            return job();
        }
        // Bounded by the number of processes that wait for such a request.
        queue.jobs.push_back((ino, job));
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Ends the thread. The remaining jobs run at once.
    pub(super) fn end(&self) {
        self.shared.queue.lock().running = false;
        self.shared.wake.notify_one();
        if let Some(thread) = self.shared.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl WriteBackShared {
    fn work(&self, flush_pages: &dyn Fn(u64)) {
        loop {
            let mut queue = self.queue.lock();
            while queue.jobs.is_empty() && queue.running {
                self.wake.wait(&mut queue);
            }
            let running = queue.running;
            let Some((ino, job)) = queue.jobs.pop_front() else { return };
            drop(queue);
            if running {
                flush_pages(ino);
            }
            // The request of a job that panics stays unanswered. The thread must survive for the
            // others.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_job_that_panics_does_not_end_the_thread() {
        let write_back = WriteBack::default();
        write_back.start(|_| {});
        let done = Arc::new(AtomicBool::new(false));
        let next = done.clone();
        write_back.run_after(1, Box::new(|| panic!("on purpose")));
        write_back.run_after(2, Box::new(move || next.store(true, Ordering::SeqCst)));
        // Runs the remaining jobs.
        write_back.end();
        assert!(done.load(Ordering::SeqCst));
    }
}
