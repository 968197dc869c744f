//! Has the kernel write what it holds of an inode, before something that depends on it is answered.
//!
//! Under the kernel's write-back cache, and in pages of a mapping, there is content that no request has
//! brought yet. A file can be given another name, or its holes be told, only once it is here.
//!
//! A thread of its own does it, because it waits for writes to be answered: a thread of the transport
//! would not take them meanwhile, and a worker of the file system may be needed by one of them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_base::sync::{Arc, Condvar, Mutex, thread};

type Job = Box<dyn FnOnce() + Send>;

/// The thread, and what it has to do.
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
    /// There is a thread.
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
    /// Starts the thread. Without one (the system has none to give) jobs run at once.
    pub(super) fn start(&self, flush_pages: impl Fn(u64) + Send + 'static) {
        let shared = self.shared.clone();
        self.shared.queue.lock().running = true;
        match thread::spawn_named("fuse-write-back", move || shared.work(&flush_pages)) {
            Ok(thread) => *self.shared.thread.lock() = Some(thread),
            Err(_) => self.shared.queue.lock().running = false,
        }
    }

    /// Does `job` once the kernel has written what it holds of `ino`.
    pub(super) fn run_after(&self, ino: u64, job: Job) {
        let mut queue = self.shared.queue.lock();
        if !queue.running {
            drop(queue);
            return job();
        }
        // Each is a request of a process that waits for it: as many as there are such processes.
        queue.jobs.push_back((ino, job));
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Ends the thread; what is left is done at once.
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
            // Whoever asked has no answer; the thread goes on for others, who would wait for ever.
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
        // It does what is left.
        write_back.end();
        assert!(done.load(Ordering::SeqCst));
    }
}
