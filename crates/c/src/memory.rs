//! A cache of byte strings in memory, whose entries can expire.
//!
//! Locking: none; that of [`KeyedCache`].

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use forebay::cache::{KeyedOwnedRef, Usage};
use forebay::{BuildError, Cause, KeyedCache, LoadError, Refused};

/// What the cache itself needs for an entry that it holds, and for what it remembers of others.
const ENTRY_BYTES: u64 = 128;

/// How to build a [`ByteCache`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheOptions {
    /// Bytes of memory to use: those of keys, of values, and 128 for each entry. Excludes
    /// `max_entries`.
    pub capacity_bytes: Option<u64>,
    /// The number of entries to hold. Excludes `capacity_bytes`.
    pub max_entries: Option<u64>,
    /// How long an entry lives.
    pub time_to_live: Option<Duration>,
    /// How long an entry lives that is not used.
    pub time_to_idle: Option<Duration>,
}

/// A value, and its own time to live.
struct Bytes {
    bytes: Box<[u8]>,
    /// In milliseconds; zero if it has none.
    lifetime_ms: u64,
}

impl Bytes {
    fn new(bytes: Box<[u8]>, lifetime: Option<Duration>) -> Self {
        let ms = |lifetime: Duration| u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
        // A lifetime that is shorter than its unit is not endless.
        Self { bytes, lifetime_ms: lifetime.map_or(0, |lifetime| ms(lifetime).max(1)) }
    }

    fn lifetime(&self) -> Option<Duration> {
        (self.lifetime_ms > 0).then(|| Duration::from_millis(self.lifetime_ms))
    }
}

/// A cache of byte strings in memory.
#[derive(Debug)]
pub struct ByteCache(KeyedCache<Vec<u8>, Bytes>);

/// A value, which stays valid and unchanged while this exists, also after the cache is gone.
pub struct CacheValue(KeyedOwnedRef<Vec<u8>, Bytes>);

/// Sizes and counts of a cache in memory, or of the memory of a hybrid cache.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Entries.
    pub entries: u64,
    /// Their bytes, or their number if the cache was opened with max_entries.
    pub weight: u64,
    /// The weight that the cache should hold.
    pub capacity: u64,
    /// Requests that found their value.
    pub hits: u64,
    /// Requests that did not, including those that waited for a load of another thread.
    pub misses: u64,
    /// Values that were inserted or loaded, and cached.
    pub inserts: u64,
    /// Entries that left to make room.
    pub evictions: u64,
    /// Entries that left because their time was over.
    pub expirations: u64,
}

impl CacheStats {
    pub(crate) fn of(usage: &Usage) -> Self {
        Self {
            entries: usage.resident_blocks(),
            weight: usage.resident_bytes(),
            capacity: usage.capacity,
            hits: usage.hits(),
            misses: usage.misses(),
            inserts: usage.counter("inserts"),
            evictions: usage.left(Cause::Capacity),
            expirations: usage.left(Cause::Expired),
        }
    }
}

impl ByteCache {
    /// Builds a cache.
    ///
    /// # Errors
    ///
    /// Not exactly one size was given, or there is no memory or no thread.
    pub fn new(options: &CacheOptions) -> Result<Self, BuildError> {
        let mut builder = KeyedCache::builder().expire_with(|_, value: &Bytes| value.lifetime());
        if let Some(entries) = options.max_entries {
            builder = builder.max_entries(entries);
        }
        if let Some(bytes) = options.capacity_bytes {
            builder = builder.capacity(bytes).weigher(|key: &Vec<u8>, value| {
                (key.len() + value.bytes.len()) as u64 + ENTRY_BYTES
            });
        }
        if let Some(lifetime) = options.time_to_live {
            builder = builder.time_to_live(lifetime);
        }
        if let Some(idle) = options.time_to_idle {
            builder = builder.time_to_idle(idle);
        }
        Ok(Self(builder.build()?))
    }

    /// The value of the key.
    pub fn get(&self, key: &[u8]) -> Option<CacheValue> {
        self.0.get_owned(key).map(CacheValue)
    }

    /// Whether the key has a value. Does not count as a use.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.0.contains(key)
    }

    /// Caches a value and replaces any other of the key. The shorter of `time_to_live` and the
    /// cache's counts.
    ///
    /// # Errors
    ///
    /// Why the value was not cached. An older value is removed all the same.
    pub fn insert(
        &self,
        key: &[u8],
        value: &[u8],
        time_to_live: Option<Duration>,
    ) -> Result<(), Refused<()>> {
        let inserted = self.0.insert(key.to_vec(), Bytes::new(value.into(), time_to_live));
        inserted.map_err(|refused| Refused {
            reason: refused.reason,
            value: (),
            removed: refused.removed,
        })
    }

    /// Removes the value of the key, and returns whether it had one. A value that is being loaded
    /// will not be cached.
    pub fn remove(&self, key: &[u8]) -> bool {
        self.0.remove(key).is_some()
    }

    /// The value of the key. If it is not cached, `load` provides it, once, however many threads
    /// ask.
    ///
    /// # Errors
    ///
    /// As [`KeyedCache::get_or_load`].
    pub fn get_or_load<E: fmt::Display + Send + Sync + 'static>(
        &self,
        key: &[u8],
        load: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<CacheValue, LoadError<E>> {
        let load = || load().map(|bytes| Bytes::new(bytes.into_boxed_slice(), None));
        let value = self.0.get_or_load_by_ref(key, load)?;
        Ok(CacheValue(value.into_owned()))
    }

    /// The number of entries. Those whose time is over count until they are removed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.0.clear();
    }

    /// Closes the cache: waits until nobody holds a value and no load runs. Afterwards lookups find
    /// nothing, and inserts and loads fail.
    pub fn close(&self) {
        self.0.close();
    }

    /// Sizes and counts.
    pub fn stats(&self) -> CacheStats {
        CacheStats::of(&self.0.usage())
    }
}

impl Deref for CacheValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl fmt::Debug for CacheValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheValue").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_of_an_entry_is_kept_in_full() {
        let kept = |lifetime| Bytes::new([].into(), lifetime).lifetime();
        let days = |days: u64| Some(Duration::from_secs(days * 86_400));
        assert_eq!((kept(None), kept(days(50)), kept(days(62))), (None, days(50), days(62)));
        assert_eq!(kept(Some(Duration::from_nanos(1))), Some(Duration::from_millis(1)));
    }
}
