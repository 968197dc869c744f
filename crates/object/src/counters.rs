//! The counters of an object store. `cargo xtask docs` generates `docs/counters.md` from them.

forebay_base::counters! {
    /// Counters of a device on an object store, since it was opened.
    pub table ObjectCounters;
    labels request = ["get", "put", "put_if", "delete", "list"];

    /// Requests sent, attempts that failed included.
    requests: request;
    /// Bytes of bodies of requests that succeeded.
    request_bytes: request;
    /// Attempts that failed and were repeated later.
    retries: request;
    /// Answers that asked for fewer requests.
    slow_downs;
    /// Bodies that were cut, or whose checksum was wrong. They were fetched again.
    damaged_bodies;
    /// Reads that shared a get with the read before them.
    coalesced_reads;
    /// Directories fetched because a read needed one that was not in memory.
    directories_fetched;
    /// Writes of addresses that were written before, with the same bytes.
    rewrites_ignored;
    /// Objects written with blocks of writes.
    sealed_objects;
    /// Log objects written by flushes.
    log_flushes;
    /// Roots written by flushes.
    root_flushes;
    /// Flushes that shared the requests of another one, or had nothing to publish.
    shared_flushes;
    /// Checkpoints of the map.
    checkpoints;
    /// Objects merged into others by the cleaner.
    merged_objects;
    /// Bytes of payload that the cleaner has copied.
    merged_bytes;
    /// Objects deleted, after nothing named them any more.
    deleted_objects;
    /// Objects deleted that an earlier owner has left behind.
    deleted_orphans;
    /// Lists of freed objects that were written, because there were many, or at a close.
    freed_lists;
    /// Deletes that failed. They are tried again.
    deletes_failed;
}
