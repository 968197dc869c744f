//! `forebay create`: creates a pool with one dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_fs::{FileSystem, Owner};
use forebay_io::{FileLock, OpenOptions};
use forebay_pool::format::{CacheMode, Compression, FailMode, SyncMode};
use forebay_pool::{
    CreateOptions, DatasetSettings, MIN_DEVICE_BYTES, NewVdev, Opened, Pool, open_path,
};

use crate::args::{
    CompressionName, CreateArgs, DatasetArgs, FailModeName, L2ModeName, SyncModeName,
};
use crate::control::run_dir;
use crate::discover::known;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::object_stores::{self, Access};
use crate::{device_content, output, pools, units};

/// Files of a pool have a multiple of this size, so that every sector size fits.
const SIZE_UNIT: u64 = 1 << 20;
/// Default size of created files.
pub(crate) const DEFAULT_BYTES: u64 = 10 << 30;
/// Maximum size of created files for the intent log.
const LOG_BYTES: u64 = 1 << 30;
/// Mode of the root directory of a new file system.
const ROOT_MODE: u16 = 0o755;

pub(crate) fn run(args: &CreateArgs) -> Result<()> {
    // Devices first, then the mirrors; or an object store alone.
    let mirrors = &args.mirrors.0;
    let devices: Vec<PathBuf> =
        args.devices.iter().chain(mirrors.iter().flatten()).cloned().collect();
    let store = args.object_store.as_ref().map(PathBuf::from);
    let devices: Vec<PathBuf> = devices.into_iter().chain(store).collect();
    let name = args.name.clone().unwrap_or_else(|| pools::name_from(&devices[0]));
    check_sizes(args.size, &devices)?;
    let new = New {
        name: &name,
        devices: &devices,
        mirrors: &mirrors.iter().map(Vec::len).collect::<Vec<_>>(),
        logs: &args.log.log_devices,
        size_bytes: args.size.unwrap_or(DEFAULT_BYTES),
        dataset: &args.dataset,
        settings: settings(&args.settings, DatasetSettings::default())?,
        force: args.force,
        sector: args.sector,
    };
    let pool = create(&new)?;
    let total = pool.stats().total_bytes;
    let all = [&devices[..], new.logs].concat();
    let absolute = pools::absolute(&all)?;
    known::note(pool.name(), pool.guid(), &absolute);
    pool.close()?;
    // Behind a URL, only an absolute path is one.
    let spec = devices_spec(if args.object_store.is_some() { &absolute } else { &all });
    if let Some(l2_device) = &args.l2_device {
        super::l2::add(&spec, l2_device, None, false)?;
    }
    if args.object_store.is_some() {
        output::line(&format!(
            "created pool {name} on {}, with dataset {}; mount it with `forebay mount {spec}`",
            devices[0].display(),
            args.dataset
        ));
        return Ok(());
    }
    output::line(&format!(
        "created pool {name}, {} in {} device{}{}{}, with dataset {}; mount it with `forebay mount {}`",
        units::bytes(total),
        all.len(),
        if all.len() == 1 { "" } else { "s" },
        match mirrors.len() {
            0 => String::new(),
            1 => format!(": a mirror{}", and_others(&new)),
            more => format!(": {more} mirrors{}", and_others(&new)),
        },
        if new.logs.is_empty() { "" } else { ", with a log device" },
        args.dataset,
        spec
    ));
    Ok(())
}

/// Names the devices beside mirrors, if there are any.
fn and_others(new: &New<'_>) -> String {
    match new.devices.len() - new.mirrors.iter().sum::<usize>() {
        0 => String::new(),
        1 => " and a device without one".to_owned(),
        more => format!(" and {more} devices without one"),
    }
}

/// How a pool on these devices is named.
fn devices_spec(devices: &[PathBuf]) -> String {
    let paths: Vec<String> = devices.iter().map(|path| path.display().to_string()).collect();
    paths.join(":")
}

/// Checks --size against existing files and the smallest device.
fn check_sizes(size: Option<u64>, devices: &[PathBuf]) -> Result<()> {
    let Some(size) = size else { return Ok(()) };
    for path in devices {
        match std::fs::metadata(path) {
            Ok(found)
                if found.is_file()
                    && ![size, size / SIZE_UNIT * SIZE_UNIT].contains(&found.len()) =>
            {
                return Err(Failure::new(format!(
                    "{0}: exists with {1} bytes, but --size is {size}; omit --size to use the file as it is, remove the \
                     file, or resize it with `truncate --size {size} {0}`",
                    path.display(),
                    found.len()
                )));
            }
            Ok(_) => {}
            Err(_) => check_size(path, size)?,
        }
    }
    Ok(())
}

