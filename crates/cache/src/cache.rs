//! The public interface of the cache: [`Cache`] and [`Owner`]. Operations on blocks in the cache
//! are in `operations`, loading in `load::begin`.

use std::ptr::NonNull;
use std::time::Duration;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::JoinHandle;
use forebay_base::tunables::TunableError;

use crate::attributes::{Attributes, Cause};
use crate::builder::Builder;
use crate::error::{CloseTimeout, OwnerError, Refused};
use crate::guard::{OwnedRef, Ref, SlotHint};
use crate::inner::CacheInner;
use crate::insert::{NotInserted, Replaces};
use crate::key::{Key, OwnerId};
use crate::owner::{MAX_OWNERS, OwnerCaching};
use crate::secondary::Candidate;
use crate::stats::{Stats, Usage};
use crate::tunables::CacheTunables;

/// An adaptive replacement cache whose hits take no lock.
///
/// Share it between threads by reference or in an `Arc`. The crate's documentation has an overview
/// and examples.
///
/// Dropping the cache drops its blocks, except those that an [`OwnedRef`] or an unfinished load
/// pins. They are dropped, and the cache's memory is freed, with the last such pin.
/// [`close`](Self::close) waits for that instead.
pub struct Cache<K: Key, V: Send + Sync + 'static> {
    inner: NonNull<CacheInner<K, V>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

