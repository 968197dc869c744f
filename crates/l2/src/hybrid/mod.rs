//! A cache in memory and on a device, for programs that use no storage pool.
//!
//! [`HybridCache`] combines a cache and an L2, so that an overwrite or a removal holds for both,
//! also after a crash.
//!
//! Guarantee: after [`insert`](HybridCache::insert) or [`remove`](HybridCache::remove) returns
//! without an error, no older value of the key is ever returned, neither by this process nor by one
//! that opens the device after a crash. A crash may lose the new value: this is a cache. If the
//! device fails, reads miss and are counted. A loaded value replaces one that the device did not
//! serve, but not durably (decision 183).
//!
//! Close: changes are refused first, and those in progress end (`closing`). Then values that are
//! only in memory are written. Then the cache is closed, and last the L2. So a change that succeeds
//! is written and never finds the L2 closed. A late one is refused, and the device keeps its
//! values.
//!
//! Changes as futures end on the L2's writer, see `asynchronous`. Values that can expire carry
//! their times, see `expiry`.
//!
//! Locking: `hybrid-close`, see `closing`. A thread-local variable passes the error of a failed
//! forget from the L2 to the caller, because the cache calls the L2 on the thread that inserts or
//! removes.
//!
//! Not done: operations on all values of the device (`operations` says why), and owners of
//! keys. The device would not learn of an owner's end.

mod asynchronous;
mod builder;
mod closing;
mod entry;
mod expiry;
mod file;
mod many;
mod memory;
mod operations;
#[cfg(feature = "serde")]
mod postcard_value;
mod values;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;

use forebay_base::sync::Arc;
use forebay_cache::{
    Attributes, Begin, Cache, Candidate, Class, Holding, InFlight, Key, LoadError, LoadGuard,
    OwnedRef, Present, Ref, Refusal, Refused, SecondaryCache, Stats,
};

pub use builder::HybridBuilder;
pub use entry::HybridEntry;
pub use expiry::{Expiring, Lifetime};
pub use memory::HybridMemory;
#[cfg(feature = "serde")]
pub use postcard_value::Postcard;
pub use values::{L2Key, L2Value};

use crate::error::{Error, ErrorKind, Result};
use crate::l2::L2;
use crate::promise::{OnDrop, Promise};
use crate::stats::L2Stats;
use closing::Closing;
use expiry::Expiries;

/// The end of errors about a value of the device that has to be in memory.
const NOT_HELD: &str = "a value of the device, because memory has no capacity to hold it; raise the capacity, or hold fewer values";
/// Abandoned loads of a key after which a lookup misses.
const MAX_ABANDONED_LOADS: u32 = 4;
/// Blocks that are pinned at once while all values are written.
const OFFER_BATCH: usize = 1024;
/// How often values are offered to the device, if writes fail.
const WRITE_ATTEMPTS: u32 = 3;

forebay_base::sync::thread_local! {
    /// The error of this thread's last forget, if it failed.
    static LAST_FORGET_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
    /// The address of the L2 to which this thread writes all values of a cache, or zero. The drop
    /// of that cache must not wait for the thread.
    static WRITES_ALL: Cell<usize> = const { Cell::new(0) };
}

/// A cache of values in memory and on a device, where they survive the program. See the crate's
/// example.
///
/// # Drop
///
/// [`close`](Self::close) the cache at the end of a program. A drop alone keeps what the device
/// has, and loses the values that only memory has. It first waits for what has begun and goes on
/// without its future: inserts, removals and flushes, and the writing of a close. It does not wait
/// for values that are held. If a close waits for those, its thread keeps the device open until
/// they are gone.
pub struct HybridCache<K: Key, V: Send + Sync + 'static> {
    cache: Arc<Cache<K, V>>,
    l2: Arc<L2<K, V>>,
    writes_on_close: bool,
    closing: Arc<Closing>,
    /// `None` if values of this type cannot expire.
    expiries: Option<Arc<Expiries<V>>>,
}

