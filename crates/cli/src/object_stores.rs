//! Pools on object stores: a URL in place of the path of a device.
//!
//! A store has its address as its path, `s3://bucket/prefix`. Endpoint and credentials come from
//! the environment of the process that opens it, so those of a daemon are what it was started with.
//!
//! A second process with the same owner's name would take the store over from the first one. So a
//! process locks a file in the run directory that is named after the URL: exclusively to write,
//! shared to read. Other hosts, and processes with another run directory, have other names, and are
//! kept apart by the store itself.

mod sessions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use forebay_io::{Device, FileLock};
use forebay_object::{Follower, ObjectDevice, Options};
use forebay_pool::{HostId, LiveRanges, Opened, Pool};

use crate::control::{client, run_dir};
use crate::error::{Failure, Result};
use crate::pool_locks::{self, LOCK_EXTENSION};
use sessions::SessionNote;

/// The URL that a path is; `None` if it is the path of a file.
pub(crate) fn url(path: &Path) -> Option<&str> {
    let url = path.to_str().filter(|path| path.contains("://"))?;
    // One store has one lock and one name.
    Some(url.trim_end_matches('/'))
}

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Create,
    Read,
    /// Takes the store over. With force, also from a host that did not export the pool.
    Write {
        force: bool,
    },
}

impl Access {
    /// That of an import.
    pub(crate) fn of(read_only: bool, force: bool) -> Self {
        if read_only { Self::Read } else { Self::Write { force } }
    }
}

/// An open store, and the device of its pool.
pub(crate) struct OpenStore {
    pub(crate) opened: Opened,
    device: Arc<ObjectDevice>,
    /// To be written after the import.
    note: Option<SessionNote>,
}

/// Opens the store of a URL, and locks it for this host. `retention` is the time that it keeps what
/// was freed, for readers; `None` for the default.
///
/// # Errors
/// If the URL is none of a store, the store does not answer or suit, or a pool is in use.
pub(crate) fn open(url: &str, access: Access, retention: Option<Duration>) -> Result<OpenStore> {
    let lock = lock(url, access == Access::Read)?;
    let store = forebay_object::connect(url).map_err(|error| failure(&error))?;
    let mut options = options(matches!(access, Access::Write { force: true }), lock.is_some());
    options.grace = retention.unwrap_or(options.grace);
    let device = match access {
        Access::Create => ObjectDevice::create(store, url, options),
        Access::Read => ObjectDevice::open_read_only(store, url, options),
        Access::Write { .. } => ObjectDevice::open(store, url, options),
    };
    let device = device.map_err(|error| failure(&error))?;
    let mut opened = Opened::from(Arc::clone(&device) as Arc<dyn Device>).close_with_pool();
    let mut note = None;
    if let Some(lock) = lock {
        let sessions = device.sessions();
        let noted = sessions.and_then(|sessions| SessionNote::of_this_boot(&lock, sessions));
        opened = opened.keep(lock);
        if let Some((own, owner_has_ended)) = noted {
            if owner_has_ended {
                own.write();
                opened = opened.after_ended_owner();
            }
            note = Some(own);
        }
    }
    Ok(OpenStore { opened, device, note })
}

/// Begins to follow the store of a URL. Returns the view of its newest state, too.
///
/// # Errors
/// If the URL is none of a store, or the store does not answer.
pub(crate) fn follow(url: &str) -> Result<(Follower, Arc<ObjectDevice>)> {
    let store = forebay_object::connect(url).map_err(|error| failure(&error))?;
    Follower::open(store, url, options(false, false)).map_err(|error| failure(&error))
}

/// The device of a pool on a view of a store that is followed.
pub(crate) fn view(view: &Arc<ObjectDevice>) -> Opened {
    Opened::from(Arc::clone(view) as Arc<dyn Device>).close_with_pool()
}

/// The owner is no wider than the lock: processes that the lock does not keep apart are different
/// owners.
fn options(force: bool, has_lock: bool) -> Options {
    let (host, user) = (HostId::of_this_host(), run_dir::uid());
    let owner = match has_lock {
        true => {
            // Short, because a name that is cut off equals no other.
            let directory = hash(&run_dir::path().to_string_lossy()) as u32;
            format!("{host}, user {user}, directory {directory:08x}")
        }
        false => {
            let since = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
            format!("{host}, user {user}, process {} of {since:x}", std::process::id())
        }
    };
    Options { owner, force, ..Options::default() }
}

