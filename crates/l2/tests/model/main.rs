//! Model checks: the guarantees of the L2 under many schedules, with shuttle.
//!
//! ```text
//! RUSTFLAGS='--cfg forebay_model' cargo test -p forebay-l2 --release --test model
//! ```
//!
//! In this build every lock, atomic and thread of the library is shuttle's (`forebay_base::sync`),
//! so the scheduler may switch threads at each access. Time stands still. A failure prints its
//! schedule. `FOREBAY_REPLAY` takes it, as text or as a file's path, if one test is named.
//!
//! `FOREBAY_FULL=1` searches twenty times as long, from a seed that it prints; `FOREBAY_SEED` sets
//! it.
#![cfg(forebay_model)]

mod forget;
mod groups;
mod harness;
mod rebuild;
mod rollback;
mod superseded;
