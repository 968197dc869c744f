//! Model checks: the cache's protocols under many schedules, by shuttle.
//!
//! ```text
//! RUSTFLAGS='--cfg forebay_model' cargo test -p forebay-cache --release --test model
//! ```
//!
//! In this build, locks, atomics and threads are shuttle's (`forebay_base::sync`), so each atomic
//! access is a point at which the scheduler may switch to another thread. Tables are tiny: a
//! segment of the index holds 5 to 10 entries, a chunk of headers about a dozen. Orderings weaker
//! than sequentially consistent are not explored; `docs/locking.md` argues for them.
//!
//! A failure prints its schedule. To replay it, name the test and pass the schedule, as text or as
//! the path of a file:
//!
//! ```text
//! FOREBAY_REPLAY='910102...' RUSTFLAGS=... cargo test ... --test model -- --exact header::hits_race_everything
//! ```
//!
//! `FOREBAY_FULL=1` searches twenty times as long, from a seed that it prints. `FOREBAY_SEED` sets
//! the seed. Ordinary runs always use the same seed.
#![cfg(forebay_model)]

mod close;
mod harness;
mod header;
mod index;
mod keyed;
mod listener;
mod lists;
mod owned;
mod secondary;
mod single_flight;
mod slab;
mod spill;
mod throttle;
