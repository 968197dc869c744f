//! Traces of block accesses: recorded from a running pool, kept in files, and read again.
//!
//! * `record`: one access, in memory and in a file.
//! * `recorder`: the rings that readers fill, and the session that drains them.
//! * `file`: the file format, its writer and its reader.
//!
//! # Invariants
//!
//! - While no session is open, an access costs a relaxed load, and the rings have no memory.
//! - Recording never waits for the session: what does not fit is dropped and counted.
//! - The memory of a session is fixed at its start, and counts against the bound of the cache.
//! - A file is not trusted: no count in it sizes an allocation beyond [`FRAME_BYTES_MAX`].
//!
//! # Locking
//!
//! `trace-ring` (8 per pool) is a leaf lock, held for one record or for the draining of a ring.

pub(crate) mod file;
pub(crate) mod record;
pub(crate) mod recorder;
#[cfg(all(test, not(forebay_model)))]
mod tests;

pub use file::{
    FRAME_BYTES_MAX, TRACE_MAGIC, TraceError, TraceHeader, TraceItem, TraceReader, TraceTotals,
    put_header, put_path, put_records,
};
pub use record::{TraceOutcome, TraceRecord};
pub use recorder::TraceSession;
