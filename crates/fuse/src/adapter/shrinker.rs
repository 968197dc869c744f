//! Has the kernel forget names, when inodes take more memory than they may.
//!
//! The kernel keeps an inode as long as it likes, and each one that it keeps is kept here as well. Under memory pressure of its own it
//! lets go by itself; that this process has a bound of its own it cannot know. So a thread looks now and then, asks the file system which names
//! were longest not used, and tells the kernel to drop them. What is open or a directory in use stays.
//!
//! A thread of its own, because the kernel may hold a lock that it needs for this while it waits for an answer to a request.

use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, thread};
use forebay_fs::FileSystem;

use crate::counters::{MountCounters, MountMetrics};
use crate::transport::KernelNotifier;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Names asked for at a time.
const BATCH: usize = 512;
/// Batches between two rests, at most: what the kernel does not let go would be asked for again and again.
const BATCHES_MAX: usize = 32;

/// The thread, and how it is told to end.
pub(super) struct Shrinker {
    shared: Arc<ShrinkerShared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

struct ShrinkerShared {
    ended: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Default for Shrinker {
    fn default() -> Self {
        let shared = ShrinkerShared {
            ended: AtomicBool::new(false),
            sleep: Mutex::named("mount-shrinker", ()),
            wake: Condvar::new(),
        };
        Self { shared: Arc::new(shared), thread: Mutex::named("mount-thread", None) }
    }
}

impl Shrinker {
    /// Starts the thread. Without one (the system has none to give) the kernel forgets when it likes.
    pub(super) fn start(
        &self,
        fs: Arc<FileSystem>,
        metrics: Arc<MountMetrics>,
        notifier: KernelNotifier,
    ) {
        let shared = self.shared.clone();
        let work = move || shared.work(&fs, &metrics, &notifier);
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

impl ShrinkerShared {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn work(&self, fs: &FileSystem, metrics: &MountMetrics, notifier: &KernelNotifier) {
        loop {
            {
                let mut sleep = self.sleep.lock();
                if !self.ended() {
                    self.wake.wait_timeout(&mut sleep, INTERVAL);
                }
            }
            for _ in 0..BATCHES_MAX {
                let names = if self.ended() { Vec::new() } else { fs.reclaimable(BATCH) };
                if names.is_empty() {
                    break;
                }
                for (parent, name) in &names {
                    if self.ended() || !notifier.invalidate_entry(parent.0, name) {
                        return;
                    }
                }
                metrics.counters.add(MountCounters::INVALIDATED, 0, names.len() as u64);
            }
            if self.ended() {
                return;
            }
        }
    }
}
