//! Counters of prefetch. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of prefetch, since the import.
    pub table PrefetchCounters;

    /// Reads of a stream that found their first block prefetched and in the cache.
    hits;
    /// Reads of a stream that was not prefetched up to the block, such as the first reads of a
    /// stream.
    misses;
    /// Reads of a stream that found the prefetch of their first block still in flight.
    late;
    /// Reads of a stream whose first block had been prefetched but was missing: evicted, or not
    /// readable.
    lost;
    /// Streams recognized.
    started;
    /// Streams replaced by new ones.
    recycled;
    /// Recognized streams refused because no tracked stream was idle.
    refused;
    /// Blocks selected for prefetch.
    issued;
    /// Blocks prefetched for a stream that was replaced before it read them.
    unused;
}
