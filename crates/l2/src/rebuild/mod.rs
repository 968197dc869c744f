//! The rebuild: reads the log into the index in the background, newest segments first.
//!
//! 1. All headers are read. The segment with the largest sequence number is the newest.
//! 2. The newest segment is read, batch by batch if it has no footer, and then gets one. Now the
//!    end of the log is known, and the writer starts.
//! 3. Several threads read the logs of the other segments, from new to old, and insert the records
//!    into the index. Newer records win.
//! 4. Tombstones leave the index, because no older record can arrive.
//!
//! # Invariants
//!
//! - With mutable keys, a record is served only if all newer segments had been read when the index
//!   was searched: they may hold newer ones. See [`Frontier`].
//! - With immutable keys, records are served once the newest segment was read. Its stamp tells
//!   whether the user was rolled back (`run`).
//! - Only batches that were written without an error count, and only those after the newest
//!   *damage*, the position before which nothing in the log is valid (`segment`).
//! - The contents and the end of the newest segment are durable before anything relies on them.
//! - A segment is not reused while it is read, and not read once it is reused. The rebuild ends
//!   only when its new header is durable.
//! - A block whose key got a value from elsewhere is bad before it is served (`superseded`).
//!
//! Locking: `l2-rebuild`, held to read or change the state, or to wait for a change of it.
//!
//! Not done: blocks are not read. Each is verified when it is loaded.

mod reads;
mod run;
mod segment;
mod superseded;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::geometry::Geometry;
use crate::promise::Promise;
use crate::record::{BlockAddr, KeyHash, Record};
use superseded::SupersededKeys;

pub(crate) use run::{finish_empty, run};

/// Records that are compared with the superseded keys under one hold of the lock.
const SUPERSEDED_PART: usize = 4096;

/// The progress of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebuildStats {
    /// Whether the rebuild has completed. False if it was cancelled or failed.
    pub done: bool,
    /// Blocks found, including older ones of the same key.
    pub records: u64,
    /// Tombstones found.
    pub tombstones: u64,
    /// Segments in use.
    pub segments: u64,
    /// Segments read.
    pub segments_read: u64,
    /// Segments that could not be read completely.
    pub damaged: u64,
    /// Nanoseconds until the newest segment was read and the L2 began to serve.
    pub first_ns: u64,
    /// Nanoseconds so far, or in total.
    pub elapsed_ns: u64,
}

/// The state of the rebuild.
pub(crate) struct Rebuild {
    state: Mutex<RebuildState>,
    changed: Condvar,
    /// Kept when the rebuild has ended.
    ended: Arc<Promise<()>>,
    running: AtomicBool,
    stopped: AtomicBool,
    /// Segments with smaller sequence numbers are not served.
    frontier: AtomicU64,
    records: AtomicU64,
    tombstones: AtomicU64,
    /// Whether unreadable batches may have held tombstones.
    strict: bool,
    begun_ns: u64,
    first_ns: AtomicU64,
    elapsed_ns: AtomicU64,
    geometry: Geometry,
    /// Bytes of the superseded keys. The state's lock is not for threads that sum up memory.
    superseded_bytes: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// No thread has read the segment.
    Unread,
    InProgress,
    /// The writer reuses the segment, and no thread has read it. Its blocks of before are valid
    /// until its new header is durable.
    Reused,
    /// The segment has been read, or its blocks of before are void.
    Done,
}

struct RebuildState {
    read_states: Vec<ReadState>,
    /// Sequence numbers to read: from `oldest` up to, but not including, `next`.
    oldest: u64,
    next: u64,
    newest: u64,
    read: u64,
    damaged: u64,
    /// Nothing before this log position is valid.
    damage: (u64, u32),
    /// The floor in the newest header.
    floor: (u64, u32),
    /// Changed by [`Rebuild::change_superseded`].
    superseded: SupersededKeys,
}

/// The oldest sequence number that was served at some moment. The index had all records of newer
/// segments then, except those of segments that had been reused.
#[derive(Clone, Copy)]
pub(crate) struct Frontier(u64);

impl Frontier {
    /// Whether a block of the segment with this sequence number must not be served: a record of a
    /// newer segment may have been missing.
    #[inline]
    pub(crate) fn hides(self, seq: u64) -> bool {
        seq < self.0
    }

    /// Whether the newest segment was read. Only then it is known whether the user was rolled back.
    #[inline]
    pub(crate) fn has_read_newest(self) -> bool {
        self.0 != u64::MAX
    }
}

