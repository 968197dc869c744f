//! A level's life: made, filled, closed, opened again, removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Begin, Class};
use forebay_l2::{Codec, ErrorKind, Health, Level, LevelOptions};

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
fn what_the_ring_ran_over_while_memory_had_it_is_written_again() {
    let device = memory(8 << 20);
    let world = World::create(&device, &options());
    (0..50).for_each(|key| world.insert(key, 1, 4000));
    // Two and a half times the device, past blocks that memory keeps.
    for lot in 1..=20 {
        (0..250).for_each(|key| world.insert(1000 * lot + key, 1, 4000));
        world.cache.offer_all(256, |candidates| {
            forebay_cache::SecondLevel::offer(&*world.level, candidates);
        });
        world.level.flush().unwrap();
        world.cache.flush_where(|key, _| *key >= 1000);
    }
    let stats = world.level.stats();
    assert!(stats.count("overrun") > 1000, "{:?}", stats.short());
    assert!(stats.count("offered_known") > 500, "{:?}", stats.short());
    world.cache.flush();
    let found = (0..50).filter(|key| world.get(*key).is_some()).count();
    // What was written after the last offer may have run over some.
    assert!(found >= 40, "{found} of 50 are there: {:?}", stats.short());
    world.close();
}

#[test]
fn data_that_memory_has_is_not_carried_forward_until_memory_lets_go_of_it() {
    for lets_go in [false, true] {
        let device = memory(8 << 20);
        let world = World::create(&device, &options());
        (0..50).for_each(|key| world.insert(key, 1, 4000));
        world.spill();
        // Asked for again: worth carrying, but for where they are now.
        assert!((0..50).all(|key| world.get(key).is_some()));
        if lets_go {
            world.cache.flush();
        }
        for lot in 1..=10 {
            (0..250).for_each(|key| world.insert(1000 * lot + key, 1, 4000));
            world.cache.offer_all(256, |mut candidates| {
                candidates.retain(|candidate| *candidate.key() >= 1000);
                forebay_cache::SecondLevel::offer(&*world.level, candidates);
            });
            world.level.flush().unwrap();
            world.cache.flush_where(|key, _| *key >= 1000);
        }
        let stats = world.level.stats();
        let counts = ["overrun_in_memory", "carried"].map(|name| stats.count(name));
        let expected = if lets_go { [0, 50] } else { [50, 0] };
        assert_eq!(counts, expected, "{:?}", stats.short());
        world.cache.flush();
        let found = (0..50).filter(|key| world.get(*key).is_some()).count();
        assert_eq!(found, if lets_go { 50 } else { 0 });
        world.close();
    }
}

#[test]
fn what_comes_again_is_written_at_first_sight_and_what_does_not_is_not() {
    let device = memory(8 << 20);
    let options = options();
    options.tunables.set("admit_all", "false").unwrap();
    let world = World::create(&device, &options);
    let ask = |lot: &[u64]| {
        for key in lot {
            if world.get(*key).is_none() {
                world.insert(*key, 1, 4000);
            }
        }
        world.spill();
    };
    // Each once, three times the device.
    let stream: Vec<u64> = (0..6000).collect();
    stream.chunks(50).for_each(ask);
    let refused = |stats: forebay_l2::LevelStats| {
        let reasons = stats.counters.into_iter().filter(|c| c.name == "refused");
        let all: Vec<_> = reasons.filter(|c| c.value > 0).map(|c| (c.label, c.value)).collect();
        all
    };
    let before = world.level.stats().count("admitted");
    (1_000_000..1_001_000).collect::<Vec<_>>().chunks(50).for_each(ask);
    let taken = world.level.stats().count("admitted") - before;
    assert!(taken < 100, "{taken} of 1,000: {:?}", world.level.stats().short());
    let reasons = refused(world.level.stats());
    assert!(matches!(reasons[..], [(Some("no_proven_reuse"), 1000..)]), "{reasons:?}");
    // From now on each is asked for again soon.
    let mut taken = 0;
    for round in 0..400 {
        let new: Vec<u64> = (0..25).map(|n| 2_000_000 + 25 * round + n).collect();
        let again: Vec<u64> = new.iter().map(|key| key - 500).filter(|k| *k >= 2_000_000).collect();
        let before = world.level.stats().count("admitted");
        ask(&new);
        if round >= 360 {
            taken += world.level.stats().count("admitted") - before;
        }
        ask(&again);
    }
    assert!(taken >= 900, "{taken} of 1,000: {:?}", world.level.stats().short());
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
fn a_level_that_was_closed_leaves_alone_what_others_make_of_its_device() {
    let device = memory(8 << 20);
    let world = World::create(&device, &options());
    (0..100).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    world.level.close();
    let other = LevelOptions { owner: [3; 16], force: true, ..options() };
    World::create(&device, &other).close();
    let late = world.level.forget_checked(&5).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
    World::open(&device, &other).close();
    world.close();
}

#[test]
fn a_closed_level_says_that_it_forgets_nothing_and_keeps_what_it_has() {
    let device = memory(8 << 20);
    let world = World::create(&device, &options());
    (0..100).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    world.level.close();
    for key in [5, 1000] {
        let late = world.level.forget_checked(&key).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
    }
    let stats = world.level.stats();
    assert_eq!(stats.count("forget_failures"), 2);
    // By the cache, which cannot be told.
    world.cache.remove(&6);
    world.insert(7, 2, 1000);
    world.close();
    let again = World::open(&device, &options());
    assert!(again.level.wait_rebuilt());
    (0..100).for_each(|key| assert!(again.get(key).is_some(), "{key}"));
    again.close();
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

/// As [`Numbers`], and a key's stamp is the key.
struct Stamped;

impl Codec<u64, Value> for Stamped {
    fn key_bytes(&self) -> usize {
        Numbers.key_bytes()
    }

    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        Numbers.encode_key(key, out);
    }

    fn stamp(&self, key: &u64) -> u64 {
        *key
    }

    fn encoded_len(&self, value: &Value) -> usize {
        Numbers.encoded_len(value)
    }

    fn encode(&self, value: &Value, out: &mut [u8]) {
        Numbers.encode(value, out);
    }

    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        Numbers.decode(key, bytes)
    }
}

