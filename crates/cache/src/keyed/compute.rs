//! One atomic step on the entry of a key: from what it is now to what the caller wants of it.
//!
//! The caller's function sees the value and decides. The decision is carried out only if the entry
//! is still what the function has seen; otherwise the function is called again. A value replaces
//! exactly the block that was seen, or is inserted only if there is none.
//!
//! A load in flight has no value to see. So the entry counts as empty. A value that is inserted
//! takes the place of the load, in one step with the check that no block is there. A removal makes
//! the load uncached. Thus nothing here waits for a load, or starts again because of one.
//!
//! Locking: none while the function runs.

use std::fmt;
use std::hash::{BuildHasher, Hash};

use crate::attributes::{Attributes, Cause};
use crate::error::Refused;
use crate::insert::Replaces;
use crate::keyed::entry::KeyedEntry;
use crate::keyed::guard::{KeyedOwnedRef, KeyedRef};
use crate::keyed::stored::Fingerprint;
use crate::keyed::{KeyedCache, NotStored};

/// What to do with an entry, see [`KeyedEntry::and_compute_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<V> {
    /// Leave it as it is.
    Nop,
    /// Insert this value, or replace the old one by it.
    Put(V),
    /// Remove it.
    Remove,
}

/// What was done with an entry, see [`KeyedEntry::and_compute_with`].
pub enum Computed<'a, K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// There was no value, and there is none.
    StillNone,
    /// The value is as it was.
    Unchanged(KeyedRef<'a, K, V>),
    /// There was no value. Now there is this one.
    Inserted(KeyedRef<'a, K, V>),
    /// The value was replaced by this one.
    ReplacedWith(KeyedRef<'a, K, V>),
    /// This value was removed.
    Removed(KeyedOwnedRef<K, V>),
}

impl<'a, K, V, S> KeyedEntry<'a, K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Inserts a value, or replaces the old one, by what `make` makes of it. Returns the new value.
    ///
    /// Calls for one key take effect one after another, so no change by another thread is lost; see
    /// [`and_compute_with`](Self::and_compute_with).
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// let requests = KeyedCache::<String, u64>::builder().max_entries(10_000).build()?;
    /// let count = |user: &str| {
    ///     let entry = requests.entry(user.to_owned());
    ///     entry.and_upsert_with(|count| count.map_or(1, |count| count + 1))
    /// };
    /// assert_eq!(*count("ada")?, 1);
    /// assert_eq!(*count("ada")?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`and_compute_with`](Self::and_compute_with).
    pub fn and_upsert_with(
        self,
        mut make: impl FnMut(Option<&V>) -> V,
    ) -> Result<KeyedRef<'a, K, V>, Refused<V>> {
        match self.and_compute_with(|old| Op::Put(make(old)))? {
            Computed::Inserted(value) | Computed::ReplacedWith(value) => Ok(value),
            other => unreachable!("a value was put: {other:?}"),
        }
    }

    /// Inserts, replaces, removes or leaves the value, as `decide` says, in one atomic step.
    ///
    /// `decide` gets the value, if there is one. If the entry changes before the decision is
    /// carried out, `decide` is called again with what there is then. It runs under no lock, and
    /// should be quick.
    ///
    /// A value that is being loaded counts as none. An inserted one takes its place, and
    /// [`Op::Remove`] keeps it out of the cache: the load goes to those that wait for it.
    ///
    /// A value that is put counts as used, keeps the class of the old one, and begins a new life:
    /// its lifetime counts from now. The old one is pinned meanwhile, so there has to be capacity
    /// for both.
    ///
    /// ```
    /// use forebay_cache::{Computed, KeyedCache, Op};
    ///
    /// let tickets = KeyedCache::<String, u32>::builder().max_entries(1000).build()?;
    /// tickets.insert("drink".to_owned(), 2)?;
    /// // Uses a ticket. Its last use removes it.
    /// let admit = || {
    ///     tickets.entry("drink".to_owned()).and_compute_with(|uses| match uses {
    ///         None => Op::Nop,
    ///         Some(1) => Op::Remove,
    ///         Some(uses) => Op::Put(uses - 1),
    ///     })
    /// };
    /// assert!(matches!(admit()?, Computed::ReplacedWith(uses) if *uses == 1));
    /// assert!(matches!(admit()?, Computed::Removed(_)));
    /// assert!(matches!(admit()?, Computed::StillNone));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The value that `decide` put, if it is not cached. An older value is outdated then, so it is
    /// removed, or not cached if it is being loaded, as by [`insert`](KeyedCache::insert).
    pub fn and_compute_with(
        self,
        mut decide: impl FnMut(Option<&V>) -> Op<V>,
    ) -> Result<Computed<'a, K, V>, Refused<V>> {
        let Self { cache, mut key, attributes } = self;
        let fingerprint = cache.fingerprint(&key);
        loop {
            let old = cache.find(fingerprint, &key);
            let value = match (decide(old.as_deref()), &old) {
                (Op::Put(value), _) => value,
                (Op::Nop, Some(_)) => {
                    return Ok(old.map_or(Computed::StillNone, Computed::Unchanged));
                }
                (Op::Nop, None) => return Ok(Computed::StillNone),
                (Op::Remove, None) => {
                    // What a load in flight has read may be what is to be removed.
                    let is_cancelled = cache.cache.inner().cancel_load(&fingerprint);
                    if is_cancelled || !cache.contains(&key) {
                        return Ok(Computed::StillNone);
                    }
                    continue;
                }
                (Op::Remove, Some(value)) => match value.0.remove(Cause::Removed) {
                    Some(removed) => return Ok(Computed::Removed(KeyedOwnedRef(removed))),
                    None => continue,
                },
            };
            key = match cache.put((fingerprint, key), value, attributes, old.as_ref()) {
                Ok(value) if old.is_some() => return Ok(Computed::ReplacedWith(value)),
                Ok(value) => return Ok(Computed::Inserted(value)),
                Err(NotStored::Changed(key)) => key,
                Err(NotStored::Refused(refused)) => return Err(refused),
            };
        }
    }
}

