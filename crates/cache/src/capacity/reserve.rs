//! Reserves capacity for a block: at once, after eviction, or after a bounded wait in FIFO order.
//!
//! An inserter beyond the limit evicts first. If that does not suffice, it is refused, or it
//! queues, if the tunable `overflow_wait_ms` allows it. While others queue, it queues behind them.
//! For a listener that must not miss an event it always queues, until the listener is idle. Then it
//! tries once more, ahead of those that queued later: what it finds pinned then is not on its way
//! out. Only threads that the listener may wait for do not queue: its own, and loaders.
//!
//! Locking: none held while it evicts or waits, except the queue's own (`throttle`).

use std::future::Future;
use std::pin::Pin as StdPin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_base::probe;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;

use super::{Capacity, Reserved, Ticket};
use crate::attributes::Attributes;
use crate::counters::CacheCounters;
use crate::error::Refusal;
use crate::inner::{CacheInner, Reclaim};
use crate::key::Key;
use crate::load::own;

/// How often a thread that waits for the listener looks whether it is idle.
const LISTENER_LOOK: Duration = Duration::from_millis(2);
/// Evictions, and waits for the listener, in vain after which an inserter gives up: the listener
/// inserts all that leaves.
const MAX_ROUNDS: u32 = 1024;

/// The outcome of an attempt to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Reserved,
    /// Blocks were evicted, but their capacity is not free yet, or others have taken it. Or others
    /// were in the queue, and this thread may join it.
    Evicted,
    /// No block could be evicted.
    Stuck,
}

