//! The tunables of a device's queues. `docs/tunables.md` is generated from this table.
//!
//! Each of the five classes has a number of operations that it can always have in flight (`_min`)
//! and one that it never exceeds (`_max`). The defaults are for solid-state drives, which work best
//! with 64 operations or more in flight. Every maximum is at least 32, so a load of one class at
//! that depth is never queued. `queue/limits.rs` reconciles numbers that contradict each other.

forebay_base::tunables! {
    /// Tunables of a device's queues. All have defaults.
    pub table IoTunables;

    /// Synchronous reads that may always be in flight.
    sync_read_min: u32 = 32, 1..=1024, build, "count";

    /// Most synchronous reads in flight.
    sync_read_max: u32 = 256, 1..=4096, build, "count";

    /// Synchronous writes that may always be in flight.
    sync_write_min: u32 = 16, 1..=1024, build, "count";

    /// Most synchronous writes in flight.
    sync_write_max: u32 = 128, 1..=4096, build, "count";

    /// Asynchronous reads that may always be in flight.
    async_read_min: u32 = 4, 1..=1024, build, "count";

    /// Most asynchronous reads in flight.
    async_read_max: u32 = 128, 1..=4096, build, "count";

    /// Asynchronous writes that may always be in flight.
    async_write_min: u32 = 4, 1..=1024, build, "count";

    /// Most asynchronous writes in flight.
    async_write_max: u32 = 64, 1..=4096, build, "count";

    /// Reads and writes of scrubs and resilvers that may always be in flight.
    scrub_min: u32 = 2, 1..=1024, build, "count";

    /// Most reads and writes of scrubs and resilvers in flight.
    scrub_max: u32 = 32, 1..=4096, build, "count";

    /// Most operations in flight, all classes together; never less than the sum of the minimums.
    total_max: u32 = 256, 5..=8192, build, "count";

    /// Most queued requests of one class in one submission queue; a submitter waits for a free
    /// slot.
    queue_limit: u32 = 1024, 1..=16384, runtime, "count";

    /// Adjacent requests are merged into one operation of at most this size; 0 disables merging.
    aggregate_bytes: bytes = 1 << 20, 0..=16 << 20, runtime, "bytes";

    /// Permits that a submission queue takes at once; more of them mean less contention between
    /// queues.
    permit_batch: u32 = 8, 1..=16, build, "count";
}
