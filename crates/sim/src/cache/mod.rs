//! Trace-driven simulation of caches: the real one of `forebay-cache`, beside the textbook's policies, on traces
//! of keys. `forebay-bench sim` is its command.
//!
//! * [`trace`]: what is simulated, a sequence of keys; [`read`] takes it from files, [`synthetic`] makes it from a seed.
//! * [`policies`]: each policy in a file of its own, with its source at its head.
//! * [`run`]: names, and one simulation from the first access to the last.
//!
//! Every entry has the same size: a capacity is a number of entries. Every access that misses inserts its key. A
//! hit ratio is of all accesses, those of the empty cache included. Nothing depends on time or on the machine: the same
//! trace, capacity and seed give the same hits.
//!
//! What it does not do: entries of several sizes, writes that are not reads, and the second level.

pub mod capacity;
pub mod policies;
pub mod read;
pub mod run;
pub mod synthetic;
pub mod trace;
