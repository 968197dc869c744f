//! Splits the memory limit of a process among its parts.
//!
//! `--memory` limits the whole process. Fixed parts come off first: the program and its threads
//! ([`FIXED_BYTES`]), and the FUSE buffers of each thread. One share is for inodes that the kernel
//! has not forgotten, another for objects, transaction groups and the intent log. The rest is the
//! arena of blocks. It may exceed the limit of the cache by a quarter and [`ARENA_MARGIN_BYTES`],
//! for I/O in flight and copies being written. The limit of the cache, which includes dirty data,
//! is set so that the arena fits the rest.

use std::ops::RangeInclusive;

use crate::error::{Failure, Result};
use crate::units;

/// Program, stacks, data of waiting writes (16 MiB per mount) and allocator overhead.
const FIXED_BYTES: u64 = 40 << 20;
/// Bytes that the arena may use beyond 125% of the cache limit.
const ARENA_MARGIN_BYTES: u64 = 64 << 20;
/// FUSE buffers of one thread: two requests of the largest size.
const THREAD_BYTES: u64 = 2 * (MAX_WRITE_BYTES as u64 + (64 << 10));
/// The largest write request, in bytes.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Divisor of the share for inodes.
const INODE_SHARE: u64 = 16;
/// Divisor of the share for objects, transaction groups and the intent log.
const METADATA_SHARE: u64 = 16;
/// The smallest limit that leaves a useful cache.
pub(crate) const LEAST_BYTES: u64 = 192 << 20;
/// Divisor of the default limit, applied to the memory of the machine or the cgroup.
const DEFAULT_SHARE: u64 = 4;
/// Range of the default number of threads, which is one per CPU. With more threads than CPUs each
/// request wakes the thread that has slept longest, which doubles the time in the kernel. A single
/// thread may not wait for a flush.
const THREADS: RangeInclusive<usize> = 2..=16;

/// The split of a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Limit of the whole process.
    pub(crate) total_bytes: u64,
    /// Limit of the cache, including dirty data.
    pub(crate) cache_bytes: u64,
    /// Limit for inodes and handles of all mounts.
    pub(crate) inode_bytes: u64,
    /// Threads that serve the requests of one mount.
    pub(crate) threads: usize,
}

impl MemoryPlan {
    /// Splits `wanted` bytes; without it, a quarter of the memory available to the process.
    ///
    /// # Errors
    /// If the limit is too small for the threads.
    pub(crate) fn new(wanted: Option<u64>, threads: Option<usize>) -> Result<Self> {
        let total_bytes = wanted.unwrap_or_else(|| {
            (forebay_base::memory::limit_bytes() / DEFAULT_SHARE).max(LEAST_BYTES)
        });
        let threads = threads.unwrap_or_else(|| {
            forebay_base::memory::cpus().clamp(*THREADS.start(), *THREADS.end())
        });
        let too_small = |least: u64| {
            Failure::usage(format!(
                "--memory {}: too small; give at least {} for {threads} threads",
                units::bytes(total_bytes),
                units::bytes(least)
            ))
        };
        if total_bytes < LEAST_BYTES {
            return Err(too_small(LEAST_BYTES));
        }
        let inode_bytes = total_bytes / INODE_SHARE;
        let metadata_bytes = total_bytes / METADATA_SHARE;
        let taken = FIXED_BYTES
            + THREAD_BYTES * threads as u64
            + inode_bytes
            + metadata_bytes
            + ARENA_MARGIN_BYTES;
        let least_cache = 16 << 20;
        let cache_bytes = total_bytes.saturating_sub(taken) / 5 * 4;
        if cache_bytes < least_cache {
            return Err(too_small(taken + least_cache / 4 * 5));
        }
        Ok(Self { total_bytes, cache_bytes, inode_bytes, threads })
    }

    /// Cache size of a command that only reads a pool, in bytes.
    pub(crate) fn small() -> u64 {
        64 << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_within_the_whole() {
        for total in [LEAST_BYTES, 256 << 20, 1 << 30, 100 << 30] {
            let plan = MemoryPlan::new(Some(total), Some(4)).unwrap();
            let arena = plan.cache_bytes + plan.cache_bytes / 4 + ARENA_MARGIN_BYTES;
            let others = total / METADATA_SHARE + plan.inode_bytes + FIXED_BYTES + 4 * THREAD_BYTES;
            assert!(arena + others <= total, "{plan:?}");
            assert!(plan.cache_bytes >= 16 << 20, "{plan:?}");
        }
    }

    #[test]
    fn a_small_limit_is_refused_with_the_smallest_that_fits() {
        let said = MemoryPlan::new(Some(1 << 20), Some(4)).unwrap_err();
        assert_eq!(said.code, crate::error::USAGE);
        assert!(said.message.contains("192 MiB"), "{said}");
        let said = MemoryPlan::new(Some(LEAST_BYTES), Some(64)).unwrap_err();
        assert!(said.message.contains("64 threads"), "{said}");
    }

    #[test]
    fn the_default_follows_the_machine() {
        let plan = MemoryPlan::new(None, None).unwrap();
        assert!(plan.total_bytes <= forebay_base::memory::limit_bytes().max(LEAST_BYTES));
        assert!(THREADS.contains(&plan.threads));
    }
}
