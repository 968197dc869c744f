//! The errors of the cache.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why a block was not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The cache is full of pinned blocks, or no capacity became free in time. Or the caller is a
    /// loader, and values that have left hold all capacity until the listener has run: a loader
    /// does not wait for it.
    #[error(
        "no capacity is free: blocks are pinned or being loaded; try again later, raise the \
         capacity, or allow a wait by the tunable `overflow_wait_ms`"
    )]
    NoCapacity,
    /// Its weight exceeds the capacity or 4 GiB.
    #[error(
        "its weight is {weight}, and a block may weigh at most {most}: the capacity, or 4 GiB; \
         raise the capacity, or keep the block elsewhere"
    )]
    TooHeavy {
        /// Weight of the block, in a cache with a bound including its header.
        weight: u64,
        /// The heaviest block that the cache takes at the moment.
        most: u64,
    },
    /// Its owner does not cache this class.
    #[error("its owner does not cache blocks of this class")]
    ByOwner,
    /// Its owner or the cache is closed or closing.
    #[error("its owner or the cache is closed")]
    Closed,
    /// There is no memory for the cache's own structures.
    #[error("no memory for the cache's own structures; free some and try again")]
    NoMemory,
}

/// A value that an insert did not cache. An older value of the same key was removed all the same,
/// because it would be outdated. Afterwards the key has no value.
pub struct Refused<V> {
    /// Why it was not cached.
    pub reason: Refusal,
    /// The value.
    pub value: V,
    /// Whether an older value was cached, which the insert has removed.
    pub removed: bool,
}

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("reason", &self.reason)
            .field("removed", &self.removed)
            .finish_non_exhaustive()
    }
}

impl<V> fmt::Display for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the block was not cached: {}", self.reason)?;
        let removed = if self.removed { "; the older block of its key was removed" } else { "" };
        f.write_str(removed)
    }
}

impl<V> Error for Refused<V> {}

/// Why a cache could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// None of `capacity`, `bound` and `max_entries` was given, or it is zero.
    #[error("a cache needs a capacity above zero: call `capacity`, `bound` or `max_entries`")]
    NoCapacity,
    /// Neither `weigher` nor `max_entries` was given.
    #[error(
        "nothing says how large a block is: call `weigher` with a function that returns its bytes, \
         or `max_entries(n)` instead of a capacity, which counts each block as 1"
    )]
    NoWeigher,
    /// `max_entries` was given with `capacity`, `bound` or `weigher`.
    #[error(
        "`max_entries` counts each block as 1, so it excludes `capacity`, `bound` and `weigher`: \
         call it without them, or call `capacity` and `weigher` without it"
    )]
    TwoSizes,
    /// The bound leaves no capacity for blocks.
    #[error(
        "a bound of {bound} bytes is too small: the cache's own structures need {overhead} bytes"
    )]
    BoundTooSmall {
        /// The bound in bytes.
        bound: u64,
        /// Bytes that the cache needs before the first block.
        overhead: u64,
    },
    /// The name or value of a tunable is invalid.
    #[error(transparent)]
    Tunable(#[from] forebay_base::tunables::TunableError),
    /// The system provided no memory.
    #[error(transparent)]
    Memory(#[from] forebay_base::vm::Error),
    /// The system provided no thread.
    #[error("cannot start the cache's threads: {0}")]
    Thread(#[source] std::io::Error),
}

/// A close that has not ended in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseTimeout {
    /// How many blocks are still pinned or being loaded. If none are, the listener still runs.
    pub in_use: u64,
    /// How long the close has waited.
    pub timeout: Duration,
}

impl fmt::Display for CloseTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cache is closed, but after {:?} ", self.timeout)?;
        match self.in_use {
            0 => f.write_str("its listener still runs; let it return")?,
            1 => f.write_str("1 of its blocks is still pinned or being loaded; drop it")?,
            n => write!(f, "{n} of its blocks are still pinned or being loaded; drop them")?,
        }
        f.write_str(", and call `close` again to wait for the end")
    }
}

impl Error for CloseTimeout {}

/// Why an owner could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// All owner numbers are in use.
    #[error("cannot open an owner: {limit} are open; close one first")]
    TooMany {
        /// The maximum number of open owners.
        limit: usize,
    },
    /// The cache is closed.
    #[error("cannot open an owner: the cache is closed")]
    Closed,
}
