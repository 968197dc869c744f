//! Errors of file system operations.

use std::borrow::Cow;
use std::fmt;

use forebay_pool::ErrorKind as PoolKind;

/// Kinds of errors. Adapters map them to `errno` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name does not exist.
    NotFound,
    /// The name exists already.
    Exists,
    /// The operation needs a directory.
    NotADirectory,
    /// The operation does not work on a directory.
    IsADirectory,
    /// The directory is not empty.
    NotEmpty,
    /// The name or path is too long.
    NameTooLong,
    /// The inode has the largest possible number of links.
    TooManyLinks,
    /// The pool is full: delete files or add a device.
    NoSpace,
    /// The cache's memory limit is reached: raise it, or run fewer operations at once.
    NoMemory,
    /// The extended attribute does not exist.
    NoAttribute,
    /// A size is out of range.
    Range,
    /// The file system or pool is read-only.
    ReadOnly,
    /// A device failed.
    Io,
    /// Data on the devices is damaged.
    Corrupt,
    /// The inode no longer exists.
    Stale,
    /// An argument is invalid.
    Invalid,
    /// The file would exceed the largest possible size.
    FileTooLarge,
    /// The operation is not supported.
    NotSupported,
    /// The operation is not permitted on this inode.
    NotPermitted,
    /// No data or hole follows the offset.
    NoSuchOffset,
    /// The value is too large.
    TooBig,
    /// The pool is suspended after a failed write: clear it, or import it again, to make changes.
    Suspended,
    /// The process on whose behalf the operation waited was killed.
    Interrupted,
    /// The file system is closed, or its pool exported.
    Closed,
    /// The operation would block, and is in non-blocking mode.
    WouldBlock,
}

/// An error: its kind, a message, and the error of the pool that caused it, if any.
pub struct Error {
    kind: ErrorKind,
    text: Cow<'static, str>,
    cause: Option<forebay_pool::Error>,
    /// See [`waits`](Self::waits).
    waits: bool,
}

/// Result of operations on files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error of an inode that is no more what a caller knows. For servers that give inodes
    /// numbers of their own.
    pub fn stale(text: &'static str) -> Self {
        Self::new(ErrorKind::Stale, text)
    }

    /// An error of this kind. The text names the object, and what to do if there is something.
    #[cold]
    pub(crate) fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, text: text.into(), cause: None, waits: false }
    }

    /// Whether the operation may be repeated once devices that are gone are back. It has changed
    /// nothing.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The error of an operation that must not be repeated: it has given up waiting, or made a part
    /// of its changes that cannot be rolled back.
    #[cold]
    #[must_use]
    pub(crate) fn without_wait(self) -> Self {
        Self { waits: false, ..self }
    }

    /// The same error, of a call that wants to know that it would have to wait for `clear`.
    #[cold]
    pub(crate) fn suspended(self) -> Self {
        Self { kind: ErrorKind::Suspended, ..self.without_wait() }
    }

    /// An error about invalid data on the devices.
    #[cold]
    pub(crate) fn corrupt(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, text)
    }

    /// Prefixes the message with the operation in progress.
    #[must_use]
    pub(crate) fn doing(mut self, what: impl fmt::Display) -> Self {
        self.text = Cow::Owned(match &*self.text {
            "" => what.to_string(),
            text => format!("{what}: {text}"),
        });
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<forebay_pool::Error> for Error {
    fn from(error: forebay_pool::Error) -> Self {
        let kind = match error.kind() {
            PoolKind::Exists => ErrorKind::Exists,
            // Object numbers come from names and callers, so the object existed before.
            PoolKind::NotFound => ErrorKind::Stale,
            PoolKind::Invalid => ErrorKind::Invalid,
            PoolKind::NoSpace => ErrorKind::NoSpace,
            PoolKind::NoMemory => ErrorKind::NoMemory,
            PoolKind::Corrupt => ErrorKind::Corrupt,
            PoolKind::Suspended => ErrorKind::Suspended,
            PoolKind::ReadOnly => ErrorKind::ReadOnly,
            PoolKind::Closed => ErrorKind::Closed,
            PoolKind::WouldBlock => ErrorKind::WouldBlock,
            _ => ErrorKind::Io,
        };
        let waits = error.is_gone();
        Self { kind, text: Cow::Borrowed(""), cause: Some(error), waits }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.text, &self.cause) {
            ("", Some(cause)) => write!(f, "{cause}"),
            (text, Some(cause)) => write!(f, "{text}: {cause}"),
            (text, None) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as &(dyn std::error::Error + 'static))
    }
}
