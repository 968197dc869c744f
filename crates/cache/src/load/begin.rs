//! The public face of loading: [`Cache::begin`], and what stands on it.

use std::future::Future;

use crate::attributes::Attributes;
use crate::cache::Cache;
use crate::capacity::reserve::CapacityFuture;
use crate::error::LoadError;
use crate::guard::{OwnedRef, Ref};
use crate::key::Key;
use crate::load::Step;
use crate::load::load_guard::Begin;

/// Loads of a block that are given up before it is begun without asking the second level, which may be the one that
/// gives them up.
const MAX_SECONDARY_ATTEMPTS: u32 = 4;

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// Finds a block, joins its load, or begins one: the primitive under
    /// [`get_or_load`](Self::get_or_load).
    ///
    /// `weight` is what the block will weigh, in bytes, as far as is known; room for it is reserved before
    /// the load begins (waiting for it, within bounds), and set right when it is published. A block
    /// that finds no room, or that its owner does not want cached, is loaded and handed out all the same:
    /// to the caller and to all who wait, uncached.
    ///
    /// # Errors
    /// [`LoadError::Closed`] and [`LoadError::NoMemory`].
    pub fn begin(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_blocking(key, weight, attributes, true)
    }

    /// As [`begin`](Self::begin), without asking the second level: for who knows that it cannot have the block, or has been
    /// let down by it.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_without_secondary(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_blocking(key, weight, attributes, false)
    }

    fn begin_blocking(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        ask_secondary: bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        let inner = self.inner();
        let mut reservation = None;
        loop {
            match inner.begin(key, weight, attributes, reservation, ask_secondary)? {
                Step::Ready(begin) => return Ok(begin),
                Step::NoCapacity => reservation = Some(inner.reserve_slow(weight.max(1))),
            }
        }
    }

    /// As [`begin`](Self::begin), waiting for room without blocking the thread. Needs no runtime.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_async(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_waiting(key, weight, attributes, true).await
    }

    async fn begin_waiting(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        ask_secondary: bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        let inner = self.inner();
        let mut reservation = None;
        loop {
            match inner.begin(key, weight, attributes, reservation, ask_secondary)? {
                Step::Ready(begin) => return Ok(begin),
                Step::NoCapacity => {
                    reservation = Some(match CapacityFuture::new(inner, weight.max(1)) {
                        Ok(waiting) => waiting.await,
                        Err(outcome) => outcome,
                    });
                }
            }
        }
    }

    /// The block of that key, loaded if need be: by `load`, or by whoever is loading it already.
    ///
    /// ```
    /// # use forebay_cache::{Attributes, Cache};
    /// # let cache = Cache::<u64, String>::builder().capacity(1 << 20).build()?;
    /// let block = cache.get_or_load(7, 4096, Attributes::DATA, || {
    ///     Ok::<_, std::io::Error>("read from disk".to_owned())
    /// })?;
    /// assert_eq!(*block, "read from disk");
    /// assert!(cache.contains(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The loader's error, whoever ran it. If the loader panics, so does this call, and those who
    /// wait get [`LoadError::Panicked`]. A load that somebody else gives up is begun anew.
    ///
    /// `load` must not ask for the same key: it would wait for itself.
    pub fn get_or_load<E>(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'_, K, V>, LoadError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut abandoned = 0;
        loop {
            let ask_secondary = abandoned < MAX_SECONDARY_ATTEMPTS;
            match self.begin_blocking(key, weight, attributes, ask_secondary)? {
                Begin::Hit(block) => return Ok(block),
                Begin::InFlight(in_flight) => match in_flight.wait() {
                    Err(LoadError::Abandoned) => abandoned += 1,
                    outcome => return outcome.map(|block| self.lend(block)),
                },
                Begin::Vacant(guard) => match load() {
                    Ok(value) => return Ok(self.lend(guard.publish(value))),
                    Err(error) => {
                        let error = LoadError::failed(error);
                        guard.fail(error.clone());
                        return Err(error);
                    }
                },
            }
        }
    }

    /// As [`get_or_load`](Self::get_or_load), with a loader that is a future. Needs no runtime: it works
    /// under any executor. Dropping the future gives the load up; others that wait for it begin anew.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_async<E, F>(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        load: impl FnOnce() -> F,
    ) -> Result<Ref<'_, K, V>, LoadError>
    where
        F: Future<Output = Result<V, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut abandoned = 0;
        loop {
            let ask_secondary = abandoned < MAX_SECONDARY_ATTEMPTS;
            match self.begin_waiting(key, weight, attributes, ask_secondary).await? {
                Begin::Hit(block) => return Ok(block),
                Begin::InFlight(in_flight) => match in_flight.await {
                    Err(LoadError::Abandoned) => abandoned += 1,
                    outcome => return outcome.map(|block| self.lend(block)),
                },
                Begin::Vacant(guard) => match load().await {
                    Ok(value) => return Ok(self.lend(guard.publish(value))),
                    Err(error) => {
                        let error = LoadError::failed(error);
                        guard.fail(error.clone());
                        return Err(error);
                    }
                },
            }
        }
    }

    fn lend(&self, block: OwnedRef<K, V>) -> Ref<'_, K, V> {
        block.lend(self.inner())
    }
}
