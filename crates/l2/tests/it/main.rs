//! Integration tests of the L2, through the public interface.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod absent;
mod close;
mod codec;
mod corruption;
mod crash;
mod events;
mod executor;
mod failed_writes;
mod faults;
mod flushes;
mod hybrid;
mod hybrid_async;
mod hybrid_expiry;
mod hybrid_flush;
mod hybrid_groups;
mod hybrid_many;
mod hybrid_open;
mod hybrid_operations;
mod in_flight;
mod lifecycle;
mod own_threads;
mod rollback;
mod superseded;
mod support;
mod unreadable;
mod warm_up;
