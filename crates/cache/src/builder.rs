//! The builder of a cache.

use std::ptr::NonNull;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::memory;
use forebay_base::rng::seed_from_system;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::AtomicU64;
use forebay_base::sync::thread::{JoinHandle, spawn_named};

use crate::cache::Cache;
use crate::callbacks::{Callbacks, Delivery, Evicted};
use crate::capacity::overhead;
use crate::error::BuildError;
use crate::evict::expire::Expiry;
use crate::inner::{Bound, CacheInner, CacheParts, Overhead, Reclaim, Weigher};
use crate::key::Key;
use crate::load::mean_weight::INITIAL_BYTES;
use crate::secondary::SecondaryCache;
use crate::tunables::CacheTunables;

/// Configures a cache. Made by [`Cache::builder`].
#[must_use = "call `build` to get the cache"]
pub struct Builder<K: Key, V: Send + Sync + 'static> {
    capacity: Option<u64>,
    max_entries: Option<u64>,
    bound: Option<u64>,
    overhead: Option<Overhead>,
    weigher: Option<Weigher<K, V>>,
    listener: Option<Callbacks<K, V>>,
    secondary: Option<Arc<dyn SecondaryCache<K, V>>>,
    expiry: Option<Arc<dyn Expiry<V>>>,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    mode: Reclaim,
    plain_lru: bool,
    has_curve: bool,
    tunables: Vec<(String, String)>,
}

impl<K: Key, V: Send + Sync + 'static> Builder<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            capacity: None,
            max_entries: None,
            bound: None,
            overhead: None,
            weigher: None,
            listener: None,
            secondary: None,
            expiry: None,
            clock: None,
            seed: None,
            mode: Reclaim::Thread,
            plain_lru: false,
            has_curve: true,
            tunables: Vec::new(),
        }
    }

    /// Sets the weight of blocks to hold in bytes: the policy's target `c`. The cache's own memory
    /// comes on top: about 80 bytes per block and 30 per ghost.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Sets the number of blocks to hold, each counted as 1: the capacity of a cache without a
    /// [`weigher`](Self::weigher). It does not bound the memory of the values.
    ///
    /// Like every capacity, it may be exceeded by one in 64 for a moment.
    ///
    /// ```
    /// let cache = forebay_cache::Cache::<u64, String>::builder().max_entries(10_000).build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn max_entries(mut self, entries: u64) -> Self {
        self.max_entries = Some(entries);
        self
    }

    /// Sets a hard bound in bytes on blocks, headers, index, ghosts, and the bytes that
    /// [`overhead`](Self::overhead) reports. The capacity is the rest, and follows it.
    ///
    /// The weight of a block then includes its header, with key and value, and its index entry.
    pub fn bound(mut self, bytes: u64) -> Self {
        self.bound = Some(bytes);
        self
    }

    /// Sets a function that reports bytes which count against the [`bound`](Self::bound) but which
    /// the weigher does not see, such as an arena's slack. It is called often, also by threads that
    /// insert, and must be cheap.
    ///
    /// Evicting a block must not raise it for long. Return free memory before reporting it, for
    /// instance purge the arena when its slack exceeds a few percent. Otherwise the memory of
    /// evicted blocks counts against the others, until no block is left.
    pub fn overhead(mut self, bytes: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.overhead = Some(Box::new(bytes));
        self
    }

    /// Sets the function that weighs a block, in bytes; at least 1 is used. It weighs the value
    /// with all memory that it owns; with a [`bound`](Self::bound) only what it owns, because the
    /// header that contains it counts already. There is no default: the size of `V` is wrong if `V`
    /// owns memory. See also [`max_entries`](Self::max_entries).
    pub fn weigher(mut self, weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static) -> Self {
        self.weigher = Some(Box::new(weigh));
        self
    }

    /// Sets the listener: a function that is called with each block that has left the cache, and
    /// why. It runs on its own thread, under no lock, and may block and call the cache. `delivery`
    /// says what happens if it is slow; [`Delivery::default`] loses nothing.
    ///
    /// [`Cache::close`] and the drop of the cache deliver what is queued. A value that is pinned
    /// when the cache is dropped is dropped later, without the listener.
    ///
    /// ```
    /// use forebay_cache::{Cache, Delivery};
    ///
    /// let cache = Cache::<u64, String>::builder()
    ///     .max_entries(10_000)
    ///     .on_evicted(Delivery::Lossless, |gone| println!("{}: {:?}", gone.key, gone.cause))
    ///     .build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn on_evicted(
        mut self,
        delivery: Delivery,
        listener: impl Fn(Evicted<K, V>) + Send + Sync + 'static,
    ) -> Self {
        self.listener = Some(Callbacks::new(delivery, Box::new(listener)));
        self
    }

    /// Attaches a secondary cache.
    pub fn secondary_cache(mut self, secondary: Arc<dyn SecondaryCache<K, V>>) -> Self {
        self.secondary = Some(secondary);
        self
    }

    /// Sets what tells the reclaimer which values have expired, so that it frees those that nobody
    /// looks up. Lookups of the cache do not ask it: a layer above has to, as
    /// [`KeyedCache`](crate::KeyedCache) does.
    pub fn expiry(mut self, expiry: Arc<dyn Expiry<V>>) -> Self {
        self.expiry = Some(expiry);
        self
    }

    /// Sets which thread evicts. The default is a thread of the cache.
    pub fn reclaim(mut self, mode: Reclaim) -> Self {
        self.mode = mode;
        self
    }

    /// Keeps all blocks in one second-chance LRU list, without classes, hints, admission and
    /// ghosts. For comparisons with the policy of this cache. Sets the tunables `ghost_percent` and
    /// `correlated_window_permille` to 0.
    #[cfg(feature = "testing")]
    pub fn plain_lru(mut self) -> Self {
        self.plain_lru = true;
        self.tunable("ghost_percent", "0").tunable("correlated_window_permille", "0")
    }

    /// Measures no miss-ratio curve, to find out what it costs. [`Cache::curve`] has no points
    /// then.
    #[cfg(all(feature = "testing", feature = "insight"))]
    pub fn without_curve(mut self) -> Self {
        self.has_curve = false;
        self
    }

    /// Sets a tunable, see `docs/tunables.md`. [`build`](Self::build) checks it.
    pub fn tunable(mut self, name: &str, value: &str) -> Self {
        self.tunables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the seed of the hash and of the evictor's random choices. The default comes from the
    /// system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the clock that measures waits. The default is the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the cache and starts its threads.
    ///
    /// # Errors
    ///
    /// There is no capacity or no weigher, a tunable is invalid, or the system provides no memory
    /// or no thread.
    pub fn build(self) -> Result<Cache<K, V>, BuildError> {
        let capacity = self.capacity.or(self.bound).or(self.max_entries).filter(|c| *c > 0);
        let capacity = capacity.ok_or(BuildError::NoCapacity)?;
        let weighed = self.capacity.or(self.bound).is_some() || self.weigher.is_some();
        let (weigher, first_weight): (Weigher<K, V>, _) = match (self.weigher, self.max_entries) {
            (_, Some(_)) if weighed => return Err(BuildError::TwoSizes),
            (None, Some(_)) => (Box::new(|_, _| 1), 1),
            (Some(weigher), _) => (weigher, INITIAL_BYTES),
            (None, None) => return Err(BuildError::NoWeigher),
        };
        let tunables = CacheTunables::default();
        for (name, value) in &self.tunables {
            tunables.set(name, value)?;
        }
        tunables.freeze();
        let cpus = if cfg!(forebay_model) { 1 } else { memory::cpus() };
        let sublists = match tunables.sublists() {
            0 if cfg!(forebay_model) => 1,
            0 => cpus.max(4).next_power_of_two(),
            n => (n as usize).next_power_of_two(),
        };
        let seed = match self.seed {
            Some(seed) => seed,
            None => seed_from_system(),
        };
        let limit = capacity.saturating_add(capacity >> tunables.overflow_shift());
        let has_callbacks = self.listener.is_some();
        let inner = CacheInner::new(CacheParts {
            target: capacity,
            limit,
            shards: (2 * cpus).next_power_of_two().max(if cfg!(forebay_model) { 1 } else { 4 }),
            sublists,
            seed,
            tunables,
            weigher,
            first_weight,
            callbacks: self.listener,
            secondary: self.secondary,
            expiry: self.expiry,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::default())),
            bound: self.bound.map(|b| Bound { bytes: AtomicU64::new(b), others: self.overhead }),
            mode: self.mode,
            plain_lru: self.plain_lru,
            has_curve: self.has_curve,
        })?;
        if let Some(bound) = self.bound {
            inner.refresh_bound();
            if inner.capacity.target() == 0 {
                return Err(BuildError::BoundTooSmall { bound, overhead: overhead::bytes(&inner) });
            }
        }
        start(inner, has_callbacks)
    }
}

