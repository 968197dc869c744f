//! Loads: reading a block back for the cache.
//!
//! A load never fails: what cannot be read in time, or is not what was written, is a miss, and a counter says why. Whoever waits for
//! it begins anew, and finds that the level does not have the block.
//!
//! A load that takes longer than allowed is *overdue*: its filler is withdrawn by a thread that does nothing else than look around
//! a few times a second, so that no other request can hold it up, and its read goes on alone. While any read is overdue no other is begun: the device hangs.
//!
//! Locking: `l2-watchdog` while that thread sleeps; `l2-loads` for a push or a few pops, `l2-load` for taking a filler; never both, and none while anything is
//! submitted or published.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Filler, Key};
use forebay_io::{Completion, Priority, Request};

use crate::counters::L2Counters;
use crate::format::{Block, BlockSeed, verify_block};
use crate::record::{BlockAddr, KeyHash, Record, RecordState, UNIT_BYTES};
use crate::shared::L2Shared;

/// Identities at most that the next load of passes over.
const MAX_DECLINED: usize = 64;
/// How often it is looked for loads that are overdue.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);

/// A load on its way.
struct InFlightLoad<K: Key, V: Send + Sync + 'static> {
    hash: KeyHash,
    deadline_ns: u64,
    /// Gone when the load has ended, or was given up.
    guard: Mutex<Option<Filler<K, V>>>,
}

/// Loads on their way.
pub(crate) struct Loads<K: Key, V: Send + Sync + 'static> {
    /// Oldest first.
    in_flight: Mutex<VecDeque<Arc<InFlightLoad<K, V>>>>,
    /// Reads that were submitted and have not ended.
    reads_in_flight: AtomicU64,
    /// Those of them whose loads were given up.
    overdue: AtomicU64,
    /// Of these keys the next load is handed back, so that who begins anew gets past the level.
    declined: Mutex<VecDeque<KeyHash>>,
    declined_count: AtomicUsize,
    /// Whether nobody need look for overdue loads any more.
    watchdog_stopped: Mutex<bool>,
    watchdog_wakeup: Condvar,
}

/// What a read was to find.
struct ExpectedBlock {
    hash: KeyHash,
    addr: BlockAddr,
    seed: BlockSeed,
    seq: u64,
    /// Bytes of the buffer before the block.
    buffer_offset: usize,
    class: usize,
}

/// What a read has found.
enum LoadOutcome<V> {
    Value(V),
    /// Not what was written.
    Corrupt,
    /// The segment was used again.
    Evicted,
    /// Another key's block.
    OtherKey,
    Undecodable,
}