/// Statistics of a hybrid cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HybridStats {
    /// Statistics of the memory.
    pub memory: Stats,
    /// Statistics of the L2.
    pub l2: L2Stats,
}

/// Why an insert failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum InsertError<V> {
    /// The value was not cached and is returned. No older value will be returned. If the reason is
    /// [`Closed`](forebay_cache::Refusal::Closed), nothing was changed.
    #[error(transparent)]
    Refused(Refused<V>),
    /// The device or the codec failed, so an older value of the key may return after the device is
    /// opened again. In this process, it does not.
    #[error("an older value may return: {error}")]
    ForgetFailed {
        /// The cause, and what to do.
        #[source]
        error: Error,
        /// The value, if it was not cached either.
        value: Option<V>,
    },
    /// A value of the device could not be modified, because memory has no capacity to hold it.
    /// Nothing was changed. Only [`HybridEntry::and_modify`] returns this.
    #[error("cannot modify {NOT_HELD}")]
    NotHeld,
}

/// Does not show the value, which need not implement it.
impl<V> fmt::Debug for InsertError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => f.debug_tuple("Refused").field(refused).finish(),
            Self::NotHeld => f.write_str("NotHeld"),
            Self::ForgetFailed { error, value } => f
                .debug_struct("ForgetFailed")
                .field("error", error)
                .field("has_value", &value.is_some())
                .finish(),
        }
    }
}

/// The L2 as the cache sees it.
struct L2Hook<K: Key, V: Send + Sync + 'static>(Arc<L2<K, V>>);

impl<K: Key, V: Send + Sync + 'static> SecondaryCache<K, V> for L2Hook<K, V> {
    fn offer(&self, candidates: Vec<Candidate<K, V>>) {
        self.0.offer(candidates);
    }

    fn evicted(&self, keys: &[K]) {
        self.0.evicted(keys);
    }

    fn would_write(&self, key: &K, class: Class) -> bool {
        self.0.would_write(key, class)
    }

    fn holding(&self, key: &K, class: Class) -> Option<Holding> {
        self.0.holding(key, class)
    }

    fn capacity_bytes(&self) -> Option<u64> {
        self.0.capacity_bytes()
    }

    fn load(&self, guard: LoadGuard<K, V>) -> Result<(), LoadGuard<K, V>> {
        self.0.load(guard)
    }

    fn superseded(&self, key: &K) {
        SecondaryCache::superseded(&*self.0, key);
    }

    fn forget(&self, key: &K) {
        if let Err(error) = self.0.forget_checked(key) {
            LAST_FORGET_ERROR.with(|slot| *slot.borrow_mut() = Some(error));
        }
    }
}

/// Where a lookup finds a value.
enum Found<K: Key, V: Send + Sync + 'static> {
    Value(OwnedRef<K, V>),
    /// A load in progress provides it.
    InFlight(InFlight<K, V>),
    /// The L2 has it, with these attributes.
    OnDevice(Attributes),
}

/// A lookup that has begun.
enum Lookup<K: Key, V: Send + Sync + 'static> {
    Value(OwnedRef<K, V>),
    InFlight(InFlight<K, V>),
    /// The device had the value, and reads it no more: the block was lost meanwhile, the cache was
    /// closed, or there is no memory for I/O.
    Declined,
}

/// Runs a change that makes the L2 forget a key. Also returns the error of the forget, if it
/// failed.
fn capture_forget_error<T>(change: impl FnOnce() -> T) -> (T, Option<Error>) {
    // A change may drop a value that changes another cache, within this change.
    let outer = LAST_FORGET_ERROR.with(|slot| slot.borrow_mut().take());
    let _outer = OnDrop::new(|| LAST_FORGET_ERROR.with(|slot| *slot.borrow_mut() = outer));
    let outcome = change();
    (outcome, LAST_FORGET_ERROR.with(|slot| slot.borrow_mut().take()))
}

