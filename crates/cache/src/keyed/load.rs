//! Loading: the value of a key, from the cache, from a load in flight, or by the caller's loader.
//!
//! The block cache runs one load per fingerprint. `loading_keys` tells a load of the caller's key
//! from that of another key with the same fingerprint. The latter is not waited for: it is made
//! uncached, and the caller's load takes its place. Its waiters still get its value.
//!
//! A value that was waited for is returned even if it has expired meanwhile: it was loaded after
//! the request. So threads that find an expired value cause one load together.
//!
//! Locking: none held while a caller waits or loads.

use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hash};
use std::pin::pin;
// tidy: std, because that is what the error has.
use std::sync::Arc;
use std::task::Context;

use crate::attributes::{Attributes, Cause};
use crate::guard::OwnedRef;
use crate::keyed::KeyedCache;
use crate::keyed::guard::KeyedRef;
use crate::keyed::loading_keys::Entered;
use crate::keyed::stored::{Fingerprint, Stored};
use crate::load::error::LoadError;
use crate::load::load_guard::{Begin, InFlight, LoadGuard};

/// What a request for a key finds.
enum Found<'a, K: Eq + Send + Sync + 'static, V: Send + Sync + 'static> {
    Value(KeyedRef<'a, K, V>),
    /// A load of this key is in flight.
    InFlight(InFlight<Fingerprint, Stored<K, V>>, K),
    /// The caller loads.
    Vacant(Vacant<'a, K, V>),
    /// Something of another key, or expired, was in the way and is gone. Look again.
    Again(K),
}

/// A load that this request has begun. Its guard is dropped before its key leaves.
struct Vacant<'a, K: Eq + Send + Sync + 'static, V: Send + Sync + 'static> {
    guard: LoadGuard<Fingerprint, Stored<K, V>>,
    key: Entered<'a, K>,
}

impl<K: Eq + Send + Sync + 'static, V: Send + Sync + 'static> Vacant<'_, K, V> {
    /// Runs a part of the loader.
    fn run<T>(&self, part: impl FnOnce() -> T) -> T {
        self.guard.own_scope().run(|| self.key.own_scope().run(part))
    }
}

