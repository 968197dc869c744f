//! Why a file or block device cannot be opened.

use std::io;
use std::path::PathBuf;

/// Why a file or block device cannot be opened: which, what is wrong with it, and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing is there.
    #[error(
        "{}: no such file or device; check the path, or give `create_bytes` to make a file",
        path.display()
    )]
    Missing {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A directory is there.
    #[error("{}: is a directory; give a file in it, or a block device", path.display())]
    Directory {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{}: is {what}; give a regular file or a block device", path.display())]
    OtherType {
        /// What was to be opened.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It has too few bytes.
    #[error(
        "{}: has {size_bytes} bytes, at least {min_bytes} are needed; give a larger one, or make \
         it larger (`truncate --size`)",
        path.display()
    )]
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
        /// What it has, in whole sectors.
        size_bytes: u64,
        /// What it needs.
        min_bytes: u64,
    },
    /// It cannot be written to.
    #[error("{}: the medium is read-only; open it with `read_only`", path.display())]
    ReadOnlyMedium {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The user of the process may not.
    #[error(
        "{}: permission denied; give this user access, or open it with `read_only` if it is \
         writing that is not allowed",
        path.display()
    )]
    Permission {
        /// What was to be opened.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A block device has a mounted file system, or another exclusive user.
    #[error(
        "{}: the device is in use, by a mounted file system or as part of another device; unmount \
         it, or open it with `read_only`",
        path.display()
    )]
    Busy {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Somebody else has it open, or this process has, by another device.
    #[error(
        "{}: is in use: {holder} has it open; close it there, or give another file or device",
        path.display()
    )]
    InUse {
        /// What was to be opened.
        path: PathBuf,
        /// Who has it open, with the number of the process and the name of its program if they are known.
        holder: String,
    },
    /// The sector size that was asked for is smaller than what the medium can do.
    #[error(
        "{}: sectors of {asked_bytes} bytes were asked for, the medium needs multiples of \
         {needed_bytes}; ask for {needed_bytes}",
        path.display()
    )]
    SectorMismatch {
        /// What was to be opened.
        path: PathBuf,
        /// What was asked for.
        asked_bytes: u32,
        /// What the medium needs.
        needed_bytes: u32,
    },
    /// Direct I/O was asked for, and the medium cannot.
    #[error(
        "{}: the file system has no direct I/O for this file; open it with `Direct::Auto` or \
         `Direct::Never`",
        path.display()
    )]
    DirectRefused {
        /// What was to be opened.
        path: PathBuf,
    },
    /// io_uring was asked for, and the system refuses it.
    #[error(
        "{}: io_uring is refused here: {why}; allow it, or open with `EngineChoice::Auto`",
        path.display()
    )]
    EngineRefused {
        /// What was to be opened.
        path: PathBuf,
        /// What the system said, and the usual reason.
        why: String,
    },
    /// The options contradict each other or make no sense.
    #[error("{}: {what}", path.display())]
    Options {
        /// What was to be opened.
        path: PathBuf,
        /// What is wrong, and the way out.
        what: String,
    },
    /// The system refused something else.
    #[error("{}: {doing}: {source}", path.display())]
    System {
        /// What was to be opened.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
