//! The cache proper: what lookups, inserts, removals and the evictor share.
//!
//! Invariants
//! * Every header that is in use holds `header.weight()` of `room`; freeing it gives that back.
//! * A header's bytes are counted in the sublist that its state names, from the update that names
//!   it to the update that retires it or moves it on.
//! * `Inner` lives while anyone *holds* it: the `Cache`, its threads, a guard that is dropping the
//!   last pin, and, after the `Cache` was dropped, every header that was still pinned then.
//!
//! Locking: see `docs/locking.md`. No function here holds two locks, but for the index taking its
//! memory's lock under a partition's, and the evictor holding `reclaim` outermost.

use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use forebay_base::clock::Clock;
use forebay_base::histogram::AtomicHistogram;
use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use forebay_base::sync::{Arc, Condvar, Mutex};

use crate::attributes::{Attributes, Cause, Class, Hint};
use crate::callbacks::{Callbacks, Evicted};
use crate::counters::CacheCounters;
use crate::error::{Refusal, Refused};
use crate::evict::Scratch;
use crate::filler::LoadingPin;
use crate::flight::Flights;
use crate::header::{Contents, FILLED, Header, List, MARK, Pin, RETIRED, State, VALID};
use crate::index::line::Slot;
use crate::index::{Index, Visit};
use crate::key::Key;
use crate::lists::MultiList;
use crate::lists::ghosts::{GhostList, Ghosts};
use crate::owner::{Owners, Permit};
use crate::policy::{GhostHits, Policy, Sizes};
use crate::room::{Reserved, Room, Ticket};
use crate::second::SecondLevel;
use crate::slab::Slab;
use crate::tunables::CacheTunables;

/// Weighs a block, in bytes.
pub(crate) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;
/// Tells bytes that count against the hard bound but are not the cache's.
pub(crate) type Overhead = Box<dyn Fn() -> u64 + Send + Sync>;

/// Who evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// A thread of the cache's own; inserters wait for it past the overflow limit.
    #[default]
    Thread,
    /// The inserting thread, as soon as the target is passed: exact and deterministic with one
    /// thread, for simulation and tests.
    Inline,
}

pub(crate) struct Inner<K: Key, V: Send + Sync + 'static> {
    pub(crate) hasher: foldhash::quality::FixedState,
    pub(crate) index: Index,
    pub(crate) slab: Slab<K, V>,
    /// By `List as usize - 1` and class.
    pub(crate) resident: [[MultiList; 2]; 3],
    /// By `GhostList::number`.
    pub(crate) ghosts: [Ghosts; 4],
    pub(crate) policy: Policy,
    pub(crate) ghost_hits: GhostHits,
    pub(crate) room: Room,
    pub(crate) owners: Owners,
    pub(crate) flights: Flights,
    pub(crate) tunables: CacheTunables,
    pub(crate) counters: CacheCounters,
    pub(crate) throttle_wait_ns: AtomicHistogram,
    pub(crate) weigher: Weigher<K, V>,
    pub(crate) callbacks: Option<Callbacks<K, V>>,
    pub(crate) second: Option<Arc<dyn SecondLevel<K, V>>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The hard bound, and what else counts against it.
    pub(crate) bound: Option<Bound>,
    pub(crate) mode: Reclaim,
    /// Held by whoever sets targets and looks after memory; counts the times that inserters did.
    pub(crate) reclaim: Mutex<u64>,
    /// One for each thread that evicts.
    pub(crate) scratches: Box<[CachePadded<Mutex<Scratch<K, V>>>]>,
    pub(crate) signal: Signal,
    pub(crate) closed: AtomicBool,
    /// Headers were freed while somebody waits for that.
    released: (Mutex<u64>, Condvar),
    closers: AtomicUsize,
    holds: AtomicUsize,
}

/// A bound on everything, blocks and overhead.
pub(crate) struct Bound {
    pub(crate) bytes: forebay_base::sync::atomic::AtomicU64,
    pub(crate) others: Option<Overhead>,
}

