//! The counters of the intent log. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What the intent log counts, since import.
    pub table LogCounters;
    labels cause = ["closed", "large", "lost", "full", "failed"];

    /// Commits asked for.
    commits;
    /// Commits that found everything durable.
    empty;
    /// Commits that another one's writes made durable.
    joined;
    /// Batches written, each for one or more commits.
    batches;
    /// Blocks written.
    blocks;
    /// Bytes written, padding included.
    bytes;
    /// Records written.
    records;
    /// Commits that were sent to the transaction group, by cause: the log is not open yet or a write to it failed
    /// before, too much at once, changes that were not kept, no space in the ring, a failed read or write.
    to_txg: cause;
    /// Changes of directories that were not kept because too many waited.
    dropped;
    /// Objects whose content a commit wrote because a name was changed that needs it.
    bound;
    /// Times that content was fetched again, because an object was cut or destroyed meanwhile.
    refetched;
    /// Records replayed.
    replayed;
}
