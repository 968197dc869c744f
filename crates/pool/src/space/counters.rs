//! The counters of the space maps. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of the space maps, since import.
    pub table SpaceCounters;
    labels copy = ["first", "second"];

    /// Ranges allocated, by copy.
    allocations: copy;
    /// Bytes allocated, by copy.
    allocated_bytes: copy;
    /// Ranges freed.
    frees;
    /// Bytes freed.
    freed_bytes;
    /// Freed bytes that became reusable, three transaction groups after they were freed.
    matured_bytes;
    /// Allocations refused because no free range was long enough, or only the reserve was left.
    refused;
    /// Allocations that found no space and waited for the end of discards, whose ranges are held.
    waited_for_discards;
    /// Bytes that are not allocated again before the next import, because a write to them failed.
    avoided_bytes;
    /// Second copies that were placed closer to the first than an eighth of the device.
    copies_near;
    /// Times that an allocation switched to another metaslab.
    metaslab_switches;
    /// Bases read.
    bases_loaded;
    /// Bases written.
    bases_flushed;
    /// Bases that were due but not written for lack of space.
    flushes_skipped;
    /// Entries written to the log.
    log_entries;
    /// Blocks of the log written.
    log_blocks;
    /// Blocks of the log that were freed because no base needed them.
    log_blocks_dropped;
    /// Blocks of the index written.
    index_blocks;
}