/// What an inserter does after it has evicted as far as that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Reserved,
    /// Queue until the listener is idle, and try again: it holds capacity, or others queue for it.
    AwaitListener,
    /// Wait for a bounded time at most.
    NoCapacity,
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Reserves capacity. If there is none, evicts, then waits for a bounded time.
    pub(crate) fn reserve(&self, weight: u64) -> bool {
        match self.try_reserve(weight) {
            true => true,
            false => self.reserve_slow(weight),
        }
    }

    /// Reserves capacity without waiting.
    pub(crate) fn try_reserve(&self, weight: u64) -> bool {
        match self.capacity.reserve(weight) {
            Reserved::Yes => true,
            Reserved::YesAndReclaim => {
                self.request_reclaim();
                true
            }
            Reserved::No | Reserved::Behind => false,
        }
    }

    /// Beyond the limit: evicts, and if that frees too little, waits behind all earlier waiters:
    /// for the listener as long as it takes to run, [`MAX_ROUNDS`] times, if no event may be lost;
    /// for others as long as the tunable says.
    #[cold]
    pub(crate) fn reserve_slow(&self, weight: u64) -> bool {
        for round in 0..MAX_ROUNDS {
            match self.attempts(weight, round > 0) {
                Verdict::Reserved => return true,
                Verdict::AwaitListener if self.wait_for_listener(weight) => return true,
                Verdict::AwaitListener => {}
                Verdict::NoCapacity => break,
            }
        }
        if self.mode != Reclaim::Thread || self.tunables.overflow_wait_ms() == 0 {
            return false;
        }
        let start = self.clock.now_ns();
        probe!(overflow_wait, weight);
        let ticket = self.queue_for_capacity(weight, false);
        let wait = Duration::from_millis(u64::from(self.tunables.overflow_wait_ms()));
        let granted = self.capacity.wait(&ticket, wait);
        let waited_ns = self.clock.now_ns().saturating_sub(start);
        self.throttle_wait_ns.record(waited_ns);
        probe!(overflow_waited, weight, granted, waited_ns);
        if !granted {
            self.counters.add(CacheCounters::THROTTLE_TIMEOUTS, 0, 1);
        }
        granted
    }

    /// Tries to reserve without waiting. What was evicted for a listener that misses no event is
    /// free once it has run, unless it inserts as much itself. So it tries again if the listener
    /// may have released capacity during the attempt. `has_queued`: it has waited for its turn, so
    /// it need not queue behind others.
    fn attempts(&self, weight: u64, has_queued: bool) -> Verdict {
        for _ in 0..MAX_ROUNDS {
            // In this order: an event that is queued in between is awaited, or has run before the
            // attempt.
            let queued = self.callbacks.as_ref().map_or(0, |c| c.queued());
            let was_awaited = self.awaits_listener();
            let attempt = self.attempt(weight, has_queued);
            if attempt == Attempt::Reserved {
                return Verdict::Reserved;
            }
            if !self.is_lossless() || self.is_closed() {
                break;
            }
            let is_behind = || !has_queued && self.may_queue() && self.capacity.has_waiters();
            if self.awaits_listener() || is_behind() {
                return Verdict::AwaitListener;
            }
            let has_run =
                was_awaited || self.callbacks.as_ref().is_some_and(|c| c.queued() > queued);
            if attempt == Attempt::Stuck && !has_run {
                break;
            }
        }
        Verdict::NoCapacity
    }

    /// Tries to reserve without waiting: takes capacity from the event that the listener is
    /// handling, if this is its thread, or evicts. If no wait is allowed afterwards, it gives up
    /// only if blocks are pinned, and not if other threads are evicting at the moment or were
    /// faster.
    fn attempt(&self, weight: u64, has_queued: bool) -> Attempt {
        if self.callbacks.as_ref().is_some_and(|c| c.use_in_hand(weight)) {
            return Attempt::Reserved;
        }
        let attempt = self.evict_for(weight, has_queued);
        let may_wait = self.tunables.overflow_wait_ms() > 0 || self.mode == Reclaim::Inline;
        if attempt != Attempt::Stuck || may_wait || self.awaits_listener() {
            return attempt;
        }
        // What others have taken off the lists is free once they have finished.
        self.scratches.iter().for_each(|scratch| drop(scratch.lock()));
        self.evict_for(weight, has_queued)
    }

    /// Whether the listener will release capacity that the calling thread should wait for. A loader
    /// should not: the listener may wait for its load.
    pub(crate) fn awaits_listener(&self) -> bool {
        self.callbacks.as_ref().is_some_and(|c| c.is_awaited()) && !own::is_loading()
    }

    /// Whether this thread may wait for the listener, if that holds capacity or others queue for
    /// it.
    fn may_queue(&self) -> bool {
        self.callbacks.as_ref().is_some_and(|c| c.may_be_awaited()) && !own::is_loading()
    }

    /// Waits for capacity until the listener is idle.
    fn wait_for_listener(&self, weight: u64) -> bool {
        let start = self.clock.now_ns();
        let ticket = self.queue_for_capacity(weight, true);
        let granted = loop {
            let outcome = self.capacity.wait_once(&ticket, LISTENER_LOOK);
            let over = !self.awaits_listener() || self.is_closed();
            match outcome {
                Some(granted) => break granted,
                None if over => break self.capacity.leave(&ticket),
                None => {}
            }
        };
        self.throttle_wait_ns.record(self.clock.now_ns().saturating_sub(start));
        granted
    }

    /// Evicts until the weight fits, as far as this thread can.
    pub(crate) fn reserve_by_evicting(&self, weight: u64) -> bool {
        self.evict_for(weight, false) == Attempt::Reserved
    }

    #[cold]
    fn evict_for(&self, weight: u64, has_queued: bool) -> Attempt {
        self.counters.add(CacheCounters::OVERFLOWS, 0, 1);
        loop {
            let evicted = self.reclaim_directly(weight);
            let reserved = match has_queued {
                true => self.capacity.reserve_ahead(weight),
                false => self.capacity.reserve(weight),
            };
            if reserved.is_reserved() {
                return Attempt::Reserved;
            }
            if reserved == Reserved::Behind && self.may_queue() {
                // Maybe only for a moment, while there was enough for both.
                return Attempt::Evicted;
            }
            let again = match self.mode {
                // Values queued for the listener keep their capacity. If events may be lost, then
                // once that queue is full, evicted values release theirs at once, so evicting again
                // helps.
                Reclaim::Inline => self.callbacks.is_some() && !self.is_lossless(),
                // Other threads have taken what this one has evicted. It may not wait for them.
                Reclaim::Thread => {
                    self.tunables.overflow_wait_ms() == 0
                        && !self.is_lossless()
                        && !self.capacity.has_waiters()
                }
            };
            if !evicted || !again {
                return if evicted { Attempt::Evicted } else { Attempt::Stuck };
            }
        }
    }

    /// Queues for capacity and wakes the reclaimer. `for_listener`: until the listener is idle.
    fn queue_for_capacity(&self, weight: u64, for_listener: bool) -> Arc<Ticket> {
        self.counters.add(CacheCounters::THROTTLE_WAITS, 0, 1);
        let wait_ns = u64::from(self.tunables.overflow_wait_ms()) * 1_000_000;
        let deadline_ns = (!for_listener).then(|| self.clock.now_ns() + wait_ns);
        let ticket = self.capacity.queue_up(weight, deadline_ns);
        // Capacity may have been released before the ticket was in the queue.
        self.capacity.grant();
        if self.closed.load(Ordering::SeqCst) {
            self.refuse_waiters();
        }
        if self.mode == Reclaim::Inline && !self.awaits_listener() {
            // The listener has become idle before the ticket was in the queue, and no reclaimer
            // looks.
            self.capacity.expire(0, true);
        }
        self.wake_reclaimer();
        ticket
    }

    /// Adjusts a reservation to the block's true weight. Returns the reason if that fails.
    pub(crate) fn adjust(&self, reserved: u64, weight: u64) -> Option<Refusal> {
        if let Some(refusal) = self.too_heavy(weight) {
            return Some(refusal);
        }
        if weight > reserved {
            let more = weight - reserved;
            // Publishing must not block the thread, not even for the listener, which may wait for
            // this load. With `Inline`, threads evict anyway.
            let inline = self.mode == Reclaim::Inline;
            let reserved =
                self.try_reserve(more) || inline && self.attempt(more, false) == Attempt::Reserved;
            if !reserved {
                return Some(Refusal::NoCapacity);
            }
        }
        if weight < reserved {
            self.capacity.release(reserved - weight);
        }
        None
    }

    pub(crate) fn return_reservation(&self, reservation: Option<bool>, weight: u64) {
        if reservation == Some(true) {
            self.capacity.release(weight);
        }
    }
}

