//! Room that nobody needs, for a second level that puts back what it has before anybody asks for it.
//!
//! After a restart memory is empty, and the second level knows what was there. What it puts back is not a use: it counts as no
//! miss and no hit, the shadows do not see it, and it is to take room from nobody. So it stops well before the target (several threads
//! can pass that mark by a block each), and for good once anything was evicted: from then on it is for the policy to say what is
//! worth its room.
//!
//! A block is put in as a load is published, and for the same reason: the key's slot is taken first, and only then is the giver
//! asked whether what it has is still what the key stands for. Whoever overwrites or removes the key afterwards takes the slot over, and
//! whoever did so before has told the second level.

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

/// So much of the target is left free, as a part of it.
const FREE_SHARE: u64 = 16;

/// Why a block was not put into room that is spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarmUpRefusal {
    /// The cache has it, or is loading it.
    AlreadyCached,
    /// The cache has let go of it before.
    EvictedBefore,
    /// No room is spare, or something was evicted since.
    NoCapacity,
    /// Its owner does not want it cached.
    ByOwner,
    /// Its owner, or the cache, is closed.
    Closed,
    /// No memory for the cache's own structures.
    NoMemory,
    /// It is not what its key stands for any more.
    Outdated,
}

/// A cache's spare room, see [`Cache::warm_up`]. As long as it lives, it keeps the cache's memory, but not its blocks; once the cache
/// is dropped, nothing is taken any more.
pub struct WarmUp<K: Key, V: Send + Sync + 'static> {
    inner: NonNull<CacheInner<K, V>>,
    /// Evictions before it was asked for.
    evicted: u64,
}

// SAFETY: as for `Cache`: all access to `CacheInner` is shared and synchronised.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for WarmUp<K, V> {}
// SAFETY: as above.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for WarmUp<K, V> {}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// The room that nobody needs as of now, to be filled with blocks that were worth keeping once. None is left from the first eviction
    /// on.
    pub fn warm_up(&self) -> WarmUp<K, V> {
        let inner = self.inner();
        inner.hold();
        WarmUp { inner: NonNull::from(inner), evicted: inner.evicted() }
    }
}

impl<K: Key, V: Send + Sync + 'static> WarmUp<K, V> {
    fn inner(&self) -> &CacheInner<K, V> {
        // SAFETY: the hold that was taken with it.
        unsafe { self.inner.as_ref() }
    }

    /// Bytes of room that are spare. Some work: to be asked once for many blocks.
    pub fn bytes(&self) -> u64 {
        let inner = self.inner();
        if inner.closed.load(Ordering::Acquire) || inner.evicted() != self.evicted {
            return 0;
        }
        inner.warm_up_limit().saturating_sub(inner.capacity.reserved())
    }

    /// Whether the cache has a block, or is about to. Does not count as a use.
    pub fn has(&self, key: &K) -> bool {
        let inner = self.inner();
        let hash = inner.hash(key);
        let locked = inner.index.lock(hash);
        CacheInner::<K, V>::find_key(&locked, key).is_some()
    }

    /// Puts a block in, if there is room that nobody needs, the cache does not have it, and it is not being loaded. The key's slot is taken
    /// first; then `is_current` is asked whether the value is what the key stands for.
    ///
    /// # Errors
    /// Why it was not put in.
    pub fn put(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
        is_current: impl FnOnce() -> bool,
    ) -> Result<(), WarmUpRefusal> {
        let inner = self.inner();
        let attributes = inner.policy_attributes(attributes);
        let weight = (inner.weigher)(&key, &value).max(1);
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
    /// Blocks that were evicted to make room.
    fn evicted(&self) -> u64 {
        self.counters.sum(CacheCounters::LEFT.at(Cause::Capacity as usize))
    }

    /// How much of the target spare room ends at.
    fn warm_up_limit(&self) -> u64 {
        let target = self.capacity.target();
        target - target / FREE_SHARE
    }

    /// Room for a block, up to the mark. What overhead leaves is looked at again wherever the reclaimer would do so: it shrinks as blocks
    /// come in, and the reclaimer may be late.
    fn reserve_warm_up(&self, weight: u64) -> bool {
        let fits =
            |more: u64| self.capacity.reserved().saturating_add(more) <= self.warm_up_limit();
        if !fits(weight) {
            return false;
        }
        match self.capacity.reserve(weight) {
            Reserved::Yes => return true,
            Reserved::No => return false,
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
            Some(Refusal::TooHeavy | Refusal::NoCapacity) => Err(WarmUpRefusal::NoCapacity),
        }
    }

    /// Puts a loading header of that weight into the index, if there is nothing of its key.
    fn claim_slot(
        &self,
        key: K,
        weight: u32,
        attributes: Attributes,
    ) -> Result<LoadGuard<K, V>, WarmUpRefusal> {
        let hash = self.hash(&key);
        let header = self.slab.take().map_err(|_| WarmUpRefusal::NoMemory)?;
        // SAFETY: fresh from the slab, so this thread's alone.
        let h = unsafe { header.as_ref() };
        // Whatever is said of its past, it comes back under the key that it had.
        let known = Attributes { hint: Hint::Normal, ..attributes };
        // SAFETY: as above.
        unsafe { h.occupy(key, weight, None, self.sampled(hash, known)) };
        if let Err(why) = self.claim_empty(hash, &key, header, attributes.class) {
            // SAFETY: not announced, and occupied without a value.
            unsafe { h.retract(false) };
            self.slab.give(header);
            return Err(why);
        }
        // It was worth keeping: it begins as a block that was asked for once.
        h.set_frequency(Frequency::default().used(self.policy.now()));
        let inner = NonNull::from(self);
        Ok(LoadGuard { header, inner, hash, attributes, frequent: false, refusal: None })
    }

    fn claim_empty(
        &self,
        hash: u64,
        key: &K,
        header: NonNull<Header<K, V>>,
        class: Class,
    ) -> Result<(), WarmUpRefusal> {
        let mut locked = self.index.lock(hash);
        // Asked again under the lock: a close that passes the barrier after this sees the header.
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
        // SAFETY: the hold that was taken with it, given up once and last.
        unsafe { CacheInner::release(self.inner) };
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for WarmUp<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WarmUp").field("bytes", &self.bytes()).finish()
    }
}
