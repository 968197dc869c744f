//! What a device holds that is no pool of ours, so that it is not written over by mistake.
//!
//! A device counts as empty if its first and its last MiB are zero: there file systems, archives, images and tables of
//! partitions have what they are known by.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result};

/// So much is looked at, at either end.
const LOOK_BYTES: u64 = 1 << 20;

/// Refuses a device that is not empty.
///
/// # Errors
/// What it holds, and the way out; or why it cannot be read.
pub(crate) fn refuse(path: &Path) -> Result<()> {
    let found = look(path).map_err(|error| Failure::about(path, "read it", &error))?;
    let Some(what) = found else { return Ok(()) };
    Err(Failure::new(format!(
        "{}: is not empty: it holds {what}, which would be lost; name another one, clear its first and last MiB, or \
         overwrite it with --force",
        path.display()
    )))
}

/// What is at either end; nothing if all is zero.
fn look(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    for start in [0, end.saturating_sub(LOOK_BYTES)] {
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(LOOK_BYTES).read_to_end(&mut bytes)?;
        let found = forebay_io::content_of(start, &bytes);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Clears what [`refuse`] looks at, durably.
///
/// # Errors
/// Why it cannot be written.
pub(crate) fn clear(path: &Path) -> Result<()> {
    let write = || {
        let mut file = File::options().write(true).open(path)?;
        let end = file.seek(SeekFrom::End(0))?;
        let zeros = vec![0; LOOK_BYTES.min(end) as usize];
        for start in [0, end - zeros.len() as u64] {
            file.seek(SeekFrom::Start(start))?;
            file.write_all(&zeros)?;
        }
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| Failure::about(path, "clear it", &error))
}

/// Refuses devices that are named twice, or that a pool has already.
///
/// # Errors
/// Which one.
pub(crate) fn refuse_repeated(paths: &[PathBuf], in_pool: &[PathBuf]) -> Result<()> {
    for (at, path) in paths.iter().enumerate() {
        let name = path.display();
        if in_pool.iter().any(|other| is_same(path, other)) {
            return Err(Failure::new(format!("{name}: is a device of this pool already")));
        }
        if let Some(other) = paths[..at].iter().find(|other| is_same(path, other)) {
            let text = match other == path {
                true => format!("{name}: is named twice; name each device once"),
                false => {
                    format!("{name}: is the same device as {}; name each once", other.display())
                }
            };
            return Err(Failure::new(text));
        }
    }
    Ok(())
}

/// Whether two paths lead to the same file or device.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some(match found.file_type().is_block_device() {
            true => (true, found.rdev(), 0),
            false => (false, found.dev(), found.ino()),
        })
    };
    match (identity(a), identity(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => std::path::absolute(a).ok() == std::path::absolute(b).ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: usize, bytes: &[u8]) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut content = vec![0; 3 << 20];
        content[place..place + bytes.len()].copy_from_slice(bytes);
        std::fs::write(file.path(), &content).unwrap();
        look(file.path()).unwrap()
    }

    #[test]
    fn what_is_known_is_named_and_all_else_has_its_place() {
        assert_eq!(found(0, b""), None);
        assert_eq!(found(0, b"XFSB").as_deref(), Some("an XFS file system"));
        assert_eq!(found(257, b"ustar").as_deref(), Some("a tar archive"));
        let first = found((1 << 20) - 1, b"x").unwrap();
        assert!(first.ends_with("at byte 1048575"), "{first}");
        let last = found((3 << 20) - 1, b"x").unwrap();
        assert!(last.ends_with("at byte 3145727"), "{last}");
        assert!(found(2 << 20, b"x").is_some());
        // Neither end has it.
        assert_eq!(found(1 << 20, b"x"), None);
    }
}