/// Checks the size of a file to be created.
///
/// # Errors
/// If the size is too small.
pub(crate) fn check_size(path: &Path, size: u64) -> Result<()> {
    match size < MIN_DEVICE_BYTES {
        false => Ok(()),
        true => Err(Failure::new(format!(
            "{}: --size {size} is too small; give at least {}",
            path.display(),
            units::whole(MIN_DEVICE_BYTES)
        ))),
    }
}

/// Applies the options of the command line to settings.
///
/// # Errors
/// If a value is out of range.
pub(crate) fn settings(
    args: &DatasetArgs,
    mut settings: DatasetSettings,
) -> Result<DatasetSettings> {
    if let Some(bytes) = args.record_size {
        settings.record_bytes = u32::try_from(bytes).map_err(|_| {
            Failure::usage(format!("--record-size {bytes}: give a power of two from 4K to 1M"))
        })?;
    }
    if let Some(compression) = args.compression {
        settings.data_compression = match compression {
            CompressionName::Off => Compression::Off,
            CompressionName::Lz4 => Compression::Lz4,
            CompressionName::Zstd => Compression::Zstd,
        };
    }
    if let Some(copies) = args.copies {
        settings.data_copies = copies;
    }
    if let Some(sync) = args.sync {
        settings.sync = match sync {
            SyncModeName::Log => SyncMode::Log,
            SyncModeName::Txg => SyncMode::Txg,
        };
    }
    if let Some(failmode) = args.failmode {
        settings.fail_mode = match failmode {
            FailModeName::Wait => FailMode::Wait,
            FailModeName::Continue => FailMode::Continue,
        };
    }
    if let Some(l2) = args.l2 {
        settings.l2 = match l2 {
            L2ModeName::All => CacheMode::All,
            L2ModeName::Metadata => CacheMode::Metadata,
            L2ModeName::None => CacheMode::None,
        };
    }
    Ok(settings)
}

/// Parameters of a new pool.
pub(crate) struct New<'a> {
    pub(crate) name: &'a str,
    pub(crate) devices: &'a [PathBuf],
    /// The last devices belong to mirrors: the number of devices of each.
    pub(crate) mirrors: &'a [usize],
    /// Devices of the intent log.
    pub(crate) logs: &'a [PathBuf],
    /// Size of files to be created.
    pub(crate) size_bytes: u64,
    pub(crate) dataset: &'a str,
    pub(crate) settings: DatasetSettings,
    pub(crate) force: bool,
    /// Sector size; `None` for that of the devices.
    pub(crate) sector: Option<u32>,
}

/// Files that a command created, with their locks. While they are locked, no other process can
/// have begun to use them.
type CreatedFiles = Vec<(PathBuf, Arc<FileLock>)>;

/// Creates a pool and a dataset with a file system. After a failure the created files are removed.
///
/// # Errors
/// If the pool cannot be created.
pub(crate) fn create(new: &New<'_>) -> Result<Pool> {
    let mut created_files = CreatedFiles::new();
    let created = match new.devices {
        [path] if object_stores::url(path).is_some() => {
            create_on_store(new, path, &mut created_files)
        }
        _ => create_in(new, &mut created_files),
    };
    if created.is_err() {
        for (path, lock) in &created_files {
            // The error of the command is reported.
            let _ = lock.remove_file(path);
        }
    }
    created
}

/// Creates a pool on an object store. After a failure its objects are removed.
fn create_on_store(new: &New<'_>, path: &Path, created_files: &mut CreatedFiles) -> Result<Pool> {
    let url = object_stores::url(path).unwrap_or_default();
    let cache = pools::cache(MemoryPlan::small())?;
    let logs = open_all(new, new.logs, created_files)?;
    let (device, _) = object_stores::open(url, Access::Create, None)?.split();
    let create = || {
        let options = CreateOptions::new(new.name, cache);
        let mut vdevs = vec![NewVdev::ObjectStore(device)];
        if !logs.is_empty() {
            vdevs.push(NewVdev::Log(logs));
        }
        let pool = Pool::create_tree(vdevs, &options)?;
        create_dataset(&pool, new)?;
        Ok(pool)
    };
    create().inspect_err(|_: &Failure| {
        if let Err(error) = object_stores::destroy(url, true) {
            eprintln!("forebay: {url}: cannot remove what was created: {error}");
        }
    })
}

/// Creates the first dataset of a pool.
fn create_dataset(pool: &Pool, new: &New<'_>) -> Result<()> {
    let owner = Owner { uid: run_dir::uid(), gid: run_dir::gid(), mode: ROOT_MODE };
    Ok(FileSystem::create_in(pool, new.dataset, &new.settings, owner)?)
}