/// Moves the cache to the heap and starts its threads.
fn start<K: Key, V: Send + Sync + 'static>(
    inner: CacheInner<K, V>,
    has_callbacks: bool,
) -> Result<Cache<K, V>, BuildError> {
    let mode = inner.mode;
    let inner = NonNull::from(Box::leak(Box::new(inner)));
    // For the last release, which may come from a shared borrow of a guard.
    inner.as_ptr().expose_provenance();
    // From here on, dropping the cache ends the threads that were started.
    let mut cache = Cache::from_hold(inner, Vec::new());
    if mode == Reclaim::Thread {
        cache.adopt_thread(spawn(inner, "forebay-reclaim", CacheInner::run_reclaimer)?);
    }
    if has_callbacks {
        cache.adopt_thread(spawn(inner, "forebay-evicted", CacheInner::run_callbacks)?);
    }
    Ok(cache)
}

struct InnerHold<K: Key, V: Send + Sync + 'static>(NonNull<CacheInner<K, V>>);

// SAFETY: `CacheInner` is shared between threads by design; see `Cache`.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for InnerHold<K, V> {}

impl<K: Key, V: Send + Sync + 'static> Drop for InnerHold<K, V> {
    fn drop(&mut self) {
        // SAFETY: this type is a hold.
        unsafe { CacheInner::release(self.0) };
    }
}

fn spawn<K: Key, V: Send + Sync + 'static>(
    inner: NonNull<CacheInner<K, V>>,
    name: &str,
    body: fn(&CacheInner<K, V>),
) -> Result<JoinHandle<()>, BuildError> {
    // SAFETY: the caller has a hold.
    unsafe { inner.as_ref() }.hold();
    let held = InnerHold(inner);
    let run = move || {
        let held = held;
        // SAFETY: the thread's hold keeps it alive.
        body(unsafe { held.0.as_ref() });
    };
    spawn_named(name, run).map_err(BuildError::Thread)
}
