//! The secondary cache: the trait by which a slower cache, such as L2, stands behind this one.
//!
//! This cache makes three kinds of calls: it offers blocks near the cold end
//! ([`SecondaryCache::offer`]), offers loads ([`SecondaryCache::load`]), and tells which keys have
//! changed ([`SecondaryCache::forget`]).
//!
//! Invariants
//!
//! * A block that the secondary cache is writing is not evicted: its [`Writing`] guard holds a pin.
//! * The secondary cache has its own index, so no header exists only for it.
//! * Completing a write takes no lock: dropping the guard is one atomic update.
//! * Once an insert or a removal returns, no load returns older content of that key from the
//!   secondary cache. `docs/locking.md` has the proof.
//!
//! Locking: `index-partition` to take over a slot. No lock is held while the secondary cache is
//! called, except `reclaim` or `evict-scratch` of the evictor.

pub(crate) mod change;
mod offer;
pub(crate) mod warm_up;

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::attributes::{Attributes, Cause, Class};
use crate::error::Refusal;
use crate::guard::OwnedRef;
use crate::header::{FILLED, Header, HeaderState, LOADING, RETIRED, VALID, WRITING};
use crate::inner::CacheInner;
use crate::insert::{NotInserted, PreviousEntry, PutError, Replaces};
use crate::key::Key;
use crate::load::load_guard::LoadGuard;

/// A cache behind this one, such as L2.
///
/// Threads of the cache and of its users make the calls. An implementation must not call the same
/// cache, except through its arguments.
///
/// A key must never name other content later. Closing an owner is not reported, and its number may
/// be reused (see [`Cache::close_owner`](crate::Cache::close_owner)).
pub trait SecondaryCache<K: Key, V: Send + Sync + 'static>: Send + Sync + 'static {
    /// Offers blocks near the cold end, oldest first. Some may be stored already.
    ///
    /// Take blocks to write with [`Candidate::write`]. Must not block for I/O. Called by the
    /// evictor.
    fn offer(&self, candidates: Vec<Candidate<K, V>>);

    /// Reports keys whose blocks were evicted from memory, offered or not, while their content is
    /// still valid.
    ///
    /// A stored block is the only copy now, unless a load has brought it back meanwhile. Must not
    /// block.
    fn evicted(&self, keys: &[K]) {
        let _ = keys;
    }

    /// Whether evicting this block would cause a write: it is not stored, and blocks like it are
    /// admitted. May be an estimate.
    ///
    /// Asked for blocks that could as well stay. Must not block.
    fn would_write(&self, key: &K, class: Class) -> bool {
        let _ = (key, class);
        false
    }

    /// Tells whether the block is stored, or may not be; `None` if that is not known, or if blocks
    /// of its owner have no secondary cache. May be an estimate. Asked for some of the blocks that
    /// are evicted or missed, to explain misses. Must not block.
    fn holding(&self, key: &K, class: Class) -> Option<Holding> {
        let _ = (key, class);
        None
    }

    /// The weight of the blocks that it can hold, about, in bytes; `None` if that is not known.
    /// Asked once a second, for its miss-ratio curve. Must not block.
    fn capacity_bytes(&self) -> Option<u64> {
        None
    }

    /// Offers a load that begins.
    ///
    /// If the block is stored, keep the guard and publish the block when its read completes, on any
    /// thread. Otherwise return the guard at once. If the block cannot be supplied after all,
    /// [withdraw](LoadGuard::withdraw) the guard and return the next guard for that key. Waiters
    /// begin again. After a few withdrawals the load is no longer offered.
    ///
    /// # Errors
    ///
    /// The guard, if the block is not stored. The cache panics if it is another load's guard.
    fn load(&self, guard: LoadGuard<K, V>) -> Result<(), LoadGuard<K, V>>;

    /// Reports that a load provides a value of the key, after the secondary cache has declined or
    /// withdrawn it and said that it may have a block: by [`LoadGuard::supersede`], or by many
    /// withdrawals. Also if it was not asked, as by [`begin_new`](crate::Cache::begin_new). Not if
    /// the key was inserted or removed during the load.
    ///
    /// The value is newer, unless keys name immutable content. So do not return the block any more,
    /// as long as this process runs. The load has not ended. Must not block.
    fn superseded(&self, key: &K) {
        let _ = key;
    }

    /// Ensures that older content of the key is never returned again, not even after a crash. May
    /// block until that is durable.
    fn forget(&self, key: &K);

    /// Whether a secondary cache is attached at the moment.
    ///
    /// While this is false, the cache behaves as if it had none: it makes no calls, and inserters
    /// evict without offering. It is called often, so it should cost no more than a relaxed load.
    ///
    /// Changes during that time are not reported. So return false only if keys name immutable
    /// content, or if nothing is stored and nothing older ever will be.
    fn is_active(&self) -> bool {
        true
    }
}

