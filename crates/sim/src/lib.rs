//! What the pool is tested with: a naive twin of what is in it, random work that is done on both, crashes at every
//! moment of that work, and faults.
//!
//! * [`model`]: the twin; [`history`]: all changes ever made, from which any state that a crash may leave can be
//!   made again.
//! * [`workload`]: random changes, from a seed.
//! * [`crash`]: recorded devices, images of crashes, and what must be true of each.
//! * [`compare`]: a pool beside its twin.
//! * [`forge`]: images that somebody made wrong; [`hostile`]: what one tries with them.
//!
//! A failure is a panic that names the seed which repeats it.
//!
//! And what the cache is measured with: [`cache`], a simulator that plays traces to it and to the textbook's policies.

// A tool: it starts threads and waits as a user of the pool would, and no model checker runs it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cache;
pub mod compare;
pub mod crash;
pub mod forge;
pub mod history;
pub mod hostile;
pub mod journal;
pub mod medium;
pub mod model;
pub mod rig;
pub mod soak;
pub mod workload;
