//! The public interface of loading: [`Cache::begin`] and the calls that build on it.
//!
//! The order of an attempt is: hit, reserve capacity, install the loading header, ask the secondary
//! cache (`load`). A block whose capacity could not be reserved is loaded and handed out uncached.
//! A load that was withdrawn is begun again. After [`MAX_SECONDARY_ATTEMPTS`] withdrawals the
//! secondary cache is bypassed, since it may be the one that withdraws.
//!
//! Locking: none held while a caller waits or loads.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
// tidy: std, because errors are shared with users.
use std::sync::Arc;
use std::task::Context;

use crate::attributes::Attributes;
use crate::cache::Cache;
use crate::capacity::reserve::CapacityFuture;
use crate::guard::{OwnedRef, Ref};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::load::error::LoadError;
use crate::load::load_guard::{Begin, LoadGuard, Present};
use crate::load::{Intent, Step};

/// Withdrawn loads of a block after which the secondary cache is bypassed.
const MAX_SECONDARY_ATTEMPTS: u32 = 4;
/// Divisor of the capacity for the most that a load without a declared weight reserves.
const MOST_EXPECTED: u64 = 8;

impl Intent {
    /// Of a load that was withdrawn that many times.
    fn after(withdrawn: u32) -> Self {
        if withdrawn < MAX_SECONDARY_ATTEMPTS { Self::Load } else { Self::LoadWithoutSecondary }
    }
}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Finds a block or joins its load. Begins no load and does not ask the secondary cache.
    ///
    /// If there is neither, the cache is unchanged: the key keeps its ghost, and the policy does
    /// not count a miss. So it suits requests that load nothing themselves.
    pub fn get_or_join(&self, key: &K) -> Option<Present<'_, K, V>> {
        self.inner().get_or_join(key)
    }

    /// Finds a block, joins its load, or begins a load. [`get_or_load`](Self::get_or_load) builds
    /// on it.
    ///
    /// `weight` is the expected weight of the block in bytes. Capacity for it is reserved before
    /// the load begins, which may wait for a bounded time, and adjusted when the block is
    /// published. A block without capacity, or one that its owner does not cache, is loaded and
    /// handed to the caller and all waiters, uncached.
    ///
    /// # Errors
    ///
    /// [`LoadError::Closed`] and [`LoadError::NoMemory`].
    pub fn begin(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_blocking(key, weight, attributes, Intent::Load)
    }

    /// Does the same as [`begin`](Self::begin), for one of several blocks that the caller keeps.
    /// Waits for capacity only if `may_wait` is set, and clears it if the wait was in vain: no wait
    /// frees what the caller has pinned itself.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub fn begin_one_of(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        may_wait: &mut bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_reserving(key, weight, attributes, Intent::Load, |inner, weight| {
            let reserved = match *may_wait {
                true => inner.reserve_slow(weight),
                false => inner.reserve_by_evicting(weight),
            };
            *may_wait &= reserved;
            reserved
        })
    }

    /// Does the same as [`begin_one_of`](Self::begin_one_of), and waits without blocking the
    /// thread.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub async fn begin_one_of_async(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        may_wait: &mut bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_waiting(key, weight, attributes, Intent::Load, may_wait).await
    }

    /// Does the same as [`begin`](Self::begin) without asking the secondary cache.
    ///
    /// For callers that know that the secondary cache does not have the block, or whose last load
    /// it withdrew.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub fn begin_without_secondary(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_blocking(key, weight, attributes, Intent::LoadWithoutSecondary)
    }

    /// Does the same as [`begin_without_secondary`](Self::begin_without_secondary), and evicts for
    /// capacity, but never waits for it.
    ///
    /// For a caller that has a new block's content already, and holds locks, or pins that only it
    /// can release. It is not counted or recorded as a miss, nor is its time as that of a load.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub fn begin_new(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_reserving(
            key,
            weight,
            attributes,
            Intent::Insert,
            CacheInner::reserve_by_evicting,
        )
    }

    fn begin_blocking(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        intent: Intent,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_reserving(key, weight, attributes, intent, CacheInner::reserve_slow)
    }

    /// As [`begin`](Self::begin). If there is no capacity, `reserve` tries to get some.
    fn begin_reserving(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        intent: Intent,
        mut reserve: impl FnMut(&CacheInner<K, V>, u64) -> bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        let inner = self.inner();
        let mut reservation = None;
        loop {
            match inner.begin(key, weight, attributes, reservation, intent)? {
                Step::Ready(begin) => return Ok(begin),
                Step::NoCapacity => {
                    reservation = Some(reserve(inner, inner.with_structures(weight)));
                }
            }
        }
    }

    /// Does the same as [`begin`](Self::begin), and waits for capacity without blocking the thread.
    /// Needs no runtime.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub async fn begin_async(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_waiting(key, weight, attributes, Intent::Load, &mut true).await
    }

    async fn begin_waiting(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        intent: Intent,
        may_wait: &mut bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        let inner = self.inner();
        let mut reservation = None;
        loop {
            match inner.begin(key, weight, attributes, reservation, intent)? {
                Step::Ready(begin) => return Ok(begin),
                Step::NoCapacity => {
                    let weight = inner.with_structures(weight);
                    let reserved = match CapacityFuture::new(inner, weight) {
                        Ok(waiting) if *may_wait => waiting.await,
                        Ok(_) => false,
                        Err(outcome) => outcome,
                    };
                    *may_wait &= reserved;
                    reservation = Some(reserved);
                }
            }
        }
    }

    /// Returns the block, loading it with `load` if it is neither cached nor being loaded.
    ///
    /// Capacity for the mean weight of the blocks loaded lately is reserved before `load` runs, and
    /// adjusted afterwards. `load` must not request the block itself: that fails with
    /// [`LoadError::Recursive`].
    ///
    /// ```
    /// # use forebay_cache::{Cache, LoadError};
    /// # let cache = Cache::<u64, String>::builder().max_entries(1000).build()?;
    /// let block = cache.get_or_load(7, || std::fs::read_to_string("/proc/self/comm"))?;
    /// assert!(cache.contains(&7));
    ///
    /// let failed = cache.get_or_load(8, || std::fs::read_to_string("/no/such/file"));
    /// match failed {
    ///     Err(LoadError::Failed(error)) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The loader's error, whichever thread ran the loader: [`LoadError::Failed`] if its type is
    /// `E`, otherwise [`LoadError::OtherFailed`]. If the loader panics, so does this call, and the
    /// waiters get [`LoadError::Panicked`]. A load that another thread abandons is begun again.
    pub fn get_or_load<E: fmt::Display + Send + Sync + 'static>(
        &self,
        key: K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'_, K, V>, LoadError<E>> {
        self.get_or_load_with(key, Attributes::DATA, load)
    }

    /// Does the same as [`get_or_load`](Self::get_or_load), with a class and a hint.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub fn get_or_load_with<E: fmt::Display + Send + Sync + 'static>(
        &self,
        key: K,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'_, K, V>, LoadError<E>> {
        self.get_or_load_weighed(key, self.expected_weight(), attributes, load)
    }

    /// Does the same as [`get_or_load_with`](Self::get_or_load_with) for a block whose weight the
    /// caller knows or can bound, in bytes. It is reserved before the load begins, so that memory
    /// is there before it is used.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub fn get_or_load_weighed<E: fmt::Display + Send + Sync + 'static>(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'_, K, V>, LoadError<E>> {
        let mut abandoned = 0;
        loop {
            let intent = Intent::after(abandoned);
            let begun = self.begin_blocking(key, weight, attributes, intent);
            match begun.map_err(LoadError::typed)? {
                Begin::Hit(block) => return Ok(block),
                Begin::InFlight(in_flight) => match in_flight.wait() {
                    Err(LoadError::Abandoned) => abandoned += 1,
                    outcome => return self.settled(outcome),
                },
                Begin::Vacant(guard) => {
                    let loaded = guard.own_scope().run(load);
                    return self.end(guard, loaded);
                }
            }
        }
    }

    /// Does the same as [`get_or_load`](Self::get_or_load) with an asynchronous loader, which may
    /// borrow.
    ///
    /// Needs no runtime: it works under any executor. Dropping the future abandons the load, and
    /// its waiters begin again.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_async<E: fmt::Display + Send + Sync + 'static, F>(
        &self,
        key: K,
        load: impl FnOnce() -> F,
    ) -> Result<Ref<'_, K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
    {
        self.get_or_load_with_async(key, Attributes::DATA, load).await
    }

    /// Does the same as [`get_or_load_with`](Self::get_or_load_with) with an asynchronous loader;
    /// see [`get_or_load_async`](Self::get_or_load_async).
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_with_async<E: fmt::Display + Send + Sync + 'static, F>(
        &self,
        key: K,
        attributes: Attributes,
        load: impl FnOnce() -> F,
    ) -> Result<Ref<'_, K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
    {
        self.get_or_load_weighed_async(key, self.expected_weight(), attributes, load).await
    }

    /// Does the same as [`get_or_load_weighed`](Self::get_or_load_weighed) with an asynchronous
    /// loader; see [`get_or_load_async`](Self::get_or_load_async).
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_weighed_async<E: fmt::Display + Send + Sync + 'static, F>(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        load: impl FnOnce() -> F,
    ) -> Result<Ref<'_, K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
    {
        let mut abandoned = 0;
        loop {
            let intent = Intent::after(abandoned);
            let begun = self.begin_waiting(key, weight, attributes, intent, &mut true).await;
            match begun.map_err(LoadError::typed)? {
                Begin::Hit(block) => return Ok(block),
                Begin::InFlight(in_flight) => match in_flight.await {
                    Err(LoadError::Abandoned) => abandoned += 1,
                    outcome => return self.settled(outcome),
                },
                Begin::Vacant(guard) => {
                    let mut loading = pin!(guard.own_scope().run(load));
                    let polled = |context: &mut Context<'_>| {
                        guard.own_scope().run(|| loading.as_mut().poll(context))
                    };
                    let loaded = poll_fn(polled).await;
                    return self.end(guard, loaded);
                }
            }
        }
    }

    /// The weight that a load without a declared one reserves, in bytes: the mean of the blocks
    /// that were loaded lately.
    pub fn expected_weight(&self) -> u64 {
        let inner = self.inner();
        // A huge block that was not even cached keeps no later ones out.
        inner.mean_weight.get().min(inner.capacity.target() / MOST_EXPECTED).max(1)
    }

    /// Ends this request's load.
    fn end<E: fmt::Display + Send + Sync + 'static>(
        &self,
        guard: LoadGuard<K, V>,
        loaded: Result<V, E>,
    ) -> Result<Ref<'_, K, V>, LoadError<E>> {
        match loaded {
            Ok(value) => Ok(self.lend(guard.publish(value))),
            Err(error) => {
                let error = LoadError::Failed(Arc::new(error));
                guard.fail(error.clone().untyped());
                Err(error)
            }
        }
    }

    /// The outcome of another request's load.
    fn settled<E: fmt::Display + Send + Sync + 'static>(
        &self,
        outcome: Result<OwnedRef<K, V>, LoadError>,
    ) -> Result<Ref<'_, K, V>, LoadError<E>> {
        outcome.map(|block| self.lend(block)).map_err(LoadError::typed)
    }

    fn lend(&self, block: OwnedRef<K, V>) -> Ref<'_, K, V> {
        block.lend(self.inner())
    }
}
