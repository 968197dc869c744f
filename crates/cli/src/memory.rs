//! How the memory that a process may use is split.
//!
//! `--memory` bounds the whole process. What is fixed comes off first: the program and its threads, [`FIXED_BYTES`], and
//! the transport's buffers, one a thread. A share is for inodes that the kernel has not forgotten, and another for what is kept
//! of groups, objects and the intent log outside of the arena. The rest is for
//! blocks: the arena that they lie in may exceed the cache's bound by a quarter and [`ARENA_MARGIN_BYTES`], for I/O in
//! flight and copies that are being written, so the cache's bound, which covers dirty data as well, is set so that the arena's
//! limit is within the rest.

use std::ops::RangeInclusive;

use crate::error::{Failure, Result};
use crate::units;

/// The program, its stacks, data of writes that wait (16 MiB a mount), the allocator's slack.
const FIXED_BYTES: u64 = 40 << 20;
/// What the arena of blocks may have beside the cache's bound and a quarter of it.
const ARENA_MARGIN_BYTES: u64 = 64 << 20;
/// The transport's buffers for each thread: a request of the largest size, twice.
const THREAD_BYTES: u64 = 2 * (MAX_WRITE_BYTES as u64 + (64 << 10));
/// The largest write of one request.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;
/// One part in so many is for inodes.
const INODE_SHARE: u64 = 16;
/// And one in so many for what is kept of groups, objects and the log.
const BOOKS_SHARE: u64 = 16;
/// A process with less could not cache anything worth it.
pub(crate) const LEAST_BYTES: u64 = 192 << 20;
/// Without a word from the user, one part in so many of what the process may have.
const DEFAULT_SHARE: u64 = 4;
/// Threads that serve requests, unless somebody says otherwise: one a processor, within these. With more than processors each request wakes the thread
/// that has slept longest, and costs twice the time in the kernel; with one, nobody may wait for a flush in place.
const THREADS: RangeInclusive<usize> = 2..=16;

/// Who gets what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// All of it.
    pub(crate) total_bytes: u64,
    /// The cache's bound, dirty data included.
    pub(crate) cache_bytes: u64,
    /// Inodes and handles of all mounts.
    pub(crate) inode_bytes: u64,
    /// Threads that serve requests of one mount.
    pub(crate) threads: usize,
}

impl MemoryPlan {
    /// The split of so many bytes, or of a quarter of what the process may have.
    ///
    /// # Errors
    /// If it is too little.
    pub(crate) fn new(wanted: Option<u64>, threads: Option<usize>) -> Result<Self> {
        let total_bytes = wanted.unwrap_or_else(|| {
            (forebay_base::memory::limit_bytes() / DEFAULT_SHARE).max(LEAST_BYTES)
        });
        let threads = threads.unwrap_or_else(|| {
            forebay_base::memory::cpus().clamp(*THREADS.start(), *THREADS.end())
        });
        let too_little = |least: u64| {
            Failure::usage(format!(
                "--memory {}: too little; give at least {} with {threads} threads",
                units::bytes(total_bytes),
                units::bytes(least)
            ))
        };
        if total_bytes < LEAST_BYTES {
            return Err(too_little(LEAST_BYTES));
        }
        let inode_bytes = total_bytes / INODE_SHARE;
        let books_bytes = total_bytes / BOOKS_SHARE;
        let taken = FIXED_BYTES
            + THREAD_BYTES * threads as u64
            + inode_bytes
            + books_bytes
            + ARENA_MARGIN_BYTES;
        let least_cache = 16 << 20;
        let cache_bytes = total_bytes.saturating_sub(taken) / 5 * 4;
        if cache_bytes < least_cache {
            return Err(too_little(taken + least_cache / 4 * 5));
        }
        Ok(Self { total_bytes, cache_bytes, inode_bytes, threads })
    }

    /// What a command needs that only looks at a pool.
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
            let others = total / BOOKS_SHARE + plan.inode_bytes + FIXED_BYTES + 4 * THREAD_BYTES;
            assert!(arena + others <= total, "{plan:?}");
            assert!(plan.cache_bytes >= 16 << 20, "{plan:?}");
        }
    }

    #[test]
    fn too_little_is_said_with_what_would_do() {
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
