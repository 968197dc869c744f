//! Splits the memory limit of a process among its parts.
//!
//! `--memory` limits the whole process. Fixed parts come off first: the program and its threads
//! ([`PROGRAM_BYTES`]), the FUSE buffers of each thread, the buffers of large reads, and the data
//! of waiting writes. One share is for inodes that the kernel has not forgotten, another for
//! objects, transaction groups and the intent log. The rest is the arena of blocks. It may exceed
//! the limit of the cache by a quarter and a margin, for I/O in flight and copies being written.
//! The limit of the cache, which includes dirty data, is set so that the arena fits the rest.
//!
//! These shares are estimates. While the process runs, `daemon::memory_watch` measures what is not
//! blocks, and takes from the arena what exceeds the shares.

use std::ops::RangeInclusive;

use forebay_base::memory::MemoryLimits;

use crate::error::{Failure, Result};
use crate::units;

/// Program, stacks and allocator overhead.
const PROGRAM_BYTES: u64 = 22 << 20;
/// FUSE buffers of one thread: two requests of the largest size.
const THREAD_BYTES: u64 = 2 * (MAX_WRITE_BYTES as u64 + (64 << 10));
/// The largest write request, in bytes.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Divisor of the share for inodes.
const INODE_SHARE: u64 = 16;
/// Divisor of the share for objects, transaction groups and the intent log.
const METADATA_SHARE: u64 = 16;
/// Divisor and maximum of the share for the data of waiting writes.
const WAITING_SHARE: (u64, u64) = (16, 16 << 20);
/// Divisor and maximum of the share for buffers of reads that workers and I/O callbacks complete.
const READING_SHARE: (u64, u64) = (32, 16 << 20);
/// Divisor and maximum of the data of writes that wait while the pool is suspended. Blocks give way
/// to what exceeds the other share. The kernel has at most 512 MiB of write-back under way.
const SUSPENDED_SHARE: (u64, u64) = (4, 512 << 20);
/// Divisor and maximum of the bytes that the arena may use beyond 125% of the cache limit.
const MARGIN_SHARE: (u64, u64) = (8, 64 << 20);
/// Divisor and maximum of the part of the other shares that is free when blocks begin to give way.
const HEADROOM_SHARE: (u64, u64) = (16, 32 << 20);
/// The smallest limit of the cache with which a pool works.
const LEAST_CACHE_BYTES: u64 = 8 << 20;
/// The smallest limit of the process.
pub(crate) const LEAST_BYTES: u64 = 64 << 20;
/// Divisor of the default limit, applied to the memory of the machine or the cgroup.
const DEFAULT_SHARE: u64 = 4;
/// Range of the default number of threads, which is one per CPU. With more threads than CPUs each
/// request wakes the thread that has slept longest, which doubles the time in the kernel. A single
/// thread may not wait for a flush.
const THREADS: RangeInclusive<usize> = 2..=16;
/// Memory of the process for which there is one thread by default, whatever the number of CPUs.
const BYTES_PER_THREAD: u64 = 32 << 20;

/// The split of a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Limit of the whole process.
    pub(crate) total_bytes: u64,
    /// Limit of the memory of blocks: the cache, I/O in flight, and copies being written.
    pub(crate) arena_bytes: u64,
    /// Limit of the cache, including dirty data.
    pub(crate) cache_bytes: u64,
    /// Limit for inodes and handles of all mounts.
    pub(crate) inode_bytes: u64,
    /// Limit for the buffers of large reads that workers and I/O callbacks complete, of one mount.
    pub(crate) reading_bytes: u64,
    /// Limit for the data of waiting writes of one mount.
    pub(crate) waiting_bytes: u64,
    /// The same, while the pool is suspended.
    pub(crate) suspended_bytes: u64,
    /// Threads that serve the requests of one mount.
    pub(crate) threads: usize,
}

/// The part of `total` with this divisor, but at most its maximum.
fn share(total: u64, (divisor, most): (u64, u64)) -> u64 {
    (total / divisor).min(most)
}

