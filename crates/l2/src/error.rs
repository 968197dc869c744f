//! What can go wrong with a level, and what to do about it. A load never fails for the level's reasons: it is a miss.

use std::fmt;

/// Kinds of error; each says what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device holds no level: make one.
    NotAnL2,
    /// The device holds something else, or the level of another: name another device, or force it.
    Foreign,
    /// Another version wrote it: open it with that one, or make it anew.
    Unsupported,
    /// An argument cannot be right: fix the call.
    Invalid,
    /// The device is too small for a level.
    TooSmall,
    /// The device was opened for reading only.
    ReadOnly,
    /// No memory is left in the arena: give it more.
    NoMemory,
    /// The device failed.
    Device,
    /// The level failed, was closed or removed.
    Closed,
    /// The user's codec panicked on a key: mend it.
    Codec,
    /// The system refused a thread.
    Thread,
}

/// An error: its kind, what was being done to what, and the cause.
pub struct Error(Box<ErrorRepr>);

struct ErrorRepr {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What operations of a level return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind; the message names the thing, and the way out if there is one.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorRepr { kind, message: message.into(), source: None }))
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
