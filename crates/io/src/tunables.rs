//! The tunables of a device's queue. `docs/tunables.md` is made from this table.
//!
//! Five classes of requests, each with a number of operations that it can always have in flight (`_min`)
//! and one that it never exceeds (`_max`). The defaults are for solid-state drives, which are at their best
//! with 64 operations in flight or more; every maximum is at least 32, so that a load of one class at
//! that depth never waits in a queue. How the numbers that contradict each other are reconciled says
//! `queue/limits.rs`.

forebay_base::tunables! {
    /// Tunables of a device's queue. None has to be set.
    pub table IoTunables;

    /// Synchronous reads that may be in flight whatever else is.
    sync_read_min: u32 = 32, 1..=1024, build, "count";

    /// Synchronous reads in flight at most.
    sync_read_max: u32 = 256, 1..=4096, build, "count";

    /// Synchronous writes that may be in flight whatever else is.
    sync_write_min: u32 = 16, 1..=1024, build, "count";

    /// Synchronous writes in flight at most.
    sync_write_max: u32 = 128, 1..=4096, build, "count";

    /// Asynchronous reads that may be in flight whatever else is.
    async_read_min: u32 = 4, 1..=1024, build, "count";

    /// Asynchronous reads in flight at most.
    async_read_max: u32 = 128, 1..=4096, build, "count";

    /// Asynchronous writes that may be in flight whatever else is.
    async_write_min: u32 = 4, 1..=1024, build, "count";

    /// Asynchronous writes in flight at most.
    async_write_max: u32 = 64, 1..=4096, build, "count";

    /// Reads of a scrub that may be in flight whatever else is.
    scrub_min: u32 = 2, 1..=1024, build, "count";

    /// Reads of a scrub in flight at most.
    scrub_max: u32 = 32, 1..=4096, build, "count";

    /// Operations in flight at most, of all classes; at least the sum of the minimums is allowed.
    total_max: u32 = 256, 5..=8192, build, "count";

    /// Requests that may wait in one lane's queue of one class; who submits more waits for room.
    queue_limit: u32 = 1024, 1..=16384, runtime, "count";

    /// Adjacent requests are merged into one operation of at most this size; 0 merges none.
    aggregate_bytes: bytes = 1 << 20, 0..=16 << 20, runtime, "bytes";

    /// Permits that a lane leases at once; more of them mean fewer visits to what lanes share.
    permit_batch: u32 = 8, 1..=16, build, "count";
}
