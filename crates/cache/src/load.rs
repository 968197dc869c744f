//! Beginning a load: finding the block, joining its load, or becoming its loader.

use std::future::Future;
use std::pin::Pin as StdPin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use forebay_base::sync::Arc;

use crate::attributes::{Attributes, Cause, Class};
use crate::counters::CacheCounters;
use crate::error::{LoadError, Refusal};
use crate::filler::{Begin, Filler, InFlight, LoadingPin};
use crate::flight::Ending;
use crate::guard::Ref;
use crate::header::{FILLED, Header, LOADING, MARK, RETIRED, State, VALID, WAITERS};
use crate::index::{Known, Locked, Place};
use crate::inner::{Inner, Reclaim};
use crate::insert::Met;
use crate::key::Key;
use crate::room::{Reserved, Ticket};

/// What a request found under the partition's lock.
enum Claim<K, V> {
    /// The caller's header is in the index now, loading.
    Mine(Met<K, V>),
    /// Pinned: the block is here after all.
    Hit(NonNull<Header<K, V>>, State),
    /// Pinned: somebody is loading it.
    Loading(NonNull<Header<K, V>>),
    /// The owner or the cache is closed.
    Closed,
    /// No memory for the index.
    Full(String),
}

/// How far a request has come.
pub(crate) enum Step<'a, K: Key, V: Send + Sync + 'static> {
    Ready(Begin<'a, K, V>),
    /// There is no room for the block; wait for some, and ask again with the outcome.
    NoRoom,
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// One attempt at `begin`. `room` is the outcome of having waited for room, if the caller has; `asks` says whether
    /// the second level may take the load over.
    pub(crate) fn begin(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        mut room: Option<bool>,
        asks: bool,
    ) -> Result<Step<'_, K, V>, LoadError> {
        let hash = self.hash(&key);
        let weight = weight.max(1);
        let attributes = self.as_policy_sees(attributes);
        let class = attributes.class;
        loop {
            if let Some((header, before)) = self.pin(hash, &key, MARK) {
                self.give_room_back(room, weight);
                return Ok(Step::Ready(self.hit(header, before)));
            }
            let refusal = match self.refuse(&key, class, weight) {
                Some(Refusal::Closed) => {
                    self.give_room_back(room, weight);
                    return Err(LoadError::Closed);
                }
                refusal => refusal,
            };
            if refusal.is_none() && room.is_none() {
                if self.try_reserve(weight) {
                    room = Some(true);
                } else if let Some(found) = self.look(hash, &key) {
                    match self.settle(found)? {
                        Some(begin) => return Ok(Step::Ready(begin)),
                        None => continue,
                    }
                } else {
                    return Ok(Step::NoRoom);
                }
            }
            let has_room = refusal.is_none() && room == Some(true);
            if refusal.is_some() {
                self.give_room_back(room.take(), weight);
            }
            let refusal = refusal.or((!has_room).then_some(Refusal::NoRoom));
            let mine = self.slab.take().inspect_err(|_| self.give_room_back(room, weight));
            let mine = mine.map_err(|e| LoadError::NoMemory(e.to_string()))?;
            let reserved = if has_room { weight as u32 } else { 0 };
            // SAFETY: fresh from the slab, so this thread's alone.
            unsafe { mine.as_ref().occupy(key, reserved, None, self.sampled(hash, attributes)) };
            let claim = self.claim(hash, &key, mine, class);
            if let Claim::Mine(met) = claim {
                let frequent = self.note_met(&met, hash, mine, attributes);
                self.counters.add(CacheCounters::MISSES, class as usize, 1);
                let inner = NonNull::from(self);
                let filler = Filler { header: mine, inner, hash, attributes, frequent, refusal };
                let begin = if asks { self.ask_second(filler) } else { Begin::Vacant(filler) };
                return Ok(Step::Ready(begin));
            }
            // SAFETY: not announced, and occupied without a value.
            unsafe { mine.as_ref().retract(false) };
            self.slab.give(mine);
            let settled = self.settle(claim);
            if !matches!(settled, Ok(None)) {
                self.give_room_back(room, weight);
            }
            if let Some(begin) = settled? {
                return Ok(Step::Ready(begin));
            }
        }
    }

