//! Errors of the pool. Each kind says how to react.

use std::fmt;

/// Kinds of errors, by the reaction that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object, name or dataset does not exist.
    NotFound,
    /// The name exists already.
    Exists,
    /// An argument is invalid: fix the call.
    Invalid,
    /// No space is left on the devices: delete something, or add a device.
    NoSpace,
    /// No memory is left under the bound of the cache: raise the bound, or do less at once. Or the
    /// system gives no thread.
    NoMemory,
    /// No copy on a device is what was written: restore the content from a backup.
    Corrupt,
    /// A device failed.
    Device,
    /// An essential write failed: nothing is written until the device works and the pool is
    /// [cleared](crate::Pool::clear), or the pool is imported again.
    Suspended,
    /// The devices hold no pool, or some devices of the pool are missing.
    NotAPool,
    /// A newer version wrote this: use that version.
    Unsupported,
    /// Somebody else has it open, or may have.
    InUse,
    /// It was opened read-only.
    ReadOnly,
    /// The pool was exported, or the object was destroyed: open it again.
    Closed,
    /// The operation would block in non-blocking mode, see [`Wait`](crate::Wait): repeat it
    /// on a thread that may block.
    WouldBlock,
}

/// An error: its kind, the operation and its object, and the cause.
pub struct Error(Box<ErrorInner>);

struct ErrorInner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// See [`Error::is_gone`].
    gone: bool,
}

/// Result of the operations of a pool.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind. The message names the object, and the way out if there is one.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorInner { kind, message: message.into(), source: None, gone: false }))
    }

    /// The system gives no thread for `what`.
    #[cold]
    pub(crate) fn no_thread(what: &str, cause: std::io::Error) -> Self {
        let text = format!(
            "the system gives no thread for {what}: {cause}; end other programs, or raise the limit of processes"
        );
        Self::new(ErrorKind::NoMemory, text).because(cause)
    }

    /// Notes that no device answers that could have the block.
    #[must_use]
    pub(crate) fn gone(mut self) -> Self {
        self.0.gone = true;
        self
    }

    /// Whether a block could not be read because no device answers that could have it. The block is
    /// not damaged: it can be read once such a device is back, see
    /// [`Pool::wait_for_devices`](crate::Pool::wait_for_devices).
    pub fn is_gone(&self) -> bool {
        self.0.gone
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Prefixes the message with the operation or the object.
    #[must_use]
    pub fn doing(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// The error of the device's request that caused this error, if a device did.
    pub(crate) fn device_error(&self) -> Option<&forebay_io::Error> {
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            if let Some(io) = error.downcast_ref() {
                return Some(io);
            }
            source = error.source();
        }
        None
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
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

impl From<forebay_io::Error> for Error {
    fn from(error: forebay_io::Error) -> Self {
        let message = match error.kind() {
            forebay_io::ErrorKind::NoSpace => format!(
                "{error}: the file system that holds {} is full; free space on it",
                error.device()
            ),
            _ => error.to_string(),
        };
        Self::new(ErrorKind::Device, message).because(error)
    }
}
