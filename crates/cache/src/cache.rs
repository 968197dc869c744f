//! The public face of the cache.

use std::ptr::NonNull;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::Ordering;
use forebay_base::sync::thread::JoinHandle;
use forebay_base::tunables::TunableError;

use crate::attributes::{Attributes, Cause, Class};
use crate::builder::Builder;
use crate::error::{OwnerError, Refused};
use crate::guard::{OwnedRef, Ref, SlotHint};
use crate::inner::CacheInner;
use crate::key::{Key, OwnerId};
use crate::owner::{MAX_OWNERS, OwnerCaching};
use crate::secondary::Candidate;
use crate::stats::Stats;
use crate::tunables::CacheTunables;

/// An adaptive replacement cache whose hits take no lock.
///
/// Share it between threads by reference or in an `Arc`. The crate's front page has an overview and
/// examples.
///
/// Dropping the cache drops its blocks, but for those that an [`OwnedRef`] or an unfinished load still
/// pins: they go, and the cache's memory with them, when the last such pin does.
/// [`close`](Self::close) waits for that instead.
pub struct Cache<K: Key, V: Send + Sync + 'static> {
    inner: NonNull<CacheInner<K, V>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

// SAFETY: all access to `CacheInner` is shared and synchronised by its own locks and atomics; keys and
// values cross threads, which the bounds allow.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for Cache<K, V> {}
// SAFETY: as above.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for Cache<K, V> {}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Describes a cache to build.
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

    /// A thread to end with the cache.
    pub(crate) fn adopt_thread(&mut self, thread: JoinHandle<()>) {
        self.threads.get_mut().push(thread);
    }

    #[inline]
    pub(crate) fn inner(&self) -> &CacheInner<K, V> {
        // SAFETY: this cache's hold keeps it alive.
        unsafe { self.inner.as_ref() }
    }

    /// The block of that key, pinned, if it is cached. Takes no lock, and writes to no shared line but the
    /// block's own header.
    #[inline]
    pub fn get(&self, key: &K) -> Option<Ref<'_, K, V>> {
        self.inner().get(key)
    }

    /// As [`get`](Self::get) for each of the keys, for who needs several blocks and knows them beforehand: what the lookups need is fetched from
    /// memory side by side, which takes a fraction of the time. `found` is emptied, and then has an entry for each key, in their order.
    ///
    /// The blocks stay pinned as long as they are in `found`: let them be few beside what the cache holds.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().capacity(1 << 20).build()?;
    /// cache.insert(7, 70)?;
    /// let mut found = Vec::new();
    /// cache.get_many(&[6, 7], &mut found);
    /// assert_eq!((found[0].as_deref(), found[1].as_deref()), (None, Some(&70)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_many<'a>(&'a self, keys: &[K], found: &mut Vec<Option<Ref<'a, K, V>>>) {
        self.inner().get_many(keys, found);
    }

    /// As [`get`](Self::get), for who remembers where the block was: looks there first, which spares a hit the index.
    /// Any place is allowed; a wrong one costs a look.
    ///
    /// ```
    /// # use forebay_cache::Cache;
    /// # let cache = Cache::<u64, u32>::builder().capacity(1 << 20).build()?;
    /// cache.insert(7, 70)?;
    /// let place = cache.get(&7).map(|block| block.place()).unwrap_or_default();
    /// assert_eq!(cache.get_at(place, &7).as_deref(), Some(&70));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get_at(&self, hint: SlotHint, key: &K) -> Option<Ref<'_, K, V>> {
        self.inner().get_at(hint, key)
    }

    /// Has the processor fetch what [`get_at`](Self::get_at) will look at, without waiting for it.
    #[inline]
    pub fn prefetch(&self, hint: SlotHint) {
        if let Some(header) = self.inner().slab.by_id(hint.0) {
            forebay_base::sync::hint::prefetch(header.as_ptr());
        }
    }

    /// As [`get`](Self::get), for replies that outlive the borrow.
    #[inline]
    pub fn get_owned(&self, key: &K) -> Option<OwnedRef<K, V>> {
        self.get(key).map(Ref::into_owned)
    }

    /// Whether the block is cached. Does not count as a use.
    pub fn contains(&self, key: &K) -> bool {
        let inner = self.inner();
        let Some((header, _)) = inner.pin(inner.hash(key), key, 0) else { return false };
        // SAFETY: pinned just now, from a valid state.
        drop(unsafe { Ref::from_pin(inner, header) });
        true
    }

    /// Caches a normal data block, over any other of that key.
    ///
    /// # Errors
    /// When the block is not cached; it comes back with the reason. What was cached of that key is gone
    /// all the same.
    pub fn insert(&self, key: K, value: V) -> Result<(), Refused<V>> {
        self.insert_with(key, value, Attributes::DATA)
    }

    /// As [`insert`](Self::insert), of a given class and hint. May wait for room, see the tunable
    /// `overflow_wait_ms`.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_with(&self, key: K, value: V, attributes: Attributes) -> Result<(), Refused<V>> {
        self.inner().insert(key, value, attributes)
    }

    /// Removes a block, or keeps one that is loading from being cached. True if it was cached. Those who
    /// have it pinned keep it.
    pub fn remove(&self, key: &K) -> bool {
        let inner = self.inner();
        inner.remove_everywhere(inner.hash(key), key, Cause::Removed)
    }

    /// Empties the cache, its memory of evicted blocks included, and gives memory back to the system.
    /// Blocks that are pinned leave the cache now and are freed with their last pin. Returns how many
    /// blocks left.
    pub fn flush(&self) -> u64 {
        let inner = self.inner();
        let (removed, _) = inner.sweep(Cause::Flushed, |_, _| true);
        inner.remove_ghosts(|_| true);
        inner.simulations.clear();
        self.trim();
        removed
    }

    /// Removes every block for which `wanted` says yes. Returns how many.
    pub fn flush_where(&self, wanted: impl Fn(&K, Class) -> bool) -> u64 {
        self.inner().sweep(Cause::Flushed, wanted).0
    }

    /// Hands all blocks that are not being written to `take`, up to `most` at once, wherever they are in the lists (but not
    /// those with the hint `Once`): for whoever wants everything written before the cache closes. They are pinned as long as the candidates live. What
    /// enters meanwhile may be missed.
    pub fn offer_all(&self, most: usize, take: impl FnMut(Vec<Candidate<K, V>>)) {
        self.inner().candidates_everywhere(most, take);
    }

    /// Gives memory that is not needed at the moment back to the system.
    pub fn trim(&self) {
        let inner = self.inner();
        inner.compact_rings();
        inner.slab.trim();
        inner.index.trim();
        // The rings' blocks are the C allocator's.
        forebay_base::memory::return_free_memory();
    }

    /// Changes the capacity, or the hard bound if that is what the cache was built with, to `bytes`. A
    /// smaller one is reached by the reclaimer, as fast as pinned blocks allow.
    ///
    /// # Panics
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
                // The reclaimer sets it too; under its lock, the newer one stays.
                let _reclaim = inner.reclaim.lock();
                inner.set_target(bytes);
            }
        }
        inner.request_reclaim();
    }

    /// Opens an owner: a number for keys to carry, by which what is theirs can be limited and removed.
    ///
    /// # Errors
    /// When too many are open, or the cache is closed.
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

    /// Changes what of an owner's blocks is cached from now on; blocks that are cached stay. False if
    /// there is no such owner.
    pub fn set_owner_caching(&self, owner: OwnerId, caching: OwnerCaching) -> bool {
        self.inner().owners.set(owner, caching)
    }

    /// Closes an owner: waits until nothing of its is loading or pinned, and leaves nothing of it behind,
    /// neither blocks nor ghosts. Loads that begin meanwhile fail with [`LoadError::Closed`](crate::LoadError::Closed). False if there
    /// is no such owner, or somebody else is closing it.
    ///
    /// Never call it on a thread that has one of the owner's blocks pinned: it would wait for itself.
    ///
    /// The number may be given to another owner afterwards. A second level is not told: keys that it may
    /// still have must also carry something that is never used again (a pool's unique number, say).
    pub fn close_owner(&self, owner: OwnerId) -> bool {
        let inner = self.inner();
        if owner == OwnerId::NONE || !inner.owners.begin_close(owner) {
            return false;
        }
        inner.sweep_and_wait(Cause::OwnerClosed, |key, _| key.owner() == owner);
        inner.remove_ghosts(|o| o == owner);
        inner.owners.end_close(owner);
        true
    }

    /// What the cache holds and has done.
    pub fn stats(&self) -> Stats {
        Stats::of(self.inner())
    }

    /// The tunables; those that can be set at run time can be set here.
    pub fn tunables(&self) -> &CacheTunables {
        &self.inner().tunables
    }

    /// Sets a tunable by its name.
    ///
    /// # Errors
    /// When the name, the value or the time is wrong; the error says what would be right.
    pub fn set_tunable(&self, name: &str, value: &str) -> Result<(), TunableError> {
        self.inner().tunables.set(name, value)?;
        self.inner().request_reclaim();
        Ok(())
    }

    /// Waits until no eviction waits for the user's callback. While others go on evicting, that may
    /// take as long as they do. Never call it from a callback: it would wait for itself.
    pub fn drain_callbacks(&self) {
        if let Some(callbacks) = &self.inner().callbacks {
            callbacks.drain();
        }
    }

    /// Ends the cache's work: nothing is cached or loaded any more, every block is removed, and when it
    /// returns, every pin has gone, every callback has run and the cache's threads have ended. Lookups
    /// find nothing afterwards, and inserts and loads are refused with an error.
    ///
    /// Never call it on a thread that has a block pinned, or from a callback: it would wait for itself.
    pub fn close(&self) {
        let inner = self.inner();
        inner.closed.store(true, Ordering::SeqCst);
        inner.sweep_and_wait(Cause::Closed, |_, _| true);
        inner.remove_ghosts(|_| true);
        self.end_threads();
        self.trim();
    }

    fn end_threads(&self) {
        self.inner().stop_threads();
        // Held while they end: a second close returns no sooner than the first.
        let mut threads = self.threads.lock();
        let here = forebay_base::sync::thread::current_id();
        for thread in threads.drain(..) {
            // A callback may hold the last reference to the cache: its thread ends by itself.
            if thread.thread().id() != here {
                let joined = thread.join();
                debug_assert!(joined.is_ok(), "a thread of the cache panicked");
            }
        }
    }

    /// Checks every structure against every other.
    ///
    /// For tests. Nothing else may use the cache meanwhile.
    ///
    /// # Panics
    ///
    /// At the first contradiction.
    #[doc(hidden)]
    pub fn audit(&self) {
        crate::stats::audit::audit(self.inner());
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Cache<K, V> {
    fn drop(&mut self) {
        let inner = self.inner();
        inner.closed.store(true, Ordering::SeqCst);
        inner.index.barrier();
        // Also after a close, which may have ended in a panic of the user's.
        inner.sweep(Cause::Closed, |_, _| true);
        self.end_threads();
        self.inner().orphan_the_pinned();
        // SAFETY: this cache's hold, given up once and last.
        unsafe { CacheInner::release(self.inner) };
    }
}

/// An open owner; closed by [`close`](Self::close) or by dropping it.
pub struct Owner<'a, K: Key, V: Send + Sync + 'static> {
    cache: &'a Cache<K, V>,
    id: OwnerId,
}

impl<K: Key, V: Send + Sync + 'static> Owner<'_, K, V> {
    /// The number for this owner's keys to carry.
    pub fn id(&self) -> OwnerId {
        self.id
    }

    /// Changes what is cached from now on.
    pub fn set_caching(&self, caching: OwnerCaching) {
        self.cache.set_owner_caching(self.id, caching);
    }

    /// See [`Cache::close_owner`].
    pub fn close(self) {}

    /// The number alone: the owner stays open until [`Cache::close_owner`].
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
