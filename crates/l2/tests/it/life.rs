//! A level's life: made, filled, closed, opened again, removed.

use forebay_cache::Class;
use forebay_l2::{ErrorKind, Health, Level, LevelOptions};
use std::sync::Arc;

use crate::support::{Numbers, Value, World, memory, options};

#[test]
fn what_was_written_is_there_again_after_a_restart() {
    let device = memory(32 << 20);
    let world = World::create(&device, &options());
    for key in 0..2000 {
        world.insert(key, 1, 100 + key as usize % 3000);
    }
    world.spill();
    for key in 0..2000 {
        assert_eq!(world.get(key), Some(Value::new(key, 1, 100 + key as usize % 3000)));
    }
    assert_eq!(world.level.stats().count("stored"), 2000);
    world.close();

    let world = World::open(&device, &options());
    assert!(world.level.wait_rebuilt());
    let rebuilt = world.level.rebuild();
    assert_eq!((rebuilt.records, rebuilt.damaged), (2000, 0), "{rebuilt:?}");
    for key in 0..2000 {
        assert_eq!(world.get(key), Some(Value::new(key, 1, 100 + key as usize % 3000)));
    }
    assert_eq!(world.get(2000), None);
    world.close();
}

#[test]
fn what_was_overwritten_or_removed_does_not_come_back() {
    let device = memory(32 << 20);
    let mut world = World::create(&device, &options());
    for round in 1..=6 {
        for key in 0..200 {
            match (key + round) % 3 {
                0 => drop(world.cache.remove(&key)),
                _ => world.insert(key, round, 500),
            }
        }
        if round % 2 == 0 {
            world.spill();
        }
        // What is in memory only is lost; what is on the level is not old.
        world.close();
        world = World::open(&device, &options());
        for key in 0..200 {
            let found = world.get(key).map(|value| value.version);
            assert!(found.is_none_or(|version| version == round), "{key}: {found:?} in {round}");
            if found.is_some() {
                assert!((key + round) % 3 != 0 && round % 2 == 0, "{key} in {round}");
            }
        }
        assert!(world.level.wait_rebuilt());
        if round % 2 == 0 {
            let there = (0..200).filter(|key| world.get(*key).is_some()).count();
            assert_eq!(there, (0..200).filter(|key| (key + round) % 3 != 0).count());
        }
    }
    assert_eq!(world.level.stats().count("forget_failures"), 0);
    world.close();
}

#[test]
fn the_ring_comes_round_and_keeps_metadata_and_what_was_hit() {
    let device = memory(8 << 20);
    let world = World::create(&device, &options());
    for key in 0..70 {
        world.insert_as(1_000_000 + key, 1, 3000, Class::Metadata);
    }
    world.spill();
    // Twenty times the device.
    let mut key = 0;
    for _ in 0..160 {
        for _ in 0..250 {
            world.insert(key, 1, 4000);
            key += 1;
        }
        world.spill();
        let hot = (key - 250..key).step_by(50);
        hot.for_each(|key| {
            assert!(world.get(key).is_some(), "{key}: {:?}", world.level.stats().short())
        });
        world.cache.flush();
    }
    let stats = world.level.stats();
    assert!(stats.count("overrun") > 10_000, "{:?}", stats.short());
    assert!(stats.count("carried") > 100, "{:?}", stats.short());
    let survived = (0..70).filter(|key| world.get(1_000_000 + key).is_some()).count();
    assert!(survived >= 66, "{survived} of 70 blocks of metadata survived: {:?}", stats.short());
    let recent = (key - 250..key).filter(|key| world.get(*key).is_some()).count();
    assert_eq!(recent, 250);
    world.close();

    let world = World::open(&device, &options());
    assert!(world.level.wait_rebuilt());
    assert_eq!(world.level.rebuild().damaged, 0);
    let survived = (0..70).filter(|key| world.get(1_000_000 + key).is_some()).count();
    assert!(survived >= 66, "{survived} of 70 blocks of metadata survived a restart");
    world.close();
}

#[test]
fn anothers_device_is_refused_unless_forced() {
    let open = |device: &_, options: &LevelOptions| {
        Level::open(Arc::clone(device), Arc::new(Numbers), options).map(|level| level.close())
    };
    let create = |device: &_, options: &LevelOptions| {
        Level::create(Arc::clone(device), Arc::new(Numbers), options).map(|level| level.close())
    };
    let device = memory(8 << 20);
    assert_eq!(open(&device, &options()).unwrap_err().kind(), ErrorKind::NotALevel);
    create(&device, &options()).unwrap();
    open(&device, &options()).unwrap();
    let stranger = LevelOptions { owner: [7; 16], ..options() };
    assert_eq!(open(&device, &stranger).unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(create(&device, &stranger).unwrap_err().kind(), ErrorKind::Foreign);
    create(&device, &LevelOptions { force: true, ..stranger.clone() }).unwrap();
    open(&device, &stranger).unwrap();
    assert_eq!(open(&device, &options()).unwrap_err().kind(), ErrorKind::Foreign);
    let small = create(&memory(1 << 20), &options()).unwrap_err();
    assert_eq!(small.kind(), ErrorKind::TooSmall, "{small}");
}

#[test]
fn a_level_that_was_removed_is_gone() {
    let device = memory(8 << 20);
    let world = World::create(&device, &options());
    (0..100).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    assert!(world.get(1).is_some());
    world.cache.flush();
    world.level.remove().unwrap();
    assert_eq!(world.level.health(), Health::Removed);
    assert_eq!(world.get(1), None);
    assert!(world.level.is_empty());
    world.insert(1, 2, 1000);
    world.close();
    let again = Level::<u64, Value>::open(device.clone(), Arc::new(Numbers), &options());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::NotALevel);
    // It is free for anybody now, without force.
    let other = LevelOptions { owner: [3; 16], ..options() };
    World::create(&device, &other).close();
}
