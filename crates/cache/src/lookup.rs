//! Lookups: from a key to its block, pinned. A hit takes no lock, and writes to no shared cache
//! line except the block's header.
//!
//! A processor that waits for memory executes ahead, for some hundred instructions. The lines that
//! a lookup needs (index, header, block) are seldom in its cache. So throughput depends on how many
//! lookups fit into that window. Hence the hit path has few instructions, and no branch that often
//! depends on memory that is still to arrive.
//!
//! Locking: none.

use std::ptr::NonNull;

use forebay_base::probe;
use forebay_base::sync::hint;

use crate::attributes::Class;
use crate::counters::CacheCounters;
use crate::guard::{Ref, SlotHint};
use crate::header::{Header, HeaderState, MARK, SAMPLED, VALID};
use crate::index::{Probe, Visit};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::key_calls::undone;

/// Keys that `get_many` looks up at once. Limited by the memory accesses that a processor can have
/// in flight.
pub(crate) const SIDE_BY_SIDE: usize = 16;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Returns the block, pinned and counted as used. The fast path is inlined. Slow paths are tail
    /// calls, so nothing is saved across them.
    #[inline(always)]
    pub(crate) fn get(&self, key: &K) -> Option<Ref<'_, K, V>> {
        let hash = self.hash(key);
        self.get_probed(self.index.probe(hash), hash, key)
    }

    #[inline(always)]
    fn get_probed(&self, probe: Probe, hash: u64, key: &K) -> Option<Ref<'_, K, V>> {
        match probe {
            Probe::At(address) => {
                // SAFETY: resident slots refer to this cache's headers.
                unsafe {
                    self.get_from(Self::header_at(address), key, || self.get_scanned(hash, key))
                }
            }
            Probe::Nothing => self.count_miss(),
            Probe::Unclear => self.get_scanned(hash, key),
        }
    }

    /// Looks up several keys together. Each block is found as of its pin, as in a single lookup.
    pub(crate) fn get_many<'a>(&'a self, keys: &[K], found: &mut Vec<Option<Ref<'a, K, V>>>) {
        found.clear();
        found.reserve(keys.len());
        for keys in keys.chunks(SIDE_BY_SIDE) {
            self.probe_many(keys, |key, hash, probe| found.push(self.get_probed(probe, hash, key)));
        }
    }

    /// Probes for up to [`SIDE_BY_SIDE`] keys with overlapping memory accesses, and hands each to
    /// `get`: first prefetches all lines of the index, then all headers.
    pub(crate) fn probe_many<'k>(&self, keys: &'k [K], mut get: impl FnMut(&'k K, u64, Probe)) {
        let mut hashes = [0; SIDE_BY_SIDE];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
            self.index.prefetch(*hash);
        }
        let mut probes = [Probe::Unclear; SIDE_BY_SIDE];
        for (probe, hash) in probes.iter_mut().zip(&hashes).take(keys.len()) {
            *probe = self.index.probe(*hash);
            if let Probe::At(address) = probe {
                hint::prefetch(Self::header_at(*address).as_ptr());
            }
        }
        for ((key, hash), probe) in keys.iter().zip(hashes).zip(probes) {
            get(key, hash, probe);
        }
    }

    /// Looks at the hinted header first.
    #[inline]
    pub(crate) fn get_at(&self, hint: SlotHint, key: &K) -> Option<Ref<'_, K, V>> {
        match self.slab.by_id(hint.0) {
            // SAFETY: ids are of this cache's headers.
            Some(header) => unsafe { self.get_from(header, key, || self.get_by_key(key)) },
            None => self.get_by_key(key),
        }
    }

    /// Returns the block of a header if it has that key, else the result of `otherwise`.
    ///
    /// # Safety
    ///
    /// It is a header of this cache, used or free.
    #[inline(always)]
    unsafe fn get_from<'a>(
        &'a self,
        header: NonNull<Header<K, V>>,
        key: &K,
        otherwise: impl FnOnce() -> Option<Ref<'a, K, V>>,
    ) -> Option<Ref<'a, K, V>> {
        // SAFETY: headers are type-stable: never unmapped while the cache that has them lives.
        let h = unsafe { header.as_ref() };
        let Ok(before) = h.try_pin(MARK) else { return otherwise() };
        // SAFETY: pinned from a valid state.
        let same = undone(|| self.unpin_other(header), || unsafe { h.key() } == key);
        if !same {
            self.unpin_other(header);
            return otherwise();
        }
        if before.has(SAMPLED) || !self.counters.try_add_at_exclusive(hits_of(before), 1) {
            return self.count_hit_of(header, before);
        }
        probe!(hit, std::ptr::from_ref(key), before.list_and_class());
        // SAFETY: pinned just now, from a valid state.
        Some(unsafe { Ref::from_pin(self, header) })
    }

    /// Returns the block, pinned and counted as used, if `accept` agrees to its value, on the fast
    /// path of [`get`](Self::get). Else it returns the result of `missing`, if there is no block,
    /// or of `otherwise`, which decides by [`find_if`](Self::find_if). Counts no miss.
    ///
    /// `accept` may be user code: it runs without a lock, and a panic releases the pin.
    #[inline(always)]
    pub(crate) fn get_if<'a>(
        &'a self,
        key: &K,
        accept: impl FnOnce(&V) -> bool,
        missing: impl FnOnce() -> Option<Ref<'a, K, V>>,
        otherwise: impl FnOnce() -> Option<Ref<'a, K, V>>,
    ) -> Option<Ref<'a, K, V>> {
        self.get_probed_if(self.index.probe(self.hash(key)), key, accept, missing, otherwise)
    }

    /// The rest of [`get_if`](Self::get_if), after the probe.
    #[inline(always)]
    pub(crate) fn get_probed_if<'a>(
        &'a self,
        probe: Probe,
        key: &K,
        accept: impl FnOnce(&V) -> bool,
        missing: impl FnOnce() -> Option<Ref<'a, K, V>>,
        otherwise: impl FnOnce() -> Option<Ref<'a, K, V>>,
    ) -> Option<Ref<'a, K, V>> {
        let header = match probe {
            Probe::At(address) => Self::header_at(address),
            Probe::Nothing => return missing(),
            Probe::Unclear => return otherwise(),
        };
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let Ok(before) = h.try_pin(MARK) else { return otherwise() };
        let unpin = || self.unpin_other(header);
        // SAFETY: pinned from a valid state.
        let is_it = undone(unpin, || unsafe { h.key() == key && accept(h.value()) });
        if !is_it {
            unpin();
            return otherwise();
        }
        if before.has(SAMPLED) || !self.counters.try_add_at_exclusive(hits_of(before), 1) {
            return self.count_hit_of(header, before);
        }
        probe!(hit, std::ptr::from_ref(key), before.list_and_class());
        // SAFETY: pinned just now, from a valid state.
        Some(unsafe { Ref::from_pin(self, header) })
    }

    /// Does the same as [`get_if`](Self::get_if), without a fast path.
    ///
    /// # Errors
    ///
    /// The block that was not accepted, or `None` if there is no block. Neither is counted.
    pub(crate) fn find_if(
        &self,
        key: &K,
        accept: impl FnOnce(&V) -> bool,
    ) -> Result<Ref<'_, K, V>, Option<Ref<'_, K, V>>> {
        let Some((header, before)) = self.pin(self.hash(key), key, MARK) else { return Err(None) };
        // SAFETY: pinned just now, from a valid state.
        let block = unsafe { Ref::from_pin(self, header) };
        if !accept(&block) {
            return Err(Some(block));
        }
        self.count_hit(header, before);
        Ok(block)
    }

    #[inline(never)]
    fn get_scanned(&self, hash: u64, key: &K) -> Option<Ref<'_, K, V>> {
        match self.pin_scanned(hash, key, MARK) {
            Some((header, before)) => self.count_hit_of(header, before),
            None => self.count_miss(),
        }
    }

    #[inline(never)]
    fn get_by_key(&self, key: &K) -> Option<Ref<'_, K, V>> {
        self.get(key)
    }

    /// Releases the pin on a block of another key.
    #[cold]
    #[inline(never)]
    fn unpin_other(&self, other: NonNull<Header<K, V>>) {
        // SAFETY: the caller's pin; the cache is borrowed.
        unsafe { Self::unpin(NonNull::from(self), other) };
    }

    #[inline(never)]
    fn count_hit_of(
        &self,
        header: NonNull<Header<K, V>>,
        before: HeaderState,
    ) -> Option<Ref<'_, K, V>> {
        self.count_hit(header, before);
        // SAFETY: pinned by the caller, from a valid state.
        Some(unsafe { Ref::from_pin(self, header) })
    }

    #[inline(never)]
    pub(crate) fn count_miss(&self) -> Option<Ref<'_, K, V>> {
        self.counters.add(CacheCounters::LOOKUPS_MISSED, 0, 1);
        None
    }

    /// Pins the block without counting a hit. Returns the state before.
    #[inline]
    pub(crate) fn pin(
        &self,
        hash: u64,
        key: &K,
        mark: u64,
    ) -> Option<(NonNull<Header<K, V>>, HeaderState)> {
        match self.index.probe(hash) {
            Probe::At(address) => {
                let header = Self::header_at(address);
                // SAFETY: headers are type-stable: never unmapped while the index that refers to
                // them lives.
                match unsafe { self.pin_if_key(header, key, mark) } {
                    Ok(before) => Some((header, before)),
                    Err(_) => self.pin_scanned(hash, key, mark),
                }
            }
            Probe::Nothing => None,
            Probe::Unclear => self.pin_scanned(hash, key, mark),
        }
    }

    /// Scans the index, after a probe that did not suffice.
    #[inline(never)]
    fn pin_scanned(
        &self,
        hash: u64,
        key: &K,
        mark: u64,
    ) -> Option<(NonNull<Header<K, V>>, HeaderState)> {
        self.index.find(hash, |address| {
            let header = Self::header_at(address);
            // SAFETY: the index refers to headers of this cache only.
            match unsafe { self.pin_if_key(header, key, mark) } {
                Ok(before) => Visit::Found((header, before)),
                Err(state) => Visit::Missed(state.life()),
            }
        })
    }

    /// Pins a header if it has that key. Returns the state before, or the state found instead.
    ///
    /// # Safety
    ///
    /// It is a header of this cache, used or free.
    #[inline(always)]
    unsafe fn pin_if_key(
        &self,
        header: NonNull<Header<K, V>>,
        key: &K,
        mark: u64,
    ) -> Result<HeaderState, HeaderState> {
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let before = match h.try_pin(mark) {
            Err(state) if state.has(VALID) => self.pin_crowded(h, mark)?,
            tried => tried?,
        };
        // SAFETY: pinned from a valid state.
        if undone(|| self.unpin_other(header), || unsafe { h.key() } == key) {
            return Ok(before);
        }
        self.unpin_other(header);
        Err(before)
    }

    /// Counts a hit on a pinned block.
    #[inline]
    pub(crate) fn count_hit(&self, header: NonNull<Header<K, V>>, before: HeaderState) {
        // SAFETY: pinned by the caller, from a state that was valid or is filled.
        let key = unsafe { header.as_ref().key() };
        probe!(hit, std::ptr::from_ref(key), before.list_and_class());
        self.counters.add_at(hits_of(before), 1);
        if before.has(SAMPLED) {
            self.record_sampled_hit(header, before.class());
        }
    }

    #[cold]
    #[inline(never)]
    fn record_sampled_hit(&self, header: NonNull<Header<K, V>>, class: Class) {
        // SAFETY: pinned by the caller, from a state that was valid or is filled.
        let (h, key) = unsafe { (header.as_ref(), header.as_ref().key()) };
        self.simulations.note_hit(self.rehash(key), class, h.weight());
    }
}

/// The counter of hits for a block's state.
#[inline]
fn hits_of(state: HeaderState) -> usize {
    // The four rows are in the order of list numbers, each split by class.
    CacheCounters::HITS_NEW.at(0) + state.list_and_class()
}