/// How inserters call the reclaimer.
pub(crate) struct Signal {
    pub(crate) wanted: AtomicBool,
    pub(crate) state: Mutex<SignalState>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct SignalState {
    pub(crate) stop: bool,
}

/// Parts that the builder chooses.
pub(crate) struct Parts<K: Key, V: Send + Sync + 'static> {
    pub(crate) target: u64,
    pub(crate) limit: u64,
    pub(crate) shards: usize,
    pub(crate) sublists: usize,
    pub(crate) seed: u64,
    pub(crate) tunables: CacheTunables,
    pub(crate) weigher: Weigher<K, V>,
    pub(crate) callbacks: Option<Callbacks<K, V>>,
    pub(crate) second: Option<Arc<dyn SecondLevel<K, V>>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bound: Option<Bound>,
    pub(crate) mode: Reclaim,
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    pub(crate) fn new(parts: Parts<K, V>) -> Result<Self, forebay_base::vm::Error> {
        let lists = || std::array::from_fn(|_| MultiList::new(parts.sublists));
        Ok(Self {
            hasher: foldhash::quality::FixedState::with_seed(parts.seed),
            index: Index::new(),
            slab: Slab::new(parts.shards)?,
            resident: [lists(), lists(), lists()],
            ghosts: std::array::from_fn(|_| Ghosts::new(parts.sublists)),
            policy: Policy::new(parts.target),
            ghost_hits: GhostHits::new(parts.shards),
            room: Room::new(parts.target, parts.limit, parts.shards),
            owners: Owners::new(),
            flights: Flights::new(),
            tunables: parts.tunables,
            counters: CacheCounters::default(),
            throttle_wait_ns: AtomicHistogram::default(),
            weigher: parts.weigher,
            callbacks: parts.callbacks,
            second: parts.second,
            clock: parts.clock,
            bound: parts.bound,
            mode: parts.mode,
            reclaim: Mutex::named("reclaim", 0),
            scratches: (0..parts.shards as u64)
                .map(|n| Scratch::new(SmallRng::from_seed(parts.seed.wrapping_add(n))))
                .map(|scratch| CachePadded::new(Mutex::named("evict-scratch", scratch)))
                .collect(),
            signal: Signal {
                wanted: AtomicBool::new(false),
                state: Mutex::named("reclaim-signal", SignalState::default()),
                changed: Condvar::new(),
            },
            closed: AtomicBool::new(false),
            released: (Mutex::named("released", 0), Condvar::new()),
            closers: AtomicUsize::new(0),
            holds: AtomicUsize::new(1),
        })
    }

    #[inline]
    pub(crate) fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn list(&self, list: List, class: Class) -> &MultiList {
        &self.resident[list as usize - 1][class as usize]
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let resident = |list: List| Class::ALL.map(|class| self.list(list, class).bytes());
        let ghosts = |frequent| {
            Class::ALL.map(|class| self.ghosts[GhostList { frequent, class }.number()].bytes())
        };
        Sizes {
            t1: resident(List::Mru),
            t2: resident(List::Mfu),
            once: resident(List::Once),
            b1: ghosts(false),
            b2: ghosts(true),
        }
    }

    /// The header at an address that a slot of the index has.
    #[inline]
    pub(crate) fn header_at(address: usize) -> NonNull<Header<K, V>> {
        let header = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: slots of residents are made from headers' addresses, which are not null.
        unsafe { NonNull::new_unchecked(header) }
    }

    pub(crate) fn slot_of(hash: u64, header: NonNull<Header<K, V>>) -> Slot {
        Slot::resident(hash, header.as_ptr().expose_provenance())
    }

    /// Pins the block of that key, if it is there: the lock-free hit. Returns the state before.
    #[inline]
    pub(crate) fn pin(
        &self,
        hash: u64,
        key: &K,
        mark: u64,
    ) -> Option<(NonNull<Header<K, V>>, State)> {
        self.index.find(hash, |address| {
            let header = Self::header_at(address);
            // SAFETY: headers are type-stable: never unmapped while the index that names them lives.
            let h = unsafe { header.as_ref() };
            match h.pin_valid(mark) {
                Pin::Pinned(before) => {
                    // SAFETY: pinned from a valid state.
                    if unsafe { h.key() } == key {
                        return Visit::Found((header, before));
                    }
                    // SAFETY: the pin taken above; the cache is borrowed.
                    unsafe { Self::unpin(NonNull::from(self), header) };
                    Visit::Missed(before.life())
                }
                Pin::Invalid(state) => Visit::Missed(state.life()),
            }
        })
    }

