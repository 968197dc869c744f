//! Makes the kernel forget names when inodes use too much memory.
//!
//! An inode that the kernel caches must stay in memory here too. The kernel reclaims inodes under
//! its own memory pressure, but does not know the limit of this process. So a thread periodically
//! asks the file system for names to reclaim and invalidates them in the kernel. Open files and
//! directories in use stay, and so do names that the mount table uses: with such a name, the kernel
//! would detach what is mounted there.
//!
//! This needs its own thread: the kernel may hold a lock that the invalidation needs while it waits
//! for the reply to a request.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, thread};
use forebay_fs::{FileSystem, Ino};

use crate::counters::{MountCounters, MountMetrics};
use crate::mount::{DeviceNumber, names_in_use};
use crate::transport::KernelNotifier;

/// A directory and a name in it.
type Name = (Ino, Vec<u8>);

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
    pub(super) fn start(&self, mount: ShrinkerMount) {
        let shared = self.shared.clone();
        let work = move || shared.work(&mount);
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

    fn work(&self, mount: &ShrinkerMount) {
        loop {
            {
                let mut sleep = self.sleep.lock();
                if !self.ended() {
                    self.wake.wait_timeout(&mut sleep, INTERVAL);
                }
            }
            for _ in 0..BATCHES_MAX {
                let names = if self.ended() { Vec::new() } else { mount.batch() };
                if names.is_empty() {
                    break;
                }
                for (parent, name) in &names {
                    if self.ended() || !mount.notifier.invalidate_entry(parent.0, name) {
                        return;
                    }
                }
                mount.metrics.counters.add(MountCounters::INVALIDATED, 0, names.len() as u64);
            }
            if self.ended() {
                return;
            }
        }
    }
}

/// The mount whose names the kernel shall forget.
pub(super) struct ShrinkerMount {
    pub(super) fs: FileSystem,
    pub(super) device: DeviceNumber,
    pub(super) metrics: Arc<MountMetrics>,
    pub(super) notifier: KernelNotifier,
}

impl ShrinkerMount {
    /// Names that the kernel may forget; none if all is well, or if the mount table is unreadable.
    fn batch(&self) -> Vec<Name> {
        let mut names = self.fs.reclaimable(BATCH);
        if names.is_empty() {
            return names;
        }
        // After the file system named them, since a mount may come at any time.
        let Ok(mut in_use) = names_in_use(self.device) else { return Vec::new() };
        let candidates: BTreeSet<&[u8]> = names.iter().map(|(_, name)| &name[..]).collect();
        in_use.retain(|path| {
            path.file_name().is_some_and(|name| candidates.contains(name.as_bytes()))
        });
        let kept: BTreeSet<Name> = in_use.iter().filter_map(|path| self.find(path)).collect();
        names.retain(|name| !kept.contains(name));
        names
    }

    /// The directory of a path, and its last name; `None` if the directory does not exist.
    fn find(&self, path: &Path) -> Option<Name> {
        let mut names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        });
        let last = names.next_back()?;
        let mut directory = Ino::ROOT;
        for name in names {
            let found = self.fs.lookup(directory, name);
            // The lookup of its child has found it.
            self.release(directory);
            directory = found.ok()?.attr.ino;
        }
        self.release(directory);
        Some((directory, last.to_vec()))
    }

    /// Gives back a lookup.
    fn release(&self, directory: Ino) {
        if directory != Ino::ROOT {
            self.fs.forget(directory, 1);
        }
    }
}
