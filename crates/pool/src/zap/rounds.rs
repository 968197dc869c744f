//! Moving buffered names to their leaves: choose leaves, read them, and move the names.
//!
//! The three steps are separate, so that a thread that moves names reads without a transaction,
//! and many leaves at a time. Each step takes the directory's lock for one leaf at a time.

use super::access::LeafAccess;
use super::entry::leaf_id;
use super::fat::Fat;
use super::store::LeafStore;
use super::sweep::SweepLeaves;
use super::{DirectoryForm, OpBlocks, OpStep, Ordering, Zap, ZapCounters};
use crate::format::ZapBlock;
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

/// Leaves that get names in one transaction at most.
const LEAVES_PER_TX: usize = 8;
/// Unreadable blocks that the choice of leaves passes at most.
const FAILURES_MAX: usize = 16;

/// Blocks of a batch that are read at a time, at most: a quarter of them, or this many. Fewer if
/// reads queue in the device, before those that somebody waits for.
const READS_MAX: usize = 16;
const READS_SHARE: usize = 4;
/// While the thread waits for a batch, so many are read at a time all the same.
const READS_MIN: usize = 4;

/// Leaves whose names move together, and the blocks that were read for that.
pub(crate) struct MergeBatch<S: LeafStore> {
    /// A hash of each.
    hashes: Vec<u32>,
    /// The blocks to read; for each leaf, how many up to its own; and how many of all are being
    /// read or were.
    away: Vec<ZapBlock>,
    ends: Vec<usize>,
    begun: usize,
    blocks: OpBlocks<S>,
    /// Whether names have moved.
    pub(crate) has_moved: bool,
    /// Whether later batches may have leaves even if this one has none.
    pub(crate) has_more: bool,
    /// Why a leaf did not get its names.
    pub(crate) error: Option<Error>,
}

/// What a drain of the buffer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainStep {
    /// No name is buffered: the request has ended.
    Ended,
    /// Names were buffered since the last step: it waits.
    Busy,
    /// Names can move.
    Idle,
}

impl<S: LeafStore> MergeBatch<S> {
    /// Whether all leaves are done with.
    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Number of leaves that are not done with.
    #[cfg(test)]
    pub(super) fn leaves(&self) -> usize {
        self.hashes.len()
    }
}

impl<S: LeafStore> Zap<S> {
    /// Chooses the next leaves, at most about `max`, and starts to read those that are not in
    /// memory. Passes what cannot be read, for a while. With `drains`, leaves no names in the
    /// buffer.
    pub(crate) fn start_merge(&self, max: usize, drains: bool) -> MergeBatch<S> {
        let (mut found, mut error, mut failures) = (SweepLeaves::default(), None, 0);
        self.with_fat(|fat| fat.sweep.skips.expire(self.store.now_ns()));
        while failures < FAILURES_MAX {
            let blocks = &mut OpBlocks::in_background();
            let chosen =
                self.run_on(blocks, None, Wait::Allowed, |state, access| match &mut state.form {
                    DirectoryForm::Micro(_) => Ok(OpStep::Done(())),
                    DirectoryForm::Fat(fat) => fat.next_to_merge(access, (max, drains), &mut found),
                });
            let Err(failed) = chosen else { break };
            error.get_or_insert(failed);
            failures += 1;
            self.with_fat(|fat| fat.sweep.skips.add(found.reading, self.store.now_ns()));
        }
        let blocks = OpBlocks::in_background();
        let SweepLeaves { hashes, has_more, blocks: away, ends, .. } = found;
        let (begun, has_moved) = (0, false);
        let mut batch =
            MergeBatch { hashes, away, ends, begun, blocks, has_moved, has_more, error };
        self.read_on(&mut batch, 0, 0);
        batch
    }

    /// Starts more reads of a batch, of which the blocks up to `loaded` are in memory. The first
    /// `needed` are read in any case.
    fn read_on(&self, batch: &mut MergeBatch<S>, loaded: usize, needed: usize) {
        let MergeBatch { away, begun, .. } = batch;
        let end = away.len().min(loaded + READS_MAX.max(away.len() / READS_SHARE));
        if end > *begun {
            let least = needed.saturating_sub(*begun);
            let prefetched = self.store.prefetch(&away[*begun..end], least);
            let not_resident = prefetched.not_resident as u64;
            self.store.count(ZapCounters::DIRECTORY_MERGE_READS, not_resident);
            *begun += prefetched.taken;
        }
    }

    /// Waits until the leaves of a batch are in memory, unless `stop`. Drops those that cannot be
    /// read.
    pub(crate) fn load_merge(&self, batch: &mut MergeBatch<S>, stop: impl Fn() -> bool) {
        let mut readable = Vec::with_capacity(batch.hashes.len());
        for at in 0..batch.hashes.len() {
            if stop() {
                break;
            }
            let loaded = at.checked_sub(1).map_or(0, |before| batch.ends[before]);
            let needed = batch.ends[at] + READS_MIN;
            self.read_on(batch, loaded, needed);
            let (hash, blocks) = (batch.hashes[at], &mut batch.blocks);
            let loaded =
                self.run_on(blocks, None, Wait::Allowed, |state, access| match &mut state.form {
                    DirectoryForm::Micro(_) => Ok(OpStep::Done(())),
                    DirectoryForm::Fat(fat) => fat.load_for_merge(access, hash),
                });
            match loaded {
                Ok(_) => readable.push(hash),
                Err(failed) => {
                    batch.error.get_or_insert(failed);
                    self.with_fat(|fat| fat.skip_leaf(hash, self.store.now_ns()));
                }
            }
        }
        batch.hashes = readable;
    }

