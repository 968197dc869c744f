//! The entry of a key: look at it, modify it, or insert what is missing, in one expression.
//!
//! Values are shared between threads, so a modification makes a new value of the old one. It
//! replaces exactly the value that it was made of, or is made again.
//!
//! Locking: none; see `insert` and `load`.

use std::convert::Infallible;
use std::fmt;

use crate::attributes::Attributes;
use crate::cache::Cache;
use crate::error::Refused;
use crate::guard::Ref;
use crate::insert::{NotInserted, Replaces};
use crate::key::Key;
use crate::load::error::LoadError;

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// The entry of a key, to modify it or to insert what is missing.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// let counts = Cache::<u32, u64>::builder().max_entries(1000).build()?;
    /// for status in [200, 404, 200, 200] {
    ///     counts.entry(status).and_modify(|count| count + 1)?.or_insert_with(|| 1)?;
    /// }
    /// assert_eq!(counts.get(&200).as_deref(), Some(&3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entry(&self, key: K) -> Entry<'_, K, V> {
        Entry { cache: self, key, attributes: Attributes::DATA }
    }
}

/// The entry of a key. Made by [`Cache::entry`].
#[must_use = "it does nothing until a value is inserted or modified"]
pub struct Entry<'a, K: Key, V: Send + Sync + 'static> {
    cache: &'a Cache<K, V>,
    key: K,
    attributes: Attributes,
}

impl<'a, K: Key, V: Send + Sync + 'static> Entry<'a, K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Sets class and hint of a block that is inserted. The default is a normal data block.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// Replaces the block, if it is cached, by what `modify` makes of its value. A replaced block
    /// keeps its class and counts as used.
    ///
    /// No modification by another thread is lost: if the block was replaced or removed meanwhile,
    /// `modify` is called again or not at all. It runs under no lock. A block that is being loaded
    /// is not modified. The old block is pinned until the new one is stored, so there has to be
    /// capacity for both.
    ///
    /// Followed by [`or_insert`](Self::or_insert) it is two steps: if two threads find no block,
    /// one inserts its own and the other gets that, unmodified.
    ///
    /// # Errors
    ///
    /// The new value, if it is not cached. The old one is removed, as by
    /// [`insert`](Cache::insert).
    pub fn and_modify(self, modify: impl FnMut(&V) -> V) -> Result<Self, Refused<V>> {
        self.modify_cached(modify)?;
        Ok(self)
    }

    /// As [`and_modify`](Self::and_modify), and returns whether a block was replaced.
    ///
    /// # Errors
    ///
    /// As [`and_modify`](Self::and_modify).
    pub fn modify_cached(&self, mut modify: impl FnMut(&V) -> V) -> Result<bool, Refused<V>> {
        let inner = self.cache.inner();
        while let Some(block) = self.cache.get(&self.key) {
            let attributes = Attributes { class: block.class(), ..self.attributes };
            let replaces = Replaces::Only(block.header());
            match inner.insert(self.key, modify(&block), attributes, replaces) {
                Ok(()) => return Ok(true),
                Err(NotInserted::Changed(_)) => {}
                Err(NotInserted::Refused(refused)) => return Err(refused),
            }
        }
        Ok(false)
    }

    /// Returns the block. If it is neither cached nor being loaded, inserts `value`.
    ///
    /// # Errors
    ///
    /// As for [`or_insert_with`](Self::or_insert_with).
    pub fn or_insert(self, value: V) -> Result<Ref<'a, K, V>, LoadError<Infallible>> {
        self.or_insert_with(|| value)
    }

    /// Returns the block. If it is neither cached nor being loaded, makes it with `make`, once
    /// however many threads ask.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Cache::get_or_load), without `Failed`.
    pub fn or_insert_with(
        self,
        make: impl FnOnce() -> V,
    ) -> Result<Ref<'a, K, V>, LoadError<Infallible>> {
        self.or_try_insert_with(|| Ok(make()))
    }

    /// Does the same as [`or_insert_with`](Self::or_insert_with) with a function that may fail:
    /// [`get_or_load`](Cache::get_or_load) by another name.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Cache::get_or_load).
    pub fn or_try_insert_with<E: fmt::Display + Send + Sync + 'static>(
        self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'a, K, V>, LoadError<E>> {
        self.cache.get_or_load_with(self.key, self.attributes, make)
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + 'static> fmt::Debug for Entry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("key", &self.key).finish_non_exhaustive()
    }
}
