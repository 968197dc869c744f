//! Tests of histograms against sorted lists of the values.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests with real threads; the model checker has tests of its own"
)]

use proptest::prelude::*;

use super::*;

/// Values of all magnitudes, and values at the edges of buckets.
fn values() -> impl Strategy<Value = Vec<u64>> {
    let any_magnitude = (any::<u64>(), 0..64u32).prop_map(|(value, shift)| value >> shift);
    let edge =
        (0..64u32, -1..=1i64).prop_map(|(exponent, by)| (1u64 << exponent).wrapping_add_signed(by));
    let edges = prop_oneof![3 => any_magnitude, 1 => edge, 1 => Just(u64::MAX)];
    prop::collection::vec(edges, 0..200)
}

fn recorded(values: &[u64]) -> HistogramSnapshot {
    let histogram = AtomicHistogram::new();
    values.iter().for_each(|&value| histogram.record(value));
    histogram.snapshot()
}

/// Every bucket starts after the end of the previous bucket, from 0 to the last value.
#[test]
fn buckets_cover_all_values_once() {
    let mut next = Some(0);
    for bucket in 0..BUCKETS {
        let (low, high) = bounds(bucket);
        assert_eq!(Some(low), next, "bucket {bucket}");
        assert!(high - low <= low / STEPS, "bucket {bucket} is too wide");
        assert_eq!(bucket_of(low), bucket);
        assert_eq!(bucket_of(high), bucket);
        next = high.checked_add(1);
    }
    assert_eq!(next, None, "the last bucket ends with the last value");
}

#[test]
fn an_empty_histogram_reads_zero() {
    let empty = AtomicHistogram::new().snapshot();
    assert_eq!(empty, HistogramSnapshot::empty());
    assert_eq!((empty.count, empty.sum, empty.max), (0, 0, 0));
    assert_eq!(empty.quantile(0.5), 0);
    assert_eq!(empty.mean(), 0.0);
    assert_eq!(empty.buckets().count(), 0);
}

#[test]
fn small_values_are_exact() {
    let snapshot = recorded(&[3, 1, 2, 2]);
    assert_eq!(snapshot.quantile(0.0), 1);
    assert_eq!(snapshot.quantile(0.5), 2);
    assert_eq!(snapshot.quantile(1.0), 3);
    assert_eq!(snapshot.mean(), 2.0);
    assert_eq!(snapshot.buckets().collect::<Vec<_>>(), [(1, 1, 1), (2, 2, 2), (3, 3, 1)]);
}

#[test]
#[should_panic(expected = "within 0 and 1")]
fn a_quantile_above_one_is_refused() {
    HistogramSnapshot::empty().quantile(1.5);
}

#[test]
fn threads_lose_no_value() {
    const THREADS: u64 = 4;
    const RECORDS: u64 = 5_000;
    let histogram = AtomicHistogram::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let histogram = &histogram;
            scope.spawn(move || (0..RECORDS).for_each(|i| histogram.record(i * THREADS + thread)));
        }
    });
    let snapshot = histogram.snapshot();
    let count = THREADS * RECORDS;
    assert_eq!(snapshot.count, count);
    assert_eq!(snapshot.sum, count * (count - 1) / 2);
    assert_eq!(snapshot.max, count - 1);
}

proptest! {
    #[test]
    fn quantiles_are_those_of_the_sorted_values(values in values(), q in 0.0..=1.0f64) {
        let snapshot = recorded(&values);
        let mut sorted = values;
        sorted.sort_unstable();
        prop_assert_eq!(snapshot.count, sorted.len() as u64);
        prop_assert_eq!(snapshot.max, sorted.last().copied().unwrap_or(0));
        prop_assert_eq!(snapshot.sum, sorted.iter().fold(0, |sum, &v| v.wrapping_add(sum)));
        prop_assume!(!sorted.is_empty());
        for q in [0.0, q, 0.5, 0.99, 1.0] {
            let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
            let (exact, found) = (sorted[rank - 1], snapshot.quantile(q));
            prop_assert!(exact <= found, "{} is below {}", found, exact);
            prop_assert!(found - exact <= exact / STEPS, "{} is far from {}", found, exact);
        }
        prop_assert_eq!(snapshot.quantile(1.0), snapshot.max);
    }

    #[test]
    fn buckets_count_the_values_between_their_bounds(values in values()) {
        let snapshot = recorded(&values);
        for (low, high, count) in snapshot.buckets() {
            let within = values.iter().filter(|&value| (low..=high).contains(value)).count();
            prop_assert_eq!(within as u64, count);
        }
        let counts: u64 = snapshot.buckets().map(|(_, _, count)| count).sum();
        prop_assert_eq!(counts, snapshot.count);
    }

    #[test]
    fn merging_is_recording_both(one in values(), other in values()) {
        let both = recorded(&[one.as_slice(), &other].concat());
        let mut merged = recorded(&one);
        merged.merge(&recorded(&other));
        prop_assert_eq!(&merged, &both);

        let histogram = AtomicHistogram::new();
        histogram.merge(&recorded(&one));
        histogram.merge(&recorded(&other));
        prop_assert_eq!(&histogram.snapshot(), &both);
    }
}

proptest! {
    /// What was recorded between two snapshots is what was recorded then, by its buckets.
    #[test]
    fn a_difference_has_the_values_between(before in values(), after in values()) {
        let histogram = AtomicHistogram::new();
        before.iter().for_each(|&value| histogram.record(value));
        let earlier = histogram.snapshot();
        after.iter().for_each(|&value| histogram.record(value));
        let between = histogram.snapshot().since(&earlier);
        let expected = recorded(&after);
        prop_assert!(between.buckets().eq(expected.buckets()));
        prop_assert_eq!((between.count, between.sum), (expected.count, expected.sum));
        prop_assert!(between.max >= expected.max);
        prop_assert!(between.max - expected.max <= expected.max / STEPS);
        prop_assert_eq!(between.since(&between).count, 0);
    }

    /// A snapshot survives being listed and put together again.
    #[test]
    fn buckets_make_the_snapshot_again(values in values()) {
        let snapshot = recorded(&values);
        let listed = snapshot.buckets().map(|(low, _, count)| (low, count));
        let again = HistogramSnapshot::from_buckets(listed, snapshot.sum, snapshot.max);
        prop_assert_eq!(again, snapshot);
    }
}
