//! The write queue: admitted blocks, tombstones, and requests to the writer such as a flush.
//!
//! # Invariants
//!
//! - Queued blocks take at most `queue_bytes`, and one block more.
//! - Tombstones become durable in the order in which they were queued. A ticket is durable once
//!   `durable` has reached it. As many tombstones are queued as threads wait for them.
//! - After `terminated` is set, nothing is queued and no thread waits.
//! - A forget that no thread waits for is here from when its tombstone is queued until the
//!   tombstone is durable or the queue is terminated. The thread that takes it out ends it.
//!
//! Locking: `l2-write-queue`, held to read the state or to push. Blocks are dropped and forgets are
//! ended outside of the lock, because that may run user code.

mod admission;
mod frequency_sketch;
mod offer;
mod rate;
mod write_all;

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Class, Key, Writing};

pub(crate) use admission::{AdmissionPolicy, DROPPED_KIND};
pub(crate) use frequency_sketch::FrequencySketch;
pub(crate) use rate::{RateBounds, WriteRate};

use crate::error::Error;
use crate::forget::UnfinishedForget;
use crate::promise::{Promise, Promised};
use crate::record::{KeyHash, Tombstone};
use crate::writer::LogStart;

/// How often the writer checks the queue without a wake-up.
const IDLE_WAIT: Duration = Duration::from_millis(200);

/// A block that waits to be written.
pub(crate) struct QueuedBlock<K: Key, V: Send + Sync + 'static> {
    pub(crate) hash: KeyHash,
    pub(crate) class: Class,
    /// Length of the encoded value, in bytes.
    pub(crate) value_bytes: usize,
    /// Size of the block on the device, in bytes.
    pub(crate) bytes: u64,
    pub(crate) since_ns: u64,
    pub(crate) block: Writing<K, V>,
}

/// The queue between the threads that write or forget and the writer.
pub(crate) struct WriteQueue<K: Key, V: Send + Sync + 'static> {
    state: Mutex<WriteQueueState<K, V>>,
    /// The writer waits on it.
    work: Condvar,
    /// Threads that wait for the writer wait on it.
    done: Condvar,
    /// Kept when the end of the log is known, or the queue is terminated.
    started: Arc<Promise<()>>,
}

pub(crate) struct WriteQueueState<K: Key, V: Send + Sync + 'static> {
    pub(crate) queue: VecDeque<QueuedBlock<K, V>>,
    pub(crate) queued_bytes: u64,
    pub(crate) rate: WriteRate,
    /// Tombstones to be written, oldest ticket first.
    tombstones: VecDeque<Tombstone>,
    /// Tickets issued.
    tickets: u64,
    /// Tickets whose tombstones are durable.
    durable: u64,
    /// Forgets that no thread waits for, with their tickets, oldest first.
    unfinished: VecDeque<(u64, UnfinishedForget)>,
    /// The end of the log, after the rebuild has found it.
    start: Option<LogStart>,
    started: bool,
    flushes_wanted: u64,
    flushes_done: u64,
    floor_wanted: Option<(u64, u32)>,
    floor_done: bool,
    losses: Losses,
    stopping: bool,
    terminated: bool,
}

/// Reports of blocks that were dropped after an error.
#[derive(Default)]
struct Losses {
    count: u64,
    /// How many of them a flush has returned.
    returned: u64,
    last: Option<Error>,
}

/// The writer's next step.
pub(crate) struct WriterWork<K: Key, V: Send + Sync + 'static> {
    pub(crate) start: Option<LogStart>,
    pub(crate) blocks: Vec<QueuedBlock<K, V>>,
    pub(crate) tombstones: usize,
    /// The number of the requested flush, if there is one.
    pub(crate) flush: Option<u64>,
    pub(crate) floor: Option<(u64, u32)>,
    /// The queue is stopped and empty.
    pub(crate) last: bool,
}

