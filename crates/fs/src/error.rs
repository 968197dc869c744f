//! What can go wrong, in the terms of files.

use std::borrow::Cow;
use std::fmt;

use forebay_pool::ErrorKind as PoolKind;

/// Kinds of error; adapters make numbers of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such name.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was wanted.
    NotADirectory,
    /// A directory was not wanted.
    IsADirectory,
    /// The directory has names in it.
    NotEmpty,
    /// The name or path is too long.
    NameTooLong,
    /// The inode has as many names as it can.
    TooManyLinks,
    /// The pool is full: delete something, or add a device.
    NoSpace,
    /// No memory is left under the cache's bound: raise it, or do less at once.
    NoMemory,
    /// There is no such extended attribute.
    NoAttribute,
    /// The result is larger than what may be returned.
    Range,
    /// Nothing may be changed here.
    ReadOnly,
    /// A device failed.
    Io,
    /// What is on the devices is not what was written.
    Corrupt,
    /// The inode is gone.
    Stale,
    /// The call cannot be right.
    Invalid,
    /// The file would be longer than files can be.
    FileTooLarge,
    /// There is no such operation here.
    NotSupported,
    /// It may not be done to this.
    NotPermitted,
    /// There is nothing of the kind from there on.
    NoSuchOffset,
    /// The value is larger than values can be.
    TooBig,
    /// A write that had to succeed failed: nothing can be changed until the pool is imported again.
    Suspended,
    /// The file system was closed, or its pool exported.
    Closed,
    /// It would have had to wait, and was not to.
    WouldBlock,
}

/// An error: its kind, what is wrong, and the pool's error if that is the cause.
pub struct Error {
    kind: ErrorKind,
    text: Cow<'static, str>,
    cause: Option<forebay_pool::Error>,
}

/// What operations on files return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind; the text names the thing, and the way out if there is one.
    #[cold]
    pub(crate) fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, text: text.into(), cause: None }
    }

    /// Something on the devices that makes no sense.
    #[cold]
    pub(crate) fn corrupt(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, text)
    }

    /// The same, with what was being done in front.
    #[must_use]
    pub(crate) fn doing(mut self, what: impl fmt::Display) -> Self {
        self.text = Cow::Owned(match &*self.text {
            "" => what.to_string(),
            text => format!("{what}: {text}"),
        });
        self
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<forebay_pool::Error> for Error {
    fn from(error: forebay_pool::Error) -> Self {
        let kind = match error.kind() {
            PoolKind::Exists => ErrorKind::Exists,
            // Objects are asked for by numbers that names or callers have: they were there.
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
        Self { kind, text: Cow::Borrowed(""), cause: Some(error) }
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
