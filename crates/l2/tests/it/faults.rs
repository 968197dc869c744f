//! Failing devices: a load is right or a miss, whatever happens; nothing old comes back; everything ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultCounters, FaultDevice, Rule};
use forebay_io::{Device, Op, Priority, Request};
use forebay_l2::{ErrorKind, Health, Level, LevelOptions};

use crate::support::{Numbers, World, arena, memory, options};

const KEYS: u64 = 150;

/// A level on a device that can be made to fail.
fn failing(options: &LevelOptions) -> (Arc<FaultDevice>, Arc<dyn Device>, World) {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let world = World::create(&device, options);
    (faults, device, world)
}

fn small() -> LevelOptions {
    let options = LevelOptions { segment_bytes: Some(128 << 10), ..options() };
    options.tunables.set("batch_bytes", "64K").unwrap();
    options
}

/// Random work under the rules, then without them, then on the device as it is left.
fn work_under(rules: Vec<Rule>, seed: u64) -> World {
    let (faults, device, world) = failing(&small());
    let mut rng = SmallRng::from_seed(seed);
    let mut now: BTreeMap<u64, u64> = BTreeMap::new();
    let mut version = 0;
    // Whether each change was forgotten for good.
    let mut sure = true;
    for phase in 0..3 {
        if phase == 1 {
            rules.iter().for_each(|rule| _ = faults.add(rule.clone()));
        }
        if phase == 2 {
            faults.clear();
        }
        for _ in 0..400 {
            let key = rng.below(KEYS);
            match rng.below(10) {
                0..5 => {
                    version += 1;
                    world.insert(key, version, 200 + rng.below(2000) as usize);
                    now.insert(key, version);
                }
                5 => {
                    world.cache.remove(&key);
                    now.remove(&key);
                }
                6 => {
                    world.cache.offer_all(64, |c| {
                        forebay_cache::SecondLevel::offer(&*world.level, c);
                    });
                    // It may have failed.
                    let _ = world.level.flush();
                }
                7 if rng.below(4) == 0 => drop(world.cache.flush()),
                _ => {
                    let found = world.get(key).map(|value| value.version);
                    let right = now.get(&key).copied();
                    assert!(found.is_none() || found == right, "{key}: {found:?}, not {right:?}");
                }
            }
        }
        sure &= world.level.stats().count("forget_failures") == 0;
    }
    let stats = world.level.stats();
    println!("{:?}, {:?}, {:?}", stats.health, stats.short(), faults.counters());
    let World { level, cache } = world;
    level.close();
    cache.close();
    cache.audit();
    let stats = level.stats();
    match Level::open(device.clone(), Arc::new(Numbers), &small()) {
        Ok(level) => {
            assert!(sure, "what could not be forgotten voids the label");
            let world = World::over(level);
            assert!(world.level.wait_rebuilt());
            for key in 0..KEYS {
                let found = world.get(key).map(|value| value.version);
                let right = now.get(&key).copied();
                assert!(found.is_none() || found == right, "{key}: {found:?}, not {right:?}");
            }
            world
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotALevel, "{error}");
            assert!(matches!(stats.health, Health::Failed { voided: true, .. }), "{stats:?}");
            World::create(&device, &small())
        }
    }
}

#[test]
fn reads_that_fail_or_rot_are_misses() {
    for (fault, seed) in [(Fault::Error(5), 1), (Fault::Rot { bits: 3 }, 2)] {
        let rule = Rule::new(fault).on(Op::Read).with_probability(0.2);
        work_under(vec![rule], seed).close();
    }
}

#[test]
fn writes_that_fail_or_tear_lose_blocks_and_nothing_else() {
    for seed in 10..16 {
        let probability = if seed % 2 == 0 { 0.02 } else { 0.3 };
        let fault = if seed % 3 == 0 { Fault::Torn { reported: true } } else { Fault::Error(5) };
        let rule = Rule::new(fault).on(Op::Write).with_probability(probability);
        work_under(vec![rule], seed).close();
    }
}

