//! The memory that the miss-ratio curves may take: one budget for the simulated sizes of memory,
//! the access buffer that feeds them, and the simulated sizes of the secondary cache.
//!
//! It is 4 MiB, or a sixteenth of a hard bound if that is less. Each part keeps to its share by a
//! smaller sample, or has none. The access buffer cannot change its size. What it takes beyond its
//! share, the simulated sizes of memory do without.
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
const SECONDARY: u64 = 7;

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

    /// Bytes for the rings of the access buffer, so that a curve misses little.
    pub(crate) fn access_buffer(self) -> u64 {
        if self.has_curve { self.bytes / PARTS * ACCESS_BUFFER } else { 0 }
    }

    /// Bytes that the access buffer may take for rings of a batch each, since the rules are chosen
    /// by what passes through them: what the smallest curve leaves, or half if there is none.
    pub(crate) fn batches(self) -> u64 {
        let rest = self.bytes / PARTS * (PARTS - SECONDARY);
        #[cfg(feature = "insight")]
        if self.has_curve && rest >= crate::curve::LEAST_BYTES {
            return rest - crate::curve::LEAST_BYTES;
        }
        rest / 2
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
    use crate::curve::LEAST_BYTES;
    use crate::inner::Bound;
    use crate::policy::simulation::access_buffer::{AccessBuffer, BATCH};

    #[test]
    fn all_parts_keep_to_a_sixteenth_of_any_bound() {
        for (bound_mib, shards) in [(1, 128), (8, 4), (8, 128), (50, 16), (64, 128), (9999, 128)] {
            let budget = bounded(bound_mib, true);
            let buffer = buffer_of(shards, budget).memory_bytes();
            let all = buffer + budget.curve(buffer) + budget.secondary();
            let limit = MOST.min((bound_mib << 20) / SHARE);
            assert!(all <= limit, "{bound_mib} MiB, {shards} shards: {all} of {limit}");
            assert!(all >= limit / 4 * 3, "{bound_mib} MiB, {shards} shards: {all} of {limit}");
        }
    }

    fn buffer_of(shards: usize, budget: InsightBudget) -> AccessBuffer {
        AccessBuffer::new(shards, budget.access_buffer(), budget.batches())
    }

    fn bounded(mib: u64, has_curve: bool) -> InsightBudget {
        InsightBudget::of(
            Some(&Bound { bytes: AtomicU64::new(mib << 20), others: None }),
            has_curve,
        )
    }

    #[test]
    fn rings_have_a_batch_unless_there_is_no_memory_for_it() {
        let (curve, none) = (true, false);
        for (mib, shards, has_curve, words) in [
            (9999, 128, none, BATCH),
            (16, 128, none, BATCH),
            (4, 128, none, BATCH / 4),
            (2, 16, none, BATCH),
            (2, 16, curve, BATCH),
            (16, 128, curve, BATCH),
            (9999, 128, curve, 2 * BATCH),
        ] {
            let budget = bounded(mib, has_curve);
            let buffer = buffer_of(shards, budget);
            assert_eq!(buffer.ring_words(), words, "{mib} MiB, {shards} shards");
            let keeps_curve = budget.curve(buffer.memory_bytes()) >= LEAST_BYTES;
            assert_eq!(keeps_curve, has_curve && mib >= 7, "{mib} MiB, {shards} shards");
        }
        let buffer = buffer_of(128, InsightBudget::of(None, false));
        assert_eq!(buffer.ring_words(), BATCH);
    }
}
