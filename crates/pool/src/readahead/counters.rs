//! The counters of prefetch. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What prefetch counts, since import.
    pub table PrefetchCounters;

    /// Reads that found what was read ahead of them.
    hits;
    /// Reads of a stream that had not been read ahead of, such as its first ones.
    misses;
    /// Reads that found what was read ahead of them still on its way.
    late;
    /// Reads that did not find what had been read ahead of them: it had been evicted, or failed.
    lost;
    /// Streams that were recognized.
    started;
    /// Streams that gave way to new ones.
    recycled;
    /// Streams that were recognized while there was no room for one.
    refused;
    /// Blocks that were to be read ahead.
    issued;
    /// Blocks read ahead of streams that ended before they got there.
    unused;
}