#[test]
fn flushes_that_fail_lose_blocks_and_nothing_else() {
    for seed in 20..24 {
        let rule = Rule::new(Fault::Error(5)).on(Op::Flush).with_probability(0.1);
        work_under(vec![rule], seed).close();
    }
}

#[test]
fn a_device_that_vanishes_is_misses_and_what_cannot_be_forgotten_is_said() {
    let (faults, _device, world) = failing(&options());
    (0..KEYS).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    assert!(world.get(3).is_some());
    faults.add(Rule::new(Fault::Error(19)));
    assert_eq!(world.get(5), None);
    // The cache goes on; the level cannot promise anything any more, and says so.
    world.insert(7, 2, 1000);
    let error = world.level.forget_checked(&8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(matches!(world.level.health(), Health::Failed { voided: false, .. }));
    // Of this one the record has left already: who tries again does not hear that all is well.
    world.level.forget_checked(&7).unwrap_err();
    assert!(world.level.stats().count("forget_failures") >= 2);
    // Of this one the device has nothing.
    world.level.forget_checked(&(KEYS + 1)).unwrap();
    assert_eq!(world.get(9), None);
    assert!(world.level.remove().is_err());
    faults.clear();
    world.level.remove().unwrap();
    world.close();
}

#[test]
fn immutable_keys_are_forgotten_without_a_write() {
    let options = LevelOptions { immutable_keys: true, ..options() };
    let (faults, device, world) = failing(&options);
    (0..KEYS).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    world.cache.remove(&3);
    assert_eq!(world.get(3), None);
    assert_eq!(world.level.stats().count("tombstones"), 0);
    faults.clear();
    world.close();
    let world = World::open(&device, &options);
    assert!(world.level.wait_rebuilt());
    // It may come back: it is what it was.
    assert_eq!(world.get(3).map(|value| value.version), Some(1));
    world.close();
}

#[test]
fn a_device_that_hangs_holds_nobody_up() {
    let options = options();
    options.tunables.set("load_timeout_ms", "50").unwrap();
    options.tunables.set("stall_timeout_ms", "300").unwrap();
    let (faults, _device, world) = failing(&options);
    (0..KEYS).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    let hang = Fault::Delay(Duration::from_secs(4));
    faults.add(Rule::new(hang).at(Priority::SyncRead));
    assert_eq!(world.get(1), None);
    let stats = world.level.stats();
    assert_eq!(stats.count("load_timeouts"), 1, "{:?}", stats.short());
    // Others do not even try.
    assert_eq!(world.get(2), None);
    assert_eq!(world.level.stats().count("misses_stalled"), 2);
    faults.clear();
    faults.add(Rule::new(hang).on(Op::Write));
    let error = world.level.forget_checked(&5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    world.insert(6, 2, 1000);
    faults.clear();
    world.close();
}

#[test]
fn a_load_ends_though_the_level_has_failed_meanwhile() {
    let options = options();
    options.tunables.set("load_timeout_ms", "600").unwrap();
    options.tunables.set("stall_timeout_ms", "50").unwrap();
    let (faults, _device, world) = failing(&options);
    (0..KEYS).for_each(|key| world.insert(key, 1, 1000));
    world.spill();
    let hang = Fault::Delay(Duration::from_secs(6));
    faults.add(Rule::new(hang).at(Priority::SyncRead));
    faults.add(Rule::new(hang).on(Op::Write));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| world.get(1));
        while faults.counters().total(FaultCounters::FAULTS_INJECTED) == 0 {
            std::thread::yield_now();
        }
        // The writer ends with it.
        world.level.forget_checked(&5).unwrap_err();
        assert_eq!(reader.join().unwrap(), None);
    });
    assert_eq!(world.level.stats().count("load_timeouts"), 1);
    faults.clear();
    world.close();
}

