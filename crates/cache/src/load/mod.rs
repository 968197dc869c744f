//! Loading: how a request finds a block, joins its load, or becomes its loader.
//!
//! The order of one attempt (`CacheInner::begin`):
//!
//! 1. Look the block up. A hit ends the attempt.
//! 2. Reserve capacity for the declared weight. Without capacity, the caller waits and tries again.
//! 3. Install a header in state loading, under the partition's lock. If the key has a valid or
//!    loading header by now, take that one instead.
//! 4. Offer the load to the secondary cache, unless it is bypassed (`begin`). It keeps the guard or
//!    hands it back.
//!
//! Invariants
//!
//! * A key has at most one loading header in the index, so at most one load is in flight.
//! * A block whose capacity could not be reserved is loaded and handed out uncached.
//! * A reservation is returned on every path that does not install the header.
//!
//! Locking: `index-partition` for step 3, then `in-flight-loads` to join; never both.

mod begin;
pub(crate) mod error;
pub(crate) mod load_guard;
pub(crate) mod mean_weight;
pub(crate) mod own;
pub(crate) mod single_flight;

use std::ptr::NonNull;

use forebay_base::probe;

use crate::attributes::{Attributes, Cause, Class};
use crate::counters::CacheCounters;
use crate::error::Refusal;
use crate::guard::Ref;
use crate::header::{FILLED, Header, HeaderState, LOADING, MARK, RETIRED, SAMPLED, VALID, WAITERS};
use crate::index::{Known, Locked, SlotRef};
use crate::inner::CacheInner;
use crate::insert::PreviousEntry;
use crate::key::Key;
use crate::key_calls::{is_key, undone};
use crate::load::error::LoadError;
use crate::load::load_guard::{Begin, InFlight, LoadGuard, LoadingPin, Present};
use crate::load::single_flight::LoadOutcome;

/// The answer of the index under the partition's lock.
enum Claim<K, V> {
    /// The caller's header was installed, loading.
    Mine(PreviousEntry<K, V>),
    /// The block is cached by now. It is pinned.
    Hit(NonNull<Header<K, V>>, HeaderState),
    /// Another thread is loading the block. Its header is pinned.
    Loading(NonNull<Header<K, V>>),
    /// The owner or the cache is closed.
    Closed,
    /// The index has no memory.
    Full(String),
}

/// What the caller of `begin` wants to do if the block is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// To load it, or have the secondary cache load it.
    Load,
    LoadWithoutSecondary,
    /// To insert new content. That is no miss.
    Insert,
}

/// The result of one attempt.
pub(crate) enum Step<'a, K: Key, V: Send + Sync + 'static> {
    Ready(Begin<'a, K, V>),
    /// There is no capacity. Wait for some and try again with the outcome.
    NoCapacity,
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// One attempt at `begin`.
    ///
    /// `reservation` is the outcome of a wait for capacity, if the caller has waited.
    pub(crate) fn begin(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        mut reservation: Option<bool>,
        intent: Intent,
    ) -> Result<Step<'_, K, V>, LoadError> {
        let weight = self.with_structures(weight);
        let give_back = |reserved| self.return_reservation(reserved, weight);
        let hash = undone(|| give_back(reservation), || self.hash(&key));
        let attributes = self.policy_attributes(attributes);
        let class = attributes.class;
        loop {
            let pin = || self.pin(hash, &key, MARK);
            if let Some((header, before)) = undone(|| give_back(reservation), pin) {
                give_back(reservation);
                return Ok(Step::Ready(self.hit(header, before).into()));
            }
            let refusal = self.refuse(&key, class, weight);
            if refusal == Some(Refusal::Closed) {
                give_back(reservation);
                return Err(LoadError::Closed);
            }
            if refusal.is_none() && reservation.is_none() {
                if self.try_reserve(weight) {
                    reservation = Some(true);
                } else if let Some(found) = self.pin_present(hash, &key) {
                    match self.settle(found)? {
                        Some(present) => return Ok(Step::Ready(present.into())),
                        None => continue,
                    }
                } else {
                    return Ok(Step::NoCapacity);
                }
            }
            let reserved_it = refusal.is_none() && reservation == Some(true);
            if refusal.is_some() {
                self.return_reservation(reservation.take(), weight);
            }
            let refusal = refusal.or((!reserved_it).then_some(Refusal::NoCapacity));
            let mine = self.slab.take().inspect_err(|_| give_back(reservation));
            let mine = mine.map_err(|e| LoadError::NoMemory(e.to_string()))?;
            let reserved = if reserved_it { weight as u32 } else { 0 };
            // SAFETY: fresh from the slab, so this thread's alone.
            unsafe { mine.as_ref().occupy(key, reserved, None, self.sampled(hash, attributes)) };
            let claim = self.claim(hash, &key, mine, class);
            if let Claim::Mine(previous) = claim {
                let is_miss = intent != Intent::Insert;
                let frequent = self.note_previous(&previous, hash, mine, attributes, is_miss);
                if is_miss {
                    self.note_miss(hash, &key, attributes, weight, intent);
                }
                let begun_ns = if is_miss { self.load_begins(mine) } else { None };
                let guard = LoadGuard {
                    header: mine,
                    inner: NonNull::from(self),
                    hash,
                    attributes,
                    frequent,
                    refusal,
                    begun_ns,
                    supersedes: intent != Intent::Load,
                };
                return Ok(Step::Ready(match intent {
                    Intent::Load => self.offer_load(guard),
                    Intent::LoadWithoutSecondary | Intent::Insert => Begin::Vacant(guard),
                }));
            }
            // SAFETY: not announced, and occupied without a value.
            unsafe { mine.as_ref().retract(false) };
            self.slab.give(mine);
            let settled = self.settle(claim);
            if !matches!(settled, Ok(None)) {
                self.return_reservation(reservation, weight);
            }
            if let Some(present) = settled? {
                return Ok(Step::Ready(present.into()));
            }
        }
    }

