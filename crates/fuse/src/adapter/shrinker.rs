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
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, thread};
use forebay_fs::{Error, ErrorKind, FileSystem, Ino};

use crate::counters::{MountCounters, MountMetrics};
use crate::mount::{DeviceNumber, names_in_use};
use crate::transport::KernelNotifier;

/// A directory and a name in it.
type Name = (Ino, Vec<u8>);

/// Interval between checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Names per batch. For each batch, the mount tables of all processes are read.
const BATCH: usize = 2048;
/// Largest number of batches per check. The file system may repeat names that the kernel keeps.
const BATCHES_MAX: usize = 8;

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
    /// In non-blocking mode: the end of the session joins the thread.
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
        let Ok(in_use) = names_in_use(self.device) else { return Vec::new() };
        remove_used(&mut names, &in_use, |directory| self.find(directory));
        names
    }

    /// Finds a directory in memory; `None` if it does not exist.
    ///
    /// # Errors
    /// It has to be read first, or cannot be read.
    fn find(&self, directory: &Path) -> Result<Option<Ino>, Error> {
        let names = directory.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        });
        let mut directory = Ino::ROOT;
        for name in names {
            let found = self.fs.lookup(directory, name);
            // The lookup of its child has found it.
            self.release(directory);
            directory = match found {
                Ok(entry) => entry.attr.ino,
                Err(error) => {
                    return match error.kind() {
                        ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(None),
                        _ => Err(error),
                    };
                }
            };
        }
        self.release(directory);
        Ok(Some(directory))
    }

    /// Gives back a lookup.
    fn release(&self, directory: Ino) {
        if directory != Ino::ROOT {
            self.fs.forget(directory, 1);
        }
    }
}

/// Removes the names of the paths in use. `find` finds the directory of a path. If it cannot say,
/// any file with the last name of the path may be the one in use.
fn remove_used<E>(
    names: &mut Vec<Name>,
    in_use: &[PathBuf],
    find: impl Fn(&Path) -> Result<Option<Ino>, E>,
) {
    let candidates: BTreeSet<&[u8]> = names.iter().map(|(_, name)| &name[..]).collect();
    let (mut used, mut unclear) = (BTreeSet::new(), BTreeSet::new());
    for path in in_use {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let name = name.as_bytes();
        if !candidates.contains(name) {
            continue;
        }
        match find(directory) {
            Ok(Some(directory)) => drop(used.insert((directory, name))),
            Ok(None) => {}
            Err(_) => drop(unclear.insert(name)),
        }
    }
    names.retain(|(directory, name)| {
        !unclear.contains(&name[..]) && !used.contains(&(*directory, &name[..]))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is mounted on it would be detached.
    #[test]
    fn a_name_whose_directory_cannot_be_read_may_be_in_use() {
        let name = |directory, name: &str| (Ino(directory), name.as_bytes().to_vec());
        let all = [name(7, "hosts"), name(8, "hosts"), name(8, "file"), name(1, "root")];
        let in_use = ["/away/hosts", "/d/file", "/gone/root", "/other"].map(PathBuf::from);
        let find = |directory: &Path| match directory.to_str() {
            Some("/away") => Err("the store is away"),
            Some("/d") => Ok(Some(Ino(7))),
            Some("/gone") => Ok(None),
            other => panic!("{other:?} has no name to forget"),
        };
        let mut names = all.to_vec();
        remove_used(&mut names, &in_use, find);
        assert_eq!(names, all[2..], "the file in use is in another directory");
        remove_used(&mut names, &["/d/file".into()], |_| Ok::<_, ()>(Some(Ino(8))));
        assert_eq!(names, all[3..]);
    }
}
