//! Pool locks: one lock file per pool guid, which keeps a pool from being opened twice under
//! different paths.
//!
//! A file and a loop device over it can be opened at the same time, because their device locks are
//! independent. So a process that opens the devices of a pool also locks a file in the run
//! directory, named after the guid of the pool: exclusively to write, shared to read. The lock is
//! released when the devices are closed or the process ends.
//!
//! # Invariants
//!
//! An empty lock file stays until a daemon ends and calls [`remove_stale`]. Only the holder of a
//! lock removes its file. A process that locks a removed file tries again.
//!
//! # Not here
//!
//! Pool locks work among the processes of one run directory. Without a run directory, only device
//! locks protect a pool.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_io::FileLock;
use forebay_pool::{LabelInfo, Opened, Pool, read_label};

use crate::control::client;
use crate::control::messages::PoolInfo;
use crate::control::run_dir;
use crate::error::{Failure, Result};
use crate::pools;

/// Cache size for reading labels, in bytes.
const LABEL_BYTES: u64 = 16 << 20;
/// Extension of lock files.
pub(crate) const LOCK_EXTENSION: &str = "lock";

/// Locks each pool that the labels of these devices name. The first device of each pool keeps the
/// lock. `joined` is the pool whose devices they become: its lock is held already, and its former
/// devices need none.
///
/// # Errors
/// If a pool is in use under another path; names the process.
pub(crate) fn lock_pools(
    opened: Vec<Opened>,
    paths: &[impl AsRef<Path>],
    shared: bool,
    joined: Option<&Pool>,
) -> Result<Vec<Opened>> {
    let Ok(directory) = run_dir::create() else { return Ok(opened) };
    let memory = pools::cache(LABEL_BYTES)?;
    // A device of the pool under another path stays refused.
    let is_former = |label: &LabelInfo| {
        let is_member =
            |pool: &Pool| pool.devices().iter().any(|one| one.guid == label.device_guid);
        joined.is_some_and(|pool| pool.guid() == label.pool_guid && !is_member(pool))
    };
    let mut claimed = Vec::new();
    let mut kept = Vec::new();
    for (device, path) in opened.into_iter().zip(paths) {
        // A bad label is reported later, by the user of the device.
        let label = read_label(&device, &memory).ok().flatten();
        let is_new = |label: &LabelInfo| !claimed.contains(&label.pool_guid) && !is_former(label);
        let Some(label) = label.filter(is_new) else {
            kept.push(device);
            continue;
        };
        let file = directory.join(format!("pool-{:016x}.{LOCK_EXTENSION}", label.pool_guid));
        let Some(lock) = lock(&file, shared, false)? else {
            return Err(in_use(path.as_ref(), &label.pool_name, label.pool_guid));
        };
        claimed.push(label.pool_guid);
        kept.push(device.keep(lock));
    }
    Ok(kept)
}

/// Locks a file of the run directory, and creates it if needed. Returns `None` if another process
/// holds the lock and `wait` is false.
///
/// # Errors
/// If the file cannot be opened or locked.
pub(crate) fn lock(path: &Path, shared: bool, wait: bool) -> Result<Option<FileLock>> {
    let failed = |error: std::io::Error| Failure::about(path, "lock it", &error);
    let kind = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    let how = if wait { kind } else { kind | libc::LOCK_NB };
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            // On NFS a shared lock needs reading, and an exclusive one writing.
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map_err(failed)?;
        // SAFETY: the descriptor is open, and flock takes no pointers.
        if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
            match file.metadata().map_err(failed)?.nlink() {
                // Another process removed the file meanwhile.
                0 => continue,
                _ => return Ok(Some(FileLock::of_locked(file.into()))),
            }
        }
        let error = std::io::Error::last_os_error();
        match error.kind() {
            std::io::ErrorKind::Interrupted => {}
            std::io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(failed(error)),
        }
    }
}

/// Removes empty lock files that no process holds. One with a note is about a process that has
/// ended.
pub(crate) fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(run_dir::path()) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|ending| ending == LOCK_EXTENSION)
            && is_empty(&path)
            && let Ok(Some(_lock)) = lock(&path, false, false)
        {
            // A file that stays does no harm.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn is_empty(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.len() == 0)
}

fn in_use(path: &Path, name: &str, guid: u64) -> Failure {
    let path = path.display();
    match client::holder_of_pool(guid) {
        Some((pid, pool)) => Failure::new(format!(
            "{path}: is pool {name}, which is in use: process {pid} has it {}; run `forebay export {name}` first",
            location(&pool)
        )),
        None => Failure::new(format!(
            "{path}: is pool {name}, which another command uses under another path; wait until that command ends"
        )),
    }
}

/// The devices and mount points of a pool, for messages.
pub(crate) fn location(pool: &PoolInfo) -> String {
    let list = |paths: Vec<String>| paths.join(", ");
    let devices = list(pool.devices.iter().map(|path| path.display().to_string()).collect());
    let mounts = list(pool.mounts.iter().map(|mount| mount.at.display().to_string()).collect());
    match mounts.is_empty() {
        true => format!("as {devices}"),
        false => format!("as {devices}, mounted at {mounts}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_child_that_inherited_a_lock_does_not_keep_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool.lock");
        let held = lock(&path, false, false).unwrap().unwrap();
        assert!(lock(&path, true, false).unwrap().is_none(), "it is exclusive");
        // A child between fork and exec has the same open file.
        let inherited = held.as_fd().try_clone_to_owned().unwrap();
        drop(held);
        assert!(lock(&path, false, false).unwrap().is_some(), "it outlives its owner");
        drop(inherited);
    }
}