    /// Counts and records a miss.
    fn note_miss(&self, hash: u64, key: &K, attributes: Attributes, weight: u64, intent: Intent) {
        let asks_secondary = intent == Intent::Load;
        self.record_miss(hash, self.owner_of(key), attributes, weight as u32, asks_secondary);
        self.counters.add(CacheCounters::MISSES, attributes.class as usize, 1);
        probe!(miss, std::ptr::from_ref(key), attributes.class as u32, weight);
    }

    /// Finds a block or its load in flight. Changes nothing if there is neither.
    pub(crate) fn get_or_join(&self, key: &K) -> Option<Present<'_, K, V>> {
        let hash = self.hash(key);
        if let Some((header, before)) = self.pin(hash, key, MARK) {
            return Some(self.hit(header, before));
        }
        loop {
            // A load that fails leaves the index before it ends, so it is found once at most.
            let found = self.pin_present(hash, key)?;
            if let Some(present) = self.settle(found).ok()? {
                return Some(present);
            }
        }
    }

    fn hit(&self, header: NonNull<Header<K, V>>, before: HeaderState) -> Present<'_, K, V> {
        self.count_hit(header, before);
        // SAFETY: pinned by the caller, from a state that was valid or is filled.
        Present::Hit(unsafe { Ref::from_pin(self, header) })
    }

    /// Installs `mine` in the index, unless the block is cached or being loaded.
    fn claim(&self, hash: u64, key: &K, mine: NonNull<Header<K, V>>, class: Class) -> Claim<K, V> {
        let mut locked = self.index.lock(hash);
        // Checked again under the lock: a close that passes the barrier later sees the header.
        if self.refuse(key, class, 0) == Some(Refusal::Closed) {
            return Claim::Closed;
        }
        let known = Self::find_known(&locked, key);
        if let Known::Resident(_, address) = known
            && let Some(found) = self.pin_found(Self::header_at(address))
        {
            return found;
        }
        // The key may have a retired header. The thread that retired it finds the slot taken.
        let put = self.put(&mut locked, known, (hash, mine), LOADING, Cause::Replaced);
        put.map_or_else(|full| Claim::Full(full.to_string()), Claim::Mine)
    }

    /// Pins the block, or its load, if there is one.
    fn pin_present(&self, hash: u64, key: &K) -> Option<Claim<K, V>> {
        let locked = self.index.lock(hash);
        let (_, address) = Self::find_key(&locked, key)?;
        self.pin_found(Self::header_at(address))
    }

    pub(crate) fn find_key(locked: &Locked<'_>, key: &K) -> Option<(SlotRef, usize)> {
        // SAFETY: headers in slots of a locked partition have keys that may be read.
        locked.find_resident(|at| is_key(unsafe { Self::header_at(at).as_ref().key() }, key))
    }

    /// Makes sure that a load in flight will not be cached. Its waiters still get its block. False
    /// if there is none.
    pub(crate) fn cancel_load(&self, key: &K) -> bool {
        let mut locked = self.index.lock(self.hash(key));
        let Some((slot_ref, address)) = Self::find_key(&locked, key) else { return false };
        let header = Self::header_at(address);
        let is_loading = |s: HeaderState| s.has(LOADING) && !s.has(RETIRED);
        let cancel = |s: HeaderState| is_loading(s).then(|| s.retired(Cause::Removed));
        // SAFETY: not freed while its slot is there.
        if unsafe { header.as_ref() }.update(cancel).is_none() {
            return false;
        }
        locked.remove(slot_ref);
        // SAFETY: the pin that `retired` took.
        unsafe { header.as_ref() }.note_unlinked();
        drop(locked);
        // SAFETY: the pin that `retired` took, given up here; `self` is borrowed.
        unsafe { Self::unpin(NonNull::from(self), header) };
        true
    }

    /// Pins a header found under its partition's lock, unless it is retired.
    fn pin_found(&self, header: NonNull<Header<K, V>>) -> Option<Claim<K, V>> {
        // SAFETY: headers are type-stable, and this one is not freed while its slot is there.
        let h = unsafe { header.as_ref() };
        let usable = |s: HeaderState| !s.has(RETIRED) && (s.has(VALID) || s.has(LOADING));
        let mark = |s: HeaderState| if s.has(VALID) { s.with(MARK) } else { s };
        let before = self.pin_if(h, |s| usable(s).then(|| mark(s)))?;
        Some(if before.has(VALID) { Claim::Hit(header, before) } else { Claim::Loading(header) })
    }

    /// Converts a claim to an answer; `None` if the load that was found has failed meanwhile.
    fn settle(&self, claim: Claim<K, V>) -> Result<Option<Present<'_, K, V>>, LoadError> {
        match claim {
            Claim::Hit(header, before) => Ok(Some(self.hit(header, before))),
            Claim::Loading(header) => {
                Ok(self.join(LoadingPin { header, inner: NonNull::from(self) }))
            }
            Claim::Closed => Err(LoadError::Closed),
            Claim::Full(why) => Err(LoadError::NoMemory(why)),
            Claim::Mine(_) => unreachable!("its caller has a load guard"),
        }
    }

    /// Waits for the load of a pinned header, or returns its block if the load has succeeded
    /// already.
    fn join(&self, pin: LoadingPin<K, V>) -> Option<Present<'_, K, V>> {
        // SAFETY: pinned.
        let h = unsafe { pin.header.as_ref() };
        let loading = || h.update(|s| s.has(LOADING).then(|| s.with(WAITERS))).is_some();
        if let Some(waiter) = self.in_flight.join(pin.header.addr().get(), loading) {
            self.counters.add(CacheCounters::IN_FLIGHT_JOINS, h.state().class_index(), 1);
            return Some(Present::InFlight(InFlight::new(pin, waiter)));
        }
        let state = h.state();
        if !state.has(FILLED) {
            return None;
        }
        let header = pin.header;
        std::mem::forget(pin);
        Some(self.hit(header, state))
    }

    /// Offers the load to the secondary cache, which takes it if it has the block.
    fn offer_load(&self, guard: LoadGuard<K, V>) -> Begin<'_, K, V> {
        let Some(secondary) = self.active_secondary() else { return Begin::Vacant(guard) };
        let header = guard.header;
        let class = guard.attributes.class;
        // SAFETY: the guard holds a pin.
        unsafe { self.pin_again(header) };
        let pin = LoadingPin { header, inner: guard.inner };
        // Join before the guard goes: the load may end before `load` returns. If the guard comes
        // back, the wait is dropped.
        let loading = || {
            // SAFETY: pinned above.
            let h = unsafe { header.as_ref() };
            h.update(|s| Some(s.with(WAITERS))).is_some()
        };
        let waiter = self.in_flight.join(header.addr().get(), loading);
        let in_flight = InFlight::new(pin, waiter.expect("a guard's load is in flight"));
        match secondary.load(guard) {
            Ok(()) => {
                self.counters.add(CacheCounters::SECONDARY_HITS, class as usize, 1);
                Begin::InFlight(in_flight)
            }
            Err(guard) => {
                let same = (guard.header, guard.inner) == (header, NonNull::from(self));
                assert!(same, "the secondary cache returned the guard of another load");
                self.record_not_in_secondary(secondary, guard.hash, guard.key(), class);
                Begin::Vacant(guard)
            }
        }
    }

    /// The time, if the load of a block is timed: if the block is sampled.
    fn load_begins(&self, header: NonNull<Header<K, V>>) -> Option<u64> {
        // SAFETY: the caller holds a pin.
        let timed = cfg!(feature = "insight") && unsafe { header.as_ref() }.state().has(SAMPLED);
        timed.then(|| self.clock.now_ns())
    }

    /// Counts the time of a load that is published.
    pub(crate) fn load_ends(&self, begun_ns: Option<u64>) {
        if let Some(begun_ns) = begun_ns {
            let ns = self.clock.now_ns().saturating_sub(begun_ns);
            self.counters.add(CacheCounters::TIMED_LOADS, 0, 1);
            self.counters.add(CacheCounters::TIMED_LOAD_NS, 0, ns);
        }
    }

    /// Tells all waiters of a header how its load ended. The caller holds a pin.
    pub(crate) fn complete_load(&self, header: NonNull<Header<K, V>>, outcome: &LoadOutcome) {
        let panicked = self.in_flight.complete(header.addr().get(), outcome);
        self.counters.add(CacheCounters::PANICS_CAUGHT, 0, panicked);
    }
}