    fn give_room_back(&self, room: Option<bool>, weight: u64) {
        if room == Some(true) {
            self.room.release(weight);
        }
    }

    fn hit(&self, header: NonNull<Header<K, V>>, before: State) -> Begin<'_, K, V> {
        self.count_hit(header, before);
        // SAFETY: pinned by the caller, from a state that was valid or is filled.
        Begin::Hit(unsafe { Ref::from_pin(self, header) })
    }

    /// Puts `mine` into the index, unless the block is there or being loaded.
    fn claim(&self, hash: u64, key: &K, mine: NonNull<Header<K, V>>, class: Class) -> Claim<K, V> {
        let mut locked = self.index.lock(hash);
        // Asked again under the lock: a close that passes the barrier after this sees the header.
        if self.refuse(key, class, 0) == Some(Refusal::Closed) {
            return Claim::Closed;
        }
        let known = Self::find_known(&locked, key);
        if let Known::Resident(_, address) = known
            && let Some(found) = self.pin_found(Self::header_at(address))
        {
            return found;
        }
        // One that is on its way out: whoever retired it finds the slot taken.
        let put = self.put(&mut locked, known, (hash, mine), LOADING, Cause::Replaced);
        put.map_or_else(|full| Claim::Full(full.to_string()), Claim::Mine)
    }

    /// The block, or its load, if there is either.
    fn look(&self, hash: u64, key: &K) -> Option<Claim<K, V>> {
        let locked = self.index.lock(hash);
        let (_, address) = Self::find_key(&locked, key)?;
        self.pin_found(Self::header_at(address))
    }

    pub(crate) fn find_key(locked: &Locked<'_>, key: &K) -> Option<(Place, usize)> {
        // SAFETY: headers in slots of a locked partition have keys that may be read.
        locked.find_resident(|address| unsafe { Self::header_at(address).as_ref().key() == key })
    }

    /// Pins a header that was found under its partition's lock, unless it is retired.
    fn pin_found(&self, header: NonNull<Header<K, V>>) -> Option<Claim<K, V>> {
        // SAFETY: headers are type-stable, and this one is not freed while its slot is there.
        let h = unsafe { header.as_ref() };
        let usable = |s: State| !s.has(RETIRED) && (s.has(VALID) || s.has(LOADING));
        let mark = |s: State| if s.has(VALID) { s.with(MARK) } else { s };
        let before = self.pin_if(h, |s| usable(s).then(|| mark(s)))?;
        Some(if before.has(VALID) { Claim::Hit(header, before) } else { Claim::Loading(header) })
    }

    /// Turns what was found into an answer; `None` if the load that was found has failed meanwhile.
    fn settle(&self, claim: Claim<K, V>) -> Result<Option<Begin<'_, K, V>>, LoadError> {
        match claim {
            Claim::Hit(header, before) => Ok(Some(self.hit(header, before))),
            Claim::Loading(header) => {
                Ok(self.join(LoadingPin { header, inner: NonNull::from(self) }))
            }
            Claim::Closed => Err(LoadError::Closed),
            Claim::Full(why) => Err(LoadError::NoMemory(why)),
            Claim::Mine(_) => unreachable!("its caller has a filler"),
        }
    }

    /// Waits for the load of a pinned header, or takes its block if it has ended well.
    fn join(&self, pin: LoadingPin<K, V>) -> Option<Begin<'_, K, V>> {
        // SAFETY: pinned.
        let h = unsafe { pin.header.as_ref() };
        let loading = || h.update(|s| s.has(LOADING).then(|| s.with(WAITERS))).is_some();
        if let Some(seat) = self.flights.join(pin.header.addr().get(), loading) {
            self.counters.add(CacheCounters::IN_FLIGHT_JOINS, h.state().class_index(), 1);
            return Some(Begin::InFlight(InFlight::new(pin, seat)));
        }
        let state = h.state();
        if !state.has(FILLED) {
            return None;
        }
        let header = pin.header;
        std::mem::forget(pin);
        Some(self.hit(header, state))
    }

    /// Lets the second level load the block, if it has it.
    fn ask_second(&self, filler: Filler<K, V>) -> Begin<'_, K, V> {
        let Some(second) = self.active_second() else { return Begin::Vacant(filler) };
        let header = filler.header;
        let class = filler.attributes.class as usize;
        // SAFETY: the filler holds a pin.
        unsafe { self.pin_again(header) };
        let pin = LoadingPin { header, inner: filler.inner };
        // The seat is taken before the filler goes: the load may end before `load` returns. If the filler
        // comes back, the wait is given up.
        let loading = || {
            // SAFETY: pinned above.
            let h = unsafe { header.as_ref() };
            h.update(|s| Some(s.with(WAITERS))).is_some()
        };
        let seat = self.flights.join(header.addr().get(), loading);
        let flight = InFlight::new(pin, seat.expect("a filler's load is in flight"));
        match second.load(filler) {
            Ok(()) => {
                self.counters.add(CacheCounters::SECOND_HITS, class, 1);
                Begin::InFlight(flight)
            }
            Err(filler) => {
                let same = (filler.header, filler.inner) == (header, NonNull::from(self));
                assert!(same, "the second level has handed back the filler of another load");
                Begin::Vacant(filler)
            }
        }
    }

    /// Tells all who wait for a header how its load ended. The caller holds a pin.
    pub(crate) fn land(&self, header: NonNull<Header<K, V>>, ending: &Ending) {
        let panicked = self.flights.land(header.addr().get(), ending);
        self.counters.add(CacheCounters::PANICS_CAUGHT, 0, panicked);
    }

    /// Makes a reservation fit a block's true weight. Says why if that cannot be.
    pub(crate) fn adjust(&self, reserved: u64, weight: u64) -> Option<Refusal> {
        if weight > self.room.target() || weight >= u64::from(u32::MAX) {
            return Some(Refusal::TooHeavy);
        }
        if weight > reserved {
            let more = weight - reserved;
            // A filler must not block its thread; evicting on it is what `Inline` means.
            let inline = self.mode == Reclaim::Inline;
            if !(self.try_reserve(more) || inline && self.reserve_slow(more)) {
                return Some(Refusal::NoRoom);
            }
        }
        if weight < reserved {
            self.room.release(reserved - weight);
        }
        None
    }
}

