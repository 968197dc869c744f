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

use forebay_base::sync::atomic::Ordering;

use crate::counters::CacheCounters;
use crate::evict::PassOutcome;
use crate::inner::{CacheInner, Reclaim};
use crate::key::Key;

/// After a pass that fell short, others may first use up what holds it: the next one waits.
const PAUSE: Duration = Duration::from_millis(2);
/// An inserter past the limit evicts this part of the overflow, if its block needs no more.
const DIRECT_SHARE: u64 = 16;
/// What an inserter past the target evicts beside what it has leased, as a part of the overflow: what it frees
/// should still be in its processor's cache when it is used again.
const INSERTERS_SHARE: u64 = 64;
/// An inserter that evicts for itself looks after memory every so many times.
const MAINTAIN_EVERY: u64 = if cfg!(forebay_model) { 2 } else { 64 };
/// After so many offers in a row after which nothing could go, blocks go that were not offered.
const MAX_VAIN_OFFERS: u32 = 2;
/// How often the reclaimer looks after memory when nobody calls.
const TICK: Duration = Duration::from_secs(1);
/// How often it does while inserters wait for room.
const TICK_WITH_WAITERS: Duration = Duration::from_millis(10);

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// There is more than the target: evict, or have the reclaimer do it.
    pub(crate) fn request_reclaim(&self) {
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
        let over = self.reserved_resident().saturating_sub(self.capacity.target());
        if over == 0 || self.active_secondary().is_some() {
            return self.wake_reclaimer();
        }
        let passed = self.evict(over.min(share) + share.max(1), false);
        if !passed.enough || passed.maintenance_due {
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

    /// Evicts on the calling thread: until `extra` more bytes would fit the target if the inserter is
    /// the evictor, else a share that is worth the trouble. True if something went, and all that should.
    pub(crate) fn reclaim_directly(&self, extra: u64) -> bool {
        let inline = self.mode == Reclaim::Inline;
        if inline {
            self.capacity.gather();
        }
        let mut over = (self.reserved_resident() + extra).saturating_sub(self.capacity.target());
        if extra > 0 {
            // What waits for the user's callback may wait for long: others must go instead.
            over =
                over.max((self.capacity.reserved() + extra).saturating_sub(self.capacity.limit()));
        }
        let goal = if inline { over } else { over.min(extra.max(self.overflow() / DIRECT_SHARE)) };
        let mut enough = false;
        if goal > 0 {
            enough = self.offer_and_evict(goal).enough;
        }
        if inline {
            let mut passes = self.reclaim.lock();
            *passes += 1;
            if passes.is_multiple_of(MAINTAIN_EVERY) || goal == 0 {
                self.refresh_bound();
                self.maintain();
            }
        }
        enough
    }

    /// Weight that is leased, but for values that wait for the user's callback and go by themselves.
    fn reserved_resident(&self) -> u64 {
        let leaving = self.callbacks.as_ref().map_or(0, |c| c.bytes());
        self.capacity.reserved().saturating_sub(leaving)
    }

    /// Weight that a thread evicts before memory is looked after.
    pub(crate) fn maintenance_interval_bytes(&self) -> u64 {
        // Overhead within a bound must not grow far unseen; otherwise waking the reclaimer is the dearer part.
        if self.bound.is_some() { self.overflow() / 2 } else { self.capacity.target() / 16 }
    }

    /// One pass of the reclaimer: down to a little below the target, and enough for those who wait.
    pub(crate) fn reclaim_pass(&self) -> PassOutcome {
        let reclaim = self.reclaim.lock();
        self.refresh_bound();
        let target = self.capacity.target();
        // A quarter of the overflow: inserters get the rest before they call again.
        let slack = self.overflow() / 4;
        let reserved_resident = self.reserved_resident();
        let mut goal = if reserved_resident > target {
            reserved_resident - target.saturating_sub(slack)
        } else {
            0
        };
        if let Some(weight) = self.capacity.first_in_queue() {
            // Not what stays only: the callback that it waits for may wait for room itself.
            let wanted = (self.capacity.reserved() + weight).saturating_sub(self.capacity.limit());
            goal = goal.max(wanted + slack.min(target / 2));
        }
        let mut passed = PassOutcome { enough: true, ..PassOutcome::default() };
        if goal > 0 {
            passed = self.offer_and_evict(goal);
        }
        self.maintain();
        // This thread inserts nothing.
        self.slab.empty_magazine();
        self.slab.collapse();
        drop(reclaim);
        if self.capacity.has_waiters() {
            self.capacity.grant();
        }
        passed
    }

    /// Evicts `goal` bytes, of blocks that the second level has been offered before, if there is one. But if those that it was offered
    /// cannot go, since it is writing them, others go without: else the level's queue could fill all memory.
    fn offer_and_evict(&self, goal: u64) -> PassOutcome {
        let (mut freed, mut in_vain, mut maintenance_due) = (0, 0, false);
        loop {
            self.offer_to_secondary(goal - freed);
            let passed = self.evict(goal - freed, in_vain < MAX_VAIN_OFFERS);
            freed += passed.freed.min(goal - freed);
            maintenance_due |= passed.maintenance_due;
            in_vain = if passed.freed > 0 { 0 } else { in_vain + 1 };
            if freed >= goal || !passed.unoffered {
                return PassOutcome { enough: freed >= goal, freed, maintenance_due, ..passed };
            }
        }
    }

    /// Work that keeps memory in proportion; all of it is amortised over what made it necessary.
    fn maintain(&self) {
        self.learn(&self.sizes());
        self.mature();
        self.compact_rings();
        self.index.balance();
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
                    let tick = if self.capacity.has_waiters() { TICK_WITH_WAITERS } else { TICK };
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
            if self.capacity.has_waiters() {
                self.capacity.expire(self.clock.now_ns());
            }
        }
        self.refuse_waiters();
    }

    /// Lets nobody wait for room that no reclaimer will bring.
    pub(crate) fn refuse_waiters(&self) {
        self.capacity.grant();
        self.capacity.expire(u64::MAX);
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
            self.capacity.release(weight);
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
