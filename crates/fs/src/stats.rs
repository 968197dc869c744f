//! Counters of a file system. `docs/counters.md` is generated from this table.

forebay_base::counters! {
    /// Counters since the file system was opened.
    pub table FsCounters;
    labels operation = [
        "lookup", "forget", "getattr", "setattr", "readlink", "make", "create", "link", "unlink", "rmdir",
        "rename", "open", "release", "read", "write", "fsync", "fallocate", "seek", "copy_range", "opendir",
        "readdir", "statfs", "getxattr", "setxattr", "removexattr", "listxattr"
    ];

    /// Operations, by type.
    operations: operation;
    /// Inodes loaded from the dataset.
    inodes_loaded;
    /// Operations restarted because names changed concurrently.
    retries;
    /// Reads that waited for a device without blocking a thread.
    reads_fetched;
    /// Reads that were finished by a worker thread.
    reads_offloaded;
    /// Jobs run by worker threads.
    jobs;
    /// Jobs run by their callers because the queue was full.
    jobs_inline;
    /// Unlinked inodes that were destroyed.
    orphans_destroyed;
    /// Failed attempts to destroy unlinked inodes. They stay in the orphan directory and are
    /// retried.
    orphans_failed;
    /// Names removed from the orphan directory because their inode was no orphan.
    orphan_names_removed;
    /// Steps in which large files were freed, one transaction each.
    steps_freed;
    /// Corrupt directory entries left out of listings.
    entries_skipped;
    /// Inodes whose times were written after the change itself.
    times_flushed;
    /// Times that operations waited because the pool was suspended, or a device was gone.
    suspension_waits;
}

/// Operation types, in the order of the labels.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Op {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Make,
    Create,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Open,
    Release,
    Read,
    Write,
    Fsync,
    Fallocate,
    Seek,
    CopyRange,
    Opendir,
    Readdir,
    Statfs,
    Getxattr,
    Setxattr,
    Removexattr,
    Listxattr,
}

/// Statistics of a file system.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FsStats {
    /// Inodes in memory.
    pub inodes: u64,
    /// Approximate memory of these inodes, in bytes.
    pub inode_bytes: u64,
    /// Unlinked inodes that are in use or not destroyed yet.
    pub orphans: u64,
    /// Background tasks that wait: inodes to destroy and times to write.
    pub background_tasks: u64,
    /// Worker threads that run a job.
    pub workers_busy: u64,
    /// Jobs that wait for a worker thread.
    pub jobs_queued: u64,
    /// Name, label (empty if it has none) and value of each counter.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}
