//! Which request is served next, and how many may be in flight: pure scheduling, no I/O.
//!
//! * [`Lane`]: the bounded queues of five classes in front of one ring. It merges neighbours, and hands
//!   out one [`Issue`] after the other;
//! * [`Permits`]: the limits on what is in flight, device-wide, leased to lanes in lots;
//! * [`Limits`]: those numbers.
//!
//! Locking: a lane stands under its engine's lock; the permits have a lock of their own for what
//! happens once a lot. See the heads of the modules.

mod class;
mod issue;
mod lane;
mod lease;
mod limits;
mod permits;
mod pool;
#[cfg(all(test, not(forebay_model)))]
mod tests;

pub use issue::{Issue, MAX_PIECES, Pieces};
pub use lane::Lane;
pub use limits::Limits;
pub use permits::{Kick, MAX_LANES, PermitStats, Permits, Seat};
