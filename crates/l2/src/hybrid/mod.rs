//! A cache in memory and on a device, for programs that want nothing of storage pools.
//!
//! Purpose: [`HybridCache`] puts a cache and a level together, and says what the two must say together: that an
//! overwrite or a removal holds for both, also after a crash.
//!
//! What it promises: when [`insert`](HybridCache::insert) or [`remove`](HybridCache::remove) return without an error, no
//! older value of that key is ever returned again, not by this process, and not by one that opens the device after this one was
//! killed. The new value itself may be lost in a crash: this is a cache. A device that fails is a miss and a counter.
//!
//! How it closes: first nothing is changed any more (`closing`), then what is in memory only is written, then the memory is closed,
//! which waits for changes that had begun, and only then the device. So no change that succeeds finds the level closed, one that is late
//! is refused, and the device keeps what it has.
//!
//! Locking: none of its own. What went wrong with forgetting is handed from the level to the caller through a variable
//! of the thread, since the cache asks the level to forget on the thread that inserts or removes.
//!
//! Deliberately absent: expiry by time, iteration, and owners of keys, whose end the device would not be told of.

mod builder;
mod memory;
mod values;

use std::cell::RefCell;
use std::fmt;

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_cache::{
    Attributes, Begin, Cache, Candidate, Class, Filler, Key, LoadError, OwnedRef, Refused,
    SecondLevel, Stats,
};

pub use builder::HybridBuilder;
pub use memory::HybridMemory;
pub use values::{L2Key, L2Value};

use crate::error::{Error, ErrorKind, Result};
use crate::l2::L2;
use crate::stats::L2Stats;

/// Lookups of a key that are given up by others before one goes past the level.
const MAX_ABANDONED_LOADS: u32 = 4;
/// Blocks that are pinned at once while everything is written.
const OFFER_BATCH: usize = 1024;

forebay_base::sync::thread_local! {
    /// Why the level could not forget the last key that this thread had it forget.
    static LAST_FORGET_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Values in memory, and more of them on a device that survive the program. See the example at the head of the crate.
pub struct HybridCache<K: Key, V: Send + Sync + 'static> {
    cache: Cache<K, V>,
    l2: Arc<L2<K, V>>,
    /// What a value has weighed lately: what is reserved for one whose weight is not known.
    mean_weight: AtomicU64,
    weigh: Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>,
    writes_on_close: bool,
    /// Nothing is changed any more.
    closing: AtomicBool,
}

/// What a cache has in memory and on its device, and has done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HybridStats {
    /// Of the memory.
    pub memory: Stats,
    /// Of the device.
    pub l2: L2Stats,
}

/// What did not work with an insert.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError<V> {
    /// The value was not cached, and comes back. No older one will be returned; but if the reason is
    /// [`Closed`](forebay_cache::Refusal::Closed), nothing was changed.
    #[error(transparent)]
    Refused(Refused<V>),
    /// The device has failed, or the codec, in a way that an older value of the key may come back when it is opened again. In this
    /// process, it does not.
    #[error("an older value may come back: {error}")]
    ForgetFailed {
        /// What happened, and what to do.
        #[source]
        error: Error,
        /// The value, if it was not cached either.
        value: Option<V>,
    },
}

/// The level, as the cache sees it.
struct L2Hook<K: Key, V: Send + Sync + 'static>(Arc<L2<K, V>>);

impl<K: Key, V: Send + Sync + 'static> SecondLevel<K, V> for L2Hook<K, V> {
    fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        self.0.offer(candidates);
    }

    fn evicted(&self, keys: &[K]) {
        self.0.evicted(keys);
    }

    fn would_write(&self, key: &K, class: Class) -> bool {
        self.0.would_write(key, class)
    }

    fn load(&self, guard: Filler<K, V>) -> Result<(), Filler<K, V>> {
        self.0.load(guard)
    }

    fn forget(&self, key: &K) {
        if let Err(error) = self.0.forget_checked(key) {
            LAST_FORGET_ERROR.with(|slot| *slot.borrow_mut() = Some(error));
        }
    }
}

