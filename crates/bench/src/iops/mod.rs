//! Random reads at a fixed depth, by Forebay's engines or by fio.

mod device;
mod fio;

use std::path::Path;

pub(crate) use device::{Engines, ours};
pub(crate) use fio::{Fio, theirs};

/// What to read, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IopsPlan<'a> {
    pub(crate) path: &'a Path,
    /// Reads are below this offset.
    pub(crate) size_bytes: u64,
    pub(crate) direct: bool,
    /// Reads in flight.
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct IopsResult {
    /// The engine that executed the reads.
    pub(crate) config: String,
    pub(crate) iops: f64,
    /// User and system CPU time per read.
    pub(crate) cpu_ns_per_io: f64,
    /// Time from before submission to completion.
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
}
