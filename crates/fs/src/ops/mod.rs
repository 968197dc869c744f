//! The operations of a file system.
//!
//! Each operation has the same phases:
//!
//! 1. Look up and read everything needed. The operation can fail here, or report that it would
//!    block, without having changed anything.
//! 2. Begin a transaction and take the inode locks.
//! 3. Check again what may have changed. If it has, start over.
//! 4. Apply the changes. This phase must not stop half-way, so it may block on devices in any mode
//!    ([`Transaction::allow_wait`](forebay_pool::Transaction::allow_wait)). It rarely does.
//!
//! If the last phase fails for lack of memory or space, or for a device, it is rolled back: names
//! first, because they may need space, then attributes. So a failed operation can be repeated
//! ([`FileSystem::run`](crate::FileSystem::run)), unless the rollback fails too.

mod attr;
pub(crate) mod dir;
mod file;
mod names;
pub(crate) mod privileges;
mod range;
mod remove;
mod rename;
mod xattr;

use crate::error::{Error, ErrorKind, Result};
use crate::format::NAME_MAX;

/// Largest number of restarts because of concurrent changes.
pub(crate) const RETRIES_MAX: usize = 1000;

/// # Errors
/// [`NameTooLong`](ErrorKind::NameTooLong), or [`Invalid`](ErrorKind::Invalid) if it cannot name an
/// entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        let text = format!("name of {} bytes is too long: at most {NAME_MAX}", name.len());
        return Err(Error::new(ErrorKind::NameTooLong, text));
    }
    let is_name =
        !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    match is_name {
        true => Ok(()),
        false => {
            let text = format!("{:?} is not a valid name", String::from_utf8_lossy(name));
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// The result of a rollback. If it fails, the operation is not repeated.
pub(crate) fn rolled_back<T>(rollback: Result<T>) -> Result<T> {
    rollback.map_err(Error::without_wait)
}

#[cold]
pub(crate) fn not_found() -> Error {
    Error::new(ErrorKind::NotFound, "the name does not exist")
}

#[cold]
pub(crate) fn exists() -> Error {
    Error::new(ErrorKind::Exists, "the name exists already")
}

#[cold]
pub(crate) fn retries_exhausted() -> Error {
    Error::new(ErrorKind::Io, "too many concurrent changes of the same names: try again")
}
