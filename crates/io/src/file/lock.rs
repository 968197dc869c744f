//! Locks of files and block devices against other opens, by this process or another.
//!
//! The lock is the kernel's `flock`, on an open file of its own. It ends with the process, however
//! that ends. Unlike `fcntl` locks it also keeps out a second open by the same process. It holds
//! among processes of one host only.
//!
//! # NFS
//!
//! On NFS, Linux turns `flock` into a byte-range lock on the server. An exclusive one needs a
//! descriptor that is open for writing (otherwise `EBADF`), a shared one a descriptor that is open
//! for reading. So a file that is locked exclusively is opened for writing too. Where that is
//! refused, on a read-only medium for example, the file could not be opened for writing either. On
//! NFS the lock also holds among hosts, unless the mount option `local_lock` says otherwise.
//!
//! # Short locks of others
//!
//! udev takes a shared lock on a block device while it probes it, for some milliseconds after any
//! process has closed it after writing. So an exclusive lock of a block device is retried for
//! [`RETRIES`] pauses before the device counts as in use.
//!
//! # What it does not do
//!
//! It keeps out nothing that does not lock. For block devices the kernel itself refuses a second
//! writer (see [`super::open`]), whether or not that one locks.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use forebay_base::sync::{Condvar, Mutex};
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::error::OpenError;
use super::open::{FileKind, refused, system};

/// Most retries of a lock that another process holds for a short time only.
const RETRIES: u32 = 100;
/// Pause before each retry.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A lock on a file or block device, held until it is dropped.
///
/// # New files
///
/// The lock of a file that an open creates is on the very descriptor that created it, and comes
/// before the file gets its size. So another open finds the file locked, or empty and too small. An
/// open that fails removes only a file that it created itself, and while it holds the lock. If
/// another program locks the new file first and keeps it for all `RETRIES`, the file stays and is
/// empty.
#[derive(Debug)]
pub struct FileLock {
    fd: OwnedFd,
    created: bool,
}

impl FileLock {
    /// Locks the file at `path`: exclusively, or, if `shared`, together with other readers.
    pub(super) fn take(path: &Path, shared: bool, kind: FileKind) -> Result<Self, OpenError> {
        let mut pauses = 0;
        Self::take_with(path, shared, kind, &mut || pause(&mut pauses))
    }

    /// Like [`take`](Self::take). `pause` waits before a retry, and returns false to give up.
    fn take_with(
        path: &Path,
        shared: bool,
        kind: FileKind,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Self, OpenError> {
        let flags = access(shared, kind) | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = fs::open(path, flags, Mode::empty())
            .map_err(|errno| refused(path, "open it for locking", errno, kind))?;
        let retried = kind == FileKind::Block && !shared;
        lock(&fd, path, shared, &mut || retried && pause())?;
        Ok(Self { fd, created: false })
    }

    /// Locks the file that `fd` has just created at `path`, exclusively. `fd` is open for reading
    /// and writing.
    ///
    /// Another open may have locked it already. It refuses the file, which is still empty, and
    /// releases it. A program that keeps the lock may use the file, so it is not removed.
    pub(super) fn of_new(fd: OwnedFd, path: &Path) -> Result<Self, OpenError> {
        let mut pauses = 0;
        Self::of_new_with(fd, path, &mut || pause(&mut pauses))
    }

    /// Like [`of_new`](Self::of_new). `pause` is as for [`take_with`](Self::take_with).
    fn of_new_with(
        fd: OwnedFd,
        path: &Path,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Self, OpenError> {
        let locked = lock(&fd, path, false, pause);
        let this = Self { fd, created: true };
        match locked {
            Ok(()) => Ok(this),
            Err(error) => {
                if !matches!(error, OpenError::InUse { .. }) {
                    // Files cannot be locked there.
                    this.discard_new(path);
                }
                Err(error)
            }
        }
    }

    /// Takes over the lock that the caller has on `fd`.
    pub fn of_locked(fd: OwnedFd) -> Self {
        Self { fd, created: false }
    }

    /// Returns a number that identifies the locked file or device node on this host until the next
    /// boot.
    ///
    /// # Errors
    /// The error of the system.
    pub fn identity(&self) -> io::Result<u128> {
        let FileIdentity { device: (major, minor), inode } = FileIdentity::of(&self.fd)?;
        Ok(u128::from(major) << 96 | u128::from(minor) << 64 | u128::from(inode))
    }

    /// Returns whether the open that took this lock created the file.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Removes the file at `path` if it is the locked one. No other user that locks has it open.
    ///
    /// # Errors
    /// The error of the system; [`NotFound`](io::ErrorKind::NotFound) if `path` leads to another
    /// file.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        let found = fs::statx(fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO)?;
        match FileIdentity::of(&self.fd)? == FileIdentity::from(&found) {
            true => Ok(fs::unlink(path)?),
            false => Err(Errno::NOENT.into()),
        }
    }

    /// Returns whether `path` leads to the locked file, through symbolic links.
    ///
    /// # Errors
    /// The error of the system.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let found = fs::statx(fs::CWD, path, AtFlags::empty(), StatxFlags::INO)?;
        Ok(FileIdentity::of(&self.fd)? == FileIdentity::from(&found))
    }

