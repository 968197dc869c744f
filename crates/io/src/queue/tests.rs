//! The queue without I/O: a lane against its naive twin, permits shared by several lanes, and the
//! points that a random walk would hardly hit.

mod double;
mod permits;
mod reference_model;
mod submission_queue;