impl<K: Key, V: Send + Sync + 'static> Loads<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            in_flight: Mutex::named("l2-loads", VecDeque::new()),
            reads_in_flight: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
            declined: Mutex::named("l2-load", VecDeque::new()),
            declined_count: AtomicUsize::new(0),
            watchdog_stopped: Mutex::named("l2-watchdog", false),
            watchdog_wakeup: Condvar::new(),
        }
    }

    fn begin(
        &self,
        hash: KeyHash,
        deadline_ns: u64,
        guard: Filler<K, V>,
    ) -> Arc<InFlightLoad<K, V>> {
        let guard = Mutex::named("l2-load", Some(guard));
        let load = Arc::new(InFlightLoad { hash, deadline_ns, guard });
        self.reads_in_flight.fetch_add(1, Ordering::AcqRel);
        let mut ended = Vec::new();
        let mut in_flight = self.in_flight.lock();
        // Two for one: the list is never much longer than what is on its way.
        while ended.len() < 2 && in_flight.front().is_some_and(|load| Arc::strong_count(load) == 1)
        {
            ended.extend(in_flight.pop_front());
        }
        in_flight.push_back(Arc::clone(&load));
        drop(in_flight);
        load
    }

    fn decline_next(&self, hash: KeyHash) {
        let mut declined = self.declined.lock();
        if declined.len() == MAX_DECLINED {
            declined.pop_front();
        }
        declined.push_back(hash);
        self.declined_count.store(declined.len(), Ordering::Release);
    }

    fn take_declined(&self, hash: KeyHash) -> bool {
        if self.declined_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut declined = self.declined.lock();
        let found = declined.iter().position(|other| *other == hash);
        found.inspect(|at| _ = declined.remove(*at));
        self.declined_count.store(declined.len(), Ordering::Release);
        found.is_some()
    }

    /// Ends the watch.
    pub(crate) fn stop_watchdog(&self) {
        *self.watchdog_stopped.lock() = true;
        self.watchdog_wakeup.notify_all();
    }

    /// Reads that have not ended, those that were given up left out.
    pub(crate) fn awaited_reads(&self) -> u64 {
        let overdue = self.overdue.load(Ordering::Acquire);
        self.reads_in_flight.load(Ordering::Acquire).saturating_sub(overdue)
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// A load begins. If the level has the block, it keeps the filler.
    pub(crate) fn load(self: &Arc<Self>, guard: Filler<K, V>) -> Result<(), Filler<K, V>> {
        let Some(hash) = self.key_hash(guard.key()) else {
            self.counters.add(L2Counters::LOAD_UNDECODABLE, 0, 1);
            return Err(guard);
        };
        self.admission.on_load(hash, self.index.len());
        let (record, seq) = match self.locate(hash) {
            Ok(found) => found,
            Err(counter) => {
                self.counters.add(counter, 0, 1);
                return Err(guard);
            }
        };
        let addr = record.addr;
        let sector = u64::from(self.io.device.info().sector_bytes);
        let from = self.ring.geometry.offset(addr.segment) + u64::from(addr.unit) * UNIT_BYTES;
        let to = from + u64::from(addr.units) * UNIT_BYTES;
        let start = from / sector * sector;
        let bytes = (to.next_multiple_of(sector) - start) as usize;
        let Ok(buffer) = self.io.arena.alloc(bytes) else {
            self.counters.add(L2Counters::MISSES_NO_MEMORY, 0, 1);
            return Err(guard);
        };
        // Before the read: the ring is to know as soon as memory can have it. What is handed out uncached memory never has.
        self.index.touch(hash, addr, guard.refusal().is_none());
        let seed = BlockSeed::new(self.ring.guid(), seq);
        let (buffer_offset, class) = ((from - start) as usize, guard.attributes().class as usize);
        let expected = ExpectedBlock { hash, addr, seed, seq, buffer_offset, class };
        let allowed = u64::from(self.tunables.load_timeout_ms()) * 1_000_000;
        let load = self.loads.begin(hash, self.clock.now_ns().saturating_add(allowed), guard);
        let shared = Arc::clone(self);
        let request = Request::read(start, buffer).with_priority(Priority::SyncRead);
        self.io.device.submit(request.on_done(move |completion| {
            shared.on_read_done(&load, &expected, completion);
        }));
        Ok(())
    }

    /// Where the block is and in which use of its segment, or what to count.
    fn locate(&self, hash: KeyHash) -> Result<(Record, u64), forebay_base::counters::Counter> {
        if !self.status.is_open() {
            return Err(L2Counters::MISSES_CLOSED);
        }
        let Some(record) = self.index.find(hash) else {
            return Err(match self.rebuild.is_running() {
                true => L2Counters::MISSES_REBUILDING,
                false => L2Counters::MISSES,
            });
        };
        let seq = self.ring.seq(record.addr.segment);
        if record.state != RecordState::Live {
            return Err(L2Counters::MISSES_BAD);
        }
        // With immutable keys whatever is there is right.
        if !self.immutable_keys && self.rebuild.is_hidden(seq) {
            return Err(L2Counters::MISSES_REBUILDING);
        }
        if self.loads.overdue.load(Ordering::Relaxed) > 0 {
            return Err(L2Counters::MISSES_STALLED);
        }
        if self.loads.take_declined(hash) {
            return Err(L2Counters::MISSES);
        }
        Ok((record, seq))
    }

    /// A read has ended.
    fn on_read_done(
        &self,
        load: &InFlightLoad<K, V>,
        expected: &ExpectedBlock,
        completion: Completion,
    ) {
        let taken = {
            let mut guard = load.guard.lock();
            let taken = guard.take();
            if taken.is_none() {
                self.loads.overdue.fetch_sub(1, Ordering::AcqRel);
            }
            taken
        };
        if let Some(guard) = taken {
            match completion.into_buffer() {
                Ok(buffer) => self.deliver(guard, expected, &buffer),
                Err(_) => {
                    self.counters.add(L2Counters::LOAD_ERRORS, 0, 1);
                    self.mark_bad(expected.hash, expected.addr);
                    self.index.clear_in_memory(expected.hash);
                    guard.withdraw();
                }
            }
        }
        self.loads.reads_in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    fn deliver(&self, guard: Filler<K, V>, expected: &ExpectedBlock, buffer: &Buffer) {
        self.counters.add(L2Counters::LOAD_BYTES, 0, buffer.len() as u64);
        let counter = match self.verify(guard.key(), expected, buffer) {
            LoadOutcome::Value(value) => {
                self.counters.add(L2Counters::HITS, expected.class, 1);
                // It asks the user's weigher. If that panics, who waits hears of it.
                let cached = self.catch_panic(|| guard.publish(value).is_cached());
                if cached != Some(true) {
                    self.index.clear_in_memory(expected.hash);
                }
                return;
            }
            LoadOutcome::Corrupt => {
                self.mark_bad(expected.hash, expected.addr);
                L2Counters::LOAD_CORRUPT
            }
            LoadOutcome::Evicted => {
                self.loads.decline_next(expected.hash);
                L2Counters::LOAD_EVICTED
            }
            LoadOutcome::OtherKey => {
                self.loads.decline_next(expected.hash);
                L2Counters::LOAD_FALSE_HITS
            }
            LoadOutcome::Undecodable => {
                self.loads.decline_next(expected.hash);
                L2Counters::LOAD_UNDECODABLE
            }
        };
        self.counters.add(counter, 0, 1);
        self.index.clear_in_memory(expected.hash);
        guard.withdraw();
    }

    fn verify(&self, key: &K, expected: &ExpectedBlock, buffer: &Buffer) -> LoadOutcome<V> {
        let Some(Block { key: found, value, .. }) = buffer
            .get(expected.buffer_offset..)
            .and_then(|bytes| verify_block(expected.seed, bytes))
        else {
            let used_again = self.ring.seq(expected.addr.segment) != expected.seq;
            return if used_again { LoadOutcome::Evicted } else { LoadOutcome::Corrupt };
        };
        let Some(expected) = self.encode_key(key) else { return LoadOutcome::Undecodable };
        if found != &expected[..self.label.key_bytes] {
            return LoadOutcome::OtherKey;
        }
        let decoded = self.with_codec(|codec| codec.decode(key, value)).flatten();
        decoded.map_or(LoadOutcome::Undecodable, LoadOutcome::Value)
    }

    /// What is there must not be returned; with keys whose content changes a tombstone is still needed when it is forgotten.
    pub(crate) fn mark_bad(&self, hash: KeyHash, addr: BlockAddr) {
        self.index.change(hash, addr, |record| {
            (!self.immutable_keys).then_some(Record { state: RecordState::Bad, ..record })
        });
    }

    /// The body of the thread that gives up overdue loads, until [`Loads::stop_watchdog`].
    pub(crate) fn run_watchdog(&self) {
        loop {
            {
                let mut watchdog_stopped = self.loads.watchdog_stopped.lock();
                if !*watchdog_stopped {
                    // The model checker has no time that passes by itself.
                    match cfg!(forebay_model) {
                        true => self.loads.watchdog_wakeup.wait(&mut watchdog_stopped),
                        false => drop(
                            self.loads
                                .watchdog_wakeup
                                .wait_timeout(&mut watchdog_stopped, WATCHDOG_INTERVAL),
                        ),
                    }
                }
                if *watchdog_stopped {
                    return;
                }
            }
            self.withdraw_overdue(false);
        }
    }

    /// Gives up loads that are overdue. `all`: every one.
    pub(crate) fn withdraw_overdue(&self, all: bool) {
        let now = self.clock.now_ns();
        let mut late = Vec::new();
        {
            let mut in_flight = self.loads.in_flight.lock();
            while in_flight
                .front()
                .is_some_and(|load| all || load.deadline_ns <= now || Arc::strong_count(load) == 1)
            {
                late.extend(in_flight.pop_front());
            }
        }
        for load in late {
            let taken = {
                let mut guard = load.guard.lock();
                let taken = guard.take();
                if taken.is_some() {
                    self.loads.overdue.fetch_add(1, Ordering::AcqRel);
                }
                taken
            };
            if let Some(guard) = taken {
                self.counters.add(L2Counters::LOAD_TIMEOUTS, 0, 1);
                self.loads.decline_next(load.hash);
                self.index.clear_in_memory(load.hash);
                guard.withdraw();
            }
        }
    }
}
