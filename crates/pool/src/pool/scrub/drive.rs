//! Drives a scrub: walks the pool, heals, and keeps the record, the rate and the requests.

use std::ops::ControlFlow;
use std::time::Duration;

use forebay_base::sync::MutexGuard;
use forebay_base::sync::atomic::Ordering;

use crate::error::{Error, ErrorKind, Result};
use crate::error_log::DamagedRange;
use crate::events::{Event, EventKind};
use crate::format::{DamageKind, ScrubState};

use super::super::PoolInner;
use super::super::walk::{
    BlockLocation, Bookmark, SliceEnd, Step, VisitedBlock, Visitor, Walk, kind_of_invalid,
};
use super::{Conditions, Failure, ScrubProgress, ScrubReport, ScrubRun, Scrubs, WAIT, failure_of};

/// Blocks between two calls of the progress callback.
const PROGRESS_BLOCKS: u64 = 64;
/// Time between commits that only store the bookmark, if nothing else is committed.
const COMMIT_NS: u64 = 30_000_000_000;
/// A scrub runs ahead of its rate by at most this time and one block, so that it does not sleep
/// after each block.
const AHEAD_NS: u64 = 10_000_000;

/// Commits after labels were rewritten: an import may go back to their uberblocks.
const UBERBLOCKS: usize = 3;

impl PoolInner {
    /// Drives the scrub to its end, or until something ends it before.
    pub(super) fn drive_scrub(
        &self,
        progress: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        let mut guard = DriverGuard { scrubs: &self.scrub, failure: None };
        let (status, mut at) = {
            let record = &self.scrub.run.lock().record;
            (record.status, record.at)
        };
        self.scrub.labels_healed.store(0, Ordering::Relaxed);
        self.events().note(EventKind::ScrubBegan, Event::default().in_txg(status.txg));
        let now_ns = self.clock.now_ns();
        let mut driver = Driver {
            pool: self,
            progress,
            until_txg: status.txg,
            block: BlockCounts::default(),
            clock_ns: now_ns,
            paid_ns: now_ns,
            committed: (self.txgs.synced_txg(), now_ns),
            paused: false,
        };
        let walked = loop {
            let walked = Walk::new(self, status.txg, at, &mut driver).run();
            let lost = driver.publish(None).record.status.lost;
            if !matches!(walked, Ok(true)) || lost > 0 {
                break walked;
            }
            match self.end_of_heals() {
                Some(Conditions { flush_failures, .. }) => {
                    // As for a resilver: the walk may have left out what a txg frees that is
                    // being written.
                    let durable = self.txgs.wait_closed();
                    let caught_up = || self.devices.caught_up(status.txg, flush_failures);
                    if let Err(error) = durable.and_then(|()| caught_up()) {
                        let pool = &*self.name;
                        tracing::warn!(pool, %error, "devices stay degraded after the scrub");
                    }
                    break walked;
                }
                None => at = Bookmark::START,
            }
        };
        let paused = driver.paused;
        let state = {
            let mut run = self.scrub.run.lock();
            match &walked {
                Ok(true) => {
                    run.request = None;
                    run.end(ScrubState::Finished);
                    self.store.errors().finish_scrub(status.txg);
                }
                Ok(false) if run.request.is_some() => run.carry_out(),
                Ok(false) if paused => run.end(ScrubState::Paused),
                // An export, or an error: the scrub can be resumed. A request is left to the thread
                // that waits, or to the next driver.
                _ => {}
            }
            run.record.status.state
        };
        let synced = self.store_scrub(state);
        // After a failure no label may leave a device out: labels are written without a group.
        if synced.is_ok() {
            self.finish_replacements();
        }
        let status = self.scrub.run.lock().record.status;
        let report = self.scrub_report(&status);
        let text = summary(&report);
        self.events().note(EventKind::ScrubEnded, Event::because(text).in_txg(status.txg));
        let result = walked.and(synced);
        guard.failure = failure_of(&result);
        drop(guard);
        result.map(|_| report)
    }
}

impl PoolInner {
    /// Makes the state of a scrub durable, and what was healed; if it has finished, also labels.
    fn store_scrub(&self, state: ScrubState) -> Result<()> {
        let healed = match state {
            ScrubState::Finished => self.heal_labels(),
            _ => Ok(0),
        };
        let labels = *healed.as_ref().unwrap_or(&0);
        self.scrub.labels_healed.store(labels, Ordering::Relaxed);
        let commits = match state {
            ScrubState::Running => 0,
            _ if labels > 0 => UBERBLOCKS,
            _ => 1,
        };
        let synced = (0..commits).try_for_each(|_| self.txgs.sync_now().map(drop));
        healed.and(synced)
    }

    /// A walk has ended. Returns the conditions under which it has read and healed all copies;
    /// `None` if they have changed meanwhile, and the walk has to begin again.
    fn end_of_heals(&self) -> Option<Conditions> {
        let mut run = self.scrub.run.lock();
        let now = Conditions::now(&self.devices);
        if !run.has_passed_copies(&self.devices) {
            return Some(now);
        }
        let pool = &*self.name;
        tracing::warn!(pool, "scrub begins again: a flush or a device has failed meanwhile");
        run.began = Some(now);
        run.record.at = Bookmark::START;
        None
    }
}

/// What a scrub has found, for its event.
fn summary(report: &ScrubReport) -> String {
    let ScrubReport { state, healed, labels_healed, lost_count, .. } = report;
    let labels = match labels_healed {
        0 => String::new(),
        count => format!(", {count} labels rewritten"),
    };
    format!("{}, {healed} copies healed{labels}, {lost_count} problems", state.name())
}

