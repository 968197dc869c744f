//! Capacity: the weight that the cache may hold, and the queue of inserters that wait for some.
//!
//! Invariants
//!
//! * `reserved` is never raised above the limit, which is the target `c` plus the overflow.
//! * `reserved` is an upper bound of the resident weight. It exceeds it by the credits in the
//!   shards.
//! * While a ticket is in the queue, no other inserter gets capacity, except one that has queued
//!   before and was refused.
//!
//! Threads do not update `reserved` for each block. A shard takes a *batch* of credits and spends
//! them. A small cache has batches of zero bytes, so it counts exactly.
//!
//! Beyond the limit, inserters queue in FIFO order for a bounded time. The thread that releases
//! capacity grants it to the queue.
//!
//! Locking: `throttle`, and `throttle-ticket` under it.
//!
//! Not here: eviction, and the wait itself as inserters see it (`reserve`).

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
    /// The target `c`.
    target: AtomicU64,
    /// The target plus the overflow.
    limit: AtomicU64,
    batch: AtomicU64,
    /// Reservations beyond this wake the reclaimer: the target, or less if it must check the
    /// overhead earlier.
    wake_at: AtomicU64,
    reserved: CachePadded<AtomicU64>,
    shards: Box<[CachePadded<AtomicI64>]>,
    /// Tickets in the queue.
    waiting: AtomicU64,
    queue: Mutex<VecDeque<Arc<Ticket>>>,
    granted: Condvar,
}

/// One inserter's place in the queue.
pub(crate) struct Ticket {
    weight: u64,
    /// When it expires, by the cache's clock. `None`: when the user's listener is idle, which
    /// holds capacity until then.
    deadline_ns: Option<u64>,
    state: Mutex<TicketState>,
}

enum TicketState {
    Waiting(Option<Waker>),
    Granted,
    Refused,
}

/// The answer to a request for capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// Reserved.
    Yes,
    /// Reserved, and the reclaimer has work: the cache exceeds its target, or the overhead is due
    /// for a check.
    YesAndReclaim,
    /// No capacity now.
    No,
    /// Others queue, and come first.
    Behind,
}

impl Reserved {
    /// Whether the capacity is the caller's.
    pub(crate) fn is_reserved(self) -> bool {
        matches!(self, Self::Yes | Self::YesAndReclaim)
    }
}

/// Batches in a target, as a power of two. Small enough that the shards' credits do not matter.
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

    /// Wakes the reclaimer once `reserved` exceeds this value, if that is below the target.
    pub(crate) fn set_wake_at(&self, reserved: u64) {
        self.wake_at.store(reserved.min(self.target()), Ordering::Relaxed);
    }

    /// Whether `reserved` exceeds the value beyond which the reclaimer is woken, by more than
    /// `bytes`.
    pub(crate) fn is_beyond_wake_at(&self, bytes: u64) -> bool {
        self.reserved() > self.wake_at.load(Ordering::Relaxed).saturating_add(bytes)
    }

    pub(crate) fn target(&self) -> u64 {
        self.target.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Weight of resident blocks and reservations, as an upper bound, in bytes.
    pub(crate) fn reserved(&self) -> u64 {
        // Negative for a moment if another thread gathers a shard's credits while this one returns
        // some.
        (self.reserved.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn shard(&self) -> &AtomicI64 {
        &self.shards[thread_slot().index(self.shards.len())]
    }

    /// Reserves capacity without waiting, unless others queue.
    pub(crate) fn reserve(&self, weight: u64) -> Reserved {
        if self.has_waiters() { Reserved::Behind } else { self.reserve_ahead(weight) }
    }

    /// Reserves capacity without waiting, ahead of the queue: for an inserter whose own ticket was
    /// refused, so that it was there before the others.
    pub(crate) fn reserve_ahead(&self, weight: u64) -> Reserved {
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

    /// Returns the credits of all shards.
    pub(crate) fn gather(&self) {
        let idle: i64 = self.shards.iter().map(|s| s.swap(0, Ordering::Relaxed)).sum();
        // Negative if a shard is in the middle of an attempt.
        if idle >= 0 {
            self.reserved.fetch_sub(idle as u64, Ordering::Relaxed);
        } else {
            self.reserved.fetch_add(idle.unsigned_abs(), Ordering::Relaxed);
        }
    }

    /// Returns capacity, to the shard first.
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

    /// Returns capacity to all threads, and grants it to the queue.
    pub(crate) fn release_all(&self, weight: u64) {
        self.reserved.fetch_sub(weight, Ordering::Relaxed);
        if self.has_waiters() {
            self.grant();
        }
    }

    /// Serves the queue in order while capacity lasts.
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

    /// The weight that the first ticket in the queue waits for.
    pub(crate) fn first_in_queue(&self) -> Option<u64> {
        if !self.has_waiters() {
            return None;
        }
        self.queue.lock().front().map(|ticket| ticket.weight)
    }

    /// Joins the queue.
    pub(crate) fn queue_up(&self, weight: u64, deadline_ns: Option<u64>) -> Arc<Ticket> {
        let state = Mutex::named("throttle-ticket", TicketState::Waiting(None));
        let ticket = Arc::new(Ticket { weight, deadline_ns, state });
        let mut queue = self.queue.lock();
        queue.push_back(ticket.clone());
        self.waiting.fetch_add(1, Ordering::Relaxed);
        ticket
    }

    /// Blocks until the ticket is granted (true), or refused or timed out (false).
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
            // A spurious wake-up restarts the timeout. They are rare: one for each grant to others.
            timed_out = self.granted.wait_timeout(&mut queue, timeout);
        }
    }

    /// Blocks until the next grant or [`wake`](Self::wake), or until the time is over. Returns the
    /// ticket's outcome if it has one. Otherwise it keeps its place.
    pub(crate) fn wait_once(&self, ticket: &Ticket, timeout: Duration) -> Option<bool> {
        let mut queue = self.queue.lock();
        ticket.outcome().or_else(|| {
            self.granted.wait_timeout(&mut queue, timeout);
            ticket.outcome()
        })
    }

    /// Wakes all threads that wait in [`wait_once`](Self::wait_once).
    pub(crate) fn wake(&self) {
        if self.has_waiters() {
            drop(self.queue.lock());
            self.granted.notify_all();
        }
    }

    /// Leaves the queue. True if the ticket was granted meanwhile; the capacity is then the
    /// caller's.
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

    /// Refuses expired tickets, and if the user's listener is idle, those that wait for it.
    pub(crate) fn expire(&self, now_ns: u64, listener_is_idle: bool) {
        let mut wake = Vec::new();
        let mut queue = self.queue.lock();
        queue.retain(|ticket| {
            let keep = ticket.deadline_ns.map_or(!listener_is_idle, |at| at > now_ns);
            if !keep {
                wake.extend(ticket.settle(TicketState::Refused));
                self.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            keep
        });
        drop(queue);
        self.granted.notify_all();
        wake_all(wake);
    }
}

/// Wakes all, even if a waker panics.
fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        // The panic hook has reported it, and no caller here could handle it.
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

    /// Whether it waits for the user's listener.
    pub(crate) fn is_for_listener(&self) -> bool {
        self.deadline_ns.is_none()
    }

    /// The outcome; or `None`, and `waker` is woken when there is one.
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
