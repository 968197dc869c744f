//! Integration tests of levels, through the public interface.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod close;
mod codec;
mod crash;
mod faults;
mod hybrid;
mod life;
mod own_threads;
mod rot;
mod set_back;
mod support;
mod unacknowledged;
mod warm;
