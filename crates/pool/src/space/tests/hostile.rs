//! Bytes that nobody would write: an error, never a panic, never a loop.

use forebay_base::rng::SmallRng;
use zerocopy::{FromBytes, IntoBytes};

use super::fixture::{Disk, Reader, World, Writer, span};
use crate::format::{Dva, SpaceRootPhys};
use crate::space::{DeviceSpan, Space, WalkedRanges};
use crate::store::Allocate;
use crate::{ErrorKind, Result};

fn aged(seed: u64) -> World {
    let mut world = World::new(&[span(0, 1 << 18, 12 << 20), span(1, 0, 6 << 20)], 512, seed);
    for _ in 0..40 {
        world.begin();
        for _ in 0..60 {
            if world.rng.below(100) < 60 {
                let bytes = (1 + world.rng.below(30)) * 512;
                let _full = world.allocate(bytes, 2);
            } else {
                world.free_one();
            }
        }
        world.end();
    }
    world
}

/// Uses a loaded space in every way.
fn exercise(root: &SpaceRootPhys, spans: &[DeviceSpan], disk: &Disk) -> Result<()> {
    let mut space = Space::load(root, spans, Box::new(Reader(disk.clone(), false)))?;
    let mut writer = Writer(disk.clone());
    let mut walked = WalkedRanges::new(&space);
    if let Err(error) = space.own_blocks(|pointer| walked.mark_block(pointer)) {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    } else {
        space.verify(&walked)?;
    }
    let Some(first) = root.txg.get().checked_add(1) else { return Ok(()) };
    for txg in first..first.saturating_add(4) {
        if txg == u64::MAX {
            break;
        }
        space.begin(txg).unwrap();
        for bytes in [512, 4096, 131_072] {
            let places = space.allocate(bytes, 2)?;
            places.iter().filter_map(|place| place.get()).for_each(|dva| space.free(dva, bytes));
        }
        space.sync(txg, &mut writer)?;
        space.committed(txg)?;
    }
    Ok(())
}

fn mutate(bytes: &mut [u8], rng: &mut SmallRng) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u64() as u8,
            2 => bytes[at] = 0xff,
            _ => {
                let other = rng.below(bytes.len() as u64) as usize;
                let length = (1 + rng.below(16) as usize).min(bytes.len() - at.max(other));
                bytes.copy_within(other..other + length, at);
            }
        }
    }
}

#[test]
fn damaged_blocks_are_errors() {
    let world = aged(21);
    let root = world.roots.last().expect("a root");
    let places = world.disk.places();
    let mut failed = 0;
    for seed in 0..1500 {
        let mut rng = SmallRng::from_seed(seed);
        let disk = world.disk.fork();
        let (dva, _) = places[rng.below(places.len() as u64) as usize];
        disk.change(dva, |bytes| mutate(bytes, &mut rng));
        if let Err(error) = exercise(&root.phys, &world.spans, &disk) {
            failed += 1;
            let expected = [ErrorKind::Corrupt, ErrorKind::NoSpace, ErrorKind::Invalid];
            assert!(expected.contains(&error.kind()), "seed {seed}: {error:?}");
        }
    }
    assert!(failed > 20, "only {failed} were noticed");
}

#[test]
fn damaged_roots_are_errors() {
    let world = aged(22);
    let root = world.roots.last().expect("a root");
    for seed in 0..3000 {
        let mut rng = SmallRng::from_seed(seed);
        let mut bytes = root.phys.as_bytes().to_vec();
        mutate(&mut bytes, &mut rng);
        let phys = SpaceRootPhys::read_from_bytes(&bytes).expect("the size is right");
        if let Err(error) = exercise(&phys, &world.spans, &world.disk.fork()) {
            let expected = [ErrorKind::Corrupt, ErrorKind::NoSpace, ErrorKind::Invalid];
            assert!(expected.contains(&error.kind()), "seed {seed}: {error:?}");
        }
    }
}