/// Runs an insert that makes the L2 forget a key.
fn capture_insert_error<T, V>(
    insert: impl FnOnce() -> Result<T, Refused<V>>,
) -> Result<T, InsertError<V>> {
    match capture_forget_error(insert) {
        (Ok(done), None) => Ok(done),
        (Err(refused), None) => Err(InsertError::Refused(refused)),
        (outcome, Some(error)) => {
            let value = outcome.err().map(|refused| refused.value);
            Err(InsertError::ForgetFailed { error, value })
        }
    }
}

fn closed_insert<V>(value: V) -> InsertError<V> {
    InsertError::Refused(Refused { reason: Refusal::Closed, value, removed: false })
}

fn closed_error() -> Error {
    let text = "the cache is closed, and nothing was changed; build it again on its device";
    Error::new(ErrorKind::Closed, text)
}

impl<K: Key, V: Send + Sync + 'static> HybridCache<K, V> {
    /// The value of the key, from memory or from the device. Waits for the device, and for a load
    /// of the key in progress.
    ///
    /// If neither has the key, no load begins: the memory remembers what it knows of the key until
    /// a value is inserted or loaded.
    pub fn get(&self, key: &K) -> Option<OwnedRef<K, V>> {
        if let Some(value) = self.get_from_memory(key) {
            return Some(value);
        }
        for _ in 0..=MAX_ABANDONED_LOADS {
            match self.begin_lookup(key, &mut true)? {
                Lookup::Value(value) => return Some(value),
                Lookup::Declined => return None,
                Lookup::InFlight(in_flight) => match in_flight.wait() {
                    Err(LoadError::Abandoned) => {}
                    outcome => return outcome.ok().map(|value| self.used(value)),
                },
            }
        }
        None
    }

    /// Like [`get`](Self::get), but does not block the thread. Works under any executor.
    pub async fn get_async(&self, key: &K) -> Option<OwnedRef<K, V>> {
        if let Some(value) = self.get_from_memory(key) {
            return Some(value);
        }
        for _ in 0..=MAX_ABANDONED_LOADS {
            match self.begin_lookup_async(key, &mut true).await? {
                Lookup::Value(value) => return Some(value),
                Lookup::Declined => return None,
                Lookup::InFlight(in_flight) => match in_flight.await {
                    Err(LoadError::Abandoned) => {}
                    outcome => return outcome.ok().map(|value| self.used(value)),
                },
            }
        }
        None
    }

    /// The value, if memory has it.
    fn get_from_memory(&self, key: &K) -> Option<OwnedRef<K, V>> {
        self.cache.get(key).and_then(|value| self.alive(value))
    }

    /// A value of memory, unless its time is over.
    fn alive(&self, value: Ref<'_, K, V>) -> Option<OwnedRef<K, V>> {
        match &self.expiries {
            None => Some(value.into_owned()),
            Some(expiries) => expiries.use_found(&self.cache, value),
        }
    }

    /// A value that a load provided.
    fn used(&self, value: OwnedRef<K, V>) -> OwnedRef<K, V> {
        if let Some(expiries) = &self.expiries {
            expiries.note_use(&value);
        }
        value
    }

    /// Removes the value of the key from memory if its time is over, before a change or a load that
    /// would not notice.
    fn remove_expired(&self, key: &K) {
        if let Some(expiries) = &self.expiries
            && let Some(value) = self.cache.peek(key)
            && expiries.has_expired(&value)
        {
            self.cache.expire(&value);
        }
    }

    /// Finds the value, joins a load of it, or has the L2 load it. `None` if there is none of
    /// these. Waits for capacity only if `may_wait` is set; a wait in vain clears it.
    fn begin_lookup(&self, key: &K, may_wait: &mut bool) -> Option<Lookup<K, V>> {
        match self.find(key)? {
            Found::Value(value) => Some(Lookup::Value(value)),
            Found::InFlight(in_flight) => Some(Lookup::InFlight(in_flight)),
            Found::OnDevice(attributes) => {
                let weight = self.cache.expected_weight();
                Some(self.begun(self.cache.begin_one_of(*key, weight, attributes, may_wait)))
            }
        }
    }

    /// As [`begin_lookup`](Self::begin_lookup), and waits for capacity without blocking the thread.
    async fn begin_lookup_async(&self, key: &K, may_wait: &mut bool) -> Option<Lookup<K, V>> {
        match self.find(key)? {
            Found::Value(value) => Some(Lookup::Value(value)),
            Found::InFlight(in_flight) => Some(Lookup::InFlight(in_flight)),
            Found::OnDevice(attributes) => {
                let weight = self.cache.expected_weight();
                let begin = self.cache.begin_one_of_async(*key, weight, attributes, may_wait);
                Some(self.begun(begin.await))
            }
        }
    }

    /// What a load that was to begin found. A value is there if the L2 has loaded it meanwhile.
    fn begun(&self, begin: Result<Begin<'_, K, V>, LoadError>) -> Lookup<K, V> {
        match begin {
            Ok(Begin::Hit(value)) => self.alive(value).map_or(Lookup::Declined, Lookup::Value),
            Ok(Begin::InFlight(in_flight)) => Lookup::InFlight(in_flight),
            Ok(Begin::Vacant(guard)) => {
                guard.withdraw();
                Lookup::Declined
            }
            Err(_) => Lookup::Declined,
        }
    }

    /// Where the value of the key is. Asks the L2 only if memory has neither the value nor a load.
    fn find(&self, key: &K) -> Option<Found<K, V>> {
        match self.cache.get_or_join(key) {
            Some(Present::Hit(value)) => {
                if let Some(value) = self.alive(value) {
                    return Some(Found::Value(value));
                }
            }
            Some(Present::InFlight(in_flight)) => return Some(Found::InFlight(in_flight)),
            None => {}
        }
        let class = self.l2.class_to_load(key)?;
        Some(Found::OnDevice(Attributes { class, ..Attributes::DATA }))
    }

    /// The value of the key. If neither memory nor the device has it, `load` or a load in progress
    /// provides it.
    ///
    /// # Errors
    /// The error of the loader; see [`Cache::get_or_load`].
    pub fn get_or_load<E>(
        &self,
        key: K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<OwnedRef<K, V>, LoadError<E>>
    where
        E: fmt::Display + Send + Sync + 'static,
    {
        self.get_or_load_with(key, Attributes::DATA, load)
    }

    /// Like [`get_or_load`](Self::get_or_load), with a class and a hint.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    pub fn get_or_load_with<E>(
        &self,
        key: K,
        attributes: Attributes,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<OwnedRef<K, V>, LoadError<E>>
    where
        E: fmt::Display + Send + Sync + 'static,
    {
        self.remove_expired(&key);
        let loaded = self.cache.get_or_load_with(key, attributes, load);
        loaded.map(|value| self.used(value.into_owned()))
    }

    /// Like [`get_or_load`](Self::get_or_load), with an asynchronous loader. Dropping the future
    /// abandons the load.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_async<E, F>(
        &self,
        key: K,
        load: impl FnOnce() -> F,
    ) -> Result<OwnedRef<K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
        E: fmt::Display + Send + Sync + 'static,
    {
        self.get_or_load_with_async(key, Attributes::DATA, load).await
    }

    /// Like [`get_or_load_async`](Self::get_or_load_async), with a class and a hint.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_with_async<E, F>(
        &self,
        key: K,
        attributes: Attributes,
        load: impl FnOnce() -> F,
    ) -> Result<OwnedRef<K, V>, LoadError<E>>
    where
        F: Future<Output = Result<V, E>>,
        E: fmt::Display + Send + Sync + 'static,
    {
        self.remove_expired(&key);
        let loaded = self.cache.get_or_load_with_async(key, attributes, load).await;
        loaded.map(|value| self.used(value.into_owned()))
    }

    /// Caches a value and replaces any other of the key. If the device has an older value, waits
    /// until its removal is durable.
    ///
    /// # Errors
    /// If the value was not cached; an older one is removed all the same. If the device cannot
    /// forget the older value, or once the cache is being closed: then the older value may return
    /// when the device is opened again.
    pub fn insert(&self, key: K, value: V) -> Result<(), InsertError<V>> {
        self.insert_with(key, value, Attributes::DATA)
    }

    /// Like [`insert`](Self::insert), with a class and a hint.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_with(
        &self,
        key: K,
        value: V,
        attributes: Attributes,
    ) -> Result<(), InsertError<V>> {
        let Some(_change) = self.closing.begin_change() else {
            return Err(closed_insert(value));
        };
        self.remove_expired(&key);
        capture_insert_error(|| self.cache.insert_with(key, value, attributes))
    }

    /// Removes a value from memory and from the device. Returns true if it was in memory. The
    /// removal is durable when the call returns.
    ///
    /// # Errors
    /// If the device or the codec failed. The value may then return after the device is opened
    /// again, but not in this process. [`ErrorKind::Closed`] once the cache is being closed; then
    /// nothing is removed.
    pub fn remove(&self, key: &K) -> Result<bool> {
        let _change = self.closing.begin_change().ok_or_else(closed_error)?;
        self.remove_expired(key);
        match capture_forget_error(|| self.cache.remove(key)) {
            (removed, None) => Ok(removed.is_some()),
            (_, Some(error)) => Err(error),
        }
    }

    /// Writes all values that are only in memory to the device, as far as it has space, and waits
    /// until they are durable. Values inserted with [`once`](Attributes::once) are not included,
    /// nor those that memory evicts meanwhile. With a slow device these may be the newest, because
    /// values in the write queue are pinned. Values whose write failed are written again, a few
    /// times.
    ///
    /// # Errors
    /// If the device fails, or if writes failed or had no memory each time; [`ErrorKind::Closed`]
    /// once the cache is being closed.
    pub fn flush_to_device(&self) -> Result<()> {
        if self.closing.is_set() {
            return Err(closed_error());
        }
        write_all(&self.cache, &self.l2)
    }

    /// Statistics of the memory and of the L2.
    pub fn stats(&self) -> HybridStats {
        HybridStats { memory: self.cache.stats(), l2: self.l2.stats() }
    }

    /// The memory side.
    pub fn memory(&self) -> HybridMemory<'_, K, V> {
        HybridMemory::new(&self.cache, self.expiries.as_deref())
    }

    /// The device side.
    pub fn l2(&self) -> &Arc<L2<K, V>> {
        &self.l2
    }

    /// Closes the cache: writes values that are only in memory, unless that was disabled, and
    /// closes memory and device. Inserts and removals are refused from the beginning. Lookups find
    /// nothing afterwards. The device keeps its values.
    ///
    /// The close waits for inserts and removals in progress, and until no value of the cache is
    /// held. Never call it on a thread that holds a value, or in a value's drop, a codec or a
    /// weigher that runs during a change: it would wait for itself. A file or block device stays
    /// open and locked until both the cache and its device are dropped.
    ///
    /// The close cancels a running rebuild. Values that are only in memory are then not written. To
    /// write them, call [`flush_to_device`](Self::flush_to_device) before. Values that are loaded
    /// during the close may not be written.
    ///
    /// # Errors
    /// If not all values could be written. The cache is closed anyway. A second call, also a
    /// concurrent one, waits for the first and returns its result.
    pub fn close(&self) -> Result<()> {
        let (written, writes) = (|| self.closing.note_written(), self.writes_on_close);
        let close = || close_once(&self.cache, &self.l2, writes, written);
        self.closing.close(!self.l2.is_own_thread(), close)
    }

    /// Like [`close`](Self::close), and waits no longer than `timeout`. If that is not enough, the
    /// close goes on, on a thread of its own; a later call returns its result.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # use forebay_l2::{ErrorKind, HybridCache};
    /// use std::time::Duration;
    ///
    /// let cache = HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
    /// cache.insert(7, "seven".to_owned())?;
    /// let held = cache.get(&7);
    /// let error = cache.close_timeout(Duration::from_millis(1)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TimedOut);
    /// drop(held);
    /// cache.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`close`](Self::close) and [`close_async`](Self::close_async).
    /// [`ErrorKind::TimedOut`] if it has not ended in time.
    pub fn close_timeout(&self, timeout: Duration) -> Result<()> {
        let closed = self.close_on_thread();
        closed.wait_timeout(timeout).unwrap_or_else(|| {
            let text = format!(
                "the cache is not closed after {timeout:?}, and the close goes on: values are held, being loaded or being written; drop those that are held, and call `close` to wait for the end"
            );
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }

    fn close_on_thread(&self) -> Arc<Promise<Result<()>>> {
        let (cache, l2) = (Arc::clone(&self.cache), Arc::clone(&self.l2));
        let (closing, writes) = (Arc::clone(&self.closing), self.writes_on_close);
        let close = move || close_once(&cache, &l2, writes, || closing.note_written());
        self.closing.close_on_thread(close)
    }
}

fn write_all<K: Key, V: Send + Sync + 'static>(cache: &Cache<K, V>, l2: &L2<K, V>) -> Result<()> {
    let outer = WRITES_ALL.with(|writes| writes.replace(std::ptr::from_ref(l2).addr()));
    let _outer = OnDrop::new(|| WRITES_ALL.with(|writes| writes.set(outer)));
    let mut attempts = 1;
    while let Err(error) = write_all_once(cache, l2) {
        match error.kind() {
            ErrorKind::Closed => return Err(error),
            _ if attempts == WRITE_ATTEMPTS => return Err(error),
            ErrorKind::NoMemory => l2.wait_for_memory(),
            _ => {}
        }
        attempts += 1;
    }
    Ok(())
}

