//! The tunables of prefetch. `docs/tunables.md` is made from this table.

forebay_base::tunables! {
    /// Tunables of prefetch.
    pub table PrefetchTunables;

    /// One stream of reads is read ahead of by at most this much; 0 turns prefetch off.
    prefetch_max_bytes: bytes = 8 << 20, 0..=1 << 30, runtime, "bytes";

    /// So far a stream's distance grows by being used. Beyond, it grows only when reads find blocks
    /// still on their way.
    prefetch_ramp_bytes: bytes = 1 << 20, 0..=1 << 30, runtime, "bytes";

    /// A stream without reads for this long may give way to a new one.
    prefetch_idle_ms: u32 = 1000, 0..=600_000, runtime, "ms";
}