    /// Removes the file if the open that took this lock created it, because that open fails.
    pub(super) fn discard_new(&self, path: &Path) {
        if self.created {
            // The error of the open is reported.
            let _ = self.remove_file(path);
        }
    }

    /// Returns whether this lock is on the same file as `other`.
    pub(super) fn is_of(&self, other: &OwnedFd) -> Result<bool, Errno> {
        Ok(FileIdentity::of(&self.fd)? == FileIdentity::of(other)?)
    }
}

impl AsFd for FileLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough: a child between fork and exec still has the open file for a
        // moment.
        let _ = fs::flock(&self.fd, FlockOperation::Unlock);
    }
}

/// Locks the open file `fd`. If another process holds a lock, it is tried again as long as `pause`
/// returns true.
fn lock(
    fd: &OwnedFd,
    path: &Path,
    shared: bool,
    pause: &mut dyn FnMut() -> bool,
) -> Result<(), OpenError> {
    let operation = match shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        match fs::flock(fd, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if pause() => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = Holder::of(fd).map(|holder| holder.to_string());
                return Err(OpenError::InUse { path: path.to_owned(), holder });
            }
            Err(errno) => return Err(system(path, "lock it", errno)),
        }
    }
}

/// Waits before a retry. Returns false after the last one.
fn pause(pauses: &mut u32) -> bool {
    let (nobody, never) = (Mutex::named("io-file-lock-pause", ()), Condvar::new());
    *pauses += 1;
    *pauses <= RETRIES && {
        never.wait_timeout(&mut nobody.lock(), RETRY_PAUSE);
        true
    }
}

/// Returns the access that a descriptor needs for its lock, see the module head. On a block device
/// `flock` is always local and needs none. Closing a block device after an open for writing would
/// make udev probe it.
fn access(shared: bool, kind: FileKind) -> OFlags {
    match kind {
        FileKind::File if !shared => OFlags::RDWR,
        FileKind::File | FileKind::Block => OFlags::RDONLY,
    }
}

/// The identity of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    /// Major and minor number of its device.
    device: (u32, u32),
    inode: u64,
}

impl FileIdentity {
    fn of(fd: &OwnedFd) -> Result<Self, Errno> {
        Ok(Self::from(&fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?))
    }

    fn from(stat: &Statx) -> Self {
        Self { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
    }

    /// Parses `major:minor:inode` as in `/proc/locks`, the first two in hexadecimal.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let hex = |part: Option<&str>| u32::from_str_radix(part?, 16).ok();
        let device = (hex(parts.next())?, hex(parts.next())?);
        Some(Self { device, inode: parts.next()?.parse().ok()? })
    }
}

/// How often the kernel is asked who has a file locked.
const LISTINGS: usize = 8;

/// The process that has a file locked.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    Ourselves,
    Process { pid: u32, program: Option<String> },
}

impl Holder {
    /// `None` if the kernel does not list it: it is on another host or in a container.
    fn of(fd: &OwnedFd) -> Option<Self> {
        let file = FileIdentity::of(fd).ok()?;
        // The kernel writes the list in parts, and leaves out locks if others end in between.
        let mut lists = (0..LISTINGS).map_while(|_| std::fs::read_to_string("/proc/locks").ok());
        let pid = lists.find_map(|list| pid_in(&list, file))?;
        if pid == std::process::id() {
            return Some(Self::Ourselves);
        }
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Some(Self::Process { pid, program: program.map(|name| name.trim().to_owned()) })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ourselves => f.write_str("this process"),
            Self::Process { pid, program: Some(program) } => write!(f, "process {pid} ({program})"),
            Self::Process { pid, program: None } => write!(f, "process {pid}"),
        }
    }
}

