//! Checking a pool: every block is read and verified, every copy of it, and what the blocks take is compared with
//! what is known of space.

use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::format::{BlockPtrPhys, Dva};
use crate::space::{SpaceReport, WalkedRanges};
use crate::store::Store;

use super::walk::{BlockLocation, Visitor, WalkEnd, Walking, is_complete};
use super::{Pool, PoolInner};

/// Problems that a report lists; more are only counted.
const LISTED: usize = 64;
/// Progress is told after this many blocks.
const PROGRESS_BLOCKS: u64 = 64;

/// How far a check or scrub is.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckProgress {
    /// Blocks looked at.
    pub blocks: u64,
    /// Bytes looked at, all copies.
    pub bytes: u64,
    /// Bytes in use in the pool: what `bytes` comes to, about.
    pub total_bytes: u64,
    /// Problems found.
    pub problems: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Whether everything was looked at. If not, it was interrupted: what is listed is what was found until then, and space was
    /// not compared.
    pub complete: bool,
    /// Blocks looked at.
    pub blocks: u64,
    /// Bytes looked at, all copies.
    pub bytes: u64,
    /// What cannot be read or makes no sense: the first of these.
    pub damaged: Vec<String>,
    /// How many there are.
    pub damaged_count: u64,
    /// Ranges that nothing points to, and that are not free: the first of these, with their bytes.
    pub leaked: Vec<(Dva, u64)>,
    /// Bytes in all of them.
    pub leaked_bytes: u64,
    /// Ranges that two blocks claim.
    pub double: Vec<(Dva, u64)>,
    /// Ranges that a block claims though they are free, or no part of the pool.
    pub unmapped: Vec<(Dva, u64)>,
}

impl CheckReport {
    /// Whether everything was looked at, and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.complete && !self.has_problems()
    }

    /// Whether something is wrong.
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
            false => write!(f, "{found} until it was interrupted; the rest was not looked at"),
        }
    }
}

impl Pool {
    /// Checks the whole pool, as of the newest txg, which is committed first. Nothing is committed while it runs, so that
    /// changes wait if there are many. `progress` is called now and then, and interrupts it by returning
    /// [`ControlFlow::Break`]; it must not ask the pool for anything that waits for a txg or for statistics
    /// ([`stats`](Self::stats)). What was found until then is returned, and is not [`complete`](CheckReport::complete).
    ///
    /// # Errors
    /// Why it could not be carried out; what it found is in the report.
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
        // The sync needs it: what is walked stays as it is.
        let mut space = self.space.lock();
        let mut checker = Checker {
            walked: WalkedRanges::new(&space),
            report: CheckReport::default(),
            total_bytes: space.stats().allocated_bytes,
            progress,
        };
        let complete = is_complete(self.walk_all(&mut space, &mut checker))?;
        space.spare_root_places(|dva, bytes| checker.walked.mark(dva, bytes));
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
