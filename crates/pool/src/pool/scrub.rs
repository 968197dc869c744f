//! Scrubs a pool: reads every copy of every block and rewrites bad copies from good ones.

use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::format::BlockPtrPhys;
use crate::store::Store;

use super::walk::{BlockLocation, Visitor, WalkEnd, Walking, is_complete};
use super::{CheckProgress, Pool};

/// Maximum number of problems that a report lists. Further problems are only counted.
const LISTED: usize = 64;
/// Blocks between two calls of the progress callback.
const PROGRESS_BLOCKS: u64 = 64;

/// Progress of a scrub.
pub type ScrubProgress = CheckProgress;

/// Result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Whether the walk reached the end. If not, it was interrupted.
    pub complete: bool,
    /// Blocks processed.
    pub blocks: u64,
    /// Bad copies that were rewritten.
    pub healed: u64,
    /// The first blocks without a good copy, and the first objects that are invalid.
    pub lost: Vec<String>,
    /// Number of such blocks and objects.
    pub lost_count: u64,
}

impl Pool {
    /// Commits the open txg, then reads every copy of every block as of that txg and rewrites bad
    /// copies from good ones. Nothing is committed while the scrub runs. `progress` is called
    /// periodically and interrupts the scrub as in [`check`](Self::check); copies rewritten so far
    /// stay.
    ///
    /// # Errors
    /// The error that stopped the scrub. Problems found are not errors; the report lists them.
    pub fn scrub(
        &self,
        progress: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        self.sync()?;
        let inner = &self.inner;
        let mut space = inner.space.lock();
        let total_bytes = space.stats().allocated_bytes;
        let mut scrubber =
            Scrubber { report: ScrubReport::default(), total_bytes, bytes: 0, progress };
        let walked = inner.walk_all(&mut space, &mut scrubber);
        let mut report = scrubber.report;
        if report.healed > 0 {
            inner.devices.flush_all()?;
        }
        drop(space);
        report.complete = is_complete(walked)?;
        Ok(report)
    }
}

struct Scrubber<'a> {
    report: ScrubReport,
    total_bytes: u64,
    bytes: u64,
    progress: &'a mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
}

impl Visitor for Scrubber<'_> {
    fn block(&mut self, store: &Store, ptr: &BlockPtrPhys, place: &BlockLocation) -> Walking {
        self.report.blocks += 1;
        let copies = 0..ptr.copy_count();
        let bad: Vec<usize> =
            copies.clone().filter(|copy| store.read_copy(ptr, *copy).is_err()).collect();
        for copy in &bad {
            match store.heal(ptr, *copy) {
                Ok(()) => self.report.healed += 1,
                Err(error) => self.damaged(place, error.doing(format_args!("copy {copy}"))),
            }
        }
        self.bytes += ptr.allocated_bytes(store.sector_bytes()) * copies.len() as u64;
        if self.report.blocks.is_multiple_of(PROGRESS_BLOCKS) {
            let flow = (self.progress)(&ScrubProgress {
                blocks: self.report.blocks,
                bytes: self.bytes,
                total_bytes: self.total_bytes,
                problems: self.report.lost_count,
            });
            if flow.is_break() {
                return Err(WalkEnd::Interrupted);
            }
        }
        Ok(())
    }

    fn damaged(&mut self, place: &BlockLocation, error: Error) {
        self.report.lost_count += 1;
        if self.report.lost.len() < LISTED {
            self.report.lost.push(format!("{place}: {error}"));
        }
    }
}
