//! Reclaim: who evicts, when and how much, and the thread that does it.
//!
//! An inserter that leases room past the target evicts that much and a share, on its own thread: what it frees it
//! uses next, and neither travels to another processor. The reclaimer, a thread, looks after memory every so many
//! evictions, serves the second level, and is called when an inserter finds too little that can go. Past the
//! overflow limit an inserter evicts again, and if that does not help it waits, first come, first served (with
//! [`Reclaim::Inline`](crate::Reclaim::Inline) there is no reclaimer, and inserters do its work). Evicting never waits for a
//! lock that a user can hold: it meets users' blocks through their state words only, and runs no user code but
//! `V`'s drop (which must not block) and the second level's `offer`, `evicted` and `would_write` (which must not either).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;

use crate::counters::CacheCounters;
use crate::evict::Passed;
use crate::inner::{Inner, Reclaim};
use crate::key::Key;
use crate::overhead;
use crate::room::{Reserved, Ticket};

/// After a pass that fell short, others may first use up what holds it: the next one waits.
const PAUSE: Duration = Duration::from_millis(2);
/// An inserter past the limit evicts this part of the overflow, if its block needs no more.
const DIRECT_SHARE: u64 = 16;
/// What an inserter past the target evicts beside what it has leased, as a part of the overflow: what it frees
/// should still be in its processor's cache when it is used again.
const INSERTERS_SHARE: u64 = 64;
/// An inserter that evicts for itself looks after memory every so many times.
const TIDY_EVERY: u64 = if cfg!(forebay_model) { 2 } else { 64 };
/// While a cache with a hard bound fills up, its overhead is looked at this many times.
const LOOKS_A_BOUND: u64 = 64;
/// After so many offers in a row after which nothing could go, blocks go that were not offered.
const OFFERS_IN_VAIN: u32 = 2;
/// How often the reclaimer looks after memory when nobody calls.
const TICK: Duration = Duration::from_secs(1);
/// How often it does while inserters wait for room.
const TICK_AWAITED: Duration = Duration::from_millis(10);

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// Room for a block; waits for it, within bounds, if there is none.
    pub(crate) fn reserve(&self, weight: u64) -> bool {
        match self.try_reserve(weight) {
            true => true,
            false => self.reserve_slow(weight),
        }
    }

    /// Room for a block, without waiting.
    pub(crate) fn try_reserve(&self, weight: u64) -> bool {
        match self.room.reserve(weight) {
            Reserved::Yes => true,
            Reserved::YesAndReclaim => {
                self.want_reclaim();
                true
            }
            Reserved::No => false,
        }
    }

    /// There is more than the target: evict, or have the reclaimer do it.
    pub(crate) fn want_reclaim(&self) {
        match self.mode {
            Reclaim::Inline => {
                self.reclaim_directly(0);
            }
            Reclaim::Thread => self.evict_share(),
        }
    }

    /// Past the target: the inserter that has leased too much evicts as much and a share, so that most
    /// inserts evict nothing. The reclaimer is called for what an inserter does not do: to look after memory, to
    /// offer blocks to a second level, and when too little could go.
    fn evict_share(&self) {
        let share = self.overflow() / INSERTERS_SHARE;
        let over = self.staying().saturating_sub(self.room.target());
        if over == 0 || self.active_second().is_some() {
            return self.wake_reclaimer();
        }
        let passed = self.evict(over.min(share) + share.max(1), false);
        if !passed.enough || passed.upkeep_due {
            self.wake_reclaimer();
        }
    }

    pub(crate) fn wake_reclaimer(&self) {
        let wanted = &self.signal.wanted;
        if !wanted.load(Ordering::Relaxed) && !wanted.swap(true, Ordering::AcqRel) {
            drop(self.signal.state.lock());
            self.signal.changed.notify_one();
        }
    }

    /// Past the limit: evicts, and waits if that does not help, behind all who wait already.
    #[cold]
    pub(crate) fn reserve_slow(&self, weight: u64) -> bool {
        self.counters.add(CacheCounters::OVERFLOWS, 0, 1);
        loop {
            let went = self.reclaim_directly(weight);
            if self.room.reserve(weight) != Reserved::No {
                return true;
            }
            if self.mode == Reclaim::Thread {
                break;
            }
            // What waits for the user's callback has kept its room; once that queue is full, what
            // follows gives its room back at once.
            if !went || self.callbacks.is_none() {
                return false;
            }
        }
        let start = self.clock.now_ns();
        let ticket = self.queue_for_room(weight);
        let wait = Duration::from_millis(u64::from(self.tunables.overflow_wait_ms()));
        let granted = self.room.wait(&ticket, wait);
        self.throttle_wait_ns.record(self.clock.now_ns().saturating_sub(start));
        if !granted {
            self.counters.add(CacheCounters::THROTTLE_TIMEOUTS, 0, 1);
        }
        granted
    }

    /// A place in the queue for room, with the reclaimer on its way.
    pub(crate) fn queue_for_room(&self, weight: u64) -> Arc<Ticket> {
        self.counters.add(CacheCounters::THROTTLE_WAITS, 0, 1);
        let wait_ns = u64::from(self.tunables.overflow_wait_ms()) * 1_000_000;
        let ticket = self.room.queue_up(weight, self.clock.now_ns() + wait_ns);
        // Room may have come free before the ticket was in the queue.
        self.room.grant();
        if self.closed.load(Ordering::SeqCst) {
            self.refuse_waiters();
        }
        self.wake_reclaimer();
        ticket
    }

    /// Evicts on the calling thread: until `extra` more bytes would fit the target if the inserter is
    /// the evictor, else a share that is worth the trouble. True if something went, and all that should.
    pub(crate) fn reclaim_directly(&self, extra: u64) -> bool {
        let inline = self.mode == Reclaim::Inline;
        if inline {
            self.room.gather();
        }
        let mut over = (self.staying() + extra).saturating_sub(self.room.target());
        if extra > 0 {
            // What waits for the user's callback may wait for long: others must go instead.
            over = over.max((self.room.leased() + extra).saturating_sub(self.room.limit()));
        }
        let goal = if inline { over } else { over.min(extra.max(self.overflow() / DIRECT_SHARE)) };
        let mut enough = false;
        if goal > 0 {
            enough = self.offer_and_evict(goal).enough;
        }
        if inline {
            let mut passes = self.reclaim.lock();
            *passes += 1;
            if passes.is_multiple_of(TIDY_EVERY) || goal == 0 {
                self.refresh_bound();
                self.tidy_up();
            }
        }
        enough
    }

    /// Weight that is leased, but for values that wait for the user's callback and go by themselves.
    fn staying(&self) -> u64 {
        let leaving = self.callbacks.as_ref().map_or(0, |c| c.bytes());
        self.room.leased().saturating_sub(leaving)
    }

    /// Weight that a thread evicts before memory is looked after.
    pub(crate) fn upkeep_every(&self) -> u64 {
        // Overhead within a bound must not grow far unseen; otherwise waking the reclaimer is the dearer part.
        if self.bound.is_some() { self.overflow() / 2 } else { self.room.target() / 16 }
    }

    /// How far past the target the cache may go.
    fn overflow(&self) -> u64 {
        // One of them may have been set already, and the other not yet.
        self.room.limit().saturating_sub(self.room.target())
    }

    /// One pass of the reclaimer: down to a little below the target, and enough for those who wait.
    pub(crate) fn reclaim_pass(&self) -> Passed {
        let reclaim = self.reclaim.lock();
        self.refresh_bound();
        let target = self.room.target();
        // A quarter of the overflow: inserters get the rest before they call again.
        let slack = self.overflow() / 4;
        let staying = self.staying();
        let mut goal = if staying > target { staying - target.saturating_sub(slack) } else { 0 };
        if let Some(weight) = self.room.first_in_queue() {
            // Not what stays only: the callback that it waits for may wait for room itself.
            let wanted = (self.room.leased() + weight).saturating_sub(self.room.limit());
            goal = goal.max(wanted + slack.min(target / 2));
        }
        let mut passed = Passed { enough: true, ..Passed::default() };
        if goal > 0 {
            passed = self.offer_and_evict(goal);
        }
        self.tidy_up();
        // This thread inserts nothing.
        self.slab.empty_magazine();
        self.slab.collapse();
        drop(reclaim);
        if self.room.is_awaited() {
            self.room.grant();
        }
        passed
    }

    /// Evicts `goal` bytes, of blocks that the second level has been offered before, if there is one. But if those that it was offered
    /// cannot go, since it is writing them, others go without: else the level's queue could fill all memory.
    fn offer_and_evict(&self, goal: u64) -> Passed {
        let (mut freed, mut in_vain, mut upkeep_due) = (0, 0, false);
        loop {
            self.offer_to_second(goal - freed);
            let passed = self.evict(goal - freed, in_vain < OFFERS_IN_VAIN);
            freed += passed.freed.min(goal - freed);
            upkeep_due |= passed.upkeep_due;
            in_vain = if passed.freed > 0 { 0 } else { in_vain + 1 };
            if freed >= goal || !passed.unoffered {
                return Passed { enough: freed >= goal, freed, upkeep_due, ..passed };
            }
        }
    }

    /// Whether blocks are offered to a second level before they are evicted.
    pub(crate) fn offers(&self) -> bool {
        self.tunables.offer_ahead() > 0 && self.active_second().is_some()
    }

    /// Offers what the eviction of `goal` bytes will come to, and a little more.
    fn offer_to_second(&self, goal: u64) {
        let Some(second) = self.active_second() else { return };
        let candidates = self.candidates(goal);
        if candidates.is_empty() {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| second.offer(candidates))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Tells the second level that these blocks have left memory.
    pub(crate) fn tell_second(&self, gone: &[K]) {
        let Some(second) = self.active_second().filter(|_| !gone.is_empty()) else { return };
        if catch_unwind(AssertUnwindSafe(|| second.evicted(gone))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Work that keeps memory in proportion; all of it is amortised over what made it necessary.
    fn tidy_up(&self) {
        self.learn(&self.sizes());
        self.mature();
        self.compact_rings();
        self.index.balance();
    }

    /// With a hard bound, the target is what overhead leaves of it.
    pub(crate) fn refresh_bound(&self) {
        let Some(bound) = &self.bound else { return self.set_target(self.room.target()) };
        let bytes = bound.bytes.load(Ordering::Relaxed);
        let used = overhead::bytes(self);
        self.set_target_within(bytes.saturating_sub(used));
        // Overhead grows with what is cached: it must not grow far unseen.
        self.room.call_at(self.room.leased().saturating_add(bytes / LOOKS_A_BOUND));
    }

    /// Sets the target so that target and overflow together come to `bytes`.
    fn set_target_within(&self, bytes: u64) {
        let shift = self.tunables.overflow_shift();
        // target + (target >> shift) <= bytes
        let target = match shift {
            0 => bytes / 2,
            _ => bytes - bytes / ((1u64 << shift) + 1) - 1.min(bytes),
        };
        self.set_target(target);
    }

    /// Sets the target and, by the tunable, the limit.
    pub(crate) fn set_target(&self, target: u64) {
        let limit = target.saturating_add(target >> self.tunables.overflow_shift());
        if target != self.room.target() || limit != self.room.limit() {
            self.policy.set_capacity(target);
            self.room.set(target, limit);
        }
    }

    /// The body of the reclaimer's thread.
    pub(crate) fn run_reclaimer(&self) {
        let mut pause = false;
        loop {
            {
                let mut state = self.signal.state.lock();
                if pause && !state.stop {
                    self.signal.changed.wait_timeout(&mut state, PAUSE);
                }
                while !state.stop && !self.signal.wanted.load(Ordering::Acquire) {
                    let tick = if self.room.is_awaited() { TICK_AWAITED } else { TICK };
                    if self.signal.changed.wait_timeout(&mut state, tick) {
                        break;
                    }
                }
                if state.stop {
                    break;
                }
            }
            self.signal.wanted.store(false, Ordering::Release);
            let passed = catch_unwind(AssertUnwindSafe(|| self.reclaim_pass()));
            if passed.is_err() {
                self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
            }
            pause = !passed.is_ok_and(|passed| passed.enough);
            if self.room.is_awaited() {
                self.room.expire(self.clock.now_ns());
            }
        }
        self.refuse_waiters();
    }

    /// Lets nobody wait for room that no reclaimer will bring.
    fn refuse_waiters(&self) {
        self.room.grant();
        self.room.expire(u64::MAX);
    }

    /// The body of the callbacks' thread.
    pub(crate) fn run_callbacks(&self) {
        let Some(callbacks) = &self.callbacks else { return };
        while let Some(event) = callbacks.next() {
            let weight = event.weight;
            if catch_unwind(AssertUnwindSafe(|| (callbacks.run)(event))).is_err() {
                self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
            }
            self.counters.add(CacheCounters::CALLBACKS_RUN, 0, 1);
            self.room.release(weight);
        }
    }

    /// Tells the threads to end.
    pub(crate) fn stop_threads(&self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_all();
        if let Some(callbacks) = &self.callbacks {
            callbacks.close();
        }
    }
}