/// Runs what has the level forget a key. An error if it could not.
fn capture_forget_error<T>(change: impl FnOnce() -> T) -> (T, Option<Error>) {
    LAST_FORGET_ERROR.with(|slot| slot.borrow_mut().take());
    let outcome = change();
    (outcome, LAST_FORGET_ERROR.with(|slot| slot.borrow_mut().take()))
}

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// The value of that key, from memory or from the device. Waits for the device, and for whoever loads that key at the moment.
    pub fn get(&self, key: &K) -> Option<OwnedRef<K, V>> {
        if let Some(value) = self.cache.get_owned(key) {
            return Some(value);
        }
        for attempt in 0.. {
            match self.begin(key, attempt) {
                Ok(Begin::Hit(value)) => return Some(value.into_owned()),
                Ok(Begin::InFlight(flight)) => match flight.wait() {
                    Ok(value) => return Some(value),
                    Err(LoadError::Abandoned) => {}
                    Err(_) => return None,
                },
                Ok(Begin::Vacant(guard)) => {
                    guard.withdraw();
                    return None;
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// As [`get`](Self::get), without blocking the thread. Needs no runtime: it works under any executor.
    pub async fn get_async(&self, key: &K) -> Option<OwnedRef<K, V>> {
        if let Some(value) = self.cache.get_owned(key) {
            return Some(value);
        }
        for attempt in 0.. {
            let begun = match attempt < MAX_ABANDONED_LOADS {
                true => {
                    self.cache.begin_async(*key, self.expected_weight(), self.attributes(key)).await
                }
                false => self.begin(key, attempt),
            };
            match begun {
                Ok(Begin::Hit(value)) => return Some(value.into_owned()),
                Ok(Begin::InFlight(flight)) => match flight.await {
                    Ok(value) => return Some(value),
                    Err(LoadError::Abandoned) => {}
                    Err(_) => return None,
                },
                Ok(Begin::Vacant(guard)) => {
                    guard.withdraw();
                    return None;
                }
                Err(_) => return None,
            }
        }
        None
    }

    fn begin(&self, key: &K, attempt: u32) -> Result<Begin<'_, K, V>, LoadError> {
        match attempt < MAX_ABANDONED_LOADS {
            true => self.cache.begin(*key, self.expected_weight(), self.attributes(key)),
            false => self.cache.begin_past_second(*key, self.expected_weight(), Attributes::DATA),
        }
    }

    /// How a value is to be cached of which only the device knows.
    fn attributes(&self, key: &K) -> Attributes {
        Attributes { class: self.l2.class_of(key).unwrap_or_default(), ..Attributes::DATA }
    }

    fn expected_weight(&self) -> u64 {
        self.mean_weight.load(Ordering::Relaxed).max(1)
    }

    /// The value of that key, loaded if neither memory nor device have it: by `load`, or by whoever is loading it already.
    ///
    /// # Errors
    /// The loader's error, whoever ran it; see [`Cache::get_or_load`].
    pub fn get_or_load<E>(
        &self,
        key: K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<OwnedRef<K, V>, LoadError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.get_or_load_with(key, Attributes::DATA, load)
    }

    /// As [`get_or_load`](Self::get_or_load), of a given class and hint.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    pub fn get_or_load_with<E>(
        &self,
        key: K,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<OwnedRef<K, V>, LoadError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let load = || load().inspect(|value| self.update_mean_weight(&key, value));
        self.cache
            .get_or_load(key, self.expected_weight(), attributes, load)
            .map(|value| value.into_owned())
    }

    /// As [`get_or_load`](Self::get_or_load), with a loader that is a future. Dropping the future gives the load up.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_async<E, F>(
        &self,
        key: K,
        load: impl FnOnce() -> F,
    ) -> Result<OwnedRef<K, V>, LoadError>
    where
        F: Future<Output = Result<V, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let load = async || load().await.inspect(|value| self.update_mean_weight(&key, value));
        let value =
            self.cache.get_or_load_async(key, self.expected_weight(), Attributes::DATA, load).await;
        value.map(|value| value.into_owned())
    }

    fn update_mean_weight(&self, key: &K, value: &V) {
        let (expected_weight, now) = (self.expected_weight(), (self.weigh)(key, value));
        // Others may do the same at once: it is a guess in any case.
        self.mean_weight.store((7 * expected_weight + now) / 8, Ordering::Relaxed);
    }

    /// Caches a value, over any other of that key. If the device has an older one, waits until it is durable that this one is
    /// never returned again.
    ///
    /// # Errors
    /// When the value was not cached, or the device cannot forget the older one; once the cache is being closed.
    pub fn insert(&self, key: K, value: V) -> Result<(), InsertError<V>> {
        self.insert_with(key, value, Attributes::DATA)
    }

    /// As [`insert`](Self::insert), of a given class and hint.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_with(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
    ) -> Result<(), InsertError<V>> {
        if self.is_closing() {
            let reason = forebay_cache::Refusal::Closed;
            return Err(InsertError::Refused(Refused { reason, value }));
        }
        self.update_mean_weight(&key, &value);
        match capture_forget_error(|| self.cache.insert_with(key, value, attributes)) {
            (Ok(()), None) => Ok(()),
            (Err(refused), None) => Err(InsertError::Refused(refused)),
            (outcome, Some(error)) => {
                let value = outcome.err().map(|refused| refused.value);
                Err(InsertError::ForgetFailed { error, value })
            }
        }
    }

    /// Removes a value from memory and device. True if it was in memory. When it returns, it is durable that the value is never
    /// returned again.
    ///
    /// # Errors
    /// When the device cannot forget it: it has failed, or the codec has, and the value may come back when it is opened again. In this
    /// process, it does not. [`ErrorKind::Closed`] once the cache is being closed: then nothing is removed.
    pub fn remove(&self, key: &K) -> Result<bool> {
        self.check_open()?;
        match capture_forget_error(|| self.cache.remove(key)) {
            (was_cached, None) => Ok(was_cached),
            (_, Some(error)) => Err(error),
        }
    }

    /// Writes all values that are in memory only to the device, as far as there is room, and waits until they are durable. What leaves memory
    /// meanwhile, because there was too much in it, is not among them: with a slow device that may be what came last, since what is being
    /// written has to stay.
    ///
    /// # Errors
    /// When the device fails; [`ErrorKind::Closed`] once the cache is being closed.
    pub fn flush_to_device(&self) -> Result<()> {
        self.check_open()?;
        self.write_all()
    }

    fn write_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        self.cache.offer_all(OFFER_BATCH, |candidates| {
            if outcome.is_ok() {
                outcome = self.l2.write_all(candidates);
            }
        });
        outcome?;
        self.l2.flush()
    }

    /// What is in memory and on the device, and what was done.
    pub fn stats(&self) -> HybridStats {
        HybridStats { memory: self.cache.stats(), l2: self.l2.stats() }
    }

    /// The memory alone.
    pub fn memory(&self) -> HybridMemory<'_, K, V> {
        HybridMemory::new(&self.cache)
    }

    /// The device alone.
    pub fn l2(&self) -> &Arc<L2<K, V>> {
        &self.l2
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn check_open(&self) -> Result<()> {
        if !self.is_closing() {
            return Ok(());
        }
        let text = "the cache is closed, and nothing was changed: build it anew on its device";
        Err(Error::new(ErrorKind::Closed, text))
    }

    /// Ends all work: writes what is in memory only, unless that was declined, and closes memory and device. Lookups find nothing
    /// afterwards; inserts and removals are refused from its beginning on, and what the device has stays there.
    ///
    /// It waits until nobody holds a value of this cache any more. Never call it on a thread that does: it would wait for itself. A
    /// file or block device stays open, and locked, until both the cache and its device are dropped.
    ///
    /// It does not wait for a rebuild, but cancels it: what is on the device stays there, what is in memory only is not
    /// written. Who wants that calls [`flush_to_device`](Self::flush_to_device) before, which waits.
    ///
    /// # Errors
    /// When not all could be written; it is closed all the same. A second call has nothing to write.
    pub fn close(&self) -> Result<()> {
        let first = !self.closing.swap(true, Ordering::AcqRel);
        let written = match self.writes_on_close && first {
            true if self.l2.is_own_thread() => {
                Err(self.l2.unwritten_error("its own thread closes it"))
            }
            true if self.l2.is_rebuilding() => {
                let mut only_here = false;
                // What was read from the device lately is known to be there.
                let unknown = |candidate: &Candidate<K, V>| !self.l2.has(candidate.key());
                self.cache.offer_all(OFFER_BATCH, |candidates| {
                    only_here |= candidates.iter().any(unknown)
                });
                match only_here {
                    false => Ok(()),
                    true => Err(self.l2.unwritten_error("it did not know yet what the device has")),
                }
            }
            true => self.write_all(),
            false => Ok(()),
        };
        // It waits for changes that have begun, and for blocks that wait to be written: the level is still at work.
        self.cache.close();
        self.l2.close();
        written
    }
}

/// The level goes first: a thread of it may be putting blocks into memory.
impl<K: Key, V: Send + Sync + 'static> Drop for HybridCache<K, V> {
    fn drop(&mut self) {
        self.l2.close();
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for HybridCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridCache").field("l2", &self.l2.health()).finish_non_exhaustive()
    }
}
