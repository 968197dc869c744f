//! A cache for keys of any type, whose entries can expire: [`KeyedCache`].
//!
//! It is a layer on the block cache. The block cache's key is the *fingerprint*, the hash of the
//! user's key by the user's hasher; its value has the key, the value and two times (`stored`). So
//! hits, eviction, admission, loads and statistics are the block cache's.
//!
//! Invariants
//!
//! * A lookup returns a value only if its key equals the requested one. An entry of another key
//!   with the same fingerprint is a miss; an insert or a load replaces it.
//! * A removal removes the entry that it has compared, or none.
//! * A lookup returns no value whose time is over. It removes such an entry; the reclaimer removes
//!   those that nobody looks up (`evict::expire`).
//! * User code (`Hash`, `Eq`, the weigher, `expire_with`, `idle_with`, loaders, predicates) may
//!   panic. Then the call has changed nothing, or has removed the entry, and pins are released.
//!
//! Locking: none on a hit. User code runs without locks, except for `Eq` while a value is missed
//! (`loading_keys`).
//!
//! | module | contains |
//! |---|---|
//! | `builder`, `entry`, `compute`, `guard`, `load`, `hasher` | the rest of the interface |
//! | `stored` | what the block cache holds |
//! | `times`, `expiry` | ticks and lifetimes; when entries expire |
//! | `loading_keys` | tells loads of equal fingerprints apart |

pub(crate) mod builder;
pub(crate) mod compute;
pub(crate) mod entry;
mod expiry;
pub(crate) mod guard;
pub(crate) mod hasher;
pub(crate) mod iter;
mod load;
mod loading_keys;
mod maintenance;
mod stored;
mod times;

use std::fmt;
use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;
use forebay_base::sync::Arc;

use crate::attributes::{Attributes, Cause};
use crate::cache::Cache;
use crate::error::Refused;
use crate::guard::Ref;
use crate::insert::{NotInserted, Replaces};
use crate::keyed::builder::{KeyedBuilder, Weigh};
use crate::keyed::entry::KeyedEntry;
use crate::keyed::expiry::ExpiryRule;
use crate::keyed::guard::{KeyedOwnedRef, KeyedRef};
use crate::keyed::hasher::SeededState;
use crate::keyed::loading_keys::LoadingKeys;
use crate::keyed::stored::{Fingerprint, Stored};
use crate::keyed::times::Times;
use crate::lookup::SIDE_BY_SIDE;

/// A cache for keys of any type, whose hits take no lock and whose entries can expire.
///
/// Keys and values may own memory. Share the cache between threads by reference or in an `Arc`.
/// A lookup takes any form of the key that hashes and compares alike, such as `&str` for `String`
/// (see [`Equivalent`]).
///
/// ```
/// use std::time::Duration;
/// use forebay_cache::KeyedCache;
///
/// let cache = KeyedCache::<String, Vec<u8>>::builder()
///     .capacity(64 << 20)
///     .weigher(|name, page| (name.len() + page.len()) as u64)
///     .time_to_live(Duration::from_secs(60))
///     .build()?;
///
/// cache.insert("index".to_owned(), b"<html>".to_vec())?;
/// assert_eq!(cache.get("index").as_deref(), Some(&b"<html>".to_vec()));
///
/// // One load, however many threads ask at once.
/// let page = cache.get_or_load("about".to_owned(), || {
///     Ok::<_, std::io::Error>(b"about".to_vec()) // render it here
/// })?;
/// assert_eq!(page.len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Expiry
///
/// [`time_to_live`](KeyedBuilder::time_to_live) and [`time_to_idle`](KeyedBuilder::time_to_idle)
/// limit the life of all entries, [`expire_with`](KeyedBuilder::expire_with) and
/// [`idle_with`](KeyedBuilder::idle_with) that of each. The clock is coarse: an entry may expire
/// 20 ms early, or 10 ms late. A thread that finds an expired entry gets a miss; threads that then
/// load it cause one load. A thread of the cache removes expired entries that nobody requests,
/// within some seconds. Lifetimes are cut to 62 days.
///
/// # What the types must do
///
/// `Hash` and `Eq` of keys must agree. `Eq` must not call the cache. The drop of keys and values
/// may happen under locks of the cache: it must not block and must not call the cache.
pub struct KeyedCache<K, V, S = SeededState>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    cache: Cache<Fingerprint, Stored<K, V>>,
    hasher: S,
    expiry: Option<Arc<ExpiryRule<K, V>>>,
    loading: LoadingKeys<K>,
    /// `None` if each entry weighs one.
    weigh: Option<Weigh<K, V>>,
}

