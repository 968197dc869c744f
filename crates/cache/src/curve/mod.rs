//! Miss-ratio curves: the hit ratio that the policy in use would have with less or more capacity.
//!
//! For each class and each of [`SIZES`] there is a [`simulated_size`]: a miniature on sampled
//! blocks (Waldspurger et al., "Cache Modeling and Optimization using Miniature Simulations", ATC
//! 2017). It has its own sample and follows the rule that the policy would choose at that size. It
//! sees the accesses that the policy's own simulations see, from the same access buffer.
//!
//! All sums decay with a half-life of [`HALF_LIFE_S`], so the curve follows the last minutes. They
//! begin anew when the configured capacity changes by more than an eighth. The miniatures grow or
//! shrink then.
//!
//! The memory is bounded ([`insight_budget`](crate::insight_budget)), by smaller samples if need
//! be. A very small cache has no curve.
//!
//! It does not see what the simulations do not see: blocks hinted `once` or `again`, removals,
//! refused blocks and pins. The classes share a size as they share the capacity today, but one
//! takes what the other leaves unused. Weights are those of the first access.
//!
//! Locking: `simulations`.

pub(crate) mod estimate;
pub(crate) mod report;
mod simulated_size;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::sync::Arc;

use crate::attributes::Class;
use crate::policy::simulation::Capacities;
use crate::policy::simulation::access_buffer::{Access, Batch};
use crate::policy::simulation::marked_keys::MarkedKeys;
use report::{Curve, CurvePoint};
use simulated_size::SimulatedSize;

/// The simulated sizes, in percent of the cache's capacity. Those without a chooser follow the rule
/// in force.
const SIZES: [(u64, Chooser); 8] = [
    (25, Chooser::Own),
    (50, Chooser::Own),
    (75, Chooser::Own),
    (100, Chooser::Cache),
    (150, Chooser::Own),
    (200, Chooser::Own),
    (300, Chooser::Own),
    (400, Chooser::Own),
];
/// The index of today's size.
const TODAY: usize = 3;

/// Time after which an access counts half.
pub(crate) const HALF_LIFE_S: f64 = 120.0;

/// Interval at which the sums are advanced.
const ADVANCE_NS: u64 = 500_000_000;
/// An interval with accesses counts as busy for this long at most.
pub(crate) const BUSY_S: f64 = 1.0;

/// Samples are halved up to this many times. With less memory there is no curve.
const MAX_SHIFT: u32 = 3;

/// Bytes that a curve needs.
pub(crate) const LEAST_BYTES: u64 = most_bytes(MAX_SHIFT);

/// Bytes of the simulated sizes of both classes, at most, if samples are halved so many times.
const fn most_bytes(shift: u32) -> u64 {
    let mut bytes = 0;
    let mut n = 0;
    while n < SIZES.len() {
        bytes += 2 * SimulatedSize::most_bytes(matches!(SIZES[n].1, Chooser::Own), shift);
        n += 1;
    }
    bytes
}

/// Where a simulated size takes its rule from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chooser {
    /// Simulations of its own, smaller ones.
    Own,
    /// The cache's choice.
    Cache,
}

/// What the cache's counters say since it was built, by class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) now_ns: u64,
    /// Hits.
    pub(crate) hits: [u64; 2],
    /// Inserted blocks without a hint, unless a program has just made them.
    pub(crate) misses: [u64; 2],
    /// Timed loads, and their nanoseconds.
    pub(crate) loads: [u64; 2],
}

impl Totals {
    fn accesses(&self) -> u64 {
        self.hits.iter().chain(&self.misses).sum()
    }
}

/// The simulated sizes of both classes, and the decaying sums over the last minutes.
///
/// Three corrections turn sampled misses into a curve ([`estimate`]):
///
/// 1. The miss ratio is the sampled misses, scaled up, over the true number of accesses, which the
///    cache's counters know. A sample with too many or too few of the hot blocks does not distort
///    it (SHARDS-adj: Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015).
/// 2. Accesses that the full access buffer dropped are counted, and the others of their batch stand
///    for them.
/// 3. Misses of all sizes are scaled so that today's size has the misses that the cache had.
pub(crate) struct Curves {
    /// The rule at all sizes, if the cache never chooses.
    fixed_rule: Option<usize>,
    /// How many times the samples are halved for lack of memory. Above [`MAX_SHIFT`], nothing is
    /// simulated.
    shift: u32,
    /// By class.
    sizes: [[SimulatedSize; SIZES.len()]; 2],
    /// By class, the mask of its largest sample.
    masks: [u64; 2],
    /// By class, the sizes with misses in the running batch, as bits.
    missed: [u32; 2],
    /// By class.
    marked: [Arc<MarkedKeys>; 2],
    last: Totals,
    /// The configured capacity that the sums are of; 0 before the first access.
    configured: u64,
    hits: [f64; 2],
    misses: [f64; 2],
    /// Number and nanoseconds of timed loads.
    loads: [f64; 2],
    seconds: f64,
    /// The part of `seconds` with accesses.
    busy_seconds: f64,
}

