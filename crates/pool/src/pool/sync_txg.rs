//! Commits transaction groups on the sync thread.
//!
//! The order is: the stamp of a log vdev, flushed; the datasets; the pool's own objects (which name
//! the datasets); the space maps (which record every allocation of this txg); the root block. After
//! all of these are flushed, labels say what sides of mirrors have missed. Then the uberblocks
//! point to the root block. The txg is durable once they are flushed.
//!
//! Locking: `space` during the whole commit, `pool-config` under it for stamps and labels; nobody
//! who holds `space` waits for a commit.
//!
//! A block that cannot be written is written elsewhere, or with one copy instead of two. If that
//! does not help, or a vdev fails a flush or a read, the pool is *suspended*: calls that change it
//! fail, reads go on. The sync thread waits in the middle of the commit, and repeats the failed
//! step when the pool is cleared, or when a device that comes back by itself is back. Want of
//! memory only waits. Any other failure, such as an object store that another host has taken over,
//! ends the thread, and the pool stays suspended. The devices still hold the previous txg, or this
//! one if some of its uberblocks were written. Decision 0115.

#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::clock::{SystemWallClock, WallClock};
use forebay_base::probe;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, MutexGuard};
use forebay_io::ErrorKind as IoErrorKind;
use zerocopy::{FromZeros, IntoBytes};

use crate::dataset::DatasetInner;
use crate::devices::label::{self, Uberblock};
use crate::devices::log_vdev::Stamped;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::format::{BlockKind, ObjsetPhys, ROOT_MAGIC, RootPhys};
use crate::reservation::Intent;
use crate::space::Space;
use crate::store::barrier::{FailedBlocks, Pause};
use crate::store::counters::StoreCounters;
use crate::sync_context::SyncContext;
use crate::tx::Tx;
use crate::txg::Wake;

use super::space_io::UncachedWriter;
use super::{PoolInner, TxgPhase, create};

/// Minimum free space that a commit needs for its own blocks.
const MARGIN_BYTES: u64 = 1 << 20;
/// Bytes of blocks, with the indirect blocks above them, that get other places at most.
const MOVED_MAX_BYTES: u64 = 64 << 20;
/// How often blocks get other places, before the pool is suspended.
const MOVES_MAX: usize = 2;
/// A commit that gets the space maps from a scrub sooner has not waited for it: looks at them in
/// memory are short, but two may meet.
const WAIT_MIN_NS: u64 = 1_000_000;

/// Suspends the pool if a step of a commit fails that can be repeated.
struct CommitPause<'a> {
    inner: &'a PoolInner,
    txg: u64,
}

impl Pause for CommitPause<'_> {
    fn pause(&self, error: Error) -> Result<()> {
        let txgs = &self.inner.txgs;
        match error.kind() {
            // Waiting for memory ends by itself, and each attempt to allocate waits.
            ErrorKind::NoMemory if !txgs.is_closed() => Ok(()),
            ErrorKind::Device if self.is_fenced(&error) => Err(error),
            // A device that comes back by itself: nobody has to clear the pool.
            ErrorKind::Device if txgs.outage().is_some() => {
                txgs.wait_resumed(&|| false).map(drop).map_err(|_| error)
            }
            // It may have come back since.
            ErrorKind::Device if self.tries_again() => Ok(()),
            ErrorKind::Device => self.park(error),
            _ => Err(error),
        }
    }

    /// Another host may have taken the pool over while it was suspended or held up.
    fn before_write(&self) -> Result<()> {
        self.inner.store.repeat(self, || self.inner.check_lease())
    }
}

impl CommitPause<'_> {
    /// Whether another host has taken the object store over. No write will ever succeed again.
    fn is_fenced(&self, error: &Error) -> bool {
        let is_gone = error.device_error().is_some_and(|io| io.kind() == IoErrorKind::Gone);
        is_gone && self.inner.devices.is_on_store()
    }

    /// Whether a failed step is repeated at once: the first one of a txg, if a device of the pool
    /// comes back by itself. Its last outage may have ended before anybody could see it.
    fn tries_again(&self) -> bool {
        let txgs = &self.inner.txgs;
        txgs.may_have_outages()
            && self.inner.tried_again_in.swap(self.txg, Ordering::Relaxed) != self.txg
    }

    /// Suspends the pool until it is cleared and has its lease.
    fn park(&self, mut error: Error) -> Result<()> {
        let (inner, pool, txg) = (self.inner, &*self.inner.name, self.txg);
        loop {
            let device = error.device_error().map(forebay_io::Error::device);
            let event = Event { device, ..Event::because(&error) };
            inner.events().note(EventKind::Suspended, event.in_txg(txg));
            if !inner.txgs.park(&error, txg) {
                return Err(error);
            }
            tracing::info!(pool, txg, "repeating a failed step: the pool was cleared");
            // A flush may have failed for somebody else meanwhile.
            inner.store.distrust_writes();
            // Here, and not in `before_write`, so that failed clears do not nest.
            match inner.check_lease() {
                Ok(()) => return Ok(()),
                Err(late) if matches!(late.kind(), ErrorKind::Device | ErrorKind::NoMemory) => {
                    error = late;
                }
                Err(lost) => return Err(lost),
            }
        }
    }
}

