//! Locks of files and block devices against other opens, of this process or another.
//!
//! The lock is the kernel's (`flock`), on an open file of its own: it ends with the process, however that ends, and it
//! keeps out a second open of the same process too, which the locks of `fcntl` would not. It holds among processes of
//! one host only.
//!
//! # What it does not do
//!
//! It keeps nobody out who takes no lock. Of a block device the kernel itself refuses a second user that writes (see
//! [`super::medium`]), whether that locks or not.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::error::OpenError;
use super::medium::{Kind, refused, system};

/// A lock on a file or block device, until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    fd: OwnedFd,
}

impl FileLock {
    /// Locks what is at `path`: alone, or, `shared`, with others that read.
    pub(super) fn take(path: &Path, shared: bool, kind: Kind) -> Result<Self, OpenError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = fs::open(path, flags, Mode::empty())
            .map_err(|errno| refused(path, "open it to lock it", errno, kind))?;
        let operation = match shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match fs::flock(&fd, operation) {
            Ok(()) => Ok(Self { fd }),
            Err(Errno::WOULDBLOCK) => {
                let holder = Holder::of(&fd).unwrap_or(Holder::Unknown).to_string();
                Err(OpenError::InUse { path: path.to_owned(), holder })
            }
            Err(errno) => Err(system(path, "lock it", errno)),
        }
    }

    /// Whether it is on that open file.
    pub(super) fn is_of(&self, other: &OwnedFd) -> Result<bool, Errno> {
        Ok(Identity::of(&self.fd)? == Identity::of(other)?)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing would not do: a child that is about to execute something else still has the open file for a moment.
        let _ = fs::flock(&self.fd, FlockOperation::Unlock);
    }
}

/// Which file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// Major and minor number of the device that it is on.
    device: (u32, u32),
    inode: u64,
}

impl Identity {
    fn of(fd: &OwnedFd) -> Result<Self, Errno> {
        let stat = fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        Ok(Self { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino })
    }

    /// As a line of `/proc/locks` has it: `major:minor:inode`, the first two in hexadecimal.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let hexadecimal = |part: Option<&str>| u32::from_str_radix(part?, 16).ok();
        let device = (hexadecimal(parts.next())?, hexadecimal(parts.next())?);
        Some(Self { device, inode: parts.next()?.parse().ok()? })
    }
}

/// Who has a file locked.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    Ourselves,
    Process { pid: u32, program: Option<String> },
    Unknown,
}

impl Holder {
    fn of(fd: &OwnedFd) -> Option<Self> {
        let file = Identity::of(fd).ok()?;
        let pid = pid_in(&std::fs::read_to_string("/proc/locks").ok()?, file)?;
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
            Self::Unknown => f.write_str("another process"),
        }
    }
}

/// The first process that has a lock of this kind on the file, by the lines of `/proc/locks`.
fn pid_in(locks: &str, file: Identity) -> Option<u32> {
    let held = || {
        locks.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            // Who waits for a lock has `->` there.
            if words.nth(1)? != "FLOCK" {
                return None;
            }
            let (pid, identity) = (words.nth(2)?.parse().ok()?, Identity::parse(words.next()?)?);
            Some((pid, identity))
        })
    };
    let same = held().find(|(_, identity)| *identity == file);
    // Some file systems report a device of their own, not the one that the kernel lists. Then the inode decides, if
    // there is one holder of that number only.
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
    fn the_list_of_locks_names_the_holder() {
        let pid = |device, inode| pid_in(LOCKS, Identity { device, inode });
        assert_eq!(pid((8, 2), 77), Some(14), "neither who waits nor another kind of lock");
        assert_eq!(pid((8, 0x1f), 77), Some(12));
        assert_eq!(pid((0, 9), 78), Some(15), "the only one of that number");
        assert_eq!(pid((0, 9), 77), None, "two are of that number");
        assert_eq!(pid((8, 2), 79), None);
        assert_eq!(pid_in("nonsense\n\n1: FLOCK\n", Identity { device: (8, 2), inode: 77 }), None);
    }
}
