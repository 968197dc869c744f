//! A block device on an S3 object store.
//!
//! [`ObjectDevice`] is a [`Device`](forebay_io::Device) of 64 PiB over a prefix of a store. Each
//! address is written once, except in two small mutable areas: a copy-on-write pool wants no more.
//! Blocks become immutable objects; a flush publishes them by one conditional put.
//!
//! * [`connect`] finds the store of a URL. [`MemoryStore`] is one for tests. Others implement
//!   [`ObjectStore`].
//! * [`ObjectDevice::create`] needs an empty prefix. [`ObjectDevice::open`] takes a store over:
//!   from then on the flushes of its former owner fail, and its writes once it knows.
//!   [`ObjectDevice::open_read_only`] writes nothing.
//! * [`Follower`] opens a store read-only, again and again: a device for each state.
//! * [`LiveRanges`] says which addresses are in use, so that the cleaner can merge and delete
//!   objects.
//!
//! It has threads of its own with an async runtime, which no other crate sees.

mod cleaner;
mod client;
mod conditional;
pub mod counters;
mod credentials;
#[cfg(any(test, feature = "testing"))]
mod decorator;
mod deferred;
mod destroy;
mod device;
mod directories;
mod engine;
mod error;
mod follower;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), allow(unreachable_pub))]
pub mod fuzzing;
mod history;
mod limiter;
mod load;
mod map;
mod memory;
mod mutable;
mod open;
mod options;
mod orphans;
mod pins;
mod probe;
mod profile;
mod publish;
mod reader;
mod run;
mod s3;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))]
pub mod simulated;
mod store;
mod survey;
#[cfg(test)]
mod tests;
mod writer;

pub use cleaner::LiveRanges;
#[cfg(any(test, feature = "testing"))]
pub use decorator::StoreDecorator;
pub use device::{ObjectDevice, Sessions, StoreState, destroy};
pub use engine::Fenced;
pub use error::{Error, StoreFault};
pub use follower::{FollowState, Follower};
pub use format::{DEVICE_BYTES, MUTABLE_BYTES, SECTOR_BYTES, TAIL_BYTES, WINDOW_BYTES};
pub use memory::MemoryStore;
pub use options::Options;
pub use s3::connect;
pub use store::{
    Body, Condition, ObjectStore, Sink, StoreError, StoreErrorKind, StoreFuture, Version,
};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
