//! Time in ticks, and the two times of an entry.
//!
//! A tick is a number of [`TICK_NS`] since some instant, modulo 2^32. So both times of an entry fit
//! into eight bytes, and most entries into the cache lines that they need without. Two ticks are
//! compared by their difference, which is right while it is less than half of all ticks. Lifetimes
//! are cut to half of that, [`Tick::FARTHEST`], so that a time that is over compares right too.
//! Durations are rounded down to ticks, so that by the cache's clock no value is returned after its
//! time, except that the shortest lifetime is one tick.
//!
//! Locking: none. The end of an idle time is written by hits, with one relaxed exchange per tick.

use std::num::NonZeroU32;
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicU32, Ordering};

/// The length of a tick.
pub(crate) const TICK_NS: u64 = 5_000_000;

/// A time in ticks. The tick that would be zero is the one before it, so that zero means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick(NonZeroU32);

impl Tick {
    /// The longest time between now and a tick: 62 days. Half of what can be compared, so that a
    /// tick as long ago and one as far away still compare right.
    pub(crate) const FARTHEST: u32 = i32::MAX as u32 / 2;

    /// The tick of a time of a clock.
    pub(crate) fn of(now_ns: u64) -> Self {
        // The start of the clock is tick 1.
        Self::from_bits((now_ns / TICK_NS).wrapping_add(1) as u32).unwrap_or(Self(NonZeroU32::MAX))
    }

    /// The tick of those bits; none if zero.
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Self)
    }

    /// The tick that many ticks later.
    pub(crate) fn after(self, ticks: u32) -> Self {
        let bits = self.0.get().wrapping_add(ticks);
        Self::from_bits(bits).unwrap_or(Self(NonZeroU32::MAX))
    }

    /// Whether this tick is before another one.
    pub(crate) fn is_before(self, other: Self) -> bool {
        (self.0.get().wrapping_sub(other.0.get()) as i32) < 0
    }

    /// For an atomic; zero is none.
    pub(crate) fn bits(tick: Option<Self>) -> u32 {
        tick.map_or(0, |tick| tick.0.get())
    }
}

/// The ticks of a lifetime.
pub(crate) fn ticks(lifetime: Duration) -> u32 {
    if lifetime.is_zero() {
        return 0;
    }
    let ticks = lifetime.as_nanos() / u128::from(TICK_NS);
    u32::try_from(ticks).unwrap_or(u32::MAX).clamp(1, Tick::FARTHEST)
}

/// When an entry expires.
pub(crate) struct Times {
    /// When it expires, used or not.
    deadline: Option<Tick>,
    /// When it expires if it is not used before. Zero if it may be idle for ever.
    idle_end: AtomicU32,
}

impl Times {
    pub(crate) fn new(deadline: Option<Tick>, idle_end: Option<Tick>) -> Self {
        Self { deadline, idle_end: AtomicU32::new(Tick::bits(idle_end)) }
    }

    /// Whether the entry never expires.
    #[inline]
    pub(crate) fn is_eternal(&self) -> bool {
        self.deadline.is_none() && self.idle_end.load(Ordering::Relaxed) == 0
    }

    /// When the entry expires if it is not used before.
    pub(crate) fn idle_end(&self) -> Option<Tick> {
        Tick::from_bits(self.idle_end.load(Ordering::Relaxed))
    }

    /// When the entry expires, unless it is used before.
    pub(crate) fn expires_at(&self) -> Option<Tick> {
        match (self.deadline, self.idle_end()) {
            (Some(deadline), Some(idle)) if idle.is_before(deadline) => Some(idle),
            (deadline, idle) => deadline.or(idle),
        }
    }

    /// Notes a use, after which the entry may be idle until `end`.
    pub(crate) fn note_use(&self, end: Tick) {
        // Only forward: another thread may have noted a later use, also just now.
        let mut bits = self.idle_end.load(Ordering::Relaxed);
        while Tick::from_bits(bits).is_some_and(|before| before.is_before(end)) {
            let (new, order) = (Tick::bits(Some(end)), Ordering::Relaxed);
            match self.idle_end.compare_exchange_weak(bits, new, order, order) {
                Ok(_) => return,
                Err(now) => bits = now,
            }
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::time::Duration;

    use super::{TICK_NS, Tick, Times, ticks};

    /// A time just before the ticks wrap around.
    const LATE_NS: u64 = (u32::MAX as u64 - 3) * TICK_NS;

    #[test]
    fn times_fit_into_eight_bytes() {
        assert_eq!(size_of::<Times>(), 8);
    }

    #[test]
    fn lifetimes_are_rounded_down_but_not_to_nothing() {
        assert_eq!(ticks(Duration::ZERO), 0);
        assert_eq!(ticks(Duration::from_nanos(1)), 1);
        assert_eq!(ticks(Duration::from_nanos(2 * TICK_NS - 1)), 1);
        assert_eq!(ticks(Duration::from_nanos(2 * TICK_NS)), 2);
        assert_eq!(ticks(Duration::MAX), Tick::FARTHEST);
    }

    #[test]
    fn deadlines_are_right_when_the_ticks_wrap_around() {
        for start in [0, 1, LATE_NS, LATE_NS + TICK_NS, LATE_NS + 3 * TICK_NS] {
            let now = Tick::of(start);
            // A single tick may be cut to none, where the ticks wrap around.
            for lifetime in [2, 3, 4, 5, 1000, Tick::FARTHEST - 1] {
                let times = Times::new(Some(now.after(lifetime)), None);
                let deadline = times.expires_at().unwrap();
                assert!(now.is_before(deadline), "{start} {lifetime}");
                let end = Tick::of(start + u64::from(lifetime) * TICK_NS);
                assert!(!end.is_before(deadline), "{start} {lifetime}");
            }
        }
    }

    #[test]
    fn uses_move_the_time_forward_only() {
        let [a, b] = [0, 7].map(|n| Tick::of(LATE_NS + n * TICK_NS));
        let times = Times::new(None, Some(a));
        times.note_use(b);
        assert_eq!(times.expires_at(), Some(b));
        times.note_use(a);
        assert_eq!(times.expires_at(), Some(b));
        assert!(!times.is_eternal());
        assert!(Times::new(None, None).is_eternal());
        Times::new(None, None).note_use(a);
    }

    #[test]
    fn the_earlier_time_counts() {
        let now = Tick::of(0);
        let times = Times::new(Some(now.after(5)), Some(now.after(3)));
        assert_eq!(times.expires_at(), Some(now.after(3)));
        times.note_use(now.after(9));
        assert_eq!(times.expires_at(), Some(now.after(5)));
    }
}
