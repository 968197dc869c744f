//! Room: how much weight the cache holds, and waiting for some to come free.
//!
//! `reserved` is the one number that must not exceed the limit (target plus overflow). Threads
//! do not update it block by block: a shard leases a *lot* and gives it out, so that `reserved` is an upper
//! bound of what is resident, exact to the lots in the shards' hands. Small caches lease exactly.
//!
//! Past the limit, inserters queue: first come, first served, for a bounded time. While anyone queues,
//! newcomers queue behind. Room is granted by whoever frees some.
//!
//! Locking: `throttle`, a leaf lock.

pub(crate) mod overhead;
pub(crate) mod reserve;
mod target;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, thread_slot};

pub(crate) struct Capacity {
    /// `c`.
    target: AtomicU64,
    /// `c` and the overflow.
    limit: AtomicU64,
    batch: AtomicU64,
    /// Past this, the reclaimer is called: the target, or less if it has to look in between.
    wake_at: AtomicU64,
    reserved: CachePadded<AtomicU64>,
    shards: Box<[CachePadded<AtomicI64>]>,
    /// Tickets in the queue.
    waiting: AtomicU64,
    queue: Mutex<VecDeque<Arc<Ticket>>>,
    granted: Condvar,
}

/// A place in the queue.
pub(crate) struct Ticket {
    weight: u64,
    /// When it expires, on the cache's clock.
    deadline_ns: u64,
    state: Mutex<TicketState>,
}

enum TicketState {
    Waiting(Option<Waker>),
    Granted,
    Refused,
}

/// The answer to a request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// Yes.
    Yes,
    /// Yes, and the cache is now past its target, or should look: the reclaimer has work.
    YesAndReclaim,
    /// Not now.
    No,
}

/// Lots in a target: small enough that what the shards hold is of no account.
const BATCHES_SHIFT: u32 = if cfg!(forebay_model) { 4 } else { 12 };
const BATCH_MAX: u64 = 1 << 20;

impl Capacity {
    pub(crate) fn new(target: u64, limit: u64, shards: usize) -> Self {
        let capacity = Self {
            target: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            batch: AtomicU64::new(0),
            wake_at: AtomicU64::new(0),
            reserved: CachePadded::new(AtomicU64::new(0)),
            shards: (0..shards).map(|_| CachePadded::new(AtomicI64::new(0))).collect(),
            waiting: AtomicU64::new(0),
            queue: Mutex::named("throttle", VecDeque::new()),
            granted: Condvar::new(),
        };
        capacity.set(target, limit);
        capacity
    }

    pub(crate) fn set(&self, target: u64, limit: u64) {
        self.target.store(target, Ordering::Relaxed);
        self.limit.store(limit.max(target), Ordering::Relaxed);
        self.wake_at.store(target, Ordering::Relaxed);
        self.batch.store((target >> BATCHES_SHIFT).min(BATCH_MAX), Ordering::Relaxed);
    }

    /// Has the reclaimer called at `reserved`, if that is before the target. Until the next call.
    pub(crate) fn set_wake_at(&self, reserved: u64) {
        self.wake_at.store(reserved.min(self.target()), Ordering::Relaxed);
    }

