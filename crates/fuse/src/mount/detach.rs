//! Detaching: unmounting, finding the processes that use a mount, and clearing dead mounts.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_base::sync::{Arc, Condvar, Mutex, thread};
use nix::errno::Errno;
use nix::mount::MntFlags;

use super::{attach, mountinfo};
use crate::error::{MountError, MountUser};

/// Largest number of processes named for a busy mount.
const USERS_MAX: usize = 5;
/// How long a live server may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Full path of the mount point.
    pub path: PathBuf,
    /// Its source in the mount table: `pool/dataset` for mounts of this crate.
    pub source: String,
    /// Whether it is a mount of this crate.
    pub ours: bool,
    /// Whether its server is gone. Then every access fails until it is unmounted.
    pub dead: bool,
}

/// Returns the mount at `at`, if there is one.
///
/// # Errors
///
/// The mount table or the path cannot be read.
pub fn mount_info(at: &Path) -> io::Result<Option<MountInfo>> {
    let full = full_path(at)?;
    let Some(entry) = mountinfo::at(&full)? else { return Ok(None) };
    let (dead, ours) = (is_dead(&full), entry.fs_type == attach::FS_TYPE);
    Ok(Some(MountInfo { path: full, source: entry.source, ours, dead }))
}

/// Returns the mount point of this crate's mount that contains `path`, if there is one. A pool must
/// not have its devices on its own mount. `path` is absolute and without links. Does not access the
/// mount.
///
/// # Errors
///
/// The mount table cannot be read.
pub fn mount_containing(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut entries = mountinfo::entries()?;
    let found = mountinfo::containing(&entries, path).map(|at| entries.swap_remove(at));
    Ok(found.filter(|entry| entry.fs_type == attach::FS_TYPE).map(|entry| entry.path))
}

/// Returns the id of the mount that a system call on `path` reaches: the topmost one there, or one
/// over a directory above it. `path` is absolute and without links. Does not access the mount.
///
/// # Errors
///
/// The path or `/proc` cannot be read.
pub fn mount_id_at(path: &Path) -> io::Result<u64> {
    Ok(mountinfo::reached_at(path)?.id)
}

/// Unmounts a mount whose server was killed.
///
/// # Errors
///
/// Nothing is mounted at `at`, the mount is alive ([`MountError::Alive`]), or a system call fails.
pub fn unmount_dead(at: &Path) -> Result<(), MountError> {
    let system = |source| MountError::System { what: "examine", path: at.to_path_buf(), source };
    match mount_info(at).map_err(system)? {
        Some(mounted) if mounted.dead => detach(&mounted.path, true),
        Some(_) => Err(MountError::Alive { path: at.to_path_buf() }),
        None => Err(MountError::NotMounted { path: at.to_path_buf() }),
    }
}

/// Whether the server of the mount at `full` is gone.
///
/// The kernel may answer from cached attributes, but sends each `statfs` to the server. The call
/// runs on a separate thread, because a live server may hang. Then that thread is abandoned.
pub(super) fn is_dead(full: &Path) -> bool {
    let probe = Arc::new((Mutex::named("mount-probe", None), Condvar::new()));
    let (path, reply) = (full.to_path_buf(), probe.clone());
    let run_probe = move || {
        let dead =
            matches!(nix::sys::statfs::statfs(&path), Err(Errno::ENOTCONN | Errno::ECONNABORTED));
        *reply.0.lock() = Some(dead);
        reply.1.notify_all();
    };
    if thread::spawn_named("mount-probe", run_probe).is_err() {
        return false;
    }
    let mut dead = probe.0.lock();
    while dead.is_none() && !probe.1.wait_timeout(&mut dead, PROBE_TIMEOUT) {}
    dead.unwrap_or(false)
}

/// The full path of a directory that may be a dead mount.
fn full_path(at: &Path) -> io::Result<PathBuf> {
    match at.canonicalize() {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let absolute = std::path::absolute(at)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Ok(absolute),
            }
        }
        other => other,
    }
}

