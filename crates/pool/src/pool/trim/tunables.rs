//! The tunables of discards.

forebay_base::tunables! {
    /// Tunables of how freed space goes back to the devices.
    pub table TrimTunables;

    /// Whether space that the pool frees in files goes back to their file systems, in the
    /// background.
    trim_files: bool = true, false..=true, runtime, "flag";

    /// The same for block devices. Without it, `forebay trim` does it from time to time.
    trim_block_devices: bool = false, false..=true, runtime, "flag";

    /// How long freed space is gathered before it is discarded in the background. Space that is
    /// used again meanwhile is left alone.
    trim_delay_ms: u32 = 60_000, 0..=86_400_000, runtime, "ms";

    /// Shorter free ranges are not discarded.
    trim_min_bytes: bytes = 128 << 10, 4 << 10..=1 << 30, runtime, "bytes";

    /// Most bytes that are discarded per second in the background. 0: no limit. `forebay trim` has
    /// no limit.
    trim_rate_bytes: bytes = 1 << 30, 0..=1 << 40, runtime, "bytes";
}
