//! The counters of the block store. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of a pool's block store, since import.
    pub table StoreCounters;
    labels cause = ["miss", "prefetch", "scrub"];

    /// Copies read from devices, by cause.
    reads: cause;
    /// Bytes of these reads.
    read_bytes: cause;
    /// Time that these reads took, in nanoseconds: that of the device, and that in its queues.
    read_ns: cause;
    /// Copies that a device could not read.
    read_errors: cause;
    /// Copies with a wrong checksum, without those that a device is known to miss. A walk (scrub,
    /// check) counts a copy once; one that a prefetch has read counts once a reader reads it.
    verify_failures: cause;
    /// Blocks without a good copy.
    blocks_lost;
    /// Bad copies that were rewritten from a good copy, without those that a device was known to
    /// miss.
    healed;
    /// Bad copies that could not be rewritten.
    heal_failures;
    /// Blocks written.
    blocks_written;
    /// Logical bytes of blocks written.
    logical_bytes;
    /// Physical bytes of blocks written, all copies, before rounding up to sectors.
    physical_bytes;
    /// Writes of copies and gang blocks that were submitted to devices.
    writes;
    /// Writes that failed.
    write_errors;
    /// Writes that were submitted later, because the heartbeat was late.
    writes_deferred;
    /// Failed writes that were repeated at the same place.
    write_retries;
    /// Blocks that got another place, because writes to the first one failed.
    blocks_moved;
    /// Copies that could not be written. The other copy of the block was.
    copies_missing;
    /// Flushes that failed while a txg was written.
    flush_failures;
    /// Writes that were repeated, because a flush after them had failed.
    writes_repeated;
    /// Copies of an uberblock that could not be written. Another copy was.
    uberblocks_missing;
    /// Flushes in the middle of a commit, to release memory.
    early_flushes;
    /// Times that a commit waited for memory.
    memory_waits;
    /// Times that a writer waited because too many bytes were in flight.
    write_waits;
    /// Blocks written as gangs, because no contiguous free range was large enough.
    gangs;
    /// Block trees, or parts of them, that could not be read when they were freed. Their space is
    /// leaked.
    trees_leaked;
    /// Blocks that the cache refused while they were written.
    uncached_writes;
    /// Prefetches started.
    prefetches;
    /// Prefetches that found the block cached or being read.
    prefetches_needless;
    /// Prefetches declined because there was no free capacity or memory, or because the block is a
    /// gang.
    prefetches_declined;
    /// Prefetches that failed.
    prefetches_failed;
    /// Reads that found a prefetch of their block in flight and raised its priority.
    prefetches_joined;
}