/// Whether a secondary cache has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It has it.
    Stored,
    /// It does not have it, but takes such blocks.
    NotStored,
    /// It never takes such blocks.
    Excluded,
}

/// A block offered to the secondary cache.
pub struct Candidate<K: Key, V: Send + Sync + 'static> {
    block: OwnedRef<K, V>,
    /// Class of the block.
    pub class: Class,
    /// Whether the block is in MFU, or was hit in MRU.
    pub reused: bool,
}

impl<K: Key, V: Send + Sync + 'static> Candidate<K, V> {
    pub(crate) fn new(block: OwnedRef<K, V>, class: Class, reused: bool) -> Self {
        Self { block, class, reused }
    }

    /// Key of the block.
    pub fn key(&self) -> &K {
        self.block.key()
    }

    /// Value of the block.
    pub fn value(&self) -> &V {
        &self.block
    }

    /// Protects the block from eviction until the guard is dropped. `None` if it is being written
    /// already, or has left the cache.
    pub fn write(self) -> Option<Writing<K, V>> {
        self.try_write().ok()
    }

    /// Does the same as [`write`](Self::write), but returns the candidate instead of dropping it.
    /// Dropping may release the last pin and drop the value, which must not happen under a lock.
    ///
    /// # Errors
    ///
    /// The candidate.
    pub fn try_write(self) -> Result<Writing<K, V>, Self> {
        let begun = self
            .block
            .header()
            .update(|s| (s.has(VALID) && !s.has(WRITING)).then(|| s.with(WRITING)));
        match begun {
            Some(_) => Ok(Writing { block: self.block }),
            None => Err(self),
        }
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + 'static> fmt::Debug for Candidate<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("key", self.key())
            .field("class", &self.class)
            .field("reused", &self.reused)
            .finish()
    }
}

/// A block that is being written to the secondary cache. Dropping it ends the protection from
/// eviction.
pub struct Writing<K: Key, V: Send + Sync + 'static> {
    block: OwnedRef<K, V>,
}

impl<K: Key, V: Send + Sync + 'static> Writing<K, V> {
    /// Key of the block.
    pub fn key(&self) -> &K {
        self.block.key()
    }

    /// Whether the block was removed, overwritten or flushed meanwhile. If true, there is no need
    /// to write it. If false, that may change at any moment: [`stored`](Self::stored) decides.
    pub fn is_outdated(&self) -> bool {
        !is_current(self.block.header().state())
    }

    /// Ends a completed write. False if the block was removed or overwritten meanwhile: then the
    /// written copy is outdated and must never be returned.
    ///
    /// Call this and insert the block into the index in one step with respect to
    /// [`SecondaryCache::load`] and [`SecondaryCache::forget`], for instance under one lock.
    pub fn stored(self) -> bool {
        !self.is_outdated()
    }
}

/// Whether a block that is being written is still the content of its key.
fn is_current(state: HeaderState) -> bool {
    state.has(FILLED) && !state.has(RETIRED)
}

impl<K: Key, V: Send + Sync + 'static> Deref for Writing<K, V> {
    type Target = V;
    fn deref(&self) -> &V {
        &self.block
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Writing<K, V> {
    fn drop(&mut self) {
        self.block.header().update(|s| Some(s.without(WRITING)));
    }
}

/// A guard for the slot, and the entry that was in it.
type TakenOver<K, V> = (LoadGuard<K, V>, PreviousEntry<K, V>);

impl<K: Key, V: Send + Sync + 'static> LoadGuard<K, V> {
    /// Removes what has come into the slot that this guard took over, if a sweep or another change
    /// has retired its header meanwhile: it may be a load that the secondary cache began before it
    /// forgot the key. Called once it has forgotten, before the change ends.
    pub(crate) fn remove_later_load(&self) {
        // SAFETY: the guard's pin keeps the cache alive.
        let (inner, header) = unsafe { (self.inner.as_ref(), self.header.as_ref()) };
        if header.state().has(RETIRED) {
            drop(inner.remove(self.hash, self.key(), Cause::Replaced, None));
        }
    }
}

