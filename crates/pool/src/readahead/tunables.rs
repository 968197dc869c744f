//! Tunables of prefetch. `docs/tunables.md` is generated from this table.

forebay_base::tunables! {
    /// Tunables of prefetch.
    pub table PrefetchTunables;

    /// Maximum prefetch distance of a stream in bytes; 0 turns prefetch off. 64MiB on an object
    /// store.
    prefetch_max_bytes: bytes = 8 << 20, 0..=1 << 30, runtime, "bytes";

    /// Up to this distance a stream's distance doubles with each refill. Beyond, it doubles only
    /// when reads find blocks still in flight. 8MiB on an object store.
    prefetch_ramp_bytes: bytes = 1 << 20, 0..=1 << 30, runtime, "bytes";

    /// A stream without reads for this long may be replaced by a new one.
    prefetch_idle_ms: u32 = 1000, 0..=600_000, runtime, "ms";
}