impl<K, V, S> KeyedCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Stores a value in place of `old`, or of a load where the key has none. Returns it pinned.
    pub(super) fn put(
        &self,
        (fingerprint, key): (Fingerprint, K),
        value: V,
        attributes: Attributes,
        old: Option<&KeyedRef<'_, K, V>>,
    ) -> Result<KeyedRef<'_, K, V>, NotStored<K, V>> {
        let inner = self.cache.inner();
        // Where the key has none, there may be an entry of another key.
        let cached = old.is_none().then(|| self.cache.peek(&fingerprint)).flatten();
        let is_expired = cached.as_ref().is_some_and(|block| self.has_expired(&block.times));
        let other = cached.filter(|_| !is_expired);
        if other.as_ref().is_some_and(|block| block.key == key) {
            return Err(NotStored::Changed(key));
        }
        let replaces = match old.map_or(other.as_ref(), |old| Some(&old.0)) {
            Some(block) => Replaces::Only(block.header()),
            None => Replaces::Nothing,
        };
        let class = old.map_or(attributes.class, |old| old.0.class());
        let attributes = Attributes { class, ..attributes };
        let stored = self.store(fingerprint, key, value, |stored| {
            inner.insert_pinned(fingerprint, stored, attributes, replaces)
        });
        stored.map(KeyedRef)
    }
}

impl<K, V> fmt::Debug for Computed<'_, K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StillNone => "StillNone",
            Self::Unchanged(_) => "Unchanged(..)",
            Self::Inserted(_) => "Inserted(..)",
            Self::ReplacedWith(_) => "ReplacedWith(..)",
            Self::Removed(_) => "Removed(..)",
        })
    }
}