fn write_all_once<K: Key, V: Send + Sync + 'static>(
    cache: &Cache<K, V>,
    l2: &L2<K, V>,
) -> Result<()> {
    let (losses, mut outcome) = (l2.losses(), Ok(()));
    cache.offer_all(OFFER_BATCH, |candidates| {
        if outcome.is_ok() {
            outcome = l2.write_all(candidates);
        }
    });
    outcome?;
    l2.flush_since(losses)
}

fn close_once<K: Key, V: Send + Sync + 'static>(
    cache: &Cache<K, V>,
    l2: &L2<K, V>,
    writes_on_close: bool,
    note_written: impl FnOnce(),
) -> Result<()> {
    let written = match writes_on_close {
        true if l2.is_own_thread() => Err(l2.unwritten_error("one of its own threads closed it")),
        true if l2.is_rebuilding() => {
            let mut only_here = false;
            // A value that was just read from the device is known to be there.
            let lacking = |candidate: &Candidate<K, V>| l2.lacks(candidate);
            cache.offer_all(OFFER_BATCH, |candidates| only_here |= candidates.iter().any(lacking));
            match only_here {
                false => Ok(()),
                true => Err(l2.unwritten_error("its rebuild had not finished")),
            }
        }
        true => write_all(cache, l2),
        false => Ok(()),
    };
    note_written();
    // Waits for loads in progress and for queued blocks, while the L2 still runs.
    cache.close();
    l2.close();
    written
}

impl<K: Key, V: Send + Sync + 'static> Drop for HybridCache<K, V> {
    fn drop(&mut self) {
        // A value's drop may be here, on a thread that this would wait for.
        let address = Arc::as_ptr(&self.l2).addr();
        if !self.l2.is_own_thread() && WRITES_ALL.with(Cell::get) != address {
            self.closing.wait_for_writes();
        }
        // The L2 before the cache, because its threads may be inserting blocks into that.
        self.l2.close();
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for HybridCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridCache").field("l2", &self.l2.health()).finish_non_exhaustive()
    }
}
