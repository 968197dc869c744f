//! What a file system counts. `docs/counters.md` is made from this table.

forebay_base::counters! {
    /// What a file system counts, since it was opened.
    pub table FsCounters;
    labels operation = [
        "lookup", "forget", "getattr", "setattr", "readlink", "make", "create", "link", "unlink", "rmdir",
        "rename", "open", "release", "read", "write", "fsync", "fallocate", "seek", "copy_range", "opendir",
        "readdir", "statfs", "getxattr", "setxattr", "removexattr", "listxattr"
    ];

    /// Operations, by what was asked for.
    operations: operation;
    /// Inodes read from the dataset because they were not in memory.
    inodes_loaded;
    /// Operations that began again because names changed under them.
    retries;
    /// Reads that were not answered at once, and waited for a device without holding a thread.
    reads_fetched;
    /// Reads that a worker thread finished.
    reads_offloaded;
    /// Jobs that worker threads did.
    jobs;
    /// Jobs that their callers did, because too many were queued.
    jobs_inline;
    /// Inodes without names that were destroyed.
    orphans_destroyed;
    /// Attempts to destroy inodes without names that failed; these stay in the orphan directory, and are tried again.
    orphans_failed;
    /// Names in the orphan directory that were none of an orphan's, and were removed.
    orphan_names_removed;
    /// Steps in which large files were freed.
    steps_freed;
    /// Entries of directories that make no sense, and were left out of listings.
    entries_skipped;
    /// Times of inodes that were written after the fact.
    times_flushed;
}

/// Numbers of operations.
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

/// A file system in numbers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FsStats {
    /// Inodes in memory.
    pub inodes: u64,
    /// Bytes that they take, roughly.
    pub inode_bytes: u64,
    /// Inodes that no name leads to, in use or not destroyed yet.
    pub orphans: u64,
    /// Jobs for which the background is late: inodes to be destroyed, times to be written.
    pub background_tasks: u64,
    /// Worker threads that are doing a job.
    pub workers_busy: u64,
    /// Jobs that wait for a worker thread.
    pub jobs_queued: u64,
    /// Name, label (empty if the counter has none) and value of each counter.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}
