//! The curves as users see them.

use crate::attributes::Class;
use crate::key::OwnerId;

/// The hit ratio that a cache would have had over the last minutes, at several sizes.
///
/// From [`Cache::curve`](crate::Cache::curve). Accesses are those to blocks without a hint, and
/// weigh less the longer ago they were. They begin anew when the capacity changes by more than an
/// eighth.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The capacity today, in bytes.
    pub capacity: u64,
    /// The seconds that the sums stand for: at most about three minutes.
    pub seconds: f64,
    /// The part of them with accesses. With only a few seconds, the curve tells little.
    pub busy_seconds: f64,
    /// The mean time of a load, in nanoseconds: from [`Cache::begin`](crate::Cache::begin) until
    /// the block was published. 0 if no load of a sampled block ended.
    pub load_ns: f64,
    /// Both classes together, from a quarter to four times today's capacity, in ascending order.
    pub points: Vec<CurvePoint>,
    /// Metadata and data alone. A point's capacity is that of the whole cache.
    pub by_class: [Vec<CurvePoint>; 2],
}

/// A cache of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurvePoint {
    /// The size in percent of today's capacity.
    pub percent: u64,
    /// The capacity, in bytes.
    pub capacity: u64,
    /// Accesses.
    pub accesses: f64,
    /// Misses that this size would have had.
    pub misses: f64,
    /// The standard error of `misses`, as far as it comes from sampling.
    pub error: f64,
    /// Whether the simulated cache of this size, with both classes, has filled. If not, more
    /// capacity would have brought no more hits, yet.
    pub full: bool,
}

/// What a secondary cache of another size would have served over the last minutes, behind memory
/// of today's size.
///
/// From [`Cache::secondary_curve`](crate::Cache::secondary_curve). The accesses of its points are
/// the misses of memory, and their misses those that the secondary cache would not have served.
/// Each is a ring that takes all blocks that leave memory, and overwrites the oldest. Today's has
/// what the cache counted.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondaryCurve {
    /// What the secondary cache can hold today, in bytes.
    pub capacity: u64,
    /// The seconds that the sums stand for: at most about three minutes.
    pub seconds: f64,
    /// The part of them with accesses.
    pub busy_seconds: f64,
    /// Lookups that memory answered, by class.
    pub memory_hits: [f64; 2],
    /// Both classes together, from a quarter to four times today's size, in ascending order.
    pub points: Vec<CurvePoint>,
    /// Metadata and data alone.
    pub by_class: [Vec<CurvePoint>; 2],
    /// By owner and class, in no order. Owners beyond the first few dozen count as
    /// [`OwnerId::NONE`].
    pub by_owner: Vec<OwnerCurve>,
}

/// The curve of the blocks of one owner and class.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerCurve {
    /// The owner.
    pub owner: OwnerId,
    /// The class.
    pub class: Class,
    /// As those of [`SecondaryCurve::points`].
    pub points: Vec<CurvePoint>,
}

impl SecondaryCurve {
    /// The hit ratio of memory and a secondary cache together. `point` is one of the points.
    pub fn hit_ratio(&self, point: &CurvePoint) -> f64 {
        both(self.memory_hits.iter().sum(), point)
    }

    /// The same for one class. `None` if there were no accesses.
    pub fn hit_ratio_of(&self, class: Class, n: usize) -> Option<f64> {
        let (hits, point) =
            (self.memory_hits[class as usize], self.by_class[class as usize].get(n)?);
        (hits + point.accesses >= 1.0).then(|| both(hits, point))
    }
}

fn both(hits: f64, point: &CurvePoint) -> f64 {
    let accesses = hits + point.accesses;
    if accesses > 0.0 { 1.0 - point.misses / accesses } else { 0.0 }
}

impl CurvePoint {
    /// Hits over accesses; 0 without accesses.
    pub fn hit_ratio(&self) -> f64 {
        if self.accesses > 0.0 { 1.0 - self.misses / self.accesses } else { 0.0 }
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            percent: self.percent,
            capacity: self.capacity,
            accesses: self.accesses + other.accesses,
            misses: self.misses + other.misses,
            error: self.error.hypot(other.error),
            // Of the whole cache, so the same for all classes.
            full: self.full && other.full,
        }
    }
}

impl Curve {
    /// The hit ratio at a capacity, by linear interpolation. `None` outside of the simulated sizes.
    pub fn hit_ratio_at(&self, capacity: u64) -> Option<f64> {
        self.points.windows(2).find_map(|pair| {
            let (low, high) = (pair[0], pair[1]);
            let inside = low.capacity <= capacity && capacity <= high.capacity;
            let width = high.capacity.saturating_sub(low.capacity).max(1) as f64;
            let part = capacity.saturating_sub(low.capacity) as f64 / width;
            inside.then(|| low.hit_ratio() + part * (high.hit_ratio() - low.hit_ratio()))
        })
    }

    /// The smallest capacity that reaches a hit ratio, by linear interpolation. `None` if no
    /// simulated size does.
    pub fn capacity_for(&self, hit_ratio: f64) -> Option<u64> {
        let at = self.points.iter().position(|point| point.hit_ratio() >= hit_ratio)?;
        let high = self.points[at];
        let Some(low) = at.checked_sub(1).map(|below| self.points[below]) else {
            return Some(high.capacity);
        };
        let rise = high.hit_ratio() - low.hit_ratio();
        let part = (hit_ratio - low.hit_ratio()) / rise;
        Some(low.capacity + ((high.capacity - low.capacity) as f64 * part).round() as u64)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{Curve, CurvePoint};

    #[test]
    fn sizes_and_ratios_are_interpolated() {
        let point = |(capacity, misses)| CurvePoint {
            capacity,
            accesses: 100.0,
            misses,
            ..CurvePoint::default()
        };
        let points = [(100, 80.0), (200, 40.0), (400, 40.0)].map(point).to_vec();
        let curve = Curve {
            capacity: 200,
            seconds: 1.0,
            busy_seconds: 1.0,
            load_ns: 0.0,
            points,
            by_class: [Vec::new(), Vec::new()],
        };
        assert_eq!(curve.capacity_for(0.1), Some(100));
        assert_eq!(curve.capacity_for(0.4), Some(150));
        assert_eq!(curve.capacity_for(0.6), Some(200));
        assert_eq!(curve.capacity_for(0.61), None);
        assert!((curve.hit_ratio_at(150).unwrap() - 0.4).abs() < 1e-9);
        assert_eq!(curve.hit_ratio_at(400), Some(0.6));
        assert_eq!([99, 401].map(|capacity| curve.hit_ratio_at(capacity)), [None, None]);
    }
}
