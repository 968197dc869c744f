//! The builder of a keyed cache.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use forebay_base::clock::{Clock, CoarseClock};
use forebay_base::sync::Arc;

use crate::builder::Builder;
use crate::callbacks::{Delivery, Evicted};
use crate::error::BuildError;
use crate::inner::Reclaim;
use crate::keyed::KeyedCache;
use crate::keyed::expiry::{ExpiryRule, Lifetimes};
use crate::keyed::hasher::SeededState;
use crate::keyed::loading_keys::LoadingKeys;
use crate::keyed::stored::{Fingerprint, Stored};

/// The user's weigher.
pub(super) type Weigh<K, V> = Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// Configures a keyed cache. Made by [`KeyedCache::builder`].
#[must_use = "call `build` to get the cache"]
pub struct KeyedBuilder<K, V, S = SeededState>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Without weigher, clock and expiry.
    inner: Builder<Fingerprint, Stored<K, V>>,
    weigh: Option<Weigh<K, V>>,
    lifetimes: Lifetimes<K, V>,
    clock: Option<Arc<dyn Clock>>,
    hasher: S,
}

impl<K, V> KeyedBuilder<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    pub(super) fn new() -> Self {
        Self {
            inner: Builder::new(),
            weigh: None,
            lifetimes: Lifetimes {
                time_to_live: None,
                time_to_idle: None,
                expire_with: None,
                idle_with: None,
            },
            clock: None,
            hasher: SeededState::default(),
        }
    }
}

