//! Counters of a mount. `docs/counters.md` is generated from this table.

use std::path::PathBuf;

use forebay_base::counters::CounterValue;
use forebay_base::histogram::HistogramSnapshot;
use forebay_base::sync::{Arc, Mutex};
use forebay_pool::OperationTunables;

use crate::latency::{Latencies, Timer};

forebay_base::counters! {
    /// Counters since the mount.
    pub table MountCounters;
    labels op = [
        "lookup", "forget", "getattr", "setattr", "readlink", "make", "create", "link", "unlink", "rmdir",
        "rename", "open", "release", "read", "write", "fsync", "opendir", "readdir", "releasedir", "statfs",
        "xattr", "fallocate", "seek", "copy",
    ];

    /// Requests of the kernel. For `forget`, the number of inodes.
    requests: op;
    /// Requests that would have blocked the receiving thread and continued elsewhere.
    would_block: op;
    /// Bytes requested by reads.
    read_bytes;
    /// Bytes received by writes.
    write_bytes;
    /// Requests that failed because of a device, damaged data, a suspended pool, or lack of memory.
    failures;
    /// Names that the kernel was told to forget, to limit the memory of inodes.
    invalidated;
}

/// Request types, in the order of the labels.
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

impl Op {
    /// Number of request types.
    pub(crate) const COUNT: usize = Op::Copy as usize + 1;

    /// The label of the type in [`MountCounters`].
    pub(crate) fn label(self) -> &'static str {
        label(self as usize)
    }
}

/// The label of the type with that number.
fn label(at: usize) -> &'static str {
    MountCounters::ROWS[0].labels[at]
}

/// How long requests of one type took, from their receipt to their answer.
#[derive(Clone, Debug)]
pub struct OperationLatency {
    /// The type, as [`MountCounters`] labels it.
    pub operation: &'static str,
    /// Nanoseconds.
    pub latency_ns: HistogramSnapshot,
}

/// Statistics of a mount.
#[derive(Clone, Debug)]
pub struct MountStats {
    /// Mount point.
    pub path: PathBuf,
    /// Threads that receive requests.
    pub threads: usize,
    /// Counters, in the order of [`MountCounters::ROWS`].
    pub counters: Vec<CounterValue>,
    /// Number of requests that failed because of a device, damaged data, a suspended pool, or lack
    /// of memory.
    pub failures: u64,
    /// Message of the last such failure.
    pub last_failure: Option<String>,
}

/// Counters shared by a mount and its server.
pub(crate) struct MountMetrics {
    pub(crate) counters: MountCounters,
    latencies: Latencies,
    failure: Mutex<Option<String>>,
}

impl MountMetrics {
    pub(crate) fn new() -> Self {
        Self {
            counters: MountCounters::new(),
            latencies: Latencies::new(),
            failure: Mutex::named("mount-failure", None),
        }
    }

    /// Counts a request, and measures it until the timer records it.
    pub(crate) fn begin(&self, op: Op) -> Timer {
        self.counters.add(MountCounters::REQUESTS, op as usize, 1);
        self.time(op)
    }

    /// Measures a request until the timer records it.
    #[inline]
    pub(crate) fn time(&self, op: Op) -> Timer {
        self.latencies.begin(op)
    }

    /// Logs requests that are slow by `tunables`, from now on.
    pub(crate) fn log_slow(&self, tunables: &Arc<OperationTunables>, fs: &str) {
        self.latencies.log_slow(tunables, fs);
    }

    /// Latencies of the request types that have occurred.
    pub(crate) fn latencies(&self) -> Vec<OperationLatency> {
        let named = |(at, latency_ns)| OperationLatency { operation: label(at), latency_ns };
        self.latencies.snapshot().into_iter().map(named).collect()
    }

    /// Counts and keeps a failure.
    #[cold]
    pub(crate) fn failed(&self, error: &dyn std::error::Error) {
        self.counters.add(MountCounters::FAILURES, 0, 1);
        let text = error.to_string();
        *self.failure.lock() = Some(text);
    }

    /// Statistics of the mount at `path`.
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
        assert_eq!(labels.len(), Op::COUNT);
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
