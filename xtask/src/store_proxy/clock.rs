//! The clock by which a proxy delays. Tests have one that they can read exactly.

use std::thread;
use std::time::{Duration, Instant};

/// A clock.
pub(super) trait Clock: Send + Sync {
    /// The time since some moment before.
    fn now(&self) -> Duration;

    /// Returns after this time.
    fn sleep(&self, time: Duration);
}

/// The clock of the system.
pub(super) struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}
