//! The life of a mount: attach, serve, detach.
//!
//! # Invariants
//!
//! - A [`Mount`] ends when the kernel ends the session: after an unmount, or if the connection
//!   breaks. It then leaves no entry in the mount table: a mount with a broken session is detached.
//! - A mount is identified by its entry in the mount table (`own`). A mount that others have placed
//!   over it is left alone. The server is told about an unmount only after the entry has gone.
//!
//! # Locking
//!
//! `mount-state` protects the result of the session, and `mount-detach` whether an unmount has
//! returned. They are leaf locks.
//!
//! # Limits
//!
//! It handles no signals. It unmounts lazily only on request, on drop, or after a broken session.

mod attach;
mod detach;
mod mountinfo;
mod names_in_use;
mod own;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::sync::{Arc, Condvar, Mutex, thread};

pub use self::attach::available;
pub use self::detach::{MountInfo, mount_containing, mount_id_at, mount_info, unmount_dead};

use self::mountinfo::MountEntry;
pub(crate) use self::names_in_use::names_in_use;
use self::own::OwnMount;
use crate::counters::{MountMetrics, MountStats, OperationLatency};
use crate::error::MountError;
use crate::options::{MountFlags, MountOptions};
use crate::transport::{self, Server};

/// Major and minor number of the device that a mounted file system shows.
pub(crate) type DeviceNumber = (u32, u32);

/// How long an unmount waits for the end of the session. It follows at once unless something holds
/// the mount.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to unmount a busy mount, and the pause between them.
const BUSY_ROUNDS: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Interval of the looks whether an unmount that takes its time has left the mount table.
const DETACH_LOOK: Duration = Duration::from_millis(50);
/// `libc` does not define it for every target. Since Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Mounts at `at` and serves requests with the server that `server` creates, which also gets the
/// device number of the mount.
pub(crate) fn serve<S: Server>(
    server: impl FnOnce(Arc<MountMetrics>, DeviceNumber) -> S,
    at: &Path,
    options: &MountOptions,
) -> Result<Mount, MountError> {
    let options = options.clamped();
    let (path, mode) = attach::check_mount_point(at)?;
    let device = attach::attach(&path, mode, &options)?;
    let own = OwnMount::attached_at(&path, &options.fs_name).map_err(|source| {
        // It is not detached, since another mount may be there. Without the device it is dead.
        MountError::System { what: "find in the mount table", path: path.clone(), source }
    })?;
    let metrics = Arc::new(MountMetrics::new());
    let server = Arc::new(server(metrics.clone(), own.device()));
    let own = Arc::new(own);
    let failed = |what: &'static str, source: io::Error| {
        let _ = own.detach(true);
        MountError::System { what, path: path.clone(), source }
    };
    let told = Arc::downgrade(&server);
    let session = transport::start(device, server, metrics.clone(), &options)
        .map_err(|source| failed("start a FUSE session at", source))?;
    let detached = Box::new(move || {
        if let Some(server) = told.upgrade() {
            server.detached();
        }
    });
    let shared = Arc::new(MountShared {
        own: own.clone(),
        ended: Mutex::named("mount-state", None),
        end: Condvar::new(),
        detached,
    });
    let thread_shared = shared.clone();
    let kernel_cache = options.kernel_cache;
    let thread = thread::spawn_named("fuse-session", move || {
        if kernel_cache {
            // With the kernel cache, the kernel may wait for this server to free memory. The
            // server's own allocations must not wait for the kernel then.
            set_io_flusher();
        }
        let end = session.run();
        thread_shared.set_ended(end);
    })
    .map_err(|source| failed("start a thread for", source))?;
    tune_bdi(own.device(), &options);
    tracing::info!(at = %path.display(), fs = options.fs_name, "mounted");
    Ok(Mount {
        shared,
        metrics,
        threads: options.threads,
        trusted: options.trusted,
        thread: Mutex::named("mount-thread", Some(thread)),
    })
}

