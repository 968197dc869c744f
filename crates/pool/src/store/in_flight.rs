//! The writes of a txg: a limit on the bytes in flight, the writes that failed, and the payloads of
//! all writes that no flush has covered yet.
//!
//! A device may lose a completed write until a flush succeeds. So a payload stays in memory until
//! then: if the flush fails, everything is written again ([`barrier`](super::barrier)).
//!
//! Locking: `store-in-flight`, a leaf lock. Payloads are dropped after it is released.

use std::ops::Range;

use forebay_base::sync::atomic::{AtomicU8, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_io::StableBytes;

use super::write::WritePayload;
use crate::block_cache::BlockCache;
use crate::error::Error;
use crate::format::{Dva, DvaPhys};

/// All or part of a block's bytes, at its places.
pub(super) struct Part {
    payload: Arc<WritePayload>,
    range: Range<usize>,
    pub(super) copies: [DvaPhys; 2],
    /// First copy of the block that the part belongs to.
    pub(super) block: Dva,
    /// Copies that were given up, because the other one is good: a bit each.
    given_up: AtomicU8,
    cache: Arc<BlockCache>,
}

impl Part {
    pub(super) fn new(
        payload: &Arc<WritePayload>,
        range: Range<usize>,
        (copies, block): ([DvaPhys; 2], Dva),
        cache: &Arc<BlockCache>,
    ) -> Arc<Self> {
        let (payload, cache) = (Arc::clone(payload), Arc::clone(cache));
        let part = Self { payload, range, copies, block, given_up: AtomicU8::new(0), cache };
        part.cache.add_dirty(part.uncached_bytes());
        Arc::new(part)
    }

    /// Bytes of memory that the cache does not count.
    fn uncached_bytes(&self) -> u64 {
        if self.payload.is_cached() { 0 } else { self.len() }
    }

    /// Number of bytes of one copy.
    pub(super) fn len(&self) -> u64 {
        (self.range.end - self.range.start) as u64
    }

    fn bytes(&self) -> &[u8] {
        &self.payload.bytes()[self.range.clone()]
    }

    /// Gives up a copy: the other one suffices.
    pub(super) fn give_up(&self, copy: usize) {
        self.given_up.fetch_or(1 << copy, Ordering::Relaxed);
    }

    /// Whether no copy is left without those of `missing`, a bit each, and those given up.
    pub(super) fn is_lost_without(&self, missing: u8) -> bool {
        let missing = missing | self.given_up.load(Ordering::Relaxed);
        let mut copies = self.copies.iter().enumerate().filter(|(_, copy)| copy.get().is_some());
        copies.all(|(n, _)| missing & (1 << n) != 0)
    }

    /// Bytes of memory that the payload keeps.
    fn kept_bytes(&self) -> u64 {
        self.payload.kept_bytes()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.cache.sub_dirty(self.uncached_bytes());
    }
}

/// One copy of a part, to be written.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) part: Arc<Part>,
    /// The copy, 0 or 1.
    pub(super) copy: usize,
    /// Whether it has failed before.
    pub(super) is_retry: bool,
}

impl Write {
    pub(super) fn place(&self) -> Option<Dva> {
        self.part.copies[self.copy].get()
    }
}

// SAFETY: the bytes are those of the payload, which the count keeps where it is, and which nobody
// writes to.
unsafe impl StableBytes for Write {
    fn bytes(&self) -> &[u8] {
        self.part.bytes()
    }
}

/// A write that failed.
pub(super) struct FailedWrite {
    pub(super) write: Write,
    pub(super) error: forebay_io::Error,
}

/// The writes of a store that are in flight or not covered by a flush.
pub(super) struct InFlightWrites {
    limit_bytes: u64,
    state: Mutex<InFlightState>,
    changed: Condvar,
}

#[derive(Default)]
struct InFlightState {
    writes: u64,
    bytes: u64,
    waiters: u64,
    done: Vec<Write>,
    /// Bytes of memory that `done` keeps.
    done_bytes: u64,
    failed: Vec<FailedWrite>,
    /// Writes that were not submitted, because the lease had ended.
    deferred: Vec<Write>,
    /// An error that is not a device's.
    invalid: Option<Error>,
    /// The failure of a flush: no write of `done` counts.
    flush_error: Option<Error>,
    /// Whether `done` must be written again before the next flush.
    distrusted: bool,
    /// Whether a flush has covered writes of the txg that is committed: their payloads are not
    /// kept.
    covered: bool,
    /// Payloads of blocks that were written elsewhere, for readers that know the old pointer.
    replaced: Vec<Write>,
}

impl InFlightWrites {
    pub(super) fn new(limit_bytes: u64) -> Self {
        let state = Mutex::named("store-in-flight", InFlightState::default());
        Self { limit_bytes, state, changed: Condvar::new() }
    }

    /// Counts a write. Waits until it is within the limit; a single write always is. Returns
    /// whether it waited. In an I/O callback it does not wait.
    pub(super) fn begin(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let mut waited = false;
        while state.bytes > 0
            && state.bytes + bytes > self.limit_bytes
            && !forebay_io::in_callback()
        {
            waited = true;
            state.waiters += 1;
            self.changed.wait(&mut state);
            state.waiters -= 1;
        }
        state.writes += 1;
        state.bytes += bytes;
        waited
    }

