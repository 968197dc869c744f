//! The foundation of Forebay: code that all crates share and that knows no caches, devices or
//! pools.
//!
//! * [`sync`]: atomics, locks and threads, which a model checker or a counting build can replace;
//! * [`vm`]: reserved address space whose pages can be released;
//! * [`arena`]: aligned buffers from size classes under a hard limit on memory;
//! * [`clock`], [`rng`]: injected time and randomness;
//! * [`mod@counters`], [`histogram`], [`mod@tunables`]: tables from which counters and tunables are
//!   generated, with their documentation;
//! * [`mod@probe`]: places where bpftrace and perf can listen;
//! * [`memory`]: limits and use of memory and processors of this process;
//! * `testing` (a feature): seeds, long runs and skips, for the tests of all crates.
//!
//! Linux only: it uses `madvise`, `/proc` and cgroups.

pub mod arena;
pub mod clock;
pub mod counters;
pub mod histogram;
pub mod memory;
#[cfg(forebay_model)]
pub mod model;
pub mod probe;
pub mod rng;
pub mod sync;
#[cfg(any(test, forebay_model, feature = "testing"))]
pub mod testing;
pub mod tunables;
pub mod vm;
pub mod waits;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