    #[inline]
    pub(crate) fn count_hit(&self, before: State) {
        // The four rows stand in the order of list numbers.
        let list = before.list().map_or(0, |list| list as usize);
        let row = CacheCounters::HITS_NEW.at(0) + list * 2 + before.class_index();
        self.counters.add_at(row, 1);
    }

    /// Whether a block may be cached, apart from room.
    pub(crate) fn refuse(&self, key: &K, class: Class, weight: u64) -> Option<Refusal> {
        if self.closed.load(Ordering::Acquire) {
            return Some(Refusal::Closed);
        }
        match self.owners.permit(key.owner(), class) {
            Permit::Yes => {}
            Permit::ByOwner => return Some(Refusal::ByOwner),
            Permit::Closed => return Some(Refusal::Closed),
        }
        let too_heavy = weight > self.room.target() || weight >= u64::from(u32::MAX);
        too_heavy.then_some(Refusal::TooHeavy)
    }

    pub(crate) fn count_refusal(&self, reason: Refusal, class: Class) {
        let row = match reason {
            Refusal::NoRoom => CacheCounters::REFUSED_NO_ROOM,
            Refusal::TooHeavy => CacheCounters::REFUSED_TOO_HEAVY,
            Refusal::ByOwner => CacheCounters::REFUSED_BY_OWNER,
            Refusal::Closed => CacheCounters::REFUSED_CLOSED,
            Refusal::NoMemory => CacheCounters::REFUSED_NO_MEMORY,
        };
        self.counters.add(row, class as usize, 1);
    }

    /// Puts a value in, over any other of that key.
    pub(crate) fn insert(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
    ) -> Result<(), Refused<V>> {
        let class = attributes.class;
        let hash = self.hash(&key);
        let weight = (self.weigher)(&key, &value).max(1);
        let refused = (self.refuse(&key, class, weight))
            .or_else(|| (!self.reserve(weight)).then_some(Refusal::NoRoom));
        if let Some(reason) = refused {
            return Err(self.turn_away(hash, &key, value, reason, class));
        }
        if let Some(second) = &self.second {
            return self.insert_over(&**second, hash, key, value, (weight as u32, attributes));
        }
        let Ok(header) = self.slab.take() else {
            self.room.release(weight);
            return Err(self.turn_away(hash, &key, value, Refusal::NoMemory, class));
        };
        // SAFETY: fresh from the slab, so this thread's alone.
        unsafe { header.as_ref().occupy(key, weight as u32, Some(value), class) };
        match self.link(hash, &key, header, class) {
            Ok(met) => {
                let frequent = self.note_met(hash, &met, weight);
                self.enter(header, hash, class, attributes.hint, frequent);
                Ok(())
            }
            Err(reason) => {
                // SAFETY: never announced, and occupied with a value above.
                let value = unsafe { header.as_ref().retract(true) };
                let value = value.expect("occupied with a value");
                self.slab.give(header);
                self.room.release(weight);
                Err(self.turn_away(hash, &key, value, reason, class))
            }
        }
    }

    pub(crate) fn turn_away(&self, hash: u64, key: &K, value: V, reason: Refusal, class: Class) -> Refused<V> {
        // What is cached of this key is outdated now.
        self.remove_everywhere(hash, key, Cause::Replaced);
        self.count_refusal(reason, class);
        Refused { reason, value }
    }

    /// Makes a header reachable in place of whatever was there.
    fn link(
        &self,
        hash: u64,
        key: &K,
        header: NonNull<Header<K, V>>,
        class: Class,
    ) -> Result<Met<K, V>, Refusal> {
        let slot = Self::slot_of(hash, header);
        let mut locked = self.index.lock(hash);
        // Asked again under the lock: a close that passes the barrier after this sees the header.
        if let Some(reason) = self.refuse(key, class, 0) {
            return Err(reason);
        }
        // SAFETY: headers in slots of a locked partition have keys that may be read.
        let same = |address| unsafe { Self::header_at(address).as_ref().key() == key };
        // SAFETY: the caller occupies the header.
        let h = unsafe { header.as_ref() };
        if let Some((place, address)) = locked.find_resident(same) {
            h.announce(VALID | FILLED);
            // First the slot, then the old header: a reader that finds the old one invalid looks at
            // the slot again.
            locked.replace(place, slot);
            let old = Self::header_at(address);
            // SAFETY: not freed before its slot was replaced; if retired already, its evictor or
            // remover finds the slot taken and does the rest.
            let before = unsafe { old.as_ref() }.retire(Cause::Replaced);
            return Ok(before.map_or(Met::Nothing, |before| Met::Resident(old, before)));
        }
        if let Some((place, list)) = locked.find_ghost() {
            h.announce(VALID | FILLED);
            locked.replace(place, slot);
            return Ok(Met::Ghost(GhostList::from_number(list)));
        }
        let full = locked.insert(slot, &|address| self.hash_of(address));
        full.map_err(|_| Refusal::NoMemory)?;
        h.announce(VALID | FILLED);
        Ok(Met::Nothing)
    }

