//! The entry of a key: modify it, or insert what is missing, in one expression. As `crate::entry`.
//!
//! Locking: none.

use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use crate::attributes::Attributes;
use crate::error::Refused;
use crate::keyed::guard::KeyedRef;
use crate::keyed::{KeyedCache, NotStored};
use crate::load::error::LoadError;

/// The entry of a key of a [`KeyedCache`], which may have a value. Returned by
/// [`KeyedCache::entry`].
///
/// It holds no lock and pins nothing.
#[must_use = "it does nothing until a value is inserted or modified"]
pub struct KeyedEntry<'a, K: Send + Sync + 'static, V: Send + Sync + 'static, S> {
    pub(super) cache: &'a KeyedCache<K, V, S>,
    pub(super) key: K,
    pub(super) attributes: Attributes,
}

impl<'a, K, V, S> KeyedEntry<'a, K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Sets class and hint of a value that is inserted. The default is a normal data block.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// Replaces the value, if it is cached, by what `modify` makes of it. The new value keeps the
    /// class, counts as used, and begins a new life: its lifetime counts from now.
    ///
    /// No modification by another thread is lost: if the value was replaced or removed meanwhile,
    /// `modify` is called again or not at all. It runs under no lock. A value that is being loaded
    /// is not modified. The old value is pinned until the new one is stored, so there has to be
    /// capacity for both.
    ///
    /// Followed by [`or_insert`](Self::or_insert) it is two steps. If two threads find no value,
    /// one inserts its own and the other gets that, unmodified. To count or to collect, use
    /// [`and_upsert_with`](Self::and_upsert_with).
    ///
    /// # Errors
    ///
    /// The new value, if it is not cached. The old one is removed, as by
    /// [`insert`](KeyedCache::insert).
    pub fn and_modify(self, mut modify: impl FnMut(&V) -> V) -> Result<Self, Refused<V>>
    where
        K: Clone,
    {
        let cache = self.cache;
        let fingerprint = cache.fingerprint(&self.key);
        while let Some(old) = cache.find(fingerprint, &self.key) {
            let key = (fingerprint, self.key.clone());
            match cache.put(key, modify(&old), self.attributes, Some(&old)) {
                Ok(_) => break,
                Err(NotStored::Changed(_)) => {}
                Err(NotStored::Refused(refused)) => return Err(refused),
            }
        }
        Ok(self)
    }

    /// Returns the value of the key, or inserts `value`.
    ///
    /// # Errors
    ///
    /// As for [`or_insert_with`](Self::or_insert_with).
    pub fn or_insert(self, value: V) -> Result<KeyedRef<'a, K, V>, LoadError<Infallible>> {
        self.or_insert_with(|| value)
    }

    /// Returns the value of the key, or inserts the result of `make`. Threads that ask for a key at
    /// the same time run one `make`. A value that cannot be cached is returned uncached.
    ///
    /// # Errors
    ///
    /// The cache is closed or has no memory, another thread's loader of the key failed or panicked,
    /// or `make` itself asks for the key.
    pub fn or_insert_with(
        self,
        make: impl FnOnce() -> V,
    ) -> Result<KeyedRef<'a, K, V>, LoadError<Infallible>> {
        self.or_try_insert_with(|| Ok(make()))
    }

    /// Does the same as [`or_insert_with`](Self::or_insert_with) with a function that can fail: as
    /// [`KeyedCache::get_or_load`].
    ///
    /// # Errors
    ///
    /// As for [`KeyedCache::get_or_load`].
    pub fn or_try_insert_with<E>(
        self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<KeyedRef<'a, K, V>, LoadError<E>>
    where
        E: fmt::Display + Send + Sync + 'static,
    {
        self.cache.get_or_load_with(self.key, self.attributes, make)
    }
}

impl<K, V, S> fmt::Debug for KeyedEntry<'_, K, V, S>
where
    K: Send + Sync + fmt::Debug + 'static,
    V: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedEntry").field("key", &self.key).finish_non_exhaustive()
    }
}
