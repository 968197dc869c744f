//! The tunables of an L2. `cargo xtask docs` generates `docs/tunables.md` from this table.

forebay_base::tunables! {
    /// Tunables of an L2. All have defaults.
    pub table L2Tunables;

    /// Target size of a batch, which is written to the device at once.
    batch_bytes: bytes = 1 << 20, 64 << 10..=16 << 20, build, "bytes";

    /// How long a block waits for others to fill its batch.
    linger_ms: u32 = 50, 0..=10000, runtime, "ms";

    /// Maximum bytes of blocks in the write queue. Blocks beyond it are refused.
    queue_bytes: bytes = 8 << 20, 64 << 10..=1 << 30, runtime, "bytes";

    /// Maximum rate at which blocks are written, per second. While the device has unused space, the
    /// bytes of 16 seconds may be written at once.
    write_max_bytes_per_s: bytes = 256 << 20, 1 << 16..=1 << 40, runtime, "bytes";

    /// Minimum write rate per second, however slow the device becomes.
    write_min_bytes_per_s: bytes = 8 << 20, 1 << 12..=1 << 40, runtime, "bytes";

    /// Admit every offered block, with or without proven reuse.
    admit_all: bool = false, false..=true, runtime, "flag";

    /// Maximum share of a segment that is reinserted before the ring reuses it.
    reinsert_percent: u32 = 75, 0..=75, runtime, "percent";

    /// How long a load may wait for the device. Beyond it, the load is a miss.
    load_timeout_ms: u32 = 2000, 1..=600000, runtime, "ms";

    /// How long a write or a flush may take. Beyond it, the device has failed.
    stall_timeout_ms: u32 = 10000, 1..=600000, runtime, "ms";

    /// Whether the warm-up runs after a restart: it inserts blocks into free memory before they are
    /// requested.
    warm_up: bool = true, false..=true, build, "flag";

    /// Threads of the warm-up.
    warm_up_threads: u32 = 8, 1..=64, build, "count";

    /// Threads of the rebuild. 0 means one per CPU, at most 4.
    rebuild_threads: u32 = 0, 0..=64, build, "count";
}

impl L2Tunables {
    /// Number of rebuild threads.
    pub(crate) fn threads(&self) -> usize {
        match self.rebuild_threads() {
            0 => forebay_base::memory::cpus().clamp(1, 4),
            threads => threads as usize,
        }
    }
}
