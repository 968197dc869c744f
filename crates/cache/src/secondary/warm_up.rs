//! Warm-up: a secondary cache fills free capacity after a restart, before blocks are requested.
//!
//! Warm-up is not use. It counts as neither hit nor miss, and the simulations do not see it. It
//! takes no capacity from other blocks: it stops below the target, and ends for good with the first
//! eviction, because from then on the policy decides. Several threads may exceed the mark by one
//! block each.
//!
//! A block is inserted as a load is published, and for the same reason. The key's slot is claimed
//! first. Then the secondary cache checks that its block is still current. A thread that changes
//! the key later takes the slot over; a thread that changed it earlier has told the secondary
//! cache.
//!
//! Locking: `index-partition` to claim; `reclaim` to refresh the target of a cache with a hard
//! bound.

use std::ptr::NonNull;

use forebay_base::sync::atomic::Ordering;

use crate::attributes::{Attributes, Cause, Class, Hint};
use crate::cache::Cache;
use crate::capacity::Reserved;
use crate::counters::CacheCounters;
use crate::error::Refusal;
use crate::frequency::Frequency;
use crate::header::{Header, LOADING};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::load::load_guard::LoadGuard;

/// The share of the target that warm-up leaves free: one in this many bytes.
const FREE_SHARE: u64 = 16;

/// Why warm-up did not insert a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarmUpRefusal {
    /// It is cached or being loaded.
    AlreadyCached,
    /// It was evicted before: its ghost is remembered.
    EvictedBefore,
    /// There is no free capacity, or a block was evicted since.
    NoCapacity,
    /// Its owner does not cache it.
    ByOwner,
    /// Its owner, or the cache, is closed.
    Closed,
    /// No memory for the cache's own structures.
    NoMemory,
    /// It is no longer the content of its key.
    Outdated,
}

/// Inserts blocks into free capacity; see [`Cache::warm_up`].
///
/// It keeps the cache's memory alive, but not its blocks. Once the cache is dropped, it inserts
/// nothing.
pub struct WarmUp<K: Key, V: Send + Sync + 'static> {
    inner: NonNull<CacheInner<K, V>>,
    /// Evictions before the warm-up began.
    evicted: u64,
}

// SAFETY: its hold keeps `CacheInner` alive on any thread, and keys and values cross threads, which
// the bounds allow.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for WarmUp<K, V> {}
// SAFETY: all access to `CacheInner` is shared and synchronised by its own locks and atomics.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for WarmUp<K, V> {}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Begins a warm-up: blocks that were cached before a restart may fill free capacity until the
    /// first eviction.
    pub fn warm_up(&self) -> WarmUp<K, V> {
        let inner = self.inner();
        inner.hold();
        WarmUp { inner: NonNull::from(inner), evicted: inner.evicted() }
    }

    /// Bytes that a warm-up which began now could fill: free capacity, less a reserve for inserts.
    /// Cheap: two loads.
    pub fn free_bytes(&self) -> u64 {
        let inner = self.inner();
        inner.warm_up_limit().saturating_sub(inner.capacity.reserved())
    }
}