impl Curves {
    /// `fixed_rule` is the rule at all sizes, if the cache never chooses. `budget` is the memory
    /// that this may take, in bytes.
    pub(crate) fn new(
        fixed_rule: Option<usize>,
        budget: u64,
        marked: [Arc<MarkedKeys>; 2],
    ) -> Self {
        let shift = (0..=MAX_SHIFT).find(|shift| most_bytes(*shift) <= budget);
        Self::with_shift(fixed_rule, shift.unwrap_or(MAX_SHIFT + 1), marked)
    }

    fn with_shift(fixed_rule: Option<usize>, shift: u32, marked: [Arc<MarkedKeys>; 2]) -> Self {
        let size = |(percent, chooser), marked: &Arc<MarkedKeys>| {
            let chooses = chooser == Chooser::Own && fixed_rule.is_none();
            SimulatedSize::new(percent, chooses, shift, marked)
        };
        Self {
            fixed_rule,
            shift,
            sizes: std::array::from_fn(|class| SIZES.map(|of| size(of, &marked[class]))),
            masks: [if shift > MAX_SHIFT { u64::MAX } else { 0 }; 2],
            missed: [0; 2],
            marked,
            last: Totals::default(),
            configured: 0,
            hits: [0.0; 2],
            misses: [0.0; 2],
            loads: [0.0; 2],
            seconds: 0.0,
            busy_seconds: 0.0,
        }
    }

    /// Forgets all blocks and sums.
    pub(crate) fn clear(&mut self) {
        let new = Self::with_shift(self.fixed_rule, self.shift, self.marked.clone());
        self.start_anew(new);
    }

    fn start_anew(&mut self, new: Self) {
        *self = Self { last: self.last, ..new };
        self.marked.iter().for_each(|marked| marked.clear());
    }

    /// Starts anew with smaller samples if the memory may be less than before, and with larger ones
    /// if they fit with an eighth to spare.
    pub(crate) fn keep_to(&mut self, budget: u64) {
        let shrinks = self.shift <= MAX_SHIFT && most_bytes(self.shift) > budget;
        let fits_well = |shift: u32| most_bytes(shift) <= budget / 9 * 8;
        if shrinks || self.shift.checked_sub(1).is_some_and(fits_well) {
            self.start_anew(Self::new(self.fixed_rule, budget, self.marked.clone()));
        }
    }

    /// The mask of the largest sample of a class.
    pub(crate) fn mask(&self, class: Class) -> u64 {
        self.masks[class as usize]
    }

    /// Replays an access. `rule` is the number of its class's rule in force. True if it hits in all
    /// miniatures that sample its block.
    pub(crate) fn access(&mut self, access: Access, rule: usize, capacities: Capacities) -> bool {
        if self.shift > MAX_SHIFT {
            return true;
        }
        if self.configured == 0 {
            self.configured = capacities.configured;
        }
        let mut hits_all = true;
        let (class, other) = (access.class as usize, access.class.other() as usize);
        let rule = self.fixed_rule.unwrap_or(rule);
        for n in 0..SIZES.len() {
            // Most accesses are in the samples of the smallest sizes only.
            if !self.sizes[class][n].samples(access.key) {
                continue;
            }
            let left = self.sizes[other][n].left_of(capacities.total);
            let size = &mut self.sizes[class][n];
            let capacity = size.scaled(capacities.of_class[class]).max(left);
            let mask = size.mask();
            let outcome = size.access(access, rule, capacity);
            hits_all &= outcome.hits_all;
            self.missed[class] |= u32::from(outcome.misses) << n;
            if size.mask() != mask {
                let masks = self.sizes[class].iter().map(SimulatedSize::mask);
                self.masks[class] = masks.min().unwrap_or(0);
            }
        }
        hits_all
    }

    /// Replays a removal.
    pub(crate) fn remove(&mut self, access: Access) {
        self.sizes[access.class as usize].iter_mut().for_each(|size| size.remove(access.key));
    }