/// Marks this thread and those it starts as writing back for the kernel (`PR_SET_IO_FLUSHER`), so
/// that their allocations do not wait for write-back. Without the capability nothing changes.
fn set_io_flusher() {
    // SAFETY: the call takes only integers and changes an attribute of the calling thread.
    let _ = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Raises the kernel's read-ahead above its default, and the share of dirty pages above the 1 %
/// that FUSE gets. Works for root only.
fn tune_bdi(device: DeviceNumber, options: &MountOptions) {
    if !options.kernel_cache {
        return;
    }
    let directory = PathBuf::from(format!("/sys/class/bdi/{}:{}", device.0, device.1));
    let _ =
        fs::write(directory.join("read_ahead_kb"), (options.read_ahead_bytes / 1024).to_string());
    let _ = fs::write(directory.join("max_ratio"), "20");
}

struct MountShared {
    own: Arc<OwnMount>,
    /// Result of the session, once it has ended.
    ended: Mutex<Option<Result<(), String>>>,
    end: Condvar,
    /// Tells the server that the mount is unmounted for good.
    detached: Box<dyn Fn() + Send + Sync>,
}

impl MountShared {
    fn set_ended(&self, end: io::Result<()>) {
        let at = self.own.path().display();
        let end = end.or_else(|error| if self.is_unmounted(&error) { Ok(()) } else { Err(error) });
        if let Err(error) = self.own.detach_ended(end.is_err()) {
            tracing::warn!(%at, %error, "cannot detach a mount without a session");
        }
        match &end {
            Ok(()) => tracing::info!(%at, "unmounted"),
            Err(error) => tracing::error!(%at, %error, "lost mount"),
        }
        *self.ended.lock() = Some(end.map_err(|error| error.to_string()));
        self.end.notify_all();
    }

    /// Whether the error with which the session has ended comes from an unmount: the kernel takes
    /// the last requests back then, and a thread that was just getting one sees an abort. A
    /// connection that somebody aborts leaves its mount in the table.
    fn is_unmounted(&self, error: &io::Error) -> bool {
        let is_abort = error.raw_os_error() == Some(libc::ECONNABORTED);
        is_abort && matches!(self.own.reachable(), Ok(None))
    }
}

/// A live mount. Dropping it detaches it lazily and waits briefly for its end.
pub struct Mount {
    shared: Arc<MountShared>,
    metrics: Arc<MountMetrics>,
    threads: usize,
    trusted: bool,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Mount {
    /// Full path of the mount point, as it was when mounted.
    pub fn path(&self) -> &Path {
        self.shared.own.path()
    }

    /// Its path in the mount table, which changes with renames of directories above it. `None` if
    /// the table does not show the mount.
    pub fn current_path(&self) -> Option<PathBuf> {
        Some(self.entry()?.path)
    }

    /// Its id in the mount table, which no other mount of the system has now. `None` if the table
    /// does not show the mount.
    pub fn id(&self) -> Option<u64> {
        Some(self.entry()?.id)
    }

    /// Its entry in the mount table. After its end, another mount may have its numbers.
    fn entry(&self) -> Option<MountEntry> {
        if self.has_ended() { None } else { self.shared.own.entry().ok()? }
    }

    /// Current flags, which other processes may have changed. `None` if the mount table does not
    /// show the mount.
    pub fn flags(&self) -> Option<MountFlags> {
        Some(MountFlags::shown_as(&self.entry()?.flags))
    }

    /// Replaces the flags. The file system must be told about access times separately.
    ///
    /// # Errors
    ///
    /// The process may not mount, or files are open for writing and the mount would become
    /// read-only. [`MountError::Covered`] if another mount is over it.
    pub fn remount(&self, flags: &MountFlags) -> Result<(), MountError> {
        let not_mounted = || MountError::NotMounted { path: self.path().to_path_buf() };
        if self.has_ended() {
            return Err(not_mounted());
        }
        let path = self.shared.own.reachable()?.ok_or_else(not_mounted)?;
        attach::remount(&path, flags, self.trusted)?;
        tracing::info!(at = %self.path().display(), ?flags, "remounted");
        Ok(())
    }

    /// Waits until the mount has ended. Returns an error message if the session broke.
    pub fn wait(&self) -> Option<String> {
        let mut ended = self.shared.ended.lock();
        loop {
            if let Some(end) = &*ended {
                return end.clone().err();
            }
            self.shared.end.wait(&mut ended);
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Returns whether the mount has ended.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let mut ended = self.shared.ended.lock();
        // A spurious wake-up costs one more round.
        for _ in 0..4 {
            if ended.is_some() || self.shared.end.wait_timeout(&mut ended, timeout) {
                break;
            }
        }
        ended.is_some()
    }

    /// Whether the mount has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.lock().is_some()
    }

    /// Unmounts, and waits for the end of the session. A busy mount is tried again for 400 ms.
    ///
    /// # Errors
    ///
    /// [`MountError::Busy`] names visible users, and [`MountError::Covered`] the mount over this
    /// one; the mount stays. [`MountError::InUseElsewhere`] if the mount is detached but still in
    /// use.
    pub fn unmount(&self) -> Result<(), MountError> {
        for round in 1.. {
            match self.begin_unmount() {
                // Something may hold it for a moment: the kernel that releases the last closed
                // file, a child process before its `exec`, a process that looks through `/proc`.
                Err(MountError::Busy { .. }) if round < BUSY_ROUNDS => {
                    self.wait_timeout(BUSY_PAUSE);
                }
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        match self.wait_timeout(END_TIMEOUT) {
            true => Ok(()),
            false => Err(self.in_use_elsewhere()),
        }
    }

    /// As [`unmount`](Self::unmount), without waiting for the end of the session or of other uses.
    ///
    /// # Errors
    ///
    /// As [`unmount`](Self::unmount), except [`MountError::InUseElsewhere`].
    pub fn begin_unmount(&self) -> Result<(), MountError> {
        self.detach(false)
    }

    /// The error of a mount that was detached, and does not end.
    pub fn in_use_elsewhere(&self) -> MountError {
        MountError::InUseElsewhere { path: self.path().to_path_buf() }
    }

    /// Detaches the mount at once. It is served until its last user is gone.
    ///
    /// # Errors
    ///
    /// [`MountError::Covered`], or a system call fails.
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        self.detach(true)
    }

    /// Takes the mount out of the mount table, unless somebody else has done so, and tells the
    /// server.
    fn detach(&self, lazy: bool) -> Result<(), MountError> {
        // After its end, another mount may have its numbers.
        if !self.has_ended() {
            self.detach_watched(lazy)?;
        }
        (self.shared.detached)();
        Ok(())
    }

    /// Takes the mount out of the mount table. The call also ends the file system, unless somebody
    /// still uses it. Then the kernel first writes its pages to the server, which must not let them
    /// wait: so the server is told. A mount that is busy or covered stays, and the server hears
    /// nothing.
    fn detach_watched(&self, lazy: bool) -> Result<(), MountError> {
        let call = Arc::new((Mutex::named("mount-detach", false), Condvar::new()));
        let (shared, watched) = (self.shared.clone(), call.clone());
        let watch = thread::spawn_named("mount-detach", move || {
            let (returned, end) = &*watched;
            let mut returned = returned.lock();
            while !*returned {
                let looks = end.wait_timeout(&mut returned, DETACH_LOOK);
                if looks && !shared.own.is_attached().unwrap_or(true) {
                    return (shared.detached)();
                }
            }
        });
        let watch = watch.map_err(|source| {
            let path = self.path().to_path_buf();
            MountError::System { what: "start a thread to unmount", path, source }
        })?;
        let detached = self.shared.own.detach(lazy);
        *call.0.lock() = true;
        call.1.notify_all();
        let _ = watch.join();
        detached
    }

    /// Statistics of the mount.
    pub fn stats(&self) -> MountStats {
        self.metrics.stats(self.path().to_path_buf(), self.threads)
    }

    /// How long requests took since the mount, by the types that have occurred.
    pub fn latencies(&self) -> Vec<OperationLatency> {
        self.metrics.latencies()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.unmount_lazily();
            self.wait_timeout(END_TIMEOUT);
        }
        if self.has_ended()
            && let Some(thread) = self.thread.lock().take()
        {
            let _ = thread.join();
        }
    }
}