#[test]
fn a_device_that_hangs_when_blocks_are_carried_has_failed() {
    let options = options();
    options.tunables.set("stall_timeout_ms", "50").unwrap();
    let faults = Arc::new(FaultDevice::new(memory(8 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let world = World::create(&device, &options);
    for round in 0..12 {
        (0..250).for_each(|key| world.insert(round * 250 + key, 1, 4000));
        world.spill();
    }
    assert!(world.level.stats().count("overrun") > 0);
    let hang = Fault::Delay(Duration::from_secs(4));
    faults.add(Rule::new(hang).on(Op::Read).at(Priority::AsyncRead));
    (0..250).for_each(|key| world.insert(1_000_000 + key, 1, 4000));
    world.cache.offer_all(256, |candidates| {
        forebay_cache::SecondLevel::offer(&*world.level, candidates);
    });
    assert!(world.level.flush().is_err());
    assert_eq!(world.level.stats().count("read_errors"), 1, "{:?}", world.level.stats().short());
    assert!(matches!(world.level.health(), Health::Failed { .. }));
    faults.clear();
    world.close();
}

#[test]
fn after_a_removal_nothing_reaches_the_device_or_that_is_said() {
    // For ever, until the device is closed; and for as long as a removal waits.
    for (hang_ms, waits_ms) in [(3_600_000, "50"), (1000, "600000")] {
        let options = options();
        options.tunables.set("stall_timeout_ms", "50").unwrap();
        let (faults, device, world) = failing(&options);
        let hang = Fault::Delay(Duration::from_millis(hang_ms));
        faults.add(Rule::new(hang).on(Op::Write).times(1));
        (0..KEYS).for_each(|key| world.insert(key, 1, 1000));
        world.cache.offer_all(256, |candidates| {
            forebay_cache::SecondLevel::offer(&*world.level, candidates);
        });
        assert!(world.level.flush().is_err());
        assert!(matches!(world.level.health(), Health::Failed { .. }));
        world.level.set_tunable("stall_timeout_ms", waits_ms).unwrap();
        // The first write of a level that was just made is the header of its first segment.
        let header = || {
            let page = device.run(Request::read(64 << 10, arena().alloc(4096).unwrap()));
            page.into_buffer().unwrap().iter().any(|byte| *byte != 0)
        };
        match world.level.remove() {
            Ok(()) => assert!(hang_ms < 3_600_000 && header()),
            Err(error) => {
                assert!(hang_ms == 3_600_000 && !header(), "{error}");
                assert_eq!(error.kind(), ErrorKind::Device);
                assert!(error.to_string().contains("has not ended"), "{error}");
            }
        }
        // Delays end.
        device.close();
        world.cache.close();
    }
}

#[test]
fn numbers_of_segments_whose_headers_cannot_be_read_are_not_used_again() {
    const SEGMENT: u64 = 128 << 10;
    let (faults, device, world) = failing(&small());
    // Several batches in each segment.
    let mut keys = 0;
    while world.level.stats().used_bytes < 9 * SEGMENT
        || world.level.stats().count("batches") % 3 != 0
    {
        (0..20).for_each(|key| world.insert(keys + key, 1, 1000));
        world.spill();
        keys += 20;
    }
    let used = world.level.stats().used_bytes / SEGMENT;
    world.close();
    for segment in [used - 1, used - 2] {
        let header = (64 << 10) + segment * SEGMENT;
        let error = Rule::new(Fault::Error(5)).on(Op::Read);
        faults.add(error.within(header..header + 4096));
    }
    let world = World::open(&device, &small());
    assert!(world.level.wait_rebuilt());
    for key in 0..keys {
        world.cache.remove(&key);
        assert_eq!(world.get(key), None);
    }
    world.insert(keys, 2, 1000);
    world.spill();
    // As a crash would leave it, and with all of it readable.
    faults.clear();
    let after = memory(16 << 20);
    for offset in (0..16 << 20).step_by(1 << 20) {
        let read = device.run(Request::read(offset, arena().alloc(1 << 20).unwrap()));
        let written = after.run(Request::write(offset, read.into_buffer().unwrap()));
        written.result.unwrap();
    }
    world.close();
    let world = World::open(&after, &small());
    assert!(world.level.wait_rebuilt());
    for key in 0..keys {
        assert_eq!(world.get(key), None, "key {key} of {keys}");
    }
    assert_eq!(world.get(keys).map(|value| value.version), Some(2));
    world.close();
}