#[test]
fn a_level_whose_user_was_set_back_is_emptied_for_good() {
    let device = memory(8 << 20);
    let with = |max_stamp| LevelOptions { immutable_keys: true, max_stamp, ..options() };
    let open = |max_stamp| {
        let level = Level::open(device.clone(), Arc::new(Stamped), &with(max_stamp)).unwrap();
        let world = World::over(level);
        assert!(world.level.wait_rebuilt());
        world
    };
    let level = Level::create(device.clone(), Arc::new(Stamped), &with(0)).unwrap();
    let world = World::over(level);
    (0..=100).for_each(|key| world.insert(key, 1, 500));
    world.spill();
    world.close();
    // Who knows of all of them finds all of them.
    let world = open(100);
    assert!((0..=100).all(|key| world.get(key).is_some()));
    let guid = world.level.label().guid;
    world.close();
    let world = open(99);
    assert_eq!(world.level.stats().count("set_back"), 1);
    assert_ne!(world.level.label().guid, guid);
    assert!((0..=100).all(|key| world.get(key).is_none()));
    (0..50).for_each(|key| world.insert(key, 2, 500));
    world.spill();
    world.close();
    // What was of another future does not come back when that time has come again.
    let world = open(1000);
    assert_eq!(world.level.stats().count("set_back"), 0);
    for key in 0..=100 {
        let version = world.get(key).map(|value| value.version);
        assert_eq!(version, (key < 50).then_some(2), "{key}");
    }
    world.close();
}

#[test]
fn many_threads_see_what_they_wrote_and_nothing_older() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 60;
    let device = memory(4 << 20);
    let small = LevelOptions { segment_bytes: Some(128 << 10), ..options() };
    small.tunables.set("batch_bytes", "64K").unwrap();
    let world = Arc::new(World::create(&device, &small));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let world = world.clone();
            std::thread::spawn(move || {
                let mut rng = SmallRng::from_seed(thread);
                let mut now = BTreeMap::new();
                for version in 1..3000 {
                    // Each has keys of its own; the ring, the writer and the cache are shared.
                    let key = thread * KEYS + rng.below(KEYS);
                    match rng.below(10) {
                        0..3 => {
                            world.insert(key, version, rng.below(2000) as usize);
                            now.insert(key, version);
                        }
                        3 => {
                            world.cache.remove(&key);
                            now.remove(&key);
                        }
                        4..6 => world.cache.offer_all(16, |candidates| {
                            forebay_cache::SecondLevel::offer(&*world.level, candidates);
                        }),
                        6 if rng.below(8) == 0 => _ = world.cache.flush(),
                        _ => {
                            let found = world.get(key).map(|value| value.version);
                            let right = now.get(&key).copied();
                            assert!(
                                found.is_none() || found == right,
                                "{key}: {found:?}, {right:?}"
                            );
                        }
                    }
                }
                now
            })
        })
        .collect();
    let mut now = BTreeMap::new();
    threads.into_iter().for_each(|thread| now.extend(thread.join().unwrap()));
    let stats = world.level.stats();
    assert!(stats.count("stored") > 0 && stats.count("tombstones") > 0, "{:?}", stats.short());
    assert_eq!(stats.count("load_rotten"), 0, "{:?}", stats.short());
    Arc::into_inner(world).expect("all threads have ended").close();

    let world = World::open(&device, &small);
    assert!(world.level.wait_rebuilt());
    for key in 0..THREADS * KEYS {
        let found = world.get(key).map(|value| value.version);
        assert!(found.is_none() || found == now.get(&key).copied(), "{key}: {found:?}");
    }
    world.close();
}

#[test]
fn what_was_handed_out_uncached_is_carried_like_what_memory_does_not_have() {
    let device = memory(8 << 20);
    let world = World::create(&device, &options());
    (0..50).for_each(|key| world.insert(key, 1, 4000));
    world.spill();
    for key in 0..50 {
        // Heavier than memory, as far as the loader knows.
        let begun = world.cache.begin(key, 2 << 30, Attributes::DATA).unwrap();
        let Begin::InFlight(flight) = begun else { panic!("the level has {key}") };
        flight.wait().unwrap().check(key);
        assert!(!world.cache.contains(&key));
    }
    // The ring comes round once.
    for round in 1..=10 {
        (0..250).for_each(|n| world.insert(round * 1000 + n, 1, 4000));
        world.spill();
    }
    let stats = world.level.stats();
    assert!(stats.count("overrun") > 200, "{:?}", stats.short());
    let survived = (0..50).filter(|key| world.get(*key).is_some()).count();
    assert!(survived >= 40, "{survived} of 50 blocks that were asked for: {:?}", stats.short());
    world.close();
}
