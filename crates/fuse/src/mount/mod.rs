//! A mount's life: attach, serve on threads, end.
//!
//! # Invariants
//!
//! - A [`Mount`] ends when the kernel ends the session: after an unmount by whomever, or if the connection breaks. Then nothing stays
//!   in the table of mounts (a mount whose session broke is detached).
//! - Which mount is ours is told by its device number, not by its path alone: what somebody else mounts over it is left alone.
//!
//! # Locking
//!
//! `mount-state` protects how the session ended. Nothing is done under it.
//!
//! # What it does not do
//!
//! It handles no signals; it never unmounts lazily unless it is told to, dropped, or the session broke.

mod attach;
mod detach;
mod mountinfo;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::sync::{Arc, Condvar, Mutex, thread};

pub use self::attach::available;
pub use self::detach::{MountInfo, mount_containing, mount_info, unmount_dead};

use crate::counters::{MountMetrics, MountStats};
use crate::error::MountError;
use crate::options::{MountFlags, MountOptions};
use crate::transport::{self, Server};

/// An unmount waits so long for the session's end, which follows at once if nothing else holds it.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel's number, since 5.6; the crate of system calls does not have it for every target.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Serves at `at` what `server` makes.
pub(crate) fn serve<S: Server>(
    server: impl FnOnce(Arc<MountMetrics>) -> S,
    at: &Path,
    options: &MountOptions,
) -> Result<Mount, MountError> {
    let options = options.clamped();
    let (path, mode) = attach::check_mount_point(at)?;
    let device = attach::attach(&path, mode, &options)?;
    let metrics = Arc::new(MountMetrics::new());
    let server = Arc::new(server(metrics.clone()));
    let failed = |what: &'static str, source: io::Error| {
        let _ = detach::detach(&path, true);
        MountError::System { what, path: path.clone(), source }
    };
    let session = transport::start(device, server, metrics.clone(), &options)
        .map_err(|source| failed("begin a FUSE session at", source))?;
    let entry = mountinfo::at(&path).ok().flatten();
    let shared = Arc::new(MountShared {
        path: path.clone(),
        device: entry.map(|entry| entry.device),
        ended: Mutex::named("mount-state", None),
        end: Condvar::new(),
    });
    let thread_shared = shared.clone();
    let kernel_cache = options.kernel_cache;
    let thread = thread::spawn_named("fuse-session", move || {
        if kernel_cache {
            // The kernel may wait for this server in order to have memory; then the server must not wait for the kernel.
            set_io_flusher();
        }
        let end = session.run();
        thread_shared.set_ended(end);
    })
    .map_err(|source| failed("start a thread for", source))?;
    if let Some(device) = shared.device {
        tune_bdi(device, &options);
    }
    Ok(Mount {
        shared,
        metrics,
        threads: options.threads,
        trusted: options.trusted,
        thread: Mutex::named("mount-thread", Some(thread)),
    })
}

/// Tells the kernel that threads begun by this one write back for it (`PR_SET_IO_FLUSHER`): their allocations never wait for writing back. Needs
/// a capability; without it things go on as they are.
fn set_io_flusher() {
    // SAFETY: this call takes numbers only and changes an attribute of the calling thread.
    let _ = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Lets the kernel read ahead further than its default, and keep more to be written than the hundredth of
/// memory that it grants to FUSE. Only root may; for others it stays as it is.
fn tune_bdi(device: (u32, u32), options: &MountOptions) {
    if !options.kernel_cache {
        return;
    }
    let directory = PathBuf::from(format!("/sys/class/bdi/{}:{}", device.0, device.1));
    let _ =
        fs::write(directory.join("read_ahead_kb"), (options.read_ahead_bytes / 1024).to_string());
    let _ = fs::write(directory.join("max_ratio"), "20");
}

struct MountShared {
    path: PathBuf,
    /// Number of the mount's device, if the table could be read.
    device: Option<(u32, u32)>,
    /// How the session ended, once it has.
    ended: Mutex<Option<Result<(), String>>>,
    end: Condvar,
}

impl MountShared {
    /// Whether our mount is still at its place.
    fn is_attached(&self) -> bool {
        let Ok(entries) = mountinfo::entries() else { return false };
        entries.iter().any(|entry| Some(entry.device) == self.device && entry.path == self.path)
    }

    fn set_ended(&self, end: io::Result<()>) {
        // A session that broke leaves a mount on which everything fails.
        if self.is_attached() {
            let _ = detach::detach(&self.path, true);
        }
        *self.ended.lock() = Some(end.map_err(|error| error.to_string()));
        self.end.notify_all();
    }
}

/// A mount that is being served. Dropping it detaches it lazily and waits a moment for its end.
pub struct Mount {
    shared: Arc<MountShared>,
    metrics: Arc<MountMetrics>,
    threads: usize,
    trusted: bool,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Mount {
    /// Full path of the mount point.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The flags that it has: others than this process may have changed them. None if the table of mounts
    /// does not show it (any more).
    pub fn flags(&self) -> Option<MountFlags> {
        let entry = mountinfo::at(&self.shared.path).ok()??;
        Some(MountFlags::shown_as(&entry.flags))
    }

    /// Gives it other flags, all of them anew. Who keeps times of access is the file system: tell it too.
    ///
    /// # Errors
    ///
    /// Without the right to mount; if it is to become read-only while files are open for writing.
    pub fn remount(&self, flags: &MountFlags) -> Result<(), MountError> {
        attach::remount(&self.shared.path, flags, self.trusted)
    }

    /// Waits until it is unmounted, by anybody. Returns what broke the session, if it did not end by being unmounted.
    pub fn wait(&self) -> Option<String> {
        let mut ended = self.shared.ended.lock();
        loop {
            if let Some(end) = &*ended {
                return end.clone().err();
            }
            self.shared.end.wait(&mut ended);
        }
    }

    /// As [`wait`](Self::wait), for `timeout` at most; `false` if it is still mounted then.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let mut ended = self.shared.ended.lock();
        // A wake without an end is rare and costs one more round.
        for _ in 0..4 {
            if ended.is_some() || self.shared.end.wait_timeout(&mut ended, timeout) {
                break;
            }
        }
        ended.is_some()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.lock().is_some()
    }

    /// Unmounts, and waits until no request comes any more.
    ///
    /// # Errors
    ///
    /// [`MountError::Busy`] names who uses it, as far as one can see; it stays mounted. [`MountError::InUseElsewhere`]: it is
    /// out of sight here, and something holds it elsewhere.
    pub fn unmount(&self) -> Result<(), MountError> {
        if self.shared.is_attached() {
            match detach::detach(&self.shared.path, false) {
                // Somebody else was faster.
                Err(MountError::NotMounted { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        if self.wait_timeout(END_TIMEOUT) {
            return Ok(());
        }
        Err(MountError::InUseElsewhere { path: self.shared.path.clone() })
    }

    /// Takes it out of sight at once; it goes on being served for those who have something of it open, and ends with the last of them.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        if !self.shared.is_attached() {
            return Ok(());
        }
        match detach::detach(&self.shared.path, true) {
            Err(MountError::NotMounted { .. }) => Ok(()),
            other => other,
        }
    }

    /// Its counters as they are now.
    pub fn stats(&self) -> MountStats {
        self.metrics.stats(self.shared.path.clone(), self.threads)
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
