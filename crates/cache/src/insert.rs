//! Inserts and removals: how a block enters index and list, and how a user's call takes it out.
//!
//! Locking: `index-partition` for the index, then `sublist`; never both.

use std::ptr::NonNull;

use forebay_base::probe;
use forebay_base::sync::atomic::Ordering;

use crate::attributes::{Attributes, Cause, Class, Hint};
use crate::capacity::reserve::Reservation;
use crate::counters::CacheCounters;
use crate::error::{Refusal, Refused};
use crate::frequency::Frequency;
use crate::guard::{OwnedRef, Ref};
use crate::header::{FILLED, Header, HeaderState, LOADING, List, MARK, RETIRED, VALID};
use crate::index::line::Slot;
use crate::index::{Full, Known, Locked};
use crate::inner::{CacheInner, Reclaim};
#[cfg(feature = "insight")]
use crate::insight_budget::InsightBudget;
use crate::key::Key;
use crate::key_calls::is_key;
use crate::lists::ghosts::GhostList;
use crate::owner::Permit;
use crate::policy::simulation::Capacities;
use crate::policy::simulation::access_buffer::{Access, AccessKind};
use crate::sample::sample_key;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Why a block may not be cached, apart from a lack of capacity.
    pub(crate) fn refuse(&self, key: &K, class: Class, weight: u64) -> Option<Refusal> {
        if self.closed.load(Ordering::Acquire) {
            return Some(Refusal::Closed);
        }
        match self.owners.permit(self.owner_of(key), class) {
            Permit::Yes => {}
            Permit::ByOwner => return Some(Refusal::ByOwner),
            Permit::Closed => return Some(Refusal::Closed),
        }
        let too_heavy = || self.too_heavy(weight);
        if too_heavy().is_some() && self.bound.is_some() && self.mode == Reclaim::Inline {
            // Without a reclaimer, check whether the overhead has shrunk.
            self.reclaim_directly(0);
        }
        too_heavy()
    }

    /// The refusal of a block that may never be cached, because of its weight.
    pub(crate) fn too_heavy(&self, weight: u64) -> Option<Refusal> {
        let most = self.capacity.target().min(u64::from(u32::MAX) - 1);
        (weight > most).then_some(Refusal::TooHeavy { weight, most })
    }

    pub(crate) fn count_refusal(&self, reason: Refusal, class: Class) {
        let row = match reason {
            Refusal::NoCapacity => CacheCounters::REFUSED_NO_CAPACITY,
            Refusal::TooHeavy { .. } => CacheCounters::REFUSED_TOO_HEAVY,
            Refusal::ByOwner => CacheCounters::REFUSED_BY_OWNER,
            Refusal::Closed => CacheCounters::REFUSED_CLOSED,
            Refusal::NoMemory => CacheCounters::REFUSED_NO_MEMORY,
        };
        self.counters.add(row, class as usize, 1);
    }

    /// Inserts a value in place of what it may replace.
    pub(crate) fn insert(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
        replaces: Replaces<K, V>,
    ) -> Result<(), NotInserted<V>> {
        let reserve = |weight| self.reserve(weight);
        self.insert_and(key, value, (attributes, replaces), reserve, |_| ())
    }

    /// Inserts a value for which capacity is reserved already, or was refused. Whatever else has
    /// the key gives way.
    pub(crate) fn insert_reserved(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
        reservation: Option<Reservation<'_>>,
    ) -> Result<(), NotInserted<V>> {
        let reserve = |weight| match reservation {
            None => false,
            Some(reservation) if reservation.weight() == weight => reservation.redeem(),
            // The weigher has changed its mind.
            Some(reservation) => {
                drop(reservation);
                self.try_reserve(weight)
            }
        };
        self.insert_and(key, value, (attributes, Replaces::Any), reserve, |_| ())
    }

    /// Does the same as [`insert`](Self::insert), and returns the block, pinned.
    pub(crate) fn insert_pinned(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
        replaces: Replaces<K, V>,
    ) -> Result<Ref<'_, K, V>, NotInserted<V>> {
        let reserve = |weight| self.reserve(weight);
        self.insert_and(key, value, (attributes, replaces), reserve, |header| {
            // SAFETY: pinned and filled while this is called.
            unsafe {
                self.pin_again(header);
                Ref::from_pin(self, header)
            }
        })
    }

    /// Inserts a value whose capacity `reserve` reserves, and calls `then` with its header while
    /// that is pinned.
    fn insert_and<T>(
        &self,
        key: K,
        value: V,
        (attributes, replaces): (Attributes, Replaces<K, V>),
        reserve: impl FnOnce(u64) -> bool,
        then: impl FnOnce(NonNull<Header<K, V>>) -> T,
    ) -> Result<T, NotInserted<V>> {
        let attributes = self.policy_attributes(attributes);
        let class = attributes.class;
        let hash = self.hash(&key);
        let weight = self.weigh(&key, &value);
        let refused = (self.refuse(&key, class, weight))
            .or_else(|| (!reserve(weight)).then_some(Refusal::NoCapacity));
        if let Some(reason) = refused {
            return Err(self.refuse_insert(hash, (&key, replaces), value, reason, class));
        }
        if let Some(secondary) = self.active_secondary() {
            let weighed = (weight as u32, attributes);
            let block = self.insert_over(secondary, hash, (key, replaces), value, weighed)?;
            return Ok(then(block.pinned_header()));
        }
        let Ok(header) = self.slab.take() else {
            self.capacity.release(weight);
            let reason = Refusal::NoMemory;
            return Err(self.refuse_insert(hash, (&key, replaces), value, reason, class));
        };
        // SAFETY: fresh from the slab, so this thread's alone.
        unsafe {
            header.as_ref().occupy(key, weight as u32, Some(value), self.sampled(hash, attributes))
        };
        match self.link(hash, (&key, replaces), header, class) {
            Ok(previous) => {
                let frequent = self.note_previous(&previous, hash, header, attributes, true);
                self.record_entry(hash, self.owner_of(&key), attributes, weight as u32);
                let result = then(header);
                self.enter(header, class, attributes.hint, frequent);
                Ok(result)
            }
            Err(error) => {
                // SAFETY: never announced, and occupied with a value above.
                let value = unsafe { header.as_ref().retract(true) };
                let value = value.expect("occupied with a value");
                self.slab.give(header);
                self.capacity.release(weight);
                match error {
                    PutError::Changed => Err(NotInserted::Changed(value)),
                    PutError::Refused(reason) => {
                        Err(self.refuse_insert(hash, (&key, replaces), value, reason, class))
                    }
                }
            }
        }
    }

    pub(crate) fn refuse_insert(
        &self,
        hash: u64,
        (key, replaces): (&K, Replaces<K, V>),
        value: V,
        reason: Refusal,
        class: Class,
    ) -> NotInserted<V> {
        // The cached value of this key is outdated now. That holds whatever the reason is: the
        // secondary cache may keep its blocks over a close and return them later.
        let remove = |only| self.remove_everywhere(hash, key, Cause::Replaced, only).is_some();
        let removed = match replaces {
            // Where there was nothing, there may be a load, or what it has published since.
            Replaces::Any | Replaces::Nothing => remove(None),
            // A load that began since then is not outdated.
            Replaces::Only(old) => remove(Some(old)),
        };
        self.count_refusal(reason, class);
        NotInserted::Refused(Refused { reason, value, removed })
    }

    /// Makes a header reachable in place of the key's previous entry.
    fn link(
        &self,
        hash: u64,
        (key, replaces): (&K, Replaces<K, V>),
        header: NonNull<Header<K, V>>,
        class: Class,
    ) -> Result<PreviousEntry<K, V>, PutError> {
        let mut locked = self.index.lock(hash);
        // Checked again under the lock: a close that passes the barrier later sees the header.
        if let Some(reason) = self.refuse(key, class, 0) {
            return Err(PutError::Refused(reason));
        }
        let bits = VALID | FILLED;
        self.put_over(&mut locked, (key, replaces), (hash, header), bits, Cause::Replaced)
    }

    /// Does the same as [`put`](Self::put), if the header may take the place of the key's entry.
    pub(crate) fn put_over(
        &self,
        locked: &mut Locked<'_>,
        (key, replaces): (&K, Replaces<K, V>),
        at: (u64, NonNull<Header<K, V>>),
        bits: u64,
        cause: Cause,
    ) -> Result<PreviousEntry<K, V>, PutError> {
        let known = Self::find_known(locked, key);
        let load = Self::make_way(&known, replaces, cause)?;
        match self.put(locked, known, at, bits, cause) {
            Ok(previous) => Ok(load.unwrap_or(previous)),
            // Then the key has no entry, so no load either.
            Err(_) => Err(PutError::Refused(Refusal::NoMemory)),
        }
    }

    /// Checks that a new header may take the place of a key's entry. A sweep may have retired a
    /// block, and wait for the lock to clear its slot. Retires and returns a load in flight where
    /// only a block would be in the way: in one step, because the load may be published meanwhile.
    fn make_way(
        known: &Known,
        replaces: Replaces<K, V>,
        cause: Cause,
    ) -> Result<Option<PreviousEntry<K, V>>, PutError> {
        let is_retired = |header: NonNull<Header<K, V>>| {
            // SAFETY: pinned by the caller, or not freed while its slot is there.
            unsafe { header.as_ref() }.state().has(RETIRED)
        };
        let retire = |s: HeaderState| (s.has(LOADING) && !s.has(RETIRED)).then(|| s.retired(cause));
        let may = match (replaces, known) {
            (Replaces::Any, _) => true,
            (Replaces::Only(old), _) => known.is_resident_at(old.addr().get()) && !is_retired(old),
            (Replaces::Nothing, Known::Resident(_, address)) => {
                let header = Self::header_at(*address);
                // SAFETY: not freed while its slot is there.
                if let Some(before) = unsafe { header.as_ref() }.update(retire) {
                    return Ok(Some(PreviousEntry::Resident(header, before)));
                }
                is_retired(header)
            }
            (Replaces::Nothing, _) => true,
        };
        if may { Ok(None) } else { Err(PutError::Changed) }
    }

    /// The entry of a key, whose partition is locked.
    pub(crate) fn find_known(locked: &Locked<'_>, key: &K) -> Known {
        // SAFETY: headers in slots of a locked partition have keys that may be read.
        locked.find_known(|at| is_key(unsafe { Self::header_at(at).as_ref().key() }, key))
    }

    /// Stores a header, which the caller occupies, in place of the key's entry, and announces it.
    /// Retires a previous header for `cause`.
    ///
    /// # Errors
    ///
    /// The index is full. Nothing has changed.
    pub(crate) fn put(
        &self,
        locked: &mut Locked<'_>,
        known: Known,
        (hash, header): (u64, NonNull<Header<K, V>>),
        bits: u64,
        cause: Cause,
    ) -> Result<PreviousEntry<K, V>, Full> {
        let slot = Self::slot_of(hash, header);
        // SAFETY: the caller occupies it.
        let h = unsafe { header.as_ref() };
        match known {
            Known::Resident(slot_ref, address) => {
                h.announce(bits);
                // The slot first, then the old header: a reader that finds the old one invalid
                // reads the slot again.
                locked.replace(slot_ref, slot);
                let old = Self::header_at(address);
                // SAFETY: not freed before its slot was replaced; if retired already, its evictor
                // or remover finds the slot taken and does the rest.
                let old_header = unsafe { old.as_ref() };
                let before = old_header.retire(cause);
                if before.is_none_or(|before| before.has(LOADING)) {
                    old_header.note_unlinked();
                }
                Ok(before
                    .map_or(PreviousEntry::Nothing, |before| PreviousEntry::Resident(old, before)))
            }
            Known::Ghost(slot_ref, ghost) => {
                h.announce(bits);
                locked.replace(slot_ref, slot);
                Ok(PreviousEntry::Ghost(GhostList::from_number(ghost.ghost_list()), ghost))
            }
            Known::Nothing => {
                locked.insert(slot, &|address| self.hash_of(address))?;
                h.announce(bits);
                Ok(PreviousEntry::Nothing)
            }
        }
    }

    /// The hash of a resident's key, under its partition's lock.
    pub(crate) fn hash_of(&self, address: usize) -> u64 {
        // SAFETY: asked by the index for headers in slots of a locked partition.
        self.rehash(unsafe { Self::header_at(address).as_ref().key() })
    }

    /// The class of a block, and whether the simulations see its hits. They identify blocks by key.
    /// A block that gets a new key with each version would look like a stream of new blocks with
    /// one more use each, which only the CLOCK keeps.
    pub(crate) fn sampled(&self, hash: u64, attributes: Attributes) -> (Class, bool) {
        let class = attributes.class;
        (class, attributes.hint == Hint::Normal && self.simulations.samples(hash, class))
    }

    /// Accounts for the previous entry of a new header: counts a ghost hit, takes over its uses,
    /// frees an old header, and informs policy and simulations. True if the block begins in MFU.
    /// The caller holds the new header's pin, and the header is in no list yet. `is_miss` is false
    /// if no request has missed the block.
    pub(crate) fn note_previous(
        &self,
        previous: &PreviousEntry<K, V>,
        hash: u64,
        header: NonNull<Header<K, V>>,
        attributes: Attributes,
        is_miss: bool,
    ) -> bool {
        // SAFETY: the caller holds a pin.
        let h = unsafe { header.as_ref() };
        let weight = h.weight();
        let mut frequency = Frequency::default();
        let (mut frequent, mut ghost_of) = (false, None);
        match *previous {
            PreviousEntry::Nothing => {}
            PreviousEntry::Ghost(list, ghost) => {
                let row = if list.frequent {
                    CacheCounters::GHOST_HITS_MFU
                } else {
                    CacheCounters::GHOST_HITS_MRU
                };
                self.counters.add(row, list.class as usize, 1);
                // SAFETY: the caller's pin keeps the key.
                let key = unsafe { h.key() };
                probe!(ghost_hit, std::ptr::from_ref(key), list.frequent, list.class as u32);
                ghost_of = Some(list);
                frequency = ghost.ghost_uses(self.policy.now());
            }
            PreviousEntry::Resident(old, before) => {
                // SAFETY: the pin that `retire` took.
                frequency = unsafe { old.as_ref() }.frequency();
                self.count_left(old, before, Cause::Replaced);
                // SAFETY: the pin that `retire` took, given up here; `self` is borrowed.
                unsafe { Self::unpin(NonNull::from(self), old) };
                frequent = before.list() == Some(List::Mfu) || before.has(MARK);
            }
        }
        h.set_frequency(frequency.used(self.policy.now()));
        self.ghost_hits.note(ghost_of, weight);
        // A block that is not cached weighs nothing.
        let sampled = weight > 0 && self.sampled(hash, attributes).1;
        #[cfg(feature = "insight")]
        if is_miss && weight > 0 && attributes.hint == Hint::Normal {
            self.counters.add(CacheCounters::INSERTS_UNHINTED, attributes.class as usize, 1);
        }
        if sampled || self.simulations.should_replay() {
            let class = attributes.class;
            let kind = if is_miss { AccessKind::Use } else { AccessKind::New };
            let access = Access { key: sample_key(hash), class, weight, kind };
            self.replay(sampled.then_some(access));
        }
        frequent
    }

    /// Passes the new accesses to the simulations, the sampled block last, and adopts the chosen
    /// rules.
    #[cold]
    fn replay(&self, sampled: Option<Access>) {
        let Some(replayed) = self.simulations.note_insert(sampled, || self.capacities()) else {
            return;
        };
        for class in Class::ALL {
            let n = class as usize;
            if replayed.accesses[n] > 0 {
                self.counters.add(CacheCounters::SIMULATION_ACCESSES, n, replayed.accesses[n]);
            }
            if replayed.changes[n] > 0 {
                self.counters.add(CacheCounters::RULE_CHANGES, n, replayed.changes[n]);
            }
            self.policy.follow(class, replayed.chosen[n]);
        }
    }

    /// What the simulations share out.
    pub(crate) fn capacities(&self) -> Capacities {
        let (total, sizes) = (self.policy.capacity(), self.sizes());
        let of_class =
            Class::ALL.map(|class| total.saturating_sub(sizes.resident(class.other() as usize)));
        Capacities {
            #[cfg(feature = "insight")]
            total,
            #[cfg(feature = "insight")]
            configured: self.bound.as_ref().map_or(total, |b| b.bytes.load(Ordering::Relaxed)),
            of_class,
            #[cfg(feature = "insight")]
            budget: InsightBudget::of(self.bound.as_ref(), self.has_curve),
        }
    }

    /// Adds a valid, pinned header to its list, and unpins it.
    fn enter(&self, header: NonNull<Header<K, V>>, class: Class, hint: Hint, frequent: bool) {
        let (initial_list, mark) = self.initial_list(class, hint, frequent);
        // In the same update, unless pins are spilled: then a refill may be due.
        let entered = self.enlist(header, class, initial_list, |s| {
            let s = s.with(mark);
            if s.is_spilled() { s } else { s.unpinned() }
        });
        if entered.is_none_or(HeaderState::is_spilled) {
            // SAFETY: the pin that the header was occupied with, not released above.
            unsafe { Self::unpin(NonNull::from(self), header) };
        }
    }

    /// The list in which a block begins, and its mark.
    pub(crate) fn initial_list(&self, class: Class, hint: Hint, frequent: bool) -> (List, u64) {
        match (hint, frequent) {
            (_, true) => (List::Mfu, 0),
            (Hint::Normal, false) => (List::Mru, 0),
            (Hint::Once, false) => (List::Once, 0),
            (Hint::Again, false) if self.policy.rule(class).admission => (List::Mfu, 0),
            // With the CLOCK, MFU is evicted first. Mark the block in MRU instead.
            (Hint::Again, false) => (List::Mru, if self.policy.is_plain_lru() { 0 } else { MARK }),
        }
    }

    /// Adds a new block's pinned header to a list, as [`place`](Self::place) does.
    pub(crate) fn enlist(
        &self,
        header: NonNull<Header<K, V>>,
        class: Class,
        list: List,
        change: impl Fn(HeaderState) -> HeaderState,
    ) -> Option<HeaderState> {
        let before = self.place(header, class, list, change)?;
        self.counters.add(CacheCounters::INSERTS, class as usize, 1);
        Some(before)
    }

    /// Adds a pinned header to a list, in the same update as `change`. Returns the state before, or
    /// `None`, without a change, if the header was retired meanwhile.
    pub(crate) fn place(
        &self,
        header: NonNull<Header<K, V>>,
        class: Class,
        list: List,
        change: impl Fn(HeaderState) -> HeaderState,
    ) -> Option<HeaderState> {
        // SAFETY: the caller holds a pin.
        let h = unsafe { header.as_ref() };
        // Read before the update. After it the header may be reused.
        let (id, weight) = (h.id(), h.weight());
        let list = if self.policy.is_plain_lru() { List::Mru } else { list };
        let sublist = self.list(list, class).mine();
        let mut ring = sublist.lock();
        let position = sublist.stamp(ring.next_position());
        let before = h.update(|s| (!s.has(RETIRED)).then(|| change(s.at(list, position))))?;
        ring.push(id);
        sublist.count_in(&ring, weight);
        Some(before)
    }

    /// Removes the block of that key and returns it: any block, or `only` that one.
    pub(crate) fn remove(
        &self,
        hash: u64,
        key: &K,
        cause: Cause,
        only: Option<NonNull<Header<K, V>>>,
    ) -> Option<OwnedRef<K, V>> {
        let mut locked = self.index.lock(hash);
        let (slot_ref, address) = Self::find_key(&locked, key)?;
        let header = Self::header_at(address);
        if only.is_some_and(|only| only != header) {
            return None;
        }
        // SAFETY: not freed while its slot is there.
        let h = unsafe { header.as_ref() };
        let before = h.retire(cause)?;
        locked.remove(slot_ref);
        if before.has(LOADING) {
            h.note_unlinked();
        }
        drop(locked);
        self.left(header, before, cause)
    }

    /// Accounts for a header that this thread has retired and taken out of the index. Returns the
    /// block, with the pin that `retire` took, if it was cached.
    pub(crate) fn left(
        &self,
        header: NonNull<Header<K, V>>,
        before: HeaderState,
        cause: Cause,
    ) -> Option<OwnedRef<K, V>> {
        self.count_left(header, before, cause);
        if before.has(FILLED) {
            // SAFETY: the pin that `retire` took; filled.
            return Some(unsafe { OwnedRef::from_pin(self, header) });
        }
        // A block that was still loading was not cached.
        // SAFETY: the pin that `retire` took.
        unsafe { Self::unpin(NonNull::from(self), header) };
        None
    }

    /// Removes a header's slot from the index, if it is still there. The caller holds a pin.
    pub(crate) fn unlink(&self, header: NonNull<Header<K, V>>, hash: u64) {
        // SAFETY: the caller's pin.
        let h = unsafe { header.as_ref() };
        let mut locked = self.index.lock(hash);
        let address = header.addr().get();
        if let Some((slot_ref, _)) = locked.find_resident(|a| a == address) {
            locked.remove(slot_ref);
            h.note_unlinked();
            return;
        }
        let is_gone = h.state().is_unlinked();
        drop(locked);
        if !is_gone {
            // Its key's hash has changed, so that the slot is elsewhere; or a load that ends and a
            // sweep have met.
            self.index.remove_anywhere(address);
        }
    }

    /// Subtracts a retired block from its list.
    pub(crate) fn count_left(
        &self,
        header: NonNull<Header<K, V>>,
        before: HeaderState,
        cause: Cause,
    ) {
        let Some(list) = before.list() else { return };
        // SAFETY: the caller holds a pin.
        let (weight, key) = unsafe { (header.as_ref().weight(), header.as_ref().key()) };
        self.record_removal(key, before.class(), weight, cause);
        let sublist = self.list(list, before.class()).at(before.position());
        sublist.count_out(u64::from(weight), 1);
        self.counters.add(CacheCounters::LEFT, cause as usize, 1);
    }
}

