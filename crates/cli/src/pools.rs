//! Finds, opens and imports pools that a user names.
//!
//! A user names a pool by the path of its device, by the paths of all its devices joined by `:`, by
//! the URL of its object store (and `:` and the path of its log device), or by its name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_io::OpenOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, ErrorKind, EventLog, FollowedPool, ImportOptions, LabelInfo,
    MIN_DEVICE_BYTES, Opened, Pool, open_new_path, open_path, read_label,
};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Result};
use crate::object_stores::{self, Access, OpenStore};
use crate::output::{self, Progress};
use crate::{device_content, pool_locks, units};

/// A request to import a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportRequest {
    /// Devices of the pool; absolute paths in a request to another process.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) read_only: bool,
    pub(crate) force: bool,
    pub(crate) rewind: bool,
    #[serde(default)]
    pub(crate) txg: Option<u64>,
    pub(crate) discard_log: bool,
    pub(crate) tunables: Vec<(String, String)>,
    /// True to use the L2 devices of the pool.
    #[serde(default)]
    pub(crate) l2_devices: bool,
    /// Follow the transaction groups that another host commits: time between two looks.
    #[serde(default)]
    pub(crate) follow_ms: Option<u64>,
    /// The file or block device of the L2 that this host has of its own, if it follows the pool.
    #[serde(default)]
    pub(crate) follow_l2: Option<PathBuf>,
    /// How long an object store keeps what was freed, for readers; `None` for the default.
    #[serde(default)]
    pub(crate) retention_ms: Option<u64>,
}

impl ImportRequest {
    /// An import for one command, without L2 devices.
    pub(crate) fn plain(paths: Vec<PathBuf>, read_only: bool) -> Self {
        Self { paths, read_only, ..Self::default() }
    }
}

/// The paths in `spec`: one, or several joined by `:`, or the URL of an object store. `None` if it
/// is a name.
pub(crate) fn paths_of(spec: &str) -> Option<Vec<PathBuf>> {
    let whole = Path::new(spec);
    if object_stores::url(whole).is_some() {
        // Paths of log devices may follow.
        let (scheme, rest) = spec.split_once("://").unwrap_or_default();
        let (store, logs) = rest.split_once(":/").unwrap_or((rest, ""));
        let store = format!("{scheme}://{}", store.trim_end_matches('/'));
        let logs = logs.split(":/").filter(|path| !path.is_empty());
        let logs = logs.map(|path| PathBuf::from(format!("/{path}")));
        return Some(std::iter::once(PathBuf::from(store)).chain(logs).collect());
    }
    if whole.exists() {
        return Some(vec![whole.to_owned()]);
    }
    let parts: Vec<PathBuf> =
        spec.split(':').filter(|part| !part.is_empty()).map(PathBuf::from).collect();
    match parts.iter().any(|part| part.exists()) || spec.contains('/') || spec.contains(':') {
        true => Some(parts),
        false => None,
    }
}

/// Makes paths absolute, for a request to another process.
///
/// # Errors
/// If a path does not exist.
pub(crate) fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    paths.iter().map(|path| canonical(path)).collect()
}

/// Resolves a path to an absolute one without symbolic links. The URL of an object store stays.
///
/// # Errors
/// If it does not exist.
pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
    match object_stores::url(path) {
        Some(url) => Ok(url.into()),
        None => path.canonicalize().map_err(|error| missing_or(path, &error)),
    }
}

fn missing_or(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!(
            "{0}: no such file or device; check the path, or create a pool there: `forebay create {0}`",
            path.display()
        )),
        _ => Failure::about(path, "resolve the path", error),
    }
}

/// Creates a cache for a command that opens a pool itself.
///
/// # Errors
/// If the system is out of memory.
pub(crate) fn cache(bytes: u64) -> Result<Arc<BlockCache>> {
    Ok(BlockCache::new(BlockCacheOptions { bytes, ..BlockCacheOptions::default() })?)
}

