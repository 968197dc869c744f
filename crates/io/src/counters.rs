//! The counters of a device. `docs/counters.md` is made from this table.
//!
//! They count operations of queue and engine; how long requests take tells
//! [`metrics`](crate::metrics).

forebay_base::counters! {
    /// What a queued device counts, since it was opened.
    pub table IoCounters;
    labels op = ["read", "write", "flush", "discard"];
    labels class = ["sync_read", "sync_write", "async_read", "async_write", "scrub"];

    /// Requests accepted.
    submitted: class;
    /// Requests refused before they were queued: malformed, past the end, read-only, or closed.
    refused;
    /// Requests that ended well.
    completed: op;
    /// Requests that ended in an error of the device.
    failed: op;
    /// Requests that were cancelled before they were issued.
    cancelled: class;
    /// Requests whose priority was raised while they waited.
    raised;
    /// Bytes of requests that ended well.
    bytes: op;
    /// Operations issued to the medium.
    issued: class;
    /// Requests that were merged into an operation that another request began.
    merged;
    /// Merged operations that failed and were issued again request by request.
    split;
    /// Submitters that waited for room in a queue.
    queue_full: class;
    /// Lanes that another lane's step gave permits to.
    queues_woken;
    /// Operations that moved only some of their bytes and were continued.
    continued;
    /// Operations issued again because the system asked for it (`EINTR`, `EAGAIN`).
    retried;
    /// Discards that the medium does not support, and that were therefore left out.
    discards_ignored;
    /// System calls that handed operations to the ring.
    enters;
    /// Such calls that the system refused for the moment.
    enters_refused;
    /// Flushes that a thread which waits executed itself.
    inline_flushes;
    /// Times that a thread which waits drove the ring itself.
    drives;
    /// Times that the reaper's thread was woken.
    completion_thread_wakes;
}
