//! Which request is served next, and how many may be in flight: pure scheduling, no I/O.
//!
//! * [`SubmissionQueue`]: the bounded queues of five classes in front of one ring. It merges neighbours, and hands
//!   out one [`Operation`] after the other;
//! * [`Permits`]: the limits on what is in flight, device-wide, leased to lanes in lots;
//! * [`Limits`]: those numbers.
//!
//! Locking: a lane stands under its engine's lock; the permits have a lock of their own for what
//! happens once a lot. See the heads of the modules.

mod class_queue;
mod credits;
mod limits;
mod operation;
mod permit_pool;
mod permits;
mod submission_queue;
#[cfg(all(test, not(forebay_model)))]
mod tests;

pub use limits::Limits;
pub use operation::{MAX_MERGED, Operation, Requests};
pub use permits::{MAX_SUBMISSION_QUEUES, PermitStats, Permits, QueueCredits, QueuesToRun};
pub use submission_queue::SubmissionQueue;