/// Capacity for a value, which is returned if no insert uses it.
pub(crate) struct Reservation<'a> {
    capacity: &'a Capacity,
    weight: u64,
}

impl Reservation<'_> {
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// Hands the capacity to the caller. Always true, for a caller that asks whether it has some.
    pub(crate) fn redeem(self) -> bool {
        std::mem::forget(self);
        true
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.capacity.release(self.weight);
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Reserves capacity for a value, and waits for it without blocking the thread. `None` if
    /// there is none, or if the value may not be cached anyway.
    pub(crate) async fn reserve_async(
        &self,
        key: &K,
        weight: u64,
        attributes: Attributes,
    ) -> Option<Reservation<'_>> {
        let class = self.policy_attributes(attributes).class;
        if self.refuse(key, class, weight).is_some() {
            return None;
        }
        let is_reserved = self.try_reserve(weight)
            || match CapacityFuture::new(self, weight) {
                Ok(waiting) => waiting.await,
                Err(outcome) => outcome,
            };
        // Not made before: one that is dropped returns what it does not have.
        is_reserved.then(|| Reservation { capacity: &self.capacity, weight })
    }
}

/// Waits for capacity without blocking a thread. Resolves to false if the wait times out.
pub(crate) struct CapacityFuture<'a, K: Key, V: Send + Sync + 'static> {
    inner: &'a CacheInner<K, V>,
    weight: u64,
    ticket: Option<Arc<Ticket>>,
    /// How often it has waited for the listener.
    rounds: u32,
}

impl<'a, K: Key, V: Send + Sync + 'static> CapacityFuture<'a, K, V> {
    /// The outcome if it is known at once, as the error; else a ticket in the queue.
    pub(crate) fn new(inner: &'a CacheInner<K, V>, weight: u64) -> Result<Self, bool> {
        Self::queue(inner, weight, 0)
    }

    fn queue(inner: &'a CacheInner<K, V>, weight: u64, rounds: u32) -> Result<Self, bool> {
        let for_listener = match inner.attempts(weight, rounds > 0) {
            Verdict::Reserved => return Err(true),
            Verdict::AwaitListener if rounds < MAX_ROUNDS => true,
            Verdict::AwaitListener | Verdict::NoCapacity => {
                if inner.mode == Reclaim::Inline || inner.tunables.overflow_wait_ms() == 0 {
                    return Err(false);
                }
                false
            }
        };
        let ticket = inner.queue_for_capacity(weight, for_listener);
        Ok(Self { inner, weight, ticket: Some(ticket), rounds })
    }
}

impl<K: Key, V: Send + Sync + 'static> Future for CapacityFuture<'_, K, V> {
    type Output = bool;

    fn poll(mut self: StdPin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            let ticket = self.ticket.take().expect("polled after it was ready");
            match ticket.poll(context.waker()) {
                None => {
                    self.ticket = Some(ticket);
                    return Poll::Pending;
                }
                // The listener is idle, and has released too little. So there are blocks to evict,
                // or all are pinned.
                Some(false) if ticket.is_for_listener() && !self.inner.is_closed() => {
                    let rounds = self.rounds + 1;
                    match Self::queue(self.inner, self.weight, rounds) {
                        Ok(next) => *self = next,
                        Err(outcome) => return Poll::Ready(outcome),
                    }
                }
                Some(granted) => {
                    if !granted {
                        self.inner.counters.add(CacheCounters::THROTTLE_TIMEOUTS, 0, 1);
                    }
                    return Poll::Ready(granted);
                }
            }
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for CapacityFuture<'_, K, V> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.inner.capacity.leave(&ticket)
        {
            self.inner.capacity.release(self.weight);
        }
    }
}