/// Refuses a file on a Forebay mount, existing or not. The process that serves the mount would wait
/// for itself, and not even SIGKILL would end it.
///
/// # Errors
/// If the file is on a Forebay mount; names the mount.
pub(crate) fn refuse_served(path: &Path) -> Result<()> {
    if object_stores::url(path).is_some() {
        return Ok(());
    }
    let full = path.canonicalize().or_else(|_| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
        Ok::<_, std::io::Error>(folder.join(path.file_name().unwrap_or_default()))
    });
    // The caller reports a missing directory when it opens or creates the file.
    let Ok(full) = full else { return Ok(()) };
    let served = forebay_fuse::mount_containing(&full);
    let served =
        served.map_err(|error| Failure::about(path, "find the mount of the file", &error))?;
    let Some(mount) = served else { return Ok(()) };
    Err(Failure::new(format!(
        "{}: lies on {}, which Forebay serves itself; use a file on another file system, or a block device",
        path.display(),
        mount.display()
    )))
}

/// Opens existing devices, and locks them and the pools that they belong to.
///
/// # Errors
/// If a device cannot be opened or its pool is in use.
pub(crate) fn open_devices(paths: &[PathBuf], read_only: bool) -> Result<Vec<Opened>> {
    if let Some((store, logs)) = open_store(paths, Access::of(read_only, false))? {
        return Ok(std::iter::once(store.opened).chain(logs).collect());
    }
    // A read-only open cannot wait for a process that waits for it.
    if !read_only {
        paths.iter().try_for_each(|path| refuse_served(path))?;
    }
    pool_locks::lock_pools(open_without_pool_lock(paths, read_only)?, paths, read_only, None)
}

/// As [`open_devices`], for devices that get new content; those of the pool `joined`, if any.
///
/// # Errors
/// As [`open_devices`].
pub(crate) fn open_new_devices(paths: &[PathBuf], joined: Option<&Pool>) -> Result<Vec<Opened>> {
    paths.iter().try_for_each(|path| refuse_served(path))?;
    let options = OpenOptions::default();
    let open = |path: &PathBuf| open_device(path, &options, open_new_path);
    pool_locks::lock_pools(paths.iter().map(open).collect::<Result<_>>()?, paths, false, joined)
}

/// As [`open_new_devices`], for one device.
///
/// # Errors
/// As [`open_new_devices`].
pub(crate) fn open_new_device(path: &Path, joined: &Pool) -> Result<Opened> {
    let opened = open_new_devices(&[path.to_owned()], Some(joined))?.pop();
    opened.ok_or_else(|| Failure::new(format!("{}: cannot be opened", path.display())))
}

/// Opens the object store of a pool, and its log devices; `None` if the pool is on other devices.
fn open_store(paths: &[PathBuf], access: Access) -> Result<Option<(OpenStore, Vec<Opened>)>> {
    open_store_with(paths, access, None)
}

fn open_store_with(
    paths: &[PathBuf],
    access: Access,
    retention: Option<Duration>,
) -> Result<Option<(OpenStore, Vec<Opened>)>> {
    let (stores, logs): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| object_stores::url(path).is_some());
    let Some(url) = stores.first().and_then(|path| object_stores::url(path)) else {
        return Ok(None);
    };
    if stores.len() > 1 {
        let text = format!("{url}: a pool is on one object store; give one");
        return Err(Failure::new(text));
    }
    let read_only = access == Access::Read;
    if !read_only {
        logs.iter().try_for_each(|path| refuse_served(path))?;
    }
    let opened = open_without_pool_lock(&logs, read_only)?;
    Ok(Some((object_stores::open(url, access, retention)?, opened)))
}

fn open_without_pool_lock(paths: &[PathBuf], read_only: bool) -> Result<Vec<Opened>> {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    paths.iter().map(|path| open_device(path, &options, open_path)).collect()
}

/// Refuses a device with content other than a pool, unless `force` is set. The library refuses a
/// device that holds a pool.
///
/// # Errors
/// Names the content.
pub(crate) fn refuse_content(device: &Opened, path: &Path, force: bool) -> Result<()> {
    if force || read_label(device, &*cache(16 << 20)?)?.is_some() {
        return Ok(());
    }
    device_content::refuse(path)
}

