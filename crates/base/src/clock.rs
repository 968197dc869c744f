//! Injected clocks, so that tests control time.
//!
//! A library takes a [`Clock`] from its user: [`SystemClock`], [`CoarseClock`] where it is read on
//! a hot path, [`BootClock`] for leases, or, for tests, [`ManualClock`]. Times that users see, such
//! as the times of files, come from a [`WallClock`]: [`SystemWallClock`] or, for tests,
//! [`ManualWallClock`].
//!
//! Invariants: a [`Clock`] is monotonic, within a thread and between threads. A [`WallClock`] can
//! go back, because a user may set it.
//!
//! It has no dates, no timers and no sleep.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::sync::atomic::{AtomicU64, Ordering};

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the start of the clock.
    fn now_ns(&self) -> u64;
}

/// The monotonic clock of the system, which starts when this value is created.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock that starts now.
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

#[allow(
    clippy::disallowed_methods,
    reason = "all other code uses a `Clock`, which calls this function"
)]
fn instant() -> Instant {
    Instant::now()
}

/// As [`SystemClock`], but it goes on while the machine is suspended. For times that other machines
/// rely on.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    origin_ns: u64,
}

impl BootClock {
    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self { origin_ns: ns_of(rustix::time::ClockId::Boottime) }
    }
}

impl Default for BootClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for BootClock {
    fn now_ns(&self) -> u64 {
        ns_of(rustix::time::ClockId::Boottime).saturating_sub(self.origin_ns)
    }
}

/// The system's monotonic clock as of its last tick, which is at most 10 ms ago. It is read in a
/// few nanoseconds, without reading the hardware. It starts when this value is created.
#[derive(Clone, Copy, Debug)]
pub struct CoarseClock {
    origin_ns: u64,
}

impl CoarseClock {
    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self { origin_ns: coarse_ns() }
    }
}

impl Default for CoarseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for CoarseClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        coarse_ns().saturating_sub(self.origin_ns)
    }
}

fn coarse_ns() -> u64 {
    ns_of(rustix::time::ClockId::MonotonicCoarse)
}

fn ns_of(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    // Monotonic clocks begin at zero when the machine starts.
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// A clock that only [`advance`](Self::advance) moves. Threads may share it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ns: AtomicU64,
}

impl ManualClock {
    /// Creates a clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the clock by `ns` nanoseconds.
    ///
    /// # Panics
    ///
    /// If the time overflows 2^64 nanoseconds.
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

/// A time since the start of 1970 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime {
    /// Whole seconds, rounded down; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds since the last second, below 1,000,000,000.
    pub nanos: u32,
}

/// A clock of the time of day.
pub trait WallClock: Send + Sync {
    /// The current time.
    fn unix_time(&self) -> UnixTime;
}

/// The wall clock of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    fn unix_time(&self) -> UnixTime {
        #[allow(clippy::disallowed_methods, reason = "all other code uses a `WallClock`")]
        let now = SystemTime::now();
        match now.duration_since(UNIX_EPOCH) {
            Ok(since) => {
                let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
                UnixTime { seconds, nanos: since.subsec_nanos() }
            }
            // The clock is set to a time before 1970. Use the start of 1970.
            Err(_) => UnixTime::default(),
        }
    }
}

/// The wall clock of the system as of its last tick, which is at most 10 ms ago. It is read in a
/// few nanoseconds, without reading the hardware.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseWallClock;

impl WallClock for CoarseWallClock {
    fn unix_time(&self) -> UnixTime {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        // The kernel keeps nanoseconds below a second.
        UnixTime { seconds: time.tv_sec, nanos: time.tv_nsec as u32 }
    }
}

/// A wall clock that advances by a fixed step with each call. Threads may share it.
#[derive(Debug)]
pub struct ManualWallClock {
    now_ns: AtomicU64,
    step_ns: u64,
}

impl ManualWallClock {
    /// Creates a clock at the start of 1970 that advances by `step_ns` nanoseconds with each call.
    pub fn new(step_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(0), step_ns }
    }

    /// Advances the clock by `ns` nanoseconds.
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
    use super::{
        Clock, CoarseClock, ManualClock, ManualWallClock, SystemClock, UnixTime, WallClock,
    };

    #[test]
    fn the_manual_wall_clock_advances_by_its_step_and_on_demand() {
        let clock = ManualWallClock::new(7);
        assert_eq!(clock.unix_time(), UnixTime { seconds: 0, nanos: 0 });
        clock.advance(2_000_000_000);
        assert_eq!(clock.unix_time(), UnixTime { seconds: 2, nanos: 7 });
    }

    #[test]
    fn the_clocks_of_the_system_are_monotonic() {
        for clock in [&SystemClock::new() as &dyn Clock, &CoarseClock::new()] {
            let mut before = clock.now_ns();
            for _ in 0..1000 {
                let now = clock.now_ns();
                assert!(now >= before);
                before = now;
            }
        }
    }

    #[test]
    fn the_coarse_clock_advances() {
        let clock = CoarseClock::new();
        while clock.now_ns() == 0 {
            crate::sync::thread::yield_now();
        }
    }

    #[test]
    fn the_manual_clock_advances_on_demand() {
        let clock = ManualClock::new();
        assert_eq!(clock.now_ns(), 0);
        clock.advance(5);
        clock.advance(7);
        assert_eq!(clock.now_ns(), 12);
    }

    #[test]
    #[should_panic(expected = "past its end")]
    fn the_manual_clock_does_not_overflow() {
        let clock = ManualClock::new();
        clock.advance(u64::MAX);
        clock.advance(1);
    }
}
