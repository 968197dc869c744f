//! Scheduling without I/O: a submission queue against a reference model, permits shared by several
//! queues, and cases that a random walk would rarely hit.

mod double;
mod permits;
mod reference_model;
mod submission_queue;
