//! Raw random reads at a fixed depth, by our engine or by fio.

mod device;
mod fio;

use std::path::Path;

pub(crate) use device::{Engines, ours};
pub(crate) use fio::{Fio, theirs};

/// What is read, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IopsPlan<'a> {
    pub(crate) path: &'a Path,
    /// Reads lie below this.
    pub(crate) size_bytes: u64,
    pub(crate) direct: bool,
    /// Reads in flight.
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// What a measurement found.
#[derive(Clone, Debug)]
pub(crate) struct IopsResult {
    /// What executed the reads.
    pub(crate) config: String,
    pub(crate) iops: f64,
    /// User and system time of a read.
    pub(crate) cpu_ns_per_io: f64,
    /// From before a read's submission to its completion.
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
}
