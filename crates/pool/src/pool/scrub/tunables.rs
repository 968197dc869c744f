//! The tunables of scrubs.

forebay_base::tunables! {
    /// Tunables of scrubs.
    pub table ScrubTunables;

    /// Most bytes that a scrub reads per second, all copies, unless it has a rate of its own. 0: no
    /// limit.
    scrub_rate_bytes: bytes = 0, 0..=1 << 40, runtime, "bytes";

    /// Blocks that a scrub or check reads before it takes the newest trees.
    scrub_slice_blocks: u32 = 4096, 1..=1 << 20, runtime, "count";
}
