//! Priority classes of requests.

use std::fmt;

/// The urgency of a request. Classes are served in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A read that a thread waits for.
    SyncRead,
    /// A write that a thread waits for: a log record, a flush.
    SyncWrite,
    /// A read ahead of use: prefetch.
    AsyncRead,
    /// A background write.
    AsyncWrite,
    /// A read that verifies data, or a write that brings it onto a device that misses it.
    Scrub,
}

impl Priority {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 5] =
        [Self::SyncRead, Self::SyncWrite, Self::AsyncRead, Self::AsyncWrite, Self::Scrub];
    /// Number of classes.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the index in [`ALL`](Self::ALL).
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name used by counters and tunables.
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
