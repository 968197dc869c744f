//! `forebay create`: creates a pool with one dataset.

use std::path::{Path, PathBuf};

use forebay_fs::{FileSystem, Owner};
use forebay_io::OpenOptions;
use forebay_pool::format::{CacheMode, Compression, SyncMode};
use forebay_pool::{CreateOptions, DatasetSettings, MIN_DEVICE_BYTES, Pool, open_path};

use crate::args::{CompressionName, CreateArgs, DatasetArgs, L2ModeName, SyncModeName};
use crate::control::run_dir;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::{device_content, output, pools, units};

/// Files of a pool have a multiple of this size, so that every sector size fits.
const SIZE_UNIT: u64 = 1 << 20;
/// Default size of created files.
pub(crate) const DEFAULT_BYTES: u64 = 10 << 30;
/// Mode of the root directory of a new file system.
const ROOT_MODE: u16 = 0o755;

pub(crate) fn run(args: &CreateArgs) -> Result<()> {
    let name = args.name.clone().unwrap_or_else(|| pools::name_from(&args.devices[0]));
    check_sizes(args)?;
    let new = New {
        name: &name,
        devices: &args.devices,
        size_bytes: args.size.unwrap_or(DEFAULT_BYTES),
        dataset: &args.dataset,
        settings: settings(&args.settings, DatasetSettings::default())?,
        force: args.force,
    };
    let pool = create(&new)?;
    let total = pool.stats().total_bytes;
    pool.close()?;
    let first = args.devices[0].display();
    output::line(&format!(
        "created pool {name}, {} in {} device{}, with dataset {}; mount it with `forebay mount {}`",
        units::bytes(total),
        args.devices.len(),
        if args.devices.len() == 1 { "" } else { "s" },
        args.dataset,
        match args.devices.len() {
            1 => first.to_string(),
            _ => args
                .devices
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(":"),
        }
    ));
    Ok(())
}

/// Checks --size against existing files and the smallest device.
fn check_sizes(args: &CreateArgs) -> Result<()> {
    let Some(size) = args.size else { return Ok(()) };
    for path in &args.devices {
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
    /// Size of files to be created.
    pub(crate) size_bytes: u64,
    pub(crate) dataset: &'a str,
    pub(crate) settings: DatasetSettings,
    pub(crate) force: bool,
}

/// Creates a pool and a dataset with a file system. After a failure the created files are removed.
///
/// # Errors
/// If the pool cannot be created.
pub(crate) fn create(new: &New<'_>) -> Result<Pool> {
    let mut created_files = Vec::new();
    let created = create_in(new, &mut created_files);
    if created.is_err() {
        for path in &created_files {
            // The error of the command is reported.
            let _ = std::fs::remove_file(path);
        }
    }
    created
}

fn create_in(new: &New<'_>, created_files: &mut Vec<PathBuf>) -> Result<Pool> {
    let cache = pools::cache(MemoryPlan::small())?;
    if new.name.contains(':') {
        return Err(Failure::new(format!(
            "pool name {:?}: contains `:`, which separates devices; give another name with --name",
            new.name
        )));
    }
    device_content::refuse_repeated(new.devices, &[])?;
    // Opened together, since several may belong to one pool, which is locked once.
    let is_there = |path: &&PathBuf| path.symlink_metadata().is_ok();
    let found: Vec<PathBuf> = new.devices.iter().filter(is_there).cloned().collect();
    let mut there = pools::open_devices(&found, false)?.into_iter();
    let mut opened = Vec::new();
    for path in new.devices {
        let options = OpenOptions {
            create_bytes: Some(new.size_bytes / SIZE_UNIT * SIZE_UNIT),
            ..OpenOptions::default()
        };
        if !found.contains(path) {
            check_directory(path)?;
            created_files.push(path.clone());
            opened.push(open_path(path, &options)?);
        } else {
            if let Some(device) = there.next() {
                pools::refuse_content(&device, path, new.force)?;
                opened.push(device);
            }
        }
    }
    let options = CreateOptions { force: new.force, ..CreateOptions::new(new.name, cache) };
    let pool = Pool::create(opened, &options)?;
    let owner = Owner { uid: run_dir::uid(), gid: run_dir::gid(), mode: ROOT_MODE };
    FileSystem::create_in(&pool, new.dataset, &new.settings, owner)?;
    Ok(pool)
}

/// Checks that a file can be created, for a clear error.
fn check_directory(path: &Path) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    pools::refuse_served(path)?;
    let tried = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    match tried {
        Ok(_) => std::fs::remove_file(path)
            .map_err(|error| Failure::about(path, "create the file", &error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(format!(
            "{}: no such directory; create it first, or give another path",
            directory.display()
        ))),
        Err(error) => Err(Failure::about(path, "create the file", &error)),
    }
}
