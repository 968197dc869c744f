//! `forebay create`: a new pool, with a dataset for files.

use std::path::{Path, PathBuf};

use forebay_fs::{FileSystem, Owner};
use forebay_io::OpenOptions;
use forebay_pool::format::{CacheMode, Compression, SyncMode};
use forebay_pool::{CreateOptions, DatasetSettings, ErrorKind, MIN_DEVICE_BYTES, Pool, open_path};

use crate::args::{CompressionName, CreateArgs, DatasetArgs, L2ModeName, SyncModeName};
use crate::control::run_dir;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::{device_content, output, pools, units};

/// Sizes of files are multiples of this, so that every sector size fits.
const SIZE_UNIT: u64 = 1 << 20;
/// Size of files that are made, unless another is asked for.
pub(crate) const DEFAULT_BYTES: u64 = 10 << 30;
/// Mode of a new file system's root.
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
        "made pool {name}, {} in {} device{}, with dataset {}; mount it with `forebay mount {}`",
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

/// Whether the size that was asked for can be, of files to be made, and of those that are there.
fn check_sizes(args: &CreateArgs) -> Result<()> {
    let Some(size) = args.size else { return Ok(()) };
    for path in &args.devices {
        match std::fs::metadata(path) {
            Ok(found)
                if found.is_file()
                    && ![size, size / SIZE_UNIT * SIZE_UNIT].contains(&found.len()) =>
            {
                return Err(Failure::new(format!(
                    "{0}: is there already, with {1} bytes, and --size says {size}; leave --size out to use it as it \
                     is, or remove it, or set its size: `truncate --size {size} {0}`",
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

/// Whether a file of that size would do.
///
/// # Errors
/// If it is too small.
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

/// The settings that were asked for, on top of those that there are.
///
/// # Errors
/// If one cannot be.
pub(crate) fn settings(
    args: &DatasetArgs,
    mut settings: DatasetSettings,
) -> Result<DatasetSettings> {
    if let Some(bytes) = args.record_size {
        settings.record_bytes = u32::try_from(bytes).map_err(|_| {
            Failure::usage(format!("--record-size {bytes}: take a power of two from 4K to 1M"))
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

/// A pool to be made.
pub(crate) struct New<'a> {
    pub(crate) name: &'a str,
    pub(crate) devices: &'a [PathBuf],
    /// Of files that are not there.
    pub(crate) size_bytes: u64,
    pub(crate) dataset: &'a str,
    pub(crate) settings: DatasetSettings,
    pub(crate) force: bool,
}

/// Makes a pool, with a file system in a dataset. Files that it made are removed if it fails.
///
/// # Errors
/// Why not.
pub(crate) fn create(new: &New<'_>) -> Result<Pool> {
    let mut made = Vec::new();
    let created = create_in(new, &mut made);
    if created.is_err() {
        for path in &made {
            // The error is told.
            let _ = std::fs::remove_file(path);
        }
    }
    created
}

fn create_in(new: &New<'_>, made: &mut Vec<PathBuf>) -> Result<Pool> {
    let cache = pools::cache(MemoryPlan::small())?;
    if new.name.contains(':') {
        return Err(Failure::new(format!(
            "pool name {:?}: has a `:`, which stands between devices; give another one with --name",
            new.name
        )));
    }
    device_content::refuse_repeated(new.devices, &[])?;
    // Together, since several may belong to one pool.
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
            check_folder(path)?;
            made.push(path.clone());
            opened.push(open_path(path, &options)?);
        } else {
            if let Some(device) = there.next() {
                pools::refuse_content(&device, path, new.force)?;
                opened.push(device);
            }
        }
    }
    let options = CreateOptions { force: new.force, ..CreateOptions::new(new.name, cache) };
    let pool = Pool::create(opened, &options).map_err(|error| match error.kind() {
        ErrorKind::Exists => {
            let text = error
                .to_string()
                .replace("destroy that, or force it", "`forebay destroy` it first, or use --force");
            Failure::new(text)
        }
        _ => error.into(),
    })?;
    let owner = Owner { uid: run_dir::uid(), gid: run_dir::gid(), mode: ROOT_MODE };
    FileSystem::create_in(&pool, new.dataset, &new.settings, owner)?;
    Ok(pool)
}

/// Whether a file can be made there, said plainly.
fn check_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    pools::refuse_served(path)?;
    let tried = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    match tried {
        Ok(_) => {
            std::fs::remove_file(path).map_err(|error| Failure::about(path, "make it", &error))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(format!(
            "{}: no such folder; make it first, or give another path",
            folder.display()
        ))),
        Err(error) => Err(Failure::about(path, "make it", &error)),
    }
}
