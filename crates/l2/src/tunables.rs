//! The tunables of a level. `docs/tunables.md` is made from this table.

forebay_base::tunables! {
    /// Tunables of a second level. None has to be set.
    pub table L2Tunables;

    /// Bytes that are written to the device at once, if so much waits.
    batch_bytes: bytes = 1 << 20, 64 << 10..=16 << 20, build, "bytes";

    /// How long a block waits for others to be written with.
    linger_ms: u32 = 50, 0..=10000, runtime, "ms";

    /// Bytes of blocks that may wait to be written; more is refused.
    queue_bytes: bytes = 8 << 20, 64 << 10..=1 << 30, runtime, "bytes";

    /// Bytes of blocks that are written in a second, at most.
    write_max_bytes_per_s: bytes = 256 << 20, 1 << 16..=1 << 40, runtime, "bytes";

    /// Bytes of blocks that are written in a second if there are so many, however slow the device has become.
    write_min_bytes_per_s: bytes = 8 << 20, 1 << 12..=1 << 40, runtime, "bytes";

    /// Take every block that is offered, whether it has proven reuse or not.
    admit_all: bool = false, false..=true, runtime, "flag";

    /// Share of a segment that is carried forward when the ring comes round to it, at most.
    reinsert_percent: u32 = 75, 0..=75, runtime, "percent";

    /// How long a load may wait for the device; then it is a miss.
    load_timeout_ms: u32 = 2000, 1..=600000, runtime, "ms";

    /// How long a write or a flush may take; then the device has failed.
    stall_timeout_ms: u32 = 10000, 1..=600000, runtime, "ms";

    /// Whether blocks are put back into memory after a restart before anybody asks for them, as far as it has room that nobody needs.
    warm_up: bool = true, false..=true, build, "flag";

    /// Threads that do that.
    warm_up_threads: u32 = 8, 1..=64, build, "count";

    /// Threads that find out what the device holds when the level is opened; 0 means one a CPU, at most 4.
    rebuild_threads: u32 = 0, 0..=64, build, "count";
}

impl L2Tunables {
    /// Threads of the rebuild.
    pub(crate) fn threads(&self) -> usize {
        match self.rebuild_threads() {
            0 => forebay_base::memory::cpus().clamp(1, 4),
            threads => threads as usize,
        }
    }
}
