//! The tunables of the intent log. `docs/tunables.md` is generated from this table.

forebay_base::tunables! {
    /// Tunables of the intent log.
    pub table LogTunables;

    /// Maximum number of bytes of pending changes of names, and of content that one fsync writes.
    /// Beyond it, an fsync commits the transaction group instead.
    log_commit_max_bytes: bytes = 8 << 20, 64 << 10..=1 << 30, runtime, "bytes";
}
