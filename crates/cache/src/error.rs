//! What callers are told when something did not work.

use std::error::Error;
use std::fmt;

// tidy: std, because errors are the user's, whose trait objects coerce into std's `Arc` alone.
type SharedError = std::sync::Arc<dyn Error + Send + Sync>;

/// Why a load gave no block. Cloned to every waiter; never cached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The loader failed; its error is the source. Ask again to load again.
    #[error("the block could not be loaded: {0}")]
    Failed(#[source] SharedError),
    /// The loader panicked. Ask again to load again.
    #[error("the loader of the block panicked")]
    Panicked,
    /// The filler was dropped without a block: its load was given up. Ask again to load again.
    #[error("the load of the block was given up")]
    Abandoned,
    /// The cache is closed. Open another.
    #[error("the cache is closed")]
    Closed,
    /// Memory for the cache's own structures could not be had. Free some and ask again.
    #[error("no memory for the cache's own structures: {0}")]
    NoMemory(String),
}

impl LoadError {
    /// A failure with `source` as its reason.
    pub fn failed(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(SharedError::from(source.into()))
    }
}

/// Why a block was not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No room came free in time.
    #[error("no room came free in time; try later, or give the cache more capacity")]
    NoCapacity,
    /// It is heavier than the whole cache, or than 4 GiB.
    #[error("it is heavier than the cache can hold")]
    TooHeavy,
    /// Its owner does not want this class cached.
    #[error("its owner does not cache blocks of this class")]
    ByOwner,
    /// Its owner, or the cache, is closed or closing.
    #[error("its owner or the cache is closed")]
    Closed,
    /// Memory for the cache's own structures could not be had.
    #[error("no memory for the cache's own structures")]
    NoMemory,
}

/// An insert that did not cache its value, which comes back. An older value of the same key is
/// gone from the cache all the same: it would be outdated.
pub struct Refused<V> {
    /// Why.
    pub reason: Refusal,
    /// The value.
    pub value: V,
}

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<V> fmt::Display for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the block was not cached: {}", self.reason)
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
    /// The bound leaves no room for blocks beside the cache's own structures.
    #[error(
        "a bound of {bound} bytes leaves nothing for blocks: the cache's own structures need {overhead}"
    )]
    BoundTooSmall {
        /// Bytes asked for.
        bound: u64,
        /// Bytes needed before the first block.
        overhead: u64,
    },
    /// A tunable's name or value is wrong.
    #[error(transparent)]
    Tunable(#[from] forebay_base::tunables::TunableError),
    /// The system gave no memory.
    #[error(transparent)]
    Memory(#[from] forebay_base::vm::Error),
    /// The system gave no thread.
    #[error("cannot start the cache's threads: {0}")]
    Thread(#[source] std::io::Error),
}

/// Why an owner could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// All numbers for owners are taken.
    #[error("{limit} owners are open; close one first")]
    TooMany {
        /// How many there can be.
        limit: usize,
    },
    /// The cache is closed.
    #[error("the cache is closed")]
    Closed,
}
