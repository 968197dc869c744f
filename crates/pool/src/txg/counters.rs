//! The counters of transaction groups. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of transaction groups, since import.
    pub table TxgCounters;
    labels cause = ["timeout", "dirty", "requested"];

    /// Commits that the sync thread started, by cause.
    woken: cause;
    /// Txgs that were closed.
    quiesced;
    /// Changes that waited for a closing txg.
    waited_open;
    /// Txgs that became durable.
    synced;
    /// Changes that were throttled because too much data was dirty.
    delayed;
    /// Changes that waited for a commit because the limit of dirty bytes was reached.
    full;
    /// Times that the pool was suspended because a txg could not be written.
    suspended;
    /// Suspensions that ended: the txg was written after all.
    resumed;
    /// Changes that failed because the pool was suspended or closed.
    refused;
}
