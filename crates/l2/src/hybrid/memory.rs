//! The memory of a hybrid cache, as its user may handle it: nothing here takes a value away that the device would bring back.

use std::fmt;

use forebay_base::tunables::TunableError;
use forebay_cache::tunables::CacheTunables;
use forebay_cache::{Cache, Key, Ref, Stats};

/// The memory of a [`HybridCache`](super::HybridCache) alone. What is to be gone for good is
/// [removed](super::HybridCache::remove) from both.
pub struct HybridMemory<'a, K: Key, V: Send + Sync + 'static> {
    cache: &'a Cache<K, V>,
}

impl<'a, K: Key, V: Send + Sync + 'static> HybridMemory<'a, K, V> {
    pub(super) fn new(cache: &'a Cache<K, V>) -> Self {
        Self { cache }
    }

    /// The value of that key, if memory has it. The device is not asked.
    pub fn get(&self, key: &K) -> Option<Ref<'a, K, V>> {
        self.cache.get(key)
    }

    /// Whether memory has a value of that key. Does not count as a use.
    pub fn contains(&self, key: &K) -> bool {
        self.cache.contains(key)
    }

    /// Evicts everything, and returns how many values that were: what the device has is read from there when it is asked for
    /// again, and what is in memory only is lost, unless it was [written](super::HybridCache::flush_to_device) before.
    pub fn evict_all(&self) -> u64 {
        self.cache.flush()
    }

    /// Gives memory that is not needed at the moment back to the system.
    pub fn trim(&self) {
        self.cache.trim();
    }

    /// Changes the capacity, or the bound if that is what the cache was built with; see [`Cache::resize`].
    ///
    /// # Panics
    /// If `bytes` is zero.
    pub fn resize(&self, bytes: u64) {
        self.cache.resize(bytes);
    }

    /// What it holds and has done.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Its tunables.
    pub fn tunables(&self) -> &'a CacheTunables {
        self.cache.tunables()
    }

    /// Sets a tunable by its name.
    ///
    /// # Errors
    /// When the name, the value or the time is wrong; it says what would be right.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.cache.set_tunable(name, value)
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for HybridMemory<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridMemory").finish_non_exhaustive()
    }
}
