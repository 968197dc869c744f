//! Sizes, statistics, configuration and the end of a keyed cache: passed on to the block cache.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use equivalent::Equivalent;
use forebay_base::tunables::TunableError;

use crate::error::{CloseTimeout, Refusal};
use crate::keyed::KeyedCache;
use crate::stats::{Stats, Usage};
use crate::tunables::CacheTunables;

impl<K, V, S> KeyedCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The number of entries, including expired ones that were not removed yet.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the weight of an entry, for a value whose size changes although it is shared; see
    /// [`Cache::set_weight`](crate::Cache::set_weight). True if the key has a value.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// use std::sync::Mutex;
    ///
    /// let logs = KeyedCache::<String, Mutex<String>>::builder()
    ///     .capacity(1 << 20)
    ///     .weigher(|_, log| log.lock().unwrap().len() as u64)
    ///     .build()?;
    /// logs.insert("today".to_owned(), Mutex::default())?;
    ///
    /// let log = logs.get("today").expect("inserted just now");
    /// log.lock().unwrap().push_str("it rains");
    /// assert!(logs.set_weight("today", 8)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refusal::TooHeavy`], or [`Refusal::NoCapacity`] if nothing can be evicted for it. The
    /// entry then stays with its old weight. Remove it if its value has grown already.
    pub fn set_weight<Q>(&self, key: &Q, bytes: u64) -> Result<bool, Refusal>
    where
        Q: ?Sized + Hash + Equivalent<K>,
    {
        let Some(value) = self.peek(key) else { return Ok(false) };
        self.cache.inner().reweigh(value.0.header(), bytes)
    }

    /// Removes all entries, and returns memory to the system. Returns how many entries were
    /// removed.
    ///
    /// Pinned values leave the cache now, and are freed with their last pin.
    pub fn clear(&self) -> u64 {
        self.cache.clear()
    }

    /// Removes all entries whose time is over, and returns how many. A thread of the cache does
    /// this too, a part at a time.
    pub fn remove_expired(&self) -> u64 {
        self.cache.inner().expire_all()
    }

    /// Returns the statistics. It walks the index, a partition at a time under its lock; see
    /// [`usage`](Self::usage).
    ///
    /// [`Usage::left`] counts the entries that have left, by cause.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns sizes and counters. It takes no lock.
    pub fn usage(&self) -> Usage {
        self.cache.usage()
    }

    /// The hit ratio that more or less capacity would have had over the last minutes; see
    /// [`Cache::curve`](crate::Cache::curve).
    #[cfg(feature = "insight")]
    pub fn curve(&self) -> crate::Curve {
        self.cache.curve()
    }

    /// Begins or ends recording for [`explain`](Self::explain); see
    /// [`Cache::record`](crate::Cache::record).
    #[cfg(feature = "insight")]
    pub fn record(&self, on: bool) {
        self.cache.record(on);
    }

    /// Says why requests missed; see [`Cache::explain`](crate::Cache::explain).
    #[cfg(feature = "insight")]
    pub fn explain(&self, since: std::time::Duration) -> Option<crate::Explanation> {
        self.cache.explain(since)
    }

    /// The tunables. Those that can be set at run time can be set here.
    pub fn tunables(&self) -> &CacheTunables {
        self.cache.tunables()
    }

    /// Sets a tunable by name.
    ///
    /// # Errors
    ///
    /// The name or value is invalid, or it cannot be set at run time. The error says what is valid.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.cache.set_tunable(name, value)
    }

    /// Sets the size: entries if the cache was built with
    /// [`max_entries`](crate::KeyedBuilder::max_entries), else bytes. If it is smaller, the cache
    /// evicts as far as pinned values allow.
    ///
    /// # Panics
    ///
    /// If `size` is zero.
    pub fn resize(&self, size: u64) {
        self.cache.resize(size);
    }

    /// Returns unused memory to the system.
    pub fn trim(&self) {
        self.cache.trim();
    }

    /// Waits until no entry waits for the listener; see
    /// [`Cache::drain_listener`](crate::Cache::drain_listener).
    pub fn drain_listener(&self) {
        self.cache.drain_listener();
    }

    /// Closes the cache: removes all entries, and waits for all pins, the listener and threads to
    /// end.
    ///
    /// Afterwards lookups find nothing, and inserts and loads fail. Never call it on a thread that
    /// has a value pinned, or from the listener: it would wait for itself.
    pub fn close(&self) {
        self.cache.close();
    }

    /// Does the same as [`close`](Self::close), and waits no longer than `timeout` for pins and for
    /// the listener.
    ///
    /// # Errors
    ///
    /// As for [`Cache::close_timeout`](crate::Cache::close_timeout): the cache is closed all the
    /// same, and a later call waits for the rest.
    pub fn close_timeout(&self, timeout: Duration) -> Result<(), CloseTimeout> {
        self.cache.close_timeout(timeout)
    }

    /// Checks every structure of the cache against every other; see
    /// [`Cache::audit`](crate::Cache::audit).
    ///
    /// # Panics
    ///
    /// At the first contradiction, or if a value is pinned.
    pub fn audit(&self) {
        self.cache.audit();
    }
}
