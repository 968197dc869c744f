//! Visits of all entries.

use std::hash::{BuildHasher, Hash};

use crate::attributes::Class;
use crate::keyed::KeyedCache;
use crate::keyed::guard::KeyedRef;
use crate::keyed::stored::{Fingerprint, Stored};
use crate::operations::Iter;

impl<K, V, S> KeyedCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Visits all entries that have not expired, in no particular order, without counting a use.
    ///
    /// An entry that is cached from the beginning to the end is visited once. One that is inserted,
    /// removed or replaced meanwhile may be visited or not. Each is pinned from when it is returned
    /// until its reference is dropped, and no lock is held in between. Do not collect the
    /// references of a large cache: what is pinned cannot be evicted.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// cache.insert("eight".to_owned(), 8)?;
    /// let mut names: Vec<String> = cache.iter().map(|value| value.key().clone()).collect();
    /// names.sort();
    /// assert_eq!(names, ["eight", "seven"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> KeyedIter<'_, K, V, S> {
        KeyedIter { cache: self, blocks: self.cache.iter() }
    }

    /// Removes all entries for which `keep` is false, and those that have expired. Returns how
    /// many.
    ///
    /// An entry that is being loaded has no value to judge. It is handed to those that wait for it,
    /// and is not cached. `keep` runs under no lock.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// cache.insert("eight".to_owned(), 8)?;
    /// assert_eq!(cache.retain(|_name, value, _class| *value > 7), 1);
    /// assert!(cache.contains("eight") && !cache.contains("seven"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &V, Class) -> bool) -> u64 {
        let expired = self.remove_expired();
        expired + self.cache.retain(|_, stored, class| keep(&stored.key, &stored.value, class))
    }
}

/// Visits all entries of a [`KeyedCache`]. Made by [`KeyedCache::iter`].
#[derive(Debug)]
pub struct KeyedIter<'a, K: Send + Sync + 'static, V: Send + Sync + 'static, S> {
    cache: &'a KeyedCache<K, V, S>,
    blocks: Iter<'a, Fingerprint, Stored<K, V>>,
}

impl<'a, K, V, S> Iterator for KeyedIter<'a, K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Item = KeyedRef<'a, K, V>;

    fn next(&mut self) -> Option<KeyedRef<'a, K, V>> {
        let cache = self.cache;
        self.blocks.by_ref().find(|block| !cache.has_expired(&block.times)).map(KeyedRef)
    }
}

impl<'a, K, V, S> IntoIterator for &'a KeyedCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Item = KeyedRef<'a, K, V>;
    type IntoIter = KeyedIter<'a, K, V, S>;

    fn into_iter(self) -> KeyedIter<'a, K, V, S> {
        self.iter()
    }
}
