//! Errors of an L2. A load never returns one: it is a miss.

use std::fmt;

use forebay_base::sync::Arc;

/// The kind of an error. Each kind says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device holds no L2. Create one.
    NotAnL2,
    /// The device holds other data, or the L2 of another owner. Name another device, or use force.
    Foreign,
    /// Another version wrote the L2. Open it with that version, or recreate it.
    Unsupported,
    /// An argument is invalid. Fix the call.
    Invalid,
    /// The device is too small for an L2. Use a larger one.
    TooSmall,
    /// The device was opened read-only. Open it for writing.
    ReadOnly,
    /// The arena has no free memory. Raise its limit.
    NoMemory,
    /// The device failed.
    Device,
    /// The L2 failed, was closed, or was removed. Open it again.
    Closed,
    /// It has not ended in time, and goes on. Wait longer.
    TimedOut,
    /// The user's codec panicked on a key. Fix the codec.
    Codec,
    /// The system refused to create a thread. Raise the process's thread limit.
    Thread,
}

/// An error: its kind, a message, and the source.
#[derive(Clone)]
pub struct Error(Box<ErrorRepr>);

#[derive(Clone)]
struct ErrorRepr {
    kind: ErrorKind,
    message: String,
    /// Shared, so that an error can be cloned.
    source: Option<Arc<Box<dyn std::error::Error + Send + Sync>>>,
}

/// The result of operations on an L2.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error. The message names the object, the cause and, if there is one, the way out.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorRepr { kind, message: message.into(), source: None }))
    }

    /// Attaches the source of the error.
    #[must_use]
    pub fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
    ) -> Self {
        self.0.source = Some(Arc::new(source.into()));
        self
    }

    /// The kind of the error.
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
        self.0.source.as_ref().map(|source| &***source as &(dyn std::error::Error + 'static))
    }
}

impl From<forebay_io::Error> for Error {
    fn from(error: forebay_io::Error) -> Self {
        let message = error.to_string();
        Self::new(ErrorKind::Device, message).because(error)
    }
}
