//! The curve against caches of other sizes, and its bounds.

use forebay_base::clock::ManualClock;
use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::testing;
use proptest::prelude::*;

use super::{Capacities, Curves, HALF_LIFE_S, MAX_SHIFT, SIZES, TODAY, Totals, most_bytes};
use crate::attributes::{Attributes, Class};
use crate::inner::Bound;
use crate::insight_budget::InsightBudget;
use crate::policy::admission::RULES;
use crate::policy::simulation::access_buffer::{Access, AccessBuffer, AccessKind};
use crate::sample::sample_key;
use crate::{Builder, Cache, Reclaim};

fn cache(capacity: u64, plain_lru: bool, clock: &Arc<ManualClock>) -> Cache<u64, ()> {
    let builder: Builder<u64, ()> = Cache::builder()
        .capacity(capacity)
        .weigher(|_, ()| 1)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .clock(clock.clone())
        .tunable("sublists", "1");
    let builder = if plain_lru { builder.plain_lru() } else { builder };
    builder.build().unwrap()
}

fn access(cache: &Cache<u64, ()>, key: u64, attributes: Attributes) -> bool {
    let hit = cache.get(&key).is_some();
    if !hit {
        cache.insert_with(key, (), attributes).unwrap();
    }
    hit
}

/// Some keys often, some in a loop, some once.
fn keys(seed: u64, spread: u64, accesses: u64) -> Vec<u64> {
    let mut rng = SmallRng::from_seed(seed);
    let key = |at: u64| match rng.below(4) {
        0 => (1 << 40) + at % spread,
        1 => (1 << 41) + at,
        _ => {
            let below = rng.below(spread) + 1;
            rng.below(below)
        }
    };
    (0..accesses).map(key).collect()
}

/// The hit ratio that a cache of that capacity really has.
fn real(keys: &[u64], capacity: u64, plain_lru: bool) -> f64 {
    let cache = cache(capacity, plain_lru, &Arc::default());
    let hits = keys.iter().filter(|key| access(&cache, **key, Attributes::DATA)).count();
    hits as f64 / keys.len() as f64
}

fn curve_errors(keys: &[u64], capacity: u64, plain_lru: bool) -> Vec<f64> {
    let cache = cache(capacity, plain_lru, &Arc::default());
    for key in keys {
        access(&cache, *key, Attributes::DATA);
    }
    let curve = cache.curve();
    assert_eq!((curve.capacity, curve.points.len()), (capacity, SIZES.len()));
    let error = |point: &crate::CurvePoint| {
        assert!((point.accesses - keys.len() as f64).abs() < 1e-6);
        let real = real(keys, point.capacity, plain_lru);
        println!("{}: {:.4}, really {real:.4}", point.capacity, point.hit_ratio());
        point.hit_ratio() - real
    };
    curve.points.iter().map(error).collect()
}

#[test]
fn it_is_exact_where_the_sample_is_the_whole_cache() {
    let errors = curve_errors(&keys(testing::seed(11), 300, 20_000), 100, true);
    // The evictor and the miniature may differ in a block now and then.
    assert!(errors.iter().all(|error| error.abs() < 0.001), "{errors:?}");
}

