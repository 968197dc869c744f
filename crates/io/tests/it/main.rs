//! Integration tests of devices and roots, through the public interface.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod block_devices;
mod common;
mod double;
mod fault;
mod files;
mod lock;
mod memory;
mod metrics;
mod record;
mod refused;
mod request;
mod roots;
mod roots_load;
mod roots_model;
