//! The load guard, which publishes or fails a load, and the handles by which others wait for the
//! load.
//!
//! Invariants
//!
//! * A loading header has one guard. The guard holds a pin, so the header stays in use.
//! * A guard ends its load exactly once: it publishes, fails, withdraws, or is dropped.
//! * A load that did not get capacity is published to its waiters and retired at once. It is not
//!   cached.
//!
//! Locking: the sublist's lock when it publishes; `index-partition` when it removes the slot;
//! `in-flight-loads` when it wakes waiters. Never two of them.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin as StdPin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use forebay_base::sync::Arc;

use crate::attributes::{Attributes, Cause};
use crate::counters::CacheCounters;
use crate::error::Refusal;
use crate::guard::{OwnedRef, Ref};
use crate::header::{FILLED, Header, HeaderState, LOADING, RETIRED, VALID, WAITERS};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::load::error::LoadError;
use crate::load::own;
use crate::load::single_flight::{LoadOutcome, LoadWaiter};

/// The result of [`Cache::begin`](crate::Cache::begin).
#[derive(Debug)]
pub enum Begin<'a, K: Key, V: Send + Sync + 'static> {
    /// The block is cached.
    Hit(Ref<'a, K, V>),
    /// Another thread is loading the block. Wait for it, poll, or register a callback.
    InFlight(InFlight<K, V>),
    /// The block is not cached. The caller loads it.
    Vacant(LoadGuard<K, V>),
}

/// The result of [`Cache::get_or_join`](crate::Cache::get_or_join): a block, or the load of it.
#[derive(Debug)]
pub enum Present<'a, K: Key, V: Send + Sync + 'static> {
    /// The block is cached.
    Hit(Ref<'a, K, V>),
    /// Another thread is loading the block. Wait for it, poll, or register a callback.
    InFlight(InFlight<K, V>),
}

impl<'a, K: Key, V: Send + Sync + 'static> From<Present<'a, K, V>> for Begin<'a, K, V> {
    fn from(present: Present<'a, K, V>) -> Self {
        match present {
            Present::Hit(block) => Self::Hit(block),
            Present::InFlight(in_flight) => Self::InFlight(in_flight),
        }
    }
}

/// The right and the duty to publish a block. Other requests for the block wait for it.
///
/// Dropping it unpublished abandons the load: waiters get [`LoadError::Abandoned`], or
/// [`LoadError::Panicked`] if a panic drops it.
pub struct LoadGuard<K: Key, V: Send + Sync + 'static> {
    pub(crate) header: NonNull<Header<K, V>>,
    pub(crate) inner: NonNull<CacheInner<K, V>>,
    pub(crate) hash: u64,
    pub(crate) attributes: Attributes,
    /// Whether the block begins in MFU.
    pub(crate) frequent: bool,
    /// Why the block will not be cached, if it will not.
    pub(crate) refusal: Option<Refusal>,
    /// When the load began, if it is timed.
    pub(crate) begun_ns: Option<u64>,
    /// Whether the secondary cache may have an older block of the key.
    pub(crate) supersedes: bool,
}

// SAFETY: the guard writes a `V` that it is given and may drop one, and reads a `K`; both bounds
// allow that. Its pin keeps header and cache alive on any thread.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for LoadGuard<K, V> {}
// SAFETY: shared access reads only the key.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for LoadGuard<K, V> {}

/// A load that another thread has begun. Dropping it ends the wait, not the load.
pub struct InFlight<K: Key, V: Send + Sync + 'static> {
    /// Taken when the wait ends, or by the callback.
    pin: Option<LoadingPin<K, V>>,
    waiter: Arc<LoadWaiter>,
    /// The waiter's number.
    number: u64,
}

/// A pin on a header that may not be filled yet.
pub(crate) struct LoadingPin<K: Key, V: Send + Sync + 'static> {
    pub(crate) header: NonNull<Header<K, V>>,
    pub(crate) inner: NonNull<CacheInner<K, V>>,
}

