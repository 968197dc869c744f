//! Loads: read blocks for the cache.
//!
//! A load never fails. A block that cannot be read in time or does not verify is a miss, and a
//! counter says why. The caller begins again, and the L2 declines that load. If memory then gets
//! another value of a mutable key, the block is bad. With mutable keys, a block that does not
//! decode is tried a few times, because there may have been no memory for it.
//!
//! A loaded block is published only if three checks pass. The checksum must match. It is seeded
//! with the L2's guid and the segment's sequence number, so a block of an earlier use of the
//! segment does not verify. The encoded key in the block must equal the requested key, because two
//! keys may share a hash.
//!
//! A load that exceeds its time limit is *overdue*. The watchdog thread withdraws its load guard,
//! and the read continues alone. The watchdog does nothing else, so that no other request delays
//! it. While any read is overdue, no other read begins: the device hangs.
//!
//! Locking: `l2-watchdog` while the watchdog sleeps; `l2-loads` for a push or a few pops; `l2-load`
//! to take a load guard. A thread never holds two of them, and none during a submit or a publish.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::arena::Buffer;
use forebay_base::counters::Counter;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Class, Key, LoadGuard};
use forebay_io::{Completion, Priority, Request};

use crate::counters::L2Counters;
use crate::format::{Block, BlockSeed, verify_block};
use crate::rebuild::Frontier;
use crate::record::{BlockAddr, KeyHash, MAX_HITS, Record, RecordState, UNIT_BYTES};
use crate::shared::L2Shared;

/// Maximum number of key hashes whose next load is declined.
const MAX_DECLINED: usize = 64;
/// How often the watchdog checks for overdue loads.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);

/// A load in flight.
struct InFlightLoad<K: Key, V: Send + Sync + 'static> {
    hash: KeyHash,
    deadline_ns: u64,
    /// `None` after the load has completed or was given up.
    guard: Mutex<Option<LoadGuard<K, V>>>,
}

/// The loads in flight.
pub(crate) struct Loads<K: Key, V: Send + Sync + 'static> {
    /// Loads, oldest first.
    in_flight: Mutex<VecDeque<Arc<InFlightLoad<K, V>>>>,
    /// Reads submitted and not completed.
    reads_in_flight: AtomicU64,
    /// Reads in flight whose loads were given up.
    overdue: AtomicU64,
    /// Key hashes whose next load is declined, so that a caller that begins again bypasses the L2.
    declined: Mutex<VecDeque<KeyHash>>,
    declined_count: AtomicUsize,
    /// Whether the watchdog is to end.
    watchdog_stopped: Mutex<bool>,
    watchdog_wakeup: Condvar,
}

/// A load that the L2 declines.
struct Miss {
    counter: Counter,
    /// Whether the device may have a block of the key.
    may_exist: bool,
}

impl Miss {
    /// Of a block that may exist.
    fn of_block(counter: Counter) -> Self {
        Self { counter, may_exist: true }
    }
}

/// The block that a read is expected to return.
struct ExpectedBlock {
    hash: KeyHash,
    addr: BlockAddr,
    seed: BlockSeed,
    seq: u64,
    /// Offset of the block in the read buffer.
    buffer_offset: usize,
    class: usize,
    /// Whether the read before did not decode.
    undecodable: bool,
}

