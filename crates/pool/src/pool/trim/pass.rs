//! Passes over the free space: of what was freed, and of everything.

use std::ops::ControlFlow;
use std::time::Duration;

use forebay_base::sync::MutexGuard;
use forebay_io::{ErrorKind as IoErrorKind, Priority, Request};

use crate::devices::Leaf;
use crate::devices::config::VdevKind;
use crate::error::Result;
use crate::format::{Dva, TXGS_TO_REUSE};
use crate::space::{DiscardList, HeldSlice, Space};

use super::super::{Pool, PoolInner};
use super::{TrimCounters, WAIT};

/// Maximum number of bytes that a slice holds.
const SLICE_BYTES: u64 = 64 << 20;
/// Discards begin and end at multiples of this. A file system rewrites the rest of a block of which
/// a part is discarded, and the rest may be a committed block of the pool.
const ALIGN_BYTES: u64 = 4096;

/// Progress of [`Pool::trim`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TrimProgress {
    /// Bytes discarded so far.
    pub bytes: u64,
    /// Free bytes of the pool, as far as discards concern them: an upper bound of the final value
    /// of `bytes`.
    pub total_bytes: u64,
}

/// Result of [`Pool::trim`].
#[derive(Clone, Debug, Default)]
pub struct TrimReport {
    /// Whether it reached the end. If not, it was interrupted.
    pub complete: bool,
    /// Bytes discarded.
    pub bytes: u64,
    /// Number of discards that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// Paths of the devices that do not support discards.
    pub unsupported: Vec<String>,
}

impl Pool {
    /// Discards all free space, except ranges shorter than the tunable `trim_min_bytes`. First it
    /// commits the open transaction group and as many others as freed space needs to become
    /// reusable. Changes and commits go on meanwhile.
    ///
    /// `progress` is called after each slice, and interrupts by returning [`ControlFlow::Break`].
    /// It must not export the pool. An export interrupts it too.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync), and the error of reading a space map. Discards that fail are
    /// not errors; the report counts them.
    pub fn trim(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport> {
        let inner = &self.inner;
        inner.check_writable()?;
        let _job = inner.trim.begin_job(&inner.name)?;
        for _ in 0..TXGS_TO_REUSE {
            inner.txgs.sync_now()?;
        }
        inner.trim_all(progress)
    }
}

impl PoolInner {
    /// Sets which devices note their freed ranges, before the newest frees mature.
    pub(in super::super) fn note_discards(&self, space: &mut Space) {
        let tunables = self.tunables.trim();
        for vdev in self.devices.iter() {
            let wanted = vdev.kind() == VdevKind::ObjectStore
                || vdev.leaves().any(|(_, leaf)| match leaf.device().info().block_device {
                    true => tunables.trim_block_devices(),
                    false => tunables.trim_files(),
                });
            let number = vdev.number();
            space.note_discards(number, wanted && !self.trim.is_unsupported(number));
        }
    }

    /// Waits until freed space has been gathered for long enough. Returns false if no pass shall
    /// begin.
    pub(super) fn gather_freed(&self) -> bool {
        let begun_ns = self.clock.now_ns();
        self.wait_until(|| {
            let delay_ns = u64::from(self.tunables.trim().trim_delay_ms()) * 1_000_000;
            begun_ns.saturating_add(delay_ns)
        })
    }

    /// Discards what was freed. Errors end the pass: the space stays free.
    pub(super) fn trim_freed(&self) {
        let _pass = self.trim.pass.lock();
        let trimmed = self.trim_noted();
        // However it has ended, nothing needs to stay loaded.
        let ended = self.space.lock().end_list();
        if let Err(error) = trimmed.and(ended) {
            tracing::warn!(pool = &*self.name, %error, "cannot discard freed space");
        }
    }