impl<K: Key, V: Send + Sync + 'static> WarmUp<K, V> {
    fn inner(&self) -> &CacheInner<K, V> {
        // SAFETY: the hold taken by `warm_up`.
        unsafe { self.inner.as_ref() }
    }

    /// Free capacity in bytes. Sums counters, so call it once for many blocks.
    pub fn bytes(&self) -> u64 {
        let inner = self.inner();
        if inner.closed.load(Ordering::Acquire) || inner.evicted() != self.evicted {
            return 0;
        }
        inner.warm_up_limit().saturating_sub(inner.capacity.reserved())
    }

    /// Whether the block is cached or being loaded. Does not count as a use.
    pub fn has(&self, key: &K) -> bool {
        let inner = self.inner();
        let hash = inner.hash(key);
        let locked = inner.index.lock(hash);
        CacheInner::<K, V>::find_key(&locked, key).is_some()
    }

    /// Inserts a block if there is free capacity and it is neither cached nor being loaded.
    ///
    /// The key's slot is claimed first. Then `is_current` is asked whether the value is still the
    /// content of its key.
    ///
    /// # Errors
    ///
    /// Why the block was not inserted.
    pub fn put(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
        is_current: impl FnOnce() -> bool,
    ) -> Result<(), WarmUpRefusal> {
        let inner = self.inner();
        let attributes = inner.policy_attributes(attributes);
        let weight = inner.weigh(&key, &value);
        inner.check_allowed(&key, attributes.class, weight)?;
        if !inner.reserve_warm_up(weight) {
            return Err(WarmUpRefusal::NoCapacity);
        }
        let taken = inner.claim_slot(key, weight as u32, attributes);
        let guard = taken.inspect_err(|_| inner.capacity.release(weight))?;
        if !is_current() {
            guard.withdraw();
            return Err(WarmUpRefusal::Outdated);
        }
        drop(guard.publish_weighed(value, weight as u32, None));
        Ok(())
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Blocks evicted for capacity.
    fn evicted(&self) -> u64 {
        self.counters.sum(CacheCounters::LEFT.at(Cause::Capacity as usize))
    }

    /// The reserved weight at which warm-up ends.
    fn warm_up_limit(&self) -> u64 {
        let target = self.capacity.target();
        target - target / FREE_SHARE
    }

    /// Reserves capacity below the limit of warm-up. Refreshes the hard bound whenever the
    /// reclaimer would be called: capacity shrinks as overhead grows, and the reclaimer may be
    /// late.
    fn reserve_warm_up(&self, weight: u64) -> bool {
        let fits =
            |more: u64| self.capacity.reserved().saturating_add(more) <= self.warm_up_limit();
        if !fits(weight) {
            return false;
        }
        match self.capacity.reserve(weight) {
            Reserved::Yes => return true,
            Reserved::No | Reserved::Behind => return false,
            Reserved::YesAndReclaim => {}
        }
        let reclaim = self.reclaim.lock();
        self.refresh_bound();
        drop(reclaim);
        if !fits(0) {
            self.capacity.release(weight);
            return false;
        }
        self.request_reclaim();
        true
    }

    fn check_allowed(&self, key: &K, class: Class, weight: u64) -> Result<(), WarmUpRefusal> {
        match self.refuse(key, class, weight) {
            None => Ok(()),
            Some(Refusal::Closed) => Err(WarmUpRefusal::Closed),
            Some(Refusal::ByOwner) => Err(WarmUpRefusal::ByOwner),
            Some(Refusal::NoMemory) => Err(WarmUpRefusal::NoMemory),
            Some(Refusal::TooHeavy { .. } | Refusal::NoCapacity) => Err(WarmUpRefusal::NoCapacity),
        }
    }

    /// Installs a loading header of that weight, if the index has no entry of the key.
    fn claim_slot(
        &self,
        key: K,
        weight: u32,
        attributes: Attributes,
    ) -> Result<LoadGuard<K, V>, WarmUpRefusal> {
        let hash = self.rehash(&key);
        let header = self.slab.take().map_err(|_| WarmUpRefusal::NoMemory)?;
        // SAFETY: fresh from the slab, so this thread's alone.
        let h = unsafe { header.as_ref() };
        // Whatever its hint, the block returns under its old key.
        let known = Attributes { hint: Hint::Normal, ..attributes };
        // SAFETY: fresh from the slab, so it is free and this thread's alone.
        unsafe { h.occupy(key, weight, None, self.sampled(hash, known)) };
        if let Err(why) = self.claim_empty(hash, &key, header, attributes.class) {
            // SAFETY: not announced, and occupied without a value.
            unsafe { h.retract(false) };
            self.slab.give(header);
            return Err(why);
        }
        // The block begins with one use.
        h.set_frequency(Frequency::default().used(self.policy.now()));
        Ok(LoadGuard::new(NonNull::from(self), header, hash, attributes))
    }

    fn claim_empty(
        &self,
        hash: u64,
        key: &K,
        header: NonNull<Header<K, V>>,
        class: Class,
    ) -> Result<(), WarmUpRefusal> {
        let mut locked = self.index.lock(hash);
        // Checked again under the lock: a close that passes the barrier later sees the header.
        self.check_allowed(key, class, 0)?;
        if Self::find_key(&locked, key).is_some() {
            return Err(WarmUpRefusal::AlreadyCached);
        }
        if locked.has_ghost() {
            return Err(WarmUpRefusal::EvictedBefore);
        }
        let slot = Self::slot_of(hash, header);
        let inserted = locked.insert(slot, &|address| self.hash_of(address));
        inserted.map_err(|_| WarmUpRefusal::NoMemory)?;
        // SAFETY: the caller occupies it.
        unsafe { header.as_ref() }.announce(LOADING);
        Ok(())
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for WarmUp<K, V> {
    fn drop(&mut self) {
        // SAFETY: the hold taken by `warm_up`, given up once and last.
        unsafe { CacheInner::release(self.inner) };
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for WarmUp<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WarmUp").field("bytes", &self.bytes()).finish()
    }
}
