//! The counters of discards. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of the discards of a pool's free space, since import.
    pub table TrimCounters;

    /// Bytes discarded. Devices that do not support discards are left out.
    discarded_bytes;
    /// Ranges discarded.
    discards;
    /// Discards that failed. The space stays free and is used all the same.
    discard_errors;
}