#[test]
fn random_roots_are_errors() {
    let world = aged(23);
    for seed in 0..2000 {
        let mut rng = SmallRng::from_seed(seed);
        let bytes: Vec<u8> =
            (0..size_of::<SpaceRootPhys>()).map(|_| rng.next_u64() as u8).collect();
        let phys = SpaceRootPhys::read_from_bytes(&bytes).expect("the size is right");
        let reader = Box::new(Reader(world.disk.clone(), false));
        let kind = Space::load(&phys, &world.spans, reader).err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::Corrupt), "seed {seed}");
    }
}

#[test]
fn devices_that_are_not_there_are_errors() {
    let world = aged(24);
    let root = world.roots.last().expect("a root");
    let load = |spans: &[DeviceSpan]| {
        let reader = Box::new(Reader(world.disk.clone(), true));
        Space::load(&root.phys, spans, reader).err().map(|error| error.kind())
    };
    assert_eq!(load(&world.spans), None);
    assert_eq!(load(&world.spans[..1]), Some(ErrorKind::Corrupt));
    let mut short = world.spans.clone();
    short[1].end -= 512;
    assert_eq!(load(&short), Some(ErrorKind::Corrupt));
}

#[test]
fn what_cannot_be_freed_is_an_error() {
    type Bad = fn(&mut World);
    let cases: [Bad; 4] = [
        // Free already.
        |world| {
            let free = world.space.metaslabs.iter_mut().find_map(|metaslab| {
                let run = metaslab.unused().expect("it is sound").first().copied()?;
                Some(metaslab.dva(run.start))
            });
            world.space.free(free.expect("something is free"), 512);
        },
        // Outside.
        |world| world.space.free(Dva { device: 0, offset: 0 }, 512),
        |world| world.space.free(Dva { device: 9, offset: 1 << 20 }, 512),
        // Twice.
        |world| {
            let (places, bytes) = world.live[0];
            let dva = places[0].get().expect("a copy");
            world.space.free(dva, bytes);
            world.space.free(dva, bytes);
        },
    ];
    for (at, bad) in cases.into_iter().enumerate() {
        let mut world = aged(25);
        world.begin();
        bad(&mut world);
        let mut writer = Writer(world.disk.clone());
        let kind = world.space.sync(world.txg, &mut writer).err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::Corrupt), "case {at}");
    }
}

#[test]
fn a_check_finds_what_is_wrong() {
    let mut world = aged(26);
    let places: Vec<(Dva, u64)> = world.used.iter().map(|(dva, bytes)| (*dva, *bytes)).collect();
    let (leaked, double) = (places[3], places[7]);
    let mut free = Vec::new();
    for metaslab in &mut world.space.metaslabs {
        let unused = metaslab.unused().expect("it is sound");
        free.extend(unused.first().map(|run| metaslab.dva(run.start)));
    }
    let outside = Dva { device: 0, offset: 100 << 20 };

    let mut walked = WalkedRanges::new(&world.space);
    places.iter().filter(|place| **place != leaked).for_each(|it| walked.mark(it.0, it.1));
    walked.mark(double.0, 512);
    walked.mark(free[0], 512);
    walked.mark(outside, 4096);
    world.space.own_blocks(|pointer| walked.mark_block(pointer)).expect("all bases are sound");
    let report = world.space.verify(&walked).expect("all bases are sound");
    assert!(!report.is_clean());
    assert_eq!(report.leaked.ranges, [leaked]);
    assert_eq!(report.double.ranges, [(double.0, 512)]);
    assert_eq!(report.unmapped.ranges, [(free[0], 512)]);
    assert_eq!(report.outside.ranges, [(outside, 4096)]);

    let mut bytes = 0;
    world.space.for_each_allocated(|_, length| bytes += length).expect("all bases are sound");
    assert_eq!(bytes, world.space.stats().allocated_bytes);
}
