//! The counters of an L2. `cargo xtask docs` generates `docs/counters.md` from this table.

forebay_base::counters! {
    /// Counters of an L2 since it was opened.
    pub table L2Counters;
    labels class = ["metadata", "data"];
    labels skipped = ["cached", "evicted", "no_capacity", "no_memory", "unwanted", "unknown_owner", "undecodable", "corrupt", "outdated", "expired"];
    labels outcome = ["done", "no_capacity", "no_keys", "disabled", "closed", "failed"];
    labels reason = ["rate", "queue_full", "no_proven_reuse", "little_reuse", "too_large", "class_excluded", "owner_excluded", "value_excluded", "not_durable", "rebuilding", "failed", "removed", "codec_panicked"];

    /// Blocks that the cache offered.
    offered: class;
    /// Offered blocks that the L2 already held.
    offered_known: class;
    /// Blocks admitted to the write queue.
    admitted: class;
    /// Blocks refused, by reason.
    refused: reason;
    /// Admitted blocks that were not written because the cache had already evicted them, or because
    /// memory was exhausted.
    admitted_dropped: class;
    /// Admitted blocks that were not written because a write failed, the L2 failed or was closed,
    /// or the codec panicked.
    admitted_lost: class;
    /// Admitted blocks that were overwritten or removed before or while they were written.
    outdated: class;
    /// Blocks written that loads can find.
    stored: class;
    /// Bytes written to the device, of all kinds.
    written_bytes;
    /// Bytes of written blocks with their headers, reinserted blocks included.
    block_bytes;
    /// Batches written.
    batches;
    /// Segments opened for writing.
    segments;
    /// Device flushes.
    flushes;
    /// Tombstones written.
    tombstones;
    /// Keys forgotten that the L2 held.
    forgotten;
    /// Keys whose removal is not durable because the device had failed, the L2 was closed, or the
    /// codec panicked on the key.
    forget_failures;
    /// Blocks reinserted before the ring reused their segment.
    reinserted: class;
    /// Blocks selected for reinsertion by rank that were evicted for lack of space or memory, or
    /// because a read failed.
    reinsert_lost: class;
    /// Blocks evicted because the ring reused their segment.
    evicted: class;
    /// Evicted blocks that were still in memory. The cache offers them again when it evicts them.
    evicted_in_memory: class;
    /// Loads that returned a value.
    hits: class;
    /// Loads of blocks that the L2 does not hold.
    misses;
    /// Loads of blocks that are on the device but must not be returned: a check failed before, or
    /// the block is outdated.
    misses_bad;
    /// Loads refused because the rebuild did not know yet whether the block is current.
    misses_rebuilding;
    /// Loads not attempted because other reads were overdue.
    misses_stalled;
    /// Loads not attempted because no memory was free for the read.
    misses_no_memory;
    /// Loads not attempted because the L2 had failed or was closed.
    misses_closed;
    /// Loads whose read failed.
    load_errors;
    /// Loads that were given up because the read took longer than `load_timeout_ms`.
    load_timeouts;
    /// Loads that failed the checksum.
    load_corrupt;
    /// Loads whose segment was reused during the read.
    load_evicted;
    /// Loads that found the block of another key with the same hash.
    load_false_hits;
    /// Loads that found a value whose time was over.
    load_expired;
    /// Loads whose key or value the codec could not encode or decode, or for which the codec had no
    /// memory.
    load_undecodable;
    /// Panics of the user's codec or weigher that were caught.
    codec_panics;
    /// Bytes read by loads.
    load_bytes;
    /// Writes that failed.
    write_errors;
    /// Device flushes that failed.
    flush_errors;
    /// Failed reads of logs, or of blocks to be reinserted.
    read_errors;
    /// Blocks that the rebuild found.
    rebuild_blocks;
    /// Tombstones that the rebuild found.
    rebuild_tombstones;
    /// Segments that the rebuild could not read completely.
    rebuild_damaged;
    /// Blocks that the warm-up inserted into memory.
    warmed: class;
    /// Blocks that the warm-up skipped: memory held them, had evicted them, or had no capacity or
    /// memory; their owner excludes them or is unknown; or they are undecodable, corrupt,
    /// outdated or expired.
    warm_up_skipped: skipped;
    /// Bytes that the warm-up read.
    warm_up_bytes;
    /// Reads of the warm-up that failed.
    warm_up_errors;
    /// How the warm-up ended: it processed all blocks, memory had no free capacity, the codec
    /// cannot decode keys, it is disabled, the L2 or the cache was closed, or the device failed.
    warm_up_ended: outcome;
    /// Times that the L2 was emptied because it held blocks newer than its user, which was rolled
    /// back.
    rollbacks;
}
