//! Changes of a key in two steps, for callers that must not block while the secondary cache forgets
//! the old content.
//!
//! The first step reserves capacity and takes over the key's slot, as an insert or a removal does.
//! The caller has the secondary cache forget the key, and then ends the change. Meanwhile requests
//! for the key wait, as for a load.
//!
//! Invariant: the secondary cache has forgotten the key before [`Change::publish`] or
//! [`Change::remove`]. The caller sees to that.
//!
//! Locking: `index-partition` to take over a slot.

use std::fmt;

use crate::attributes::{Attributes, Cause};
use crate::cache::Cache;
use crate::capacity::reserve::CapacityFuture;
use crate::error::Refusal;
use crate::guard::{OwnedRef, Ref};
use crate::insert::{PutError, Replaces};
use crate::key::Key;
use crate::key_calls::undone;
use crate::load::load_guard::LoadGuard;

/// A change of a key that has begun. Dropping it removes the key from memory.
pub struct Change<K: Key, V: Send + Sync + 'static> {
    guard: LoadGuard<K, V>,
    weight: u32,
    was_cached: bool,
}

impl<K: Key, V: Send + Sync + 'static> Change<K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        self.guard.key()
    }

    /// Whether a block of the key was cached.
    pub fn was_cached(&self) -> bool {
        self.was_cached
    }

    /// Ends an insert: caches the value that was weighed when it began, and wakes all waiters.
    pub fn publish(self, value: V) {
        self.guard.remove_later_load();
        drop(self.guard.publish_weighed(value, self.weight, None));
    }

    /// Ends a removal: waiters begin again.
    pub fn remove(self) {
        self.guard.remove_later_load();
        self.guard.withdraw();
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + 'static> fmt::Debug for Change<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("key", self.key()).finish_non_exhaustive()
    }
}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Begins to insert a value without asking the secondary cache. Waits for capacity without
    /// blocking the thread; needs no runtime.
    ///
    /// For the front of a cache and its secondary cache. The key leaves memory now. Have the
    /// secondary cache forget it, then [publish](Change::publish) the value. `permit` is asked
    /// once, when there is capacity and just before the key leaves memory; `None` stands for
    /// [`Refusal::Closed`].
    ///
    /// # Errors
    ///
    /// Why the value will not be cached. The old content is still there and must be removed, as
    /// [`begin_remove`](Self::begin_remove) does.
    pub async fn begin_insert<P>(
        &self,
        key: K,
        value: &V,
        attributes: Attributes,
        permit: impl FnOnce() -> Option<P>,
    ) -> Result<(Change<K, V>, P), Refusal> {
        let inner = self.inner();
        let attributes = inner.policy_attributes(attributes);
        let (hash, class) = (inner.hash(&key), attributes.class);
        let weight = inner.weigh(&key, value);
        let mut refusal = inner.refuse(&key, class, weight);
        if refusal.is_none() && !inner.try_reserve(weight) {
            let reserved = match CapacityFuture::new(inner, weight) {
                Ok(waiting) => waiting.await,
                Err(outcome) => outcome,
            };
            refusal = (!reserved).then_some(Refusal::NoCapacity);
        }
        if let Some(reason) = refusal {
            inner.count_refusal(reason, class);
            return Err(reason);
        }
        let reserved = weight as u32;
        let permitted = undone(|| inner.capacity.release(weight), permit);
        let taken = permitted.ok_or(Refusal::Closed).and_then(|permit| {
            let replaced = Cause::Replaced;
            match inner.take_over(hash, &key, (reserved, attributes), replaced, Replaces::Any) {
                Ok((guard, previous)) => Ok((guard, previous, permit)),
                Err(PutError::Refused(reason)) => Err(reason),
                Err(PutError::Changed) => unreachable!("any entry will do"),
            }
        });
        let (mut guard, previous, permit) = taken.inspect_err(|reason| {
            inner.capacity.release(weight);
            inner.count_refusal(*reason, class);
        })?;
        let was_cached = previous.was_cached();
        guard.frequent = inner.note_previous(&previous, hash, guard.header, attributes, true);
        Ok((Change { guard, weight: reserved, was_cached }, permit))
    }

    /// Begins to remove a key for this cause without asking the secondary cache. `None` if the
    /// cache is closed or the system has no memory.
    ///
    /// For the front of a cache and its secondary cache. The key leaves memory now. Have the
    /// secondary cache forget it, then end the [removal](Change::remove).
    pub fn begin_remove(&self, key: &K, cause: Cause) -> Option<Change<K, V>> {
        let inner = self.inner();
        let taken = inner.take_over_to_remove(inner.hash(key), key, cause, None);
        let (guard, removed) = taken.ok()?;
        Some(Change { guard, weight: 0, was_cached: removed.is_some() })
    }

    /// Does the same as [`begin_remove`](Self::begin_remove), if the key still has this very block.
    /// Otherwise `None`.
    ///
    /// # Errors
    /// If the cache is closed or the system has no memory.
    pub fn begin_remove_block(
        &self,
        block: &OwnedRef<K, V>,
        cause: Cause,
    ) -> Result<Option<Change<K, V>>, Refusal> {
        let (inner, key) = (self.inner(), block.key());
        let only = Some(block.pinned_header());
        match inner.take_over_to_remove(inner.hash(key), key, cause, only) {
            Ok((guard, removed)) => {
                Ok(Some(Change { guard, weight: 0, was_cached: removed.is_some() }))
            }
            Err(PutError::Changed) => Ok(None),
            Err(PutError::Refused(reason)) => Err(reason),
        }
    }

    /// Removes a block from memory, because its time is over, unless it has left already. The
    /// secondary cache is told of it as of an eviction.
    ///
    /// For the front of a cache and its secondary cache. Returns whether the block was cached.
    pub fn expire(&self, block: &Ref<'_, K, V>) -> bool {
        self.inner().expire_block(block)
    }

    /// Removes all keys for which `wanted` is true from memory only, those that are being loaded
    /// included: these reach the callers that wait for them, uncached. Returns how many blocks were
    /// cached.
    ///
    /// For the front of a cache and its secondary cache, which has to forget them. `wanted` must
    /// not call the cache.
    pub fn remove_all_from_memory(&self, wanted: impl Fn(&K) -> bool) -> u64 {
        let inner = self.inner();
        // Those that began before are found by the sweep.
        inner.index.barrier();
        inner.sweep(Cause::Removed, |key, _| wanted(key))
    }

    /// Removes a key from memory only, so that the secondary cache may supply it again.
    ///
    /// For the front of a cache and its secondary cache, if [`begin_remove`](Self::begin_remove)
    /// found no memory. Returns whether a block was cached.
    pub fn remove_from_memory(&self, key: &K) -> bool {
        let inner = self.inner();
        inner.remove(inner.hash(key), key, Cause::Removed, None).is_some()
    }
}
