//! Which pools are in use, by their guid: the same pool may be there under several names, such as a file and a loop device
//! over it, and the locks of these know nothing of each other.
//!
//! Whoever opens a pool's devices holds a lock on a file in the run directory that is named after the pool's guid: alone
//! to write, with others to read. The lock is the kernel's: it ends with the devices that it was given to, or with the
//! process. The empty file stays until a process with pools ends and clears them ([`remove_stale`]): only who has the lock
//! removes it, and who gets the lock of a removed file tries anew.
//!
//! It holds among the processes of one run directory. Where there can be none, the locks of devices are all there is.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_pool::{Opened, read_label};

use crate::control::client;
use crate::control::messages::PoolInfo;
use crate::control::run_dir;
use crate::error::{Failure, Result};
use crate::pools;

/// Memory to read labels with.
const LABEL_BYTES: u64 = 16 << 20;
/// Files of locks end so.
pub(crate) const LOCK_ENDING: &str = "lock";

/// Takes a lock on each pool that these devices say they belong to, and lets the first device of each keep it.
///
/// # Errors
/// If a pool is in use under another name; who has it.
pub(crate) fn lock_pools(
    opened: Vec<Opened>,
    paths: &[impl AsRef<Path>],
    shared: bool,
) -> Result<Vec<Opened>> {
    let Ok(directory) = run_dir::made() else { return Ok(opened) };
    let memory = pools::cache(LABEL_BYTES)?;
    let mut claimed = Vec::new();
    let mut kept = Vec::new();
    for (device, path) in opened.into_iter().zip(paths) {
        // Whoever uses the device says what is wrong with its label.
        let label = read_label(&device, &memory).ok().flatten();
        let Some(label) = label.filter(|label| !claimed.contains(&label.pool_guid)) else {
            kept.push(device);
            continue;
        };
        let file = directory.join(format!("pool-{:016x}.{LOCK_ENDING}", label.pool_guid));
        let Some(lock) = lock(&file, shared, false)? else {
            return Err(in_use(path.as_ref(), &label.pool_name, label.pool_guid));
        };
        claimed.push(label.pool_guid);
        kept.push(device.keep(lock));
    }
    Ok(kept)
}

/// A lock on a file of the run directory, which is made if it is not there. Nothing if somebody else has it, unless
/// this is to `wait`.
///
/// # Errors
/// If the system refuses.
pub(crate) fn lock(path: &Path, shared: bool, wait: bool) -> Result<Option<OwnedFd>> {
    let failed = |error: std::io::Error| Failure::about(path, "lock it", &error);
    let kind = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    let how = if wait { kind } else { kind | libc::LOCK_NB };
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map_err(failed)?;
        // SAFETY: the descriptor is open, and it takes no pointers.
        if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
            match file.metadata().map_err(failed)?.nlink() {
                // It was removed meanwhile.
                0 => continue,
                _ => return Ok(Some(file.into())),
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

/// Removes the files of locks that nobody has.
pub(crate) fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(run_dir::path()) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|ending| ending == LOCK_ENDING)
            && let Ok(Some(_lock)) = lock(&path, false, false)
        {
            // What stays does no harm.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn in_use(path: &Path, name: &str, guid: u64) -> Failure {
    let path = path.display();
    match client::holder_of_pool(guid) {
        Some((pid, pool)) => Failure::new(format!(
            "{path}: is pool {name}, which is in use: process {pid} has it {}; `forebay export {name}` first",
            location(&pool)
        )),
        None => Failure::new(format!(
            "{path}: is pool {name}, which another command works on under another name; wait for its end"
        )),
    }
}

/// By which devices a process has a pool, and where it is mounted.
pub(crate) fn location(pool: &PoolInfo) -> String {
    let list = |paths: Vec<String>| paths.join(", ");
    let devices = list(pool.devices.iter().map(|path| path.display().to_string()).collect());
    let mounts = list(pool.mounts.iter().map(|mount| mount.at.display().to_string()).collect());
    match mounts.is_empty() {
        true => format!("as {devices}"),
        false => format!("as {devices}, mounted at {mounts}"),
    }
}
