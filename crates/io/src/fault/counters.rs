//! The counters of the fault injector. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What a [`FaultDevice`](super::FaultDevice) counts, since it was made.
    pub table FaultCounters;
    labels fault = ["error", "rot", "torn", "lost", "volatile", "delay", "error after"];

    /// Faults injected.
    faults_injected: fault;
    /// Delays that did not come about because the system refused a thread.
    delays_skipped;
    /// Writes that went to the medium at once because the volatile cache was full.
    volatile_overflows;
    /// Sectors written from the volatile cache to the medium for flushes.
    volatile_sectors_flushed;
    /// Requests refused because the device had crashed.
    refused_crashed;
}
