//! Clocks: where time comes from, so that tests can decide what time it is.
//!
//! A library takes a [`Clock`] from its user. [`SystemClock`] is the one place that asks the
//! system for the time; [`ManualClock`] stands until somebody advances it.
//!
//! # Invariants
//!
//! A clock never goes back, for one thread or between threads.
//!
//! # What it does not do
//!
//! No calendar time, no timers, no sleeping.

use std::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering};

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment of the clock's own.
    fn now_ns(&self) -> u64;
}

/// The system's monotonic clock, counted from when this value was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that reads zero now.
    pub fn new() -> Self {
        Self { origin: instant() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        let elapsed = instant().saturating_duration_since(self.origin);
        // Saturates after 584 years.
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[allow(clippy::disallowed_methods, reason = "all other code asks a `Clock`, which asks here")]
fn instant() -> Instant {
    Instant::now()
}

/// A clock that stands until it is advanced. Threads may share it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that reads zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time on by `ns` nanoseconds.
    ///
    /// # Panics
    ///
    /// If the time would pass 2^64 nanoseconds.
    pub fn advance(&self, ns: u64) {
        let before = self.now_ns.fetch_add(ns, Ordering::AcqRel);
        assert!(before.checked_add(ns).is_some(), "a manual clock was advanced past its end");
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{Clock, ManualClock, SystemClock};

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = SystemClock::new();
        let mut before = clock.now_ns();
        for _ in 0..1000 {
            let now = clock.now_ns();
            assert!(now >= before);
            before = now;
        }
    }

    #[test]
    fn the_manual_clock_moves_as_told() {
        let clock = ManualClock::new();
        assert_eq!(clock.now_ns(), 0);
        clock.advance(5);
        clock.advance(7);
        assert_eq!(clock.now_ns(), 12);
    }

    #[test]
    #[should_panic(expected = "past its end")]
    fn the_manual_clock_has_an_end() {
        let clock = ManualClock::new();
        clock.advance(u64::MAX);
        clock.advance(1);
    }
}
