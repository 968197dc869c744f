//! What can go wrong, and what to do about it.

use std::fmt;

/// Kinds of error; each says what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such object, name or dataset.
    NotFound,
    /// The name is taken.
    Exists,
    /// An argument cannot be right: fix the call.
    Invalid,
    /// No space is left on the devices: delete something.
    NoSpace,
    /// No memory is left under the cache's bound: raise it, or do less at once.
    NoMemory,
    /// What a device returned is not what was written, in any copy: restore it from elsewhere.
    Corrupt,
    /// A device failed.
    Device,
    /// A write that had to succeed failed: nothing is written any more until the pool is imported again.
    Suspended,
    /// These devices hold no pool, or not all devices of the pool are there.
    NotAPool,
    /// A newer version wrote this: import it with that one.
    Unsupported,
    /// Somebody else has it open, or may have.
    InUse,
    /// It was opened for reading only.
    ReadOnly,
    /// The pool was exported, or the object destroyed: open it again.
    Closed,
    /// This thread must not wait, see [`non_blocking`](crate::non_blocking): do it on one that may.
    WouldBlock,
}

/// An error: its kind, what was being done to what, and the cause.
pub struct Error(Box<ErrorInner>);

struct ErrorInner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What operations of the pool return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind; the message names the thing, and the way out if there is one.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorInner { kind, message: message.into(), source: None }))
    }

    /// The same, with its cause.
    #[must_use]
    pub fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same, with what was being done in front of its message.
    #[must_use]
    pub fn doing(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

impl From<forebay_io::Error> for Error {
    fn from(error: forebay_io::Error) -> Self {
        let message = error.to_string();
        Self::new(ErrorKind::Device, message).because(error)
    }
}
