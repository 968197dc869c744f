//! The counters of a level. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What a second level counts, since it was opened.
    pub table L2Counters;
    labels class = ["metadata", "data"];
    labels skipped = ["cached", "evicted", "no_capacity", "no_memory", "unwanted", "unknown_owner", "undecodable", "corrupt", "outdated"];
    labels outcome = ["done", "no_capacity", "no_keys", "disabled", "closed", "failed"];
    labels reason = ["rate", "queue_full", "no_proven_reuse", "little_reuse", "too_large", "class_excluded", "owner_excluded", "not_durable", "rebuilding", "failed", "removed", "codec_panicked"];

    /// Blocks that the cache offered.
    offered: class;
    /// Blocks offered that the level had already.
    offered_known: class;
    /// Blocks taken to be written.
    admitted: class;
    /// Blocks not taken, by reason.
    refused: reason;
    /// Blocks admitted that had left the cache before they could be written.
    admitted_dropped: class;
    /// Blocks admitted that were not written, because a write failed, the level failed or ended before, or the codec panicked.
    admitted_lost: class;
    /// Blocks that were overwritten or removed before they were written, and left out, or while they were written.
    outdated: class;
    /// Blocks written that can be found now.
    stored: class;
    /// Bytes written to the device, of all kinds.
    written_bytes;
    /// Bytes of blocks written, carried ones included, with their headers.
    block_bytes;
    /// Batches written.
    batches;
    /// Segments begun.
    segments;
    /// Flushes.
    flushes;
    /// Tombstones written.
    tombstones;
    /// Keys forgotten that the level had.
    forgotten;
    /// Keys that could not be forgotten for good: the device had failed, the level was closed, or the codec panicked on the key.
    forget_failures;
    /// Blocks carried forward when the ring came round to them.
    reinserted: class;
    /// Blocks that were worth carrying forward, and were lost for want of room or memory, or by a failed read.
    reinsert_lost: class;
    /// Blocks that the ring ran over.
    evicted: class;
    /// Blocks that the ring ran over and that memory had: they are offered again when memory lets go of them.
    evicted_in_memory: class;
    /// Loads answered.
    hits: class;
    /// Loads of what the level does not have.
    misses;
    /// Loads of what is on the device but must not be returned: it failed its check before, or is outdated.
    misses_bad;
    /// Loads of what may be on the device, while the level did not know yet whether it is current.
    misses_rebuilding;
    /// Loads not tried because the device did not answer others in time.
    misses_stalled;
    /// Loads not tried because there was no memory to read into.
    misses_no_memory;
    /// Loads not tried because the level has failed or was closed.
    misses_closed;
    /// Loads whose read failed.
    load_errors;
    /// Loads whose read took too long and was given up.
    load_timeouts;
    /// Loads that found something else than was written.
    load_corrupt;
    /// Loads that the ring overtook: the block's segment was used again meanwhile.
    load_evicted;
    /// Loads that found another key's block: both have the same identity.
    load_false_hits;
    /// Loads whose key or value the codec could not encode or decode, or found no memory for.
    load_undecodable;
    /// Panics of the user's codec, or weigher, that were caught.
    codec_panics;
    /// Bytes read by loads.
    load_bytes;
    /// Writes that failed.
    write_errors;
    /// Flushes that failed.
    flush_errors;
    /// Reads of logs, or of blocks to be carried forward, that failed.
    read_errors;
    /// Blocks found by the rebuild.
    rebuild_blocks;
    /// Tombstones found by the rebuild.
    rebuild_tombstones;
    /// Segments of which the rebuild could not read all.
    rebuild_damaged;
    /// Blocks put back into memory after a restart before anybody asked for them.
    warmed: class;
    /// Blocks looked at for that and not put back: memory had them, had let them go, or had no room or memory; their dataset, or whatever their owner
    /// is, does not want them in memory or is not known; they cannot be decoded, are not what was written, or were outdated by then.
    warm_up_skipped: skipped;
    /// Bytes read for that.
    warm_up_bytes;
    /// Reads for that that failed.
    warm_up_errors;
    /// How it ended: all was looked at, memory had no room left, the codec cannot make keys, it was switched off, the level or the cache was closed, or the
    /// device failed.
    warm_up_ended: outcome;
    /// Times that the level was emptied because it knew of what its user did not: that had been set back.
    rollbacks;
}
