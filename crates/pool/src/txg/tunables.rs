//! The tunables of transaction groups. `docs/tunables.md` is made from this table.

forebay_base::tunables! {
    /// Tunables of transaction groups.
    pub table TxgTunables;

    /// A txg with changes is committed after this time, if nobody asks for it before.
    txg_timeout_ms: u32 = 5000, 1..=600_000, runtime, "ms";

    /// Changed bytes that may wait for their commit, over all txgs. At this bound changes wait for a
    /// commit. The pool chooses a default by the size of its cache.
    dirty_max_bytes: bytes = 256 << 20, 1 << 20..=1 << 40, runtime, "bytes";

    /// A txg is committed when its changed bytes pass this share of `dirty_max_bytes`.
    dirty_sync_percent: percent = 40, 1..=100, runtime, "percent";

    /// Changes are slowed down while the changed bytes of all txgs pass this share of `dirty_max_bytes`.
    throttle_percent: percent = 60, 1..=99, runtime, "percent";

    /// Delay of a change when the throttled range is about six tenths used; other delays follow from it.
    throttle_scale_ns: u64 = 500_000, 0..=1_000_000_000, runtime, "ns";
}
