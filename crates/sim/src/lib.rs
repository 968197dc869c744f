//! Test support for the pool, and a cache simulator.
//!
//! * [`model`]: a reference model of a pool. [`history`]: all changes that were made; it rebuilds
//!   any state that a crash may leave.
//! * [`workload`]: random changes from a seed, made to the pool and to the model.
//! * [`crash`]: recorded devices, images of crashes, and the checks of each image.
//! * [`compare`]: compares a pool with its model.
//! * [`corrupter`]: corrupted images. [`hostile`]: every operation that is tried with them.
//! * [`soak`]: hours of work under faults and kills, with a [`journal`](mod@journal).
//! * [`cache`]: a simulator that replays traces to the cache and to textbook policies.
//!
//! A failure is a panic that names the seed which repeats it.

// Test support: it starts threads and waits like a user of the pool. No model checker runs it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cache;
pub mod compare;
pub mod corrupter;
pub mod crash;
pub mod fixture;
pub mod history;
pub mod hostile;
pub mod journal;
pub mod model;
pub mod raw_device;
pub mod soak;
pub mod workload;
