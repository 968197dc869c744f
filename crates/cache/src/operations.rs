//! Operations on blocks that are cached: a look that counts no use, removals, and visits of all.
//!
//! Functions of the user's run on pinned blocks, and under no lock. A removal with a condition pins
//! the block, asks, and then removes that very block or asks again: the block may have been
//! replaced meanwhile.
//!
//! Locking: `index-partition` to remove; `slab-central` for a look at each chunk of headers.

use std::fmt;
use std::ops::Range;

use crate::attributes::{Cause, Class};
use crate::cache::Cache;
use crate::guard::{OwnedRef, Ref};
use crate::header::VALID;
use crate::inner::CacheInner;
use crate::key::Key;

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Returns the block, pinned, if it is cached. Does the same as [`get`](Self::get), but counts
    /// neither a use nor a hit or miss.
    pub fn peek(&self, key: &K) -> Option<Ref<'_, K, V>> {
        let inner = self.inner();
        let (header, _) = inner.pin(inner.hash(key), key, 0)?;
        // SAFETY: pinned just now, from a valid state.
        Some(unsafe { Ref::from_pin(inner, header) })
    }

    /// Whether the block is cached. Does not count as a use.
    pub fn contains(&self, key: &K) -> bool {
        self.peek(key).is_some()
    }

    /// Number of cached blocks. It takes no lock, so it is an estimate while other threads change
    /// the cache.
    pub fn len(&self) -> usize {
        self.inner().resident_blocks() as usize
    }

    /// Whether no block is cached; see [`len`](Self::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits all blocks, in no particular order, without counting a use.
    ///
    /// A block that is cached from the beginning to the end is visited once. One that is inserted,
    /// removed or replaced meanwhile may be visited or not. Each is pinned from when it is returned
    /// until its reference is dropped, and no lock is held in between. Do not collect the
    /// references of a large cache: what is pinned cannot be evicted.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert(7, 70)?;
    /// cache.insert(8, 80)?;
    /// assert_eq!(cache.iter().map(|block| *block).sum::<u32>(), 150);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { inner: self.inner(), next_chunk: 0, ids: 0..0 }
    }

    /// Removes a block and returns it, pinned. Threads that have it pinned keep it.
    ///
    /// A block that is being loaded will not be cached. It has no value yet, so then there is
    /// nothing to return. A secondary cache forgets the block too. If only that has it, there is
    /// nothing to return either.
    ///
    /// The value is dropped with the last reference. [`OwnedRef::try_into_value`] takes it out.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert(7, 70)?;
    /// assert_eq!(cache.remove(&7).as_deref(), Some(&70));
    /// assert!(cache.remove(&7).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, key: &K) -> Option<OwnedRef<K, V>> {
        let inner = self.inner();
        let hash = inner.hash(key);
        inner.simulations.note_removal(hash);
        inner.remove_everywhere(hash, key, Cause::Removed, None)
    }

    /// Removes a block if it is cached and `condition` is true for its value. Returns it, pinned.
    ///
    /// What is removed is the value that `condition` was called with. If it is replaced meanwhile,
    /// `condition` is called again, with the new value. A block that is being loaded, or that only
    /// the secondary cache has, is not asked for and stays. `condition` runs under no lock.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert(7, 70)?;
    /// assert!(cache.remove_if(&7, |value| *value > 99).is_none());
    /// assert_eq!(cache.remove_if(&7, |value| *value < 99).as_deref(), Some(&70));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_if(
        &self,
        key: &K,
        mut condition: impl FnMut(&V) -> bool,
    ) -> Option<OwnedRef<K, V>> {
        let inner = self.inner();
        let hash = inner.hash(key);
        loop {
            let (header, _) = inner.pin(hash, key, 0)?;
            // SAFETY: pinned just now, from a valid state.
            let block = unsafe { Ref::from_pin(inner, header) };
            if !condition(&block) {
                return None;
            }
            let only = Some(block.header());
            if let Some(removed) = inner.remove_everywhere(hash, key, Cause::Removed, only) {
                inner.simulations.note_removal(hash);
                return Some(removed);
            }
        }
    }

    /// Removes all blocks for which `keep` is false. Returns how many.
    ///
    /// A block that is being loaded has no value to judge. It is handed to those that wait for it,
    /// and is not cached. So no block that `keep` would have rejected comes into the cache by a
    /// load that began before. The secondary cache keeps what it has: these blocks are evicted, not
    /// outdated. `keep` runs under no lock.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert(7, 70)?;
    /// cache.insert(8, 80)?;
    /// assert_eq!(cache.retain(|_key, value, _class| *value > 75), 1);
    /// assert!(!cache.contains(&7) && cache.contains(&8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retain(&self, keep: impl FnMut(&K, &V, Class) -> bool) -> u64 {
        self.inner().retain(keep)
    }

    /// Removes all blocks and ghosts, and returns memory to the system. Returns how many blocks
    /// were removed. The secondary cache keeps what it has.
    ///
    /// Pinned blocks leave the cache now, and are freed with their last pin. A block that is being
    /// loaded will not be cached.
    pub fn clear(&self) -> u64 {
        let inner = self.inner();
        let removed = inner.sweep(Cause::Cleared, |_, _| true);
        inner.remove_ghosts(|_| true);
        inner.simulations.clear();
        self.trim();
        removed
    }
}

impl<'a, K: Key, V: Send + Sync + 'static> IntoIterator for &'a Cache<K, V> {
    type Item = Ref<'a, K, V>;
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// Visits all blocks of a cache. Made by [`Cache::iter`].
pub struct Iter<'a, K: Key, V: Send + Sync + 'static> {
    inner: &'a CacheInner<K, V>,
    /// The chunk of headers after the current one.
    next_chunk: usize,
    /// Ids of headers of the current chunk that were not visited yet.
    ids: Range<u32>,
}

impl<'a, K: Key, V: Send + Sync + 'static> Iterator for Iter<'a, K, V> {
    type Item = Ref<'a, K, V>;

    fn next(&mut self) -> Option<Ref<'a, K, V>> {
        let inner = self.inner;
        loop {
            for header in self.ids.by_ref().filter_map(|id| inner.slab.by_id(id)) {
                // SAFETY: headers are type-stable.
                let h = unsafe { header.as_ref() };
                if inner.pin_if(h, |s| s.has(VALID).then_some(s)).is_some() {
                    // SAFETY: pinned just now, from a valid state.
                    return Some(unsafe { Ref::from_pin(inner, header) });
                }
            }
            self.ids = inner.slab.ids_of_chunk(self.next_chunk)?;
            self.next_chunk += 1;
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}