fn create_in(new: &New<'_>, created_files: &mut CreatedFiles) -> Result<Pool> {
    let cache = pools::cache(MemoryPlan::small())?;
    if new.name.contains(':') {
        return Err(Failure::new(format!(
            "pool name {:?}: contains `:`, which separates devices; give another name with --name",
            new.name
        )));
    }
    let all = [new.devices, new.logs].concat();
    let mut opened = open_all(new, &all, created_files)?;
    let logs = opened.split_off(new.devices.len());
    let (force, sector_bytes) = (new.force, new.sector);
    let options = CreateOptions { force, sector_bytes, ..CreateOptions::new(new.name, cache) };
    let mirrored: usize = new.mirrors.iter().sum();
    let mut rest = opened.into_iter();
    let alone = new.devices.len() - mirrored;
    let mut vdevs: Vec<NewVdev> = rest.by_ref().take(alone).map(NewVdev::Device).collect();
    for devices in new.mirrors {
        vdevs.push(NewVdev::Mirror(rest.by_ref().take(*devices).collect()));
    }
    if !logs.is_empty() {
        vdevs.push(NewVdev::Log(logs));
    }
    let pool = Pool::create_tree(vdevs, &options)?;
    create_dataset(&pool, new)?;
    Ok(pool)
}

/// Opens these devices of a new pool, and creates files that do not exist.
fn open_all(
    new: &New<'_>,
    paths: &[PathBuf],
    created_files: &mut CreatedFiles,
) -> Result<Vec<Opened>> {
    device_content::refuse_repeated(paths, &[])?;
    // Opened together, since several may belong to one pool, which is locked once.
    let is_there = |path: &&PathBuf| path.symlink_metadata().is_ok();
    let found: Vec<PathBuf> = paths.iter().filter(is_there).cloned().collect();
    let mut there = pools::open_new_devices(&found, None)?.into_iter();
    let mut opened = Vec::new();
    for path in paths {
        if !found.contains(path) {
            let most = if new.logs.contains(path) { LOG_BYTES } else { u64::MAX };
            opened.push(create_file(path, new.size_bytes.min(most), created_files)?);
        } else if let Some(device) = there.next() {
            pools::refuse_content(&device, path, new.force)?;
            opened.push(device);
        }
    }
    Ok(opened)
}

/// Creates a file and opens it as a device.
fn create_file(path: &Path, size_bytes: u64, created_files: &mut CreatedFiles) -> Result<Opened> {
    pools::refuse_served(path)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.exists() {
        return Err(Failure::new(format!(
            "{}: no such directory; create it first, or give another path",
            directory.display()
        )));
    }
    let create_bytes = Some(size_bytes / SIZE_UNIT * SIZE_UNIT);
    let options = OpenOptions { create_bytes, ..OpenOptions::default() };
    let opened = open_path(path, &options).map_err(|error| not_created(path, error))?;
    let Some(lock) = opened.lock_of_created() else {
        // Its content was not checked.
        return Err(Failure::new(format!(
            "{0}: another process has just created it; give another path, or repeat the command to use the file as it is",
            path.display()
        )));
    };
    created_files.push((path.to_owned(), lock));
    Ok(opened)
}

/// The error of creating a file. The error of the system, if there is one, is the clearest.
fn not_created(path: &Path, error: forebay_pool::Error) -> Failure {
    let mut cause = std::error::Error::source(&error);
    while let Some(found) = cause {
        if let Some(system) = found.downcast_ref::<std::io::Error>() {
            return Failure::about(path, "create the file", system);
        }
        cause = found.source();
    }
    pools::not_opened(path, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_process_has_just_created_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tank.img");
        let size_bytes = 64 << 20;
        // Both have found that there is no such file.
        let (mut ours, mut theirs) = (CreatedFiles::new(), CreatedFiles::new());
        let opened = create_file(&path, size_bytes, &mut theirs).unwrap();
        let refused = create_file(&path, size_bytes, &mut ours).unwrap_err().message;
        assert!(refused.contains("tank.img: is in use"), "{refused}");
        // The other one has ended meanwhile.
        drop((opened, std::mem::take(&mut theirs)));
        let refused = create_file(&path, size_bytes, &mut ours).unwrap_err().message;
        assert!(refused.contains("another process has just created it"), "{refused}");
        assert!(ours.is_empty(), "they would be removed");
        assert_eq!(path.metadata().unwrap().len(), size_bytes);
    }

    #[test]
    fn a_created_file_stays_locked_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tank.img");
        let mut created = CreatedFiles::new();
        let opened = create_file(&path, 64 << 20, &mut created).unwrap();
        // A failed creation of the pool drops its devices.
        drop(opened);
        let refused = open_path(&path, &OpenOptions::default()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), forebay_pool::ErrorKind::InUse, "{refused}");
        created[0].1.remove_file(&path).unwrap();
        assert!(!path.exists());
    }
}
