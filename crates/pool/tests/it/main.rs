//! Integration tests of pools, through the public interface.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod about;
mod ahead;
mod cache_devices;
mod common;
mod damage;
mod failures;
mod fsync;
mod import;
mod inspect;
mod interrupt;
mod life;
mod objects;
mod room;
mod seek;
mod settings;
mod waiting;
mod warm;