#[test]
fn it_is_close_where_few_blocks_are_sampled() {
    let errors = curve_errors(&keys(7, 60_000, 400_000), 10_000, false);
    let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().fold(0.0, |worst: f64, error| worst.max(error.abs()));
    assert!(mean < 0.02 && worst < 0.05, "{errors:?}");
    assert_eq!(errors[TODAY], 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 24 }))]
    /// A CLOCK is no stack algorithm, so single accesses may hit in a smaller cache only.
    #[test]
    fn more_capacity_never_hits_much_less_without_admission(
        seed in any::<u64>(),
        spread in 10..4000u64,
        capacity in 4..1000u64,
    ) {
        let cache = cache(capacity, true, &Arc::default());
        for key in keys(seed, spread, 10_000) {
            access(&cache, key, Attributes::DATA);
        }
        for pair in cache.curve().points.windows(2) {
            let (less, more) = (pair[0].hit_ratio(), pair[1].hit_ratio());
            prop_assert!(more >= less - 0.06, "{less} at {}, {more} at {}", pair[0].capacity, pair[1].capacity);
        }
    }

    /// Some blocks are used often and others once, and the two may weigh differently.
    #[test]
    fn memory_is_bounded(
        seed in any::<u64>(),
        weights in [1..100_000u64, 1..100_000u64],
        lean in any::<[bool; 2]>(),
        blocks in 1..100_000u64,
        shift in 0..MAX_SHIFT + 2,
    ) {
        let budget = most_bytes(shift);
        let mut curves = Curves::new(None, budget, Default::default());
        let mut rng = SmallRng::from_seed(seed);
        let (total, mut most) = (blocks * weights[0], 0);
        for step in 0..60_000u64 {
            let class = if rng.below(2) == 0 { Class::Data } else { Class::Metadata };
            let once = rng.below(3) > 0;
            let key = if once { step << 20 } else { rng.below(blocks) };
            let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let heaviest = weights[usize::from(once)];
            let least = if lean[usize::from(once)] { heaviest } else { 1 };
            let weight = (least + (hash >> 40) % (heaviest - least + 1)) as u32;
            let rule = rng.below(RULES.len() as u64) as usize;
            let capacities = capacities(total, total / 2);
            let access = Access { key: sample_key(hash), class, weight, kind: AccessKind::Use };
            curves.access(access, rule, capacities);
            if step % 1000 == 0 {
                most = most.max(curves.memory_bytes());
            }
        }
        println!("{most} bytes of {budget}");
        prop_assert!(most <= budget, "{most} of {budget}");
    }
}

fn capacities(total: u64, of_class: u64) -> Capacities {
    let budget = InsightBudget::FULL;
    Capacities { total, configured: total, of_class: [of_class; 2], budget }
}

