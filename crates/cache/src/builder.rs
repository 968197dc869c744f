//! Building a cache.

use std::ptr::NonNull;

use forebay_base::clock::{Clock, SystemClock};
use forebay_base::memory;
use forebay_base::rng::seed_from_system;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::AtomicU64;
use forebay_base::sync::thread::{JoinHandle, spawn_named};

use crate::cache::Cache;
use crate::callbacks::{Callbacks, Evicted};
use crate::capacity::overhead;
use crate::error::BuildError;
use crate::inner::{Bound, CacheInner, CacheParts, Overhead, Reclaim, Weigher};
use crate::key::Key;
use crate::secondary::SecondaryCache;
use crate::tunables::CacheTunables;

/// Describes a cache; made by [`Cache::builder`].
#[must_use = "call `build` to get the cache"]
pub struct Builder<K: Key, V: Send + Sync + 'static> {
    capacity: Option<u64>,
    bound: Option<u64>,
    overhead: Option<Overhead>,
    weigher: Weigher<K, V>,
    on_evict: Option<Box<dyn Fn(Evicted<K, V>) + Send + Sync>>,
    secondary: Option<Arc<dyn SecondaryCache<K, V>>>,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    mode: Reclaim,
    tunables: Vec<(String, String)>,
}

impl<K: Key, V: Send + Sync + 'static> Builder<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            capacity: None,
            bound: None,
            overhead: None,
            weigher: Box::new(|_, _| size_of::<V>() as u64),
            on_evict: None,
            secondary: None,
            clock: None,
            seed: None,
            mode: Reclaim::Thread,
            tunables: Vec::new(),
        }
    }

    /// The weight of blocks to hold: the policy's capacity `c`. What the cache needs for itself comes on
    /// top (80 bytes a block and 30 for one that is remembered, about).
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// A hard bound on everything in bytes: blocks, headers, index, ghosts, and what
    /// [`overhead`](Self::overhead) tells. The capacity is what that leaves, and follows it.
    pub fn bound(mut self, bytes: u64) -> Self {
        self.bound = Some(bytes);
        self
    }

    /// Tells bytes that count against the [`bound`](Self::bound) though the weigher does not see them: the
    /// slack of the arena that the blocks come from, for instance. Called often; must be cheap.
    ///
    /// Evicting a block must not make it more for long: memory that is free for the next block is to be
    /// given back (purge the arena when its slack is more than a few percent) before it is told. Else
    /// room is taken from blocks for what evicted blocks have left, until there are none.
    pub fn overhead(mut self, bytes: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.overhead = Some(Box::new(bytes));
        self
    }

    /// Weighs a block, in bytes; at least 1 is taken. By default, the size of `V` itself: right only
    /// if it owns nothing.
    pub fn weigher(mut self, weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static) -> Self {
        self.weigher = Box::new(weigh);
        self
    }

    /// Is called with every block that has left the cache, on a thread of its own; it may block. If it
    /// falls behind by more than the tunable `callback_queue`, blocks are dropped without it and counted.
    pub fn on_evict(mut self, f: impl Fn(Evicted<K, V>) + Send + Sync + 'static) -> Self {
        self.on_evict = Some(Box::new(f));
        self
    }

    /// A second level behind this one.
    pub fn secondary_cache(mut self, secondary: Arc<dyn SecondaryCache<K, V>>) -> Self {
        self.secondary = Some(secondary);
        self
    }

    /// Who evicts; a thread of the cache's own by default.
    pub fn reclaim(mut self, mode: Reclaim) -> Self {
        self.mode = mode;
        self
    }

    /// Sets a tunable; `docs/tunables.md` lists them. Checked by [`build`](Self::build).
    pub fn tunable(mut self, name: &str, value: &str) -> Self {
        self.tunables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The seed of the hash and of the evictor's choices; from the system by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The clock by which waits are measured; the system's by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the cache and starts its threads.
    ///
    /// # Errors
    /// When capacity or a tunable is wrong, or the system gives no memory or no thread.
    pub fn build(self) -> Result<Cache<K, V>, BuildError> {
        let capacity = self.capacity.or(self.bound).filter(|c| *c > 0);
        let capacity = capacity.ok_or(BuildError::NoCapacity)?;
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
        let has_callbacks = self.on_evict.is_some();
        let inner = CacheInner::new(CacheParts {
            target: capacity,
            limit,
            shards: (2 * cpus).next_power_of_two().max(if cfg!(forebay_model) { 1 } else { 4 }),
            sublists,
            seed,
            tunables,
            weigher: self.weigher,
            callbacks: self.on_evict.map(Callbacks::new),
            secondary: self.secondary,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::default())),
            bound: self.bound.map(|b| Bound { bytes: AtomicU64::new(b), others: self.overhead }),
            mode: self.mode,
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

/// Puts the cache on the heap and starts its threads.
fn start<K: Key, V: Send + Sync + 'static>(
    inner: CacheInner<K, V>,
    has_callbacks: bool,
) -> Result<Cache<K, V>, BuildError> {
    let mode = inner.mode;
    let inner = NonNull::from(Box::leak(Box::new(inner)));
    // For the last release, which may come from a guard's shared borrow.
    inner.as_ptr().expose_provenance();
    // From here the cache's drop ends what has been started.
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
