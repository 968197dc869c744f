//! The file that the device benches read: a named one, or a temporary one.
//!
//! A named file or block device is never written. A temporary file is written completely with
//! incompressible bytes, because file systems answer reads of holes without the device. It is
//! removed at the end. Each block starts with a stamp, so that reads can be checked.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::keys::{XorShift, scramble};
use crate::options::Failure;

/// Size of a block in the device benches, as in R2.
pub(crate) const BLOCK_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 1 << 20;

/// The expected first eight bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// Unknown.
    Unknown,
    /// Zero.
    Zero,
    /// A hash of the block's offset.
    OfOffset,
}

impl Stamp {
    /// Whether `block` may be the block at `offset`.
    pub(crate) fn fits(self, offset: u64, block: &[u8]) -> bool {
        let found = block.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
        match self {
            Self::Unknown => true,
            Self::Zero => found == Some(0),
            Self::OfOffset => found == Some(scramble(offset)),
        }
    }
}

/// A file to read.
pub(crate) struct TestFile {
    pub(crate) path: PathBuf,
    /// A multiple of the block size.
    pub(crate) size_bytes: u64,
    pub(crate) stamp: Stamp,
    temporary: bool,
}

impl TestFile {
    /// The named file, or a temporary one of `size_bytes`.
    ///
    /// # Errors
    /// If the file cannot be read, or cannot be created.
    pub(crate) fn named_or_temporary(
        named: Option<&Path>,
        size_bytes: u64,
        seed: u64,
    ) -> Result<Self, Failure> {
        match named {
            Some(path) => Self::named(path),
            None => Self::temporary(size_bytes, seed),
        }
    }

    fn named(path: &Path) -> Result<Self, Failure> {
        let told = |error| format!("--file {}: {error}", path.display());
        // A block device has no length in its metadata, but one can seek to its end.
        let end =
            File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).map_err(told)?;
        let size_bytes = end - end % BLOCK_BYTES as u64;
        if size_bytes == 0 {
            return Err(
                format!("--file {}: the file is shorter than a block", path.display()).into()
            );
        }
        let path = path.to_owned();
        Ok(Self { path, size_bytes, stamp: Stamp::Unknown, temporary: false })
    }

    fn temporary(size_bytes: u64, seed: u64) -> Result<Self, Failure> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-bench-{}-{nth}.bin", std::process::id());
        let path = std::env::temp_dir().join(name);
        // From here on the file is removed, even if filling it fails.
        let made = Self { path, size_bytes, stamp: Stamp::OfOffset, temporary: true };
        let filled = File::create_new(&made.path).and_then(|file| made.fill(file, seed));
        let size_mib = size_bytes >> 20;
        filled.map_err(|error| {
            let path = made.path.display();
            format!("cannot make a temporary file of {size_mib} MiB at {path}: {error}; name another with --file")
        })?;
        Ok(made)
    }

    fn fill(&self, mut file: File, seed: u64) -> std::io::Result<()> {
        let mut rng = XorShift::new(seed);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut offset = 0;
        while offset < self.size_bytes {
            for word in chunk.chunks_exact_mut(8) {
                word.copy_from_slice(&rng.next().to_le_bytes());
            }
            for (nth, block) in chunk.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                let at = offset + (nth * BLOCK_BYTES) as u64;
                block[..8].copy_from_slice(&scramble(at).to_le_bytes());
            }
            let len = (self.size_bytes - offset).min(CHUNK_BYTES as u64);
            file.write_all(&chunk[..len as usize])?;
            offset += len;
        }
        file.sync_all()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        if self.temporary {
            // An error has no consequence: this is the system's temporary folder.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_file_is_full_and_goes() {
        let size = CHUNK_BYTES as u64 + 8 * BLOCK_BYTES as u64;
        let file = TestFile::temporary(size, 1).expect("the temporary folder takes a MiB");
        let path = file.path.clone();
        let bytes = std::fs::read(&path).expect("a readable file");
        assert_eq!(bytes.len() as u64, size);
        for (nth, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            assert!(Stamp::OfOffset.fits((nth * BLOCK_BYTES) as u64, block));
        }
        assert!(!Stamp::OfOffset.fits(0, &bytes[BLOCK_BYTES..]));
        assert!(!Stamp::Zero.fits(0, &bytes) && Stamp::Unknown.fits(0, &bytes));
        let again = TestFile::named(&path).expect("an existing file");
        assert_eq!((again.size_bytes, again.stamp), (size, Stamp::Unknown));
        drop(again);
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }
}