    /// The hash of a resident's key, under its partition's lock.
    pub(crate) fn hash_of(&self, address: usize) -> u64 {
        // SAFETY: asked by the index for headers in slots of a locked partition.
        self.hash(unsafe { Self::header_at(address).as_ref().key() })
    }

    /// Draws the consequences of what a new header met in the index. True if it has proven reuse.
    pub(crate) fn note_met(&self, hash: u64, met: &Met<K, V>, weight: u64) -> bool {
        match *met {
            Met::Nothing => false,
            Met::Ghost(list) => {
                let row = if list.frequent {
                    CacheCounters::GHOST_HITS_MFU
                } else {
                    CacheCounters::GHOST_HITS_MRU
                };
                self.counters.add(row, list.class as usize, 1);
                self.ghost_hits.note(list, weight);
                true
            }
            Met::Resident(old, before) => {
                self.left(old, before, hash, Cause::Replaced);
                // SAFETY: the pin that `retire` took.
                unsafe { Self::unpin(NonNull::from(self), old) };
                before.list() == Some(List::Mfu) || before.has(MARK)
            }
        }
    }

    /// Puts a valid, pinned header into its list, and unpins it.
    fn enter(
        &self,
        header: NonNull<Header<K, V>>,
        hash: u64,
        class: Class,
        hint: Hint,
        frequent: bool,
    ) {
        let entered = self.enlist(header, hash, class, home_list(hint, frequent), |s| s.unpinned());
        if entered.is_none() {
            // SAFETY: the pin that the header was occupied with.
            unsafe { Self::unpin(NonNull::from(self), header) };
        }
    }

    /// Puts a pinned header into a list, in the same update as `change`. Returns the state before, or
    /// `None` if the header was retired meanwhile; then nothing is changed.
    pub(crate) fn enlist(
        &self,
        header: NonNull<Header<K, V>>,
        hash: u64,
        class: Class,
        list: List,
        change: impl Fn(State) -> State,
    ) -> Option<State> {
        // SAFETY: the caller holds a pin.
        let h = unsafe { header.as_ref() };
        // Read before the update, after which the header may be anybody's.
        let (id, weight) = (h.id(), h.weight());
        let sublist = self.list(list, class).of(hash);
        let mut ring = sublist.lock();
        let position = sublist.stamp(ring.next_position());
        let before = h.update(|s| (!s.has(RETIRED)).then(|| change(s.at(list, position))))?;
        ring.push(id);
        sublist.count_in(&ring, weight);
        drop(ring);
        self.counters.add(CacheCounters::INSERTS, class as usize, 1);
        Some(before)
    }

    /// Removes the block of that key. True if there was one.
    pub(crate) fn remove(&self, hash: u64, key: &K, cause: Cause) -> bool {
        let mut locked = self.index.lock(hash);
        // SAFETY: headers in slots of a locked partition have keys that may be read.
        let same = |address| unsafe { Self::header_at(address).as_ref().key() == key };
        let Some((place, address)) = locked.find_resident(same) else { return false };
        let header = Self::header_at(address);
        // SAFETY: not freed while its slot is there.
        let Some(before) = unsafe { header.as_ref() }.retire(cause) else { return false };
        locked.remove(place);
        drop(locked);
        self.left(header, before, hash, cause);
        // SAFETY: the pin that `retire` took.
        unsafe { Self::unpin(NonNull::from(self), header) };
        // A block that was still loading was not there yet.
        before.has(FILLED)
    }

    /// Takes a retired header's slot out of the index, if it is still there.
    pub(crate) fn unlink(&self, header: NonNull<Header<K, V>>, hash: u64) {
        let mut locked = self.index.lock(hash);
        let address = header.addr().get();
        if let Some((place, _)) = locked.find_resident(|a| a == address) {
            locked.remove(place);
        }
    }

