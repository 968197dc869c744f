//! The tunables of the intent log. `docs/tunables.md` is made from this table.

forebay_base::tunables! {
    /// Tunables of the intent log.
    pub table LogTunables;

    /// Changes of directories that may wait in memory, and content that one fsync may write, in bytes. Beyond
    /// it an fsync commits the transaction group instead.
    log_commit_max_bytes: bytes = 8 << 20, 64 << 10..=1 << 30, runtime, "bytes";
}
