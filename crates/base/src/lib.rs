//! The ground floor of Forebay: what every other crate stands on, and nothing
//! that knows what a cache, a device or a pool is.
//!
//! * [`sync`]: the one door to atomics, locks and threads, so that a model
//!   checker or a counting build can stand behind it;
//! * [`vm`]: address space that is reserved once and gives memory back piecewise;
//! * [`arena`]: aligned buffers of size classes under a hard limit;
//! * [`clock`], [`rng`]: injected time and randomness;
//! * [`mod@counters`], [`histogram`], [`mod@tunables`]: the tables from which counters and
//!   tunables are made, with their documentation;
//! * [`memory`]: what this process may use and what it uses;
//! * `testing` (a feature): seeds and skipped tests, for the tests of all crates.
//!
//! Linux only: it relies on `madvise`, `/proc` and cgroups.

pub mod arena;
pub mod clock;
pub mod counters;
pub mod histogram;
pub mod memory;
#[cfg(forebay_model)]
pub mod model;
pub mod rng;
pub mod sync;
#[cfg(any(test, forebay_model, feature = "testing"))]
pub mod testing;
pub mod tunables;
pub mod vm;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
