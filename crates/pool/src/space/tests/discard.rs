//! Discards: no root needs what is discarded, nobody allocates what is held, and all of it comes
//! back.

use std::collections::BTreeMap;

use forebay_base::sync::thread::spawn_named;

use super::fixture::{World, check_used, span};
use crate::format::Dva;
use crate::space::{HeldSlice, SpaceCounters};

const MIN: u64 = 8 << 10;

/// Asserts that a range meets none of `used`.
#[track_caller]
fn assert_unused(used: &BTreeMap<Dva, u64>, dva: Dva, bytes: u64) {
    let end = Dva { offset: dva.offset + bytes, ..dva };
    let before = used.range(..end).next_back();
    let clear = before.is_none_or(|(other, length)| {
        other.device != dva.device || other.offset + length <= dva.offset
    });
    assert!(clear, "{bytes} bytes at {dva} meet {before:?}");
}

impl World {
    /// Begins to discard noted or all free ranges of some metaslab, and loses their content.
    fn discard_some(&mut self, max_bytes: u64) -> Option<HeldSlice> {
        let id = self.rng.below(self.metaslabs()) as u32;
        let mut list = match (self.space.most_noted(), self.rng.below(3)) {
            (Some(noted), 1..) => self.space.noted_discards(noted, MIN).expect("sound"),
            _ => self.space.all_discards(id, MIN).expect("sound"),
        };
        let slice = self.space.hold(&mut list, max_bytes).expect("sound")?;
        for &(dva, bytes) in &slice.ranges {
            assert!(bytes >= MIN.min(max_bytes));
            let newest = self.roots.iter().rev().take(3).map(|root| &root.used);
            newest.chain([&self.used]).for_each(|used| assert_unused(used, dva, bytes));
            self.disk.discard(dva, bytes);
        }
        Some(slice)
    }

    fn metaslabs(&self) -> u64 {
        (0..).take_while(|id| self.space.device_of(*id).is_some()).count() as u64
    }
}

fn work(seed: u64, sector: u64) {
    let mut world = World::new(&[span(0, 1 << 18, 48 << 20)], sector, seed);
    world.space.note_discards(0, true);
    let mut slice: Option<HeldSlice> = None;
    let mut discarded = 0;
    for _ in 0..150 {
        world.begin();
        for _ in 0..world.rng.below(80) {
            let bytes = (1 + world.rng.below(12)) * sector;
            let copies = 1 + world.rng.below(2) as usize;
            world.allocate(bytes, copies).expect("there is space");
            let (places, _) = *world.live.last().expect("it was allocated");
            let held: BTreeMap<_, _> = slice.iter().flat_map(|it| it.ranges.clone()).collect();
            let places = places.iter().filter_map(|place| place.get());
            places.for_each(|dva| assert_unused(&held, dva, bytes));
        }
        for _ in 0..world.rng.below(80) {
            world.free_one();
        }
        // The discards may end at any time.
        if world.rng.below(3) == 0 {
            slice = None;
        }
        world.end();
        if slice.is_none() || world.rng.below(3) == 0 {
            drop(slice.take());
            let most = sector << world.rng.below(12);
            slice = world.discard_some(most.max(MIN));
            discarded +=
                slice.iter().flat_map(|it| &it.ranges).map(|(_, bytes)| bytes).sum::<u64>();
        }
        // The newest three roots are intact, whether or not a slice is held.
        world.roots.drain(..world.roots.len().saturating_sub(3));
        world.roots.iter().for_each(|root| drop(world.check(root)));
    }
    assert!(discarded > 1 << 20, "{discarded}");
    drop(slice);
    world.space.release_held(false).expect("sound");
    let used = world.used.clone();
    check_used(&mut world.space, &used);
    assert_eq!(world.space.counters().total(SpaceCounters::WAITED_FOR_DISCARDS), 0);
}

#[test]
fn discards_meet_nothing_that_the_newest_roots_reach() {
    for seed in 0..4 {
        let seed = forebay_base::testing::seed(40) + seed;
        work(seed, 512 << (seed % 2 * 3));
    }
}

#[test]
fn a_piece_is_discarded_once_all_of_it_is_free() {
    let mut world = World::new(&[span(0, 1 << 18, 16 << 20)], 4096, 1);
    world.space.note_discards(0, true);
    let bytes_of = |list: &[(Dva, u64)]| list.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let pass = |world: &mut World| {
        let mut all = Vec::new();
        while let Some(id) = world.space.most_noted() {
            let mut list = world.space.noted_discards(id, 64 << 10).expect("sound");
            while let Some(slice) = world.space.hold(&mut list, 1 << 20).expect("sound") {
                all.extend(slice.ranges.clone());
            }
        }
        all
    };
    world.begin();
    (0..64).for_each(|_| world.allocate(4096, 1).expect("there is space"));
    let blocks: Vec<_> = world.live.drain(..).collect();
    world.end();
    // The first blocks of each piece alone are too short.
    let (first, rest): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(at, _)| at % 16 < 8);
    for (freed, expected) in [(first, 0), (rest, 128 << 10)] {
        world.begin();
        freed.into_iter().for_each(|(_, (places, bytes))| world.release(places, bytes));
        world.end();
        for _ in 0..2 {
            world.begin();
            world.end();
        }
        let discarded = bytes_of(&pass(&mut world));
        assert!(discarded >= expected, "{discarded} of {expected}");
        assert!(expected > 0 || discarded == 0, "{discarded}");
    }
    // What is not noted any more is not discarded again.
    assert_eq!(pass(&mut world), []);
    world.space.note_discards(0, false);
    world.begin();
    world.end();
    assert!(!world.space.has_noted());
}

#[test]
fn an_allocation_waits_for_held_space() {
    let mut world = World::new(&[span(0, 1 << 18, 4 << 20)], 4096, 1);
    world.begin();
    world.end();
    let mut list = world.space.all_discards(0, 4096).expect("sound");
    let slice = world.space.hold(&mut list, 4 << 20).expect("sound").expect("there is space");
    let free = world.space.stats().free_bytes;
    let waited = SpaceCounters::WAITED_FOR_DISCARDS;
    world.begin();
    let counters = world.space.counters().clone();
    let end = move || {
        while counters.total(waited) == 0 {
            std::thread::yield_now();
        }
        drop(slice);
    };
    let ending = spawn_named("discard", end).expect("a thread");
    // All but the reserve, of which the held ranges are a part.
    let mut taken = 0;
    while world.allocate(4096, 1).is_ok() {
        taken += 4096;
    }
    assert!(taken > free / 4 * 3, "{taken} of {free}");
    ending.join().expect("no panic");
    assert_eq!(world.space.counters().total(waited), 1);
    world.end();
}
