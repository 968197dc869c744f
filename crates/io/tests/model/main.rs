//! Model checks: protocols of devices and roots under many schedules, with shuttle.
//!
//! ```text
//! RUSTFLAGS='--cfg forebay_model' cargo test -p forebay-io --release --test model
//! ```
//!
//! In this build every lock, atomic and thread of the library is shuttle's (`forebay_base::sync`),
//! so each atomic access is a point at which the scheduler may switch threads. Orderings weaker
//! than sequentially consistent are not explored; comments in the code argue for them.
//!
//! A failure prints its schedule. To replay it, name the one test and pass the schedule, as text or
//! as the path of a file that holds it:
//!
//! ```text
//! FOREBAY_REPLAY='910102...' RUSTFLAGS=... cargo test ... --test model -- \
//!     --exact roots::no_wake_is_lost
//! ```
//!
//! `FOREBAY_FULL=1` searches twenty times as long, from a seed that it prints; `FOREBAY_SEED` sets
//! it. Ordinary runs always use the same seed.
#![cfg(forebay_model)]

#[path = "../it/double.rs"]
mod double;
mod queue;
mod roots;
