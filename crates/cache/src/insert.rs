//! Entering and leaving: how a block gets into the index and a list, and is taken out by a user.
//!
//! Locking: the partition's lock for the index, then, after it, the sublist's; never both.

use std::ptr::NonNull;

use forebay_base::sync::atomic::Ordering;

use crate::attributes::{Attributes, Cause, Class, Hint};
use crate::counters::CacheCounters;
use crate::error::{Refusal, Refused};
use crate::frequency::Frequency;
use crate::header::{FILLED, Header, HeaderState, List, MARK, RETIRED, VALID};
use crate::index::line::Slot;
use crate::index::{Full, Known, Locked};
use crate::inner::{CacheInner, Reclaim};
use crate::key::Key;
use crate::lists::ghosts::GhostList;
use crate::owner::Permit;
impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
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
        let too_heavy = || weight > self.capacity.target() || weight >= u64::from(u32::MAX);
        if too_heavy() && self.bound.is_some() && self.mode == Reclaim::Inline {
            // No thread looks whether there is less overhead now.
            self.reclaim_directly(0);
        }
        too_heavy().then_some(Refusal::TooHeavy)
    }

    pub(crate) fn count_refusal(&self, reason: Refusal, class: Class) {
        let row = match reason {
            Refusal::NoCapacity => CacheCounters::REFUSED_NO_CAPACITY,
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
        let attributes = self.policy_attributes(attributes);
        let class = attributes.class;
        let hash = self.hash(&key);
        let weight = (self.weigher)(&key, &value).max(1);
        let refused = (self.refuse(&key, class, weight))
            .or_else(|| (!self.reserve(weight)).then_some(Refusal::NoCapacity));
        if let Some(reason) = refused {
            return Err(self.refuse_insert(hash, &key, value, reason, class));
        }
        if let Some(secondary) = self.active_secondary() {
            return self.insert_over(secondary, hash, key, value, (weight as u32, attributes));
        }
        let Ok(header) = self.slab.take() else {
            self.capacity.release(weight);
            return Err(self.refuse_insert(hash, &key, value, Refusal::NoMemory, class));
        };
        // SAFETY: fresh from the slab, so this thread's alone.
        unsafe {
            header.as_ref().occupy(key, weight as u32, Some(value), self.sampled(hash, attributes))
        };
        match self.link(hash, &key, header, class) {
            Ok(previous) => {
                let frequent = self.note_previous(&previous, hash, header, attributes);
                self.enter(header, class, attributes.hint, frequent);
                Ok(())
            }
            Err(reason) => {
                // SAFETY: never announced, and occupied with a value above.
                let value = unsafe { header.as_ref().retract(true) };
                let value = value.expect("occupied with a value");
                self.slab.give(header);
                self.capacity.release(weight);
                Err(self.refuse_insert(hash, &key, value, reason, class))
            }
        }
    }

    pub(crate) fn refuse_insert(
        &self,
        hash: u64,
        key: &K,
        value: V,
        reason: Refusal,
        class: Class,
    ) -> Refused<V> {
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
    ) -> Result<PreviousEntry<K, V>, Refusal> {
        let mut locked = self.index.lock(hash);
        // Asked again under the lock: a close that passes the barrier after this sees the header.
        if let Some(reason) = self.refuse(key, class, 0) {
            return Err(reason);
        }
        let known = Self::find_known(&locked, key);
        let bits = VALID | FILLED;
        self.put(&mut locked, known, (hash, header), bits, Cause::Replaced)
            .map_err(|_| Refusal::NoMemory)
    }

    /// What the index has of a key, whose partition is locked.
    pub(crate) fn find_known(locked: &Locked<'_>, key: &K) -> Known {
        // SAFETY: headers in slots of a locked partition have keys that may be read.
        locked.find_known(|address| unsafe { Self::header_at(address).as_ref().key() == key })
    }

    /// Puts a header, which the caller occupies, in the place of what is known of its key, and announces it. A header that was there is
    /// retired for `cause`.
    ///
    /// # Errors
    /// When the index is full: then nothing has changed.
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
                // First the slot, then the old header: a reader that finds the old one invalid looks at
                // the slot again.
                locked.replace(slot_ref, slot);
                let old = Self::header_at(address);
                // SAFETY: not freed before its slot was replaced; if retired already, its evictor or
                // remover finds the slot taken and does the rest.
                let before = unsafe { old.as_ref() }.retire(cause);
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
        self.hash(unsafe { Self::header_at(address).as_ref().key() })
    }

    /// A block's class, and whether its hits are told to the shadows. They know blocks by their keys: one that takes a new one all
    /// the time would be a stream of newcomers to them, each used once more soon, which only a clock keeps.
    pub(crate) fn sampled(&self, hash: u64, attributes: Attributes) -> (Class, bool) {
        let class = attributes.class;
        (class, attributes.hint == Hint::Normal && self.simulations.samples(hash, class))
    }

    /// Draws the consequences of what a new header, whose pin the caller holds and which is in no list yet, met in the
    /// index. True if it begins in mfu.
    pub(crate) fn note_previous(
        &self,
        previous: &PreviousEntry<K, V>,
        hash: u64,
        header: NonNull<Header<K, V>>,
        attributes: Attributes,
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
                ghost_of = Some(list);
                frequency = ghost.ghost_uses(self.policy.now());
            }
            PreviousEntry::Resident(old, before) => {
                // SAFETY: the pin that `retire` took.
                frequency = unsafe { old.as_ref() }.frequency();
                self.count_left(old, before, Cause::Replaced);
                // SAFETY: as above.
                unsafe { Self::unpin(NonNull::from(self), old) };
                frequent = before.list() == Some(List::Mfu) || before.has(MARK);
            }
        }
        h.set_frequency(frequency.used(self.policy.now()));
        self.ghost_hits.note(ghost_of, weight);
        // One that is refused weighs nothing.
        let sampled = weight > 0 && self.sampled(hash, attributes).1;
        if sampled || self.simulations.should_replay() {
            self.replay(sampled.then_some((hash, attributes.class, weight)));
        }
        frequent
    }

    /// Shows the shadows what has happened, a sampled block that comes in last, and follows them.
    #[cold]
    fn replay(&self, sampled: Option<(u64, Class, u32)>) {
        let c = self.policy.capacity();
        let sizes = self.sizes();
        let capacity = |class: Class| c.saturating_sub(sizes.resident(class.other() as usize));
        let Some(replayed) = self.simulations.note_miss(sampled, capacity) else { return };
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

    /// Puts a valid, pinned header into its list, and unpins it.
    fn enter(&self, header: NonNull<Header<K, V>>, class: Class, hint: Hint, frequent: bool) {
        let (initial_list, mark) = self.initial_list(class, hint, frequent);
        let entered = self.enlist(header, class, initial_list, |s| s.with(mark).unpinned());
        if entered.is_none() {
            // SAFETY: the pin that the header was occupied with.
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
            // A clock has no use for mfu, whose blocks go first. It goes round once more.
            (Hint::Again, false) => (List::Mru, if self.tunables.plain_lru() { 0 } else { MARK }),
        }
    }

    /// Puts a pinned header into a list, in the same update as `change`. Returns the state before, or
    /// `None` if the header was retired meanwhile; then nothing is changed.
    pub(crate) fn enlist(
        &self,
        header: NonNull<Header<K, V>>,
        class: Class,
        list: List,
        change: impl Fn(HeaderState) -> HeaderState,
    ) -> Option<HeaderState> {
        // SAFETY: the caller holds a pin.
        let h = unsafe { header.as_ref() };
        // Read before the update, after which the header may be anybody's.
        let (id, weight) = (h.id(), h.weight());
        let list = if self.tunables.plain_lru() { List::Mru } else { list };
        let sublist = self.list(list, class).mine();
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
        let Some((slot_ref, address)) = Self::find_key(&locked, key) else { return false };
        let header = Self::header_at(address);
        // SAFETY: not freed while its slot is there.
        let Some(before) = unsafe { header.as_ref() }.retire(cause) else { return false };
        locked.remove(slot_ref);
        drop(locked);
        self.count_left(header, before, cause);
        // SAFETY: the pin that `retire` took.
        unsafe { Self::unpin(NonNull::from(self), header) };
        // A block that was still loading was not there yet.
        before.has(FILLED)
    }

    /// Takes a retired header's slot out of the index, if it is still there.
    pub(crate) fn unlink(&self, header: NonNull<Header<K, V>>, hash: u64) {
        let mut locked = self.index.lock(hash);
        let address = header.addr().get();
        if let Some((slot_ref, _)) = locked.find_resident(|a| a == address) {
            locked.remove(slot_ref);
        }
    }

    /// Counts a retired block out of its list.
    pub(crate) fn count_left(
        &self,
        header: NonNull<Header<K, V>>,
        before: HeaderState,
        cause: Cause,
    ) {
        let Some(list) = before.list() else { return };
        // SAFETY: the caller holds a pin.
        let weight = unsafe { header.as_ref() }.weight();
        let sublist = self.list(list, before.class()).at(before.position());
        sublist.count_out(u64::from(weight), 1);
        self.counters.add(CacheCounters::LEFT, cause as usize, 1);
    }
}

/// What a new header met in the index.
pub(crate) enum PreviousEntry<K, V> {
    Nothing,
    /// A ghost of that list, and the slot that it had.
    Ghost(GhostList, Slot),
    /// An older value, retired with a pin for the finder.
    Resident(NonNull<Header<K, V>>, HeaderState),
}