    /// Counts a retired block out of its list.
    pub(crate) fn left(
        &self,
        header: NonNull<Header<K, V>>,
        before: State,
        hash: u64,
        cause: Cause,
    ) {
        let Some(list) = before.list() else { return };
        // SAFETY: the caller holds a pin.
        let weight = unsafe { header.as_ref() }.weight();
        self.list(list, before.class()).of(hash).count_out(u64::from(weight), 1);
        self.counters.add(CacheCounters::LEFT, cause as usize, 1);
    }

    /// Gives up a pin of a borrowed guard.
    ///
    /// # Safety
    /// The caller holds the pin, and something else keeps the cache alive during this call.
    #[inline]
    pub(crate) unsafe fn unpin(inner: NonNull<Self>, header: NonNull<Header<K, V>>) {
        // SAFETY: by contract.
        if unsafe { header.as_ref() }.unpin() {
            // SAFETY: by contract; the header is this thread's alone now.
            unsafe { inner.as_ref().free(header) };
        }
    }

    /// Gives up a pin that may outlive the `Cache`.
    ///
    /// # Safety
    /// The caller holds the pin.
    #[inline]
    pub(crate) unsafe fn unpin_owned(inner: NonNull<Self>, header: NonNull<Header<K, V>>) {
        // SAFETY: the pin keeps the header in use, and the cache alive (`hold`).
        if unsafe { header.as_ref() }.unpin_unless_retired().is_some() {
            return;
        }
        // SAFETY: the pin still keeps the cache alive; from here the hold does.
        unsafe {
            inner.as_ref().hold();
            Self::unpin(inner, header);
            Self::release(inner);
        }
    }

    /// Frees a header whose last pin has gone: drops the value and gives room and header back.
    ///
    /// # Safety
    /// The caller owns the header alone (rule 3 of `header.rs`) and keeps the cache alive.
    pub(crate) unsafe fn free(&self, header: NonNull<Header<K, V>>) {
        // SAFETY: by contract.
        let state = unsafe { self.finish(header, |weight| self.room.release(weight)) };
        if let Some(state) = state {
            self.slab.give(header);
            self.freed_one(state);
        }
    }