    pub(crate) fn target(&self) -> u64 {
        self.target.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Weight resident or promised, as an upper bound.
    pub(crate) fn reserved(&self) -> u64 {
        // Below zero for a moment, if a shard's surplus is gathered while its thread gives it back.
        (self.reserved.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn shard(&self) -> &AtomicI64 {
        &self.shards[thread_slot().index(self.shards.len())]
    }

    /// Asks for room without waiting.
    pub(crate) fn reserve(&self, weight: u64) -> Reserved {
        if self.has_waiters() {
            return Reserved::No;
        }
        let batch = self.batch.load(Ordering::Relaxed);
        if weight <= batch {
            let shard = self.shard();
            if shard.fetch_sub(weight as i64, Ordering::Relaxed) >= weight as i64 {
                return Reserved::Yes;
            }
            let outcome = self.take_credits(batch);
            let back = if outcome == Reserved::No { weight } else { batch };
            shard.fetch_add(back as i64, Ordering::Relaxed);
            if outcome != Reserved::No {
                return outcome;
            }
        }
        match self.take_credits(weight) {
            Reserved::No => {
                self.gather();
                self.take_credits(weight)
            }
            yes => yes,
        }
    }

    fn take_credits(&self, weight: u64) -> Reserved {
        let limit = self.limit();
        let mut reserved = self.reserved.load(Ordering::Relaxed);
        loop {
            let Some(next) = reserved.checked_add(weight).filter(|n| *n <= limit) else {
                return Reserved::No;
            };
            match self.reserved.compare_exchange_weak(
                reserved,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) if next > self.wake_at.load(Ordering::Relaxed) => {
                    return Reserved::YesAndReclaim;
                }
                Ok(_) => return Reserved::Yes,
                Err(now) => reserved = now,
            }
        }
    }

    /// Takes back what the shards have leased and not given out.
    pub(crate) fn gather(&self) {
        let idle: i64 = self.shards.iter().map(|s| s.swap(0, Ordering::Relaxed)).sum();
        // A shard may have been in the middle of an attempt, and so below zero.
        if idle >= 0 {
            self.reserved.fetch_sub(idle as u64, Ordering::Relaxed);
        } else {
            self.reserved.fetch_add(idle.unsigned_abs(), Ordering::Relaxed);
        }
    }

    /// Gives room back, to the shard first.
    pub(crate) fn release(&self, weight: u64) {
        let batch = self.batch.load(Ordering::Relaxed) as i64;
        if weight as i64 <= batch && !self.has_waiters() {
            let shard = self.shard();
            let held = shard.fetch_add(weight as i64, Ordering::Relaxed) + weight as i64;
            if held <= 2 * batch {
                return;
            }
            shard.fetch_sub(held - batch, Ordering::Relaxed);
            self.release_all((held - batch) as u64);
        } else {
            self.release_all(weight);
        }
    }

    /// Gives room back to all, and to those who wait for it.
    pub(crate) fn release_all(&self, weight: u64) {
        self.reserved.fetch_sub(weight, Ordering::Relaxed);
        if self.has_waiters() {
            self.grant();
        }
    }

    /// Serves the queue, in order, as far as there is room.
    pub(crate) fn grant(&self) {
        self.gather();
        let mut wake = Vec::new();
        let mut queue = self.queue.lock();
        while let Some(ticket) = queue.front() {
            if self.take_credits(ticket.weight) == Reserved::No {
                break;
            }
            wake.extend(ticket.settle(TicketState::Granted));
            queue.pop_front();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        drop(queue);
        self.granted.notify_all();
        wake_all(wake);
    }

    /// The weight that the first in the queue waits for.
    pub(crate) fn first_in_queue(&self) -> Option<u64> {
        if !self.has_waiters() {
            return None;
        }
        self.queue.lock().front().map(|ticket| ticket.weight)
    }

    /// Joins the queue.
    pub(crate) fn queue_up(&self, weight: u64, deadline_ns: u64) -> Arc<Ticket> {
        let state = Mutex::named("throttle-ticket", TicketState::Waiting(None));
        let ticket = Arc::new(Ticket { weight, deadline_ns, state });
        let mut queue = self.queue.lock();
        queue.push_back(ticket.clone());
        self.waiting.fetch_add(1, Ordering::Relaxed);
        ticket
    }

    /// Blocks until the ticket is granted (true), refused, or `timeout` is over (false).
    pub(crate) fn wait(&self, ticket: &Arc<Ticket>, timeout: Duration) -> bool {
        let mut queue = self.queue.lock();
        let mut timed_out = timeout.is_zero();
        loop {
            if let Some(granted) = ticket.outcome() {
                return granted;
            }
            if timed_out {
                self.withdraw(&mut queue, ticket);
                return false;
            }
            // Spurious wake-ups start the time anew; they are as rare as grants to others.
            timed_out = self.granted.wait_timeout(&mut queue, timeout);
        }
    }

    /// Leaves the queue. True if room had been granted meanwhile, which is then the caller's.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket>) -> bool {
        let mut queue = self.queue.lock();
        match ticket.outcome() {
            Some(granted) => granted,
            None => {
                self.withdraw(&mut queue, ticket);
                false
            }
        }
    }

    fn withdraw(&self, queue: &mut VecDeque<Arc<Ticket>>, ticket: &Arc<Ticket>) {
        let before = queue.len();
        queue.retain(|t| !Arc::ptr_eq(t, ticket));
        self.waiting.fetch_sub((before - queue.len()) as u64, Ordering::Relaxed);
        ticket.settle(TicketState::Refused);
    }

    /// Refuses tickets whose time is over. Returns when the next one's is.
    pub(crate) fn expire(&self, now_ns: u64) -> Option<u64> {
        let mut wake = Vec::new();
        let mut queue = self.queue.lock();
        queue.retain(|ticket| {
            let keep = ticket.deadline_ns > now_ns;
            if !keep {
                wake.extend(ticket.settle(TicketState::Refused));
                self.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            keep
        });
        let next = queue.iter().map(|t| t.deadline_ns).min();
        drop(queue);
        self.granted.notify_all();
        wake_all(wake);
        next
    }
}

/// Wakes all, even if the waker of one panics.
fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        // The panic has been reported by its hook; there is nobody here to tell.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

impl Ticket {
    fn settle(&self, state: TicketState) -> Option<Waker> {
        match std::mem::replace(&mut *self.state.lock(), state) {
            TicketState::Waiting(waker) => waker,
            TicketState::Granted | TicketState::Refused => None,
        }
    }

    fn outcome(&self) -> Option<bool> {
        match *self.state.lock() {
            TicketState::Waiting(_) => None,
            TicketState::Granted => Some(true),
            TicketState::Refused => Some(false),
        }
    }

    /// The outcome, or the promise to wake.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<bool> {
        let mut state = self.state.lock();
        match &mut *state {
            TicketState::Waiting(slot) => {
                *slot = Some(waker.clone());
                None
            }
            TicketState::Granted => Some(true),
            TicketState::Refused => Some(false),
        }
    }
}
