//! The tunables of transaction groups. `docs/tunables.md` is generated from this table.

forebay_base::tunables! {
    /// Tunables of transaction groups.
    pub table TxgTunables;

    /// Time after which a txg with changes is committed, if no commit is requested earlier.
    txg_timeout_ms: u32 = 5000, 1..=600_000, runtime, "ms";

    /// Maximum number of dirty bytes, over all txgs. Changes wait for a commit when it is reached.
    /// A fourth of the space that is reserved for indirect blocks counts. By default the pool
    /// derives it from the size of the cache.
    dirty_max_bytes: bytes = 256 << 20, 1 << 20..=1 << 40, runtime, "bytes";

    /// A txg is committed when its dirty bytes exceed this share of `dirty_max_bytes`.
    dirty_sync_percent: percent = 40, 1..=100, runtime, "percent";

    /// Changes are throttled while the dirty bytes of all txgs exceed this share of
    /// `dirty_max_bytes`.
    throttle_percent: percent = 60, 1..=99, runtime, "percent";

    /// Delay of a change when about six tenths of the throttled range are used. Scales all delays.
    throttle_scale_ns: u64 = 500_000, 0..=1_000_000_000, runtime, "ns";
}
