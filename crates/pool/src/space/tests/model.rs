//! The range set against a bitmap, and allocation against its promises.

use proptest::prelude::*;

use super::fixture::{World, span};
use crate::ErrorKind;
use crate::space::range_set::{RangeSet, Run, merge, normalize, unite};

const UNITS: u32 = 200;

#[derive(Default)]
struct NaiveBitmap(Vec<bool>);

impl NaiveBitmap {
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for at in (0..UNITS).filter(|at| self.0[*at as usize]) {
            match runs.last_mut().filter(|run| run.end() == at) {
                Some(run) => run.units += 1,
                None => runs.push(Run::new(at, 1)),
            }
        }
        runs
    }

    fn all(&self, run: Run, value: bool) -> bool {
        (run.start..run.end()).all(|at| self.0[at as usize] == value)
    }

    fn set(&mut self, run: Run, value: bool) {
        (run.start..run.end()).for_each(|at| self.0[at as usize] = value);
    }
}

fn longest(runs: &[Run]) -> Option<u32> {
    runs.iter().map(|run| run.units).max()
}

proptest! {
    #[test]
    fn a_range_set_is_a_bitmap(
        steps in prop::collection::vec((0u8..9, 0..UNITS, 1u32..30), 1..200),
    ) {
        let (mut set, mut naive) = (RangeSet::default(), NaiveBitmap(vec![false; UNITS as usize]));
        for (kind, start, units) in steps {
            let run = Run::new(start, units.min(UNITS - start));
            match kind {
                0 | 1 => {
                    prop_assert_eq!(set.insert(run), naive.all(run, false));
                    if naive.all(run, false) {
                        naive.set(run, true);
                    }
                }
                2 => {
                    prop_assert_eq!(set.remove(run), naive.all(run, true));
                    if naive.all(run, true) {
                        naive.set(run, false);
                    }
                }
                3 => prop_assert_eq!(set.overlaps(run), !naive.all(run, false)),
                7 => {
                    // Several at once: what is in the window and there.
                    let mut cuts = NaiveBitmap(vec![false; UNITS as usize]);
                    (run.start..run.end())
                        .for_each(|at| cuts.set(Run::new(at, 1), at % 7 < 4 && naive.0[at as usize]));
                    prop_assert!(set.remove_ascending(&cuts.runs()));
                    cuts.runs().into_iter().for_each(|run| naive.set(run, false));
                }
                6 => {
                    let mut window = NaiveBitmap(vec![false; UNITS as usize]);
                    (run.start..run.end()).for_each(|at| window.set(Run::new(at, 1), naive.0[at as usize]));
                    prop_assert_eq!(set.within(run), window.runs());
                }
                4 => {
                    let taken = set.take_largest();
                    prop_assert_eq!(taken.map(|run| run.units), longest(&naive.runs()));
                    taken.into_iter().for_each(|run| naive.set(run, false));
                }
                5 => {
                    // Several at once: what is in the window and not there, or the window if it is
                    // clean.
                    let mut gaps = NaiveBitmap(vec![false; UNITS as usize]);
                    (run.start..run.end())
                        .for_each(|at| gaps.set(Run::new(at, 1), at % 7 < 4 && !naive.0[at as usize]));
                    prop_assert!(set.insert_ascending(&gaps.runs()));
                    gaps.runs().into_iter().for_each(|run| naive.set(run, true));
                }
                _ => {
                    let runs = naive.runs();
                    let fit = runs.iter().map(|run| run.units).filter(|it| *it >= units).min();
                    let taken = set.take_best_fit(units);
                    prop_assert_eq!(taken.map(|run| run.units), fit);
                    taken.into_iter().for_each(|run| naive.set(run, false));
                }
            }
            let runs = set.to_vec();
            prop_assert_eq!(&runs, &naive.runs());
            prop_assert_eq!(set.len(), runs.len());
            prop_assert_eq!(set.units(), runs.iter().map(|run| u64::from(run.units)).sum::<u64>());
            let again = RangeSet::from_ascending(runs.clone()).expect("they ascend");
            prop_assert_eq!(again.largest().map(|run| run.units), longest(&runs));
            prop_assert_eq!(again.to_vec(), runs);
        }
    }

    #[test]
    fn lists_merge_unless_they_meet(
        units in prop::collection::vec((0..UNITS, any::<bool>()), 0..60),
        overlap in 0u8..4,
    ) {
        let (mut a, mut b) = (NaiveBitmap(vec![false; UNITS as usize]), NaiveBitmap(vec![false; UNITS as usize]));
        for (at, left) in units {
            let run = Run::new(at, 1);
            if left {
                a.set(run, true);
            }
            b.set(run, (!left && !a.all(run, true)) || overlap == 0);
        }
        let mut both = NaiveBitmap(a.0.clone());
        b.runs().into_iter().for_each(|run| both.set(run, true));
        let clean = a.0.iter().zip(&b.0).all(|(a, b)| !(a & b));
        let expected = clean.then(|| both.runs());
        prop_assert_eq!(merge(&a.runs(), &b.runs()), expected);
    }

    #[test]
    fn a_union_is_what_a_bitmap_says(
        units in prop::collection::vec((0..UNITS, any::<bool>(), any::<bool>()), 0..80),
    ) {
        let empty = || NaiveBitmap(vec![false; UNITS as usize]);
        let (mut a, mut b, mut both) = (empty(), empty(), empty());
        for (at, left, right) in units {
            let run = Run::new(at, 1);
            a.set(run, left);
            b.set(run, right);
            both.set(run, left || right);
        }
        prop_assert_eq!(unite(&a.runs(), &b.runs()), both.runs());
    }

    #[test]
    fn normal_lists_are_what_a_bitmap_says(
        runs in prop::collection::vec((0..UNITS, 1u32..12), 0..30),
    ) {
        let mut naive = NaiveBitmap(vec![false; UNITS as usize]);
        let mut clean = true;
        let mut list = Vec::new();
        for (start, units) in runs {
            let run = Run::new(start, units.min(UNITS - start));
            clean &= naive.all(run, false);
            naive.set(run, true);
            list.push(run);
        }
        prop_assert_eq!(normalize(&mut list).is_ok(), clean);
        if clean {
            prop_assert_eq!(list, naive.runs());
        }
    }
}

