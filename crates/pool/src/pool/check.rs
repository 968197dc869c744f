//! Checks a pool: reads and verifies every copy of every block, and compares the allocated ranges
//! with the space maps.

use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::format::{BlockPtrPhys, Dva};
use crate::space::{SpaceReport, WalkedRanges};
use crate::store::Store;

use super::walk::{BlockLocation, Visitor, WalkEnd, Walking, is_complete};
use super::{Pool, PoolInner};

/// Maximum number of problems that a report lists. Further problems are only counted.
const LISTED: usize = 64;
/// Blocks between two calls of the progress callback.
const PROGRESS_BLOCKS: u64 = 64;

/// Progress of a check or scrub.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckProgress {
    /// Blocks processed.
    pub blocks: u64,
    /// Bytes processed, all copies.
    pub bytes: u64,
    /// Allocated bytes of the pool: an estimate of the final value of `bytes`.
    pub total_bytes: u64,
    /// Problems found.
    pub problems: u64,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Whether the walk reached the end. If not, it was interrupted: only the problems found so far
    /// are listed, and space was not compared.
    pub complete: bool,
    /// Blocks processed.
    pub blocks: u64,
    /// Bytes processed, all copies.
    pub bytes: u64,
    /// The first blocks and objects that are unreadable or invalid.
    pub damaged: Vec<String>,
    /// Number of unreadable or invalid blocks and objects.
    pub damaged_count: u64,
    /// The first ranges, with their lengths in bytes, that are allocated but not referenced.
    pub leaked: Vec<(Dva, u64)>,
    /// Bytes in all such ranges.
    pub leaked_bytes: u64,
    /// Ranges that two blocks reference.
    pub double: Vec<(Dva, u64)>,
    /// Ranges that a block references although they are free or outside the pool.
    pub unmapped: Vec<(Dva, u64)>,
}

impl CheckReport {
    /// Whether the check is complete and found no problems.
    pub fn is_clean(&self) -> bool {
        self.complete && !self.has_problems()
    }

    /// Whether the check found problems.
    pub fn has_problems(&self) -> bool {
        self.damaged_count > 0
            || !self.leaked.is_empty()
            || !self.double.is_empty()
            || !self.unmapped.is_empty()
    }

    fn take_space(&mut self, found: SpaceReport) {
        self.leaked_bytes = found.leaked.bytes;
        self.leaked = found.leaked.ranges;
        self.double = found.double.ranges;
        self.unmapped = found.unmapped.ranges;
        self.unmapped.extend(found.outside.ranges);
    }
}

impl std::fmt::Display for CheckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} blocks, {} bytes in all copies", self.blocks, self.bytes)?;
        for problem in &self.damaged {
            writeln!(f, "damaged: {problem}")?;
        }
        if self.damaged_count > self.damaged.len() as u64 {
            writeln!(f, "damaged: {} more", self.damaged_count - self.damaged.len() as u64)?;
        }
        for (what, ranges) in [
            ("leaked", &self.leaked),
            ("claimed twice", &self.double),
            ("not mapped", &self.unmapped),
        ] {
            for (dva, bytes) in ranges {
                writeln!(f, "{what}: {bytes} bytes at {dva}")?;
            }
        }
        let found = if self.has_problems() { "PROBLEMS FOUND" } else { "no problems found" };
        match self.complete {
            true => f.write_str(found),
            false => write!(f, "{found} before it was interrupted; the rest was not checked"),
        }
    }
}

impl Pool {
    /// Commits the open txg, then checks the whole pool as of that txg. Nothing is committed while
    /// the check runs, so changes wait once too much data is dirty.
    ///
    /// `progress` is called periodically and interrupts the check by returning
    /// [`ControlFlow::Break`]. It must not call pool functions that wait for a txg, nor
    /// [`stats`](Self::stats). An interrupted check returns a report that is not
    /// [`complete`](CheckReport::complete).
    ///
    /// # Errors
    /// The error that stopped the check. Problems found are not errors; the report lists them.
    pub fn check(
        &self,
        progress: &mut dyn FnMut(&CheckProgress) -> ControlFlow<()>,
    ) -> Result<CheckReport> {
        if !self.inner.read_only {
            self.sync()?;
        }
        self.inner.check(progress)
    }
}

impl PoolInner {
    fn check(
        &self,
        progress: &mut dyn FnMut(&CheckProgress) -> ControlFlow<()>,
    ) -> Result<CheckReport> {
        // A commit needs this lock, so the walked tree does not change.
        let mut space = self.space.lock();
        let mut checker = Checker {
            walked: WalkedRanges::new(&space),
            report: CheckReport::default(),
            total_bytes: space.stats().allocated_bytes,
            progress,
        };
        let complete = is_complete(self.walk_all(&mut space, &mut checker))?;
        space.spare_root_slots(|dva, bytes| checker.walked.mark(dva, bytes));
        self.log.for_each_extent(&mut |dva, bytes| checker.walked.mark(dva, bytes));
        let Checker { walked, mut report, .. } = checker;
        report.complete = complete;
        report.take_space(if complete { space.verify(&walked)? } else { walked.so_far() });
        Ok(report)
    }
}

struct Checker<'a> {
    walked: WalkedRanges,
    report: CheckReport,
    total_bytes: u64,
    progress: &'a mut dyn FnMut(&CheckProgress) -> ControlFlow<()>,
}

impl Visitor for Checker<'_> {
    fn block(&mut self, store: &Store, ptr: &BlockPtrPhys, place: &BlockLocation) -> Walking {
        if ptr.is_hole() {
            return Ok(());
        }
        let Self { walked, report, .. } = self;
        report.blocks += 1;
        let pieces = store.for_each_piece(ptr, &mut |dva, bytes| {
            walked.mark(dva, bytes);
            report.bytes += bytes;
        });
        if let Err(error) = pieces {
            self.damaged(place, error);
        }
        for copy in 0..ptr.copy_count() {
            if let Err(error) = store.read_copy(ptr, copy) {
                self.damaged(place, error.doing(format_args!("copy {copy}")));
            }
        }
        if self.report.blocks.is_multiple_of(PROGRESS_BLOCKS) {
            let flow = (self.progress)(&CheckProgress {
                blocks: self.report.blocks,
                bytes: self.report.bytes,
                total_bytes: self.total_bytes,
                problems: self.report.damaged_count,
            });
            if flow.is_break() {
                return Err(WalkEnd::Interrupted);
            }
        }
        Ok(())
    }

    fn damaged(&mut self, place: &BlockLocation, error: Error) {
        self.report.damaged_count += 1;
        if self.report.damaged.len() < LISTED {
            self.report.damaged.push(format!("{place}: {error}"));
        }
    }
}