/// Locks a store among the processes of this host; `None` without a run directory.
fn lock(url: &str, shared: bool) -> Result<Option<FileLock>> {
    let Ok(file) = lock_path(url) else { return Ok(None) };
    let lock = pool_locks::lock(&file, shared, false)?;
    lock.map(Some).ok_or_else(|| in_use(url))
}

/// The file that is locked for a store.
fn lock_path(url: &str) -> Result<PathBuf> {
    Ok(run_dir::create()?.join(format!("store-{:016x}.{LOCK_EXTENSION}", hash(url))))
}

impl OpenStore {
    /// Splits it: the pool takes the device.
    pub(crate) fn split(self) -> (Opened, Importing) {
        (self.opened, Importing { device: self.device, note: self.note })
    }
}

/// A store whose pool is being imported.
pub(crate) struct Importing {
    device: Arc<ObjectDevice>,
    note: Option<SessionNote>,
}

impl Importing {
    /// Notes the session, because the import has waited for the owners before. And merges objects
    /// that are mostly dead, until the pool is exported: it says what is live.
    pub(crate) fn imported(self, pool: &Pool) {
        self.note.iter().for_each(SessionNote::write);
        self.device.set_live_ranges(Arc::new(Live(pool.live_ranges())));
    }
}

struct Live(LiveRanges);

impl forebay_object::LiveRanges for Live {
    fn live(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, String> {
        self.0.within(start, end).map_err(|error| error.to_string())
    }
}

/// Opens the store of a URL read-only as it is now, also while another host uses it.
///
/// # Errors
/// As [`open`], but that the pool may be in use.
pub(crate) fn open_to_inspect(url: &str) -> Result<Arc<dyn Device>> {
    let store = forebay_object::connect(url).map_err(|error| failure(&error))?;
    let device = ObjectDevice::open_read_only(store, url, options(false, false));
    Ok(device.map_err(|error| failure(&error))?)
}

/// Whether a store can be opened. What is left of a pool that was destroyed in part has no owner
/// record, or one that names objects which are gone.
///
/// # Errors
/// As [`open`], but for missing objects.
pub(crate) fn can_be_opened(url: &str) -> Result<bool> {
    let lock = lock(url, true)?;
    let store = forebay_object::connect(url).map_err(|error| failure(&error))?;
    match ObjectDevice::open_read_only(store, url, options(false, lock.is_some())) {
        Ok(device) => {
            device.close();
            Ok(true)
        }
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(failure(&error)),
    }
}

/// Removes all objects of the pool in a store. Returns their number.
///
/// # Errors
/// As [`open`].
pub(crate) fn destroy(url: &str, force: bool) -> Result<u64> {
    let locked = lock(url, false)?;
    let store = forebay_object::connect(url).map_err(|error| failure(&error))?;
    forebay_object::destroy(store, url, options(force, locked.is_some()))
        .map_err(|error| failure(&error))
}

fn failure(error: &forebay_object::Error) -> Failure {
    let text = crate::error::one_line(&error.to_string());
    Failure::new(text.replace("or use force if", "or use --force if"))
}

fn in_use(url: &str) -> Failure {
    match client::holder_of(Path::new(url)) {
        Some((pid, pool)) => Failure::new(format!(
            "{url}: is in use: process {pid} has pool {}; run `forebay export {0}` first",
            pool.name
        )),
        None => {
            Failure::new(format!("{url}: another command uses it; wait until that command ends"))
        }
    }
}

/// FNV-1a, which is the same in all versions.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_one_url() {
        assert_eq!(url(Path::new("s3://bucket/tank/")), Some("s3://bucket/tank"));
        assert_eq!(url(Path::new("/dev/sda")), None);
    }

    #[test]
    fn a_process_without_a_lock_is_an_owner_of_its_own() {
        let owner = |has_lock| options(false, has_lock).owner;
        assert_eq!(owner(true), owner(true), "so that it opens the store after a crash");
        assert_ne!(owner(false), owner(true));
        assert_ne!(owner(false), owner(false));
    }
}
