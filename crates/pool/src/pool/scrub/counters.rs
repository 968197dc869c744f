//! The counters of scrubs and checks. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters of scrubs and checks of a pool, since import.
    pub table ScrubCounters;

    /// Commits that waited for a scrub or an online check, for its space maps at least 1 ms.
    commits_waited_for_scrub;
    /// Slices that scrubs and checks have walked.
    scrub_slices;
    /// Slices that ended because a block was freed, and its space reused, while it was read.
    scrub_slices_overtaken;
}
