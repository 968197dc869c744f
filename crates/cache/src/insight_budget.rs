//! The memory that the miss-ratio curves may take: one budget for the simulated sizes of memory,
//! the access buffer that feeds them, and the simulated sizes of the secondary cache.
//!
//! It is 4 MiB, or a sixteenth of a hard bound if that is less. Each part keeps to its share by a
//! smaller sample, or has none. The access buffer cannot change its size. What it takes beyond its
//! share after the bound was lowered, the simulated sizes of memory do without.
//!
//! Locking: none.

use forebay_base::sync::atomic::Ordering;

use crate::inner::Bound;

/// Bytes of all parts together.
const MOST: u64 = 4 << 20;
/// Divisor of a hard bound.
const SHARE: u64 = 16;

/// The budget is divided into so many parts. The simulated sizes of memory have the rest.
const PARTS: u64 = 32;
const ACCESS_BUFFER: u64 = 4;
#[cfg(feature = "insight")]
const SECONDARY: u64 = 7;
/// Without a curve, the access buffer has its share divided by this.
const WITHOUT_CURVE: u64 = 8;

/// Bytes for all parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InsightBudget {
    bytes: u64,
    has_curve: bool,
}

impl InsightBudget {
    /// Of a cache without a hard bound.
    #[cfg(all(test, not(forebay_model)))]
    pub(crate) const FULL: Self = Self { bytes: MOST, has_curve: true };

    pub(crate) fn of(bound: Option<&Bound>, has_curve: bool) -> Self {
        let of_bound = |bound: &Bound| bound.bytes.load(Ordering::Relaxed) / SHARE;
        let has_curve = has_curve && cfg!(feature = "insight");
        Self { bytes: bound.map_or(MOST, of_bound).min(MOST), has_curve }
    }

    /// Bytes for the rings of the access buffer.
    pub(crate) fn access_buffer(self) -> u64 {
        let share = self.bytes / PARTS * ACCESS_BUFFER;
        if self.has_curve { share } else { share / WITHOUT_CURVE }
    }

    /// Bytes for the simulated sizes of memory, if the access buffer takes so many.
    #[cfg(feature = "insight")]
    pub(crate) fn curve(self, access_buffer: u64) -> u64 {
        let share = self.bytes / PARTS * (PARTS - SECONDARY);
        if self.has_curve { share.saturating_sub(access_buffer) } else { 0 }
    }

    /// Bytes for the simulated sizes of the secondary cache.
    #[cfg(feature = "insight")]
    pub(crate) fn secondary(self) -> u64 {
        self.bytes / PARTS * SECONDARY
    }
}

#[cfg(all(test, feature = "insight", not(forebay_model)))]
mod tests {
    use forebay_base::sync::atomic::AtomicU64;

    use super::{InsightBudget, MOST, SHARE};
    use crate::inner::Bound;
    use crate::policy::simulation::access_buffer::AccessBuffer;

    #[test]
    fn all_parts_keep_to_a_sixteenth_of_any_bound() {
        for (bound_mib, shards) in [(1, 128), (8, 4), (8, 128), (50, 16), (64, 128), (9999, 128)] {
            let bytes = AtomicU64::new(bound_mib << 20);
            let budget = InsightBudget::of(Some(&Bound { bytes, others: None }), true);
            let buffer = AccessBuffer::new(shards, budget.access_buffer()).memory_bytes();
            let all = buffer + budget.curve(buffer) + budget.secondary();
            let limit = MOST.min((bound_mib << 20) / SHARE);
            assert!(all <= limit, "{bound_mib} MiB, {shards} shards: {all} of {limit}");
            assert!(all >= limit / 4 * 3, "{bound_mib} MiB, {shards} shards: {all} of {limit}");
        }
    }

    #[test]
    fn without_a_curve_only_short_rings_are_left() {
        let budget = InsightBudget::of(None, false);
        assert_eq!(budget.curve(0), 0);
        let buffer = AccessBuffer::new(128, budget.access_buffer()).memory_bytes();
        assert!(buffer <= 96 << 10, "{buffer}");
    }
}
