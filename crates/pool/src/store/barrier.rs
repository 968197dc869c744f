//! Barriers of a commit: all writes have ended, and flushes cover them.
//!
//! A write that fails is repeated once at the same place. What fails again is returned to the
//! commit, which may write the block elsewhere ([`Store::settle`]). At the last barrier
//! ([`Store::commit`]) a block may lack one of two copies. If it lacks all, the commit
//! [pauses](Pause) and then repeats the writes.
//!
//! A flush that fails is not repeated into success: the kernel and the device may have dropped what
//! they had reported as written. The commit pauses, and then writes everything again that no
//! successful flush has covered, from memory.

use forebay_base::sync::Arc;
use hashbrown::HashMap;

use super::Store;
use super::counters::StoreCounters;
use super::in_flight::{FailedWrite, Part, Write};
use crate::devices::failed;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Dva;

/// Completed writes may keep this share of the cache's bound until they are flushed.
const UNFLUSHED_SHARE: u64 = 8;
/// But this much at least, so that small caches do not flush all the time, unless it is more than
/// [`UNFLUSHED_MAX_SHARE`].
const UNFLUSHED_MIN_BYTES: u64 = 8 << 20;
/// And never more than this share: what they keep cannot be evicted.
const UNFLUSHED_MAX_SHARE: u64 = 4;

/// Bytes of all indirect blocks and dnodes above a block, both copies, and more.
const ABOVE_BYTES: u64 = 256 << 10;

/// What a commit does when a step fails.
pub(crate) trait Pause {
    /// Waits until the step that failed with `error` may succeed.
    ///
    /// # Errors
    /// `error`, if the step must not be repeated.
    fn pause(&self, error: Error) -> Result<()>;

    /// Makes sure, before a write, that no other host has the pool. Renews the lease if it has
    /// ended: the commit may have been held up in its middle.
    ///
    /// # Errors
    /// If another host has the pool.
    fn before_write(&self) -> Result<()> {
        Ok(())
    }
}

/// Repeats no step. For a store without a lease.
#[cfg(all(test, not(forebay_model)))]
pub(crate) struct NoPause;

