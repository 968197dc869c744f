//! The public face of loading: [`Cache::begin`], and what stands on it.

use std::future::Future;

use crate::attributes::Attributes;
use crate::cache::Cache;
use crate::error::LoadError;
use crate::filler::Begin;
use crate::guard::{OwnedRef, Ref};
use crate::key::Key;
use crate::load::{RoomFuture, Step};

/// Loads of a block that are given up before it is begun without asking the second level, which may be the one that
/// gives them up.
const SECOND_ASKED: u32 = 4;

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
        self.begin_asking(key, weight, attributes, true)
    }

    /// As [`begin`](Self::begin), without asking the second level: for who knows that it cannot have the block, or has been
    /// let down by it.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_past_second(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        self.begin_asking(key, weight, attributes, false)
    }

    fn begin_asking(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        asks: bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        let inner = self.inner();
        let mut room = None;
        loop {
            match inner.begin(key, weight, attributes, room, asks)? {
                Step::Ready(begin) => return Ok(begin),
                Step::NoRoom => room = Some(inner.reserve_slow(weight.max(1))),
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
        self.begin_async_asking(key, weight, attributes, true).await
    }

    async fn begin_async_asking(
        &self,
        key: K,
        weight: u64,
        attributes: Attributes,
        asks: bool,
    ) -> Result<Begin<'_, K, V>, LoadError> {
        let inner = self.inner();
        let mut room = None;
        loop {
            match inner.begin(key, weight, attributes, room, asks)? {
                Step::Ready(begin) => return Ok(begin),
                Step::NoRoom => {
                    room = Some(match RoomFuture::new(inner, weight.max(1)) {
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
            let asks = abandoned < SECOND_ASKED;
            match self.begin_asking(key, weight, attributes, asks)? {
                Begin::Hit(block) => return Ok(block),
                Begin::InFlight(flight) => match flight.wait() {
                    Err(LoadError::Abandoned) => abandoned += 1,
                    landed => return landed.map(|block| self.lend(block)),
                },
                Begin::Vacant(filler) => match load() {
                    Ok(value) => return Ok(self.lend(filler.publish(value))),
                    Err(error) => {
                        let error = LoadError::failed(error);
                        filler.fail(error.clone());
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
            let asks = abandoned < SECOND_ASKED;
            match self.begin_async_asking(key, weight, attributes, asks).await? {
                Begin::Hit(block) => return Ok(block),
                Begin::InFlight(flight) => match flight.await {
                    Err(LoadError::Abandoned) => abandoned += 1,
                    landed => return landed.map(|block| self.lend(block)),
                },
                Begin::Vacant(filler) => match load().await {
                    Ok(value) => return Ok(self.lend(filler.publish(value))),
                    Err(error) => {
                        let error = LoadError::failed(error);
                        filler.fail(error.clone());
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
