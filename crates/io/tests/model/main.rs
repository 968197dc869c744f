//! Model checks: protocols of devices and roots under many schedules, by shuttle.
//!
//! ```text
//! RUSTFLAGS='--cfg forebay_model' cargo test -p forebay-io --release --test model
//! ```
//!
//! Every lock, atomic and thread of the library is shuttle's in this build (`forebay_base::sync`), so
//! that each atomic access is a point at which the scheduler may go on with another thread. Orderings
//! weaker than sequentially consistent are not explored; what they rest on is argued where they stand.
//!
//! A failure prints its schedule. To run it again, name the one test and hand the schedule over, as
//! text or as the path of a file that holds it:
//!
//! ```text
//! FOREBAY_REPLAY='910102...' RUSTFLAGS=... cargo test ... --test model -- --exact roots::no_wake_is_lost
//! ```
//!
//! `FOREBAY_FULL=1` searches twenty times as long, from a seed that it prints; `FOREBAY_SEED` sets it.
//! Ordinary runs always use the same seed.
#![cfg(forebay_model)]

#[path = "../it/double.rs"]
mod double;
mod queue;
mod roots;
