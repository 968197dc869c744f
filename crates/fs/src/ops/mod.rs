//! The operations.
//!
//! Each has the same steps. What it needs is looked up and read first, so that it can fail, or say that it would wait, before
//! anything has changed. Then it begins its transaction, takes the turns of the inodes that it changes, and looks
//! again at what may have changed; if it did, it starts over. From there on it waits for devices, if it has to, but hardly has to.
//!
//! What fails half-way for want of memory or room is taken back: names first, since these may need room, attributes last.

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

/// Times that an operation starts over because names change under it.
pub(crate) const RETRIES_MAX: usize = 1000;

/// Runs what must not stop half-way.
pub(crate) fn apply<R>(f: impl FnOnce() -> R) -> R {
    forebay_pool::waiting_allowed(f)
}

/// # Errors
/// [`NameTooLong`](ErrorKind::NameTooLong); [`Invalid`](ErrorKind::Invalid) for what is no name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        let text = format!("a name of {} bytes: {NAME_MAX} is the most", name.len());
        return Err(Error::new(ErrorKind::NameTooLong, text));
    }
    let is_name =
        !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    match is_name {
        true => Ok(()),
        false => {
            let text = format!("{:?} is no name of an entry", String::from_utf8_lossy(name));
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

#[cold]
pub(crate) fn not_found() -> Error {
    Error::new(ErrorKind::NotFound, "there is no such name")
}

#[cold]
pub(crate) fn exists() -> Error {
    Error::new(ErrorKind::Exists, "the name is taken")
}

#[cold]
pub(crate) fn retries_exhausted() -> Error {
    Error::new(ErrorKind::Io, "its names change faster than it can be done; try again")
}