#[test]
fn two_copies_are_far_apart() {
    let bytes = 64u64 << 20;
    let mut world = World::new(&[span(0, 1 << 18, bytes)], 4096, 1);
    for _ in 0..8 {
        world.begin();
        for _ in 0..150 {
            world.allocate(16 << 10, 2).expect("there is space");
            let (places, _) = world.live.last().expect("it was allocated");
            let [Some(a), Some(b)] = places.map(|place| place.get()) else { panic!("two copies") };
            assert!(a.offset.abs_diff(b.offset) >= bytes / 8, "{a} and {b}");
        }
        world.end();
    }
    let near = crate::space::SpaceCounters::COPIES_NEAR;
    assert_eq!(world.space.counters().total(near), 0);
}

#[test]
fn two_copies_stay_far_apart_as_a_pool_ages() {
    let bytes = 64u64 << 20;
    let mut world = World::new(&[span(0, 1 << 18, bytes)], 512, 8);
    for txg in 0..60 {
        world.begin();
        for _ in 0..300 {
            let length = 512 * (1 + world.rng.below(60));
            let copies = 1 + world.rng.below(2) as usize;
            world.allocate(length, copies).expect("there is space");
            let (places, _) = world.live.last().expect("it was allocated");
            if let [Some(a), Some(b)] = places.map(|place| place.get()) {
                let apart = a.offset.abs_diff(b.offset);
                assert!(apart >= bytes / 8, "txg {txg}: {a} and {b}");
            }
        }
        while world.space.stats().allocated_bytes > bytes / 2 {
            world.free_one();
        }
        world.end();
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
}

#[test]
fn copies_go_to_different_devices_and_all_are_used() {
    let spans =
        [span(0, 1 << 18, 16 << 20), span(1, 1 << 18, 32 << 20), span(7, 1 << 18, 64 << 20)];
    let mut world = World::new(&spans, 512, 1);
    world.begin();
    for _ in 0..600 {
        world.allocate(32 << 10, 2).expect("there is space");
        let (places, _) = world.live.last().expect("it was allocated");
        let [Some(a), Some(b)] = places.map(|place| place.get()) else { panic!("two copies") };
        assert_ne!(a.device, b.device);
    }
    world.end();
    for device in world.space.stats().devices {
        assert!(device.free_bytes * 10 < device.total_bytes * 9, "{device:?}");
    }
}

#[test]
fn blocks_follow_each_other() {
    let mut world = World::new(&[span(0, 1 << 18, 64 << 20)], 512, 1);
    world.begin();
    for _ in 0..100 {
        world.allocate(2048, 1).expect("there is space");
    }
    let offsets: Vec<u64> =
        world.live.iter().filter_map(|(places, _)| places[0].get()).map(|dva| dva.offset).collect();
    assert!(offsets.windows(2).all(|pair| pair[1] == pair[0] + 2048), "{offsets:?}");
}

#[test]
fn what_was_freed_comes_back_after_two_txgs() {
    let mut world = World::new(&[span(0, 1 << 18, 16 << 20)], 512, 1);
    world.begin();
    world.allocate(1 << 20, 1).expect("there is space");
    world.end();
    world.begin();
    world.free_one();
    world.end();
    let deferred = |world: &World| world.space.stats().deferred_bytes;
    let matured =
        |world: &World| world.space.counters().total(crate::space::SpaceCounters::MATURED_BYTES);
    assert!(deferred(&world) >= 1 << 20);
    world.begin();
    world.end();
    assert!(deferred(&world) >= 1 << 20);
    world.begin();
    world.end();
    assert!(deferred(&world) < 1 << 20);
    assert!(matured(&world) >= 1 << 20);
}

/// Fills the pool to the end, again and again, with holes of all sizes; it must never wedge.
fn live_near_the_end(seed: u64, sector: u64, megabytes: u64) {
    let mut world = World::new(&[span(0, 1 << 18, megabytes << 20)], sector, seed);
    let mut refused = 0;
    for txg in 0..120u64 {
        world.begin();
        for _ in 0..150 {
            let bytes = (1 + world.rng.below(1 << (txg % 7))) * sector;
            let copies = 1 + world.rng.below(2) as usize;
            match world.allocate(bytes, copies) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    refused += 1;
                    // The sync itself must not fail, however little users leave.
                    if world.rng.below(3) == 0 {
                        world.free_one();
                    }
                }
            }
        }
        for _ in 0..world.rng.below(12) {
            world.free_one();
        }
        world.end();
        let root = world.roots.last().expect("a root");
        world.check(root);
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    assert!(refused > 0, "seed {seed}: it never was full");
    while !world.live.is_empty() {
        world.begin();
        (0..500).for_each(|_| world.free_one());
        world.end();
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    for _ in 0..100 {
        world.begin();
        world.end();
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    let stats = world.space.stats();
    assert!(stats.allocated_bytes < 600 << 10, "{stats:?}");
}

#[test]
fn a_full_pool_never_wedges() {
    for seed in 0..4 {
        live_near_the_end(seed, 512 << (seed % 2 * 3), 4 + seed * 2);
    }
}
