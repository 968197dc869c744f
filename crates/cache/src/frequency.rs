//! Frequency: when and how often a block was used, in 32 bits that decay without being visited.
//!
//! Uses are counted at misses and at marks. Time is counted in *ticks*; [`TICKS`] are an *epoch*.
//! The policy advances the time. A block has a count of uses, the tick of the last use, and the
//! *gap* between the last two. Each end of an epoch since the last use halves the value of the
//! count, so no pass over all blocks is needed. (W-TinyLFU halves its whole sketch: Einziger,
//! Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM ToS 2017.)
//!
//! | bits | |
//! |---|---|
//! | 0–3 | the count, at most 15 |
//! | 4–13 | the gap in ticks; all ones: that long or longer, or no earlier use |
//! | 14–31 | the low bits of the tick of the last use |
//!
//! Locking: none; a plain value.

const COUNT_BITS: u32 = 4;
const COUNT: u32 = (1 << COUNT_BITS) - 1;
const GAP_SHIFT: u32 = COUNT_BITS;
const GAP_BITS: u32 = 10;
const GAP: u32 = (1 << GAP_BITS) - 1;
const LAST_SHIFT: u32 = GAP_SHIFT + GAP_BITS;
const LAST: u32 = u32::MAX >> LAST_SHIFT;
/// Ticks per epoch.
pub(crate) const TICKS: u32 = 1 << 8;

/// The uses of a block. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frequency(u32);

impl Frequency {
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// A frequency with `count` uses, the last at `tick`. The use before it is unknown.
    pub(crate) fn of(count: u32, tick: u32) -> Self {
        Self(((tick & LAST) << LAST_SHIFT) | (GAP << GAP_SHIFT) | count.min(COUNT))
    }

    /// Ticks since the last use. Zero if the last use is after `now`, because another thread
    /// counted it meanwhile. Wraps: a block not used for 512 epochs looks recent again for as long.
    pub(crate) fn age(self, now: u32) -> u32 {
        let age = now.wrapping_sub(self.0 >> LAST_SHIFT) & LAST;
        if age > LAST / 2 { 0 } else { age }
    }

    /// Ticks between the last two uses, at most all ones.
    pub(crate) fn gap(self) -> u32 {
        (self.0 >> GAP_SHIFT) & GAP
    }

    /// The decayed number of uses.
    pub(crate) fn count(self, now: u32) -> u32 {
        let into_epoch = (self.0 >> LAST_SHIFT) % TICKS;
        let epochs = (into_epoch + self.age(now)) / TICKS;
        (self.0 & COUNT).checked_shr(epochs).unwrap_or(0)
    }

    /// With one more use, now.
    #[must_use]
    pub(crate) fn used(self, now: u32) -> Self {
        let known = self.0 & COUNT > 0;
        let gap = if known { self.age(now).min(GAP) } else { GAP };
        let count = (self.count(now) + 1).min(COUNT);
        Self(((now & LAST) << LAST_SHIFT) | (gap << GAP_SHIFT) | count)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use proptest::prelude::*;

    use super::{COUNT, Frequency, GAP, TICKS};

    proptest! {
        /// The model halves its count at each end of an epoch, and does not count beyond the
        /// maximum. Its times do not wrap.
        #[test]
        fn ages_as_one_that_is_halved_each_epoch(steps in prop::collection::vec(0..2 * TICKS, 1..200), start in any::<u32>()) {
            let (mut now, mut model, mut frequency) = (u64::from(start), 0u32, Frequency::default());
            let (mut last, mut gap) = (None, u64::from(GAP));
            // A block without uses has no tick; its count is zero at all ticks.
            prop_assert_eq!(frequency.count(start), 0);
            for step in steps {
                if step < TICKS {
                    let epoch = now / u64::from(TICKS);
                    now += u64::from(step);
                    model >>= now / u64::from(TICKS) - epoch;
                } else {
                    frequency = frequency.used(now as u32);
                    model = (model + 1).min(COUNT);
                    gap = last.map_or(u64::MAX, |last| now - last).min(u64::from(GAP));
                    last = Some(now);
                }
                prop_assert_eq!(frequency.count(now as u32), model);
                prop_assert_eq!(Frequency::from_bits(frequency.bits()), frequency);
                if let Some(last) = last {
                    prop_assert_eq!(u64::from(frequency.age(now as u32)), now - last);
                    prop_assert_eq!(u64::from(frequency.gap()), gap);
                }
            }
        }
    }

    #[test]
    fn a_gap_is_between_uses_and_a_remembered_block_has_none_yet() {
        let remembered = Frequency::of(3, 1000);
        assert_eq!((remembered.count(1001), remembered.age(1010), remembered.gap()), (3, 10, GAP));
        assert_eq!(remembered.used(1010).gap(), 10);
        assert_eq!(remembered.used(1010).used(1012).gap(), 2);
        assert_eq!(Frequency::default().used(5).gap(), GAP);
        assert_eq!(remembered.used(1000 + 2 * GAP).gap(), GAP);
        // Another thread's clock is ahead.
        let ahead = Frequency::of(3, 2 * TICKS);
        assert_eq!((ahead.age(2 * TICKS - 1), ahead.count(2 * TICKS - 1)), (0, 3));
    }
}