/// What a new value may take the place of.
#[derive(Debug)]
pub(crate) enum Replaces<K, V> {
    /// Whatever the key has.
    Any,
    /// Only this header, which the caller has pinned.
    Only(NonNull<Header<K, V>>),
    /// No block. A load in flight is no block: its waiters get its value, which is not cached.
    Nothing,
}

// By hand, because derives would ask for `K: Copy`.
impl<K, V> Clone for Replaces<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Replaces<K, V> {}

/// Why a value was not inserted.
pub(crate) enum NotInserted<V> {
    /// The key has an entry that the caller does not want to replace. The value.
    Changed(V),
    Refused(Refused<V>),
}

impl<V> NotInserted<V> {
    /// For an insert that replaces whatever the key has.
    pub(crate) fn into_refused(self) -> Refused<V> {
        match self {
            Self::Refused(refused) => refused,
            Self::Changed(_) => unreachable!("any entry will do"),
        }
    }
}

/// Why a header was not put into a slot.
pub(crate) enum PutError {
    /// The slot has a header that the caller does not want to replace.
    Changed,
    Refused(Refusal),
}

/// The entry that a new header replaces in the index.
pub(crate) enum PreviousEntry<K, V> {
    Nothing,
    /// A ghost of that list, and its slot.
    Ghost(GhostList, Slot),
    /// An older header, retired with a pin for the caller, and its state before.
    Resident(NonNull<Header<K, V>>, HeaderState),
}

impl<K, V> PreviousEntry<K, V> {
    /// Whether it was a block, and not one that was still loading.
    pub(crate) fn was_cached(&self) -> bool {
        matches!(self, Self::Resident(_, before) if before.has(FILLED))
    }
}