/// Fails instead of waiting, for the first txg of a pool: the pool has no sync thread yet.
pub(super) struct FirstTxg<'a>(pub(super) &'a PoolInner);

impl Pause for FirstTxg<'_> {
    fn pause(&self, error: Error) -> Result<()> {
        Err(error)
    }

    fn before_write(&self) -> Result<()> {
        self.0.check_lease()
    }
}

/// Starts the sync thread of a pool.
pub(super) fn start(inner: &Arc<PoolInner>) -> Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    thread::spawn_named("forebay-sync", move || run(&inner))
        .map_err(|error| Error::no_thread("the commits of the pool", error))
}

fn run(inner: &PoolInner) {
    let guard = SuspendOnPanic(inner);
    run_txgs(inner);
    // Only a panic drops it.
    std::mem::forget(guard);
}

/// Suspends the pool if the sync thread panics, so that no waiter waits forever.
struct SuspendOnPanic<'a>(&'a PoolInner);

impl Drop for SuspendOnPanic<'_> {
    fn drop(&mut self) {
        // The panic hook has already reported the panic message.
        let text = "the pool's thread has panicked";
        self.0.events().note(EventKind::Suspended, Event::because(text));
        // The clock may be what has panicked.
        self.0.txgs.suspend_at(&Error::new(ErrorKind::Suspended, text), 0);
    }
}

fn run_txgs(inner: &PoolInner) {
    loop {
        if inner.txgs.next() == Wake::Ended {
            return;
        }
        inner.txg_history.begin(inner.written_bytes());
        let Ok(txg) = inner.txgs.quiesce() else { return };
        inner.txg_history.closed(txg, inner.txgs.dirty_of(txg));
        if let Err(error) = inner.sync_txg(txg) {
            if inner.txgs.suspension().is_none() {
                inner.events().note(EventKind::Suspended, Event::because(&error).in_txg(txg));
            }
            inner.txgs.suspend(&error);
            inner.store.abandon_writes();
            return;
        }
        let was_suspended = inner.txgs.suspension().is_some();
        inner.txg_history.end(TxgPhase::Uberblock);
        inner.txg_history.durable(inner.written_bytes());
        inner.txgs.synced(txg);
        if was_suspended && inner.txgs.suspension().is_none() {
            inner.events().note(EventKind::Resumed, Event::default().in_txg(txg));
        }
    }
}

/// Whether blocks may be written elsewhere without filling the pool: a commit that runs out of
/// space cannot go on. Very many failures are no bad places, but a bad device.
fn has_space_for(failed: &FailedBlocks, space: &Space) -> bool {
    let bytes = failed.bytes();
    bytes <= MOVED_MAX_BYTES && space.free_bytes() / 4 >= bytes.saturating_add(MARGIN_BYTES)
}

impl PoolInner {
    /// Writes a txg and makes it durable.
    pub(super) fn sync_txg(&self, txg: u64) -> Result<()> {
        let pause = CommitPause { inner: self, txg };
        pause.before_write()?;
        // Blocks that earlier txgs freed become reusable below. First wait for readers that still
        // use pointers to them.
        self.store.readers().synchronize();
        if self.store.heals().wait_before(txg) {
            self.scrub.count_wait();
        }
        let mut space = self.lock_space();
        self.txg_history.end(TxgPhase::Readers);
        space.begin(txg)?;
        probe!(txg_sync, self.guid, txg);
        self.extend_space(&mut space)?;
        self.write_txg(txg, space, &pause)?;
        if self.store.keeps_replaced() {
            self.store.readers().synchronize();
            self.store.release_replaced();
        }
        Ok(())
    }

    /// Waits after a failed step of the commit that is running, until it may be repeated.
    ///
    /// # Errors
    /// `error`, if it must not be repeated.
    pub(super) fn pause_commit(&self, error: Error) -> Result<()> {
        let txg = self.txgs.synced_txg() + 1;
        CommitPause { inner: self, txg }.pause(error)
    }

    /// Bytes of blocks written since the import.
    fn written_bytes(&self) -> u64 {
        self.store.counters().total(StoreCounters::PHYSICAL_BYTES)
    }

