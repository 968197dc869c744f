//! Errors of mounting and unmounting. Each names the mount point and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// Process ID.
    pub pid: u32,
    /// Command name, as in `/proc/PID/comm`.
    pub command: String,
    /// How it uses the mount: `working directory`, `root`, `program`, or the path of an open file.
    pub uses: String,
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}: {})", self.command, self.pid, self.uses)
    }
}

/// An error of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// Remounting needs the right to mount.
    #[error(
        "cannot remount {}: only root may; unmount it and mount it again with these options",
        path.display()
    )]
    RemountNotPermitted {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount cannot become read-only while files are open for writing.
    #[error(
        "{}: cannot become read-only: files there are open for writing; close them first (`fuser -vm {}` \
         lists the processes)", path.display(), path.display()
    )]
    OpenForWriting {
        /// The mount point.
        path: PathBuf,
    },
    /// FUSE is not available in the kernel or the container.
    #[error(
        "/dev/fuse is missing or not the FUSE device: load FUSE (`modprobe fuse`, as root), or start the container with `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    NoDevice,
    /// The user may not open `/dev/fuse`.
    #[error(
        "cannot open /dev/fuse: {source}; run as root, or start the container with `--device /dev/fuse`"
    )]
    NoPermission {
        /// Error of the system.
        source: io::Error,
    },
    /// Only root may mount directly, and `fusermount3` is missing.
    #[error(
        "cannot mount: only root may mount without `fusermount3`; install the package fuse3, or run as root"
    )]
    NoHelper,
    /// Root lacks the capability, as in most containers.
    #[error(
        "cannot mount: {source}; start the container with `--cap-add SYS_ADMIN --device /dev/fuse`, and if necessary with `--security-opt apparmor=unconfined`"
    )]
    NotPermitted {
        /// Error of the system.
        source: io::Error,
    },
    /// The mount point does not exist.
    #[error("cannot mount at {}: it does not exist; create the directory first", path.display())]
    NotFound {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is not a directory.
    #[error("cannot mount at {}: it is not a directory; give a directory", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// The server of an existing mount is gone.
    #[error("{} has a mount whose server is gone; clear it with `forebay umount {}`", path.display(), path.display())]
    Dead {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is already in use.
    #[error("{source_name} is already mounted at {}; unmount it first, or give another directory", path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// Source of that mount.
        source_name: String,
    },
    /// Processes use the mount.
    #[error("{} is busy{}; end these processes and try again, or detach it lazily", path.display(), by(users))]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// Some of these processes. Empty if none is visible to this user.
        users: Vec<MountUser>,
    },
    /// Another mount is over this one, or over a directory above it. A system call would act on
    /// that one.
    #[error(
        "{}: cannot be reached: {fs_type} ({source_name}) is mounted over it at {}; unmount that first (`umount {}`)",
        path.display(), by.display(), by.display()
    )]
    Covered {
        /// The mount point.
        path: PathBuf,
        /// Mount point of the other mount.
        by: PathBuf,
        /// File system type of the other mount.
        fs_type: String,
        /// Source of the other mount.
        source_name: String,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted at {}", path.display())]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
    /// The server of the mount is alive.
    #[error("the server of the mount at {} is alive; unmount it normally", path.display())]
    Alive {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount is detached here, but in use elsewhere.
    #[error(
        "{} is unmounted here, but in use in a bind mount or another mount namespace; it ends when those are unmounted",
        path.display()
    )]
    InUseElsewhere {
        /// The mount point.
        path: PathBuf,
    },
    /// `fusermount3` failed.
    #[error("fusermount3 failed for {}: {message}", path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// Its message.
        message: String,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}", path.display())]
    System {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

fn by(users: &[MountUser]) -> String {
    if users.is_empty() {
        return String::new();
    }
    let names: Vec<String> = users.iter().map(MountUser::to_string).collect();
    format!(": in use by {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_mount_names_its_users() {
        let user =
            MountUser { pid: 7, command: "bash".to_owned(), uses: "working directory".to_owned() };
        let error = MountError::Busy { path: "/mnt".into(), users: vec![user] };
        let text = error.to_string();
        assert!(text.contains("in use by bash (pid 7: working directory)"), "{text}");
        let none = MountError::Busy { path: "/mnt".into(), users: Vec::new() }.to_string();
        assert!(none.starts_with("/mnt is busy; end these processes"), "{none}");
    }
}
