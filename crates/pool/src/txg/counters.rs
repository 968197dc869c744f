//! The counters of transaction groups. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What transaction groups count, since import.
    pub table TxgCounters;
    labels cause = ["timeout", "dirty", "asked"];

    /// Txgs that the sync thread was told to commit, by cause.
    woken: cause;
    /// Txgs that were closed to new changes.
    quiesced;
    /// Changes that waited until a txg was closed and the next one open.
    waited_open;
    /// Txgs that became durable.
    synced;
    /// Changes that were slowed down because much waits for its commit.
    delayed;
    /// Changes that waited for a commit because no more may wait for one.
    full;
    /// Changes refused because the pool is suspended or closed.
    refused;
}
