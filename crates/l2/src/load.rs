//! Loads: reading a block back for the cache.
//!
//! A load never fails: what cannot be read in time, or is not what was written, is a miss, and a counter says why. Whoever waits for
//! it begins anew, and finds that the level does not have the block.
//!
//! A load that takes longer than allowed is *overdue*: its filler is withdrawn by a thread that does nothing else than look around
//! a few times a second, so that no other request can hold it up, and its read goes on alone. While any read is overdue no other is begun: the device hangs.
//!
//! Locking: `l2-watch` while that thread sleeps; `l2-loads` for a push or a few pops, `l2-load` for taking a filler; never both, and none while anything is
//! submitted or published.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Filler, Key};
use forebay_io::{Completion, Priority, Request};

use crate::counters::LevelCounters;
use crate::format::{Block, BlockSeed, verify_block};
use crate::inner::Inner;
use crate::record::{Identity, Place, Record, State, UNIT_BYTES};

/// Identities at most that the next load of passes over.
const SKIPS: usize = 64;
/// How often it is looked for loads that are overdue.
const LOOK: Duration = Duration::from_millis(100);

/// A load on its way.
struct Flight<K: Key, V: Send + Sync + 'static> {
    id: Identity,
    deadline_ns: u64,
    /// Gone when the load has ended, or was given up.
    filler: Mutex<Option<Filler<K, V>>>,
}

/// Loads on their way.
pub(crate) struct Loads<K: Key, V: Send + Sync + 'static> {
    /// Oldest first.
    flights: Mutex<VecDeque<Arc<Flight<K, V>>>>,
    /// Reads that were submitted and have not ended.
    flying: AtomicU64,
    /// Those of them whose loads were given up.
    overdue: AtomicU64,
    /// Of these keys the next load is handed back, so that who begins anew gets past the level.
    skips: Mutex<VecDeque<Identity>>,
    skipping: AtomicUsize,
    /// Whether nobody need look for overdue loads any more.
    watched: Mutex<bool>,
    watching: Condvar,
}

/// What a read was to find.
struct Sought {
    id: Identity,
    place: Place,
    seed: BlockSeed,
    seq: u64,
    /// Bytes of the buffer before the block.
    skew: usize,
    class: usize,
}

/// What a read has found.
enum Found<V> {
    Value(V),
    /// Not what was written.
    Rotten,
    /// The segment was used again.
    Overtaken,
    /// Another key's block.
    Other,
    Undecodable,
}