    fn trim_noted(&self) -> Result<()> {
        let min_bytes = self.tunables.trim().trim_min_bytes();
        // Until when the rate allows no further slice.
        let mut paid_ns = self.clock.now_ns();
        while !self.trim.thread_yields() {
            let Some(id) = self.space.lock().most_noted() else { return Ok(()) };
            let mut list = match self.lock_loaded_after_outage(id) {
                Ok(mut space) => space.noted_discards(id, min_bytes)?,
                Err(error) => {
                    if self.txgs.outage().is_none() {
                        // Otherwise each pass would begin and end with it.
                        drop(self.space.lock().noted_discards(id, min_bytes));
                    }
                    return Err(error);
                }
            };
            let is_spent = self.space.lock().is_spent_in(id);
            while let Some(slice) = self.hold(&mut list)? {
                let bytes = self.discard(&slice, &mut TrimReport::default());
                self.release(slice)?;
                // An object store only takes notes.
                let cost_ns = if is_spent { 0 } else { self.cost_ns(bytes) };
                paid_ns = paid_ns.max(self.clock.now_ns()).saturating_add(cost_ns);
                if !self.wait_until(|| paid_ns) {
                    return Ok(());
                }
            }
            self.space.lock().end_list()?;
        }
        Ok(())
    }

    fn trim_all(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport> {
        let _pass = self.trim.pass.lock();
        let report = self.trim_metaslabs(progress);
        // However it has ended, nothing needs to stay loaded.
        self.space.lock().end_list()?;
        report
    }

    fn trim_metaslabs(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport> {
        let min_bytes = self.tunables.trim().trim_min_bytes();
        let total_bytes = match self.space.lock().spent_bytes() {
            Some(spent_bytes) => spent_bytes,
            None => self.space_stats.lock().free_bytes,
        };
        let mut report = TrimReport::default();
        // The pool may grow meanwhile.
        for id in 0.. {
            let Some(device) = self.space.lock().device_of(id) else { break };
            if self.trim.is_unsupported(device) {
                continue;
            }
            let mut list = self.lock_loaded(id)?.all_discards(id, min_bytes)?;
            while let Some(slice) = self.hold(&mut list)? {
                let bytes = self.discard(&slice, &mut report);
                report.bytes += bytes;
                self.release(slice)?;
                let now = TrimProgress { bytes: report.bytes, total_bytes };
                if progress(&now).is_break() {
                    return Ok(report);
                }
            }
            self.space.lock().end_list()?;
        }
        self.txgs.check_running()?;
        report.complete = !self.trim.is_closed();
        let unsupported = self.trim.state.lock().unsupported.clone();
        let names = unsupported.into_iter().filter_map(|device| self.devices.get(device));
        report.unsupported = names.map(|vdev| vdev.name()).collect();
        Ok(report)
    }

    /// As [`lock_loaded`](Self::lock_loaded). If the read fails because of an outage that has ended
    /// since, it reads once more.
    fn lock_loaded_after_outage(&self, id: u32) -> Result<MutexGuard<'_, Space>> {
        match self.lock_loaded(id) {
            Err(_) if self.txgs.may_have_outages() && self.txgs.outage().is_none() => {
                self.lock_loaded(id)
            }
            locked => locked,
        }
    }

    /// Locks the space maps with a metaslab that is loaded. Reads its base without a lock.
    pub(in super::super) fn lock_loaded(&self, id: u32) -> Result<MutexGuard<'_, Space>> {
        loop {
            let space = self.space.lock();
            let base = space.unloaded_base(id).filter(|base| base.metaslab() == id);
            let Some(base) = base else { return Ok(space) };
            drop(space);
            let runs = base.read(&self.store);
            let mut space = self.space.lock();
            // A commit may have loaded it, and freed the base that was read.
            if space.is_unloaded(&base) {
                space.put_base(&base, runs?)?;
                return Ok(space);
            }
        }
    }

    /// Holds the next slice of the list; `None` at its end, or if the pool is closed or suspended.
    fn hold(&self, list: &mut DiscardList) -> Result<Option<HeldSlice>> {
        while !self.trim.is_closed() {
            let txg = self.txgs.synced_txg();
            // A scrub may still heal a block that was there: wait as a commit does before it reuses
            // the space.
            self.store.heals().wait_before(txg + 1);
            self.check_lease()?;
            let mut space = self.space.lock();
            if self.txgs.check_running().is_err() {
                return Ok(None);
            }
            if space.synced_txg() == txg {
                let is_spent = space.is_spent_in(list.metaslab());
                return space.hold(list, if is_spent { u64::MAX } else { SLICE_BYTES });
            }
            // Another commit has let more space mature.
        }
        Ok(None)
    }

