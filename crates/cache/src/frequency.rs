//! How often a block was asked for, as far as misses and marks tell, in 16 bits that age by themselves.
//!
//! A count of uses and the *epoch* of the last one. Each epoch that has passed since halves what the count
//! is worth, so that nothing has to walk over all blocks to age them (W-TinyLFU halves its whole
//! sketch instead: Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission
//! Policy", ACM ToS 2017). The policy says when an epoch ends.

/// Bits of the count; the others have the epoch.
const COUNT_BITS: u32 = 4;
const COUNT: u16 = (1 << COUNT_BITS) - 1;

/// Uses of a block. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frequency(u16);

impl Frequency {
    pub(crate) fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// So many uses, in `epoch`.
    pub(crate) fn of(count: u32, epoch: u32) -> Self {
        Self(((epoch as u16) << COUNT_BITS) | (count.min(u32::from(COUNT)) as u16))
    }

    /// What the uses are worth in `epoch`. Epochs wrap: a block that nobody has asked for in 4,096 of them
    /// looks young again for a few.
    pub(crate) fn count(self, epoch: u32) -> u32 {
        let age = (epoch as u16).wrapping_sub(self.0 >> COUNT_BITS) & (u16::MAX >> COUNT_BITS);
        u32::from(self.0 & COUNT).checked_shr(u32::from(age)).unwrap_or(0)
    }

    /// One use more, in `epoch`.
    #[must_use]
    pub(crate) fn used(self, epoch: u32) -> Self {
        let count = (self.count(epoch) as u16 + 1).min(COUNT);
        Self(((epoch as u16) << COUNT_BITS) | count)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use proptest::prelude::*;

    use super::{COUNT, Frequency};

    proptest! {
        /// The twin halves its count at each end of an epoch, and counts beyond the cap no further.
        #[test]
        fn ages_as_one_that_is_halved_each_epoch(steps in prop::collection::vec(0..3u32, 1..200), start in any::<u32>()) {
            let (mut epoch, mut twin, mut frequency) = (start, 0u32, Frequency::default());
            // A block that was never asked for has no epoch; its count is zero in all of them.
            prop_assert_eq!(frequency.count(epoch), 0);
            for step in steps {
                if step == 0 {
                    epoch = epoch.wrapping_add(1);
                    twin /= 2;
                } else {
                    frequency = frequency.used(epoch);
                    twin = (twin + 1).min(u32::from(COUNT));
                }
                prop_assert_eq!(frequency.count(epoch), twin);
                prop_assert_eq!(Frequency::from_bits(frequency.bits()), frequency);
            }
        }
    }
}
