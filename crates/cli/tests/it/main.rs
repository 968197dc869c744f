//! The program as users meet it: run as a process, judged by what it prints, its exit code, and
//! what is there afterwards.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start processes and threads, wait and watch the time themselves"
)]

mod advise;
mod bad_input;
mod control;
mod demo;
mod discover;
mod durable;
mod events;
mod explain;
mod fixture;
mod follower_l2;
mod gone;
mod health;
mod holes;
mod inspect;
mod inspect_json;
mod l2_devices;
mod lifecycle;
mod log_devices;
mod logging;
mod memory;
mod metrics;
mod mirrors;
mod mount_options;
mod mounts;
mod object_store;
mod output;
mod overwrite;
mod probes;
mod s3;
mod salvage;
mod scrub;
mod sectors;
mod set_id;
mod suspended;
mod top;
mod trace;
mod trim;
mod umount;
mod xattrs;
