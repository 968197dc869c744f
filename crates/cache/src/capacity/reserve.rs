//! Reserves capacity for a block: at once, after eviction, or after a bounded wait in FIFO order.
//!
//! An inserter beyond the limit evicts first, then queues. While others queue, it queues behind
//! them.
//!
//! Locking: none held while it evicts or waits, except the queue's own (`throttle`).

use std::future::Future;
use std::pin::Pin as StdPin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_base::probe;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;

use super::{Reserved, Ticket};
use crate::counters::CacheCounters;
use crate::error::Refusal;
use crate::inner::{CacheInner, Reclaim};
use crate::key::Key;

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
            Reserved::No => false,
        }
    }

    /// Beyond the limit: evicts, and if that frees too little, waits behind all earlier waiters.
    #[cold]
    pub(crate) fn reserve_slow(&self, weight: u64) -> bool {
        if self.reserve_by_evicting(weight) {
            return true;
        }
        if self.mode != Reclaim::Thread {
            return false;
        }
        let start = self.clock.now_ns();
        probe!(overflow_wait, weight);
        let ticket = self.queue_for_capacity(weight);
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

    /// Evicts until the weight fits, as far as this thread can.
    #[cold]
    pub(crate) fn reserve_by_evicting(&self, weight: u64) -> bool {
        self.counters.add(CacheCounters::OVERFLOWS, 0, 1);
        loop {
            let evicted = self.reclaim_directly(weight);
            if self.capacity.reserve(weight) != Reserved::No {
                return true;
            }
            // Values queued for the eviction callback keep their capacity. Once that queue is full,
            // evicted values release theirs at once, so evicting again helps.
            if self.mode == Reclaim::Thread || !evicted || self.callbacks.is_none() {
                return false;
            }
        }
    }

    /// Queues for capacity and wakes the reclaimer.
    fn queue_for_capacity(&self, weight: u64) -> Arc<Ticket> {
        self.counters.add(CacheCounters::THROTTLE_WAITS, 0, 1);
        let wait_ns = u64::from(self.tunables.overflow_wait_ms()) * 1_000_000;
        let ticket = self.capacity.queue_up(weight, self.clock.now_ns() + wait_ns);
        // Capacity may have been released before the ticket was in the queue.
        self.capacity.grant();
        if self.closed.load(Ordering::SeqCst) {
            self.refuse_waiters();
        }
        self.wake_reclaimer();
        ticket
    }

    /// Adjusts a reservation to the block's true weight. Returns the reason if that fails.
    pub(crate) fn adjust(&self, reserved: u64, weight: u64) -> Option<Refusal> {
        if weight > self.capacity.target() || weight >= u64::from(u32::MAX) {
            return Some(Refusal::TooHeavy);
        }
        if weight > reserved {
            let more = weight - reserved;
            // Publishing must not block the thread. With `Inline`, threads evict anyway.
            let inline = self.mode == Reclaim::Inline;
            if !(self.try_reserve(more) || inline && self.reserve_slow(more)) {
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

/// Waits for capacity without blocking a thread. Resolves to false if the wait times out.
pub(crate) struct CapacityFuture<'a, K: Key, V: Send + Sync + 'static> {
    inner: &'a CacheInner<K, V>,
    weight: u64,
    ticket: Option<Arc<Ticket>>,
}

impl<'a, K: Key, V: Send + Sync + 'static> CapacityFuture<'a, K, V> {
    /// The outcome if it is known at once, as the error; else a ticket in the queue.
    pub(crate) fn new(inner: &'a CacheInner<K, V>, weight: u64) -> Result<Self, bool> {
        if inner.mode == Reclaim::Inline {
            return Err(inner.reserve_slow(weight));
        }
        inner.counters.add(CacheCounters::OVERFLOWS, 0, 1);
        inner.reclaim_directly(weight);
        if inner.capacity.reserve(weight) != Reserved::No {
            return Err(true);
        }
        let ticket = inner.queue_for_capacity(weight);
        Ok(Self { inner, weight, ticket: Some(ticket) })
    }
}

impl<K: Key, V: Send + Sync + 'static> Future for CapacityFuture<'_, K, V> {
    type Output = bool;

    fn poll(mut self: StdPin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let ticket = self.ticket.as_ref().expect("polled after it was ready");
        match ticket.poll(context.waker()) {
            None => Poll::Pending,
            Some(granted) => {
                self.ticket = None;
                if !granted {
                    self.inner.counters.add(CacheCounters::THROTTLE_TIMEOUTS, 0, 1);
                }
                Poll::Ready(granted)
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
