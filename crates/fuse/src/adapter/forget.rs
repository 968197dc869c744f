//! Has the kernel forget names, when inodes take more memory than they may.
//!
//! The kernel keeps an inode as long as it likes, and each one that it keeps is kept here as well. Under memory pressure of its own it
//! lets go by itself; that this process has a bound of its own it cannot know. So a thread looks now and then, asks the file system which names
//! were longest not used, and tells the kernel to drop them. What is open or a folder in use stays.
//!
//! A thread of its own, because the kernel may hold a lock that it needs for this while it waits for an answer to a request.

use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, thread};
use forebay_fs::FileSystem;

use crate::counters::{MountCounters, Tally};
use crate::transport::Kernel;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(250);
/// Names asked for at a time.
const BATCH: usize = 512;
/// Batches between two rests, at most: what the kernel does not let go would be asked for again and again.
const BATCHES: usize = 32;

/// The thread, and how it is told to end.
pub(super) struct Forgetting {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

struct Shared {
    ended: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Default for Forgetting {
    fn default() -> Self {
        let shared = Shared {
            ended: AtomicBool::new(false),
            sleep: Mutex::named("mount-forget", ()),
            wake: Condvar::new(),
        };
        Self { shared: Arc::new(shared), thread: Mutex::named("mount-thread", None) }
    }
}

impl Forgetting {
    /// Starts the thread. Without one (the system has none to give) the kernel forgets when it likes.
    pub(super) fn start(&self, fs: Arc<FileSystem>, tally: Arc<Tally>, kernel: Arc<dyn Kernel>) {
        let shared = self.shared.clone();
        let work = move || shared.work(&fs, &tally, &*kernel);
        *self.thread.lock() = thread::spawn_named("fuse-forget", work).ok();
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        drop(self.shared.sleep.lock());
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn work(&self, fs: &FileSystem, tally: &Tally, kernel: &dyn Kernel) {
        loop {
            {
                let mut sleep = self.sleep.lock();
                if !self.ended() {
                    self.wake.wait_timeout(&mut sleep, EVERY);
                }
            }
            for _ in 0..BATCHES {
                let names = if self.ended() { Vec::new() } else { fs.reclaimable(BATCH) };
                if names.is_empty() {
                    break;
                }
                for (parent, name) in &names {
                    if self.ended() || !kernel.forget_name(parent.0, name) {
                        return;
                    }
                }
                tally.counters.add(MountCounters::INVALIDATED, 0, names.len() as u64);
            }
            if self.ended() {
                return;
            }
        }
    }
}