impl<K: Key, V: Send + Sync + 'static> WriteQueue<K, V> {
    pub(crate) fn new(rate: WriteRate) -> Self {
        let state = WriteQueueState {
            queue: VecDeque::new(),
            queued_bytes: 0,
            rate,
            tombstones: VecDeque::new(),
            tickets: 0,
            durable: 0,
            unfinished: VecDeque::new(),
            start: None,
            started: false,
            flushes_wanted: 0,
            flushes_done: 0,
            floor_wanted: None,
            floor_done: false,
            losses: Losses::default(),
            stopping: false,
            terminated: false,
        };
        Self {
            state: Mutex::named("l2-write-queue", state),
            work: Condvar::new(),
            done: Condvar::new(),
            started: Promise::new(),
        }
    }

    /// Calls `f` with the state, under the lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut WriteQueueState<K, V>) -> R) -> R {
        f(&mut self.state.lock())
    }

    /// Wakes the writer.
    pub(crate) fn wake(&self) {
        self.work.notify_all();
    }

    /// Starts the writer at the end of the log, which the rebuild has found.
    pub(crate) fn start(&self, start: LogStart) {
        let mut state = self.state.lock();
        state.start = Some(start);
        state.started = true;
        drop(state);
        self.work.notify_all();
        self.done.notify_all();
        self.started.fulfill(());
    }

    /// Waits until the end of the log is known. Returns false if the queue was terminated.
    pub(crate) fn wait_started(&self) -> bool {
        let mut state = self.state.lock();
        while !state.started && !state.terminated {
            self.done.wait(&mut state);
        }
        !state.terminated
    }

    /// As [`wait_started`](Self::wait_started), without blocking the thread.
    pub(crate) fn started(&self) -> Promised<()> {
        self.started.wait()
    }

    /// Whether the end of the log is known and the queue is not terminated.
    pub(crate) fn is_started(&self) -> bool {
        let state = self.state.lock();
        state.started && !state.terminated
    }

    /// Queues the tombstone of a forget that no thread waits for. Returns the forget if the queue
    /// was terminated.
    pub(crate) fn queue_tombstone(&self, forget: UnfinishedForget) -> Option<UnfinishedForget> {
        let mut state = self.state.lock();
        if state.terminated {
            return Some(forget);
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.tombstones.push_back(forget.tombstone);
        state.unfinished.push_back((ticket, forget));
        self.work.notify_all();
        None
    }

    /// Queues a tombstone and waits until it is durable. Returns false if the queue was terminated.
    pub(crate) fn write_tombstone(&self, tombstone: Tombstone) -> bool {
        let mut state = self.state.lock();
        if state.terminated {
            return false;
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.tombstones.push_back(tombstone);
        self.work.notify_all();
        while state.durable < ticket && !state.terminated {
            self.done.wait(&mut state);
        }
        state.durable >= ticket
    }

    /// Takes up to `most` tombstones. Also returns the ticket of the last one.
    pub(crate) fn take_tombstones(&self, most: usize) -> (Vec<Tombstone>, u64) {
        let mut state = self.state.lock();
        let count = state.tombstones.len().min(most);
        let tombstones: Vec<Tombstone> = state.tombstones.drain(..count).collect();
        (tombstones, state.tickets - state.tombstones.len() as u64)
    }

    /// Number of queued tombstones.
    pub(crate) fn queued_tombstones(&self) -> usize {
        self.state.lock().tombstones.len()
    }

    /// Reports that tombstones up to this ticket are durable. Returns their forgets, which the
    /// caller ends.
    #[must_use]
    pub(crate) fn finish_tombstones(&self, ticket: u64) -> Vec<UnfinishedForget> {
        let mut state = self.state.lock();
        state.durable = state.durable.max(ticket);
        let count = state.unfinished.iter().take_while(|(of, _)| *of <= state.durable).count();
        let finished = state.unfinished.drain(..count).map(|(_, forget)| forget).collect();
        drop(state);
        self.done.notify_all();
        finished
    }

    /// Writes all queued blocks and waits until they are durable. Returns false if the queue was
    /// stopped or terminated.
    pub(crate) fn flush(&self) -> bool {
        let mut state = self.state.lock();
        if state.terminated || state.stopping {
            return false;
        }
        state.flushes_wanted += 1;
        let wanted = state.flushes_wanted;
        self.work.notify_all();
        while state.flushes_done < wanted && !state.terminated {
            self.done.wait(&mut state);
        }
        state.flushes_done >= wanted
    }

    /// Reports that all blocks queued before this flush are durable.
    pub(crate) fn finish_flush(&self, wanted: u64) {
        let mut state = self.state.lock();
        state.flushes_done = state.flushes_done.max(wanted);
        drop(state);
        self.done.notify_all();
    }

    /// Reports that blocks were dropped after an error. Called when the cache can offer them again,
    /// so that a thread that saw them in the queue sees the report.
    pub(crate) fn report_lost(&self, why: Error) {
        let losses = &mut self.state.lock().losses;
        losses.count += 1;
        losses.last = Some(why);
    }

    /// The number of reports so far.
    pub(crate) fn losses(&self) -> u64 {
        self.state.lock().losses.count
    }

    /// The last report, if there were more than `before`.
    pub(crate) fn loss_since(&self, before: u64) -> Option<Error> {
        let losses = &self.state.lock().losses;
        losses.last.clone().filter(|_| losses.count > before)
    }

    /// The last report, unless this has returned it before.
    pub(crate) fn take_loss(&self) -> Option<Error> {
        let losses = &mut self.state.lock().losses;
        let before = std::mem::replace(&mut losses.returned, losses.count);
        losses.last.clone().filter(|_| losses.count > before)
    }

    /// Raises the floor of the log and waits until it is durable. Returns false if the queue was
    /// terminated.
    pub(crate) fn raise_floor(&self, floor: (u64, u32)) -> bool {
        let mut state = self.state.lock();
        state.floor_wanted = Some(floor);
        state.floor_done = false;
        self.work.notify_all();
        while !state.floor_done && !state.terminated {
            self.done.wait(&mut state);
        }
        state.floor_done
    }

    /// Reports that the floor is durable.
    pub(crate) fn finish_floor(&self) {
        let mut state = self.state.lock();
        state.floor_done = true;
        drop(state);
        self.done.notify_all();
    }

    /// Stops the queue. The writer writes the queued blocks and ends.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_all();
    }

    /// Terminates the queue and wakes all waiting threads. The caller drops the returned blocks and
    /// ends the returned forgets, outside of any lock.
    fn terminate(&self) -> (VecDeque<QueuedBlock<K, V>>, Vec<UnfinishedForget>) {
        let mut state = self.state.lock();
        state.terminated = true;
        state.stopping = true;
        state.tombstones.clear();
        state.queued_bytes = 0;
        let dropped = std::mem::take(&mut state.queue);
        let unfinished = std::mem::take(&mut state.unfinished);
        drop(state);
        self.work.notify_all();
        self.done.notify_all();
        self.started.fulfill(());
        (dropped, unfinished.into_iter().map(|(_, forget)| forget).collect())
    }

    /// Waits for work, at most one check interval, so the result may be empty. Returns `None` if
    /// the writer must end.
    pub(crate) fn next(
        &self,
        now_ns: impl Fn() -> u64,
        (batch_bytes, linger_ns): (u64, u64),
        backlog: bool,
    ) -> Option<WriterWork<K, V>> {
        let mut state = self.state.lock();
        let now = now_ns();
        let ready = |state: &WriteQueueState<K, V>| {
            let oldest = state.queue.front().map(|queued| queued.since_ns);
            let lingered = oldest.is_some_and(|since| now.saturating_sub(since) >= linger_ns);
            state.terminated
                || state.stopping
                || state.start.is_some()
                || state.started
                    && (backlog
                        || lingered
                        || !state.tombstones.is_empty()
                        || state.flushes_wanted > state.flushes_done
                        || state.floor_wanted.is_some()
                        || state.queued_bytes >= batch_bytes)
        };
        if !ready(&state) {
            let wait = match state.queue.is_empty() {
                true => IDLE_WAIT,
                false => Duration::from_nanos(linger_ns).min(IDLE_WAIT),
            };
            self.work.wait_timeout(&mut state, wait);
        }
        if state.terminated {
            return None;
        }
        let start = state.start.take();
        if !state.started {
            // The end of the log is not known yet.
            return (!state.stopping).then(|| WriterWork::empty(None));
        }
        let mut work = WriterWork::empty(start);
        work.tombstones = state.tombstones.len();
        work.floor = state.floor_wanted.take();
        let flushing = state.flushes_wanted > state.flushes_done;
        let oldest = state.queue.front().map(|queued| queued.since_ns);
        let now = now_ns();
        let due = oldest.is_some_and(|since| now.saturating_sub(since) >= linger_ns);
        let urgent = flushing || state.stopping || work.tombstones > 0 || due;
        if !backlog && (urgent || state.queued_bytes >= batch_bytes) {
            let mut bytes = 0;
            // A block that exceeds the batch waits for the next one.
            while state
                .queue
                .front()
                .is_some_and(|next| bytes == 0 || bytes + next.bytes <= batch_bytes)
                && let Some(queued) = state.queue.pop_front()
            {
                bytes += queued.bytes;
                work.blocks.push(queued);
            }
            state.queued_bytes -= bytes;
        }
        let empty = !backlog && state.queue.is_empty();
        work.flush = (flushing && empty).then_some(state.flushes_wanted);
        work.last = state.stopping && empty && work.blocks.is_empty() && work.tombstones == 0;
        Some(work)
    }
}

impl<K: Key, V: Send + Sync + 'static> WriterWork<K, V> {
    fn empty(start: Option<LogStart>) -> Self {
        Self { start, blocks: Vec::new(), tombstones: 0, flush: None, floor: None, last: false }
    }
}
