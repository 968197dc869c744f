//! The entry of a key.

use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use crate::keyed::KeyedCache;
use crate::keyed::guard::KeyedRef;
use crate::load::error::LoadError;

/// The entry of a key of a [`KeyedCache`], which may have a value. Returned by
/// [`KeyedCache::entry`].
///
/// It holds no lock and pins nothing.
#[must_use = "an entry does nothing by itself"]
pub struct KeyedEntry<'a, K: Send + Sync + 'static, V: Send + Sync + 'static, S> {
    pub(super) cache: &'a KeyedCache<K, V, S>,
    pub(super) key: K,
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
        self.cache.get_or_load(self.key, || Ok::<_, Infallible>(make()))
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
        self.cache.get_or_load(self.key, make)
    }
}
