//! The counters of a device. `docs/counters.md` is generated from this table.
//!
//! They count operations of queues and engine. [`metrics`](crate::metrics) measures durations.

forebay_base::counters! {
    /// Counters of a queued device, since it was opened.
    pub table IoCounters;
    labels op = ["read", "write", "flush", "discard"];
    labels class = ["sync_read", "sync_write", "async_read", "async_write", "scrub"];

    /// Requests accepted.
    submitted: class;
    /// Requests refused before they were queued: malformed, past the end, read-only, or closed.
    refused;
    /// Requests that succeeded.
    completed: op;
    /// Requests that failed with an error of the device.
    failed: op;
    /// Requests that were cancelled before they were issued.
    cancelled: class;
    /// Requests whose priority was raised while they were queued.
    raised;
    /// Bytes of requests that succeeded.
    bytes: op;
    /// Operations issued to the medium.
    issued: class;
    /// Requests that were merged into the operation of another request.
    merged;
    /// Merged operations that failed and were issued again request by request.
    split;
    /// Submissions that waited for a free slot of a queue.
    queue_full: class;
    /// Runs of a submission queue because another queue passed permits to it.
    queues_woken;
    /// Operations that moved only part of their bytes and were continued.
    continued;
    /// Operations issued again because the system asked for it (`EINTR`, `EAGAIN`).
    retried;
    /// Discards skipped because the medium does not support them.
    discards_ignored;
    /// System calls that entered a ring.
    enters;
    /// Such calls that the system refused.
    enters_refused;
    /// Flushes executed by the thread that waits for them.
    inline_flushes;
    /// Times a waiting thread drove a ring itself.
    drives;
    /// Times a completion thread was woken.
    completion_thread_wakes;
}
