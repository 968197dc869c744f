//! Reclaim: which thread evicts, when and how much; and the reclaimer thread.
//!
//! * An inserter whose batch of credits exceeds the target evicts the excess and a share more, on
//!   its own thread. It soon reuses the memory, which so stays with its processor.
//! * The reclaimer maintains memory after every so many evictions, offers blocks to the secondary
//!   cache, and evicts when inserters free too little.
//! * Beyond the overflow limit an inserter evicts again, then waits (`capacity::reserve`).
//! * With [`Reclaim::Inline`] there is no reclaimer, and inserters do its
//!   work.
//!
//! Invariant: eviction never waits for a lock that user code can hold. It sees users' blocks
//! through their state words only. It runs the drop of `V`, and `offer`, `evicted` and
//! `would_write` of the secondary cache, which must not block.
//!
//! Locking: `reclaim` for a pass of the reclaimer; `reclaim-signal` to sleep.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay_base::sync::atomic::Ordering;

use crate::counters::CacheCounters;
use crate::evict::PassOutcome;
use crate::evict::expire::ExpiryWalk;
use crate::inner::{CacheInner, Reclaim};
use crate::key::Key;

/// Pause after a pass that fell short, so that users can first release what they hold.
const PAUSE: Duration = Duration::from_millis(2);
/// An inserter beyond the limit evicts at least one part in this many of the overflow.
const DIRECT_SHARE: u64 = 16;
/// An inserter beyond the target evicts its excess plus one part in this many of the overflow. A
/// small share, so that the freed memory is still in its processor's cache when it is reused.
const INSERTERS_SHARE: u64 = 64;
/// With `Inline`, memory is maintained after this many evictions.
const MAINTAIN_EVERY: u64 = if cfg!(forebay_model) { 2 } else { 64 };
/// After this many offers in a row without an eviction, blocks are evicted unoffered.
const MAX_VAIN_OFFERS: u32 = 2;
/// Interval of maintenance when no thread calls for it.
const TICK: Duration = Duration::from_secs(1);
/// The interval while inserters wait for capacity.
const TICK_WITH_WAITERS: Duration = Duration::from_millis(10);

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Evicts, or wakes the reclaimer, because the cache exceeds its target.
    pub(crate) fn request_reclaim(&self) {
        match self.mode {
            Reclaim::Inline => {
                self.reclaim_directly(0);
            }
            Reclaim::Thread => self.evict_share(),
        }
    }

    /// Evicts the excess and a share more, so that most inserts evict nothing. Wakes the reclaimer
    /// if maintenance is due, if blocks must be offered to the secondary cache, or if too little
    /// could be evicted.
    fn evict_share(&self) {
        self.refresh_late_bound(false);
        let share = self.overflow() / INSERTERS_SHARE;
        let over = self.reserved_resident().saturating_sub(self.capacity.target());
        if over == 0 || self.active_secondary().is_some() {
            return self.wake_reclaimer();
        }
        let passed = self.evict(over.min(share) + share.max(1), false);
        // Evicted blocks leave ghosts, which are overhead.
        self.refresh_late_bound(passed.maintenance_due);
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

    /// Evicts on the calling thread: with `Inline` until `extra` more bytes fit the target, else at
    /// least a share. True if it reached its goal.
    pub(crate) fn reclaim_directly(&self, extra: u64) -> bool {
        let inline = self.mode == Reclaim::Inline;
        if inline {
            self.capacity.gather();
        }
        let mut over = (self.reserved_resident() + extra).saturating_sub(self.capacity.target());
        if extra > 0 && !self.is_lossless() {
            // Values may wait long for the user's listener. Evict others instead.
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

    /// Whether values hold their capacity until the user's listener has been told of them.
    pub(crate) fn is_lossless(&self) -> bool {
        self.callbacks.as_ref().is_some_and(|c| c.is_lossless())
    }

    /// Reserved weight, without values that wait for the user's listener: those will leave by
    /// themselves.
    fn reserved_resident(&self) -> u64 {
        let leaving = self.callbacks.as_ref().map_or(0, |c| c.bytes());
        self.capacity.reserved().saturating_sub(leaving)
    }

    /// Weight that a thread evicts between two calls for maintenance.
    pub(crate) fn maintenance_interval_bytes(&self) -> u64 {
        // With a hard bound, overhead must not grow far unseen. Otherwise waking the reclaimer
        // costs more.
        if self.bound.is_some() { self.overflow() / 2 } else { self.capacity.target() / 16 }
    }

    /// One pass of the reclaimer: evicts to a little below the target, and enough for waiting
    /// inserters. Maintains memory.
    pub(crate) fn reclaim_pass(&self) -> PassOutcome {
        let reclaim = self.reclaim.lock();
        self.refresh_bound();
        let target = self.capacity.target();
        // A quarter of the overflow. Inserters use the rest before they call again.
        let slack = self.overflow() / 4;
        let reserved_resident = self.reserved_resident();
        let mut goal = if reserved_resident > target {
            reserved_resident - target.saturating_sub(slack)
        } else {
            0
        };
        if let Some(weight) = self.capacity.first_in_queue() {
            // Of all reserved weight: the listener that holds the rest may itself wait for
            // capacity. If no event may be lost, it does not, and others wait for it.
            let held =
                if self.is_lossless() { reserved_resident } else { self.capacity.reserved() };
            let wanted = (held + weight).saturating_sub(self.capacity.limit());
            // None if enough waits for the listener. The passes while it is slow evict no more.
            if wanted > 0 {
                goal = goal.max(wanted + slack.min(target / 2));
            }
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

    /// Evicts `goal` bytes of blocks that were offered to the secondary cache before, if there is
    /// one. If offered blocks cannot be evicted because they are being written, evicts others
    /// unoffered. Otherwise the write queue could fill all memory.
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

    /// Keeps the memory of index and lists in proportion. The cost is amortised over the changes
    /// that made it necessary.
    fn maintain(&self) {
        self.learn(&self.sizes());
        self.mature();
        self.compact_rings();
        self.index.balance();
        #[cfg(feature = "insight")]
        {
            let now_ns = self.clock.now_ns();
            self.simulations.advance(now_ns, || self.curve_totals(), || self.capacities());
            self.advance_recorder(now_ns);
        }
    }

    /// The body of the reclaimer thread.
    pub(crate) fn run_reclaimer(&self) {
        let mut pause = false;
        let mut walk = ExpiryWalk::default();
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
            let passed = catch_unwind(AssertUnwindSafe(|| {
                let passed = self.reclaim_pass();
                self.expire_some(&mut walk);
                passed
            }));
            if passed.is_err() {
                self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
            }
            pause = !passed.is_ok_and(|passed| passed.enough);
            if self.capacity.has_waiters() {
                self.capacity.expire(self.clock.now_ns(), !self.awaits_listener());
            }
        }
        self.refuse_waiters();
    }

    /// Refuses waiting inserters when no reclaimer will free capacity for them.
    pub(crate) fn refuse_waiters(&self) {
        self.capacity.grant();
        self.capacity.expire(u64::MAX, true);
    }

    /// The body of the listener's thread.
    pub(crate) fn run_callbacks(&self) {
        let Some(callbacks) = &self.callbacks else { return };
        callbacks.begin_thread();
        while let Some(event) = callbacks.next() {
            callbacks.hand_over(event.weight);
            if catch_unwind(AssertUnwindSafe(|| (callbacks.run)(event))).is_err() {
                self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
            }
            self.counters.add(CacheCounters::CALLBACKS_RUN, 0, 1);
            self.capacity.release(callbacks.take_back());
            let idle = callbacks.finish();
            self.capacity.wake();
            if idle && self.mode == Reclaim::Inline && self.capacity.has_waiters() {
                // There is no reclaimer that tells those that wait for the listener to try again.
                self.capacity.expire(0, true);
            }
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

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::sync::{Arc, Condvar, Mutex};

    use crate::{Cache, Delivery, Reclaim};

    /// What waits for the listener suffices for the ticket. The rest of the cache stays.
    #[test]
    fn passes_while_the_listener_is_slow_do_not_empty_the_cache() {
        let gate = Arc::new((Mutex::named("test", false), Condvar::new()));
        let held = gate.clone();
        let cache = Cache::<u64, u64>::builder()
            .capacity(6400)
            .weigher(|_, _| 1)
            .reclaim(Reclaim::Inline)
            .on_evicted(Delivery::Lossless, move |_| {
                let mut open = held.0.lock();
                while !*open {
                    held.1.wait(&mut open);
                }
            })
            .build()
            .expect("a cache");
        (0..6400).for_each(|key| cache.insert(key, key).expect("it fits"));
        let inner = cache.inner();
        assert!(inner.try_reserve(100));
        let ticket = inner.capacity.queue_up(50, None);
        (0..200).for_each(|_| {
            inner.reclaim_pass();
        });
        let left = cache.len();
        inner.capacity.leave(&ticket);
        inner.capacity.release(100);
        // Before the cache, which runs what is queued when it is dropped.
        *gate.0.lock() = true;
        gate.1.notify_all();
        assert!(left > 6000, "{left} blocks are left");
    }
}
