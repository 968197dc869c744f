//! The tunables of the cache. `docs/tunables.md` is generated from this table.

forebay_base::tunables! {
    /// Tunables of the cache. All have defaults.
    pub table CacheTunables;

    /// Sublists per list, rounded up to a power of two. 0 means one per CPU, at least 4.
    sublists: u32 = 0, 0..=1024, build, "count";

    /// The cache may exceed its target by the target shifted right by this. Beyond that, inserters
    /// evict before they go on.
    overflow_shift: u32 = 6, 0..=20, runtime, "shift";

    /// How long an inserter or a load waits for capacity if all blocks are pinned. Then its block
    /// is returned uncached. With 0 that happens at once.
    overflow_wait_ms: u32 = 0, 0..=60000, runtime, "ms";

    /// Blocks that the evictor takes from a sublist at once.
    evict_batch_limit: u32 = 64, 1..=1024, runtime, "count";

    /// Share of the capacity that metadata keeps even if data is requested more.
    metadata_floor_percent: u32 = 0, 0..=100, runtime, "percent";

    /// Maximum share of metadata while there is data to cache.
    metadata_ceiling_percent: u32 = 100, 0..=100, runtime, "percent";

    /// Share of the capacity that data keeps even if metadata is requested more.
    data_floor_percent: u32 = 0, 0..=100, runtime, "percent";

    /// Maximum share of data while there is metadata to cache.
    data_ceiling_percent: u32 = 100, 0..=100, runtime, "percent";

    /// Weight of the blocks that ghosts remember, per class, as a share of the capacity.
    ghost_percent: u32 = 200, 0..=400, runtime, "percent";

    /// Hits on a block while it is among this share of the newest blocks of mru do not count as
    /// reuse. 0 counts all.
    correlated_window_permille: u32 = 0, 0..=900, runtime, "permille";

    /// Blocks near the cold end that are offered to the secondary cache ahead of eviction. From mfu
    /// one per sublist, unless mfu has to give up blocks. 0 offers none.
    offer_ahead: u32 = 32, 0..=65536, runtime, "count";
}
