//! Scheduling without I/O: which request is served next, and how many operations may be in flight.
//!
//! * [`SubmissionQueue`]: the bounded queues of all classes in front of one ring. It merges
//!   adjacent requests and hands out one [`Operation`] after another;
//! * [`Permits`]: the device-wide limits on operations in flight, handed to queues in batches;
//! * [`Limits`]: the numbers.
//!
//! Locking: a submission queue is protected by its engine's lock. The permits have a lock of their
//! own, taken about once per batch. See the heads of the modules.

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