/// Unmounts `full`. A lazy unmount detaches it at once and ends when its last user is gone.
pub(super) fn detach(full: &Path, lazy: bool) -> Result<(), MountError> {
    if attach::may_mount() {
        let flags = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() };
        match nix::mount::umount2(full, flags | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::EBUSY) => {
                return Err(MountError::Busy {
                    path: full.to_path_buf(),
                    users: other_users(full),
                });
            }
            Err(Errno::EINVAL) => return Err(MountError::NotMounted { path: full.to_path_buf() }),
            Err(Errno::EPERM) if attach::helper().is_some() => {}
            Err(error) => {
                return Err(MountError::System {
                    what: "unmount",
                    path: full.to_path_buf(),
                    source: error.into(),
                });
            }
        }
    }
    unmount_by_helper(full, lazy)
}

fn unmount_by_helper(full: &Path, lazy: bool) -> Result<(), MountError> {
    let helper = attach::helper().ok_or(MountError::NoHelper)?;
    let mut command = Command::new(helper);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(full).stdin(Stdio::null()).output();
    let output = output.map_err(|source| MountError::System {
        what: "start fusermount3 to unmount",
        path: full.to_path_buf(),
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let path = full.to_path_buf();
    if stderr.contains("busy") {
        return Err(MountError::Busy { path, users: other_users(full) });
    }
    if stderr.contains("not found in") || stderr.contains("Invalid argument") {
        return Err(MountError::NotMounted { path });
    }
    let message = stderr.lines().next().unwrap_or("it printed no error").to_owned();
    Err(MountError::Helper { path, message })
}

/// As [`users`], without this process and commands of this program whose working directory is
/// there: those end by themselves.
fn other_users(full: &Path) -> Vec<MountUser> {
    let program = std::fs::read_link("/proc/self/exe").ok();
    let has_cwd_there = |process: &Path| {
        program.is_some()
            && std::fs::read_link(process.join("exe")).ok() == program
            && std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(full))
    };
    let is_ours = |user: &MountUser| {
        user.pid == std::process::id() || has_cwd_there(Path::new(&format!("/proc/{}", user.pid)))
    };
    let mut users = users(full);
    users.retain(|user| !is_ours(user));
    users
}

/// Some of the processes that use `full`, as far as this user may see.
fn users(full: &Path) -> Vec<MountUser> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut users = Vec::new();
    for process in processes.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        if let Some(uses) = describe_use(&process.path(), full) {
            let command = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            users.push(MountUser { pid, command: command.trim().to_owned(), uses });
        }
        if users.len() == USERS_MAX {
            break;
        }
    }
    users
}

fn describe_use(process: &Path, full: &Path) -> Option<String> {
    let under =
        |link: &Path| std::fs::read_link(link).ok().filter(|target| target.starts_with(full));
    for (link, what) in [("cwd", "working directory"), ("root", "root"), ("exe", "program")] {
        if under(&process.join(link)).is_some() {
            return Some(what.to_owned());
        }
    }
    let open = std::fs::read_dir(process.join("fd")).ok()?;
    let mapped = std::fs::read_dir(process.join("map_files")).into_iter().flatten();
    let mut links = open.chain(mapped).flatten();
    links.find_map(|link| under(&link.path())).map(|path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_no_mount_and_proc_is() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(mount_info(directory.path()).expect("the table"), None);
        let proc = mount_info(Path::new("/proc")).expect("the table").expect("proc");
        assert!(!proc.ours && !proc.dead);
        assert!(matches!(unmount_dead(directory.path()), Err(MountError::NotMounted { .. })));
        assert!(matches!(unmount_dead(Path::new("/proc")), Err(MountError::Alive { .. })));
    }

    #[test]
    fn users_of_a_directory_are_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let full = directory.path().canonicalize().expect("its path");
        assert_eq!(users(&full), []);
        let _open = std::fs::File::create(full.join("file")).expect("a file");
        let users = users(&full);
        assert_eq!(other_users(&full), [], "this process is not named");
        assert_eq!(users.len(), 1);
        assert_eq!(
            (users[0].pid, users[0].uses.as_str()),
            (std::process::id(), full.join("file").to_str().expect("text"))
        );
    }
}