    /// Calls `f` with the state of a fat directory.
    fn with_fat(&self, f: impl FnOnce(&mut Fat)) {
        if let Ok(mut state) = self.lock(Wait::Allowed)
            && let DirectoryForm::Fat(fat) = &mut state.form
        {
            f(fat);
            self.publish(&state);
        }
    }

    /// Moves the names of some leaves of a batch. A leaf that is not in memory any more keeps its
    /// names waiting.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] and other failures of the transaction.
    pub(crate) fn finish_merge(&self, tx: &S::Tx, batch: &mut MergeBatch<S>) -> Result<()> {
        for _ in 0..LEAVES_PER_TX {
            let Some(hash) = batch.hashes.pop() else { break };
            let mut state = self.lock(S::wait_of(tx))?;
            let DirectoryForm::Fat(fat) = &mut state.form else { return Ok(()) };
            let blocks = &batch.blocks;
            let access = LeafAccess {
                store: &self.store,
                fetched: &blocks.fetched,
                lost: &blocks.lost,
                reads_filters: true,
            };
            let merged = fat.merge_names(access, tx, hash);
            self.publish(&state);
            drop(state);
            match merged {
                Ok(OpStep::Done(has_moved)) => batch.has_moved |= has_moved,
                Ok(OpStep::NotResident(_)) => continue,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    batch.error.get_or_insert(error);
                    self.with_fat(|fat| fat.skip_leaf(hash, self.store.now_ns()));
                }
                Err(error) => return Err(error),
            }
            // What cannot be read is left as it is.
            let _ = self.merge_pages(tx, hash);
        }
        Ok(())
    }

    /// What could not be read is tried again by the next [`start_merge`](Self::start_merge).
    pub(crate) fn retry_unreadable(&self) {
        self.with_fat(|fat| fat.sweep.skips.clear());
    }

    /// Asks for a drain, unless that was done: an operation took the lock only because names are
    /// buffered.
    #[cold]
    pub(super) fn request_drain(&self) {
        let requested = &self.write_state.drain_requested;
        if !requested.load(Ordering::Relaxed) && !requested.swap(true, Ordering::Relaxed) {
            self.store.request_drain();
        }
    }

    /// What the thread that drains the buffer does next. Creates since the last call keep it busy.
    pub(crate) fn drain_step(&self) -> DrainStep {
        let Ok(mut state) = self.lock(Wait::Allowed) else { return DrainStep::Busy };
        if state.buffered() > 0
            && let DirectoryForm::Fat(fat) = &mut state.form
        {
            return if fat.sweep.is_idle() { DrainStep::Idle } else { DrainStep::Busy };
        }
        // Under the lock: a lookup that meets a name buffered later asks again.
        self.write_state.drain_requested.store(false, Ordering::Relaxed);
        DrainStep::Ended
    }

    /// Number of names that are buffered.
    ///
    /// # Errors
    /// None if waiting is allowed.
    pub(crate) fn buffered(&self, wait: Wait) -> Result<u64> {
        Ok(self.lock(wait)?.buffered())
    }

    /// Ends the request for a merge, if enough names have moved. Returns whether it has ended. Each
    /// later create may request another one.
    pub(crate) fn end_merge_request(&self, gives_up: bool) -> bool {
        let Ok(mut state) = self.lock(Wait::Allowed) else { return true };
        if let DirectoryForm::Fat(fat) = &mut state.form {
            if fat.wants_merge() && !gives_up {
                return false;
            }
            fat.end_sweep();
        }
        // Under the lock: a create that buffers a name later sees this.
        self.write_state.merge_requested.store(false, Ordering::Relaxed);
        true
    }
}

impl Fat {
    /// Whether everything is in memory that the move of names to the leaf of a hash needs.
    fn load_for_merge<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
    ) -> Result<OpStep<(), S::Ticket>> {
        if self.header.pages.get() == 0 {
            return Ok(OpStep::Done(()));
        }
        // Otherwise the leaf would lose its filter.
        self.takes_share(access.store);
        if let OpStep::NotResident(ticket) = self.with_page_of(access, hash, |_| Ok(()))? {
            return Ok(OpStep::NotResident(ticket));
        }
        let found = self.with_leaf_of(access, hash, |leaf| Ok((leaf.depth(), leaf.is_open())))?;
        let (depth, is_open) = match found {
            OpStep::Done(found) => found,
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        // Many names may split it.
        self.load_filters(access, leaf_id(hash, depth), depth, [!is_open, true])
    }
}
