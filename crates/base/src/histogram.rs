//! Lock-free histograms of `u64` values in fixed memory.
//!
//! Buckets are log-linear, as in HdrHistogram. Each value below [`STEPS`] has a bucket, and each
//! greater power of two is divided into [`STEPS`] buckets of equal width. So the width of a bucket
//! is at most 1/[`STEPS`] of its lowest value, which bounds the relative error of a quantile.
//!
//! Invariants: every value has exactly one bucket, and buckets are in the order of their values.
//! The count of a snapshot is the sum of its buckets, so that quantiles agree with it.
//!
//! Locking: none. All accesses are relaxed. A concurrent snapshot may include the bucket of a value
//! without its part of the sum, or the reverse.
//!
//! It is not sharded, so it is for rare or slow events (waits, I/O), not for every hit. It does not
//! expire old values ([`HistogramSnapshot::since`] subtracts).

use std::fmt;

use crate::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(test, not(forebay_model)))]
mod tests;

/// Number of buckets per power of two. The relative error is at most `1 / STEPS`.
pub const STEPS: u64 = 16;

const STEPS_LOG2: u32 = STEPS.ilog2();
const _: () = assert!(STEPS.is_power_of_two());

/// Number of buckets: exact values, then the powers of two from `STEPS` to 2^63.
const BUCKETS: usize = (STEPS as usize) * (1 + (u64::BITS - STEPS_LOG2) as usize);

/// The bucket of `value`.
const fn bucket_of(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let exponent = value.ilog2() - STEPS_LOG2;
    // The top bits of the value, with the leading one, are at least `STEPS`.
    (exponent as usize) * (STEPS as usize) + (value >> exponent) as usize
}

/// The lowest and the highest value of a bucket.
const fn bounds(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return (bucket, bucket);
    }
    let exponent = bucket / STEPS - 1;
    let low = (bucket % STEPS + STEPS) << exponent;
    (low, low + ((1 << exponent) - 1))
}

/// A histogram to which threads record concurrently. Takes about 8 KiB.
pub struct AtomicHistogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl AtomicHistogram {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Records one value.
    #[inline]
    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.raise_max(value);
    }

    /// Records all values of a snapshot.
    pub fn merge(&self, other: &HistogramSnapshot) {
        for (mine, &theirs) in self.buckets.iter().zip(&other.buckets) {
            if theirs != 0 {
                mine.fetch_add(theirs, Ordering::Relaxed);
            }
        }
        self.sum.fetch_add(other.sum, Ordering::Relaxed);
        self.raise_max(other.max);
    }

    /// A snapshot of the recorded values.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let buckets: Box<[u64]> =
            self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let mut max = self.max.load(Ordering::Relaxed);
        // A concurrent record may have incremented the bucket and not yet raised the maximum.
        if let Some(last) = buckets.iter().rposition(|&count| count != 0) {
            max = max.max(bounds(last).0);
        }
        HistogramSnapshot {
            count: buckets.iter().sum(),
            sum: self.sum.load(Ordering::Relaxed),
            max,
            buckets,
        }
    }

    #[inline]
    fn raise_max(&self, value: u64) {
        // Most values are not the largest, so avoid the read-modify-write.
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for AtomicHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// The values of a histogram at some time.
#[derive(Clone, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Number of values.
    pub count: u64,
    /// Sum of the values, modulo 2^64 (nanoseconds last for 584 years).
    pub sum: u64,
    /// The largest value; 0 if there is none.
    pub max: u64,
    buckets: Box<[u64]>,
}

impl HistogramSnapshot {
    /// The snapshot of an empty histogram, to merge others into.
    pub fn empty() -> Self {
        Self { count: 0, sum: 0, max: 0, buckets: vec![0; BUCKETS].into_boxed_slice() }
    }

    /// A snapshot with `count` values in the bucket of each `(value, count)`, as
    /// [`buckets`](Self::buckets) has listed them on the other side of a connection.
    pub fn from_buckets(filled: impl IntoIterator<Item = (u64, u64)>, sum: u64, max: u64) -> Self {
        let mut snapshot = Self { sum, max, ..Self::empty() };
        for (value, count) in filled {
            let bucket = &mut snapshot.buckets[bucket_of(value)];
            *bucket = bucket.saturating_add(count);
            snapshot.count = snapshot.count.saturating_add(count);
        }
        snapshot
    }

    /// The values recorded after `earlier`, a snapshot of the same histogram. The largest of them
    /// is known to the width of its bucket only.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        let buckets: Box<[u64]> = pairs.map(|(now, then)| now.saturating_sub(*then)).collect();
        let last = buckets.iter().rposition(|&count| count != 0);
        Self {
            count: buckets.iter().fold(0, |sum, &count| sum.saturating_add(count)),
            sum: self.sum.wrapping_sub(earlier.sum),
            max: last.map_or(0, |last| bounds(last).1.min(self.max)),
            buckets,
        }
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The mean of the values; 0 if there is none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The `q`-quantile: the smallest value such that at least a share `q` of the values is not
    /// greater, rounded up by at most 1/[`STEPS`]. 0 if there is no value. `q` is 0.5 for the
    /// median, 0 for the smallest value, and 1 for the largest.
    ///
    /// # Panics
    ///
    /// If `q` is not within 0 and 1.
    pub fn quantile(&self, q: f64) -> u64 {
        assert!((0.0..=1.0).contains(&q), "a quantile is within 0 and 1, not {q}");
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bounds(bucket).1.min(self.max);
            }
        }
        0
    }

    /// The buckets with values, in order, as lowest value, highest value and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let filled = self.buckets.iter().enumerate().filter(|&(_, &count)| count != 0);
        filled.map(|(bucket, &count)| {
            let (low, high) = bounds(bucket);
            (low, high, count)
        })
    }
}

impl fmt::Debug for HistogramSnapshot {
    /// Formats the main statistics, not all buckets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("mean", &self.mean())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("p999", &self.quantile(0.999))
            .field("max", &self.max)
            .finish()
    }
}
