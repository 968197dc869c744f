//! The counters of the space maps. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What the space maps count, since the pool was imported.
    pub table SpaceCounters;
    labels copy = ["first", "second"];

    /// Ranges allocated.
    allocations: copy;
    /// Bytes allocated.
    allocated_bytes: copy;
    /// Ranges freed.
    frees;
    /// Bytes freed.
    freed_bytes;
    /// Bytes whose two transaction groups of delay were over, so that they can be allocated again.
    matured_bytes;
    /// Allocations refused because no free range was long enough, or only the reserve was left.
    refused;
    /// Second copies that had to go nearer to the first than an eighth of the device.
    copies_near;
    /// Times that an allocation moved on to another metaslab.
    metaslab_switches;
    /// Metaslabs whose base was read.
    bases_loaded;
    /// Bases written.
    bases_flushed;
    /// Bases that were due, but for which there was no space.
    flushes_skipped;
    /// Entries written to the log.
    log_entries;
    /// Blocks of the log written.
    log_blocks;
    /// Blocks of the log that no base needed any more.
    log_blocks_dropped;
    /// Blocks of the index written.
    index_blocks;
}