/// Returns the first process with a `flock` lock on the file, from the lines of `/proc/locks`.
fn pid_in(locks: &str, file: FileIdentity) -> Option<u32> {
    let held = || {
        locks.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            // Processes that wait for a lock have `->` here.
            if words.nth(1)? != "FLOCK" {
                return None;
            }
            let (pid, identity) =
                (words.nth(2)?.parse().ok()?, FileIdentity::parse(words.next()?)?);
            Some((pid, identity))
        })
    };
    let same = held().find(|(_, identity)| *identity == file);
    // Some file systems report another device than the kernel lists. Then the inode number decides,
    // if it has only one holder.
    let mut alike = held().filter(|(_, identity)| identity.inode == file.inode);
    let only = alike.next().filter(|_| alike.next().is_none());
    same.or(only).map(|(pid, _)| pid)
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 11 08:02:77 0 EOF
2: FLOCK  ADVISORY  WRITE 12 08:1f:77 0 EOF
2: -> FLOCK  ADVISORY  WRITE 13 08:02:77 0 EOF
3: FLOCK  ADVISORY  READ  14 08:02:77 0 EOF
4: FLOCK  ADVISORY  READ  15 00:2a:78 0 EOF
";

    #[test]
    fn a_lock_waits_for_a_probe_of_a_block_device_and_for_no_other_holder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // As udev does: shared, for a short time.
        let probe = || {
            let probe = FileLock::take(file.path(), true, FileKind::Block).unwrap();
            let mut left = Some(probe);
            let mut pauses = 0;
            move |ends_after: u32| {
                pauses += 1;
                (pauses == ends_after).then(|| left.take());
                pauses < 10
            }
        };
        let lock = |shared, kind, ends_after| {
            let (mut probe, mut pauses) = (probe(), 0);
            let lock = FileLock::take_with(file.path(), shared, kind, &mut || {
                pauses += 1;
                probe(ends_after)
            });
            (lock.map(drop).map_err(|error| error.to_string()), pauses)
        };
        assert_eq!(lock(false, FileKind::Block, 1), (Ok(()), 1));
        assert_eq!(lock(false, FileKind::Block, 7), (Ok(()), 7));
        // It is not a probe.
        let (refused, pauses) = lock(false, FileKind::Block, u32::MAX);
        let refused = refused.unwrap_err();
        assert!(refused.contains("is in use: this process has it open"), "{refused}");
        assert_eq!(pauses, 10);
        // Readers do not keep each other out, and nobody probes a file.
        assert_eq!(lock(true, FileKind::Block, u32::MAX), (Ok(()), 0));
        let (refused, pauses) = lock(false, FileKind::File, 1);
        assert!(refused.is_err(), "two users of a file");
        assert_eq!(pauses, 0);
        // The default gives up too.
        let mut pauses = RETRIES - 1;
        assert!(pause(&mut pauses));
        assert!(!pause(&mut pauses));
    }

    #[test]
    fn a_new_file_that_another_program_locks_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let create = || {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            fs::open(&path, flags, Mode::RUSR | Mode::WUSR).unwrap()
        };
        let new = create();
        let faster = FileLock::take(&path, false, FileKind::File).unwrap();
        let refused = FileLock::of_new_with(new, &path, &mut || false).unwrap_err();
        assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
        faster.remove_file(&path).expect("the file is still there");
        drop(faster);
        let lock = FileLock::of_new_with(create(), &path, &mut || false).unwrap();
        lock.discard_new(&path);
        assert!(!path.exists(), "an open that fails removes what it created and locked");
    }

    #[test]
    fn the_message_names_the_holder_only_if_it_is_known() {
        let text = |holder: Option<Holder>| {
            let holder = holder.map(|holder| holder.to_string());
            OpenError::InUse { path: "disk".into(), holder }.to_string()
        };
        let known = Holder::Process { pid: 7, program: Some("dd".to_owned()) };
        let known = text(Some(known));
        assert!(known.starts_with("disk: is in use: process 7 (dd) has it open; close"), "{known}");
        let unknown = text(None);
        assert!(unknown.starts_with("disk: is in use; close"), "{unknown}");
        assert!(!unknown.contains("process"), "{unknown}");
    }

    #[test]
    fn an_exclusive_lock_of_a_file_is_on_a_descriptor_open_for_writing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let access_of = |shared, kind| {
            let lock = FileLock::take(file.path(), shared, kind).unwrap();
            fs::fcntl_getfl(&lock.fd).unwrap() & OFlags::RWMODE
        };
        assert_eq!(access_of(false, FileKind::File), OFlags::RDWR);
        assert_eq!(access_of(true, FileKind::File), OFlags::RDONLY);
        for shared in [false, true] {
            assert_eq!(access_of(shared, FileKind::Block), OFlags::RDONLY, "udev watches it");
        }
    }

    #[test]
    fn the_list_of_locks_names_the_holder() {
        let pid = |device, inode| pid_in(LOCKS, FileIdentity { device, inode });
        assert_eq!(pid((8, 2), 77), Some(14), "neither a waiter nor another kind of lock");
        assert_eq!(pid((8, 0x1f), 77), Some(12));
        assert_eq!(pid((0, 9), 78), Some(15), "the only holder with this inode number");
        assert_eq!(pid((0, 9), 77), None, "two holders with this inode number");
        assert_eq!(pid((8, 2), 79), None);
        assert_eq!(
            pid_in("nonsense\n\n1: FLOCK\n", FileIdentity { device: (8, 2), inode: 77 }),
            None
        );
    }
}
