//! A check beside txgs: what it finds is what was wrong when it began, and still is.

use std::collections::BTreeMap;

use forebay_base::testing;

use super::fixture::{World, span};
use crate::format::Dva;

const SECTOR: u64 = 512;

fn change(world: &mut World) {
    world.begin();
    for _ in 0..20 {
        if world.rng.below(5) < 3 {
            let (bytes, copies) = (SECTOR << world.rng.below(6), 1 + world.rng.below(2) as usize);
            world.allocate(bytes, copies).expect("space");
        } else {
            world.free_one();
        }
    }
    world.end();
}

/// Checks a pool that changes. Returns whether the free range that was marked was found.
fn check_beside_txgs(seed: u64) -> bool {
    let mut world = World::new(&[span(0, 1 << 20, 32 << 20)], SECTOR, seed);
    (0..20).for_each(|_| change(&mut world));
    world.space.own_blocks(|_| {}).expect("all bases are sound");
    let (until, mut walked) = world.space.begin_audit();
    let mut left: BTreeMap<Dva, u64> = world.used.clone();
    let (leaked, bytes) = world.live.pop().expect("a block");
    let leaked: Vec<(Dva, u64)> =
        leaked.iter().filter_map(|place| Some((place.get()?, bytes))).collect();
    left.retain(|dva, _| !leaked.iter().any(|(at, _)| at == dva));
    let metaslab = world.space.metaslabs.last_mut().expect("one");
    let last = *metaslab.unused().expect("it is sound").last().expect("free space");
    let free = metaslab.dva(last.end() - 1);
    walked.mark(free, SECTOR);
    // The walk: finds what is still there, and some of what was freed a moment ago.
    while !left.is_empty() {
        change(&mut world);
        for _ in 0..30 {
            let Some((dva, bytes)) = left.pop_first() else { break };
            walked.mark(dva, bytes);
        }
        let rng = &mut world.rng;
        let used = &world.used;
        left.retain(|dva, bytes| used.get(dva) == Some(bytes) || rng.below(2) == 0);
    }
    let mut own = Vec::new();
    world.space.known_blocks(|ptr| own.push(*ptr));
    own.retain(|ptr| ptr.birth_txg.get() <= until);
    own.iter().for_each(|ptr| walked.mark_block(ptr));
    let mut report = walked.so_far();
    for id in 0..walked.metaslabs() {
        change(&mut world);
        world.space.compare(id, &walked, &mut report).expect("it is sound");
    }
    world.space.end_audit();
    let mut found = report.leaked.ranges.clone();
    found.sort_unstable();
    let mut leaked = leaked;
    leaked.sort_unstable();
    assert_eq!(found, leaked, "seed {seed}");
    assert!(report.double.is_empty() && report.outside.is_empty(), "seed {seed}: {report:?}");
    let unmapped = &report.unmapped.ranges;
    assert!(unmapped.is_empty() || *unmapped == [(free, SECTOR)], "seed {seed}: {unmapped:?}");
    !unmapped.is_empty()
}

#[test]
fn a_check_beside_txgs_finds_what_was_wrong() {
    let first = testing::seed(1);
    let rounds = if testing::full() { 500 } else { 20 };
    let found = (first..first + rounds).filter(|seed| check_beside_txgs(*seed)).count();
    assert!(found > 0, "a range that was not allocated is found, unless it is used and freed");
}
