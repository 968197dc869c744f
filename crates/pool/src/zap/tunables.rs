//! Tunables and counters of directories.

use forebay_base::sync::Arc;

use super::share::AidMemory;

forebay_base::tunables! {
    /// Tunables of directories.
    pub table ZapTunables;

    /// Whether large directories get filters, and a change buffer for new names, so that their
    /// leaves need not be read. See the limits in decision 120.
    directory_buffer: bool = true, false..=true, runtime, "flag";

    /// With so many leaves a directory is large. With fewer leaves, filters and buffer pages would
    /// cost more than they save.
    directory_buffer_leaves: u32 = 64, 4..=1 << 20, runtime, "count";

    /// Share of the cache that filters and buffer pages of all open directories may take. A
    /// directory for which too little is left works without them until others are closed.
    directory_buffer_percent: percent = 50, 0..=100, runtime, "percent";

    /// Leaves of a directory that get buffered names together in the background. At most a quarter
    /// of them, or 16, are read at a time, fewer if reads queue in the device. 0: names move only
    /// when somebody else reads their leaf.
    directory_merge_reads: u32 = 64, 0..=1024, runtime, "count";

    /// Delay of a create when about six tenths of the range are used in which a change buffer that
    /// fills slows creates down. Scales all these delays.
    directory_slow_scale_ns: u64 = 1_000_000, 0..=1_000_000_000, runtime, "ns";
}

forebay_base::counters! {
    /// Counters of large directories, since import.
    pub table ZapCounters;
    labels kind = ["leaf", "filter", "page"];

    /// Names that were added to a change buffer.
    directory_names_buffered;
    /// Names that were moved from a change buffer to their leaf.
    directory_names_merged;
    /// Leaves that got names from a change buffer, once for each time.
    directory_leaves_merged;
    /// Leaves and filter blocks that were read to move names to them.
    directory_merge_reads;
    /// Creates that waited for names to move from a full change buffer.
    directory_creates_slowed;
    /// Operations that did without filters and change buffer, as the directory had no share of
    /// memory for them.
    directory_shares_refused;
    /// Searches for a name that a filter answered, so that no leaf was read.
    directory_filter_absent;
    /// Searches for a name that a filter could not answer, so that a leaf was read.
    directory_filter_maybe;
    /// Searches that did not find the name in the leaf that they read: the filter was wrong, old or
    /// missing, or was not asked because it was not in memory.
    directory_filter_false;
    /// Changes of leaves, by removals or merges after them, that left out the leaf's filter because
    /// its block was not in memory. The filter is void from then on.
    directory_filters_voided;
    /// Blocks that operations waited for: leaves, filter blocks and buffer pages, also those that
    /// were being read ahead.
    directory_waits: kind;
    /// Time of these waits, in nanoseconds.
    directory_wait_ns: kind;
}

/// What all directories of a pool share.
pub(crate) struct ZapShared {
    pub(crate) tunables: Arc<ZapTunables>,
    pub(crate) counters: Arc<ZapCounters>,
    pub(crate) memory: AidMemory,
}

impl ZapShared {
    pub(crate) fn new(tunables: Arc<ZapTunables>, counters: Arc<ZapCounters>) -> Self {
        Self { tunables, counters, memory: AidMemory::default() }
    }
}