/// Changing a key's content while there is a secondary cache.
///
/// Neither order of "retire the old block" and "forget the key" is correct. If the secondary cache
/// forgets first, a write of the old block may complete later. If the block is retired first, a
/// load may return the old content before it is forgotten. So the slot first goes to a loading
/// header, in one step. A write that completes later finds its block outdated, and requests for the
/// key wait until it is forgotten.
impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// The secondary cache, if it is active.
    #[inline]
    pub(crate) fn active_secondary(&self) -> Option<&dyn SecondaryCache<K, V>> {
        self.secondary.as_deref().filter(|secondary| secondary.is_active())
    }

    /// Removes a block, also from the secondary cache, and returns it if it was cached: any block
    /// of the key, or `only` that one.
    pub(crate) fn remove_everywhere(
        &self,
        hash: u64,
        key: &K,
        cause: Cause,
        only: Option<NonNull<Header<K, V>>>,
    ) -> Option<OwnedRef<K, V>> {
        let Some(secondary) = self.active_secondary() else {
            return self.remove(hash, key, cause, only);
        };
        match self.take_over_to_remove(hash, key, cause, only) {
            Ok((guard, removed)) => {
                secondary.forget(key);
                guard.remove_later_load();
                guard.withdraw();
                removed
            }
            Err(PutError::Changed) => None,
            // Closed, or no memory for a header. Forgetting before and after the removal is the
            // best that is possible.
            Err(PutError::Refused(_)) => {
                secondary.forget(key);
                let removed = self.remove(hash, key, cause, only);
                secondary.forget(key);
                removed
            }
        }
    }

    /// Takes over the slot of a key that is to be removed, and returns what was cached: any block
    /// of the key, or `only` that one.
    fn take_over_to_remove(
        &self,
        hash: u64,
        key: &K,
        cause: Cause,
        only: Option<NonNull<Header<K, V>>>,
    ) -> Result<(LoadGuard<K, V>, Option<OwnedRef<K, V>>), PutError> {
        let attributes = Attributes::DATA;
        let replaces = only.map_or(Replaces::Any, Replaces::Only);
        let (guard, previous) = self.take_over(hash, key, (0, attributes), cause, replaces)?;
        let removed = match previous {
            PreviousEntry::Nothing => None,
            PreviousEntry::Ghost(list, _) => {
                self.ghosts[list.number()].count_slots(0, 1);
                None
            }
            PreviousEntry::Resident(old, before) => self.left(old, before, cause),
        };
        Ok((guard, removed))
    }

    /// Replaces the block of a key in both caches, and returns the new one. The capacity is
    /// reserved already.
    pub(crate) fn insert_over(
        &self,
        secondary: &dyn SecondaryCache<K, V>,
        hash: u64,
        (key, replaces): (K, Replaces<K, V>),
        value: V,
        (weight, attributes): (u32, Attributes),
    ) -> Result<OwnedRef<K, V>, NotInserted<V>> {
        let class = attributes.class;
        let taken = match self.refuse(&key, class, 0) {
            Some(reason) => Err(PutError::Refused(reason)),
            None => self.take_over(hash, &key, (weight, attributes), Cause::Replaced, replaces),
        };
        match taken {
            Ok((mut guard, previous)) => {
                guard.frequent =
                    self.note_previous(&previous, hash, guard.header, attributes, true);
                secondary.forget(&key);
                guard.remove_later_load();
                Ok(guard.publish_weighed(value, weight, None))
            }
            Err(error) => {
                self.capacity.release(u64::from(weight));
                let PutError::Refused(reason) = error else {
                    return Err(NotInserted::Changed(value));
                };
                Err(self.refuse_insert(hash, (&key, replaces), value, reason, class))
            }
        }
    }

    /// Puts a loading header into the key's slot, in place of what it may replace.
    fn take_over(
        &self,
        hash: u64,
        key: &K,
        (weight, attributes): (u32, Attributes),
        cause: Cause,
        replaces: Replaces<K, V>,
    ) -> Result<TakenOver<K, V>, PutError> {
        let header = self.slab.take().map_err(|_| PutError::Refused(Refusal::NoMemory))?;
        // SAFETY: fresh from the slab, so this thread's alone.
        let h = unsafe { header.as_ref() };
        // SAFETY: fresh from the slab, so it is free and this thread's alone.
        unsafe { h.occupy(*key, weight, None, self.sampled(hash, attributes)) };
        let previous = {
            let mut locked = self.index.lock(hash);
            if self.refuse(key, attributes.class, 0) == Some(Refusal::Closed) {
                Err(PutError::Refused(Refusal::Closed))
            } else {
                self.put_over(&mut locked, (key, replaces), (hash, header), LOADING, cause)
            }
        };
        let inner = NonNull::from(self);
        match previous {
            Ok(previous) => Ok((LoadGuard::new(inner, header, hash, attributes), previous)),
            Err(error) => {
                // SAFETY: not announced, and occupied without a value.
                unsafe { h.retract(false) };
                self.slab.give(header);
                Err(error)
            }
        }
    }
}