    /// A write has ended.
    pub(super) fn end(&self, write: Write, result: Result<(), forebay_io::Error>) {
        let bytes = write.part.len();
        self.ended(bytes, |state| match result {
            Ok(()) => {
                state.done_bytes += write.part.kept_bytes();
                state.done.push(write);
            }
            Err(error) => state.failed.push(FailedWrite { write, error }),
        });
    }

    /// A write has ended well; without its payload.
    #[cfg(all(test, forebay_model))]
    pub(super) fn end_bytes(&self, bytes: u64) {
        self.ended(bytes, |_| ());
    }

    /// A write was not submitted, and is to be later.
    pub(super) fn defer(&self, write: Write) {
        let bytes = write.part.len();
        self.ended(bytes, |state| state.deferred.push(write));
    }

    /// Takes the writes that were held back.
    pub(super) fn take_deferred(&self) -> Vec<Write> {
        std::mem::take(&mut self.state.lock().deferred)
    }

    /// A write was not submitted.
    pub(super) fn refuse(&self, bytes: u64, error: Error) {
        self.ended(bytes, |state| state.invalid = Some(error));
    }

    fn ended(&self, bytes: u64, then: impl FnOnce(&mut InFlightState)) {
        let mut state = self.state.lock();
        state.writes -= 1;
        state.bytes -= bytes;
        then(&mut state);
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until no write is in flight. Returns the writes that have failed since the last call.
    ///
    /// # Errors
    /// If a write was refused.
    pub(super) fn finish(&self) -> Result<Vec<FailedWrite>, Error> {
        let mut state = self.state.lock();
        while state.writes > 0 {
            state.waiters += 1;
            self.changed.wait(&mut state);
            state.waiters -= 1;
        }
        match state.invalid.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.failed)),
        }
    }

    /// Takes back what [`finish`](Self::finish) returned, for a later call of it.
    pub(super) fn put_back(&self, ended: Result<Vec<FailedWrite>, Error>) {
        let mut state = self.state.lock();
        match ended {
            Ok(failed) => state.failed.extend(failed),
            Err(error) => state.invalid = Some(error),
        }
    }

    /// A flush that began while no write was in flight has succeeded. `is_named` if a durable
    /// uberblock names all that was written, and the commit writes nothing more.
    pub(super) fn flushed(&self, is_named: bool) {
        let mut state = self.state.lock();
        let done = std::mem::take(&mut state.done);
        state.done_bytes = 0;
        state.covered = !is_named && (state.covered || !done.is_empty());
        drop(state);
        drop(done);
    }

    /// Whether writes are durable of a txg that does not count yet.
    pub(super) fn is_covered(&self) -> bool {
        self.state.lock().covered
    }

    /// A flush has failed that was not the last step of a barrier.
    pub(super) fn flush_failed(&self, error: Error) {
        self.state.lock().flush_error = Some(error);
    }

    /// Completed writes may be lost, whatever the next flush says.
    pub(super) fn distrust(&self) {
        self.state.lock().distrusted = true;
    }

    /// Whether completed writes must be written again.
    pub(super) fn is_distrusted(&self) -> bool {
        self.state.lock().distrusted
    }

    /// The failure of such a flush.
    pub(super) fn take_flush_error(&self) -> Option<Error> {
        self.state.lock().flush_error.take()
    }

    /// Takes all completed writes that no flush has covered, to submit them again. That settles a
    /// distrust as well.
    pub(super) fn take_unflushed(&self) -> Vec<Write> {
        let mut state = self.state.lock();
        state.done_bytes = 0;
        state.distrusted = false;
        std::mem::take(&mut state.done)
    }

    /// Whether completed writes keep so much memory that a flush should release it.
    pub(super) fn wants_flush(&self, limit_bytes: u64) -> bool {
        let state = self.state.lock();
        state.done_bytes > limit_bytes && state.flush_error.is_none()
    }

    /// Whether any payload is kept until a flush.
    pub(super) fn keeps_payloads(&self) -> bool {
        !self.state.lock().done.is_empty()
    }

    /// Forgets the completed writes of blocks that got another place, but keeps their content and
    /// that of `failed` until [`release_replaced`](Self::release_replaced).
    pub(super) fn replace(&self, failed: Vec<FailedWrite>, is_replaced: impl Fn(&Dva) -> bool) {
        let mut state = self.state.lock();
        let replaced = failed.into_iter().map(|failed| failed.write);
        state.replaced.extend(replaced);
        let of_block = state.done.extract_if(.., |write| is_replaced(&write.part.block));
        let of_block: Vec<_> = of_block.collect();
        state.replaced.extend(of_block);
    }

    /// Whether content is kept for readers that know old pointers.
    pub(super) fn keeps_replaced(&self) -> bool {
        !self.state.lock().replaced.is_empty()
    }

    /// No reader knows the old pointers any more.
    pub(super) fn release_replaced(&self) {
        let replaced = std::mem::take(&mut self.state.lock().replaced);
        drop(replaced);
    }

    /// Drops all payloads: the pool is closed, or will never write them.
    pub(super) fn abandon(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.done_bytes = 0;
            state.flush_error = None;
            let (done, failed) =
                (std::mem::take(&mut state.done), std::mem::take(&mut state.failed));
            (done, failed, std::mem::take(&mut state.deferred))
        };
        drop(dropped);
        self.release_replaced();
    }

    /// Bytes of writes in flight.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Number of threads that wait in [`begin`](Self::begin).
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn waiters(&self) -> u64 {
        self.state.lock().waiters
    }
}
