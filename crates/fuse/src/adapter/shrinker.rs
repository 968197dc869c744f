//! Makes the kernel forget names when inodes use too much memory.
//!
//! An inode that the kernel caches must stay in memory here too. The kernel reclaims inodes under
//! its own memory pressure, but does not know the limit of this process. So a thread periodically
//! asks the file system for names to reclaim and invalidates them in the kernel. Open files and
//! directories in use stay.
//!
//! This needs its own thread: the kernel may hold a lock that the invalidation needs while it waits
//! for the reply to a request.

use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, thread};
use forebay_fs::FileSystem;

use crate::counters::{MountCounters, MountMetrics};
use crate::transport::KernelNotifier;

/// Interval between checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Names per batch.
const BATCH: usize = 512;
/// Largest number of batches per check. The file system may repeat names that the kernel keeps.
const BATCHES_MAX: usize = 32;

/// The shrinker thread.
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
    /// Starts the thread. If the system has none, the kernel forgets inodes only under its own
    /// pressure.
    pub(super) fn start(
        &self,
        fs: FileSystem,
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
