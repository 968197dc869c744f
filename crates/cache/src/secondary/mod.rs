//! The hook for a second level behind this cache.
//!
//! The cache does not know what a second level is made of. It tells it of three things: blocks that are
//! near the cold end and may be worth keeping ([`SecondaryCache::offer`]), loads that it may be able to
//! answer ([`SecondaryCache::load`]), and keys whose old content must never come back
//! ([`SecondaryCache::forget`]). A block that the second level is writing out is not evicted meanwhile: its
//! [`Writing`] guard holds a pin, and the evictor passes it over and counts it. Since the second level
//! has an index of its own, there is no header that lives on the second level only, and a
//! completed write has no lock to meet: dropping the guard is one atomic update (`docs/locking.md` has
//! the proof that R1's retry cannot occur).

mod offer;
pub(crate) mod warm_up;

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::attributes::{Attributes, Cause, Class};
use crate::error::{Refusal, Refused};
use crate::guard::OwnedRef;
use crate::header::{FILLED, HeaderState, LOADING, RETIRED, VALID, WRITING};
use crate::inner::CacheInner;
use crate::insert::PreviousEntry;
use crate::key::Key;
use crate::load::load_guard::LoadGuard;

/// A second level. All calls come from threads of the cache or of its users; none may call back into the
/// same cache except through what it is handed.
///
/// A key must name content that never changes hands: closing an owner does not tell the second level, and
/// its number may be given to another (see [`Cache::close_owner`](crate::Cache::close_owner)).
pub trait SecondaryCache<K: Key, V: Send + Sync + 'static>: Send + Sync + 'static {
    /// Blocks near the cold end, oldest first, whether this level has them or not: it alone knows what it has at the moment.
    /// Take those that are worth writing with [`Candidate::write`]; must not block for I/O. Called by the reclaimer.
    fn offer(&self, candidates: Vec<Candidate<K, V>>);

    /// These blocks have left memory though their content still stands, whether they were offered or not: a level that has
    /// them has the only copy now. Unless a load has brought one back meanwhile. Must not block.
    fn evicted(&self, keys: &[K]) {
        let _ = keys;
    }

    /// Whether letting go of this block would cost a write, since this level does not have it and takes blocks like it, as far as
    /// that can be told. Asked of a block that could as well stay as another. Must not block.
    fn would_write(&self, key: &K, class: Class) -> bool {
        let _ = (key, class);
        false
    }

    /// A load begins. If this level has the block, it keeps the filler, and publishes it when its I/O
    /// is done, from any thread; else it hands the filler back at once. If it turns out that it cannot give the block
    /// after all, it [withdraws](Filler::withdraw) the filler, and hands the next one of that key back: those who wait begin
    /// anew, and a level that goes on taking fillers that it withdraws has them passed over it.
    ///
    /// # Errors
    /// The filler, when this level does not have the block. The cache panics if it is another's.
    fn load(&self, guard: LoadGuard<K, V>) -> Result<(), LoadGuard<K, V>>;

    /// The key's content has changed or is gone: what this level has of it must never be returned
    /// again, not even after a crash. May block until that is so.
    fn forget(&self, key: &K);

    /// Whether there is a level behind this at the moment. While it says no, the cache works as if it had none:
    /// nothing is offered, nothing asked for, nothing told, and inserters evict for themselves. It is asked often: no more than a
    /// relaxed load.
    ///
    /// What changes meanwhile is not told: only a level whose keys name content that never changes, or one that has nothing
    /// and never will have anything of before, may ever say no.
    fn is_active(&self) -> bool {
        true
    }
}

/// A block that a second level may write.
pub struct Candidate<K: Key, V: Send + Sync + 'static> {
    block: OwnedRef<K, V>,
    /// Its class.
    pub class: Class,
    /// Whether it is in mfu, or has been looked up in mru: it has proven reuse.
    pub reused: bool,
}

impl<K: Key, V: Send + Sync + 'static> Candidate<K, V> {
    pub(crate) fn new(block: OwnedRef<K, V>, class: Class, reused: bool) -> Self {
        Self { block, class, reused }
    }

    /// Its key.
    pub fn key(&self) -> &K {
        self.block.key()
    }

    /// Its value.
    pub fn value(&self) -> &V {
        &self.block
    }

    /// Keeps the block from being evicted until the guard goes. `None` if it is being written already,
    /// or has left the cache.
    pub fn write(self) -> Option<Writing<K, V>> {
        self.try_write().ok()
    }

    /// As [`write`](Self::write), but gives the candidate back instead of dropping it: that may be the last pin of a value, whose
    /// drop must not run under a lock.
    ///
    /// # Errors
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

/// A block that is being written to the second level.
pub struct Writing<K: Key, V: Send + Sync + 'static> {
    block: OwnedRef<K, V>,
}