    fn lock_space(&self) -> MutexGuard<'_, Space> {
        if let Some(space) = self.space.try_lock() {
            return space;
        }
        let is_of_scrub = self.scrub.holds_space();
        let began = self.clock.now_ns();
        let space = self.space.lock();
        if is_of_scrub && self.clock.now_ns() - began >= WAIT_MIN_NS {
            self.scrub.count_wait();
        }
        space
    }

    /// Writes everything that the txg changed, after `space` has begun it. Two barriers: each waits
    /// for its writes and flushes all devices. An object store needs only the second: it publishes
    /// all writes at once.
    pub(super) fn write_txg(
        &self,
        txg: u64,
        mut space: MutexGuard<'_, Space>,
        pause: &dyn Pause,
    ) -> Result<()> {
        let space = &mut *space;
        self.devices.begin_txg(txg);
        self.stamp_log(txg, pause)?;
        // Before the error log is stored: that has all damage that the bookmark has passed.
        let scrub = self.scrub.phys(&self.devices);
        let mos = self.sync_objects(space, txg, pause)?;
        self.txg_history.end(TxgPhase::Objects);
        let mos = self.settle_objects(space, (txg, mos), pause)?;
        probe!(txg_objects_done, self.guid, txg);
        self.txg_history.end(TxgPhase::Writes);
        let places = space.place_root(create::root_bytes(&self.devices))?;
        let mut root = RootPhys::new_zeroed();
        root.magic = ROOT_MAGIC.into();
        root.txg = txg.into();
        root.datasets = self.directory_number.into();
        root.mos = mos;
        root.l2_devices = self.l2_list.number_for(txg).into();
        let mut writer = UncachedWriter { store: &self.store, pause };
        root.space = space.sync(txg, &mut writer)?;
        root.log = self.log.root_for(txg);
        root.log_home = self.log.home_of(&root.log);
        root.scrub = scrub;
        root.errors = self.errors_number.into();
        let root = writer.write(BlockKind::Root, places, root.as_bytes(), txg)?;
        probe!(txg_space_done, self.guid, txg);
        self.txg_history.end(TxgPhase::Space);
        // The first barrier: the tree is durable before an uberblock points to it, or becomes so
        // at once with it.
        for (dva, bytes) in self.store.commit(pause)? {
            space.avoid(dva, bytes);
        }
        // What devices miss of this txg is known before the txg counts.
        self.store_device_changes(pause)?;
        probe!(txg_flushed, self.guid, txg);
        self.txg_history.end(TxgPhase::Flush);
        let uberblock = Uberblock {
            txg,
            time_ns: unix_ns(),
            root,
            vdev_count: self.devices.count() as u16,
            previous_txg: self.root.lock().birth_txg.get(),
        };
        // The second barrier, inside: the txg is durable when this returns.
        self.write_uberblock(&uberblock, pause)?;
        self.store.flushed_with_uberblock();
        // A device that has not taken it must not pass for a whole one after a crash.
        self.store_device_changes(pause)?;
        // Not before: until the txg counts, no copy from before may take the place of a device.
        self.store.txg_flushed();
        probe!(txg_durable, self.guid, txg);
        self.note_discards(space);
        space.committed(txg)?;
        *self.root.lock() = root;
        self.forget_freed_own(space);
        self.store.errors().set_txg(txg + 1);
        self.store.l2().note_durable(txg);
        // Before the ring opens: what a device has caught up with is stored before the log relies
        // on it.
        if self.log.ends_replay() {
            self.devices.log_caught_up(txg);
        }
        self.log.synced(txg);
        self.update_free(space);
        if space.has_noted() {
            self.trim.wake();
        }
        Ok(())
    }

    /// Stamps the log vdev. If that has failed, now or before, the ring moves home: into the space
    /// of the pool.
    fn stamp_log(&self, txg: u64, pause: &dyn Pause) -> Result<()> {
        let stamp = Uberblock { txg, time_ns: unix_ns(), ..Uberblock::default() };
        self.store.repeat(pause, || {
            loop {
                self.check_lease()?;
                // Nobody adds or removes a log vdev meanwhile.
                let _config = self.config.lock();
                match self.devices.stamp_log(self.guid, &stamp, self.store.cache())? {
                    Stamped::Yes(number) => self.log.stamped(number, txg),
                    // The lease ended while the stamp was queued.
                    Stamped::Cancelled => continue,
                    Stamped::No => {}
                }
                if !self.devices.has_usable_log() {
                    let moved = self.log.move_to(None);
                    debug_assert!(moved.is_ok(), "home is as it was");
                }
                return Ok(());
            }
        })
    }

    /// Stores in the labels what devices of mirrors have missed since the last time.
    fn store_device_changes(&self, pause: &dyn Pause) -> Result<()> {
        while self.devices.has_unstored_changes() {
            self.store.repeat(pause, || {
                let mut config = self.config.lock();
                config.txg = self.txgs.synced_txg();
                let may_write = |generation| self.may_write_labels(generation);
                label::update_config(&self.devices, &mut config, self.store.cache(), &may_write)
            })?;
        }
        Ok(())
    }

    fn write_uberblock(&self, uberblock: &Uberblock, pause: &dyn Pause) -> Result<()> {
        let (devices, memory) = (&self.devices, self.store.cache());
        let written = self.store.repeat(pause, || {
            self.check_lease()?;
            let may_write = || self.check_lease();
            let began_ns = self.ownership.now_ns();
            let missing =
                label::write_uberblock(devices, self.guid, uberblock, memory, &may_write)?;
            self.ownership.confirmed(began_ns);
            Ok(missing)
        });
        self.store.note_missing_uberblocks(written?);
        Ok(())
    }

    /// Waits until the blocks of all objects are written. Gives other places to those that cannot
    /// be written. Returns the pool's own objects as they are then.
    ///
    /// An object store takes each write sooner or later, so there is nothing to wait for: the space
    /// maps go into the same object as the last blocks.
    fn settle_objects(
        &self,
        space: &mut Space,
        (txg, mut mos): (u64, ObjsetPhys),
        pause: &dyn Pause,
    ) -> Result<ObjsetPhys> {
        if self.devices.publish_at_once() {
            return Ok(mos);
        }
        let mut moves = 0;
        loop {
            let failed = self.store.settle(pause)?;
            if failed.is_empty() {
                return Ok(mos);
            }
            if moves < MOVES_MAX && failed.may_move() && has_space_for(&failed, space) {
                moves += 1;
                mos = self.relocate(space, txg, failed, pause)?;
                continue;
            }
            let Some((failed, error)) = self.store.accept_missing(failed) else { continue };
            pause.pause(error)?;
            self.store.retry(failed);
            moves = 0;
        }
    }

    /// Writes the blocks elsewhere whose writes failed.
    fn relocate(
        &self,
        space: &mut Space,
        txg: u64,
        failed: FailedBlocks,
        pause: &dyn Pause,
    ) -> Result<ObjsetPhys> {
        for (dva, bytes) in failed.places() {
            space.avoid(dva, bytes);
        }
        let mut ctx = SyncContext::new(&self.store, space, txg, pause);
        let tx = Tx::syncing(txg);
        for dataset in self.all_datasets() {
            if let Some(phys) = dataset.relocate(&mut ctx, &failed)? {
                let attributes = phys.as_bytes();
                ctx.repeat(|| self.mos.set_attributes(&tx, dataset.number, attributes))?;
            }
        }
        self.mos.sync(&mut ctx)?;
        self.mos.relocate(&mut ctx, &failed)?;
        self.store.replaced(failed);
        Ok(self.mos.phys())
    }

    fn all_datasets(&self) -> Vec<Arc<DatasetInner>> {
        self.datasets.lock().values().cloned().collect()
    }

    /// Writes the datasets, then the pool's own objects.
    fn sync_objects(&self, space: &mut Space, txg: u64, pause: &dyn Pause) -> Result<ObjsetPhys> {
        let tx = Tx::syncing(txg);
        self.store_errors(&tx, space);
        let mut ctx = SyncContext::new(&self.store, space, txg, pause);
        for dataset in self.all_datasets() {
            if let Some(phys) = dataset.sync(&mut ctx)? {
                let attributes = phys.as_bytes();
                ctx.repeat(|| self.mos.set_attributes(&tx, dataset.number, attributes))?;
            }
        }
        self.mos.sync(&mut ctx)?;
        Ok(self.mos.phys())
    }

    /// Bytes reserved for deletions and for the commit itself.
    fn reserve_bytes(&self) -> u64 {
        let total: u64 = self.devices.spans().iter().map(|span| span.end - span.start).sum();
        (total / 32).max(2 << 20)
    }

    /// Updates the free-space statistics and the reservations.
    pub(super) fn update_free(&self, space: &Space) {
        let reserve = self.reserve_bytes();
        let space_stats = space.stats();
        self.reservations.set(&space_stats, |intent| match intent {
            Intent::Use => reserve + MARGIN_BYTES,
            Intent::Update => reserve / 4 * 3,
            // The sync thread itself may use the rest.
            Intent::Free => reserve / 2,
        });
        *self.space_stats.lock() = space_stats;
    }
}

/// The time in nanoseconds since 1970.
fn unix_ns() -> u64 {
    let now = SystemWallClock.unix_time();
    let seconds = u64::try_from(now.seconds).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(now.nanos.into())
}