impl<K: Key, V: Send + Sync + 'static> Loads<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            flights: Mutex::named("l2-loads", VecDeque::new()),
            flying: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
            skips: Mutex::named("l2-load", VecDeque::new()),
            skipping: AtomicUsize::new(0),
            watched: Mutex::named("l2-watch", false),
            watching: Condvar::new(),
        }
    }

    fn begin(&self, id: Identity, deadline_ns: u64, filler: Filler<K, V>) -> Arc<Flight<K, V>> {
        let filler = Mutex::named("l2-load", Some(filler));
        let flight = Arc::new(Flight { id, deadline_ns, filler });
        self.flying.fetch_add(1, Ordering::AcqRel);
        let mut ended = Vec::new();
        let mut flights = self.flights.lock();
        // Two for one: the list is never much longer than what is on its way.
        while ended.len() < 2
            && flights.front().is_some_and(|flight| Arc::strong_count(flight) == 1)
        {
            ended.extend(flights.pop_front());
        }
        flights.push_back(Arc::clone(&flight));
        drop(flights);
        flight
    }

    fn skip_next(&self, id: Identity) {
        let mut skips = self.skips.lock();
        if skips.len() == SKIPS {
            skips.pop_front();
        }
        skips.push_back(id);
        self.skipping.store(skips.len(), Ordering::Release);
    }

    fn is_skipped(&self, id: Identity) -> bool {
        if self.skipping.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut skips = self.skips.lock();
        let found = skips.iter().position(|other| *other == id);
        found.inspect(|at| _ = skips.remove(*at));
        self.skipping.store(skips.len(), Ordering::Release);
        found.is_some()
    }

    /// Ends the watch.
    pub(crate) fn unwatch(&self) {
        *self.watched.lock() = true;
        self.watching.notify_all();
    }

    /// Reads that have not ended, those that were given up left out.
    pub(crate) fn awaited(&self) -> u64 {
        let overdue = self.overdue.load(Ordering::Acquire);
        self.flying.load(Ordering::Acquire).saturating_sub(overdue)
    }
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// A load begins. If the level has the block, it keeps the filler.
    pub(crate) fn load(self: &Arc<Self>, filler: Filler<K, V>) -> Result<(), Filler<K, V>> {
        let Some(id) = self.identity(filler.key()) else {
            self.counters.add(LevelCounters::LOAD_UNDECODABLE, 0, 1);
            return Err(filler);
        };
        self.worth.asked(id, self.index.len());
        let (record, seq) = match self.seek(id) {
            Ok(found) => found,
            Err(row) => {
                self.counters.add(row, 0, 1);
                return Err(filler);
            }
        };
        let place = record.place;
        let sector = u64::from(self.medium.device.info().sector_bytes);
        let from = self.ring.geometry.offset(place.segment) + u64::from(place.unit) * UNIT_BYTES;
        let to = from + u64::from(place.units) * UNIT_BYTES;
        let start = from / sector * sector;
        let bytes = (to.next_multiple_of(sector) - start) as usize;
        let Ok(buffer) = self.medium.arena.alloc(bytes) else {
            self.counters.add(LevelCounters::MISSES_NO_MEMORY, 0, 1);
            return Err(filler);
        };
        // Before the read: the ring is to know as soon as memory can have it. What is handed out uncached memory never has.
        self.index.touch(id, place, filler.refusal().is_none());
        let seed = BlockSeed::new(self.ring.guid(), seq);
        let (skew, class) = ((from - start) as usize, filler.attributes().class as usize);
        let sought = Sought { id, place, seed, seq, skew, class };
        let allowed = u64::from(self.tunables.load_timeout_ms()) * 1_000_000;
        let flight = self.loads.begin(id, self.clock.now_ns().saturating_add(allowed), filler);
        let inner = Arc::clone(self);
        let request = Request::read(start, buffer).with_priority(Priority::SyncRead);
        self.medium.device.submit(request.on_done(move |completion| {
            inner.loaded(&flight, &sought, completion);
        }));
        Ok(())
    }

    /// Where the block is and in which use of its segment, or what to count.
    fn seek(&self, id: Identity) -> Result<(Record, u64), forebay_base::counters::Counter> {
        if !self.status.is_open() {
            return Err(LevelCounters::MISSES_CLOSED);
        }
        let Some(record) = self.index.find(id) else {
            return Err(match self.rebuild.is_running() {
                true => LevelCounters::MISSES_REBUILDING,
                false => LevelCounters::MISSES,
            });
        };
        let seq = self.ring.seq(record.place.segment);
        if record.state != State::Live {
            return Err(LevelCounters::MISSES_BAD);
        }
        // With immutable keys whatever is there is right.
        if !self.immutable_keys && self.rebuild.hides(seq) {
            return Err(LevelCounters::MISSES_REBUILDING);
        }
        if self.loads.overdue.load(Ordering::Relaxed) > 0 {
            return Err(LevelCounters::MISSES_STALLED);
        }
        if self.loads.is_skipped(id) {
            return Err(LevelCounters::MISSES);
        }
        Ok((record, seq))
    }

    /// A read has ended.
    fn loaded(&self, flight: &Flight<K, V>, sought: &Sought, completion: Completion) {
        let taken = {
            let mut filler = flight.filler.lock();
            let taken = filler.take();
            if taken.is_none() {
                self.loads.overdue.fetch_sub(1, Ordering::AcqRel);
            }
            taken
        };
        if let Some(filler) = taken {
            match completion.into_buffer() {
                Ok(buffer) => self.deliver(filler, sought, &buffer),
                Err(_) => {
                    self.counters.add(LevelCounters::LOAD_ERRORS, 0, 1);
                    self.flag(sought.id, sought.place);
                    self.index.leave_memory(sought.id);
                    filler.withdraw();
                }
            }
        }
        self.loads.flying.fetch_sub(1, Ordering::AcqRel);
    }

    fn deliver(&self, filler: Filler<K, V>, sought: &Sought, buffer: &Buffer) {
        self.counters.add(LevelCounters::LOAD_BYTES, 0, buffer.len() as u64);
        let row = match self.examine(filler.key(), sought, buffer) {
            Found::Value(value) => {
                self.counters.add(LevelCounters::HITS, sought.class, 1);
                // It asks the user's weigher. If that panics, who waits hears of it.
                let cached = self.catching(|| filler.publish(value).is_cached());
                if cached != Some(true) {
                    self.index.leave_memory(sought.id);
                }
                return;
            }
            Found::Rotten => {
                self.flag(sought.id, sought.place);
                LevelCounters::LOAD_ROTTEN
            }
            Found::Overtaken => {
                self.loads.skip_next(sought.id);
                LevelCounters::LOAD_OVERTAKEN
            }
            Found::Other => {
                self.loads.skip_next(sought.id);
                LevelCounters::LOAD_FALSE_HITS
            }
            Found::Undecodable => {
                self.loads.skip_next(sought.id);
                LevelCounters::LOAD_UNDECODABLE
            }
        };
        self.counters.add(row, 0, 1);
        self.index.leave_memory(sought.id);
        filler.withdraw();
    }

    fn examine(&self, key: &K, sought: &Sought, buffer: &Buffer) -> Found<V> {
        let Some(Block { key: found, value, .. }) =
            buffer.get(sought.skew..).and_then(|bytes| verify_block(sought.seed, bytes))
        else {
            let used_again = self.ring.seq(sought.place.segment) != sought.seq;
            return if used_again { Found::Overtaken } else { Found::Rotten };
        };
        let Some(sought) = self.encode_key(key) else { return Found::Undecodable };
        if found != &sought[..self.label.key_bytes] {
            return Found::Other;
        }
        let decoded = self.ask(|codec| codec.decode(key, value)).flatten();
        decoded.map_or(Found::Undecodable, Found::Value)
    }

    /// What is there must not be returned; with keys whose content changes a tombstone is still needed when it is forgotten.
    pub(crate) fn flag(&self, id: Identity, place: Place) {
        self.index.change(id, place, |record| {
            (!self.immutable_keys).then_some(Record { state: State::Bad, ..record })
        });
    }

    /// The body of the thread that gives up overdue loads, until [`Loads::unwatch`].
    pub(crate) fn watch(&self) {
        loop {
            {
                let mut watched = self.loads.watched.lock();
                if !*watched {
                    // The model checker has no time that passes by itself.
                    match cfg!(forebay_model) {
                        true => self.loads.watching.wait(&mut watched),
                        false => drop(self.loads.watching.wait_timeout(&mut watched, LOOK)),
                    }
                }
                if *watched {
                    return;
                }
            }
            self.watch_loads(false);
        }
    }

    /// Gives up loads that are overdue. `all`: every one.
    pub(crate) fn watch_loads(&self, all: bool) {
        let now = self.clock.now_ns();
        let mut late = Vec::new();
        {
            let mut flights = self.loads.flights.lock();
            while flights.front().is_some_and(|flight| {
                all || flight.deadline_ns <= now || Arc::strong_count(flight) == 1
            }) {
                late.extend(flights.pop_front());
            }
        }
        for flight in late {
            let taken = {
                let mut filler = flight.filler.lock();
                let taken = filler.take();
                if taken.is_some() {
                    self.loads.overdue.fetch_add(1, Ordering::AcqRel);
                }
                taken
            };
            if let Some(filler) = taken {
                self.counters.add(LevelCounters::LOAD_TIMEOUTS, 0, 1);
                self.loads.skip_next(flight.id);
                self.index.leave_memory(flight.id);
                filler.withdraw();
            }
        }
    }
}
