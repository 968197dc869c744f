//! Metaslabs that are unloaded: the same ranges are free when they are loaded again.

use forebay_base::testing;
use forebay_io::AppendOnly;

use super::fixture::{World, check_used, span};
use crate::space::{DeviceSpan, SpaceCounters};

const SECTOR: u64 = 4096;
const MUTABLE: u64 = 1 << 20;
/// Ranges of loaded metaslabs.
const RANGES_MAX: usize = 100;
/// Ranges of the metaslab used last and that of the frontier, and of those ahead, which have one
/// each.
const SLACK: u64 = 2 * (256 / 2) + 80;

/// A device that takes each address once, in metaslabs of 1 MiB.
fn store() -> DeviceSpan {
    let append_only = AppendOnly { mutable_bytes: MUTABLE, next_unused: MUTABLE };
    DeviceSpan { append_only: Some(append_only), ..span(0, 1 << 18, 512 << 20) }
}

#[test]
fn unloaded_metaslabs_are_bounded_and_come_back_as_they_were() {
    let mut world = World::new(&[store()], SECTOR, testing::seed(5));
    world.space.note_discards(0, true);
    world.space.limit_loaded(RANGES_MAX);
    let mut most = 0;
    for round in 0..200 {
        world.begin();
        for _ in 0..world.rng.below(60) {
            let bytes = (1 + world.rng.below(6)) * SECTOR;
            world.allocate(bytes, 1).expect("there is space");
        }
        for _ in 0..world.rng.below(60) {
            world.free_one();
        }
        world.end();
        most = most.max(world.space.stats().loaded_ranges);
        if round % 3 == 0
            && let Some(id) = world.space.most_noted()
        {
            world.space.load_metaslab(id).expect("the base is sound");
            let mut list = world.space.noted_discards(id, SECTOR).expect("sound");
            while let Some(slice) = world.space.hold(&mut list, u64::MAX).expect("sound") {
                drop(slice);
                world.space.release_held(false).expect("sound");
            }
            world.space.end_list().expect("sound");
        }
        if round % 20 == 19 {
            let used = world.used.clone();
            check_used(&mut world.space, &used);
            world.check(world.roots.last().expect("a root"));
        }
    }
    assert!(most <= RANGES_MAX as u64 + SLACK, "{most} ranges were loaded");
    let loads = world.space.counters().total(SpaceCounters::BASES_LOADED);
    let metaslabs = world.space.stats().metaslabs;
    assert!(loads > metaslabs, "{loads} loads of {metaslabs} metaslabs");
}

#[test]
fn the_metaslab_at_the_frontier_stays_loaded() {
    let mut world = World::new(&[store()], SECTOR, testing::seed(7));
    world.space.limit_loaded(0);
    for _ in 0..8 {
        world.begin();
        world.allocate(SECTOR, 1).expect("there is space");
        world.end();
        let at = (0..).find(|&id| world.space.is_at_frontier(id)).expect("in a metaslab");
        // As a pass of discards does after each txg.
        let other = (0..).find(|&id| !world.space.is_at_frontier(id)).expect("another one");
        world.space.load_metaslab(other).expect("the base is sound");
        world.space.note_used(other);
        world.space.end_list().expect("sound");
        assert!(world.space.metaslabs[at as usize].is_loaded(), "each txg would load it again");
    }
}

#[test]
fn a_metaslab_with_a_list_of_discards_stays_loaded() {
    let mut world = World::new(&[store()], SECTOR, testing::seed(6));
    world.space.note_discards(0, true);
    for round in 0..8 {
        world.begin();
        for _ in 0..100 {
            world.allocate(2 * SECTOR, 1).expect("there is space");
        }
        for _ in 0..if round < 3 { 50 } else { 0 } {
            world.free_one();
        }
        world.end();
    }
    let id = world.space.most_noted().expect("something was freed");
    let mut list = world.space.noted_discards(id, SECTOR).expect("sound");
    world.space.limit_loaded(0);
    world.begin();
    world.end();
    let slice = world.space.hold(&mut list, u64::MAX).expect("sound");
    assert!(slice.is_some(), "the ranges of the list are unknown");
    drop(slice);
    world.space.release_held(false).expect("sound");
    world.space.end_list().expect("sound");
    let stats = world.space.stats();
    // That of the frontier, and the one that was used last.
    assert!(stats.metaslabs_loaded <= 2, "{stats:?}");
    let used = world.used.clone();
    check_used(&mut world.space, &used);
}