impl<K, V> KeyedCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Returns a builder.
    ///
    /// ```
    /// use forebay_cache::KeyedCache;
    ///
    /// let cache = KeyedCache::<(u64, String), u64>::builder().max_entries(10_000).build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn builder() -> KeyedBuilder<K, V> {
        KeyedBuilder::new()
    }
}

impl<K, V, S> KeyedCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    #[inline]
    fn fingerprint<Q: ?Sized + Hash>(&self, key: &Q) -> Fingerprint {
        Fingerprint(self.hasher.hash_one(key))
    }

    /// Returns the value of the key, pinned, if it is cached and has not expired. Takes no lock.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// assert_eq!(cache.get("seven").as_deref(), Some(&7));
    /// assert!(cache.get("eight").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<KeyedRef<'_, K, V>>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        let (inner, fingerprint) = (self.cache.inner(), self.fingerprint(key));
        let accept = |stored: &Stored<K, V>| self.accepts(stored, key);
        let otherwise = || self.get_slowly(fingerprint, key);
        inner.get_if(&fingerprint, accept, || inner.count_miss(), otherwise).map(KeyedRef)
    }

    /// Looks up several keys, as [`get`](Self::get) does, and replaces the contents of `found` by
    /// their values, in the order of the keys.
    ///
    /// Their memory accesses overlap, so it is faster than one lookup after another if the cache is
    /// larger than the processor's.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// let mut found = Vec::new();
    /// cache.get_many(&["six", "seven"], &mut found);
    /// assert!(found[0].is_none());
    /// assert_eq!(found[1].as_deref(), Some(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_many<'a, Q>(&'a self, keys: &[&Q], found: &mut Vec<Option<KeyedRef<'a, K, V>>>)
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        let inner = self.cache.inner();
        found.clear();
        found.reserve(keys.len());
        for keys in keys.chunks(SIDE_BY_SIDE) {
            let mut fingerprints = [Fingerprint(0); SIDE_BY_SIDE];
            for (fingerprint, key) in fingerprints.iter_mut().zip(keys) {
                *fingerprint = self.fingerprint(*key);
            }
            let mut keys = keys.iter();
            inner.probe_many(&fingerprints[..keys.len()], |fingerprint, _, probe| {
                let key = *keys.next().expect("one for each fingerprint");
                let accept = |stored: &Stored<K, V>| self.accepts(stored, key);
                let otherwise = || self.get_slowly(*fingerprint, key);
                let missing = || inner.count_miss();
                let block = inner.get_probed_if(probe, fingerprint, accept, missing, otherwise);
                found.push(block.map(KeyedRef));
            });
        }
    }

    /// As [`get`](Self::get), without counting a miss: for callers that load then.
    #[inline]
    fn find<Q>(&self, fingerprint: Fingerprint, key: &Q) -> Option<KeyedRef<'_, K, V>>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        let accept = |stored: &Stored<K, V>| self.accepts(stored, key);
        let otherwise = || self.find_slowly(fingerprint, key);
        self.cache.inner().get_if(&fingerprint, accept, || None, otherwise).map(KeyedRef)
    }

    #[inline(never)]
    fn get_slowly<Q>(
        &self,
        fingerprint: Fingerprint,
        key: &Q,
    ) -> Option<Ref<'_, Fingerprint, Stored<K, V>>>
    where
        Q: ?Sized + Equivalent<K>,
    {
        self.find_slowly(fingerprint, key).or_else(|| self.cache.inner().count_miss())
    }

    /// Finds a value where the fast path did not suffice. Removes it if it has expired.
    #[inline(never)]
    fn find_slowly<Q>(
        &self,
        fingerprint: Fingerprint,
        key: &Q,
    ) -> Option<Ref<'_, Fingerprint, Stored<K, V>>>
    where
        Q: ?Sized + Equivalent<K>,
    {
        let found = self.cache.inner().find_if(&fingerprint, |stored| self.accepts(stored, key));
        found.map_err(|rejected| self.reject(rejected)).ok()
    }

    /// Does the same as [`get`](Self::get), for a reference that outlives the borrow.
    pub fn get_owned<Q>(&self, key: &Q) -> Option<KeyedOwnedRef<K, V>>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        self.get(key).map(KeyedRef::into_owned)
    }

    /// Returns the value of the key like [`get`](Self::get), but does not count as a use or a
    /// request: neither eviction nor [`time_to_idle`](KeyedBuilder::time_to_idle) sees it.
    pub fn peek<Q>(&self, key: &Q) -> Option<KeyedRef<'_, K, V>>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        let block = self.cache.peek(&self.fingerprint(key))?;
        let is_it = key.equivalent(&block.key) && !self.has_expired(&block.times);
        is_it.then_some(KeyedRef(block))
    }

    /// Whether the key has a value. Does not count as a use.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        self.peek(key).is_some()
    }

    /// Whether a found entry is the one requested, and alive. Then that is a use.
    #[inline]
    fn accepts<Q>(&self, stored: &Stored<K, V>, key: &Q) -> bool
    where
        Q: ?Sized + Equivalent<K>,
    {
        // The rule first: the times may be in a cache line that a hit needs for nothing else.
        let lives =
            || self.expiry.is_none() || stored.times.is_eternal() || self.use_mortal(stored);
        key.equivalent(&stored.key) && lives()
    }

    #[inline(never)]
    fn use_mortal(&self, stored: &Stored<K, V>) -> bool {
        self.expiry.as_ref().is_none_or(|rule| rule.use_now(stored))
    }

    fn has_expired(&self, times: &Times) -> bool {
        self.expiry.as_ref().is_some_and(|rule| rule.has_expired(times))
    }

    /// Removes a found entry that was not accepted, if it has expired.
    #[inline(never)]
    fn reject(&self, rejected: Option<Ref<'_, Fingerprint, Stored<K, V>>>) {
        if let Some(block) = rejected
            && self.has_expired(&block.times)
        {
            block.remove(Cause::Expired);
        }
    }

    /// Inserts a value, replacing any other of that key.
    ///
    /// # Errors
    ///
    /// The value and the reason, if it is not cached. An older value of that key is outdated, so it
    /// is removed all the same.
    pub fn insert(&self, key: K, value: V) -> Result<(), Refused<V>> {
        self.insert_with(key, value, Attributes::DATA)
    }

    /// Inserts a value with the given class and hint. May wait for capacity, see the tunable
    /// `overflow_wait_ms`.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn insert_with(&self, key: K, value: V, attributes: Attributes) -> Result<(), Refused<V>> {
        let fingerprint = self.fingerprint(&key);
        let insert =
            |stored| self.cache.inner().insert(fingerprint, stored, attributes, Replaces::Any);
        self.store(fingerprint, key, value, insert).map_err(NotStored::into_refused)
    }

    /// Does the same as [`insert`](Self::insert), and waits for capacity without blocking the
    /// thread. Works under any executor.
    ///
    /// An insert waits for a listener that gets every event ([`Delivery`](crate::Delivery)), or if
    /// the tunable `overflow_wait_ms` says so. Dropping the future before it is ready changes
    /// nothing. The lifetime of the value begins when it is cached.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let run = async {
    /// let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert_async("seven".to_owned(), 7).await?;
    /// assert_eq!(cache.get("seven").as_deref(), Some(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # assert!(std::pin::pin!(run).as_mut().poll(&mut context).is_ready());
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub async fn insert_async(&self, key: K, value: V) -> Result<(), Refused<V>> {
        self.insert_with_async(key, value, Attributes::DATA).await
    }

    /// Does the same as [`insert_async`](Self::insert_async), with a class and a hint.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub async fn insert_with_async(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
    ) -> Result<(), Refused<V>> {
        let fingerprint = self.fingerprint(&key);
        let (inner, weight) = (self.cache.inner(), self.weight(&key, &value));
        let reservation = inner.reserve_async(&fingerprint, weight, attributes).await;
        let insert = |stored| inner.insert_reserved(fingerprint, stored, attributes, reservation);
        self.store(fingerprint, key, value, insert).map_err(NotStored::into_refused)
    }

    /// Stores a value by `insert`, with the times that it has from now.
    fn store<T>(
        &self,
        fingerprint: Fingerprint,
        key: K,
        value: V,
        insert: impl FnOnce(Stored<K, V>) -> Result<T, NotInserted<Stored<K, V>>>,
    ) -> Result<T, NotStored<K, V>> {
        let mut end = None;
        let mut times = Times::new(None, None);
        if let Some(rule) = &self.expiry {
            times = rule.times(&key, &value);
            end = times.expires_at();
            // Else its listener would be told that it was replaced.
            self.reject(self.cache.peek(&fingerprint));
        }
        let stored = insert(Stored { key, value, times }).map_err(|error| match error {
            NotInserted::Changed(stored) => NotStored::Changed(stored.key),
            NotInserted::Refused(Refused { reason, value, removed }) => {
                NotStored::Refused(Refused { reason, value: value.value, removed })
            }
        })?;
        if let Some(rule) = &self.expiry {
            rule.note(end);
        }
        Ok(stored)
    }

    /// Removes the value of the key and returns it, unless it has expired. A value that is being
    /// loaded will not be cached. Threads that have it pinned keep it.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// assert_eq!(cache.remove("seven").as_deref(), Some(&7));
    /// assert!(cache.remove("seven").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<KeyedOwnedRef<K, V>>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        let fingerprint = self.fingerprint(key);
        loop {
            if let Some(removed) = self.remove_cached(fingerprint, key, |_| true) {
                return removed;
            }
            let inner = self.cache.inner();
            if inner.cancel_load(&fingerprint) || self.cache.peek(&fingerprint).is_none() {
                return None;
            }
        }
    }

    /// Removes the value of the key if `wanted` is true for it, and returns it. Does not affect a
    /// load in flight.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// cache.insert("seven".to_owned(), 7)?;
    /// assert!(cache.remove_if("seven", |value| *value > 7).is_none());
    /// assert!(cache.remove_if("seven", |value| *value == 7).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_if<Q>(
        &self,
        key: &Q,
        wanted: impl FnMut(&V) -> bool,
    ) -> Option<KeyedOwnedRef<K, V>>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        self.remove_cached(self.fingerprint(key), key, wanted).flatten()
    }

    /// Removes a cached value. `None` if nothing of that fingerprint is cached; `Some(None)` if the
    /// value is of another key, has expired, or is not wanted.
    #[allow(clippy::option_option, reason = "the two kinds of nothing differ for the caller")]
    fn remove_cached<Q>(
        &self,
        fingerprint: Fingerprint,
        key: &Q,
        mut wanted: impl FnMut(&V) -> bool,
    ) -> Option<Option<KeyedOwnedRef<K, V>>>
    where
        Q: ?Sized + Equivalent<K>,
    {
        loop {
            let block = self.cache.peek(&fingerprint)?;
            if self.has_expired(&block.times) {
                block.remove(Cause::Expired);
                continue;
            }
            if !key.equivalent(&block.key) || !wanted(&block.value) {
                return Some(None);
            }
            // Otherwise it has left or was replaced meanwhile.
            if let Some(removed) = block.remove(Cause::Removed) {
                return Some(Some(KeyedOwnedRef(removed)));
            }
        }
    }

    /// The entry of a key: to insert what is missing, to modify what is there, or to do either.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// let counts = KeyedCache::<String, u64>::builder().max_entries(100).build()?;
    /// for word in ["a", "b", "a", "a"] {
    ///     let entry = counts.entry(word.to_owned());
    ///     entry.and_upsert_with(|count| count.map_or(1, |count| count + 1))?;
    /// }
    /// assert_eq!(counts.get("a").as_deref(), Some(&3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entry(&self, key: K) -> KeyedEntry<'_, K, V, S> {
        KeyedEntry { cache: self, key, attributes: Attributes::DATA }
    }

    /// The weight of a value. Runs the user's weigher.
    fn weight(&self, key: &K, value: &V) -> u64 {
        let bytes = self.weigh.as_ref().map_or(1, |weigh| weigh(key, value));
        self.cache.inner().with_structures(bytes)
    }

    /// The times of a new entry.
    fn times(&self, key: &K, value: &V) -> Times {
        self.expiry.as_ref().map_or_else(|| Times::new(None, None), |rule| rule.times(key, value))
    }

    /// Notes when an entry expires that is cached now.
    fn note_expiry(&self, times: &Times) {
        if let Some(rule) = &self.expiry {
            rule.note(times.expires_at());
        }
    }
}

/// Why a value was not stored.
enum NotStored<K, V> {
    /// Another entry is in the way. The key.
    Changed(K),
    Refused(Refused<V>),
}

impl<K, V> NotStored<K, V> {
    /// For an insert that replaces whatever the key has.
    fn into_refused(self) -> Refused<V> {
        match self {
            Self::Refused(refused) => refused,
            Self::Changed(_) => unreachable!("any entry will do"),
        }
    }
}

impl<K, V, S> fmt::Debug for KeyedCache<K, V, S>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedCache").finish_non_exhaustive()
    }
}
