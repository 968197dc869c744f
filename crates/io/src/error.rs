//! Why a request failed, and why a device cannot be opened.

use std::fmt;
// tidy: std, because names are shared in plain memory in every build, and the shim of the model build is not.
use std::sync::Arc as NameArc;

use crate::request::Op;

/// A device's name as errors carry it.
pub(crate) type Name = NameArc<str>;

/// What kind of failure, and so what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed here: misaligned, empty, or past the end. Fix the request.
    InvalidRequest,
    /// A write, flush or discard on a device that was opened read-only.
    ReadOnly,
    /// The device, or the root set, is closed or closing. Open it again.
    Closed,
    /// Taken back before it was issued.
    Cancelled,
    /// The device reports an error for this request; others may succeed.
    Device,
    /// The device is gone, or is shorter than it was when it was opened. Nothing will succeed.
    Gone,
    /// The medium has no room for the write.
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

    /// The place in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// As counters and messages spell it.
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

/// Why a request failed: what was asked, of whom, and what the system said.
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
    // And what follows from it.
    SystemAnd(i32, &'static str),
}

impl Error {
    /// An error of `kind` for the `len` bytes at `offset` of the device called `device`, with
    /// `detail` for people: what is wrong, and the way out.
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

    /// The system's `errno` (positive) for the `len` bytes at `offset`.
    pub fn system(op: Op, device: &Name, (offset, len): (u64, u64), errno: i32) -> Self {
        let kind = kind_of(errno);
        let detail = Detail::System(errno);
        Self { kind, op, device: NameArc::clone(device), offset, len, detail }
    }

    /// The same for another range: of one of the requests that were merged into what failed.
    pub(crate) fn with_range(mut self, (offset, len): (u64, u64)) -> Self {
        (self.offset, self.len) = (offset, len);
        self
    }

    /// The same, with what follows from it for people.
    pub(crate) fn and(mut self, consequence: &'static str) -> Self {
        self.detail = match self.detail {
            Detail::System(errno) | Detail::SystemAnd(errno, _) => {
                Detail::SystemAnd(errno, consequence)
            }
            Detail::Text(text) => Detail::Text(format!("{text}; {consequence}").into()),
        };
        self
    }

    /// What is wrong, without what was asked of whom.
    pub(crate) fn detail(&self) -> String {
        match &self.detail {
            Detail::Text(text) => text.to_string(),
            Detail::System(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
            Detail::SystemAnd(errno, consequence) => {
                format!("{}; {consequence}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }

    /// What kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was asked for.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// First byte and number of bytes of the request.
    pub fn range(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    /// What the system said, if it was the system.
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
        // `NOMEDIUM`: it was taken out of its drive. `STALE`: the server has no such file any more.
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