    /// Ends the hold of a slice.
    fn release(&self, slice: HeldSlice) -> Result<()> {
        drop(slice);
        self.space.lock().release_held(false).map(drop)
    }

    /// Discards the ranges of a slice, one after another. Returns the bytes that a device has
    /// discarded.
    fn discard(&self, slice: &HeldSlice, report: &mut TrimReport) -> u64 {
        let mut bytes = 0;
        for &(dva, len) in &slice.ranges {
            // Another host may have the space.
            if !self.lease().is_valid() {
                break;
            }
            bytes += self.discard_range(dva, len, report);
        }
        bytes
    }

    /// Discards a range on all devices of its vdev that are in use.
    fn discard_range(&self, dva: Dva, len: u64, report: &mut TrimReport) -> u64 {
        let Some(vdev) = self.devices.get(dva.device) else { return 0 };
        let start = dva.offset.next_multiple_of(ALIGN_BYTES);
        let len = ((dva.offset + len) / ALIGN_BYTES * ALIGN_BYTES).saturating_sub(start);
        if len == 0 || self.trim.is_unsupported(dva.device) {
            return 0;
        }
        let mut bytes = 0;
        let mut ignored = 0;
        for (_, leaf) in vdev.used() {
            match self.discard_on(leaf, (start, len), report) {
                Some(done) => bytes = bytes.max(done),
                None => ignored += 1,
            }
        }
        if ignored > 0 && ignored == vdev.used().count() {
            let device = vdev.name();
            tracing::info!(pool = &*self.name, device, "no support of discards");
            self.trim.state.lock().unsupported.push(dva.device);
        }
        bytes
    }

    /// Discards a range on a device. `None` if it ignores discards.
    fn discard_on(
        &self,
        leaf: &Leaf,
        (start, len): (u64, u64),
        report: &mut TrimReport,
    ) -> Option<u64> {
        let device = leaf.device();
        let is_ignored = || {
            let counters = device.stats().counters;
            counters.iter().any(|(name, _, value)| *name == "discards_ignored" && *value > 0)
        };
        let request = Request::discard(start, len).with_priority(Priority::Scrub);
        let request = request.with_fence(self.devices.fence());
        match leaf.run(request).result {
            Ok(()) if is_ignored() => None,
            Ok(()) => {
                self.trim.counters.add(TrimCounters::DISCARDED_BYTES, 0, len);
                self.trim.counters.add(TrimCounters::DISCARDS, 0, 1);
                Some(len)
            }
            // The lease ended while it was queued, or the device was detached.
            Err(error) if matches!(error.kind(), IoErrorKind::Cancelled | IoErrorKind::Closed) => {
                Some(0)
            }
            Err(error) => {
                self.trim.counters.add(TrimCounters::DISCARD_ERRORS, 0, 1);
                report.errors += 1;
                report.first_error.get_or_insert_with(|| error.to_string());
                if !std::mem::replace(&mut self.trim.state.lock().has_failed, true) {
                    tracing::warn!(
                        pool = &*self.name,
                        %error,
                        "cannot discard free space; further failures are only counted"
                    );
                }
                Some(0)
            }
        }
    }

    /// How long the background rate allows no slice after one of `bytes`.
    fn cost_ns(&self, bytes: u64) -> u64 {
        let rate = self.tunables.trim().trim_rate_bytes();
        let cost_ns = (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(rate));
        cost_ns.map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Waits until a time of the pool's clock, which may change meanwhile. Returns false if the
    /// pass has to end.
    fn wait_until(&self, until_ns: impl Fn() -> u64) -> bool {
        let mut state = self.trim.state.lock();
        loop {
            let ahead_ns = until_ns().saturating_sub(self.clock.now_ns());
            if state.yields() || ahead_ns == 0 {
                return !state.yields();
            }
            self.trim.changed.wait_timeout(&mut state, WAIT.min(Duration::from_nanos(ahead_ns)));
        }
    }
}