impl<K: Key, V: Send + Sync + 'static> Writing<K, V> {
    /// Its key.
    pub fn key(&self) -> &K {
        self.block.key()
    }

    /// Whether it was removed, overwritten or flushed since: there is no use in writing it. If not, it may be the next
    /// moment: [`stored`](Self::stored) decides.
    pub fn is_outdated(&self) -> bool {
        !is_current(self.block.header().state())
    }

    /// The block has been written. False if it was removed or overwritten meanwhile, so that what was written is outdated and
    /// must never be returned. A second level calls this and makes the block findable in one step as [`SecondaryCache::load`]
    /// and [`SecondaryCache::forget`] see it, under a lock of its own for instance.
    pub fn stored(self) -> bool {
        !self.is_outdated()
    }
}

/// Whether a block that is being written is still what its key stands for.
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

/// The duty to fill a slot, and what was in it.
type TakenOver<K, V> = (LoadGuard<K, V>, PreviousEntry<K, V>);

/// Changing a key's content where there is a second level.
///
/// Neither order of "let go of the old block" and "forget it" will do: if the second level forgets first,
/// a write of the old block may end after that; if the cache lets go first, a load may bring the
/// old content back from the second level before that forgets it. So the old block's slot goes to a
/// header that is loading, in one step, before the second level forgets: a write that ends later hears
/// that it is outdated, and who asks for the key waits until it is forgotten.
impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// The second level, if there is one at the moment.
    #[inline]
    pub(crate) fn active_secondary(&self) -> Option<&dyn SecondaryCache<K, V>> {
        self.secondary.as_deref().filter(|secondary| secondary.is_active())
    }

    /// Removes a block, from the second level too. True if it was cached.
    pub(crate) fn remove_everywhere(&self, hash: u64, key: &K, cause: Cause) -> bool {
        let Some(secondary) = self.active_secondary() else { return self.remove(hash, key, cause) };
        match self.take_over(hash, key, 0, Attributes::DATA, cause) {
            Ok((guard, previous)) => {
                let was_cached = match previous {
                    PreviousEntry::Nothing => false,
                    PreviousEntry::Ghost(list, _) => {
                        self.ghosts[list.number()].count_slots(0, 1);
                        false
                    }
                    PreviousEntry::Resident(old, before) => {
                        self.count_left(old, before, cause);
                        // SAFETY: the pin that `retire` took.
                        unsafe { Self::unpin(NonNull::from(self), old) };
                        before.has(FILLED)
                    }
                };
                secondary.forget(key);
                guard.withdraw();
                was_cached
            }
            // Closed, or without memory for a header: then as well as can be.
            Err(_) => {
                secondary.forget(key);
                let was_cached = self.remove(hash, key, cause);
                secondary.forget(key);
                was_cached
            }
        }
    }

    /// Puts a value in for which there is room, over any other of that key on either level.
    pub(crate) fn insert_over(
        &self,
        secondary: &dyn SecondaryCache<K, V>,
        hash: u64,
        key: K,
        value: V,
        (weight, attributes): (u32, Attributes),
    ) -> Result<(), Refused<V>> {
        let class = attributes.class;
        let taken = match self.refuse(&key, class, 0) {
            Some(reason) => Err(reason),
            None => self.take_over(hash, &key, weight, attributes, Cause::Replaced),
        };
        match taken {
            Ok((mut guard, previous)) => {
                guard.frequent = self.note_previous(&previous, hash, guard.header, attributes);
                secondary.forget(&key);
                drop(guard.publish_weighed(value, weight, None));
                Ok(())
            }
            Err(reason) => {
                self.capacity.release(u64::from(weight));
                Err(self.refuse_insert(hash, &key, value, reason, class))
            }
        }
    }

    /// Puts a loading header in the place of whatever the index has for that key.
    fn take_over(
        &self,
        hash: u64,
        key: &K,
        weight: u32,
        attributes: Attributes,
        cause: Cause,
    ) -> Result<TakenOver<K, V>, Refusal> {
        let header = self.slab.take().map_err(|_| Refusal::NoMemory)?;
        // SAFETY: fresh from the slab, so this thread's alone.
        let h = unsafe { header.as_ref() };
        // SAFETY: as above.
        unsafe { h.occupy(*key, weight, None, self.sampled(hash, attributes)) };
        let previous = {
            let mut locked = self.index.lock(hash);
            if self.refuse(key, attributes.class, 0) == Some(Refusal::Closed) {
                Err(Refusal::Closed)
            } else {
                let known = Self::find_known(&locked, key);
                let put = self.put(&mut locked, known, (hash, header), LOADING, cause);
                put.map_err(|_| Refusal::NoMemory)
            }
        };
        let inner = NonNull::from(self);
        match previous {
            Ok(previous) => {
                let (frequent, refusal) = (false, None);
                let guard = LoadGuard { header, inner, hash, attributes, frequent, refusal };
                Ok((guard, previous))
            }
            Err(reason) => {
                // SAFETY: not announced, and occupied without a value.
                unsafe { h.retract(false) };
                self.slab.give(header);
                Err(reason)
            }
        }
    }
}