impl<K, V, S> KeyedCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the value of the key, loading it with `load` if it is neither cached nor being
    /// loaded. Threads that ask for a key at the same time cause one load.
    ///
    /// Capacity for the mean weight of the values loaded lately is reserved before `load` runs, and
    /// adjusted afterwards. `load` may request other keys, but not its own: that fails with
    /// [`LoadError::Recursive`].
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # let cache = KeyedCache::<String, String>::builder().max_entries(100).build()?;
    /// let user = cache.get_or_load("ada".to_owned(), || {
    ///     Ok::<_, String>("Ada Lovelace".to_owned()) // ask a database here
    /// })?;
    /// assert_eq!(*user, "Ada Lovelace");
    /// assert!(cache.contains("ada"));
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
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>> {
        self.get_or_load_with(key, Attributes::DATA, load)
    }

    /// Does the same as [`get_or_load`](Self::get_or_load) for a borrowed key. The key is copied
    /// only if the value is not cached.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub fn get_or_load_by_ref<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>>
    where
        Q: ?Sized + Hash + equivalent::Equivalent<K> + ToOwned<Owned = K>,
        E: fmt::Display + Send + Sync + 'static,
    {
        let fingerprint = self.fingerprint(key);
        match self.find(fingerprint, key) {
            Some(value) => Ok(value),
            None => self.load_missing(fingerprint, key.to_owned(), Attributes::DATA, load),
        }
    }

    /// Does the same as [`get_or_load`](Self::get_or_load) with a class and a hint.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub fn get_or_load_with<E: fmt::Display + Send + Sync + 'static>(
        &self,
        key: K,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>> {
        let fingerprint = self.fingerprint(&key);
        match self.find(fingerprint, &key) {
            Some(value) => Ok(value),
            None => self.load_missing(fingerprint, key, attributes, load),
        }
    }

    fn load_missing<E: fmt::Display + Send + Sync + 'static>(
        &self,
        fingerprint: Fingerprint,
        mut key: K,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>> {
        loop {
            let entered = self.loading.enter(fingerprint, key).ok_or(LoadError::Recursive)?;
            let begun = self.cache.begin(fingerprint, self.cache.expected_weight(), attributes);
            key = match self.judge(begun.map_err(LoadError::typed)?, entered) {
                Found::Value(value) => return Ok(value),
                Found::Again(key) => key,
                Found::InFlight(in_flight, key) => match in_flight.wait() {
                    Err(LoadError::Abandoned) => key,
                    Err(error) => return Err(error.typed()),
                    Ok(block) if block.key == key => return Ok(self.lend(block)),
                    Ok(_) => key,
                },
                Found::Vacant(vacant) => {
                    let loaded = vacant.run(load);
                    return self.end(vacant, loaded);
                }
            };
        }
    }

    /// Does the same as [`get_or_load`](Self::get_or_load) with an asynchronous loader, which may
    /// borrow.
    ///
    /// Needs no runtime: it works under any executor. Dropping the future abandons the load, and
    /// its waiters begin again.
    ///
    /// ```
    /// # use forebay_cache::KeyedCache;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = KeyedCache::<String, usize>::builder().max_entries(100).build()?;
    /// let page = "ada".to_owned();
    /// let length = cache.get_or_load_async(page.clone(), || async {
    ///     Ok::<_, String>(page.len()) // await a request here
    /// });
    /// assert_eq!(*length.await?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_async<E, F>(
        &self,
        key: K,
        load: impl FnOnce() -> F,
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
        E: fmt::Display + Send + Sync + 'static,
    {
        self.get_or_load_with_async(key, Attributes::DATA, load).await
    }

    /// Does the same as [`get_or_load_async`](Self::get_or_load_async) with a class and a hint.
    ///
    /// # Errors
    ///
    /// As for [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_with_async<E, F>(
        &self,
        mut key: K,
        attributes: Attributes,
        load: impl FnOnce() -> F,
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
        E: fmt::Display + Send + Sync + 'static,
    {
        let fingerprint = self.fingerprint(&key);
        if let Some(value) = self.find(fingerprint, &key) {
            return Ok(value);
        }
        loop {
            let entered = self.loading.enter(fingerprint, key).ok_or(LoadError::Recursive)?;
            let weight = self.cache.expected_weight();
            let begun = self.cache.begin_async(fingerprint, weight, attributes).await;
            key = match self.judge(begun.map_err(LoadError::typed)?, entered) {
                Found::Value(value) => return Ok(value),
                Found::Again(key) => key,
                Found::InFlight(in_flight, key) => match in_flight.await {
                    Err(LoadError::Abandoned) => key,
                    Err(error) => return Err(error.typed()),
                    Ok(block) if block.key == key => return Ok(self.lend(block)),
                    Ok(_) => key,
                },
                Found::Vacant(vacant) => {
                    let mut loading = pin!(vacant.run(load));
                    let polled =
                        |context: &mut Context<'_>| vacant.run(|| loading.as_mut().poll(context));
                    let loaded = poll_fn(polled).await;
                    return self.end(vacant, loaded);
                }
            };
        }
    }

    /// Whether what the block cache found or began is of this key.
    fn judge<'a>(
        &'a self,
        begun: Begin<'a, Fingerprint, Stored<K, V>>,
        entered: Entered<'a, K>,
    ) -> Found<'a, K, V> {
        match begun {
            Begin::Vacant(guard) => Found::Vacant(Vacant { guard, key: entered }),
            Begin::Hit(block) if self.accepts(&block, entered.key()) => {
                Found::Value(KeyedRef(block))
            }
            Begin::Hit(block) => {
                let expired = self.has_expired(&block.times);
                block.remove(if expired { Cause::Expired } else { Cause::Replaced });
                Found::Again(entered.leave().0)
            }
            Begin::InFlight(in_flight) => {
                let fingerprint = entered.fingerprint();
                let (key, met_another) = entered.leave();
                if !met_another {
                    return Found::InFlight(in_flight, key);
                }
                self.cache.inner().cancel_load(&fingerprint);
                Found::Again(key)
            }
        }
    }

    /// Ends this request's load.
    fn end<E: fmt::Display + Send + Sync + 'static>(
        &self,
        vacant: Vacant<'_, K, V>,
        loaded: Result<V, E>,
    ) -> Result<KeyedRef<'_, K, V>, LoadError<E>> {
        // If user code panics, the guard is dropped first.
        let Vacant { key, guard } = vacant;
        match loaded {
            Ok(value) => {
                // While the key is entered, so that no request of another key waits for a load
                // that ends by their panic.
                let times = self.times(key.key(), &value);
                let weight = self.weight(key.key(), &value);
                let (key, _) = key.leave();
                let block = self.lend(guard.publish_as(Stored { key, value, times }, weight));
                self.note_expiry(&block.0.times);
                Ok(block)
            }
            Err(error) => {
                let error = LoadError::Failed(Arc::new(error));
                guard.fail(error.clone().untyped());
                Err(error)
            }
        }
    }

    fn lend(&self, block: OwnedRef<Fingerprint, Stored<K, V>>) -> KeyedRef<'_, K, V> {
        KeyedRef(block.lend(self.cache.inner()))
    }
}