/// The outcome of a read.
enum LoadOutcome<V> {
    Value(V),
    /// The checksum does not match.
    Corrupt,
    /// The segment was reused during the read.
    Evicted,
    /// The block belongs to another key with the same hash.
    OtherKey,
    Undecodable,
    /// The time of the value is over.
    Expired,
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
        guard: LoadGuard<K, V>,
    ) -> Arc<InFlightLoad<K, V>> {
        let guard = Mutex::named("l2-load", Some(guard));
        let load = Arc::new(InFlightLoad { hash, deadline_ns, guard });
        self.reads_in_flight.fetch_add(1, Ordering::AcqRel);
        let mut ended = Vec::new();
        let mut in_flight = self.in_flight.lock();
        // Removes up to two entries for each new one, so that the list stays close to the number of
        // loads in flight.
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

    /// Ends the watchdog.
    pub(crate) fn stop_watchdog(&self) {
        *self.watchdog_stopped.lock() = true;
        self.watchdog_wakeup.notify_all();
    }

    /// Reads in flight whose loads were not given up.
    pub(crate) fn awaited_reads(&self) -> u64 {
        let overdue = self.overdue.load(Ordering::Acquire);
        self.reads_in_flight.load(Ordering::Acquire).saturating_sub(overdue)
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Begins a load. Keeps the load guard if the L2 holds the block, otherwise returns it.
    pub(crate) fn load(self: &Arc<Self>, guard: LoadGuard<K, V>) -> Result<(), LoadGuard<K, V>> {
        let Some(hash) = self.key_hash(guard.key()) else {
            self.counters.add(L2Counters::LOAD_UNDECODABLE, 0, 1);
            return Err(guard);
        };
        self.admission.on_load(hash, self.index.len());
        let (record, seq) = match self.locate(guard.key(), hash) {
            Ok(found) => found,
            Err(miss) => return Err(self.decline(miss, guard)),
        };
        let addr = record.addr;
        let sector = u64::from(self.io.device.info().sector_bytes);
        let from = self.ring.geometry.offset(addr.segment) + u64::from(addr.unit) * UNIT_BYTES;
        let to = from + u64::from(addr.units) * UNIT_BYTES;
        let start = from / sector * sector;
        let bytes = (to.next_multiple_of(sector) - start) as usize;
        let Ok(buffer) = self.io.arena.alloc(bytes) else {
            return Err(self.decline(Miss::of_block(L2Counters::MISSES_NO_MEMORY), guard));
        };
        // Before the read: the index must know before memory can hold the block. A value that is
        // returned uncached never enters memory.
        self.index.touch(hash, addr, guard.refusal().is_none());
        let seed = BlockSeed::new(self.ring.guid(), seq);
        let (buffer_offset, class) = ((from - start) as usize, guard.attributes().class as usize);
        let undecodable = record.undecodable;
        let expected = ExpectedBlock { hash, addr, seed, seq, buffer_offset, class, undecodable };
        let allowed = u64::from(self.tunables.load_timeout_ms()) * 1_000_000;
        let load = self.loads.begin(hash, self.clock.now_ns().saturating_add(allowed), guard);
        let shared = Arc::clone(self);
        let request = Request::read(start, buffer).with_priority(Priority::SyncRead);
        self.io.device.submit(request.on_done(move |completion| {
            shared.on_read_done(&load, &expected, completion);
        }));
        Ok(())
    }

    /// Counts and returns a load that the L2 declines. The value that it provides is newer than
    /// that of the block, if there is one.
    fn decline(&self, miss: Miss, mut guard: LoadGuard<K, V>) -> LoadGuard<K, V> {
        self.counters.add(miss.counter, 0, 1);
        if !self.immutable_keys && miss.may_exist {
            guard.supersede();
        }
        guard
    }

    /// Handles a load that provides a newer value than that of the block. The rebuild may find the
    /// block later.
    pub(crate) fn superseded(&self, key: &K) {
        if !self.immutable_keys
            && let Some(hash) = self.key_hash(key)
        {
            // In this order: the rebuild inserts its blocks first, and then asks for the keys.
            self.rebuild.note_superseded(hash);
            self.index.supersede(hash);
        }
    }

    /// The class of the key's block, if a load would read it from the device. If not, counts the
    /// miss that the load would have been.
    pub(crate) fn class_to_load(&self, key: &K) -> Option<Class> {
        let Some(hash) = self.key_hash(key) else {
            self.counters.add(L2Counters::LOAD_UNDECODABLE, 0, 1);
            return None;
        };
        match self.locate(key, hash) {
            Ok((record, _)) => Some(record.class),
            Err(miss) => {
                self.admission.on_load(hash, self.index.len());
                self.counters.add(miss.counter, 0, 1);
                None
            }
        }
    }

    /// Finds the block and the sequence number of its segment.
    fn locate(&self, key: &K, hash: KeyHash) -> Result<(Record, u64), Miss> {
        if !self.status.is_open() {
            return Err(Miss::of_block(L2Counters::MISSES_CLOSED));
        }
        // Both before the search. If the rebuild ends in between, it may have found the block. And
        // newer segments may enter the index later than older ones: a record is the newest of its
        // key only if all segments after it had been read when the search began.
        let may_exist = self.rebuild.is_running();
        let frontier = self.rebuild.frontier();
        let Some(record) = self.index.find(hash) else {
            let counter = match may_exist {
                true => L2Counters::MISSES_REBUILDING,
                false => L2Counters::MISSES,
            };
            return Err(Miss { counter, may_exist });
        };
        self.check_servable(key, hash, record, frontier).map_err(Miss::of_block)
    }

    /// Checks that the block of a record can be returned, and returns it with the sequence number
    /// of its segment, or the counter of the miss. The frontier is of before the search.
    fn check_servable(
        &self,
        key: &K,
        hash: KeyHash,
        record: Record,
        frontier: Frontier,
    ) -> Result<(Record, u64), Counter> {
        if record.state != RecordState::Live {
            return Err(L2Counters::MISSES_BAD);
        }
        // In this order: see `Groups`. No block of an earlier use verifies with a later number.
        let is_void = self.is_void(key, record.addr);
        let seq = self.ring.seq(record.addr.segment);
        // With immutable keys, every block on the device is valid, unless the user was rolled back.
        let is_hidden = match self.immutable_keys {
            true => !frontier.has_read_newest(),
            false => frontier.hides(seq),
        };
        if is_hidden {
            return Err(L2Counters::MISSES_REBUILDING);
        }
        if is_void {
            return Err(L2Counters::MISSES_BAD);
        }
        if self.loads.overdue.load(Ordering::Relaxed) > 0 {
            return Err(L2Counters::MISSES_STALLED);
        }
        if self.loads.take_declined(hash) {
            return Err(L2Counters::MISSES);
        }
        Ok((record, seq))
    }

    /// Handles the completion of a read.
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
                Ok(buffer) => self.deliver(guard, expected, buffer),
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

    fn deliver(&self, guard: LoadGuard<K, V>, expected: &ExpectedBlock, buffer: Buffer) {
        self.counters.add(L2Counters::LOAD_BYTES, 0, buffer.len() as u64);
        let outcome = self.verify(guard.key(), expected, &buffer);
        // First, so that a caller that lacked the memory for another read has it.
        drop(buffer);
        let counter = match outcome {
            LoadOutcome::Value(value) => {
                self.counters.add(L2Counters::HITS, expected.class, 1);
                if expected.undecodable {
                    self.note_decoded(expected);
                }
                // `publish` calls the user's weigher. If that panics, the waiting callers receive
                // the error.
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
            LoadOutcome::Expired => {
                self.mark_bad(expected.hash, expected.addr);
                L2Counters::LOAD_EXPIRED
            }
            LoadOutcome::Undecodable => {
                self.note_undecodable(expected);
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
        let decoded = self.with_codec(|codec| {
            let value = codec.decode(key, value)?;
            Some((codec.has_expired(&value), value))
        });
        match decoded.flatten() {
            Some((false, value)) => LoadOutcome::Value(value),
            Some((true, _)) => LoadOutcome::Expired,
            None => LoadOutcome::Undecodable,
        }
    }

    /// Notes that a read of the block did not decode. The next load is declined. With mutable keys,
    /// the block is bad after [`MAX_HITS`] such reads in a row. The load has counted the read.
    /// With immutable keys the block stays right, and only memory can be lacking.
    fn note_undecodable(&self, expected: &ExpectedBlock) {
        let mut is_bad = false;
        if !self.immutable_keys {
            self.index.change(expected.hash, expected.addr, |record| {
                let hits = if record.undecodable { record.hits } else { 1 };
                is_bad = hits >= MAX_HITS;
                let record = Record { hits, undecodable: true, ..record };
                if is_bad { self.as_bad(record) } else { Some(record) }
            });
        }
        if !is_bad {
            self.loads.decline_next(expected.hash);
        }
    }

    fn note_decoded(&self, expected: &ExpectedBlock) {
        self.index.change(expected.hash, expected.addr, |record| {
            Some(Record { undecodable: false, ..record })
        });
    }

    /// Marks a block that must not be returned. With mutable keys its record stays, because
    /// forgetting the key still requires a tombstone.
    pub(crate) fn mark_bad(&self, hash: KeyHash, addr: BlockAddr) {
        self.index.change(hash, addr, |record| self.as_bad(record));
    }

    fn as_bad(&self, record: Record) -> Option<Record> {
        (!self.immutable_keys).then_some(Record { state: RecordState::Bad, ..record })
    }

    /// The body of the watchdog thread. Returns after [`Loads::stop_watchdog`].
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

    /// Gives up overdue loads, or all loads if `all` is set.
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
