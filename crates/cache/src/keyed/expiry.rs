//! When entries of a keyed cache expire.
//!
//! The clock is a coarse one. It is read when a value is stored or found that can expire, and by
//! the reclaimer. Values that cannot expire cost one comparison with zero.
//!
//! `next` is the time at which the first value expires, as far as known: not later than that of any
//! value that is cached and was noted. The reclaimer does not walk before it (`evict::expire`).
//!
//! Locking: none.

use std::time::Duration;

use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU32, Ordering};

use crate::evict::expire::Expiry;
use crate::keyed::stored::Stored;
use crate::keyed::times::{Tick, Times, ticks};

/// The user's function of `expire_with`, or of `idle_with`.
pub(crate) type LifetimeOf<K, V> = Box<dyn Fn(&K, &V) -> Option<Duration> + Send + Sync>;

/// What the builder says of expiry.
pub(crate) struct Lifetimes<K, V> {
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) time_to_idle: Option<Duration>,
    pub(crate) expire_with: Option<LifetimeOf<K, V>>,
    pub(crate) idle_with: Option<LifetimeOf<K, V>>,
}

impl<K, V> Lifetimes<K, V> {
    pub(crate) fn are_all_endless(&self) -> bool {
        let Self { time_to_live, time_to_idle, expire_with, idle_with } = self;
        let is_given = [time_to_live, time_to_idle].map(Option::is_some);
        is_given == [false; 2] && expire_with.is_none() && idle_with.is_none()
    }
}

/// The rule by which the entries of one cache expire.
pub(crate) struct ExpiryRule<K, V> {
    clock: Arc<dyn Clock>,
    time_to_live: Option<u32>,
    time_to_idle: Option<u32>,
    expire_with: Option<LifetimeOf<K, V>>,
    idle_with: Option<LifetimeOf<K, V>>,
    /// When the first value expires; zero if none does.
    next: AtomicU32,
}

impl<K, V> ExpiryRule<K, V> {
    pub(crate) fn new(clock: Arc<dyn Clock>, lifetimes: Lifetimes<K, V>) -> Self {
        Self {
            clock,
            time_to_live: lifetimes.time_to_live.map(ticks),
            time_to_idle: lifetimes.time_to_idle.map(ticks),
            expire_with: lifetimes.expire_with,
            idle_with: lifetimes.idle_with,
            next: AtomicU32::new(0),
        }
    }

    fn now(&self) -> Tick {
        Tick::of(self.clock.now_ns())
    }

    /// The times of a new entry. Runs the user's `expire_with` and `idle_with`.
    pub(crate) fn times(&self, key: &K, value: &V) -> Times {
        let lifetime = shorter(self.time_to_live, self.expire_with.as_ref(), key, value);
        let idle = self.idle_time(key, value);
        if lifetime.is_none() && idle.is_none() {
            return Times::new(None, None);
        }
        let now = self.now();
        Times::new(lifetime.map(|ticks| now.after(ticks)), idle.map(|ticks| now.after(ticks)))
    }

    /// How long an entry may be idle, in ticks. Runs the user's `idle_with`.
    fn idle_time(&self, key: &K, value: &V) -> Option<u32> {
        shorter(self.time_to_idle, self.idle_with.as_ref(), key, value)
    }

    /// Notes when an entry that is cached now expires.
    pub(crate) fn note(&self, expires_at: Option<Tick>) {
        let Some(at) = expires_at else { return };
        let is_next = |bits| {
            Tick::from_bits(bits)
                .is_none_or(|next| at.is_before(next))
                .then(|| Tick::bits(Some(at)))
        };
        let mut bits = self.next.load(Ordering::Relaxed);
        while let Some(new) = is_next(bits) {
            let swapped =
                self.next.compare_exchange_weak(bits, new, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) => return,
                Err(now) => bits = now,
            }
        }
    }

    /// Whether the time of an entry is over.
    pub(crate) fn has_expired(&self, times: &Times) -> bool {
        times.expires_at().is_some_and(|at| !self.now().is_before(at))
    }

    /// Notes a use of an entry. False, without noting it, if the time of the entry is over. Runs
    /// the user's `idle_with`.
    pub(crate) fn use_now(&self, entry: &Stored<K, V>) -> bool {
        let (now, times) = (self.now(), &entry.times);
        if times.expires_at().is_some_and(|at| !now.is_before(at)) {
            return false;
        }
        if times.idle_end().is_some() {
            // Zero would say that no use is noted any more, so without a time it is the longest.
            let idle = self.idle_time(&entry.key, &entry.value).unwrap_or(Tick::FARTHEST);
            times.note_use(now.after(idle));
        }
        true
    }
}

/// The shorter of the cache's lifetime and of the entry's own, in ticks.
fn shorter<K, V>(all: Option<u32>, of: Option<&LifetimeOf<K, V>>, k: &K, v: &V) -> Option<u32> {
    match (all, of.and_then(|lifetime_of| lifetime_of(k, v)).map(ticks)) {
        (Some(all), Some(own)) => Some(all.min(own)),
        (all, own) => all.or(own),
    }
}

impl<K: Send + Sync, V: Send + Sync> Expiry<Stored<K, V>> for ExpiryRule<K, V> {
    fn begin_walk(&self) -> bool {
        let now = self.now();
        let next = Tick::from_bits(self.next.load(Ordering::Relaxed));
        let due = next.is_some_and(|next| !now.is_before(next));
        if due {
            self.next.swap(0, Ordering::AcqRel);
        }
        due
    }

    fn check_and_note(&self, entry: &Stored<K, V>) -> bool {
        let Some(at) = entry.times.expires_at() else { return false };
        let is_over = !self.now().is_before(at);
        if !is_over {
            self.note(Some(at));
        }
        is_over
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::time::Duration;

    use forebay_base::clock::ManualClock;
    use forebay_base::sync::Arc;

    use super::{ExpiryRule, Lifetimes};
    use crate::evict::expire::Expiry;
    use crate::keyed::stored::Stored;

    /// The reclaimer is behind, and an entry that lives as long as possible is noted meanwhile.
    #[test]
    fn a_far_deadline_does_not_hide_one_that_is_over() {
        let clock = Arc::new(ManualClock::new());
        let lifetime = |_: &u64, seconds: &u64| Some(Duration::from_secs(*seconds));
        let rule = ExpiryRule::<u64, u64>::new(
            clock.clone(),
            Lifetimes {
                time_to_live: None,
                time_to_idle: None,
                expire_with: Some(Box::new(lifetime)),
                idle_with: None,
            },
        );
        let is_due = |rule: &ExpiryRule<u64, u64>| Expiry::<Stored<u64, u64>>::begin_walk(rule);
        for overdue_s in [1, 3600, 30 * 86_400] {
            rule.note(rule.times(&1, &1).expires_at());
            clock.advance((1 + overdue_s) * 1_000_000_000);
            rule.note(rule.times(&2, &u64::MAX).expires_at());
            assert!(is_due(&rule), "overdue for {overdue_s} s");
        }
    }
}
