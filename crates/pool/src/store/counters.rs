//! The counters of the block store. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What a pool's block store counts, since the pool was imported.
    pub table StoreCounters;
    labels cause = ["miss", "prefetch", "scrub"];

    /// Copies of blocks read from devices, by why.
    reads: cause;
    /// Bytes of such reads.
    read_bytes: cause;
    /// Copies that a device could not read.
    read_errors: cause;
    /// Copies that were not what had been written.
    verify_failures: cause;
    /// Blocks of which no good copy was found.
    blocks_lost;
    /// Bad copies that were written anew from a good one.
    healed;
    /// Bad copies that could not be written anew.
    heal_failures;
    /// Blocks written.
    blocks_written;
    /// Their bytes as they are in memory.
    logical_bytes;
    /// Their bytes as they are on a device, each copy, before rounding up to sectors.
    physical_bytes;
    /// Writes of copies and gang blocks that were handed to devices.
    writes;
    /// Writes that failed.
    write_errors;
    /// Times that a writer waited because too many bytes were on their way.
    write_waits;
    /// Blocks written in pieces, because there was no space in one place.
    gangs;
    /// Trees of blocks that could not be read when they were freed, or parts of them: their space is lost.
    trees_leaked;
    /// Blocks that the cache did not want while they were written.
    uncached_writes;
    /// Reads ahead that were begun.
    prefetches;
    /// Reads ahead that found the block cached, or on its way.
    prefetches_needless;
    /// Reads ahead that were not begun for want of space or memory, or because the block is in
    /// pieces.
    prefetches_declined;
    /// Reads ahead that ended without a block.
    prefetches_failed;
    /// Reads that found their block being read ahead, and hastened it.
    prefetches_joined;
}