impl<K, V, S> KeyedBuilder<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Sets the weight of entries to hold in bytes. Needs a [`weigher`](Self::weigher). The cache's
    /// own memory comes on top: about 100 bytes per entry and 30 per entry evicted lately.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.inner = self.inner.capacity(bytes);
        self
    }

    /// Sets the number of entries to hold. Each weighs the same.
    pub fn max_entries(mut self, entries: u64) -> Self {
        self.inner = self.inner.max_entries(entries);
        self
    }

    /// Sets a hard bound in bytes on all memory of the cache: what the [`weigher`](Self::weigher)
    /// returns for each entry, and the cache's own memory, which contains the keys and values
    /// themselves. So the weigher returns what they own, such as the bytes of a string.
    pub fn bound(mut self, bytes: u64) -> Self {
        self.inner = self.inner.bound(bytes);
        self
    }

    /// Sets the function that weighs an entry, in bytes; at least 1 is used.
    pub fn weigher(mut self, weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static) -> Self {
        self.weigh = Some(Arc::new(weigh));
        self
    }

    /// Sets the hasher of keys. The default is fast and seeded at random.
    ///
    /// Keys of equal hashes displace each other, so the hasher should be a good one.
    ///
    /// ```
    /// # use std::hash::RandomState;
    /// use forebay_cache::KeyedCache;
    ///
    /// let cache = KeyedCache::<String, u64>::builder()
    ///     .max_entries(1000)
    ///     .hasher(RandomState::new())
    ///     .build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn hasher<T>(self, hasher: T) -> KeyedBuilder<K, V, T> {
        KeyedBuilder {
            inner: self.inner,
            weigh: self.weigh,
            lifetimes: self.lifetimes,
            clock: self.clock,
            hasher,
        }
    }

    /// Sets the time after which an entry expires, from its insertion or load.
    pub fn time_to_live(mut self, lifetime: Duration) -> Self {
        self.lifetimes.time_to_live = Some(lifetime);
        self
    }

    /// Sets the time after which an entry expires that is not used. Lookups and loads use it;
    /// [`peek`](KeyedCache::peek) and [`contains`](KeyedCache::contains) do not.
    pub fn time_to_idle(mut self, idle: Duration) -> Self {
        self.lifetimes.time_to_idle = Some(idle);
        self
    }

    /// Sets a function that gives an entry a time to live of its own, when it is inserted or
    /// loaded; `None` for none. If the cache has a [`time_to_live`](Self::time_to_live) too, the
    /// shorter one counts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use forebay_cache::KeyedCache;
    ///
    /// // Remember for a short time that a user is not known.
    /// let users = KeyedCache::<u64, Option<String>>::builder()
    ///     .max_entries(1000)
    ///     .expire_with(|_id, user| user.is_none().then_some(Duration::from_secs(1)))
    ///     .build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn expire_with(
        mut self,
        lifetime: impl Fn(&K, &V) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.lifetimes.expire_with = Some(Box::new(lifetime));
        self
    }

    /// Sets a function that gives an entry a time to idle of its own; `None` for none. If the cache
    /// has a [`time_to_idle`](Self::time_to_idle) too, the shorter one counts.
    ///
    /// It is called when the entry is inserted or loaded. If it returns a time, it is called again
    /// with each use, so it should be fast; `None` then counts as 62 days. A use makes the life of
    /// an entry longer, never shorter.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use forebay_cache::KeyedCache;
    ///
    /// // The session of a browser ends a while after its last request, that of a token at a time.
    /// struct Session {
    ///     is_token: bool,
    /// }
    ///
    /// let sessions = KeyedCache::<String, Session>::builder()
    ///     .max_entries(1000)
    ///     .idle_with(|_, session| (!session.is_token).then_some(Duration::from_secs(900)))
    ///     .expire_with(|_, session| session.is_token.then_some(Duration::from_secs(86_400)))
    ///     .build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn idle_with(
        mut self,
        idle: impl Fn(&K, &V) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.lifetimes.idle_with = Some(Box::new(idle));
        self
    }

    /// Sets a listener that is called with each entry that has left the cache, and why. It runs on
    /// its own thread and may block. `delivery` says what happens if it is slow; see
    /// [`Builder::on_evicted`](crate::Builder::on_evicted).
    pub fn on_evicted(
        mut self,
        delivery: Delivery,
        listener: impl Fn(Evicted<K, V>) + Send + Sync + 'static,
    ) -> Self {
        self.inner = self.inner.on_evicted(delivery, move |evicted| {
            let Evicted { value: Stored { key, value, .. }, class, cause, weight, .. } = evicted;
            listener(Evicted { key, value, class, cause, weight });
        });
        self
    }

    /// Sets which thread evicts. The default is a thread of the cache, which also removes expired
    /// entries that nobody requests.
    pub fn reclaim(mut self, mode: Reclaim) -> Self {
        self.inner = self.inner.reclaim(mode);
        self
    }

    /// Sets a tunable, see `docs/tunables.md`. [`build`](Self::build) checks it.
    pub fn tunable(mut self, name: &str, value: &str) -> Self {
        self.inner = self.inner.tunable(name, value);
        self
    }

    /// Sets the seed of the cache's random choices. The default comes from the system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.inner = self.inner.seed(seed);
        self
    }

    /// Sets the clock by which entries expire and waits are measured. The default is the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the cache and starts its threads.
    ///
    /// # Errors
    ///
    /// Neither `max_entries` nor `capacity` nor `bound` was given, or contradicting ones; a tunable
    /// is invalid; or the system provides no memory or no thread.
    pub fn build(self) -> Result<KeyedCache<K, V, S>, BuildError>
    where
        S: BuildHasher + Send + Sync + 'static,
    {
        let mut inner = self.inner;
        if let Some(weigh) = self.weigh.clone() {
            inner = inner.weigher(move |_, stored| weigh(&stored.key, &stored.value));
        }
        let mut expiry = None;
        if !self.lifetimes.are_all_endless() {
            let clock = self.clock.clone().unwrap_or_else(|| Arc::new(CoarseClock::new()));
            let rule = Arc::new(ExpiryRule::new(clock, self.lifetimes));
            inner = inner.expiry(rule.clone());
            expiry = Some(rule);
        }
        if let Some(clock) = self.clock {
            inner = inner.clock(clock);
        }
        Ok(KeyedCache {
            cache: inner.build()?,
            hasher: self.hasher,
            expiry,
            loading: LoadingKeys::new(),
            weigh: self.weigh,
        })
    }
}
