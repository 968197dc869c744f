//! The rebuild: finding out what the device holds, in the background, newest segments first.
//!
//! # How it goes
//!
//! 1. All headers are read. The segment with the largest sequence number is the newest; the one after it is the oldest.
//! 2. The newest is read, batch after batch if it has no footer; then it gets one. Now it is known
//!    where the log goes on, and the writer starts.
//! 3. Some threads take the other segments from new to old, read their logs where the footers say they are, and put the
//!    records into the index. Whatever is newer wins.
//! 4. Tombstones leave the index: nothing older can come any more.
//!
//! # Invariants
//!
//! - With keys whose content changes, a record is served only if all segments that are newer than its own have been read: else a
//!   tombstone in one of them might not be known yet. *Frontier* is the oldest segment of which that is true.
//! - Only batches that were written without an error count: the footer and the next header say
//!   which. If the newest segment has neither, all of its whole batches count. No removal ended
//!   after a failed batch at its end, since a removal takes the next header and a tombstone.
//! - What was found in the newest segment, and where it ends, is durable before anything relies on
//!   it.
//! - A segment is not used again while it is being read, and not read once it is used again.
//! - What was durable and cannot be read may have been a tombstone. Then everything older than it is void: *damage* is the
//!   place in the log before which nothing is believed. Before that is final, it is made durable as the log's *floor*: else what was
//!   unreadable today and can be read tomorrow would bring back what was forgotten today without a tombstone.
//!   With immutable keys none of this matters.
//!
//! Locking: `l2-rebuild` for a look, or for a wait until a segment has been read.
//!
//! # What it does not do
//!
//! It does not read blocks: each is checked when it is loaded.

mod run;
mod segment;

use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Condvar, Mutex};

use crate::geometry::Geometry;

pub(crate) use run::{finish_empty, run};

/// What is known of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebuildStats {
    /// Whether it has ended, and knows all: not if it was cancelled or has failed.
    pub done: bool,
    /// Blocks found so far, older ones of the same key included.
    pub records: u64,
    /// Tombstones found so far.
    pub tombstones: u64,
    /// Segments that hold something.
    pub segments: u64,
    /// Segments read so far.
    pub segments_read: u64,
    /// Segments of which not all could be read.
    pub damaged: u64,
    /// Nanoseconds until the newest segment had been read and the level began to serve.
    pub first_ns: u64,
    /// Nanoseconds so far, or in all.
    pub elapsed_ns: u64,
}

/// A rebuild.
pub(crate) struct Rebuild {
    state: Mutex<RebuildState>,
    changed: Condvar,
    running: AtomicBool,
    stopped: AtomicBool,
    /// Segments of smaller sequence numbers are not served.
    frontier: AtomicU64,
    records: AtomicU64,
    tombstones: AtomicU64,
    /// Whether what is lost may have been a tombstone.
    strict: bool,
    begun_ns: u64,
    first_ns: AtomicU64,
    elapsed_ns: AtomicU64,
    geometry: Geometry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// Nobody has read it.
    Unread,
    InProgress,
    /// It has been read, or is used again.
    Done,
}

