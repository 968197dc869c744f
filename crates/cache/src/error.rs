//! The errors of the cache.

use std::error::Error;
use std::fmt;

/// Why a block was not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No capacity became free in time.
    #[error("no capacity became free in time; try again later, or raise the capacity")]
    NoCapacity,
    /// Its weight exceeds the capacity or 4 GiB.
    #[error("its weight exceeds the capacity of the cache or 4 GiB")]
    TooHeavy,
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
    /// Neither `capacity` nor `bound` was given, or it is zero.
    #[error("a cache needs a capacity above zero: call `capacity` or `bound`")]
    NoCapacity,
    /// A keyed cache has a capacity in bytes and no weigher.
    #[error(
        "a capacity in bytes needs a function that weighs a value: call `weigher`, or call \
         `max_entries` instead"
    )]
    NoWeigher,
    /// A keyed cache has a number of entries, and a capacity, a bound or a weigher too.
    #[error(
        "a cache has one size: call either `max_entries`, or `capacity` or `bound` and `weigher`"
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
