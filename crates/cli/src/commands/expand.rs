//! `forebay expand`: adds devices to a pool, and uses the added space of grown devices.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_io::OpenOptions;
use forebay_pool::open_path;

use super::create::check_size;
use crate::args::ExpandArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::control::messages::ExpandReport;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use crate::{daemon, device_content, output, units};

pub(crate) fn run(args: &ExpandArgs) -> Result<()> {
    let target = client::find(&args.pool)?;
    let has = match &target {
        Target::InUse { pool, .. } => &pool.devices,
        Target::Paths(paths) => paths,
    };
    let mirrors = &args.mirrors.0;
    let add: Vec<&[PathBuf]> = args
        .add
        .iter()
        .map(std::slice::from_ref)
        .chain(mirrors.iter().map(Vec::as_slice))
        .collect();
    device_content::refuse_repeated(&add.concat(), has)?;
    let mut made = Vec::new();
    let paths = add_paths(&add, args.size, &mut made);
    let grown = paths.and_then(|add| match &target {
        Target::InUse { process, pool } => process.ask::<ExpandReport>(&Request::Expand {
            pool: pool.guid,
            add,
            force: args.force,
            sector: args.sector,
        }),
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths.clone(), false), &cache)?;
            let grown = daemon::expand_pool(&pool, &add, (args.force, args.sector))?;
            pool.export()?;
            Ok(grown)
        }
    });
    if grown.is_err() {
        made.iter().for_each(|path| remove_unused(path));
    }
    let grown = grown?;
    if let Some(device) = grown.grown.first() {
        let name = match &target {
            Target::InUse { pool, .. } => &pool.name,
            Target::Paths(_) => &args.pool,
        };
        let text = format!(
            "{}: {} has grown while the pool is in use; to use the added space, run `forebay export {name}`, then \
             `forebay expand {name}`, and mount the pool again",
            args.pool,
            device.display()
        );
        if grown.after_bytes == grown.before_bytes {
            return Err(Failure::new(text));
        }
        eprintln!("forebay: {text}");
    }
    let (before, after) = (units::bytes(grown.before_bytes), units::bytes(grown.after_bytes));
    output::line(&match grown.after_bytes > grown.before_bytes {
        true => format!("{}: {before} before, {after} now", args.pool),
        false => {
            format!("{}: {after}, as before: no device has grown or was added", args.pool)
        }
    });
    Ok(())
}

/// Absolute paths of the vdevs to add. Missing files are created if a size is given.
fn add_paths(
    add: &[&[PathBuf]],
    size: Option<u64>,
    made: &mut Vec<PathBuf>,
) -> Result<Vec<Vec<PathBuf>>> {
    for path in add.iter().copied().flatten() {
        if make_file(path, size)? {
            made.push(path.clone());
        }
    }
    add.iter().map(|vdev| pools::absolute(vdev)).collect()
}

/// Creates a file if it does not exist. Returns true if it was created.
///
/// # Errors
/// If no valid size is given, or the file cannot be created.
pub(super) fn make_file(path: &Path, size: Option<u64>) -> Result<bool> {
    pools::refuse_served(path)?;
    if path.exists() {
        return Ok(false);
    }
    let Some(size) = size else {
        let text =
            format!("{}: no such file or device; give --size to create a file", path.display());
        return Err(Failure::new(text));
    };
    check_size(path, size)?;
    let failed = |error: std::io::Error| Failure::about(path, "create the file", &error);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    file.set_len(size).map_err(|error| {
        // The error of the command is reported.
        let _ = std::fs::remove_file(path);
        failed(error)
    })?;
    Ok(true)
}

/// Removes a file that [`make_file`] created, after a failure. It was not locked since, so it stays
/// if another process uses it, or has used it.
pub(super) fn remove_unused(path: &Path) {
    let Ok(_locked) = open_path(path, &OpenOptions::default()) else { return };
    if device_content::refuse(path).is_ok() {
        // The error of the command is reported.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_that_another_process_uses_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("more.img");
        assert!(make_file(&path, Some(64 << 20)).unwrap());
        let used = open_path(&path, &OpenOptions::default()).unwrap();
        remove_unused(&path);
        assert!(path.exists(), "it was locked");
        drop(used);
        let content = |bytes: &[u8]| {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, 4096).unwrap();
        };
        content(b"a pool");
        remove_unused(&path);
        assert!(path.exists(), "it was not empty");
        content(&[0; 6]);
        remove_unused(&path);
        assert!(!path.exists());
    }
}
