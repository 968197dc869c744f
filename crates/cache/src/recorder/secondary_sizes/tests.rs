//! The simulated sizes of the secondary cache by themselves.

use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::AtomicU64;
use proptest::prelude::*;

use super::{
    LEAST, NOWHERE, Needed, Ring, SIZES, SecondarySizes, SecondaryTotals, TODAY, most_entries,
};
use crate::attributes::Class;
use crate::inner::Bound;
use crate::insight_budget::InsightBudget;
use crate::key::OwnerId;
use crate::recorder::RecordedBlock;
use crate::sample::{Sample, sample_key};

fn block(owner: u16) -> RecordedBlock {
    RecordedBlock { owner: OwnerId::from_raw(owner), label: 0, class: Class::Data }
}

fn key(number: u64) -> u64 {
    sample_key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[test]
fn a_ring_holds_its_last_segments() {
    let mut ring = Ring::of(128);
    assert_eq!((ring.segment_bytes, ring.segments), (2, 64));
    ring.written = 128;
    assert!(ring.is_full() && ring.holds(0) && !ring.holds(NOWHERE));
    ring.written = 129;
    assert_eq!([0, 1].map(|place| ring.holds(place)), [false, true]);
}

/// Blocks at random, of which a ring of any size holds its share.
fn random_misses(sizes: &mut SecondarySizes, seed: u64, keys: u64, steps: u64, weight: u32) {
    let mut rng = SmallRng::from_seed(seed);
    for _ in 0..steps {
        let key = key(rng.below(keys));
        sizes.miss(key, block(1));
        sizes.evicted(key, weight);
    }
}

#[test]
fn a_large_cache_is_sampled_and_every_size_holds_its_share() {
    let (blocks, weight) = (50_000, 8);
    let mut sizes = SecondarySizes::new(u64::MAX);
    sizes.set_capacity(blocks * u64::from(weight));
    // Fills the rings.
    random_misses(&mut sizes, 3, 4 * blocks, 1_000_000, weight);
    assert!(sizes.shift >= 3, "{}", sizes.shift);
    sizes.sums = super::Sums::default();
    random_misses(&mut sizes, 4, 4 * blocks, 1_000_000, weight);
    let now = sizes.sums.of_class(Class::Data);
    assert!((now.asked - 1e6).abs() < 0.05 * 1e6, "{}", now.asked);
    for (n, percent) in SIZES.into_iter().enumerate() {
        let held = 1.0 - now.missed[n] / now.asked;
        let share = percent as f64 / 400.0;
        assert!((held - share).abs() < 0.04, "{percent} %: {held}, not {share}");
    }
    assert!(sizes.memory_bytes() < 1 << 20, "{}", sizes.memory_bytes());
}

#[test]
fn the_smallest_size_that_serves_a_miss_is_told() {
    let mut sizes = SecondarySizes::new(u64::MAX);
    assert_eq!(sizes.miss(key(7), block(1)), Needed::Unknown, "there is no secondary cache");
    assert_eq!(sizes.mask(), Sample::NONE);
    sizes.set_capacity(100);
    assert_eq!(sizes.miss(key(7), block(1)), Needed::More);
    sizes.evicted(key(7), 1);
    assert_eq!(sizes.miss(key(7), block(1)), Needed::Size(0));
    (100..220).for_each(|n| sizes.evicted(key(n), 1));
    assert_eq!(sizes.miss(key(7), block(1)), Needed::Size(TODAY as u8 + 1));
    sizes.removed(key(7));
    assert_eq!(sizes.miss(key(7), block(1)), Needed::More);
    // About the same size keeps what is known.
    sizes.set_capacity(105);
    assert_eq!(sizes.miss(key(219), block(1)), Needed::Size(0));
    sizes.set_capacity(300);
    assert_eq!(sizes.miss(key(219), block(1)), Needed::More);
}

#[test]
fn many_owners_are_counted_together_and_old_ones_are_forgotten() {
    let mut sizes = SecondarySizes::new(u64::MAX);
    sizes.set_capacity(100);
    let at = |seconds: u64| SecondaryTotals {
        now_ns: seconds * 1_000_000_000,
        ..SecondaryTotals::default()
    };
    sizes.advance(at(1));
    (0..200).for_each(|n| _ = sizes.miss(key(n), block(n as u16)));
    let owners = sizes.curve().expect("a curve").by_owner.len();
    assert!((2..=super::GROUPS).contains(&owners), "{owners}");
    assert_eq!(sizes.sums.of_class(Class::Data).asked, 200.0);
    sizes.advance(at(2000));
    assert!(sizes.curve().expect("a curve").by_owner.is_empty());
}

#[test]
fn a_sample_that_became_too_coarse_starts_anew() {
    let mut sizes = SecondarySizes::new(u64::MAX);
    sizes.set_capacity(50_000);
    random_misses(&mut sizes, 3, 400_000, 600_000, 1);
    let shift = sizes.shift;
    // The blocks are so large now that rings hold few of them.
    random_misses(&mut sizes, 4, 400_000, 2_000_000, 1000);
    assert!(sizes.shift < shift, "{} of {shift}", sizes.shift);
}

/// Hit ratios at a quarter, half, three quarters and all of today's size, if the real cache
/// serves that part of the misses.
fn smaller(keys: u64, served: f64) -> [f64; 4] {
    let mut sizes = SecondarySizes::new(u64::MAX);
    sizes.set_capacity(1000);
    sizes.advance(SecondaryTotals::default());
    random_misses(&mut sizes, 3, keys, 20_000, 1);
    sizes.sums = super::Sums::default();
    random_misses(&mut sizes, 4, keys, 20_000, 1);
    let served = [0, (20_000.0 * served) as u64];
    let totals = SecondaryTotals { misses: [0, 20_000], served, ..SecondaryTotals::default() };
    sizes.advance(totals);
    let points = sizes.curve().expect("a curve").points;
    std::array::from_fn(|n| points[n].hit_ratio())
}

#[test]
fn a_smaller_one_is_not_as_good_if_only_a_ring_would_be() {
    // As good as a ring: a quarter is enough for 200 blocks.
    assert!(smaller(200, 1.0).iter().all(|ratio| *ratio > 0.99));
    // It declines nearly all that a ring takes.
    for keys in [200, 1100] {
        let ratios = smaller(keys, 0.1);
        assert!((ratios[TODAY] - 0.1).abs() < 1e-6, "{ratios:?}");
        for (n, ratio) in ratios.iter().enumerate().take(TODAY) {
            assert!(*ratio <= 0.1 * SIZES[n] as f64 / 100.0 + 1e-6, "{keys}: {ratios:?}");
        }
    }
}

#[test]
fn its_memory_follows_the_budget() {
    let full = InsightBudget::FULL.secondary();
    let mut sizes = SecondarySizes::new(full);
    sizes.set_capacity(50_000);
    random_misses(&mut sizes, 3, 400_000, 200_000, 1);
    let (before, shift) = (sizes.memory_bytes(), sizes.shift);
    assert!(before > full / 2, "{before} of {full}");
    // A quarter keeps a sample of what is known.
    sizes.keep_to(full / 4);
    sizes.set_capacity(50_000);
    assert!(sizes.memory_bytes() <= full / 4, "{} of {full}", sizes.memory_bytes());
    assert!(sizes.shift > shift && !sizes.entries.is_empty());
    random_misses(&mut sizes, 4, 400_000, 200_000, 1);
    assert!(sizes.memory_bytes() <= full / 4, "{} of {full}", sizes.memory_bytes());
    // Far too little.
    sizes.keep_to(full / 100);
    sizes.set_capacity(50_000);
    assert_eq!((sizes.capacity(), sizes.memory_bytes()), (0, 0));
    sizes.keep_to(full);
    sizes.set_capacity(50_000);
    random_misses(&mut sizes, 5, 400_000, 200_000, 1);
    assert!(sizes.memory_bytes() > full / 2, "{} of {full}", sizes.memory_bytes());
}

/// As the documentation of `Cache::secondary_curve` says.
#[test]
fn a_bound_of_5_mib_is_the_least_that_leaves_memory_for_it() {
    let has_memory = |mib: u64| {
        let bound = Bound { bytes: AtomicU64::new(mib << 20), others: None };
        let mut sizes = SecondarySizes::new(InsightBudget::of(Some(&bound), true).secondary());
        sizes.set_capacity(1 << 20);
        sizes.capacity() > 0
    };
    assert_eq!([4, 5].map(has_memory), [false, true]);
}

#[test]
fn halving_the_sample_keeps_what_the_rings_hold() {
    let mut sizes = SecondarySizes::new(InsightBudget::FULL.secondary());
    sizes.set_capacity(4000);
    (0..10_000).for_each(|n| sizes.evicted(key(n), 1));
    let held = |sizes: &SecondarySizes| {
        let is_held = |n: usize| {
            let ring = &sizes.rings[n];
            let in_ring = |entry: &&super::Tracked| ring.holds(entry.places[n]);
            sizes.entries.iter().filter(in_ring).count() as f64
        };
        [0, TODAY, SIZES.len() - 1].map(is_held)
    };
    let before = held(&sizes);
    sizes.halve();
    for (before, after) in before.into_iter().zip(held(&sizes)) {
        assert!((after - before / 2.0).abs() < 0.1 * before, "{before} became {after}");
    }
    for n in 0..10_000 {
        let found = sizes.number(key(n)).map(|number| sizes.entries[number as usize].key);
        assert_eq!(found.is_some(), key(n) & sizes.mask() == 0);
        assert!(found.is_none_or(|found| found == key(n)));
    }
    // The newest are in all rings, the oldest only in the largest.
    let newest = (0..10_000).rev().find(|n| sizes.samples(key(*n))).expect("half of them");
    assert_eq!(sizes.miss(key(newest), block(1)), Needed::Size(0));
    let oldest = (0..10_000).find(|n| sizes.samples(key(*n))).expect("half of them");
    assert_eq!(sizes.miss(key(oldest), block(1)), Needed::Size(SIZES.len() as u8 - 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 16 }))]
    #[test]
    fn memory_is_bounded(
        seed in any::<u64>(),
        shift in 0..7u32,
        blocks in 1..100_000u64,
        heaviest in 1..10_000u64,
    ) {
        let budget = InsightBudget::FULL.secondary() >> shift;
        let mut sizes = SecondarySizes::new(budget);
        let mut rng = SmallRng::from_seed(seed);
        sizes.set_capacity(blocks * heaviest);
        prop_assert_eq!(sizes.capacity() > 0, most_entries(budget) >= LEAST);
        let mut most = 0;
        for step in 0..60_000u64 {
            let number = if rng.below(3) == 0 { rng.below(blocks) } else { step };
            sizes.miss(key(number), block(rng.below(100) as u16));
            sizes.evicted(key(number), 1 + (number % heaviest) as u32);
            if step % 1000 == 0 {
                most = most.max(sizes.memory_bytes());
            }
        }
        prop_assert!(most <= budget, "{most} of {budget}");
    }
}
