//! Model checks: what a level promises under many schedules, by shuttle.
//!
//! ```text
//! RUSTFLAGS='--cfg forebay_model' cargo test -p forebay-l2 --release --test model
//! ```
//!
//! Every lock, atomic and thread of the library is shuttle's in this build (`forebay_base::sync`), so that each access is a
//! point at which the scheduler may go on with another thread. Time stands still. A failure prints its schedule;
//! `FOREBAY_REPLAY` takes it, as text or as the path of a file, if one test is named.
//!
//! `FOREBAY_FULL=1` searches twenty times as long, from a seed that it prints; `FOREBAY_SEED` sets it.
#![cfg(forebay_model)]

mod forget;
mod harness;
