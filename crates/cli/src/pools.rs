//! From what a user calls a pool to the pool: names, paths, opening and importing.
//!
//! A user names a pool by the path of its device, by the paths of all its devices joined by `:`, or, if a running
//! process has it, by its name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_io::OpenOptions;
use forebay_pool::{
    BlockCache, BlockCacheOptions, ErrorKind, ImportOptions, LabelInfo, MIN_DEVICE_BYTES, Opened,
    Pool, open_path, read_label,
};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Result};
use crate::{device_content, pool_locks, units};

/// How to import a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportRequest {
    /// Its devices; absolute paths if they travel to another process.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) read_only: bool,
    pub(crate) force: bool,
    pub(crate) rewind: bool,
    pub(crate) discard_log: bool,
    pub(crate) tunables: Vec<(String, String)>,
    /// Whether to use its L2 devices.
    #[serde(default)]
    pub(crate) l2_devices: bool,
}

impl ImportRequest {
    /// To look at a pool, or to work on it for a moment, as it is: without its L2 devices.
    pub(crate) fn plain(paths: Vec<PathBuf>, read_only: bool) -> Self {
        Self { paths, read_only, ..Self::default() }
    }
}

/// The paths that `spec` names: one, or several joined by `:`. Nothing if it looks like a name.
pub(crate) fn paths_of(spec: &str) -> Option<Vec<PathBuf>> {
    let whole = Path::new(spec);
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

/// The paths that `spec` names, as another process would have to know them.
///
/// # Errors
/// If one is not there.
pub(crate) fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    paths.iter().map(|path| canonical(path)).collect()
}

/// The absolute path without links.
///
/// # Errors
/// If it is not there.
pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| missing_or(path, &error))
}

fn missing_or(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!(
            "{0}: no such file or device; check the path, or make a pool there: `forebay create {0}`",
            path.display()
        )),
        _ => Failure::about(path, "find it", error),
    }
}

/// A cache of its own for a command that opens a pool itself.
///
/// # Errors
/// If the system gives no memory.
pub(crate) fn cache(bytes: u64) -> Result<Arc<BlockCache>> {
    Ok(BlockCache::new(BlockCacheOptions { bytes, ..BlockCacheOptions::default() })?)
}

/// Refuses a file on a mount of ours, whether it is there or is to be made: whoever serves it would wait for itself, and not
/// even a kill would end that.
///
/// # Errors
/// Where it lies.
pub(crate) fn refuse_served(path: &Path) -> Result<()> {
    let full = path.canonicalize().or_else(|_| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
        Ok::<_, std::io::Error>(folder.join(path.file_name().unwrap_or_default()))
    });
    // Whoever opens it or makes it says why there is no such place.
    let Ok(full) = full else { return Ok(()) };
    let served = forebay_fuse::mount_containing(&full);
    let served = served.map_err(|error| Failure::about(path, "look at the mount of", &error))?;
    let Some(mount) = served else { return Ok(()) };
    Err(Failure::new(format!(
        "{}: lies on {}, which Forebay serves itself; name a file on another file system, or a block device",
        path.display(),
        mount.display()
    )))
}

/// Opens devices that are there, locked, and so are the pools that they belong to.
///
/// # Errors
/// Why one cannot be opened, in the words of the command line.
pub(crate) fn open_devices(paths: &[PathBuf], read_only: bool) -> Result<Vec<Opened>> {
    // Who destroys one can remove the file, and who only looks waits for nobody that waits for it.
    if !read_only {
        paths.iter().try_for_each(|path| refuse_served(path))?;
    }
    pool_locks::lock_pools(open_without_pool_lock(paths, read_only)?, paths, read_only)
}

fn open_without_pool_lock(paths: &[PathBuf], read_only: bool) -> Result<Vec<Opened>> {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    paths.iter().map(|path| open_device(path, &options)).collect()
}