impl MemoryPlan {
    /// Splits `wanted` bytes; without it, a quarter of the memory available to the process.
    ///
    /// # Errors
    /// If the limit is too small for the threads, or more than the memory of the machine or of the
    /// control group.
    pub(crate) fn new(wanted: Option<u64>, threads: Option<usize>) -> Result<Self> {
        Self::within(&MemoryLimits::of_this_process(), wanted, threads)
    }

    fn within(limits: &MemoryLimits, wanted: Option<u64>, threads: Option<usize>) -> Result<Self> {
        let total_bytes =
            wanted.unwrap_or_else(|| (limits.bytes() / DEFAULT_SHARE).max(LEAST_BYTES));
        refuse_more_than(limits, total_bytes)?;
        let threads = threads.unwrap_or_else(|| {
            let affordable = (total_bytes / BYTES_PER_THREAD).clamp(1, *THREADS.end() as u64);
            let cpus = forebay_base::memory::cpus().min(affordable as usize);
            cpus.clamp(*THREADS.start(), *THREADS.end())
        });
        let plan = Self::split(total_bytes, threads);
        if total_bytes < LEAST_BYTES || plan.cache_bytes < LEAST_CACHE_BYTES {
            // Shares grow with the limit, so the smallest one is searched.
            let fits = |mib: &u64| Self::split(mib << 20, threads).cache_bytes >= LEAST_CACHE_BYTES;
            let least = (LEAST_BYTES >> 20..).find(fits).unwrap_or(LEAST_BYTES >> 20);
            return Err(Failure::usage(format!(
                "--memory {}: too small; give at least {} for {threads} threads",
                units::bytes(total_bytes),
                units::bytes(least << 20)
            )));
        }
        Ok(plan)
    }

    fn split(total_bytes: u64, threads: usize) -> Self {
        let inode_bytes = total_bytes / INODE_SHARE;
        let waiting_bytes = share(total_bytes, WAITING_SHARE);
        let reading_bytes = share(total_bytes, READING_SHARE);
        let others = PROGRAM_BYTES
            + THREAD_BYTES * threads as u64
            + reading_bytes
            + waiting_bytes
            + inode_bytes
            + total_bytes / METADATA_SHARE;
        let arena_bytes = total_bytes.saturating_sub(others);
        let cache_bytes = arena_bytes.saturating_sub(share(total_bytes, MARGIN_SHARE)) / 5 * 4;
        let suspended_bytes = share(total_bytes, SUSPENDED_SHARE);
        Self {
            total_bytes,
            arena_bytes,
            cache_bytes,
            inode_bytes,
            reading_bytes,
            waiting_bytes,
            suspended_bytes,
            threads,
        }
    }

    /// The part of the shares of everything beside blocks that is still free when blocks begin to
    /// give way.
    pub(crate) fn headroom_bytes(&self) -> u64 {
        share(self.total_bytes, HEADROOM_SHARE)
    }

    /// The memory limit whose plan has that percentage of this one's cache, with the same threads.
    pub(crate) fn memory_for(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.cache_bytes) * u128::from(percent) / 100) as u64;
        // Shares grow with the limit. The cache gets at least a quarter of what is added.
        let (mut low, mut high) = (0, LEAST_BYTES + self.total_bytes + 8 * wanted);
        while low < high {
            let middle = low + (high - low) / 2;
            match Self::split(middle, self.threads).cache_bytes >= wanted {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        if percent == 100 { self.total_bytes } else { low }
    }

    /// Cache size of a command that only reads a pool, in bytes.
    pub(crate) fn small() -> u64 {
        64 << 20
    }
}

