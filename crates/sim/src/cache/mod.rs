//! Trace-driven simulation of caches: `forebay-cache` and textbook policies on traces of keys.
//! `forebay-bench sim` is its command.
//!
//! * [`trace`]: a sequence of keys. [`read`] reads traces from files, [`synthetic`] generates them
//!   from a seed.
//! * [`policies`]: one file per policy, with its source at its head.
//! * [`run`]: policies by name, and one simulation of a trace.
//! * [`two_levels`]: Forebay's cache before a ring of segments.
//!
//! All entries have the same size, so a capacity is a number of entries. Every miss inserts its
//! key. A hit ratio covers all accesses, including those of the empty cache. Results do not depend
//! on time: the same trace, capacity and seed give the same hits.
//!
//! It does not simulate entries of several sizes, writes, or the admission of L2.

pub mod capacity;
pub mod policies;
pub mod read;
pub mod run;
pub mod synthetic;
pub mod trace;
pub mod two_levels;
