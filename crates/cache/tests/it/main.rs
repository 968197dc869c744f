//! Integration tests of the cache, through its public interface.
//!
//! A test ends with an audit of its cache if the cache still exists.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod async_loading;
mod bad_input;
mod basics;
mod callbacks;
#[cfg(feature = "insight")]
mod explain;
mod keyed;
mod lifetimes;
mod load_errors;
mod loading;
mod memory;
mod operations;
mod owners;
mod pins;
mod policy;
#[cfg(feature = "insight")]
mod recorder;
mod reference_model;
mod secondary;
#[cfg(feature = "insight")]
mod secondary_sizes;
mod stress;
mod superseded;
mod support;
mod textbook;
mod throttle;
mod untrusted_keys;
mod warm_up;
