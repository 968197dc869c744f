//! Checks a pool: reads and verifies every copy of every block, and compares the allocated ranges
//! with the space maps.

use std::ops::{ControlFlow, Range};

use forebay_base::sync::atomic::Ordering;

use crate::devices::config::Config;
use crate::devices::{Vdev, label};
use crate::error::{Error, Result};
use crate::error_log::{DamagedRange, TO_THE_END};
use crate::format::{BlockKind, BlockPtrPhys, DamageKind, Dva};
use crate::space::{SpaceReport, WalkedRanges};

use super::errors::{FoundDamage, LoggedDamage};
use super::walk::{
    BlockLocation, Bookmark, SPACE_MAPS, SliceEnd, Step, VisitedBlock, Visitor, Walk,
    kind_of_invalid,
};
use super::{Pool, PoolInner};

/// Damage of a pool whose space maps cannot be read, so that space was not compared.
const SPACE_MAPS_LOST: DamagedRange =
    DamagedRange { dataset: SPACE_MAPS, object: 0, block: 0, blocks: TO_THE_END };
/// Maximum number of objects that a report lists as unreachable.
const UNREACHABLE: usize = 1 << 16;
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
    /// Objects with blocks whose only copies are on missing devices. Such a block counts as
    /// damaged, and is not listed there.
    pub unreachable: Vec<UnreachableBlocks>,
    /// Number of such blocks, indirect blocks included.
    pub unreachable_count: u64,
    /// The first ranges, with their lengths in bytes, that are allocated but not referenced.
    pub leaked: Vec<(Dva, u64)>,
    /// Bytes in all such ranges.
    pub leaked_bytes: u64,
    /// Labels of devices in use that are damaged, a sentence each.
    pub labels: Vec<String>,
    /// Ranges that two blocks reference.
    pub double: Vec<(Dva, u64)>,
    /// Ranges that a block references although they are free or outside the pool.
    pub unmapped: Vec<(Dva, u64)>,
}

/// Blocks of an object that only missing devices have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachableBlocks {
    /// The object, as text.
    pub object: String,
    /// Ranges of data blocks, in order.
    pub blocks: Vec<Range<u64>>,
}

impl std::fmt::Display for UnreachableBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges: Vec<String> = self
            .blocks
            .iter()
            .map(|range| match range.end.saturating_sub(range.start) {
                0 | 1 => range.start.to_string(),
                _ => format!("{}-{}", range.start, range.end - 1),
            })
            .collect();
        write!(f, "{}, blocks {}: on a missing device", self.object, ranges.join(", "))
    }
}

impl CheckReport {
    /// Whether the check is complete and found no problems.
    pub fn is_clean(&self) -> bool {
        self.complete && !self.has_problems()
    }

    /// Whether the check found problems.
    pub fn has_problems(&self) -> bool {
        self.damaged_count > 0
            || !self.labels.is_empty()
            || !self.leaked.is_empty()
            || !self.double.is_empty()
            || !self.unmapped.is_empty()
    }