/// Ends the driver, also after a panic.
struct DriverGuard<'a> {
    scrubs: &'a Scrubs,
    failure: Option<Failure>,
}

impl Drop for DriverGuard<'_> {
    fn drop(&mut self) {
        self.scrubs.leave(self.failure.take());
    }
}

/// Counts that are not in the record yet.
#[derive(Default)]
struct BlockCounts {
    blocks: u64,
    bytes: u64,
    healed: u64,
    lost: u64,
}

struct Driver<'a> {
    pool: &'a PoolInner,
    progress: &'a mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    until_txg: u64,
    /// The block that was read last.
    block: BlockCounts,
    /// Until when the time is in the record.
    clock_ns: u64,
    /// Time at which the rate allows the next block.
    paid_ns: u64,
    /// The newest txg that the driver has seen, and when it saw it first.
    committed: (u64, u64),
    /// Whether the progress callback has paused the scrub.
    paused: bool,
}

impl<'a> Driver<'a> {
    /// Adds the last block to the record, and the bookmark after it.
    fn publish(&mut self, at: Option<&Bookmark>) -> MutexGuard<'a, ScrubRun> {
        let block = std::mem::take(&mut self.block);
        let now_ns = self.pool.clock.now_ns();
        let mut run = self.pool.scrub.run.lock();
        if let Some(at) = at {
            run.record.at = *at;
        }
        let status = &mut run.record.status;
        status.blocks += block.blocks;
        status.bytes += block.bytes;
        status.healed += block.healed;
        status.lost += block.lost;
        status.active_ns += now_ns.saturating_sub(self.clock_ns);
        self.clock_ns = now_ns;
        run
    }

    /// Reports progress. An interruption pauses the scrub.
    fn report(&mut self, now: ScrubProgress) -> Step {
        if (self.progress)(&now).is_break() {
            self.paused = true;
            return Err(SliceEnd::Interrupted);
        }
        Ok(())
    }

    /// Waits until the rate allows the next block.
    fn wait(&mut self) -> Step {
        loop {
            let scrub = &self.pool.scrub;
            let mut run = scrub.run.lock();
            if run.closed || run.request.is_some() {
                return Err(SliceEnd::Interrupted);
            }
            let now_ns = self.pool.clock.now_ns();
            let ahead_ns = self.paid_ns.saturating_sub(now_ns);
            if ahead_ns <= AHEAD_NS || self.rate(&run) == 0 {
                return Ok(());
            }
            let wait = Duration::from_nanos(ahead_ns - AHEAD_NS).min(WAIT);
            scrub.changed.wait_timeout(&mut run, wait);
            let now = run.progress();
            drop(run);
            self.report(now)?;
        }
    }

    /// The rate in bytes per second; 0 without a limit.
    fn rate(&self, run: &ScrubRun) -> u64 {
        match run.record.status.rate_bytes {
            0 => self.pool.tunables.scrub().scrub_rate_bytes(),
            own => own,
        }
    }

    /// Stores the bookmark if no commit has done so for some time.
    fn commit(&mut self) -> Step {
        let synced = self.pool.txgs.synced_txg();
        let now_ns = self.pool.clock.now_ns();
        if synced != self.committed.0 {
            self.committed = (synced, now_ns);
        } else if now_ns.saturating_sub(self.committed.1) >= COMMIT_NS {
            self.committed = (self.pool.txgs.sync_now()?, now_ns);
        }
        Ok(())
    }
}

impl Visitor for Driver<'_> {
    fn proceed(&mut self, at: &Bookmark) -> Step {
        let bytes = self.block.bytes;
        let run = self.publish(Some(at));
        let (now, ends) = (run.progress(), run.closed || run.request.is_some());
        let rate = self.rate(&run);
        drop(run);
        if rate > 0 {
            let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
            self.paid_ns = self.paid_ns.max(self.clock_ns).saturating_add(cost_ns as u64);
        }
        if ends {
            return Err(SliceEnd::Interrupted);
        }
        if bytes > 0 && now.blocks.is_multiple_of(PROGRESS_BLOCKS) {
            self.report(now)?;
        }
        self.wait()?;
        self.commit()
    }

    fn block(&mut self, block: VisitedBlock<'_>) -> Step {
        let mut failed = None;
        for (copy, _) in &block.bad {
            match self.pool.heal(&block, *copy) {
                Ok(true) => self.block.healed += 1,
                Ok(false) => return Err(SliceEnd::Overtaken),
                Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error.into()),
                // The device comes back by itself: this is no damage.
                Err(error) if self.pool.devices.outage().is_some() => return Err(error.into()),
                Err(error) => {
                    failed.get_or_insert(error.doing(format_args!("copy {copy}")));
                }
            }
        }
        if let Some(error) = failed {
            tracing::error!(location = %block.location, %error, "scrub found damage");
            self.note(block.range(), block.damage());
        }
        self.block.blocks += 1;
        self.block.bytes += block.extents.iter().map(|(_, bytes)| bytes).sum::<u64>();
        Ok(())
    }

    fn damaged(&mut self, location: &BlockLocation, error: Error) {
        tracing::error!(%location, %error, "scrub found damage");
        self.note(location.to_the_end(), kind_of_invalid(&error));
    }
}

impl Driver<'_> {
    fn note(&mut self, range: DamagedRange, kind: DamageKind) {
        self.block.lost += 1;
        self.pool.store.errors().note(range, kind, self.until_txg);
    }
}
