//! The entry of a key: look at it, modify it, or insert what is missing, in one expression.
//!
//! As for a cache in memory, a modification makes a new value of the old one, and replaces exactly
//! that. A value that only the device has is loaded first, because memory is where it is compared.
//!
//! Locking: none.

use std::convert::Infallible;
use std::fmt;

use forebay_cache::{Attributes, Key, LoadError, OwnedRef};

use super::{HybridCache, InsertError, MAX_ABANDONED_LOADS, capture_insert_error, closed_insert};

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// The entry of a key, to modify it or to insert what is missing.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # let counts = forebay_l2::HybridCache::<u32, u64>::open(&path, 64 << 20, 4 << 20)?;
    /// for status in [200, 404, 200, 200] {
    ///     counts.entry(status).and_modify(|count| count + 1)?.or_insert_with(|| 1)?;
    /// }
    /// assert_eq!(counts.get(&200).as_deref(), Some(&3));
    /// # counts.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entry(&self, key: K) -> HybridEntry<'_, K, V> {
        HybridEntry { cache: self, key, attributes: Attributes::DATA }
    }
}

/// The entry of a key. Made by [`HybridCache::entry`].
#[must_use = "it does nothing until a value is inserted or modified"]
pub struct HybridEntry<'a, K: Key, V: Send + Sync + 'static> {
    cache: &'a HybridCache<K, V>,
    key: K,
    attributes: Attributes,
}

impl<K: Key, V: Send + Sync + 'static> HybridEntry<'_, K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Sets class and hint of a value that is inserted. The default is a normal data block.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// Replaces the value, if memory or the device has one, by what `modify` makes of it. When this
    /// returns, the older value does not come back, as after [`insert`](HybridCache::insert).
    ///
    /// No modification by another thread is lost: if the value was replaced or removed meanwhile,
    /// `modify` is called again or not at all. It runs under no lock.
    ///
    /// Followed by [`or_insert`](Self::or_insert) it is two steps: if two threads find no value,
    /// one inserts its own and the other gets that, unmodified.
    ///
    /// # Errors
    /// As [`HybridCache::insert`]. [`InsertError::NotHeld`] if memory cannot hold the value of the
    /// device; then nothing was changed.
    pub fn and_modify(self, mut modify: impl FnMut(&V) -> V) -> Result<Self, InsertError<V>> {
        let mut not_held = 0;
        while not_held <= MAX_ABANDONED_LOADS {
            // Held, so that it is not evicted before it is replaced.
            let Some(value) = self.cache.get(&self.key) else { return Ok(self) };
            let Some(_change) = self.cache.closing.begin_change() else {
                return Err(closed_insert(modify(&value)));
            };
            let entry = self.cache.cache.entry(self.key).attributes(self.attributes);
            if capture_insert_error(|| entry.modify_cached(&mut modify))? {
                return Ok(self);
            }
            // While a newer value is stored, memory has none, and the next lookup waits for it.
            not_held = if self.cache.is_in_memory(&self.key) { 0 } else { not_held + 1 };
        }
        Err(InsertError::NotHeld)
    }

    /// Returns the value. If there is none, inserts `value`.
    ///
    /// # Errors
    /// As [`or_insert_with`](Self::or_insert_with).
    pub fn or_insert(self, value: V) -> Result<OwnedRef<K, V>, LoadError<Infallible>> {
        self.or_insert_with(|| value)
    }

    /// Returns the value. If neither memory nor the device has one, makes it with `make`, once
    /// however many threads ask.
    ///
    /// # Errors
    /// As [`HybridCache::get_or_load`], without `Failed`.
    pub fn or_insert_with(
        self,
        make: impl FnOnce() -> V,
    ) -> Result<OwnedRef<K, V>, LoadError<Infallible>> {
        self.or_try_insert_with(|| Ok(make()))
    }

    /// Like [`or_insert_with`](Self::or_insert_with) with a function that may fail:
    /// [`HybridCache::get_or_load`] by another name.
    ///
    /// # Errors
    /// As [`HybridCache::get_or_load`].
    pub fn or_try_insert_with<E: fmt::Display + Send + Sync + 'static>(
        self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<OwnedRef<K, V>, LoadError<E>> {
        self.cache.get_or_load_with(self.key, self.attributes, make)
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + 'static> fmt::Debug for HybridEntry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridEntry").field("key", &self.key).finish_non_exhaustive()
    }
}