    /// Number of damaged blocks and objects that are listed.
    fn listed_count(&self) -> u64 {
        self.damaged.len() as u64 + self.unreachable_count
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
        writeln!(
            f,
            "{} blocks, {} bytes allocated (of mirrors one side counts)",
            self.blocks, self.bytes
        )?;
        for problem in &self.damaged {
            writeln!(f, "damaged: {problem}")?;
        }
        for problem in &self.unreachable {
            writeln!(f, "unreachable: {problem}")?;
        }
        let unlisted = self.damaged_count - self.listed_count();
        if unlisted > 0 {
            writeln!(f, "damaged: {unlisted} more")?;
        }
        for label in &self.labels {
            writeln!(f, "damaged: {label}")?;
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
        let (until, walked) = self.lock_space_maps().begin_audit();
        let _audit = AuditGuard(self);
        let mut checker = Checker {
            pool: self,
            walked,
            report: CheckReport::default(),
            found: FoundDamage::default(),
            total_bytes: self.space_stats.lock().allocated_bytes,
            progress,
            is_degraded: self.devices.iter().any(Vdev::is_missing),
        };
        let complete = Walk::new(self, until, Bookmark::START, &mut checker).run()?;
        if complete && self.space_maps_lost && self.followed.is_none() {
            checker.note(SPACE_MAPS_LOST, DamageKind::NoGoodCopy);
        }
        let Checker { mut walked, mut report, found, .. } = checker;
        report.complete = complete;
        report.damaged_count = found.count + report.unreachable_count;
        report.damaged = found.describe(self);
        if complete && !self.space_maps_lost {
            self.lock_space_maps().root_slots(|dva, bytes| walked.mark(dva, bytes));
            self.log.for_each_extent(&mut |dva, bytes| walked.mark(dva, bytes));
        }
        let mut found = walked.so_far();
        if complete && !self.space_maps_lost {
            for id in 0..walked.metaslabs() {
                self.lock_space_maps().compare(id, &walked, &mut found)?;
            }
        }
        report.take_space(found);
        if complete {
            report.labels = self.bad_labels()?;
        }
        Ok(report)
    }

    /// What is wrong with the labels of devices in use.
    fn bad_labels(&self) -> Result<Vec<String>> {
        // A crash may leave one of two labels torn, and the next import that writes rewrites both.
        // Who has the pool in use may be writing one.
        if self.read_only {
            return Ok(Vec::new());
        }
        let verify = |config: &Config| {
            self.devices.bad_labels(config, self.txgs.synced_txg(), self.store.cache())
        };
        // Reads may be slow, and each commit takes the lock. With the lock, nobody writes labels.
        let config = self.config.lock().clone();
        if verify(&config)?.is_empty() { Ok(Vec::new()) } else { verify(&self.config.lock()) }
    }

    /// Rewrites all labels if one of a device in use is damaged. The commits that the caller makes
    /// then write uberblocks there. Returns how many were damaged.
    pub(super) fn heal_labels(&self) -> Result<u64> {
        let bad = self.bad_labels()?;
        if bad.is_empty() {
            return Ok(0);
        }
        let mut config = self.config.lock();
        for what in &bad {
            tracing::warn!(pool = &*self.name, "rewriting a label: {what}");
        }
        self.check_lease()?;
        let may_write = |generation| self.may_write_labels(generation);
        label::update_config(&self.devices, &mut config, self.store.cache(), &may_write)?;
        Ok(bad.len() as u64)
    }
}

/// Ends the recording of allocations and frees.
struct AuditGuard<'a>(&'a PoolInner);

impl Drop for AuditGuard<'_> {
    fn drop(&mut self) {
        self.0.lock_space_maps().end_audit();
    }
}

struct Checker<'a> {
    pool: &'a PoolInner,
    walked: WalkedRanges,
    report: CheckReport,
    found: FoundDamage,
    total_bytes: u64,
    progress: &'a mut dyn FnMut(&CheckProgress) -> ControlFlow<()>,
    /// Whether a device is missing.
    is_degraded: bool,
}

impl Visitor for Checker<'_> {
    fn proceed(&mut self, _: &Bookmark) -> Step {
        match self.pool.closed.load(Ordering::Acquire) {
            true => Err(SliceEnd::Interrupted),
            false => Ok(()),
        }
    }

    fn block(&mut self, mut block: VisitedBlock<'_>) -> Step {
        if self.is_unreachable(&block) {
            self.unreachable(&block);
            block.bad.clear();
        }
        // A copy on a missing device is no damage if another one is good.
        block.bad.retain(|(copy, _)| !self.is_missing(block.ptr, *copy));
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
            if !is_root && !self.pool.space_maps_lost {
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

    /// Whether a block has no good copy, and one on a missing device.
    fn is_unreachable(&self, block: &VisitedBlock<'_>) -> bool {
        let is_missing = |(copy, _): &(usize, Error)| self.is_missing(block.ptr, *copy);
        self.is_degraded && block.bad.len() == block.copies && block.bad.iter().any(is_missing)
    }

    /// Whether a copy is on a missing device.
    fn is_missing(&self, ptr: &BlockPtrPhys, copy: usize) -> bool {
        self.pool.store.is_missing(ptr, copy)
    }

    /// Lists a block that only missing devices have, with all blocks that it leads to.
    fn unreachable(&mut self, block: &VisitedBlock<'_>) {
        self.report.unreachable_count += 1;
        let DamagedRange { block: first, blocks, .. } = block.range();
        let range = first..first.saturating_add(blocks);
        let object = block.location.object_name();
        let listed = &mut self.report.unreachable;
        if listed.last().is_none_or(|last| last.object != object) {
            if listed.len() == UNREACHABLE {
                return;
            }
            listed.push(UnreachableBlocks { object, blocks: Vec::new() });
        }
        let Some(UnreachableBlocks { blocks, .. }) = listed.last_mut() else { return };
        match blocks.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => blocks.push(range),
        }
    }
}
