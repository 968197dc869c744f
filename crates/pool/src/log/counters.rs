//! The counters of the intent log. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of the intent log, since import.
    pub table LogCounters;
    labels cause = ["closed", "large", "lost", "full", "failed"];

    /// Commits requested.
    commits;
    /// Commits that found everything durable.
    empty;
    /// Commits that another commit's batch made durable.
    joined;
    /// Batches written, each for one or more commits.
    batches;
    /// Blocks written.
    blocks;
    /// Bytes written, padding included.
    bytes;
    /// Records written.
    records;
    /// Commits that fell back to the transaction group, by cause: `closed` (replay not finished, or
    /// an earlier write failed), `large` (too much data), `lost` (dropped changes), `full` (no
    /// space in the ring), `failed` (a read or write failed).
    to_txg: cause;
    /// Changes of names that were dropped because too many were pending.
    dropped;
    /// Objects whose content was written because a change of names depends on it.
    bound;
    /// Times that content was read again because an object was truncated or destroyed meanwhile.
    refetched;
    /// Records replayed.
    replayed;
}
