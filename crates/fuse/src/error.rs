//! Why something cannot be mounted or unmounted. Each names the place and the way out.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A process that has something of a mount open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// Its number.
    pub pid: u32,
    /// Its short name, as the kernel has it.
    pub command: String,
    /// What of it lies in the mount: `working directory`, `root`, `program` or a path that is open.
    pub uses: String,
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}: {})", self.command, self.pid, self.uses)
    }
}

/// Why something cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The right to mount is needed to change flags of a mount.
    #[error(
        "{}: cannot remount: that needs root; unmount it, and mount it again with these options",
        path.display()
    )]
    RemountNotPermitted {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount becomes read-only once nobody writes to it.
    #[error(
        "{}: cannot become read-only: files there are open for writing; close them first (`fuser -vm {}` \
         names who has them)", path.display(), path.display()
    )]
    OpenForWriting {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel has no FUSE, or a container hides it.
    #[error(
        "/dev/fuse does not exist, or is something else: FUSE is not loaded (`modprobe fuse`, as root) or this container hides it (start it with `--device /dev/fuse --cap-add SYS_ADMIN`)"
    )]
    NoDevice,
    /// `/dev/fuse` is there and refuses this user.
    #[error(
        "no permission to open /dev/fuse: {source}; run as root, or in a container with `--device /dev/fuse`"
    )]
    NoPermission {
        /// What the system said.
        source: io::Error,
    },
    /// Only root may mount directly, and the helper for everybody else is missing.
    #[error(
        "only root may mount by itself, and `fusermount3` is not installed: install the package fuse3, or run as root"
    )]
    NoHelper,
    /// Root without the capability, as in most containers.
    #[error(
        "the system does not permit mounting here (a container needs `--cap-add SYS_ADMIN --device /dev/fuse`, and perhaps `--security-opt apparmor=unconfined`): {source}"
    )]
    NotPermitted {
        /// What the system said.
        source: io::Error,
    },
    /// The mount point does not exist.
    #[error("{} does not exist; make the directory first", path.display())]
    NotFound {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is no directory.
    #[error("{} is not a directory; name a directory to mount at", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is a mount whose server is gone.
    #[error("at {} there is a mount whose server is gone; clear it with `forebay umount {}`", path.display(), path.display())]
    Dead {
        /// The mount point.
        path: PathBuf,
    },
    /// Something is mounted there already.
    #[error("{} is mounted already ({source_name}); unmount it first, or name another directory", path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// What the table of mounts calls it.
        source_name: String,
    },
    /// Somebody uses the mount.
    #[error("{} is busy{}; end what uses it and try again, or detach it lazily", path.display(), by(users))]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// Processes found to use it: some of them, or none, if they belong to others or to another namespace.
        users: Vec<MountUser>,
    },
    /// Nothing of ours is mounted there.
    #[error("nothing is mounted at {}", path.display())]
    NotMounted {
        /// The place.
        path: PathBuf,
    },
    /// The server of the mount lives, so it is not a dead one.
    #[error("the mount at {} is alive; unmount it instead", path.display())]
    Alive {
        /// The mount point.
        path: PathBuf,
    },
    /// It is detached, and yet in use elsewhere.
    #[error(
        "{} is unmounted here and still in use elsewhere (a bind mount or another mount namespace); it ends when that goes",
        path.display()
    )]
    InUseElsewhere {
        /// The mount point.
        path: PathBuf,
    },
    /// `fusermount3` refused.
    #[error("fusermount3 refuses {}: {message}", path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// What it said, in one line.
        message: String,
    },
    /// The system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    System {
        /// What was being done.
        what: &'static str,
        /// The place.
        path: PathBuf,
        /// What the system said.
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
    fn a_busy_mount_names_who_uses_it() {
        let user =
            MountUser { pid: 7, command: "bash".to_owned(), uses: "working directory".to_owned() };
        let error = MountError::Busy { path: "/mnt".into(), users: vec![user] };
        let text = error.to_string();
        assert!(text.contains("in use by bash (pid 7: working directory)"), "{text}");
        let none = MountError::Busy { path: "/mnt".into(), users: Vec::new() }.to_string();
        assert!(none.starts_with("/mnt is busy; end what uses it"), "{none}");
    }
}