    /// Ends a batch. Its accesses stand for those that the access buffer dropped meanwhile.
    pub(crate) fn end_batch(&mut self, batch: Batch) {
        let stands_for = 1.0 + batch.lost as f64 / batch.taken.max(1) as f64;
        for (missed, sizes) in self.missed.iter_mut().zip(&mut self.sizes) {
            for (n, size) in sizes.iter_mut().enumerate() {
                if *missed >> n & 1 != 0 {
                    size.end_batch(stands_for);
                }
            }
            *missed = 0;
        }
    }

    /// Whether the sums should be advanced.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last.now_ns) >= ADVANCE_NS
    }

    /// Adds to the sums what the counters say, and lets them decay. If the configured capacity has
    /// changed by more than an eighth, the sums are of other sizes than the points will say, and
    /// begin anew. What is left of a hard bound moves all the time, so it does not count here.
    pub(crate) fn advance(&mut self, totals: Totals, configured: u64) {
        if self.configured > 0 && self.configured.abs_diff(configured) > self.configured / 8 {
            (self.configured, self.last) = (configured, totals);
            (self.hits, self.misses) = ([0.0; 2], [0.0; 2]);
            (self.seconds, self.busy_seconds) = (0.0, 0.0);
            self.sizes.iter_mut().flatten().for_each(SimulatedSize::reset_sums);
            return;
        }
        let seconds = totals.now_ns.saturating_sub(self.last.now_ns) as f64 / 1e9;
        let kept = (-seconds / HALF_LIFE_S).exp2();
        let last = self.last;
        for (sum, now, last) in [
            (&mut self.hits, totals.hits, last.hits),
            (&mut self.misses, totals.misses, last.misses),
            (&mut self.loads, totals.loads, last.loads),
        ] {
            for n in 0..2 {
                sum[n] = (sum[n] + now[n].saturating_sub(last[n]) as f64) * kept;
            }
        }
        self.seconds = (self.seconds + seconds) * kept;
        // After a pause, the accesses came at its end.
        let busy = if totals.accesses() > last.accesses() { seconds.min(BUSY_S) } else { 0.0 };
        self.busy_seconds = (self.busy_seconds + busy) * kept;
        self.sizes.iter_mut().flatten().for_each(|size| size.decay(kept));
        self.last = totals;
    }

    /// The curve over the last minutes. [`advance`](Self::advance) first.
    pub(crate) fn curve(&self, capacity: u64) -> Curve {
        let full: Vec<bool> = (0..SIZES.len()).map(|n| self.is_full(n, capacity)).collect();
        let by_class = Class::ALL.map(|class| self.points(class, capacity, &full));
        let points = by_class[0].iter().zip(&by_class[1]).map(|(a, b)| a.plus(b)).collect();
        let [loads, ns] = self.loads;
        let load_ns = if loads > 0.0 { ns / loads } else { 0.0 };
        let (seconds, busy_seconds) = (self.seconds, self.busy_seconds);
        Curve { capacity, seconds, busy_seconds, load_ns, points, by_class }
    }

    /// Whether both classes together fill a cache of `capacity` bytes at a size, nearly. Before,
    /// more capacity would change nothing.
    fn is_full(&self, n: usize, capacity: u64) -> bool {
        let resident: u64 = self.sizes.iter().map(|sizes| sizes[n].resident_bytes()).sum();
        resident.saturating_mul(8) >= self.sizes[0][n].scaled(capacity).saturating_mul(7)
    }

    fn points(&self, class: Class, capacity: u64, full: &[bool]) -> Vec<CurvePoint> {
        if self.shift > MAX_SHIFT {
            return Vec::new();
        }
        let n = class as usize;
        let measured =
            estimate::Measured { accesses: self.hits[n] + self.misses[n], misses: self.misses[n] };
        let sampled: Vec<_> = self.sizes[n].iter().map(SimulatedSize::sampled).collect();
        let misses = estimate::misses(measured, &sampled, TODAY);
        let point =
            |((size, (misses, error)), full): ((&SimulatedSize, (f64, f64)), &bool)| CurvePoint {
                percent: size.percent(),
                capacity: size.scaled(capacity),
                accesses: measured.accesses,
                misses,
                error,
                full: *full,
            };
        self.sizes[n].iter().zip(misses).zip(full).map(point).collect()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.sizes.iter().flatten().map(SimulatedSize::memory_bytes).sum()
    }
}
