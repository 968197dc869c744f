//! Checks a pool: reads and verifies every copy of every block, and compares the allocated ranges
//! with the space maps.

use std::ops::ControlFlow;

use forebay_base::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::error_log::DamagedRange;
use crate::format::{BlockKind, DamageKind, Dva};
use crate::space::{SpaceReport, WalkedRanges};

use super::errors::{FoundDamage, LoggedDamage};
use super::walk::{
    BlockLocation, Bookmark, SliceEnd, Step, VisitedBlock, Visitor, Walk, kind_of_invalid,
};
use super::{Pool, PoolInner};

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
    /// The first blocks and objects that are unreadable or invalid. The error log has them too.
    pub damaged: Vec<LoggedDamage>,
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
    /// Commits the open txg, then checks the whole pool as of that txg: all blocks that are in use
    /// during the whole check. Changes and commits go on meanwhile. A second check waits for the
    /// first.
    ///
    /// `progress` is called periodically and interrupts the check by returning
    /// [`ControlFlow::Break`]. It must not export the pool. An interrupted check returns a report
    /// that is not [`complete`](CheckReport::complete); an export interrupts it too.
    ///
    /// Space is compared with two bitmaps of what commits allocate and free meanwhile, with a bit
    /// per sector: at most 64 KiB per GiB of 4 KiB sectors, beside the 32 KiB of the walk.
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
        let _one = self.scrub.one_check();
        let _job = self.scrub.begin_job(self)?;
        let (until, walked) = self.look_at_space().begin_audit();
        let _audit = AuditGuard(self);
        let mut checker = Checker {
            pool: self,
            walked,
            report: CheckReport::default(),
            found: FoundDamage::default(),
            total_bytes: self.space_stats.lock().allocated_bytes,
            progress,
        };
        let complete = Walk::new(self, until, Bookmark::START, &mut checker).run()?;
        let Checker { mut walked, mut report, found, .. } = checker;
        report.complete = complete;
        report.damaged_count = found.count;
        report.damaged = found.describe(self);
        if complete {
            self.look_at_space().root_slots(|dva, bytes| walked.mark(dva, bytes));
            self.log.for_each_extent(&mut |dva, bytes| walked.mark(dva, bytes));
        }
        let mut found = walked.so_far();
        if complete {
            for id in 0..walked.metaslabs() {
                self.look_at_space().compare(id, &walked, &mut found)?;
            }
        }
        report.take_space(found);
        Ok(report)
    }
}

/// Ends the recording of allocations and frees.
struct AuditGuard<'a>(&'a PoolInner);

impl Drop for AuditGuard<'_> {
    fn drop(&mut self) {
        self.0.look_at_space().end_audit();
    }
}

struct Checker<'a> {
    pool: &'a PoolInner,
    walked: WalkedRanges,
    report: CheckReport,
    found: FoundDamage,
    total_bytes: u64,
    progress: &'a mut dyn FnMut(&CheckProgress) -> ControlFlow<()>,
}

impl Visitor for Checker<'_> {
    fn proceed(&mut self, _: &Bookmark) -> Step {
        match self.pool.closed.load(Ordering::Acquire) {
            true => Err(SliceEnd::Interrupted),
            false => Ok(()),
        }
    }

    fn block(&mut self, block: VisitedBlock<'_>) -> Step {
        if !block.bad.is_empty() {
            for (copy, error) in &block.bad {
                tracing::warn!(location = %block.location, copy, %error, "check found a bad copy");
            }
            self.note(block.range(), block.damage());
        }
        let VisitedBlock { ptr, extents, .. } = block;
        self.report.blocks += 1;
        // The places of root blocks are marked as a whole.
        let is_root = ptr.block_kind() == Some(BlockKind::Root);
        for &(dva, bytes) in extents {
            self.report.bytes += bytes;
            if !is_root {
                self.walked.mark(dva, bytes);
            }
        }
        if self.report.blocks.is_multiple_of(PROGRESS_BLOCKS) {
            let flow = (self.progress)(&CheckProgress {
                blocks: self.report.blocks,
                bytes: self.report.bytes,
                total_bytes: self.total_bytes,
                problems: self.found.count,
            });
            if flow.is_break() {
                return Err(SliceEnd::Interrupted);
            }
        }
        Ok(())
    }

    fn damaged(&mut self, location: &BlockLocation, error: Error) {
        tracing::warn!(%location, %error, "check found damage");
        self.note(location.to_the_end(), kind_of_invalid(&error));
    }
}

impl Checker<'_> {
    fn note(&mut self, range: DamagedRange, kind: DamageKind) {
        self.found.add(range, kind, self.pool.txgs.synced_txg() + 1);
        self.pool.store.errors().note(range, kind, 0);
    }
}