#[test]
fn few_blocks_are_sampled_densely_and_many_sparsely() {
    for (capacity, sampled) in [(260, 1..=1), (16_384, 32..=64), (1 << 20, 2048..=4096)] {
        let mut curves = Curves::new(None, u64::MAX, Default::default());
        let mut rng = SmallRng::from_seed(capacity);
        for _ in 0..8 * capacity {
            let key = sample_key(rng.below(2 * capacity).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let access = Access { key, class: Class::Data, weight: 1, kind: AccessKind::Use };
            curves.access(access, 0, capacities(capacity, capacity));
        }
        let one_in = curves.mask(Class::Data) + 1;
        println!("{capacity} blocks: one of {one_in}");
        assert!(sampled.contains(&one_in), "{capacity} blocks: one of {one_in}");
    }
}

#[test]
fn it_follows_the_last_minutes() {
    let clock = Arc::new(ManualClock::new());
    let cache = cache(100, false, &clock);
    // A loop that fits.
    for at in 0..10_000 {
        access(&cache, at % 50, Attributes::DATA);
    }
    let before = cache.curve();
    assert!(before.points[TODAY].hit_ratio() > 0.99, "{before:?}");
    clock.advance((20.0 * HALF_LIFE_S * 1e9) as u64);
    drop(cache.curve());
    // A loop of twice the capacity.
    for at in 0..10_000 {
        access(&cache, 1000 + at % 200, Attributes::DATA);
    }
    let after = cache.curve();
    assert!((after.points[TODAY].accesses - 10_000.0).abs() < 1.0, "{after:?}");
    assert!(after.points[TODAY].hit_ratio() < 0.6, "{after:?}");
    assert!(after.points[TODAY + 2].hit_ratio() > 0.9, "{after:?}");
    assert!(after.seconds < 1.0, "{after:?}");
}

#[test]
fn dropped_accesses_are_counted() {
    let cache = cache(400, false, &Arc::default());
    for key in 0..400 {
        access(&cache, key, Attributes::DATA);
    }
    // Nothing replays while all accesses hit.
    let mut rng = SmallRng::from_seed(2);
    for _ in 0..100_000 {
        assert!(access(&cache, rng.below(400), Attributes::DATA));
    }
    let curve = cache.curve();
    let ratio = |n: usize| curve.points[n].hit_ratio();
    println!("{:?}", curve.points);
    // A quarter of the blocks hit a quarter of the time.
    assert!((ratio(0) - 0.25).abs() < 0.1 && (ratio(1) - 0.5).abs() < 0.1, "{curve:?}");
    assert!(ratio(TODAY) > 0.99 && ratio(7) > 0.99, "{curve:?}");
}

#[test]
fn a_class_takes_what_the_other_leaves() {
    let cache = cache(200, false, &Arc::default());
    let mut rng = SmallRng::from_seed(3);
    // Metadata is 20 blocks. Data would fill 500.
    for _ in 0..50_000 {
        access(&cache, rng.below(20), Attributes::METADATA);
        access(&cache, 1000 + rng.below(500), Attributes::DATA);
    }
    let curve = cache.curve();
    let [metadata, data] = &curve.by_class;
    assert!(metadata[TODAY].hit_ratio() > 0.95 && metadata[7].hit_ratio() > 0.99, "{metadata:?}");
    // 300 blocks less 20, then 400 less 20.
    assert!((data[4].hit_ratio() - 0.56).abs() < 0.05, "{data:?}");
    assert!((data[5].hit_ratio() - 0.76).abs() < 0.05, "{data:?}");
    let both = &curve.points[5];
    assert!((both.accesses - 100_000.0).abs() < 1e-3);
    assert!((both.misses - metadata[5].misses - data[5].misses).abs() < 1e-6);
}

#[test]
fn totals_that_fall_behind_count_nothing() {
    let mut curves = Curves::new(None, u64::MAX, Default::default());
    curves.advance(Totals { now_ns: 9, hits: [5, 5], misses: [1, 1], loads: [2, 30] }, 100);
    curves.advance(Totals { now_ns: 3, hits: [4, 5], misses: [1, 0], loads: [1, 9] }, 100);
    let point = curves.curve(100).points[TODAY];
    assert!((point.accesses - 12.0).abs() < 1e-3, "{point:?}");
}

#[test]
fn less_memory_makes_smaller_samples_and_much_less_none() {
    let full = most_bytes(0);
    let mut curves = Curves::new(None, full, Default::default());
    for (budget, shift) in [
        (full, 0),
        (full - 1, 1),
        // It would fit, but only just.
        (full, 1),
        (full / 8 * 9 + 16, 0),
        (most_bytes(3), 3),
        (most_bytes(3) - 1, MAX_SHIFT + 1),
        (most_bytes(3), MAX_SHIFT + 1),
        (full, 0),
    ] {
        curves.keep_to(budget);
        assert_eq!(curves.shift, shift, "{budget}");
    }
    let cache = Cache::<u64, u64>::builder().bound(1 << 20).weigher(|_, _| 1000).build().unwrap();
    (0..5000).for_each(|key| cache.insert(key, key).unwrap());
    assert!(cache.curve().points.is_empty());
    cache.resize(64 << 20);
    (0..5000).for_each(|key| cache.insert(key, key).unwrap());
    while cache.curve().points.is_empty() {
        cache.insert(1, 1).unwrap();
    }
}

#[test]
fn a_cache_that_grows_gets_the_samples_of_a_large_one() {
    let bounds = |mib: u64| Bound { bytes: AtomicU64::new(mib << 20), others: None };
    for (shards, mib) in [1, 4, 16, 128].into_iter().flat_map(|s| [7, 20, 27, 40].map(|m| (s, m))) {
        let small = InsightBudget::of(Some(&bounds(mib)), true);
        let buffer = AccessBuffer::new(shards, small.access_buffer(), small.batches());
        let large = InsightBudget::of(Some(&bounds(10 << 10)), true).curve(buffer.memory_bytes());
        let mut curves = Curves::new(None, small.curve(buffer.memory_bytes()), Default::default());
        assert!(curves.shift > 0, "{mib} MiB, {shards} shards");
        curves.keep_to(large);
        assert_eq!(curves.shift, 0, "{mib} MiB, {shards} shards");
    }
}

#[test]
fn a_cache_that_was_resized_knows_its_curve_as_well_as_one_that_was_not() {
    let error = |first: u64| {
        let cache: Cache<u64, ()> = Cache::builder()
            .bound(first)
            .weigher(|_, ()| 1 << 20)
            .reclaim(Reclaim::Inline)
            .seed(1)
            .tunable("sublists", "1")
            .build()
            .unwrap();
        cache.resize(1 << 30);
        keys(5, 6000, 40_000).iter().for_each(|key| _ = access(&cache, *key, Attributes::DATA));
        cache.curve().points.iter().map(|point| point.error).sum::<f64>()
    };
    let [resized, new] = [40 << 20, 1 << 30].map(error);
    assert!(new > 0.0 && (resized / new - 1.0).abs() < 0.1, "{resized}, new {new}");
}

/// Capacities, and whether the point is that of a full cache.
fn full(cache: &Cache<u64, ()>) -> Vec<(u64, bool)> {
    cache.curve().points.iter().map(|point| (point.capacity, point.full)).collect()
}

#[test]
fn another_capacity_begins_the_sums_anew_and_has_to_fill() {
    let clock = Arc::new(ManualClock::new());
    let cache = cache(100, false, &clock);
    let mut rng = SmallRng::from_seed(4);
    let mut read = |accesses: u64| {
        (0..accesses).for_each(|_| _ = access(&cache, rng.below(500), Attributes::DATA));
    };
    read(20_000);
    assert_eq!(full(&cache).last(), Some(&(400, true)));
    // What was simulated were other sizes than those of the points.
    cache.resize(400);
    let points = cache.curve().points;
    assert!(points.iter().all(|point| point.accesses == 0.0 && point.misses == 0.0), "{points:#?}");
    assert!(cache.curve().capacity_for(0.5).is_none());
    assert!(full(&cache).iter().all(|(_, full)| !full), "{:?}", full(&cache));
    read(20_000);
    let points = cache.curve().points;
    assert_eq!(points[TODAY].accesses, 20_000.0);
    // Of 500 blocks, a hundred fit, or all.
    assert!((points[0].hit_ratio() - 0.2).abs() < 0.05, "{points:#?}");
    assert!(points[TODAY + 1].hit_ratio() > 0.95, "{points:#?}");
    // A small change changes no more than the points.
    cache.resize(420);
    assert_eq!(cache.curve().points[TODAY].accesses, 20_000.0);
}

/// A pool's dirty bytes count against the hard bound of its cache, and come and go with each
/// transaction group.
#[test]
fn overhead_that_comes_and_goes_keeps_the_sums() {
    const BOUND: u64 = 64 << 20;
    let (clock, dirty) = (Arc::new(ManualClock::new()), Arc::new(AtomicU64::new(0)));
    let others = dirty.clone();
    let cache: Cache<u64, ()> = Cache::builder()
        .bound(BOUND)
        .overhead(move || others.load(Ordering::Relaxed))
        .weigher(|_, ()| 1 << 16)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .clock(clock.clone())
        .tunable("sublists", "1")
        .build()
        .unwrap();
    let mut capacities = Vec::new();
    for second in 0..40 {
        dirty.store(if second % 2 == 0 { BOUND / 10 * 3 } else { 0 }, Ordering::Relaxed);
        // Refreshes the target.
        cache.resize(BOUND);
        (0..300).for_each(|at| _ = access(&cache, (second * 300 + at) % 2000, Attributes::DATA));
        clock.advance(1_000_000_000);
        capacities.push(cache.curve().capacity);
    }
    let (less, more) = (capacities[38], capacities[39]);
    assert!(more - less > more / 4, "{capacities:?}");
    let curve = cache.curve();
    // Of 40 seconds and 12,000 accesses, before some decay.
    assert!(curve.busy_seconds > 30.0, "{curve:?}");
    assert!(curve.points[TODAY].accesses > 9000.0, "{curve:?}");
}

#[test]
fn an_idle_class_does_not_make_a_size_full() {
    let cache = cache(10, false, &Arc::default());
    // Even a size of two blocks has to fill.
    access(&cache, 0, Attributes::METADATA);
    assert!(full(&cache).iter().all(|(_, full)| !full), "{:?}", full(&cache));
    (0..1000).for_each(|key| _ = access(&cache, key, Attributes::METADATA));
    assert!(full(&cache).iter().all(|(_, full)| *full), "{:?}", full(&cache));
    cache.resize(1000);
    // They fill a quarter, and nothing above.
    (0..10_000).for_each(|at| _ = access(&cache, 5000 + at % 300, Attributes::DATA));
    let found = full(&cache);
    assert!(found.iter().all(|(capacity, full)| *full == (*capacity == 250)), "{found:?}");
    let curve = cache.curve();
    for of_class in &curve.by_class {
        assert!(of_class.iter().zip(&curve.points).all(|(one, both)| one.full == both.full));
    }
}
