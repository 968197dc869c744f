//! The counters of the cache. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counts since the cache was built.
    pub table CacheCounters;
    labels class = ["metadata", "data"];
    labels rule = ["mru_1", "mru_5", "mru_20", "mru_50", "recency"];
    labels cause = ["capacity", "removed", "replaced", "cleared", "owner_closed", "uncached", "closed",
        "expired"];

    /// Hits on a block that was just loaded and is in no list yet.
    hits_new: class;
    /// Hits on a block in mru.
    hits_mru: class;
    /// Hits on a block in mfu.
    hits_mfu: class;
    /// Hits on a block hinted `once`.
    hits_once: class;
    /// Lookups by `get` and similar calls that found nothing. Their class is not known.
    lookups_missed;
    /// Loads begun because the block was not cached.
    misses: class;
    /// Requests that joined a load in flight.
    in_flight_joins: class;
    /// Inserted blocks that had a ghost in the mru ghost list.
    ghost_hits_mru: class;
    /// Inserted blocks that had a ghost in the mfu ghost list.
    ghost_hits_mfu: class;
    /// Blocks inserted.
    inserts: class;
    /// Blocks inserted without a hint, except new content: the misses that the miss-ratio curve
    /// counts. Zero without the feature `insight`.
    inserts_unhinted: class;
    /// Blocks not cached because no capacity became free in time.
    refused_no_capacity: class;
    /// Blocks not cached because they are heavier than the cache.
    refused_too_heavy: class;
    /// Blocks not cached because their owner does not cache this class.
    refused_by_owner: class;
    /// Blocks not cached because their owner or the cache is closed or closing.
    refused_closed: class;
    /// Blocks not cached because there was no memory for the index or for headers.
    refused_no_memory: class;
    /// Loads whose block was removed or overwritten meanwhile. It was handed out uncached.
    refused_outdated: class;
    /// Loads that ended with an error, a panic or a dropped load guard.
    loads_failed: class;
    /// Evictions from mru.
    evicted_mru: class;
    /// Evictions from mfu.
    evicted_mfu: class;
    /// Evictions of blocks that were hinted `once`.
    evicted_once: class;
    /// Blocks that left the cache.
    left: cause;
    /// Ghosts removed because there were too many.
    ghosts_trimmed: class;
    /// Eviction passes that freed less than their goal.
    evict_not_enough;
    /// Blocks that the evictor requeued because they were pinned.
    evict_skipped_pinned: class;
    /// Blocks that the evictor requeued because the secondary cache was writing them.
    evict_skipped_writing: class;
    /// Stale list entries that the evictor skipped.
    evict_stale;
    /// Eviction passes.
    evict_passes;
    /// Blocks that moved from mru to mfu by admission, or from `once` to mru after a hit.
    promoted: class;
    /// Blocks evicted from mfu, by admission or because mfu exceeded its share.
    demoted: class;
    /// Candidates of mru that had more uses than their victim in mfu and replaced it.
    admissions_won: class;
    /// Candidates of mru that did not have more uses than their victim in mfu and were evicted.
    admissions_lost: class;
    /// Blocks that moved from mru to mfu without admission because mru exceeded its share.
    overflowed: class;
    /// Blocks evicted under each rule: mru's share of its class is 1 % (and reuse distances are
    /// compared), 5, 20, 50 or 100 % (a CLOCK without admission).
    evicted_under: rule;
    /// Changes of the rule by the miniature simulations.
    rule_changes: class;
    /// Accesses to sampled blocks that the miniature simulations have replayed.
    simulation_accesses: class;
    /// Loads of sampled blocks, which are timed. Zero without the feature `insight`.
    timed_loads;
    /// Time from the beginning of the timed loads until their blocks were published.
    timed_load_ns;
    /// Reservations that found the cache at its overflow limit.
    overflows;
    /// Inserters that waited for capacity.
    throttle_waits;
    /// Inserters whose wait for capacity timed out.
    throttle_timeouts;
    /// Blocks offered to the secondary cache.
    secondary_offered: class;
    /// Loads that the secondary cache took over.
    secondary_hits: class;
    /// Eviction callbacks that ran.
    callbacks_run;
    /// Eviction callbacks dropped because too many were queued.
    callbacks_dropped;
    /// Panics caught in callbacks, wakers, drops of values, and calls of the secondary cache.
    panics_caught;
}
