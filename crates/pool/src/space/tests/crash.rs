//! Every root of the last three is whole at any time, whatever happened since; and a pool goes on
//! from it.

use proptest::prelude::*;

use super::fixture::{World, check_used, span};
use crate::ErrorKind;
use crate::format::SpaceRootPhys;
use crate::space::{DeviceSpan, SpaceCounters};

fn spans(devices: u16, bytes: u64) -> Vec<DeviceSpan> {
    (0..devices).map(|device| span(device * 3, 256 << 10, bytes)).collect()
}

/// A txg of random work.
fn work(world: &mut World, operations: u64, fill: u64) {
    world.begin();
    for _ in 0..operations {
        let copies = 1 + world.rng.below(2) as usize;
        let bytes = (1 + world.rng.below(40)) * world.sector;
        if world.rng.below(100) < fill {
            match world.allocate(bytes, copies) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
            }
        } else {
            world.free_one();
        }
    }
    world.end();
}

/// Starts again from the newest root, or with some luck from one of the two before.
fn import(world: &mut World, back: usize) {
    let at = world.roots.len().saturating_sub(1 + back);
    world.roots.truncate(at + 1);
    let root = world.roots[at].clone();
    // Of three whole roots, as many as were abandoned are gone at the other end.
    world.roots.drain(..at.saturating_sub(2_usize.saturating_sub(back)));
    world.space = world.load(&root);
    world.used = root.used.clone();
    let used = &world.used;
    world.live.retain(|(places, _)| {
        places.iter().filter_map(|place| place.get()).all(|dva| used.contains_key(&dva))
    });
    // What the abandoned txgs freed is in use again; the model just keeps it for ever.
}

fn crash_everywhere(seed: u64, devices: u16, bytes: u64, sector: u64) {
    let mut world = World::new(&spans(devices, bytes), sector, seed);
    for txg in 0..60 {
        let operations = world.rng.below(150);
        let fill = if txg % 20 < 12 { 70 } else { 30 };
        work(&mut world, operations, fill);
        for root in world.roots.iter().rev().take(3) {
            world.check(root);
        }
        let used = world.used.clone();
        check_used(&mut world.space, &used);
        if world.rng.below(6) == 0 {
            let back = world.rng.below(3) as usize;
            import(&mut world, back);
        }
        let old = world.roots.len().saturating_sub(4);
        world.roots.drain(..old);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_last_three_roots_are_whole(
        seed in any::<u64>(),
        devices in 1u16..4,
        megabytes in 4u64..24,
        shift in 9u32..13,
    ) {
        crash_everywhere(seed, devices, (megabytes << 20) + 12_288, 1 << shift);
    }
}

#[test]
fn an_imported_space_goes_on_as_the_one_it_was() {
    let mut world = World::new(&spans(2, 16 << 20), 512, 7);
    for _ in 0..40 {
        work(&mut world, 80, 60);
        let root = world.roots.last().expect("a root").clone();
        let (old, new) = (world.space.stats(), world.load(&root).stats());
        assert_eq!(old.free_bytes, new.free_bytes);
        assert_eq!(old.deferred_bytes, new.deferred_bytes);
        assert_eq!(old.log_entries, new.log_entries);
        let free = |stats: &crate::space::SpaceStats| -> Vec<u64> {
            stats.devices.iter().map(|device| device.free_bytes).collect()
        };
        assert_eq!(free(&old), free(&new));
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
}

#[test]
fn loading_reads_no_base() {
    let mut world = World::new(&spans(1, 64 << 20), 512, 11);
    for _ in 0..50 {
        work(&mut world, 100, 60);
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    let root = world.roots.last().expect("a root").clone();
    assert_eq!(world.load(&root).stats().metaslabs_loaded, 0);
}

#[test]
fn the_log_stays_short() {
    let mut world = World::new(&spans(1, 64 << 20), 512, 5);
    let (mut most, mut oldest) = (0, 0);
    for _ in 0..300 {
        work(&mut world, 40, 52);
        let stats = world.space.stats();
        most = most.max(stats.log_records);
        let first = world.space.records.front().map_or(0, |record| record.txg);
        oldest = oldest.max(world.txg - first);
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    assert!(most <= 70, "{most} records");
    assert!(oldest <= 80, "a record of {oldest} txgs ago");
    assert!(size_of::<SpaceRootPhys>() <= 1024);
}

#[test]
fn many_entries_make_bases_due() {
    let mut world = World::new(&spans(1, 512 << 20), 512, 5);
    let mut written = 0;
    for txg in 0..40 {
        world.begin();
        for _ in 0..4000 {
            world.allocate(512, 1).expect("there is space");
            world.allocate(1024, 1).expect("there is space");
            if txg > 2 {
                world.free_one();
                world.free_one();
            }
        }
        world.end();
        let stats = world.space.stats();
        written += stats.log_entries;
        // Three records stay whatever they have.
        assert!(stats.log_entries < (16 << 10) + 3 * 10_000, "{stats:?}");
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    assert!(written > 100_000, "{written} entries");
    let root = world.roots.last().expect("a root");
    world.check(root);
}

#[test]
fn thousands_of_metaslabs_make_a_deeper_index() {
    let mut world = World::new(&spans(24, 200 << 20), 512, 17);
    for _ in 0..12 {
        work(&mut world, 200, 60);
        world.roots.drain(..world.roots.len().saturating_sub(4));
    }
    assert!(world.space.stats().metaslabs > 4000);
    let root = world.roots.last().expect("a root").clone();
    assert!(root.phys.index_levels >= 4);
    world.check(&root);
    import(&mut world, 1);
    work(&mut world, 200, 60);
    let root = world.roots.last().expect("a root");
    let space = world.check(root);
    assert!(space.counters().total(SpaceCounters::BASES_LOADED) > 0);
}

#[test]
fn a_device_of_petabytes_has_larger_metaslabs() {
    let mut world = World::new(&spans(1, 1 << 50), 4096, 17);
    for _ in 0..4 {
        work(&mut world, 50, 60);
    }
    assert_eq!(world.space.stats().metaslabs, 1024);
    let root = world.roots.last().expect("a root").clone();
    assert_eq!(world.load(&root).stats().free_bytes, world.space.stats().free_bytes);
}

#[test]
fn a_device_grows_and_another_joins() {
    let mut world = World::new(&spans(1, (5 << 20) + 4096), 4096, 3);
    for step in 1..6u64 {
        for _ in 0..4 {
            work(&mut world, 60, 65);
        }
        let root = world.roots.last().expect("a root").clone();
        // A crash before the change is durable leaves the old size.
        let before = world.check(&root).stats().total_bytes;
        world.begin();
        world.spans[0].end += (step << 20) + 12_288;
        let grown = world.spans[0];
        world.space.extend_span(&grown).expect("it grew");
        let new = span(step as u16 * 3, 1 << 18, 3 << 20);
        world.spans.push(new);
        world.space.add_span(&new).expect("it is new");
        world.end();
        let root = world.roots.last().expect("a root").clone();
        let stats = world.check(&root).stats();
        assert_eq!(stats.total_bytes, before + (step << 20) + 12_288 + (3 << 20));
        assert_eq!(stats.devices.len() as u64, 1 + step);
    }
}