impl Rebuild {
    pub(crate) fn new(geometry: Geometry, strict: bool, now_ns: u64) -> Self {
        let read_states = vec![ReadState::Unread; geometry.segments as usize];
        let state = RebuildState {
            read_states,
            oldest: 0,
            next: 0,
            newest: 0,
            read: 0,
            damaged: 0,
            damage: (0, 0),
            floor: (0, 0),
            superseded: SupersededKeys::default(),
        };
        Self {
            state: Mutex::named("l2-rebuild", state),
            changed: Condvar::new(),
            ended: Promise::new(),
            running: AtomicBool::new(true),
            stopped: AtomicBool::new(false),
            frontier: AtomicU64::new(u64::MAX),
            records: AtomicU64::new(0),
            tombstones: AtomicU64::new(0),
            strict,
            begun_ns: now_ns,
            first_ns: AtomicU64::new(0),
            elapsed_ns: AtomicU64::new(0),
            geometry,
            superseded_bytes: AtomicU64::new(0),
        }
    }

    /// Whether the rebuild is running.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Whether the rebuild was stopped before its end.
    pub(crate) fn was_incomplete(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The frontier. Ask before the index is searched.
    #[inline]
    pub(crate) fn frontier(&self) -> Frontier {
        Frontier(self.frontier.load(Ordering::Acquire))
    }

    /// Stops the rebuild early.
    pub(crate) fn stop(&self) {
        if self.is_running() {
            self.stopped.store(true, Ordering::Release);
        }
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Records that the newest segment has been read and those from `oldest` on remain.
    fn begin(&self, oldest: u64, newest: u64, now_ns: u64) {
        let mut state = self.state.lock();
        (state.oldest, state.next, state.newest) = (oldest, newest, newest);
        state.read = 1;
        let segment = self.geometry.segment_of(newest) as usize;
        state.read_states[segment] = ReadState::Done;
        self.first_ns.store(now_ns.saturating_sub(self.begun_ns), Ordering::Release);
        self.advance_frontier(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Claims the next segment to read.
    fn claim(&self) -> Option<u64> {
        let mut state = self.state.lock();
        while state.next > state.oldest && !self.was_incomplete() {
            state.next -= 1;
            let seq = state.next;
            let segment = self.geometry.segment_of(seq) as usize;
            if state.read_states[segment] != ReadState::Unread {
                continue;
            }
            if seq < state.damage.0 {
                // Nothing in it is valid.
                state.read_states[segment] = ReadState::Done;
                continue;
            }
            state.read_states[segment] = ReadState::InProgress;
            return Some(seq);
        }
        None
    }

    /// Estimates the final number of records from the segments read so far.
    fn expected_records(&self) -> u64 {
        let found = self.records.load(Ordering::Relaxed) + self.tombstones.load(Ordering::Relaxed);
        let state = self.state.lock();
        if state.newest == 0 {
            return found;
        }
        let (all, taken) = (state.newest + 1 - state.oldest, state.newest + 1 - state.next);
        (u128::from(found) * u128::from(all) / u128::from(taken.max(1))) as u64
    }

    /// Records that a segment has been read.
    fn finish(&self, seq: u64) {
        let mut state = self.state.lock();
        let segment = self.geometry.segment_of(seq) as usize;
        state.read_states[segment] = ReadState::Done;
        state.read += 1;
        self.advance_frontier(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Moves the frontier over all segments that were read without a gap.
    fn advance_frontier(&self, state: &RebuildState) {
        let mut frontier = self.frontier.load(Ordering::Relaxed).min(state.newest);
        // A damaged segment is served at the end, when its void records have left the index.
        let stop = if state.damage > state.floor { state.damage.0 + 1 } else { state.damage.0 };
        while frontier > state.oldest.max(stop)
            && state.read_states[self.geometry.segment_of(frontier - 1) as usize] == ReadState::Done
        {
            frontier -= 1;
        }
        if frontier >= stop {
            self.frontier.store(frontier, Ordering::Release);
        }
    }

    /// Records that something before this log position could not be read.
    fn record_damage(&self, at: (u64, u32)) {
        let mut state = self.state.lock();
        state.damaged += 1;
        if self.strict {
            state.damage = state.damage.max(at);
        }
    }

    /// Adopts the floor of an earlier life of the L2.
    fn adopt_floor(&self, floor: (u64, u32)) {
        let mut state = self.state.lock();
        if self.strict {
            state.damage = state.damage.max(floor);
            state.floor = floor;
        }
    }

    /// The log position before which nothing is valid.
    fn damage(&self) -> (u64, u32) {
        self.state.lock().damage
    }

    /// The damage, if it is not durable as the floor yet.
    fn new_damage(&self) -> Option<(u64, u32)> {
        let state = self.state.lock();
        (state.damage > state.floor).then_some(state.damage)
    }

    /// Claims a segment for reuse. Waits until no thread reads it, and keeps threads from
    /// beginning. [`finish_reuse`](Self::finish_reuse) must follow, or the stop of the rebuild.
    pub(crate) fn claim_for_reuse(&self, segment: u32) {
        if !self.is_running() {
            return;
        }
        let mut state = self.state.lock();
        while state.read_states[segment as usize] == ReadState::InProgress && self.is_running() {
            self.changed.wait(&mut state);
        }
        if state.read_states[segment as usize] == ReadState::Unread {
            state.read_states[segment as usize] = ReadState::Reused;
        }
    }

    /// The new header of the segment is durable.
    pub(crate) fn finish_reuse(&self, segment: u32) {
        if !self.is_running() {
            return;
        }
        let mut state = self.state.lock();
        state.read_states[segment as usize] = ReadState::Done;
        self.advance_frontier(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until no segment is being reused unread, or the rebuild is stopped. If the rebuild
    /// ended before, a key of such a segment would count as unknown: it would be forgotten without
    /// a tombstone, while its block is valid.
    fn wait_for_reuse(&self) {
        let mut state = self.state.lock();
        while state.read_states.contains(&ReadState::Reused) && !self.was_incomplete() {
            self.changed.wait(&mut state);
        }
    }

    /// Notes that memory receives a value of the key from elsewhere. Blocks of the key that the
    /// rebuild finds later are bad. Call it before the index is asked for those found already.
    pub(crate) fn note_superseded(&self, hash: KeyHash) {
        if !self.is_running() {
            return;
        }
        let mut state = self.state.lock();
        if self.is_running() {
            self.change_superseded(&mut state, |superseded| superseded.add(hash));
        }
    }

    fn change_superseded<T>(
        &self,
        state: &mut RebuildState,
        change: impl FnOnce(&mut SupersededKeys) -> T,
    ) -> T {
        let changed = change(&mut state.superseded);
        self.superseded_bytes.store(state.superseded.memory_bytes(), Ordering::Relaxed);
        changed
    }

    /// Those of the blocks that the rebuild has just found whose keys have newer values in memory.
    /// Call it when they are in the index and before they are served.
    fn find_superseded(&self, found: &[(KeyHash, Record)]) -> Vec<(KeyHash, BlockAddr)> {
        let mut superseded = Vec::new();
        for part in found.chunks(SUPERSEDED_PART) {
            superseded.extend(self.state.lock().superseded.among(part));
        }
        superseded
    }

    /// Ends the rebuild.
    fn end(&self, now_ns: u64) {
        self.elapsed_ns.store(now_ns.saturating_sub(self.begun_ns).max(1), Ordering::Release);
        let mut state = self.state.lock();
        if !self.was_incomplete() {
            self.frontier.store(0, Ordering::Release);
        }
        self.running.store(false, Ordering::Release);
        let superseded = self.change_superseded(&mut state, std::mem::take);
        drop(state);
        drop(superseded);
        self.changed.notify_all();
    }

    /// Wakes futures that wait for the end, which may run user code.
    fn wake_futures(&self) {
        self.ended.fulfill(());
    }

    /// Waits until the headers have been read. Returns the newest sequence number, 0 if there is
    /// none, or `None` if the rebuild was stopped.
    pub(crate) fn wait_begun(&self) -> Option<u64> {
        let mut state = self.state.lock();
        while state.newest == 0 && self.is_running() {
            self.changed.wait(&mut state);
        }
        (!self.was_incomplete()).then_some(state.newest)
    }

    /// Whether all segments from the newest to `seq` have been read.
    pub(crate) fn has_reached(&self, seq: u64) -> bool {
        !self.is_running() || !self.frontier().hides(seq)
    }

    /// Waits until [`has_reached`](Self::has_reached). Returns false if the rebuild was stopped.
    pub(crate) fn wait_for(&self, seq: u64) -> bool {
        let mut state = self.state.lock();
        while !self.has_reached(seq) {
            self.changed.wait(&mut state);
        }
        drop(state);
        !self.was_incomplete()
    }

    /// Waits until the rebuild has ended. Returns whether it is complete.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while self.is_running() {
            self.changed.wait(&mut state);
        }
        drop(state);
        !self.was_incomplete()
    }

    /// As [`wait`](Self::wait), without blocking the thread.
    pub(crate) async fn wait_async(&self) -> bool {
        self.ended.wait().await;
        !self.was_incomplete()
    }

    pub(crate) fn stats(&self, now_ns: u64) -> RebuildStats {
        let ended = !self.is_running();
        let state = self.state.lock();
        let segments = match state.newest {
            0 => 0,
            newest => newest - state.oldest + 1,
        };
        let elapsed = match ended {
            true => self.elapsed_ns.load(Ordering::Acquire),
            false => now_ns.saturating_sub(self.begun_ns),
        };
        RebuildStats {
            done: ended && !self.was_incomplete(),
            records: self.records.load(Ordering::Relaxed),
            tombstones: self.tombstones.load(Ordering::Relaxed),
            segments,
            segments_read: state.read,
            damaged: state.damaged,
            first_ns: self.first_ns.load(Ordering::Acquire),
            elapsed_ns: elapsed,
        }
    }

    /// Bytes of memory in use outside of the structure itself. Takes no lock: the cache's reclaimer
    /// asks.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let superseded = self.superseded_bytes.load(Ordering::Relaxed);
        u64::from(self.geometry.segments) * size_of::<ReadState>() as u64 + superseded
    }
}
