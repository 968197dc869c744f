//! Model checks: protocols of the pool under many schedules, by shuttle.
//!
//! ```text
//! RUSTFLAGS='--cfg forebay_model' cargo test -p forebay-pool --release --test model
//! ```
//!
//! In this build every lock, atomic and thread of the library is shuttle's (`forebay_base::sync`),
//! so the scheduler may switch threads at each atomic access. Orderings weaker than sequential
//! consistency are not explored; the code that relies on them contains the argument.
//!
//! A failure prints its schedule. To replay it, run the one test with the schedule, as text or as
//! the path of a file:
//!
//! ```text
//! FOREBAY_REPLAY='910102...' RUSTFLAGS=... cargo test ... --test model -- --exact txg::holds_race_quiesce
//! ```
//!
//! `FOREBAY_FULL=1` explores twenty times as many schedules, from a seed that it prints;
//! `FOREBAY_SEED` sets the seed. Other runs always use the same seed.
#![cfg(forebay_model)]

mod log;
mod txg;