#[cfg(all(test, not(forebay_model)))]
impl Pause for NoPause {
    fn pause(&self, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Writes that failed twice, by the first copy of their block.
pub(crate) struct FailedBlocks {
    writes: Vec<FailedWrite>,
    by_block: HashMap<Dva, Vec<usize>>,
}

impl FailedBlocks {
    fn new(writes: Vec<FailedWrite>) -> Self {
        let mut by_block: HashMap<Dva, Vec<usize>> = HashMap::new();
        for (at, failed) in writes.iter().enumerate() {
            by_block.entry(failed.write.part.block).or_default().push(at);
        }
        Self { writes, by_block }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether a write of the block failed whose first copy is at `block`.
    pub(crate) fn contains(&self, block: Dva) -> bool {
        self.by_block.contains_key(&block)
    }

    /// Whether another place may help: devices refuse single places, and have space.
    pub(crate) fn may_move(&self) -> bool {
        self.writes.iter().all(|failed| failed.error.kind() == forebay_io::ErrorKind::Device)
    }

    /// An upper bound of the bytes that another place takes, for the blocks and those above them.
    pub(crate) fn bytes(&self) -> u64 {
        let writes = self.writes.iter().map(|failed| failed.write.part.len()).sum::<u64>();
        writes.saturating_add(self.by_block.len() as u64 * ABOVE_BYTES)
    }

    /// Places that failed, with their lengths.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Dva, u64)> {
        let place = |failed: &FailedWrite| Some((failed.write.place()?, failed.write.part.len()));
        self.writes.iter().filter_map(place)
    }
}

impl Store {
    /// Waits until all writes have ended. Repeats each failed one once. Returns what failed again.
    ///
    /// # Errors
    /// If a write was refused, the pool is closed, or another host has it.
    pub(crate) fn settle(&self, pause: &dyn Pause) -> Result<FailedBlocks> {
        let mut again = Vec::new();
        loop {
            self.devices.unplug();
            let failed_now = self.shared.in_flight.finish()?;
            let (twice, once): (Vec<_>, Vec<_>) =
                failed_now.into_iter().partition(|failed| failed.write.is_retry);
            again.extend(twice);
            let deferred = self.shared.in_flight.take_deferred();
            if once.is_empty() && deferred.is_empty() {
                break;
            }
            pause.before_write()?;
            deferred.into_iter().for_each(|write| self.submit_write(write));
            self.count(StoreCounters::WRITE_RETRIES, once.len() as u64);
            for FailedWrite { write, .. } in once {
                self.submit_write(Write { is_retry: true, ..write });
            }
        }
        if let Some(closed) = again.iter().find(|one| is_closed(&one.error)) {
            return Err(failed(closed.error.clone()));
        }
        Ok(FailedBlocks::new(again))
    }

    /// Submits writes again that failed twice.
    pub(crate) fn retry(&self, blocks: FailedBlocks) {
        for FailedWrite { write, .. } in blocks.writes {
            self.submit_write(Write { is_retry: false, ..write });
        }
    }

    /// The blocks got other places. Readers may still know the old ones until
    /// [`release_replaced`](Self::release_replaced).
    pub(crate) fn replaced(&self, blocks: FailedBlocks) {
        self.count(StoreCounters::BLOCKS_MOVED, blocks.by_block.len() as u64);
        let FailedBlocks { writes, by_block } = blocks;
        self.shared.in_flight.replace(writes, |block| by_block.contains_key(block));
    }

    /// Whether blocks of the txg have moved whose old pointers readers may know.
    pub(crate) fn keeps_replaced(&self) -> bool {
        self.shared.in_flight.keeps_replaced()
    }

    /// No reader knows the old pointers of moved blocks any more.
    pub(crate) fn release_replaced(&self) {
        self.shared.in_flight.release_replaced();
    }

    /// Gives up the missing copies, if each block has a good one. If not, returns all writes and
    /// the error of one that is needed.
    pub(crate) fn accept_missing(&self, blocks: FailedBlocks) -> Option<(FailedBlocks, Error)> {
        let mut missing: HashMap<*const Part, u8> = HashMap::new();
        for FailedWrite { write, .. } in &blocks.writes {
            *missing.entry(Arc::as_ptr(&write.part)).or_default() |= 1 << write.copy;
        }
        let is_lost = |failed: &&FailedWrite| {
            let part = &failed.write.part;
            part.is_lost_without(missing[&Arc::as_ptr(part)])
        };
        let mut lost = blocks.writes.iter().filter(is_lost);
        if let Some(first) = lost.next() {
            let error = match lost.count() {
                0 => failed(first.error.clone()),
                more => failed(first.error.clone())
                    .doing(format_args!("{} writes failed, the first one", more + 1)),
            };
            return Some((blocks, error));
        }
        self.count(StoreCounters::COPIES_MISSING, blocks.writes.len() as u64);
        for FailedWrite { error, write } in &blocks.writes {
            write.part.give_up(write.copy);
            tracing::warn!(%error, "wrote a block with one copy instead of two");
        }
        None
    }

    /// Waits until all submitted writes have ended, then flushes the devices. Returns the places
    /// that could not be written; their blocks have another copy. Devices that
    /// [publish at once](crate::devices::Devices::publish_at_once) are flushed with the uberblock.
    ///
    /// # Errors
    /// What `pause` returns for the failure of a write or a flush. None of the writes since the
    /// last successful call may be relied on then.
    pub(crate) fn commit(&self, pause: &dyn Pause) -> Result<Vec<(Dva, u64)>> {
        let mut bad = Vec::new();
        loop {
            let blocks = self.settle(pause)?;
            bad.extend(blocks.places());
            if let Some((blocks, error)) = self.accept_missing(blocks) {
                bad.clear();
                if let Err(error) = pause.pause(error) {
                    self.shared.in_flight.abandon();
                    return Err(error);
                }
                self.retry(blocks);
                continue;
            }
            if self.shared.in_flight.is_distrusted() {
                self.write_again();
                continue;
            }
            let early = self.shared.in_flight.take_flush_error();
            if early.is_none() && self.devices.publish_at_once() {
                return Ok(bad);
            }
            let Err(error) = early.map_or_else(|| self.flush(), Err) else { return Ok(bad) };
            if let Err(error) = pause.pause(error) {
                self.shared.in_flight.abandon();
                return Err(error);
            }
            self.write_again();
        }
    }

    /// Flushes the devices. No write is in flight.
    fn flush(&self) -> Result<()> {
        let flushed = self.devices.flush_all();
        match &flushed {
            Ok(()) => self.shared.in_flight.flushed(false),
            Err(_) => self.count(StoreCounters::FLUSH_FAILURES, 1),
        }
        flushed
    }

    /// The uberblock of the txg is durable, and so is all that was written before it. The commit
    /// may still wait for labels, and relies on the devices until
    /// [`txg_flushed`](Self::txg_flushed).
    pub(crate) fn flushed_with_uberblock(&self) {
        self.shared.in_flight.flushed(false);
    }

    /// The commit has written all: the txg is about to count as durable.
    pub(crate) fn txg_flushed(&self) {
        self.shared.in_flight.flushed(true);
    }

    /// Whether the devices have blocks of the syncing txg, durably, that are not in memory any
    /// more: an older copy of a device cannot take its place.
    pub(crate) fn relies_on_devices(&self) -> bool {
        self.shared.in_flight.is_covered()
    }

    /// Somebody's flush may have failed and lost writes of the txg: they are written again before
    /// the next flush, and flushes are tried again.
    pub(crate) fn distrust_writes(&self) {
        self.shared.in_flight.distrust();
        self.devices.retry_flushes();
    }

    /// After a failed flush: writes everything again that no flush has covered.
    fn write_again(&self) {
        self.devices.retry_flushes();
        let again = self.shared.in_flight.take_unflushed();
        self.count(StoreCounters::WRITES_REPEATED, again.len() as u64);
        for write in again {
            self.submit_write(Write { is_retry: false, ..write });
        }
    }

    /// Releases payloads that completed writes keep, if they are many. For the thread that submits.
    pub(super) fn limit_unflushed(&self) {
        let bound = self.cache.bound_bytes();
        let least = UNFLUSHED_MIN_BYTES.min(bound / UNFLUSHED_MAX_SHARE);
        let limit = (bound / UNFLUSHED_SHARE).max(least);
        if self.shared.in_flight.wants_flush(limit) && !forebay_io::in_callback() {
            self.flush_early();
        }
    }

    /// Waits until no write is in flight. Those that have ended count as not flushed.
    fn wait_for_writes(&self) {
        self.devices.unplug();
        let ended = self.shared.in_flight.finish();
        self.shared.in_flight.put_back(ended);
    }

    /// Flushes what is written, in the middle of a commit. The next barrier handles failures.
    fn flush_early(&self) {
        if self.shared.in_flight.is_distrusted() {
            self.wait_for_writes();
            self.write_again();
        }
        self.wait_for_writes();
        self.count(StoreCounters::EARLY_FLUSHES, 1);
        if let Err(error) = self.flush() {
            self.shared.in_flight.flush_failed(error);
        }
    }

    /// Releases the payloads that completed writes keep.
    fn release_payloads(&self, pause: &dyn Pause) -> Result<()> {
        if let Some(error) = self.shared.in_flight.take_flush_error() {
            pause.pause(error)?;
            self.wait_for_writes();
            self.write_again();
        }
        if self.shared.in_flight.keeps_payloads() {
            self.flush_early();
        }
        Ok(())
    }

    /// Runs a step of a commit until it succeeds.
    ///
    /// # Errors
    /// What `pause` returns for an error of the step. An error that waiting cannot mend is returned
    /// at once.
    pub(crate) fn repeat<T>(
        &self,
        pause: &dyn Pause,
        mut step: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match step() {
                Err(error) if error.kind() == ErrorKind::NoMemory => {
                    self.count(StoreCounters::MEMORY_WAITS, 1);
                    self.release_payloads(pause)?;
                    pause.pause(error)?;
                }
                Err(error) if error.kind() == ErrorKind::Device => pause.pause(error)?,
                ended => return ended,
            }
        }
    }

    /// Counts copies of an uberblock that could not be written.
    pub(crate) fn note_missing_uberblocks(&self, copies: u64) {
        self.count(StoreCounters::UBERBLOCKS_MISSING, copies);
    }

    /// Drops the payloads that are kept until a flush. For a pool that writes nothing any more.
    pub(crate) fn abandon_writes(&self) {
        self.shared.in_flight.abandon();
    }

    /// As [`commit`](Self::commit), but fails instead of waiting.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) fn wait_and_flush(&self) -> Result<()> {
        self.commit(&NoPause).map(drop)
    }
}

fn is_closed(error: &forebay_io::Error) -> bool {
    error.kind() == forebay_io::ErrorKind::Closed
}
