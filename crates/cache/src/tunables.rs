//! The tunables of the cache. `docs/tunables.md` is made from this table.

forebay_base::tunables! {
    /// Tunables of the cache. None has to be set.
    pub table CacheTunables;

    /// Sublists of each state, rounded up to a power of two; 0 means one a CPU, at least 4.
    sublists: u32 = 0, 0..=1024, build, "count";

    /// The cache may grow past its target by the target shifted right by this; then inserters wait until evicting has made room.
    overflow_shift: u32 = 6, 0..=20, runtime, "shift";

    /// How long an inserter waits for room before its block is handed back uncached.
    overflow_wait_ms: u32 = 200, 0..=60000, runtime, "ms";

    /// Headers taken from one sublist before the evictor goes to another.
    evict_batch_limit: u32 = 64, 1..=1024, runtime, "count";

    /// Share of the capacity that metadata keeps even if data is asked for more.
    metadata_floor_percent: u32 = 0, 0..=100, runtime, "percent";

    /// Share of the capacity that metadata may not exceed while there is data to cache.
    metadata_ceiling_percent: u32 = 100, 0..=100, runtime, "percent";

    /// Share of the capacity that data keeps even if metadata is asked for more.
    data_floor_percent: u32 = 0, 0..=100, runtime, "percent";

    /// Share of the capacity that data may not exceed while there is metadata to cache.
    data_ceiling_percent: u32 = 100, 0..=100, runtime, "percent";

    /// Weight of evicted blocks that is remembered, a class, as a share of the capacity.
    ghost_percent: u32 = 200, 0..=400, runtime, "percent";

    /// References to a block while it is among this share of the newest blocks of mru do not count as reuse; 0 counts all.
    correlated_window_permille: u32 = 0, 0..=900, runtime, "permille";

    /// One list for all blocks, whatever class and hint they have, and a block that was used since it was last looked at
    /// goes to its head: LRU, to compare with. Set `ghost_percent` to 0 with it.
    plain_lru: bool = false, false..=true, build, "flag";

    /// Evictions that may wait for the user's callback; beyond, callbacks are dropped and counted.
    callback_queue: u32 = 4096, 1..=1048576, runtime, "count";

    /// Blocks near the cold end that the second level is offered before they are evicted, beside those that are about to be (of mfu one a
    /// sublist, unless mfu has to give up blocks); 0: nothing is offered.
    offer_ahead: u32 = 32, 0..=65536, runtime, "count";
}
