//! The counters of a mount. `docs/counters.md` is made from this table.

use std::path::PathBuf;

use forebay_base::counters::CounterValue;
use forebay_base::sync::Mutex;

forebay_base::counters! {
    /// What a mount counts, since it was mounted.
    pub table MountCounters;
    labels op = [
        "lookup", "forget", "getattr", "setattr", "readlink", "make", "create", "link", "unlink", "rmdir",
        "rename", "open", "release", "read", "write", "fsync", "opendir", "readdir", "releasedir", "statfs",
        "xattr", "fallocate", "seek", "copy",
    ];

    /// Requests of the kernel; of `forget`, inodes that it forgot.
    requests: op;
    /// Requests that would have had to wait for a device or a group, and went on on another thread or with their I/O.
    would_block: op;
    /// Bytes that were asked for.
    read_bytes;
    /// Bytes that came to be written.
    write_bytes;
    /// Requests that failed through no fault of who asked: a device, damage, a suspended pool, no memory.
    failures;
    /// Names that the kernel was asked to forget, because inodes took too much memory.
    invalidated;
}

/// A kind of request, in the order of the labels of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Opendir,
    Readdir,
    Releasedir,
    Statfs,
    Xattr,
    Fallocate,
    Seek,
    Copy,
}

/// What is known of a mount at a moment.
#[derive(Clone, Debug)]
pub struct MountStats {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Its counters, in the order of [`MountCounters::ROWS`].
    pub counters: Vec<CounterValue>,
    /// Requests that failed through no fault of who asked (a device, damage, a suspended pool, no memory).
    pub failures: u64,
    /// The last of them, in words.
    pub last_failure: Option<String>,
}

/// What a mount and its server count together.
pub(crate) struct MountMetrics {
    pub(crate) counters: MountCounters,
    failure: Mutex<Option<String>>,
}

impl MountMetrics {
    pub(crate) fn new() -> Self {
        Self { counters: MountCounters::new(), failure: Mutex::named("mount-failure", None) }
    }

    /// Keeps what a request failed with.
    #[cold]
    pub(crate) fn failed(&self, error: &dyn std::error::Error) {
        self.counters.add(MountCounters::FAILURES, 0, 1);
        let text = error.to_string();
        *self.failure.lock() = Some(text);
    }

    /// The mount at `path` in numbers.
    pub(crate) fn stats(&self, path: PathBuf, threads: usize) -> MountStats {
        MountStats {
            path,
            threads,
            counters: self.counters.snapshot(),
            failures: self.counters.total(MountCounters::FAILURES),
            last_failure: self.failure.lock().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_labels_go_together() {
        let labels = MountCounters::ROWS[0].labels;
        assert_eq!(labels.len(), Op::Copy as usize + 1);
        for (op, label) in [
            (Op::Lookup, "lookup"),
            (Op::Rename, "rename"),
            (Op::Statfs, "statfs"),
            (Op::Copy, "copy"),
        ] {
            assert_eq!(labels[op as usize], label);
        }
    }
}