    /// Disposes of what a header holds, and makes it free: the caller gives it back then, and calls
    /// [`freed_one`](Self::freed_one). `None` if a sweep looks at it at this moment, and so will free it.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    pub(crate) unsafe fn finish(
        &self,
        header: NonNull<Header<K, V>>,
        release: impl FnOnce(u64),
    ) -> Option<State> {
        // SAFETY: by contract; a retired header's slot is gone before its retiring pin.
        let h = unsafe { header.as_ref() };
        // SAFETY: as above.
        if let Some(contents) = unsafe { h.empty() } {
            self.dispose(contents, release);
            if !h.unpin() {
                return None;
            }
        }
        // SAFETY: as above; it holds nothing any more.
        Some(unsafe { h.vacate() })
    }

    /// As [`finish`](Self::finish), for a victim of the evictor: retired without other pins and for
    /// [`Cause::Capacity`], it can have got none since.
    ///
    /// # Safety
    /// The caller has retired it so, and taken it out of the index.
    pub(crate) unsafe fn finish_victim(
        &self,
        header: NonNull<Header<K, V>>,
        release: impl FnOnce(u64),
    ) -> State {
        // SAFETY: by contract, this thread owns it alone.
        let h = unsafe { header.as_ref() };
        // The header stays retired while its value is dropped, so that a close waits for that.
        // SAFETY: as above.
        self.dispose(unsafe { h.contents() }, release);
        // SAFETY: as above.
        unsafe { h.vacate() }
    }

    /// Hands a value to the user's callback, or drops it and gives its room back.
    fn dispose(&self, contents: Contents<K, V>, release: impl FnOnce(u64)) {
        let Contents { state, key, value, weight } = contents;
        let (cause, weight) = (state.cause(), u64::from(weight));
        match (&self.callbacks, value) {
            (Some(callbacks), Some(value)) if cause != Cause::Uncached => {
                let event = Evicted { key, value, class: state.class(), cause, weight };
                let most = self.tunables.callback_queue() as usize;
                if let Err(event) = callbacks.push(event, most, self.room.target() / 8) {
                    self.counters.add(CacheCounters::CALLBACKS_DROPPED, 0, 1);
                    self.drop_value(event);
                    release(weight);
                }
            }
            (_, value) => {
                self.drop_value(value);
                if weight > 0 {
                    release(weight);
                }
            }
        }
    }

    /// Drops what is the user's. A panic in that must not end the evictor, nor lose room: it is caught
    /// and counted.
    fn drop_value<T>(&self, value: T) {
        if std::mem::needs_drop::<T>() && catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Tells those who wait for it that a header is free.
    pub(crate) fn freed_one(&self, state: State) {
        if self.closers.load(Ordering::SeqCst) > 0 {
            *self.released.0.lock() += 1;
            self.released.1.notify_all();
        }
        if state.is_orphaned() {
            // SAFETY: the hold that `orphan` took for this header; the caller has its own.
            unsafe { Self::release(NonNull::from(self)) };
        }
    }

    /// Room for a block; waits for it, within bounds, if there is none.
    pub(crate) fn reserve(&self, weight: u64) -> bool {
        match self.try_reserve(weight) {
            true => true,
            false => self.reserve_slow(weight),
        }
    }

    /// Room for a block, without waiting.
    pub(crate) fn try_reserve(&self, weight: u64) -> bool {
        match self.room.reserve(weight) {
            Reserved::Yes => true,
            Reserved::YesAndReclaim => {
                self.want_reclaim();
                true
            }
            Reserved::No => false,
        }
    }

    /// There is more than the target: evict, or have the reclaimer do it.
    pub(crate) fn want_reclaim(&self) {
        match self.mode {
            Reclaim::Inline => {
                self.reclaim_directly(0);
            }
            Reclaim::Thread => self.wake_reclaimer(),
        }
    }

    pub(crate) fn wake_reclaimer(&self) {
        let wanted = &self.signal.wanted;
        if !wanted.load(Ordering::Relaxed) && !wanted.swap(true, Ordering::AcqRel) {
            drop(self.signal.state.lock());
            self.signal.changed.notify_one();
        }
    }

    /// Past the limit: evicts, and waits if that does not help, behind all who wait already.
    #[cold]
    pub(crate) fn reserve_slow(&self, weight: u64) -> bool {
        self.counters.add(CacheCounters::OVERFLOWS, 0, 1);
        loop {
            let went = self.reclaim_directly(weight);
            if self.room.reserve(weight) != Reserved::No {
                return true;
            }
            if self.mode == Reclaim::Thread {
                break;
            }
            // What waits for the user's callback has kept its room; once that queue is full, what
            // follows gives its room back at once.
            if !went || self.callbacks.is_none() {
                return false;
            }
        }
        let start = self.clock.now_ns();
        let ticket = self.queue_for_room(weight);
        let wait = Duration::from_millis(u64::from(self.tunables.overflow_wait_ms()));
        let granted = self.room.wait(&ticket, wait);
        self.throttle_wait_ns.record(self.clock.now_ns().saturating_sub(start));
        if !granted {
            self.counters.add(CacheCounters::THROTTLE_TIMEOUTS, 0, 1);
        }
        granted
    }

    /// A place in the queue for room, with the reclaimer on its way.
    pub(crate) fn queue_for_room(&self, weight: u64) -> Arc<Ticket> {
        self.counters.add(CacheCounters::THROTTLE_WAITS, 0, 1);
        let wait_ns = u64::from(self.tunables.overflow_wait_ms()) * 1_000_000;
        let ticket = self.room.queue_up(weight, self.clock.now_ns() + wait_ns);
        // Room may have come free before the ticket was in the queue.
        self.room.grant();
        self.wake_reclaimer();
        ticket
    }

    /// Retires every block that `wanted` says yes to. Returns how many, and how many that it said yes to
    /// are still in use by somebody.
    pub(crate) fn sweep(&self, cause: Cause, wanted: impl Fn(&K, Class) -> bool) -> (u64, u64) {
        self.sweep_noting(cause, wanted, |_, _| {})
    }

    /// As [`sweep`](Self::sweep); `leaving` is called with those whose last pin has gone, or that an
    /// evictor is ending: they cannot be asked whose they are any more.
    fn sweep_noting(
        &self,
        cause: Cause,
        wanted: impl Fn(&K, Class) -> bool,
        mut leaving: impl FnMut(NonNull<Header<K, V>>, State),
    ) -> (u64, u64) {
        let (mut gone, mut in_use) = (0, 0);
        self.slab.for_each(|header| {
            // SAFETY: headers are type-stable.
            let h = unsafe { header.as_ref() };
            let Some(before) = h.pin_in_use() else {
                let state = h.state();
                if state.has(RETIRED) {
                    leaving(header, state);
                }
                return;
            };
            // Given up by its drop, even if `wanted`, which is the user's, panics.
            let _pin = LoadingPin { header, inner: NonNull::from(self) };
            // SAFETY: pinned, so that the key stays; it was written before the header was in use.
            let key = unsafe { *h.key() };
            if wanted(&key, before.class()) {
                let hash = self.hash(&key);
                if let Some(before) = h.retire(cause) {
                    self.unlink(header, hash);
                    self.left(header, before, hash, cause);
                    // SAFETY: the pin that `retire` took; this function holds another.
                    unsafe { Self::unpin(NonNull::from(self), header) };
                    gone += u64::from(before.has(FILLED));
                }
                in_use += u64::from(h.state().pins() > 1);
            }
        });
        (gone, in_use)
    }

    /// Sweeps until nothing that `wanted` says yes to is in use any more.
    pub(crate) fn sweep_and_wait(&self, cause: Cause, wanted: impl Fn(&K, Class) -> bool) {
        self.closers.fetch_add(1, Ordering::SeqCst);
        // No insert that began before is left half-way.
        self.index.barrier();
        loop {
            let seen = *self.released.0.lock();
            fence(Ordering::SeqCst);
            let mut leaving = Vec::new();
            let note = |header, state: State| leaving.push((header, state.life()));
            let (_, in_use) = self.sweep_noting(cause, &wanted, note);
            if in_use == 0 {
                // Those that the sweep met, not those that others evict meanwhile: it ends.
                leaving.into_iter().for_each(|(header, life)| self.wait_for_end(header, life));
                break;
            }
            self.wait_for_release(seen);
        }
        self.closers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until a retired header is free.
    fn wait_for_end(&self, header: NonNull<Header<K, V>>, life: u64) {
        loop {
            let seen = *self.released.0.lock();
            fence(Ordering::SeqCst);
            // SAFETY: headers are type-stable.
            if unsafe { header.as_ref() }.state().life() != life {
                return;
            }
            self.wait_for_release(seen);
        }
    }

    /// Waits until more than `seen` headers have been freed.
    fn wait_for_release(&self, seen: u64) {
        let mut released = self.released.0.lock();
        if *released == seen {
            // The time bounds only the cost of a wake-up that a sweep's own pins swallowed.
            self.released.1.wait_timeout(&mut released, Duration::from_millis(10));
        }
    }

    /// Keeps `self` alive until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a hold; the last one frees the cache.
    ///
    /// # Safety
    /// The caller has a hold, and does not use `inner` afterwards.
    pub(crate) unsafe fn release(inner: NonNull<Self>) {
        // SAFETY: the hold keeps it alive.
        if unsafe { inner.as_ref() }.holds.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: made by `Box::leak` in the builder, and nobody holds it any more.
            drop(unsafe { Box::from_raw(inner.as_ptr()) });
        }
    }

    /// Turns the pins that outlive the `Cache` into holds.
    pub(crate) fn orphan_the_pinned(&self) {
        self.slab.for_each(|header| {
            self.hold();
            // Victims are their evictor's alone, which holds something else of the cache.
            let outlives =
                |s: State| s.has(RETIRED) && s.pins() > 0 && s.cause() != Cause::Capacity;
            // SAFETY: headers are type-stable.
            let orphaned =
                unsafe { header.as_ref() }.update(|s| outlives(s).then(|| s.orphaned()));
            if orphaned.is_none() {
                // SAFETY: the hold taken above; the caller has its own.
                unsafe { Self::release(NonNull::from(self)) };
            }
        });
    }
}

/// What a new header met in the index.
pub(crate) enum Met<K, V> {
    Nothing,
    Ghost(GhostList),
    /// An older value, retired with a pin for the finder.
    Resident(NonNull<Header<K, V>>, State),
}

/// The list in which a block begins.
pub(crate) fn home_list(hint: Hint, frequent: bool) -> List {
    match (hint, frequent) {
        (_, true) => List::Mfu,
        (Hint::Normal, false) => List::Mru,
        (Hint::Once, false) => List::Once,
    }
}
