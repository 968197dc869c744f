//! The memory of a hybrid cache. Nothing here removes a value that the device would restore.

use std::fmt;

use forebay_base::tunables::TunableError;
use forebay_cache::tunables::CacheTunables;
use forebay_cache::{Cache, Key, Ref, Stats, Usage};

use super::expiry::Expiries;

/// The memory side of a [`HybridCache`](super::HybridCache). To remove a value for good, use
/// [`HybridCache::remove`](super::HybridCache::remove).
pub struct HybridMemory<'a, K: Key, V: Send + Sync + 'static> {
    cache: &'a Cache<K, V>,
    expiries: Option<&'a Expiries<V>>,
}

impl<'a, K: Key, V: Send + Sync + 'static> HybridMemory<'a, K, V> {
    pub(super) fn new(cache: &'a Cache<K, V>, expiries: Option<&'a Expiries<V>>) -> Self {
        Self { cache, expiries }
    }

    fn lives(&self, value: &V) -> bool {
        !self.expiries.is_some_and(|expiries| expiries.has_expired(value))
    }

    /// The value of the key, if it is in memory. Does not read the device.
    pub fn get(&self, key: &K) -> Option<Ref<'a, K, V>> {
        self.cache.get(key).filter(|value| self.lives(value))
    }

    /// Whether a value of the key is in memory. Does not count as a use.
    pub fn contains(&self, key: &K) -> bool {
        self.peek(key).is_some()
    }

    /// The value of the key, if it is in memory. Unlike [`get`](Self::get), it counts neither a use
    /// nor a hit or miss.
    pub fn peek(&self, key: &K) -> Option<Ref<'a, K, V>> {
        self.cache.peek(key).filter(|value| self.lives(value))
    }

    /// Number of values in memory, including expired ones that were not removed yet; see
    /// [`Cache::len`].
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether no value is in memory; see [`Cache::len`].
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Visits the values in memory, without counting a use, including expired ones that were not
    /// removed yet; see [`Cache::iter`].
    pub fn iter(&self) -> forebay_cache::Iter<'a, K, V> {
        self.cache.iter()
    }

    /// Evicts all values and returns their number. Values on the device are read again when
    /// requested. Values only in memory are lost, unless they were
    /// [written](super::HybridCache::flush_to_device) before.
    pub fn evict_all(&self) -> u64 {
        self.cache.clear()
    }

    /// Waits until no value that has left memory waits for the listener; see
    /// [`Cache::drain_listener`].
    pub fn drain_listener(&self) {
        self.cache.drain_listener();
    }

    /// Returns unused memory to the system.
    pub fn trim(&self) {
        self.cache.trim();
    }

    /// Changes the capacity, or the bound if the cache was built with one; see [`Cache::resize`].
    ///
    /// # Panics
    /// If `bytes` is zero.
    pub fn resize(&self, bytes: u64) {
        self.cache.resize(bytes);
    }

    /// Statistics of the cache in memory.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Sizes and counters of the cache in memory. Takes no lock.
    pub fn usage(&self) -> Usage {
        self.cache.usage()
    }

    /// The hit ratio that more or less memory would have had over the last minutes, hits on the
    /// device not counted; see [`Cache::curve`].
    #[cfg(feature = "insight")]
    pub fn curve(&self) -> forebay_cache::Curve {
        self.cache.curve()
    }

    /// The misses that a smaller or larger L2 would have served over the last minutes, while it
    /// [records](Self::record); see [`Cache::secondary_curve`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # let cache = forebay_l2::HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
    /// cache.memory().record(true);
    /// cache.get_or_load(7, || Ok::<_, std::io::Error>("seven".to_owned()))?;
    /// let curve = cache.memory().secondary_curve().expect("it records");
    /// assert!(curve.capacity > 32 << 20);
    /// # cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "insight")]
    pub fn secondary_curve(&self) -> Option<forebay_cache::SecondaryCurve> {
        self.cache.secondary_curve()
    }

    /// Begins or ends recording for [`explain`](Self::explain); see [`Cache::record`].
    #[cfg(feature = "insight")]
    pub fn record(&self, on: bool) {
        self.cache.record(on);
    }

    /// Says why requests missed in memory; see [`Cache::explain`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # let cache = forebay_l2::HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
    /// use std::time::Duration;
    ///
    /// cache.memory().record(true);
    /// cache.get_or_load(7, || Ok::<_, std::io::Error>("seven".to_owned()))?;
    /// let explanation = cache.memory().explain(Duration::from_secs(600)).expect("it records");
    /// println!("{explanation}");
    /// # cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "insight")]
    pub fn explain(&self, since: std::time::Duration) -> Option<forebay_cache::Explanation> {
        self.cache.explain(since)
    }

    /// The tunables.
    pub fn tunables(&self) -> &'a CacheTunables {
        self.cache.tunables()
    }

    /// Sets a tunable by name.
    ///
    /// # Errors
    /// If the name or the value is invalid, or the tunable cannot be set at run time. The error
    /// says what is allowed.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.cache.set_tunable(name, value)
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for HybridMemory<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridMemory").finish_non_exhaustive()
    }
}
