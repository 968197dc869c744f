//! Tunables and counters of directories.

use forebay_base::sync::Arc;

forebay_base::tunables! {
    /// Tunables of directories.
    pub table ZapTunables;

    /// Whether a new name in a large directory may be added to the change buffer, so that its leaf
    /// need not be read.
    directory_buffer: bool = true, false..=true, runtime, "flag";

    /// A directory with so many leaves gets filters, and names may be buffered. With fewer leaves,
    /// filters and buffer pages would cost more than they save.
    directory_buffer_leaves: u32 = 64, 4..=1 << 20, runtime, "count";
}

forebay_base::counters! {
    /// Counters of large directories, since import.
    pub table ZapCounters;

    /// Names that were added to a change buffer.
    directory_names_buffered;
    /// Names that were moved from a change buffer to their leaf.
    directory_names_merged;
    /// Leaves that got names from a change buffer, once for each time.
    directory_leaves_merged;
    /// Searches for a name that a filter answered, so that no leaf was read.
    directory_filter_absent;
    /// Searches for a name that a filter could not answer, so that a leaf was read.
    directory_filter_maybe;
}

/// What all directories of a pool share.
pub(crate) struct ZapShared {
    pub(crate) tunables: Arc<ZapTunables>,
    pub(crate) counters: ZapCounters,
}