// SAFETY: all access to `CacheInner` is shared and synchronised by its own locks and atomics; keys
// and values cross threads, which the bounds allow.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for Cache<K, V> {}
// SAFETY: the methods take `&self` and share `CacheInner` between threads by its own locks and
// atomics; keys and values may be used by several threads, by the bounds.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for Cache<K, V> {}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Returns a builder.
    ///
    /// ```
    /// let cache = forebay_cache::Cache::<u64, Vec<u8>>::builder()
    ///     .capacity(64 << 20)
    ///     .weigher(|_key, block| block.len() as u64)
    ///     .build()?;
    /// # Ok::<(), forebay_cache::BuildError>(())
    /// ```
    pub fn builder() -> Builder<K, V> {
        Builder::new()
    }

    /// Takes over a hold on `inner`.
    pub(crate) fn from_hold(
        inner: NonNull<CacheInner<K, V>>,
        threads: Vec<JoinHandle<()>>,
    ) -> Self {
        Self { inner, threads: Mutex::named("cache-threads", threads) }
    }

    /// Adds a thread that ends with the cache.
    pub(crate) fn adopt_thread(&mut self, thread: JoinHandle<()>) {
        self.threads.get_mut().push(thread);
    }

    #[inline]
    pub(crate) fn inner(&self) -> &CacheInner<K, V> {
        // SAFETY: this cache's hold keeps it alive.
        unsafe { self.inner.as_ref() }
    }

    /// Returns the block, pinned, if it is cached. Takes no lock, and writes to no shared cache
    /// line except the block's header.
    #[inline]
    pub fn get(&self, key: &K) -> Option<Ref<'_, K, V>> {
        self.inner().get(key)
    }

    /// Looks up several keys at once, which takes a fraction of the time of single lookups.
    ///
    /// Memory accesses of the lookups overlap. `found` is cleared and then gets an entry for each
    /// key, in order. The blocks stay pinned while they are in `found`, so let them be few compared
    /// with the cache.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert(7, 70)?;
    /// let mut found = Vec::new();
    /// cache.get_many(&[6, 7], &mut found);
    /// assert_eq!((found[0].as_deref(), found[1].as_deref()), (None, Some(&70)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_many<'a>(&'a self, keys: &[K], found: &mut Vec<Option<Ref<'a, K, V>>>) {
        self.inner().get_many(keys, found);
    }

    /// Looks up a block where it was before, which saves a hit the index lookup.
    ///
    /// Any hint is allowed; a wrong one costs one comparison. During an insert that replaces
    /// the block, this and other lookups may disagree: one may find the older block after another
    /// has found the newer one.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert(7, 70)?;
    /// let hint = cache.get(&7).map(|block| block.slot_hint()).unwrap_or_default();
    /// assert_eq!(cache.get_at(hint, &7).as_deref(), Some(&70));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get_at(&self, hint: SlotHint, key: &K) -> Option<Ref<'_, K, V>> {
        self.inner().get_at(hint, key)
    }

    /// Prefetches the header that [`get_at`](Self::get_at) will read. Does not wait.
    #[inline]
    pub fn prefetch(&self, hint: SlotHint) {
        if let Some(header) = self.inner().slab.by_id(hint.0) {
            forebay_base::sync::hint::prefetch(header.as_ptr());
        }
    }

    /// Does the same as [`get`](Self::get), for a reference that outlives the borrow.
    #[inline]
    pub fn get_owned(&self, key: &K) -> Option<OwnedRef<K, V>> {
        self.get(key).map(Ref::into_owned)
    }

    /// Inserts a normal data block, replacing any other block of that key.
    ///
    /// # Errors
    ///
    /// The value and the reason, if it is not cached. An older block of that key is outdated, so it
    /// is removed all the same, also from the secondary cache, and also if the reason is
    /// [`Refusal::Closed`](crate::Refusal::Closed). [`Refused::removed`] tells whether there was
    /// one.
    pub fn insert(&self, key: K, value: V) -> Result<(), Refused<V>> {
        self.insert_with(key, value, Attributes::DATA)
    }

    /// Inserts a block with the given class and hint. May wait for capacity, see the tunable
    /// `overflow_wait_ms`.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn insert_with(&self, key: K, value: V, attributes: Attributes) -> Result<(), Refused<V>> {
        let inserted = self.inner().insert(key, value, attributes, Replaces::Any);
        inserted.map_err(NotInserted::into_refused)
    }

    /// Does the same as [`insert`](Self::insert), and waits for capacity without blocking the
    /// thread. Works under any executor.
    ///
    /// An insert waits for a listener that gets every event ([`Delivery`](crate::Delivery)), or if
    /// the tunable `overflow_wait_ms` says so. Dropping the future before it is ready changes
    /// nothing. A secondary cache may block the thread; the front of both has its own insert.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let run = async {
    /// let cache = Cache::<u64, u32>::builder().max_entries(1000).build()?;
    /// cache.insert_async(7, 70).await?;
    /// assert_eq!(cache.get(&7).as_deref(), Some(&70));
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
        let inner = self.inner();
        let weight = inner.weigh(&key, &value);
        let reservation = inner.reserve_async(&key, weight, attributes).await;
        let inserted = inner.insert_reserved(key, value, attributes, reservation);
        inserted.map_err(NotInserted::into_refused)
    }

    /// Offers all blocks that are not being written to `take`, up to `most` at once.
    ///
    /// For callers that want all blocks written before the cache is closed. Blocks hinted `Once`
    /// are not included, and blocks inserted meanwhile may be missed. The blocks are pinned while
    /// the candidates live.
    pub fn offer_all(&self, most: usize, take: impl FnMut(Vec<Candidate<K, V>>)) {
        self.inner().candidates_everywhere(most, take);
    }

    /// Returns unused memory to the system.
    pub fn trim(&self) {
        let inner = self.inner();
        inner.compact_rings();
        inner.free_blocks.trim();
        inner.free_ghosts.trim();
        inner.slab.trim();
        inner.index.trim();
        // The rings' blocks come from the C allocator.
        forebay_base::memory::return_free_memory();
    }

    /// Sets the capacity in bytes; or the hard bound, if the cache was built with one.
    ///
    /// If it is smaller, the reclaimer evicts as far as pinned blocks allow.
    ///
    /// # Panics
    ///
    /// If `bytes` is zero.
    pub fn resize(&self, bytes: u64) {
        assert!(
            bytes > 0,
            "a cache needs a capacity above zero; to disable caching, open owners with `OwnerCaching::None`"
        );
        let inner = self.inner();
        match &inner.bound {
            Some(bound) => bound.bytes.store(bytes, Ordering::Relaxed),
            None => {
                // The reclaimer sets it too. Under its lock, the newer value stays.
                let _reclaim = inner.reclaim.lock();
                inner.set_target(bytes);
            }
        }
        inner.request_reclaim();
    }

    /// Opens an owner: a number to put into keys, by which blocks can be limited and removed
    /// together.
    ///
    /// # Errors
    ///
    /// Too many owners are open, or the cache is closed.
    pub fn open_owner(&self, caching: OwnerCaching) -> Result<Owner<'_, K, V>, OwnerError> {
        if self.inner().closed.load(Ordering::Acquire) {
            return Err(OwnerError::Closed);
        }
        let id = self
            .inner()
            .owners
            .open(caching)
            .ok_or(OwnerError::TooMany { limit: MAX_OWNERS - 1 })?;
        Ok(Owner { cache: self, id })
    }

    /// Sets which blocks of an owner are cached from now on. Cached blocks stay. False if the owner
    /// is not open.
    pub fn set_owner_caching(&self, owner: OwnerId, caching: OwnerCaching) -> bool {
        self.inner().owners.set(owner, caching)
    }

    /// Closes an owner and removes all its blocks and ghosts. Waits until none of its blocks is
    /// loading or pinned.
    ///
    /// Loads that begin meanwhile fail with [`LoadError::Closed`](crate::LoadError::Closed). False
    /// if the owner is not open, or another thread is closing it.
    ///
    /// Never call it on a thread that has one of the owner's blocks pinned: it would wait for
    /// itself.
    ///
    /// The number may be reused for another owner. The secondary cache is not told. So keys that it
    /// may still have must also contain something that is never reused, such as a pool's unique id.
    pub fn close_owner(&self, owner: OwnerId) -> bool {
        let inner = self.inner();
        if owner == OwnerId::NONE || !inner.owners.begin_close(owner) {
            return false;
        }
        inner.sweep_and_wait(Cause::OwnerClosed, |key, _| inner.owner_of(key) == owner, None);
        inner.remove_ghosts(|o| o == owner);
        inner.owners.end_close(owner);
        true
    }

    /// Returns the statistics. It walks the index, a partition at a time under its lock; see
    /// [`usage`](Self::usage).
    pub fn stats(&self) -> Stats {
        Stats::of(self.inner())
    }

    /// Returns sizes and counters. It takes no lock.
    pub fn usage(&self) -> Usage {
        Usage::of(self.inner())
    }

    /// The hit ratio that more or less capacity would have had over the last minutes.
    ///
    /// It comes from miniature simulations of the policy on sampled blocks. They see blocks without
    /// a hint. With what [`secondary_curve`](Self::secondary_curve) comes from, they take at most
    /// 4 MiB, and at most a sixteenth of a hard bound. A bound of less than 7 MiB is too small for
    /// them; then the curve has no points. After [`resize`](Self::resize) by more than an eighth
    /// it begins anew, since what was simulated before were other sizes.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().max_entries(100).build()?;
    /// # for key in (0..4).flat_map(|_| 0..150) {
    /// #     if cache.get(&key).is_none() { cache.insert(key, 0)?; }
    /// # }
    /// for point in cache.curve().points {
    ///     println!("{} bytes: hit ratio {:.2}", point.capacity, point.hit_ratio());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "insight")]
    pub fn curve(&self) -> crate::Curve {
        let inner = self.inner();
        inner.simulations.curve(|| inner.curve_totals(), inner.capacities())
    }

    /// The tunables. Those that can be set at run time can be set here.
    pub fn tunables(&self) -> &CacheTunables {
        &self.inner().tunables
    }

    /// Sets a tunable by name.
    ///
    /// # Errors
    ///
    /// The name or value is invalid, or it cannot be set at run time. The error says what is valid.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.inner().tunables.set(name, value)?;
        self.inner().request_reclaim();
        Ok(())
    }

    /// Waits until no block that has left waits for the [listener](crate::Builder::on_evicted).
    ///
    /// Other threads may evict meanwhile, which prolongs the wait. Never call it from the listener:
    /// it would wait for itself.
    pub fn drain_listener(&self) {
        if let Some(callbacks) = &self.inner().callbacks {
            callbacks.drain();
        }
    }

    /// Closes the cache: removes all blocks, and waits for all pins, the listener and threads to
    /// end.
    ///
    /// Afterwards lookups find nothing, and inserts and loads fail. Never call it on a thread that
    /// has a block pinned, or from the listener: it would wait for itself.
    pub fn close(&self) {
        self.begin_close(None);
        self.end_close();
    }

    /// Does the same as [`close`](Self::close), and waits no longer than `timeout` for pins and for
    /// the listener.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// use std::time::Duration;
    ///
    /// let cache = Cache::<u64, u64>::builder().max_entries(100).build()?;
    /// cache.insert(7, 49)?;
    /// let pinned = cache.get_owned(&7);
    /// let error = cache.close_timeout(Duration::ZERO).unwrap_err();
    /// assert_eq!(error.in_use, 1);
    /// drop(pinned);
    /// cache.close();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// How many blocks are still pinned or being loaded. The cache is closed all the same: lookups
    /// find nothing, and inserts and loads fail. A later call waits for the rest.
    pub fn close_timeout(&self, timeout: Duration) -> Result<(), CloseTimeout> {
        let inner = self.inner();
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = inner.clock.now_ns().saturating_add(timeout_ns);
        let in_use = self.begin_close(Some(deadline_ns));
        let is_told = || match &inner.callbacks {
            Some(callbacks) => callbacks.drain_until(|| inner.clock.now_ns() >= deadline_ns),
            None => true,
        };
        if in_use > 0 || !is_told() {
            return Err(CloseTimeout { in_use, timeout });
        }
        self.end_close();
        Ok(())
    }

    /// Removes all blocks, and waits for pins, until that time by the cache's clock. Returns how
    /// many blocks are still in use.
    fn begin_close(&self, deadline_ns: Option<u64>) -> u64 {
        let inner = self.inner();
        inner.closed.store(true, Ordering::SeqCst);
        inner.sweep_and_wait(Cause::Closed, |_, _| true, deadline_ns)
    }

    fn end_close(&self) {
        self.inner().remove_ghosts(|_| true);
        self.end_threads();
        self.trim();
    }

    fn end_threads(&self) {
        self.inner().stop_threads();
        // Held until they have ended, so that a second close returns no sooner than the first.
        let mut threads = self.threads.lock();
        let here = forebay_base::sync::thread::current_id();
        for thread in threads.drain(..) {
            // A callback may drop the last reference to the cache. Its thread ends by itself.
            if thread.thread().id() != here {
                let joined = thread.join();
                debug_assert!(joined.is_ok(), "a thread of the cache panicked");
            }
        }
    }

    /// Checks every structure of the cache against every other: headers, lists, ghosts, index, and
    /// the capacity in use.
    ///
    /// For tests of the cache and of its users. It visits every block and ghost. Nothing else may
    /// use the cache meanwhile, no block may be pinned, and
    /// [`drain_listener`](Self::drain_listener) must have returned.
    ///
    /// # Panics
    ///
    /// At the first contradiction, or if a block is pinned.
    pub fn audit(&self) {
        crate::stats::audit::audit(self.inner());
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Cache<K, V> {
    fn drop(&mut self) {
        let inner = self.inner();
        inner.closed.store(true, Ordering::SeqCst);
        inner.index.barrier();
        // Also after `close`, which a panic of user code may have ended early.
        inner.sweep(Cause::Closed, |_, _| true);
        self.end_threads();
        self.inner().orphan_the_pinned();
        // SAFETY: this cache's hold, given up once and last.
        unsafe { CacheInner::release(self.inner) };
    }
}

/// An open owner. Closed by [`close`](Self::close) or on drop.
pub struct Owner<'a, K: Key, V: Send + Sync + 'static> {
    cache: &'a Cache<K, V>,
    id: OwnerId,
}

impl<K: Key, V: Send + Sync + 'static> Owner<'_, K, V> {
    /// The number to put into this owner's keys.
    pub fn id(&self) -> OwnerId {
        self.id
    }

    /// Sets which blocks are cached from now on.
    pub fn set_caching(&self, caching: OwnerCaching) {
        self.cache.set_owner_caching(self.id, caching);
    }

    /// Closes the owner; see [`Cache::close_owner`].
    pub fn close(self) {}

    /// Returns the number and leaves the owner open until [`Cache::close_owner`].
    pub fn into_id(self) -> OwnerId {
        let id = self.id;
        std::mem::forget(self);
        id
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Owner<'_, K, V> {
    fn drop(&mut self) {
        self.cache.close_owner(self.id);
    }
}
