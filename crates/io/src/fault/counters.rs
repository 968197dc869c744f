//! The counters of the fault device. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of a [`FaultDevice`](super::FaultDevice), since it was created.
    pub table FaultCounters;
    labels fault = ["error", "rot", "torn", "lost", "volatile", "delay", "error after"];

    /// Faults injected.
    faults_injected: fault;
    /// Delays skipped because the system refused a thread.
    delays_skipped;
    /// Writes passed to the medium at once because the volatile cache was full.
    volatile_overflows;
    /// Sectors that flushes wrote from the volatile cache to the medium.
    volatile_sectors_flushed;
    /// Requests refused because the device had crashed.
    refused_crashed;
}
