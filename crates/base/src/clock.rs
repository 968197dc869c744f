//! Clocks: where time comes from, so that tests can decide what time it is.
//!
//! A library takes a [`Clock`] from its user. [`SystemClock`] is the one place that asks the
//! system for the time; [`ManualClock`] stands until somebody advances it.
//!
//! What is written down for people, such as the times of files, comes from a [`WallClock`]:
//! [`SystemWallClock`] or, for tests, [`ManualWallClock`].
//!
//! # Invariants
//!
//! A [`Clock`] never goes back, for one thread or between threads. A [`WallClock`] can: somebody may set it.
//!
//! # What it does not do
//!
//! No dates, no timers, no sleeping.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

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

/// A moment, counted from the beginning of 1970 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime {
    /// Whole seconds since then, rounded down: negative before it.
    pub seconds: i64,
    /// Nanoseconds since the second, below 1,000,000,000.
    pub nanos: u32,
}

/// A clock that tells the time of day.
pub trait WallClock: Send + Sync {
    /// The time.
    fn unix_time(&self) -> UnixTime;
}

/// The system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    fn unix_time(&self) -> UnixTime {
        #[allow(clippy::disallowed_methods, reason = "all other code asks a `WallClock`")]
        let now = SystemTime::now();
        match now.duration_since(UNIX_EPOCH) {
            Ok(since) => {
                let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
                UnixTime { seconds, nanos: since.subsec_nanos() }
            }
            // Set to before 1970, which no file needs to tell apart.
            Err(_) => UnixTime::default(),
        }
    }
}

/// A wall clock that moves on by a fixed step whenever it is asked. Threads may share it.
#[derive(Debug)]
pub struct ManualWallClock {
    now_ns: AtomicU64,
    step_ns: u64,
}

impl ManualWallClock {
    /// A clock that begins at 1970, and moves on by `step_ns` nanoseconds with each look at it.
    pub fn new(step_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(0), step_ns }
    }

    /// Moves the time on by `ns` nanoseconds.
    pub fn advance(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::AcqRel);
    }
}

impl WallClock for ManualWallClock {
    fn unix_time(&self) -> UnixTime {
        const SECOND: u64 = 1_000_000_000;
        let now = self.now_ns.fetch_add(self.step_ns, Ordering::AcqRel);
        UnixTime { seconds: (now / SECOND) as i64, nanos: (now % SECOND) as u32 }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{Clock, ManualClock, ManualWallClock, SystemClock, UnixTime, WallClock};

    #[test]
    fn the_manual_wall_clock_moves_by_its_step_and_as_told() {
        let clock = ManualWallClock::new(7);
        assert_eq!(clock.unix_time(), UnixTime { seconds: 0, nanos: 0 });
        clock.advance(2_000_000_000);
        assert_eq!(clock.unix_time(), UnixTime { seconds: 2, nanos: 7 });
    }

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
