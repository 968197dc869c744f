//! Protects devices with foreign content from being overwritten by mistake.
//!
//! A device counts as empty if its first and last MiB are zero. File systems, archives, images and
//! partition tables have their signatures there.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result};

/// Bytes checked at each end of a device.
const PROBE_BYTES: u64 = 1 << 20;

/// Refuses a device that is not empty.
///
/// # Errors
/// Names the content found, or the reason why the device cannot be read.
pub(crate) fn refuse(path: &Path) -> Result<()> {
    let found = probe(path).map_err(|error| Failure::about(path, "read it", &error))?;
    let Some(what) = found else { return Ok(()) };
    Err(Failure::new(format!(
        "{}: is not empty: it holds {what}, which would be lost; use another device, clear its first and last MiB, or \
         overwrite it with --force",
        path.display()
    )))
}

/// The content at either end; `None` if both are zero.
fn probe(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    for start in [0, end.saturating_sub(PROBE_BYTES)] {
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(PROBE_BYTES).read_to_end(&mut bytes)?;
        let found = forebay_io::content_of(start, &bytes);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Zeroes the ranges that [`refuse`] checks, and syncs the device.
///
/// # Errors
/// If the device cannot be written.
pub(crate) fn clear(path: &Path) -> Result<()> {
    let write = || {
        let mut file = File::options().write(true).open(path)?;
        let end = file.seek(SeekFrom::End(0))?;
        let zeros = vec![0; PROBE_BYTES.min(end) as usize];
        for start in [0, end - zeros.len() as u64] {
            file.seek(SeekFrom::Start(start))?;
            file.write_all(&zeros)?;
        }
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| Failure::about(path, "clear it", &error))
}

/// Refuses devices that are given twice or already belong to the pool.
///
/// # Errors
/// Names the device.
pub(crate) fn refuse_repeated(paths: &[PathBuf], in_pool: &[PathBuf]) -> Result<()> {
    for (at, path) in paths.iter().enumerate() {
        let name = path.display();
        if in_pool.iter().any(|other| is_same(path, other)) {
            return Err(Failure::new(format!(
                "{name}: is a device of this pool already; give another device"
            )));
        }
        if let Some(other) = paths[..at].iter().find(|other| is_same(path, other)) {
            let text = match other == path {
                true => format!("{name}: is named twice; give each device once"),
                false => {
                    format!(
                        "{name}: is the same device as {}; give each device once",
                        other.display()
                    )
                }
            };
            return Err(Failure::new(text));
        }
    }
    Ok(())
}

/// True if two paths name the same file or device.
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

    fn found(offset: usize, bytes: &[u8]) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut content = vec![0; 3 << 20];
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        std::fs::write(file.path(), &content).unwrap();
        probe(file.path()).unwrap()
    }

    #[test]
    fn known_content_is_named_and_other_content_is_located() {
        assert_eq!(found(0, b""), None);
        assert_eq!(found(0, b"XFSB").as_deref(), Some("an XFS file system"));
        assert_eq!(found(257, b"ustar").as_deref(), Some("a tar archive"));
        let first = found((1 << 20) - 1, b"x").unwrap();
        assert!(first.ends_with("at byte 1048575"), "{first}");
        let last = found((3 << 20) - 1, b"x").unwrap();
        assert!(last.ends_with("at byte 3145727"), "{last}");
        assert!(found(2 << 20, b"x").is_some());
        // Outside both ends.
        assert_eq!(found(1 << 20, b"x"), None);
    }
}
