//! Integration tests of pools, through the public interface.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod about;
mod added_mirrors;
mod attach;
mod blocking;
mod common;
mod damage;
mod damaged_labels;
mod directories;
mod errors;
mod events;
mod explain;
mod failures;
mod fences;
mod followed;
mod followed_l2;
mod free_space;
mod fsync;
mod images;
mod import;
mod inspect;
mod interrupt;
mod l2_devices;
mod life;
mod log_device;
mod log_ring;
mod log_sides;
mod log_takeover;
mod mirror_faults;
mod mirrors;
mod mistaken_devices;
mod object_store;
mod objects;
mod preallocate;
mod readahead;
mod reopen;

mod salvage;
mod scrub;
mod sectors;
mod seek;
mod settings;
mod sides;
mod store_outages;
mod trace;
mod trim;
mod two_hosts;
mod walk_ahead;
mod warm_up;
mod write_errors;