// SAFETY: a pin keeps header and cache alive on any thread, and its drop may drop a `V` here, which
// the bounds allow.
unsafe impl<K: Key, V: Send + Sync + 'static> Send for LoadingPin<K, V> {}
// SAFETY: it has no methods for shared access, other than to what the pin keeps alive.
unsafe impl<K: Key, V: Send + Sync + 'static> Sync for LoadingPin<K, V> {}

impl<K: Key, V: Send + Sync + 'static> LoadingPin<K, V> {
    fn into_outcome(self, outcome: LoadOutcome) -> Result<OwnedRef<K, V>, LoadError> {
        outcome?;
        let (inner, header) = (self.inner, self.header);
        std::mem::forget(self);
        // SAFETY: the pin is handed over; the load succeeded, so the header is filled.
        Ok(unsafe { OwnedRef::from_pin(inner.as_ref(), header) })
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for LoadingPin<K, V> {
    fn drop(&mut self) {
        // SAFETY: this type is a pin.
        unsafe { CacheInner::unpin_owned(self.inner, self.header) };
    }
}

impl<K: Key, V: Send + Sync + 'static> InFlight<K, V> {
    /// Waits for the load of a pinned header.
    pub(crate) fn new(pin: LoadingPin<K, V>, (number, waiter): (u64, Arc<LoadWaiter>)) -> Self {
        Self { pin: Some(pin), waiter, number }
    }

    /// Whether waiting would be for the loader that this thread runs.
    fn check_not_own(&self) -> Result<(), LoadError> {
        let own = self.pin.as_ref().is_some_and(|pin| own::is_own(pin.header.addr().get()));
        if own { Err(LoadError::Recursive) } else { Ok(()) }
    }

    fn take_pin(&mut self) -> LoadingPin<K, V> {
        self.pin.take().expect("there until the wait is over")
    }

    /// Blocks until the load has ended. Never call it on a thread that has the load's guard.
    ///
    /// # Errors
    ///
    /// The load's error, which every waiter gets. [`LoadError::Recursive`] in the block's own
    /// loader, if that is the closure of a [`get_or_load`](crate::Cache::get_or_load).
    pub fn wait(mut self) -> Result<OwnedRef<K, V>, LoadError> {
        self.check_not_own()?;
        let outcome = self.waiter.wait();
        self.take_pin().into_outcome(outcome)
    }

    /// Runs `f` when the load has ended, on the thread that ends it; at once if it has ended
    /// already.
    ///
    /// `f` should be short. A panic in it is caught and counted, unless it runs at once.
    pub fn on_ready(mut self, f: impl FnOnce(Result<OwnedRef<K, V>, LoadError>) + Send + 'static) {
        let pin = self.take_pin();
        self.waiter.on_ready(Box::new(move |outcome| f(pin.into_outcome(outcome))));
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for InFlight<K, V> {
    fn drop(&mut self) {
        if let Some(pin) = &self.pin {
            // SAFETY: the pin keeps the cache alive.
            unsafe { pin.inner.as_ref() }.in_flight.leave(pin.header.addr().get(), self.number);
        }
    }
}

/// The future of an [`InFlight`] load. Needs no runtime. Dropping it ends the wait.
pub struct LoadFuture<K: Key, V: Send + Sync + 'static> {
    in_flight: Option<InFlight<K, V>>,
}

impl<K: Key, V: Send + Sync + 'static> Future for LoadFuture<K, V> {
    type Output = Result<OwnedRef<K, V>, LoadError>;

    fn poll(mut self: StdPin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let in_flight = self.in_flight.as_ref().expect("polled after it was ready");
        match in_flight.waiter.poll(context.waker()) {
            None => match in_flight.check_not_own() {
                Ok(()) => Poll::Pending,
                Err(recursive) => {
                    self.in_flight = None;
                    Poll::Ready(Err(recursive))
                }
            },
            Some(outcome) => {
                let mut in_flight = self.in_flight.take().expect("looked at just now");
                Poll::Ready(in_flight.take_pin().into_outcome(outcome))
            }
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> IntoFuture for InFlight<K, V> {
    type Output = Result<OwnedRef<K, V>, LoadError>;
    type IntoFuture = LoadFuture<K, V>;

    fn into_future(self) -> LoadFuture<K, V> {
        LoadFuture { in_flight: Some(self) }
    }
}

impl<K: Key, V: Send + Sync + 'static> LoadGuard<K, V> {
    /// The guard of a load that is not timed, of a block that was not cached before.
    pub(crate) fn new(
        inner: NonNull<CacheInner<K, V>>,
        header: NonNull<Header<K, V>>,
        hash: u64,
        attributes: Attributes,
    ) -> Self {
        let (frequent, refusal, begun_ns, supersedes) = (false, None, None, false);
        Self { header, inner, hash, attributes, frequent, refusal, begun_ns, supersedes }
    }

    /// The key of the block to load.
    pub fn key(&self) -> &K {
        // SAFETY: the guard holds a pin.
        unsafe { self.header.as_ref().key() }
    }

    /// Class and hint of the block.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Why the block will be handed out uncached, if that is known already.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Notes that the secondary cache has, or may have, a block of the key that it does not supply.
    /// If the load provides a value, and the key was not changed meanwhile,
    /// [`SecondaryCache::superseded`] tells it.
    ///
    /// [`SecondaryCache::superseded`]: crate::SecondaryCache::superseded
    pub fn supersede(&mut self) {
        self.supersedes = true;
    }

    /// Marks the load as run by this thread.
    pub(crate) fn own_scope(&self) -> own::Scope {
        own::scope(self.header.addr().get())
    }

    /// Publishes the block and wakes all waiters. Returns the block pinned, cached or not.
    pub fn publish(self, value: V) -> OwnedRef<K, V> {
        // SAFETY: the guard's pin keeps the cache alive, and its key readable.
        let inner = unsafe { self.inner.as_ref() };
        // If the user's weigher panics, the guard is dropped and tells the waiters.
        let weight = inner.weigh(self.key(), &value);
        self.publish_as(value, weight)
    }

    /// Publishes a block of that weight, structures included. Runs no weigher.
    pub(crate) fn publish_as(self, value: V, weight: u64) -> OwnedRef<K, V> {
        // SAFETY: the guard's pin keeps the cache alive.
        let (inner, header) = unsafe { (self.inner.as_ref(), self.header.as_ref()) };
        inner.mean_weight.note(weight - inner.structure_bytes());
        let reserved = u64::from(header.weight());
        let refusal = self.refusal.or_else(|| inner.adjust(reserved, weight));
        if refusal.is_some() {
            inner.capacity.release(reserved);
        }
        let kept = if refusal.is_some() { 0 } else { weight as u32 };
        self.publish_weighed(value, kept, refusal)
    }

    /// Publishes a block that holds `kept` bytes of capacity.
    pub(crate) fn publish_weighed(
        self,
        value: V,
        kept: u32,
        refusal: Option<Refusal>,
    ) -> OwnedRef<K, V> {
        // SAFETY: the guard's pin keeps the cache alive.
        let (inner, header) = unsafe { (self.inner.as_ref(), self.header.as_ref()) };
        let this = std::mem::ManuallyDrop::new(self);
        if this.supersedes && !Self::is_outdated(header.state()) {
            // Before anyone can find the value.
            inner.notify_superseded(this.key());
        }
        inner.load_ends(this.begun_ns);
        // SAFETY: this is the header's guard, and it has not been filled.
        unsafe { header.fill(value, kept) };
        inner.record_load(&this, kept, refusal);
        let before = match refusal {
            None => {
                let Attributes { class, hint, .. } = this.attributes;
                let (initial_list, mark) = inner.initial_list(class, hint, this.frequent);
                inner.enlist(this.header, class, initial_list, |s| {
                    s.with(VALID | FILLED | mark).without(LOADING | WAITERS)
                })
            }
            Some(_) => None,
        };
        let before = before.unwrap_or_else(|| this.hand_out(refusal));
        if before.has(WAITERS) {
            inner.complete_load(this.header, &Ok(()));
        }
        // SAFETY: the guard's pin is handed over; the header is filled.
        unsafe { OwnedRef::from_pin(inner, this.header) }
    }

    /// Whether the key was changed during the load. Then what the secondary cache has of it may be
    /// newer than the value of the load. After a sweep that only cleared memory it is not.
    fn is_outdated(state: HeaderState) -> bool {
        state.has(RETIRED) && matches!(state.cause(), Cause::Removed | Cause::Replaced)
    }

    /// Makes a filled but uncached block available to its waiters.
    fn hand_out(&self, refusal: Option<Refusal>) -> HeaderState {
        // SAFETY: the guard's pin.
        let (inner, header) = unsafe { (self.inner.as_ref(), self.header.as_ref()) };
        let class = self.attributes.class;
        match refusal {
            Some(reason) => {
                inner.unlink(self.header, self.hash);
                inner.count_refusal(reason, class);
            }
            // Removed or overwritten during the load.
            None => {
                inner.record_removal(self.key(), class, header.weight(), Cause::Replaced);
                inner.counters.add(CacheCounters::REFUSED_OUTDATED, class as usize, 1);
            }
        }
        self.end(header, FILLED)
    }

    /// Ends the load of a block that is not cached. Returns the state before.
    fn end(&self, header: &Header<K, V>, bits: u64) -> HeaderState {
        let ended = header.update(|s| {
            // Also if it was removed meanwhile: without capacity it was never cached, and an event
            // of it would hold none.
            let uncached = !s.has(RETIRED) || header.weight() == 0;
            let s = if uncached { s.uncached_by_holder() } else { s };
            Some(s.with(bits).without(LOADING | WAITERS))
        });
        ended.expect("this update never declines")
    }

    /// Ends the load with an error, which every waiter gets. Errors are not cached: the next
    /// request loads again.
    pub fn fail(self, error: LoadError) {
        std::mem::ManuallyDrop::new(self).fail_with(error);
    }

    fn fail_with(&self, error: LoadError) {
        // SAFETY: the guard's pin.
        let inner = unsafe { self.inner.as_ref() };
        inner.counters.add(CacheCounters::LOADS_FAILED, self.attributes.class as usize, 1);
        self.end_without_block(error);
    }

    /// Ends the load without an error and without counting it as failed.
    ///
    /// Waiters get [`LoadError::Abandoned`] and should begin again, as
    /// [`get_or_load`](crate::Cache::get_or_load) does. For a secondary cache that cannot supply
    /// the block after all.
    pub fn withdraw(self) {
        std::mem::ManuallyDrop::new(self).end_without_block(LoadError::Abandoned);
    }

    fn end_without_block(&self, error: LoadError) {
        // SAFETY: the guard's pin.
        let (inner, header) = unsafe { (self.inner.as_ref(), self.header.as_ref()) };
        // Before another load of the block can begin.
        inner.record_abandoned(self.hash);
        inner.unlink(self.header, self.hash);
        if self.end(header, 0).has(WAITERS) {
            inner.complete_load(self.header, &Err(error));
        }
        // SAFETY: the guard's pin, given up here.
        unsafe { CacheInner::unpin_owned(self.inner, self.header) };
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for LoadGuard<K, V> {
    fn drop(&mut self) {
        #[allow(clippy::disallowed_methods, reason = "asks about this thread, starts none")]
        let panicking = std::thread::panicking();
        self.fail_with(if panicking { LoadError::Panicked } else { LoadError::Abandoned });
    }
}

impl<K: Key + fmt::Debug, V: Send + Sync + 'static> fmt::Debug for LoadGuard<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadGuard").field("key", self.key()).finish_non_exhaustive()
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for InFlight<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}