struct RebuildState {
    read_states: Vec<ReadState>,
    /// Sequence numbers of what is to be read: from `oldest` to before `next`.
    oldest: u64,
    next: u64,
    newest: u64,
    read: u64,
    damaged: u64,
    /// Nothing before this place of the log is believed.
    damage: (u64, u32),
    /// As was durably said before.
    floor: (u64, u32),
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
        };
        Self {
            state: Mutex::named("l2-rebuild", state),
            changed: Condvar::new(),
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
        }
    }

    /// Whether it is still unknown what the device holds.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Whether it was stopped before it had ended.
    pub(crate) fn was_incomplete(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether blocks of the segment used as `seq` must not be served yet.
    #[inline]
    pub(crate) fn is_hidden(&self, seq: u64) -> bool {
        seq < self.frontier.load(Ordering::Acquire)
    }

    /// Has it end as soon as it can.
    pub(crate) fn stop(&self) {
        if self.is_running() {
            self.stopped.store(true, Ordering::Release);
        }
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// The newest segment has been read: those from `oldest` on are left.
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

    /// The next segment to be read.
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
                // Nothing in it will be believed.
                state.read_states[segment] = ReadState::Done;
                continue;
            }
            state.read_states[segment] = ReadState::InProgress;
            return Some(seq);
        }
        None
    }

    /// Records that there will be in all, if the segments that are left are as those that were taken so far.
    fn expected_records(&self) -> u64 {
        let found = self.records.load(Ordering::Relaxed) + self.tombstones.load(Ordering::Relaxed);
        let state = self.state.lock();
        if state.newest == 0 {
            return found;
        }
        let (all, taken) = (state.newest + 1 - state.oldest, state.newest + 1 - state.next);
        (u128::from(found) * u128::from(all) / u128::from(taken.max(1))) as u64
    }

    /// A segment has been read.
    fn finish(&self, seq: u64) {
        let mut state = self.state.lock();
        let segment = self.geometry.segment_of(seq) as usize;
        state.read_states[segment] = ReadState::Done;
        state.read += 1;
        self.advance_frontier(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Moves the frontier as far as segments have been read without a gap.
    fn advance_frontier(&self, state: &RebuildState) {
        let mut frontier = self.frontier.load(Ordering::Relaxed).min(state.newest);
        // What is damaged itself is served at the end, when the rest of it has left the index.
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

    /// Something before this place of the log could not be read.
    fn record_damage(&self, at: (u64, u32)) {
        let mut state = self.state.lock();
        state.damaged += 1;
        if self.strict {
            state.damage = state.damage.max(at);
        }
    }

    /// What came before this place of the log was given up in an earlier life.
    fn adopt_floor(&self, floor: (u64, u32)) {
        let mut state = self.state.lock();
        if self.strict {
            state.damage = state.damage.max(floor);
            state.floor = floor;
        }
    }

    /// Nothing before this place of the log is believed.
    fn damage(&self) -> (u64, u32) {
        self.state.lock().damage
    }

    /// The same, if it has to be made durable yet.
    fn new_damage(&self) -> Option<(u64, u32)> {
        let state = self.state.lock();
        (state.damage > state.floor).then_some(state.damage)
    }

    /// The segment is to be used again: waits until nobody reads it, and lets nobody begin.
    pub(crate) fn claim_for_reuse(&self, segment: u32) {
        if !self.is_running() {
            return;
        }
        let mut state = self.state.lock();
        while state.read_states[segment as usize] == ReadState::InProgress && self.is_running() {
            self.changed.wait(&mut state);
        }
        state.read_states[segment as usize] = ReadState::Done;
        self.advance_frontier(&state);
    }

    /// It is known what the device holds.
    fn end(&self, now_ns: u64) {
        self.elapsed_ns.store(now_ns.saturating_sub(self.begun_ns).max(1), Ordering::Release);
        if !self.was_incomplete() {
            self.frontier.store(0, Ordering::Release);
        }
        let state = self.state.lock();
        self.running.store(false, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until it is known which segments there are: the newest one's number of use, 0 if there is none. `None` if that will not be known.
    pub(crate) fn wait_begun(&self) -> Option<u64> {
        let mut state = self.state.lock();
        while state.newest == 0 && self.is_running() {
            self.changed.wait(&mut state);
        }
        (!self.was_incomplete()).then_some(state.newest)
    }

    /// Whether it is known of all segments from the newest to the one used as `seq` what is in them.
    pub(crate) fn has_reached(&self, seq: u64) -> bool {
        !self.is_running() || !self.is_hidden(seq)
    }

    /// Waits until that is so. False if it will not be.
    pub(crate) fn wait_for(&self, seq: u64) -> bool {
        let mut state = self.state.lock();
        while !self.has_reached(seq) {
            self.changed.wait(&mut state);
        }
        drop(state);
        !self.was_incomplete()
    }

    /// Waits until it has ended; whether it knows all.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while self.is_running() {
            self.changed.wait(&mut state);
        }
        drop(state);
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

    /// Bytes of memory beside its own.
    pub(crate) fn memory_bytes(&self) -> u64 {
        u64::from(self.geometry.segments) * size_of::<ReadState>() as u64
    }
}