/// Refuses a limit that the machine or the control group does not have.
fn refuse_more_than(limits: &MemoryLimits, total_bytes: u64) -> Result<()> {
    if total_bytes <= limits.bytes() {
        return Ok(());
    }
    let (total, machine) = (units::bytes(total_bytes), units::bytes(limits.machine));
    let owner = match limits.group {
        Some(group) => {
            format!("the {} that the control group of this process allows", units::bytes(group))
        }
        None => format!("the {machine} of this machine"),
    };
    Err(Failure::usage(format!(
        "--memory {total}: more than {owner}; give at most {}M",
        limits.bytes() >> 20
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: MemoryLimits = MemoryLimits { machine: 200 << 30, group: None };

    #[test]
    fn the_memory_for_another_cache_has_it() {
        for total in [LEAST_BYTES, 256 << 20, 100 << 30] {
            let plan = MemoryPlan::within(&MACHINE, Some(total), Some(2)).unwrap();
            assert_eq!(plan.memory_for(100), total);
            for percent in [25, 150, 400] {
                let other = MemoryPlan::split(plan.memory_for(percent), 2).cache_bytes;
                let wanted = plan.cache_bytes / 100 * percent;
                assert!(other.abs_diff(wanted) < 1000, "{percent}: {other} for {wanted}");
            }
        }
    }

    #[test]
    fn the_parts_are_within_the_whole() {
        for total in [LEAST_BYTES, 192 << 20, 256 << 20, 1 << 30, 100 << 30] {
            let plan = MemoryPlan::within(&MACHINE, Some(total), Some(2)).unwrap();
            let arena = plan.cache_bytes + plan.cache_bytes / 4 + share(total, MARGIN_SHARE);
            assert!(arena <= plan.arena_bytes, "{plan:?}");
            let others = total / METADATA_SHARE
                + plan.inode_bytes
                + plan.waiting_bytes
                + plan.reading_bytes
                + PROGRAM_BYTES
                + 2 * THREAD_BYTES;
            assert!(plan.arena_bytes + others <= total, "{plan:?}");
            assert!(plan.cache_bytes >= LEAST_CACHE_BYTES, "{plan:?}");
            assert!(plan.waiting_bytes >= u64::from(MAX_WRITE_BYTES), "{plan:?}");
            assert!(plan.reading_bytes >= 2 << 20, "{plan:?}");
            assert!(plan.headroom_bytes() < others / 2, "{plan:?}");
        }
    }

    #[test]
    fn a_small_limit_is_refused_with_the_smallest_that_fits() {
        let said = MemoryPlan::within(&MACHINE, Some(1 << 20), Some(2)).unwrap_err();
        assert_eq!(said.code, crate::error::USAGE);
        assert!(said.message.contains("at least 64"), "{said}");
        let said = MemoryPlan::within(&MACHINE, Some(LEAST_BYTES), Some(64)).unwrap_err();
        assert!(said.message.contains("64 threads"), "{said}");
        let least = said.message.split("at least ").nth(1).unwrap();
        let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
        assert!(MemoryPlan::within(&MACHINE, Some(least << 20), Some(64)).is_ok(), "{said}");
        assert!(MemoryPlan::within(&MACHINE, Some((least - 1) << 20), Some(64)).is_err());
    }

    #[test]
    fn more_than_the_machine_or_the_group_has_is_refused_with_both_sizes() {
        let refused = |limits: &MemoryLimits, wanted| {
            let said = MemoryPlan::within(limits, Some(wanted), Some(2)).unwrap_err();
            assert_eq!(said.code, crate::error::USAGE);
            said.message
        };
        let machine = MemoryLimits { machine: 8 << 30, group: None };
        let said = refused(&machine, 9 << 30);
        assert!(said.contains("9.00 GiB") && said.contains("8.00 GiB of this machine"), "{said}");
        assert!(MemoryPlan::within(&machine, Some(8 << 30), Some(2)).is_ok());
        let group = MemoryLimits { machine: 8 << 30, group: Some(1 << 30) };
        let said = refused(&group, 2 << 30);
        assert!(said.contains("2.00 GiB") && said.contains("1.00 GiB"), "{said}");
        assert!(said.contains("control group") && said.contains("1024M"), "{said}");
        // A default is no more than that either.
        let tiny = MemoryLimits { machine: 8 << 30, group: Some(32 << 20) };
        let said = MemoryPlan::within(&tiny, None, Some(2)).unwrap_err().message;
        assert!(said.contains("32"), "{said}");
    }

    #[test]
    fn the_default_follows_the_machine() {
        let plan = MemoryPlan::new(None, None).unwrap();
        assert!(plan.total_bytes <= forebay_base::memory::limit_bytes().max(LEAST_BYTES));
        assert!(THREADS.contains(&plan.threads));
        // The threads fit a small limit on a machine with many CPUs.
        let small = MemoryPlan::within(&MACHINE, Some(LEAST_BYTES), None).unwrap();
        assert_eq!(small.threads, 2);
    }
}