fn open_device(
    path: &Path,
    options: &OpenOptions,
    open: fn(&Path, &OpenOptions) -> forebay_pool::Result<Opened>,
) -> Result<Opened> {
    // A plain open first: the error of the system is the clearest. A block device is opened for
    // reading: closing it after an open for writing makes udev probe, and lock, it.
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let write = !options.read_only && is_file;
    let tried = std::fs::OpenOptions::new().read(true).write(write).open(path);
    if let Err(error) = tried {
        let plain = match error.kind() {
            std::io::ErrorKind::NotFound => missing_or(path, &error),
            std::io::ErrorKind::IsADirectory => {
                let text =
                    format!("{}: is a directory; use a file or a block device", path.display());
                Failure::new(text)
            }
            _ => Failure::about(path, "open the device", &error),
        };
        return Err(plain);
    }
    // The library rounds down to whole sectors; the message has the size of the file.
    if let Some(found) =
        path.metadata().ok().filter(|found| found.is_file() && found.len() < MIN_DEVICE_BYTES)
    {
        return Err(Failure::new(format!(
            "{}: has {} bytes, but a device needs at least {}; use a larger one, or grow the file with `truncate --size`",
            path.display(),
            found.len(),
            units::whole(MIN_DEVICE_BYTES)
        )));
    }
    open(path, options).map_err(|error| not_opened(path, error))
}

/// Converts an error of opening a device. Names the pool that uses it, if a process of this user
/// has it.
pub(crate) fn not_opened(path: &Path, error: forebay_pool::Error) -> Failure {
    match error.kind() {
        ErrorKind::InUse => in_use(path).unwrap_or_else(|| error.into()),
        _ => error.into(),
    }
}

/// The error that names the process using a device, if it is a Forebay process of this user.
fn in_use(path: &Path) -> Option<Failure> {
    let path = path.canonicalize().ok()?;
    let (pid, pool) = crate::control::client::holder_of(&path)?;
    let mounts: Vec<String> =
        pool.mounts.iter().map(|mount| mount.at.display().to_string()).collect();
    let mounts = match mounts.is_empty() {
        true => String::new(),
        false => format!(", mounted at {}", mounts.join(", ")),
    };
    Some(Failure::new(format!(
        "{}: is in use: process {pid} has pool {}{mounts}; run `forebay export {}` first",
        path.display(),
        pool.name,
        pool.name
    )))
}

/// Imports a pool.
///
/// # Errors
/// If the pool cannot be imported; names the option that helps, if there is one.
pub(crate) fn import(request: &ImportRequest, cache: &Arc<BlockCache>) -> Result<Pool> {
    import_with(request, cache, None)
}

/// As [`import`], with the log of the events.
///
/// # Errors
/// As [`import`].
pub(crate) fn import_with(
    request: &ImportRequest,
    cache: &Arc<BlockCache>,
    events: Option<&Arc<EventLog>>,
) -> Result<Pool> {
    let access = Access::of(request.read_only, request.force);
    let retention = request.retention_ms.map(Duration::from_millis);
    let (devices, importing) = match open_store_with(&request.paths, access, retention)? {
        Some((store, logs)) => {
            let (device, importing) = store.split();
            let devices = std::iter::once(device).chain(logs).collect();
            (devices, Some(importing).filter(|_| !request.read_only))
        }
        None => (open_devices(&request.paths, request.read_only)?, None),
    };
    let options = ImportOptions {
        force: request.force,
        read_only: request.read_only,
        discard_log: request.discard_log,
        rewind: request.rewind,
        txg: request.txg,
        tunables: request.tunables.clone(),
        find_l2_devices: request.l2_devices,
        events: events.cloned(),
        ..ImportOptions::new(Arc::clone(cache))
    };
    let pool = Pool::import(devices, &options).map_err(|error| {
        let text = error.to_string();
        let hint = match error.kind() {
            ErrorKind::InUse if text.contains("force the import") && !request.force => {
                "; use --force to import it anyway"
            }
            ErrorKind::Corrupt if text.contains("discard_log") && !request.discard_log => {
                "; use --discard-log to import it and lose the changes that only the intent log holds"
            }
            ErrorKind::Corrupt if text.contains("`rewind`") => "; --read-only reads what is left",
            ErrorKind::Corrupt if !request.read_only => {
                "; use --read-only to read what is left, or --txg to choose a transaction group that \
                 `forebay inspect DEVICE uberblocks` lists"
            }
            ErrorKind::NotAPool if text.contains("discard_log") => {
                "; --discard-log imports it and loses these changes"
            }
            ErrorKind::NotAPool if text.contains("missing") => {
                "; give all of its devices, joined by `:`, or use --read-only to read what the others have"
            }
            _ => "",
        };
        let mut failure = Failure::from(error);
        failure.message.push_str(hint);
        failure
    })?;
    if let Some(importing) = importing {
        importing.imported(&pool);
    }
    Ok(pool)
}

