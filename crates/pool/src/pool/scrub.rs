//! Scrubbing: every copy of every block is read, and one that is bad is written anew from one that is good.

use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::format::BlockPtrPhys;
use crate::store::Store;

use super::walk::{BlockLocation, Visitor, WalkEnd, Walking, is_complete};
use super::{CheckProgress, Pool};

/// Problems that a report lists; more are only counted.
const LISTED: usize = 64;
/// Progress is told after this many blocks.
const PROGRESS_BLOCKS: u64 = 64;

/// How far a scrub is.
pub type ScrubProgress = CheckProgress;

/// What a scrub did.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Whether everything was looked at. If not, it was interrupted.
    pub complete: bool,
    /// Blocks looked at.
    pub blocks: u64,
    /// Copies that were bad and are good again.
    pub healed: u64,
    /// Blocks without any good copy, and what leads nowhere: the first of these.
    pub lost: Vec<String>,
    /// How many there are.
    pub lost_count: u64,
}

impl Pool {
    /// Reads every copy of every block as of the newest txg, which is committed first, and heals what has another
    /// good copy. Nothing is committed while it runs. `progress` is called now and then as for
    /// [`check`](Self::check), and interrupts it in the same way: what was healed until then stays so.
    ///
    /// # Errors
    /// Why it could not be carried out; what it found is in the report.
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
