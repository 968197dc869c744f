//! Changes and the close as futures, for any executor. None blocks the thread that polls it.
//!
//! An insert or a removal has two parts. First it waits until the L2 knows the end of its log, and
//! for capacity. Then it takes over the key's slot and has the L2 forget the key. From there on
//! the change needs its future no more: the thread that makes the tombstone durable ends it, and
//! wakes the future. So a close never waits for a future to be polled.
//!
//! Invariant: between the two parts, and within the second, there is no await.

#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::sync::Arc;
use forebay_base::sync::thread::spawn_named;
use forebay_cache::{Attributes, Cause, Key, Refused};

use super::{HybridCache, InsertError, closed_error, closed_insert, write_all};
use crate::error::{Error, ErrorKind, Result};
use crate::promise::{OnDrop, Promise};

/// What an insert returns.
type Inserted<V> = Result<(), InsertError<V>>;

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// Like [`insert`](Self::insert), but does not block the thread, neither for the device nor for
    /// capacity. Works under any executor.
    ///
    /// Requests for the key that arrive meanwhile wait, as for a load.
    ///
    /// Dropping the future before it is ready leaves one of two states. Until it has waited for
    /// capacity, nothing was changed. From then on the insert goes on without it: the value will be
    /// cached, and the older one is forgotten, as if the future had been awaited. Another insert or
    /// removal of the key, or a [`close`](Self::close), comes after it.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # let cache = forebay_l2::HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
    /// # let run = async {
    /// cache.insert_async(1, "one".to_owned()).await?;
    /// cache.remove_async(&1).await?;
    /// cache.close_async().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// # let mut run = std::pin::pin!(run);
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # while run.as_mut().poll(&mut context).is_pending() { std::thread::yield_now(); }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub async fn insert_async(&self, key: K, value: V) -> Result<(), InsertError<V>> {
        self.insert_with_async(key, value, Attributes::DATA).await
    }

    /// Like [`insert_async`](Self::insert_async), with a class and a hint.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub async fn insert_with_async(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
    ) -> Result<(), InsertError<V>> {
        self.l2.started().await;
        self.remove_expired(&key);
        let count = || self.closing.begin_own_change();
        let promise = Promise::<Inserted<V>>::new();
        let answer = Arc::clone(&promise);
        match self.cache.begin_insert(key, &value, attributes, count).await {
            Ok((change, counted)) => {
                let end = move |forgotten: Result<()>| {
                    let failed = |error| InsertError::ForgetFailed { error, value: None };
                    let _end = OnDrop::new(move || {
                        drop(counted);
                        answer.fulfill(forgotten.map_err(failed));
                    });
                    change.publish(value);
                };
                self.l2.forget_then(&key, Box::new(end));
            }
            Err(reason) => {
                let Some(counted) = self.closing.begin_own_change() else {
                    return Err(closed_insert(value));
                };
                self.remove_then(&key, Cause::Replaced, move |removed, forgotten| {
                    drop(counted);
                    answer.fulfill(Err(match forgotten {
                        Ok(()) => InsertError::Refused(Refused { reason, value, removed }),
                        Err(error) => InsertError::ForgetFailed { error, value: Some(value) },
                    }));
                });
            }
        }
        promise.take().await
    }

    /// Removes a key for this cause. Tells `end` whether it was cached, and whether the L2 has
    /// forgotten it.
    fn remove_then(
        &self,
        key: &K,
        cause: Cause,
        end: impl FnOnce(bool, Result<()>) + Send + 'static,
    ) {
        let Some(change) = self.cache.begin_remove(key, cause) else {
            return self.remove_without_slot(key, end);
        };
        let end = move |forgotten| {
            let was_cached = change.was_cached();
            let _end = OnDrop::new(move || end(was_cached, forgotten));
            change.remove();
        };
        self.l2.forget_then(key, Box::new(end));
    }

    /// As [`remove_then`](Self::remove_then), if there is no memory to keep requests waiting. One
    /// of them may load the old value until the L2 has forgotten it. So the memory is cleared
    /// afterwards, and the L2 forgets once more what memory may have passed to it meanwhile.
    fn remove_without_slot(&self, key: &K, end: impl FnOnce(bool, Result<()>) + Send + 'static) {
        let was_cached = self.cache.remove_from_memory(key);
        let (cache, l2, key) = (Arc::clone(&self.cache), Arc::clone(&self.l2), *key);
        let again = move |forgotten: Result<()>| {
            let _end = OnDrop::new(move || match forgotten {
                Ok(()) => l2.forget_then(&key, Box::new(move |outcome| end(was_cached, outcome))),
                Err(error) => end(was_cached, Err(error)),
            });
            cache.remove_from_memory(&key);
        };
        self.l2.forget_then(&key, Box::new(again));
    }

    /// Like [`remove`](Self::remove), but does not block the thread. Works under any executor.
    ///
    /// Dropping the future before it is ready leaves one of two states. Before the L2 has found the
    /// end of its log, soon after the start, nothing was changed. From then on the removal goes on
    /// without it.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub async fn remove_async(&self, key: &K) -> Result<bool> {
        self.l2.started().await;
        let counted = self.closing.begin_own_change().ok_or_else(closed_error)?;
        self.remove_expired(key);
        let promise = Promise::<Result<bool>>::new();
        let answer = Arc::clone(&promise);
        self.remove_then(key, Cause::Removed, move |was_cached, forgotten| {
            drop(counted);
            answer.fulfill(forgotten.map(|()| was_cached));
        });
        promise.take().await
    }

    /// Like [`remove_group`](Self::remove_group), but does not block the thread for the device.
    /// Works under any executor. The first poll visits all values in memory, on its thread.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # use forebay_l2::HybridCache;
    /// # let cache = HybridCache::<(u64, u32), Vec<u8>>::open(&path, 64 << 20, 4 << 20)?;
    /// # let run = async {
    /// cache.insert_async((7, 0), vec![0; 4096]).await?;
    /// assert_eq!(cache.remove_group_async(7).await?, 1);
    /// # cache.close_async().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// # let mut run = std::pin::pin!(run);
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let ended = loop {
    /// #     if let std::task::Poll::Ready(ended) = run.as_mut().poll(&mut context) {
    /// #         break ended;
    /// #     }
    /// #     std::thread::yield_now();
    /// # };
    /// # ended?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Dropping the future before it is ready leaves one of two states, as for
    /// [`remove_async`](Self::remove_async).
    ///
    /// # Errors
    /// As [`remove_group`](Self::remove_group).
    pub async fn remove_group_async(&self, group: u64) -> Result<u64> {
        self.l2.started().await;
        let counted = self.closing.begin_own_change().ok_or_else(closed_error)?;
        let promise = Promise::<Result<()>>::new();
        let answer = Arc::clone(&promise);
        let end = move |forgotten| {
            drop(counted);
            answer.fulfill(forgotten);
        };
        let mut removed = 0;
        let remove =
            |is_of: &dyn Fn(&K) -> bool| removed = self.cache.remove_all_from_memory(is_of);
        self.l2.forget_group_then(group, remove, Box::new(end));
        promise.take().await.map(|()| removed)
    }

    /// Like [`flush_to_device`](Self::flush_to_device), but does not block the thread. Works under
    /// any executor.
    ///
    /// The future waits for the rebuild first. Dropping it meanwhile ends the flush, and so does a
    /// close, which does not wait for it. Then a thread writes the values, one for each call. From
    /// there on, dropping the future does not end it. A close waits for it, and so does the drop of
    /// the cache.
    ///
    /// # Errors
    /// As [`flush_to_device`](Self::flush_to_device). [`ErrorKind::Thread`] if the system refuses
    /// the thread.
    pub async fn flush_to_device_async(&self) -> Result<()> {
        // Not yet as a change: the close would wait for a rebuild that it cancels.
        self.l2.wait_rebuilt_async().await;
        let counted = self.closing.begin_own_change().ok_or_else(closed_error)?;
        let promise = Promise::<Result<()>>::new();
        let answer = Arc::clone(&promise);
        let held = (Arc::clone(&self.cache), Arc::clone(&self.l2), counted);
        let body = move || {
            // The first result stays.
            let panicked = Arc::clone(&answer);
            let _end = OnDrop::new(move || {
                let text = "user code panicked in a flush; some values may not have been written";
                panicked.fulfill(Err(Error::new(ErrorKind::Closed, text)));
            });
            // Dropped before the answer, also if user code panics: then the device may be opened.
            let held = held;
            let written = write_all(&held.0, &held.1);
            drop(held);
            answer.fulfill(written);
        };
        spawn_named("hybrid-flush", body).map_err(|error| {
            let text = "cannot create the thread that writes the values; raise the process's thread limit, or use `flush_to_device`";
            Error::new(ErrorKind::Thread, text).because(error)
        })?;
        promise.take().await
    }

    /// Like [`close`](Self::close), but does not block the thread: another one closes the cache.
    /// Works under any executor. Dropping the future does not end the close; a later call returns
    /// its result.
    ///
    /// # Errors
    /// As [`close`](Self::close). [`ErrorKind::Thread`] if the system
    /// refuses the thread; then inserts and removals are refused, and nothing else was done.
    pub async fn close_async(&self) -> Result<()> {
        self.close_on_thread().wait().await
    }
}
