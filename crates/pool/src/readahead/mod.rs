//! Read-ahead: predicts the blocks of an object, or the leaves of a directory, to load in advance.
//!
//! * [`detector`] and [`stream`]: recognize sequential and strided streams among the reads of an
//!   object;
//! * [`object`]: the read-ahead state of one object;
//! * [`directory`]: read-ahead of the leaves of a directory.
//!
//! # Invariants
//!
//! This folder decides and does no I/O: objects and directories issue its plans through
//! `Store::prefetch`, which never blocks.
//!
//! # Locking
//!
//! None: the lock of the object or directory protects its state.

pub(crate) mod counters;
mod detector;
mod directory;
mod object;
mod stream;
pub(crate) mod tunables;

pub use counters::PrefetchCounters;
pub(crate) use detector::{Plan, ReadOutcome};
pub(crate) use directory::{DirectoryReadahead, LEAF_BATCH};
pub(crate) use object::{ObjectReadahead, ReadAhead};
pub use tunables::PrefetchTunables;
