//! The counters of the cache. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What the cache counts, since it was built.
    pub table CacheCounters;
    labels class = ["metadata", "data"];
    labels rule = ["mru_1", "mru_5", "mru_20", "mru_50", "recency"];
    labels cause = ["capacity", "removed", "replaced", "flushed", "owner_closed", "uncached", "closed"];

    /// Lookups answered by a block that was filled an instant ago and is not in a list yet.
    hits_new: class;
    /// Lookups answered by a block in the mru state.
    hits_mru: class;
    /// Lookups answered by a block in the mfu state.
    hits_mfu: class;
    /// Lookups answered by a block that was hinted `once`.
    hits_once: class;
    /// Lookups by `get` and its kin that found nothing; their class is not known.
    lookups_missed;
    /// Loads begun by `begin` and its kin because the block was not there.
    misses: class;
    /// Requests that joined a load already in flight.
    in_flight_joins: class;
    /// Blocks asked for again whose ghost was in the mru ghost list.
    ghost_hits_mru: class;
    /// Blocks asked for again whose ghost was in the mfu ghost list.
    ghost_hits_mfu: class;
    /// Blocks that entered the cache.
    inserts: class;
    /// Blocks not cached because no room came free in time.
    refused_no_capacity: class;
    /// Blocks not cached because they are heavier than the cache.
    refused_too_heavy: class;
    /// Blocks not cached because their owner does not want this class cached.
    refused_by_owner: class;
    /// Blocks not cached because their owner, or the cache, is closed or closing.
    refused_closed: class;
    /// Blocks not cached because memory for the index or for headers could not be had.
    refused_no_memory: class;
    /// Loads whose block was removed or overwritten before it came; it was handed out but not cached.
    refused_outdated: class;
    /// Loads that ended in an error, a panic or a dropped filler.
    loads_failed: class;
    /// Evictions from mru.
    evicted_mru: class;
    /// Evictions from mfu.
    evicted_mfu: class;
    /// Evictions of blocks that were hinted `once`.
    evicted_once: class;
    /// Blocks that left the cache, by cause.
    left: cause;
    /// Ghosts forgotten because they were too many.
    ghosts_trimmed: class;
    /// Eviction passes that fell short of their target bytes.
    evict_not_enough;
    /// Blocks that the evictor passed over because somebody was using them.
    evict_skipped_pinned: class;
    /// Blocks that the evictor passed over because the second level was writing them.
    evict_skipped_writing: class;
    /// Entries of blocks long gone that the evictor passed over.
    evict_stale;
    /// Eviction passes.
    evict_passes;
    /// Blocks that moved from mru to mfu because they were asked for more often than others, or from `once` to mru because they were looked up again.
    promoted: class;
    /// Blocks of mfu that were evicted.
    demoted: class;
    /// Newcomers that were asked for more often than their rival in mfu, and took its place.
    admissions_won: class;
    /// Newcomers that were not, and were evicted in its stead.
    admissions_lost: class;
    /// Blocks that went over from mru to mfu without a contest, because the rule means less for mru now.
    overflowed: class;
    /// Blocks evicted while a rule was in force for their class: mru is meant to have 1 (and the distance of uses decides, not their number), 5, 20 or 50 % of its room, or all.
    evicted_under: rule;
    /// Times that the shadow caches led to another rule.
    rule_changes: class;
    /// Accesses to sampled blocks that the shadow caches have played.
    simulation_accesses: class;
    /// Times that the cache was found past its overflow limit.
    overflows;
    /// Inserters that waited for room.
    throttle_waits;
    /// Inserters that waited in vain.
    throttle_timeouts;
    /// Blocks offered to the second level.
    secondary_offered: class;
    /// Loads that the second level took over.
    secondary_hits: class;
    /// Eviction callbacks that ran.
    callbacks_run;
    /// Eviction callbacks that were dropped because too many were waiting.
    callbacks_dropped;
    /// Eviction callbacks, loaders' and the second level's calls that panicked.
    panics_caught;
}
