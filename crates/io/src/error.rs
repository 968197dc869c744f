//! Errors of requests.

use std::fmt;
// tidy: std, because names are plain shared memory in every build, the model build included.
use std::sync::Arc as NameArc;

use crate::request::Op;

/// A device's name, as errors carry it.
pub(crate) type Name = NameArc<str>;

/// The kind of a failure, and so the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed: misaligned, empty, or past the end. Fix the request.
    InvalidRequest,
    /// A write, flush or discard on a device that was opened read-only.
    ReadOnly,
    /// The device or the set of roots is closed or closing. Open it again.
    Closed,
    /// The request was cancelled before it was issued.
    Cancelled,
    /// The device reports an error for this request. Others may succeed.
    Device,
    /// The device is gone, or shorter than when it was opened. No request will succeed.
    Gone,
    /// The medium has no space for the write.
    NoSpace,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::InvalidRequest,
        Self::ReadOnly,
        Self::Closed,
        Self::Cancelled,
        Self::Device,
        Self::Gone,
        Self::NoSpace,
    ];

    /// Returns the index in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name used by counters and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::ReadOnly => "read_only",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
            Self::Device => "device",
            Self::Gone => "gone",
            Self::NoSpace => "no_space",
        }
    }
}

/// The error of a request: operation, device, range, and cause.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    op: Op,
    device: Name,
    offset: u64,
    len: u64,
    detail: Detail,
}

#[derive(Clone, Debug)]
enum Detail {
    Text(NameArc<str>),
    System(i32),
    // With the consequence.
    SystemAnd(i32, &'static str),
}

impl Error {
    /// Creates an error of `kind` for the `len` bytes at `offset` of `device`. `detail` tells
    /// people the cause and the remedy.
    pub fn new(
        kind: ErrorKind,
        op: Op,
        device: &Name,
        (offset, len): (u64, u64),
        detail: &str,
    ) -> Self {
        let detail = Detail::Text(detail.into());
        Self { kind, op, device: NameArc::clone(device), offset, len, detail }
    }

    /// Creates an error from the system's `errno` (positive) for the `len` bytes at `offset`.
    pub fn system(op: Op, device: &Name, (offset, len): (u64, u64), errno: i32) -> Self {
        let kind = kind_of(errno);
        let detail = Detail::System(errno);
        Self { kind, op, device: NameArc::clone(device), offset, len, detail }
    }

    /// Returns the same error for the range of one of the merged requests.
    pub(crate) fn with_range(mut self, (offset, len): (u64, u64)) -> Self {
        (self.offset, self.len) = (offset, len);
        self
    }

    /// Returns the same error with its consequence, for people.
    pub(crate) fn and(mut self, consequence: &'static str) -> Self {
        self.detail = match self.detail {
            Detail::System(errno) | Detail::SystemAnd(errno, _) => {
                Detail::SystemAnd(errno, consequence)
            }
            Detail::Text(text) => Detail::Text(format!("{text}; {consequence}").into()),
        };
        self
    }

    /// Returns the cause, without operation and device.
    pub(crate) fn detail(&self) -> String {
        match &self.detail {
            Detail::Text(text) => text.to_string(),
            Detail::System(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
            Detail::SystemAnd(errno, consequence) => {
                format!("{}; {consequence}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns first byte and number of bytes of the request.
    pub fn range(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    /// Returns the system's error number, if the system reported the error.
    pub fn errno(&self) -> Option<i32> {
        match self.detail {
            Detail::System(errno) | Detail::SystemAnd(errno, _) => Some(errno),
            Detail::Text(_) => None,
        }
    }
}

fn kind_of(errno: i32) -> ErrorKind {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        // `NOMEDIUM`: it was removed from its drive. `STALE`: the server no longer has the file.
        Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM | Errno::STALE => ErrorKind::Gone,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::NoSpace,
        Errno::ROFS => ErrorKind::ReadOnly,
        Errno::CANCELED => ErrorKind::Cancelled,
        _ => ErrorKind::Device,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, device, offset, len, .. } = self;
        match op {
            Op::Flush => write!(f, "{op} of {device}: ")?,
            _ => write!(f, "{op} of {len} bytes at {offset} of {device}: ")?,
        }
        f.write_str(&self.detail())
    }
}

impl std::error::Error for Error {}
