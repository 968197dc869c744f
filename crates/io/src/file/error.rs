//! Errors of opening a file or block device.

use std::io;
use std::path::PathBuf;

/// Why a file or block device cannot be opened: path, cause and remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path does not exist.
    #[error(
        "{}: no such file or device; check the path, or set `create_bytes` to create a file",
        path.display()
    )]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The folder of the path does not exist.
    #[error(
        "{}: there is no folder {}; create it first (`mkdir --parents`), or check the path",
        path.display(),
        folder.display()
    )]
    MissingFolder {
        /// The path.
        path: PathBuf,
        /// The folder in which the file should be.
        folder: PathBuf,
    },
    /// The path is a directory.
    #[error("{}: is a directory; give a file in it, or a block device", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{}: is {what}; give a regular file or a block device", path.display())]
    OtherType {
        /// The path.
        path: PathBuf,
        /// The type of the file.
        what: &'static str,
    },
    /// The medium is too small.
    #[error(
        "{}: is too small: it has {size_bytes} bytes, and at least {min_bytes} are needed, in whole \
         sectors of {sector_bytes}; use a larger one, or enlarge it (`truncate --size`)",
        path.display()
    )]
    TooSmall {
        /// The path.
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: u64,
        /// Its sector size in bytes. The rest beyond whole sectors is not used.
        sector_bytes: u32,
        /// The least size in bytes.
        min_bytes: u64,
    },
    /// The medium is read-only.
    #[error("{}: the medium is read-only; open it with `read_only`", path.display())]
    ReadOnlyMedium {
        /// The path.
        path: PathBuf,
    },
    /// The process lacks permission.
    #[error(
        "{}: permission denied; give this user access, or open it with `read_only` if only writing \
         is not allowed",
        path.display()
    )]
    Permission {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A block device has a mounted file system or another exclusive user.
    #[error(
        "{}: the device is in use, by a mounted file system or as part of another device; unmount \
         it, or open it with `read_only`",
        path.display()
    )]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// Another process, or another device of this process, has it open.
    #[error(
        "{}: is in use{}, or give another file or device",
        path.display(),
        open_by(holder.as_deref())
    )]
    InUse {
        /// The path.
        path: PathBuf,
        /// The holder, with process number and program name, if it is known.
        holder: Option<String>,
    },
    /// The requested sector size is smaller than the medium's.
    #[error(
        "{}: the requested sector size is {requested_bytes} bytes, but the medium needs a multiple \
         of {needed_bytes}; request {needed_bytes}",
        path.display()
    )]
    SectorMismatch {
        /// The path.
        path: PathBuf,
        /// The requested sector size in bytes.
        requested_bytes: u32,
        /// The medium's sector size in bytes.
        needed_bytes: u32,
    },
    /// The medium's sectors are larger than any buffer's alignment.
    #[error(
        "{}: has sectors of {sector_bytes} bytes, but at most {max_bytes} are supported; give \
         another device, or a file on this one",
        path.display()
    )]
    LargeSectors {
        /// The path.
        path: PathBuf,
        /// The medium's sector size in bytes.
        sector_bytes: u32,
        /// The largest supported sector size in bytes.
        max_bytes: u32,
    },
    /// Direct I/O was required, but the medium does not support it.
    #[error(
        "{}: the file system does not support direct I/O for this file; open it with `Direct::Auto` or \
         `Direct::Never`",
        path.display()
    )]
    DirectRefused {
        /// The path.
        path: PathBuf,
    },
    /// io_uring was required, but the system refuses it.
    #[error(
        "{}: cannot use io_uring: {why}; allow it, or open with `EngineChoice::Auto`",
        path.display()
    )]
    EngineRefused {
        /// The path.
        path: PathBuf,
        /// The system's error and its usual cause.
        why: String,
    },
    /// The options are invalid or contradict each other.
    #[error("{}: {what}", path.display())]
    Options {
        /// The path.
        path: PathBuf,
        /// The cause and the remedy.
        what: String,
    },
    /// Another error of the system.
    #[error("{}: cannot {doing}: {source}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The failed action.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn open_by(holder: Option<&str>) -> String {
    match holder {
        Some(holder) => format!(": {holder} has it open; close it there"),
        None => "; close it first".to_owned(),
    }
}