/// Refuses a device that holds something else than a pool, unless it is to be overwritten. Whoever takes the device refuses
/// one that holds a pool.
///
/// # Errors
/// What it holds.
pub(crate) fn refuse_content(device: &Opened, path: &Path, force: bool) -> Result<()> {
    if force || read_label(device, &*cache(16 << 20)?)?.is_some() {
        return Ok(());
    }
    device_content::refuse(path)
}

fn open_device(path: &Path, options: &OpenOptions) -> Result<Opened> {
    // The system's own words first: they are the plainest.
    let tried = std::fs::OpenOptions::new().read(true).write(!options.read_only).open(path);
    if let Err(error) = tried {
        let plain = match error.kind() {
            std::io::ErrorKind::NotFound => missing_or(path, &error),
            std::io::ErrorKind::IsADirectory => {
                let text =
                    format!("{}: is a directory; give a file or a block device", path.display());
                Failure::new(text)
            }
            _ => Failure::about(path, "open it for reading and writing", &error),
        };
        return Err(plain);
    }
    // The rest of a sector does not count for a device, but for who looks at the file.
    if let Some(found) =
        path.metadata().ok().filter(|found| found.is_file() && found.len() < MIN_DEVICE_BYTES)
    {
        return Err(Failure::new(format!(
            "{}: has {} bytes, at least {} are needed; give a larger one, or make it larger: `truncate --size`",
            path.display(),
            found.len(),
            units::whole(MIN_DEVICE_BYTES)
        )));
    }
    open_path(path, options).map_err(|error| match error.kind() {
        ErrorKind::InUse => in_use(path).unwrap_or_else(|| error.into()),
        _ => error.into(),
    })
}

/// Who has the device, if one of ours does.
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
        "{}: is in use: process {pid} has pool {}{mounts}; `forebay export {}` first",
        path.display(),
        pool.name,
        pool.name
    )))
}

/// Imports a pool.
///
/// # Errors
/// Why not, with the option that would help if there is one.
pub(crate) fn import(request: &ImportRequest, cache: &Arc<BlockCache>) -> Result<Pool> {
    let devices = open_devices(&request.paths, request.read_only)?;
    let options = ImportOptions {
        force: request.force,
        read_only: request.read_only,
        discard_log: request.discard_log,
        rewind: request.rewind,
        tunables: request.tunables.clone(),
        find_l2_devices: request.l2_devices,
        ..ImportOptions::new(Arc::clone(cache))
    };
    Pool::import(devices, &options).map_err(|error| {
        let text = error.to_string();
        let way_out = match error.kind() {
            ErrorKind::InUse if !request.force => "; --force takes it all the same",
            ErrorKind::Corrupt if text.contains("log") && !request.discard_log => {
                "; --discard-log imports it without what only the intent log has"
            }
            ErrorKind::Corrupt if !request.rewind => {
                "; --rewind goes back to an older transaction group"
            }
            ErrorKind::NotAPool if text.contains("missing") => {
                "; give all of its devices, joined by `:`"
            }
            _ => "",
        };
        let mut failure = Failure::from(error);
        failure.message.push_str(way_out);
        failure
    })
}

/// What the label of each device says, in the order of the paths; nothing for a device without one.
///
/// # Errors
/// Why one cannot be read.
pub(crate) fn labels(paths: &[PathBuf]) -> Result<Vec<Option<LabelInfo>>> {
    let memory = cache(16 << 20)?;
    let opened = open_without_pool_lock(paths, true)?;
    opened.iter().map(|one| Ok(read_label(one, &memory)?)).collect()
}

/// The name that a pool gets from its first device's path: the file's name without its ending.
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
        assert_eq!(paths_of("/a:/b"), Some(vec![PathBuf::from("/a"), PathBuf::from("/b")]));
    }

    #[test]
    fn a_pool_is_called_like_its_file() {
        assert_eq!(name_from(Path::new("/x/tank.img")), "tank");
        assert_eq!(name_from(Path::new("/dev/sdb")), "sdb");
        assert_eq!(name_from(Path::new("..")), "forebay");
    }
}
