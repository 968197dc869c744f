//! The classes of requests, in the order in which they are served.

use std::fmt;

/// How urgent a request is. The order of the variants is the order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A read that somebody waits for.
    SyncRead,
    /// A write that somebody waits for: a log record, a flush.
    SyncWrite,
    /// A read that may be wanted soon: prefetch.
    AsyncRead,
    /// A write in the background.
    AsyncWrite,
    /// Reading to verify.
    Scrub,
}

impl Priority {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 5] =
        [Self::SyncRead, Self::SyncWrite, Self::AsyncRead, Self::AsyncWrite, Self::Scrub];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The place in [`ALL`](Self::ALL).
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// As counters and tunables spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SyncRead => "sync_read",
            Self::SyncWrite => "sync_write",
            Self::AsyncRead => "async_read",
            Self::AsyncWrite => "async_write",
            Self::Scrub => "scrub",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