/// Imports a transaction group of a pool that is followed.
///
/// # Errors
/// If it cannot be imported.
pub(crate) fn import_view(
    request: &ImportRequest,
    view: Opened,
    shared: &FollowedPool,
    cache: &Arc<BlockCache>,
    events: &Arc<EventLog>,
) -> Result<Pool> {
    let options = ImportOptions {
        read_only: true,
        events: Some(Arc::clone(events)),
        tunables: request.tunables.clone(),
        find_l2_devices: false,
        followed: Some(shared.clone()),
        ..ImportOptions::new(Arc::clone(cache))
    };
    Ok(Pool::import(vec![view], &options)?)
}

/// The label of each device in the order of the paths; `None` for a device without a label.
///
/// # Errors
/// If a device cannot be read.
pub(crate) fn labels(paths: &[PathBuf]) -> Result<Vec<Option<LabelInfo>>> {
    let memory = cache(16 << 20)?;
    let opened = match open_store(paths, Access::Read)? {
        Some((store, logs)) => std::iter::once(store.opened).chain(logs).collect(),
        None => open_without_pool_lock(paths, true)?,
    };
    opened.iter().map(|one| Ok(read_label(one, &memory)?)).collect()
}

/// Exports a pool after a job on it. A user who has stopped the job does not wait for an object
/// store that is away, either.
///
/// # Errors
/// As [`Pool::close_with_devices`].
pub(crate) fn close_after(pool: &Pool, progress: &Progress) -> Result<()> {
    let stop = progress.stop_flag();
    Ok(pool.close_with_devices(Some(Arc::new(move || output::is_raised(&stop))))?)
}

/// The default name of a pool: the file name of its first device without the extension.
pub(crate) fn name_from(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "forebay".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a:b");
        std::fs::write(&file, b"").unwrap();
        let text = file.to_str().unwrap();
        assert_eq!(paths_of(text), Some(vec![file.clone()]));
        assert_eq!(paths_of("tank"), None);
        assert_eq!(paths_of("./tank"), Some(vec![PathBuf::from("./tank")]));
        let url = PathBuf::from("s3://bucket/tank");
        assert_eq!(paths_of("s3://bucket/tank/"), Some(vec![url.clone()]));
        let with_log = vec![url.clone(), PathBuf::from("/dev/sdb"), PathBuf::from("/x/y")];
        assert_eq!(paths_of("s3://bucket/tank:/dev/sdb:/x/y"), Some(with_log));
        assert_eq!(absolute(std::slice::from_ref(&url)).unwrap(), [url]);
        assert_eq!(paths_of("/a:/b"), Some(vec![PathBuf::from("/a"), PathBuf::from("/b")]));
    }

    #[test]
    fn a_pool_is_named_after_its_file() {
        assert_eq!(name_from(Path::new("/x/tank.img")), "tank");
        assert_eq!(name_from(Path::new("/dev/sdb")), "sdb");
        assert_eq!(name_from(Path::new("s3://bucket/tank")), "tank");
        assert_eq!(name_from(Path::new("..")), "forebay");
    }
}