/// Waits for room without blocking a thread.
pub(crate) struct RoomFuture<'a, K: Key, V: Send + Sync + 'static> {
    inner: &'a Inner<K, V>,
    weight: u64,
    ticket: Option<Arc<Ticket>>,
}

impl<'a, K: Key, V: Send + Sync + 'static> RoomFuture<'a, K, V> {
    /// The outcome at once, or a place in the queue.
    pub(crate) fn new(inner: &'a Inner<K, V>, weight: u64) -> Result<Self, bool> {
        if inner.mode == Reclaim::Inline {
            return Err(inner.reserve_slow(weight));
        }
        inner.counters.add(CacheCounters::OVERFLOWS, 0, 1);
        inner.reclaim_directly(weight);
        if inner.room.reserve(weight) != Reserved::No {
            return Err(true);
        }
        let ticket = inner.queue_for_room(weight);
        Ok(Self { inner, weight, ticket: Some(ticket) })
    }
}

impl<K: Key, V: Send + Sync + 'static> Future for RoomFuture<'_, K, V> {
    type Output = bool;

    fn poll(mut self: StdPin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let ticket = self.ticket.as_ref().expect("polled after it was ready");
        match ticket.poll(context.waker()) {
            None => Poll::Pending,
            Some(granted) => {
                self.ticket = None;
                if !granted {
                    self.inner.counters.add(CacheCounters::THROTTLE_TIMEOUTS, 0, 1);
                }
                Poll::Ready(granted)
            }
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for RoomFuture<'_, K, V> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.inner.room.leave(&ticket)
        {
            self.inner.room.release(self.weight);
        }
    }
}
