//! Blocks that are back in memory after a restart before anybody has asked for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_cache::{Attributes, Cache, Class, Reclaim};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};
use forebay_l2::{Codec, Health, Level, LevelOptions, WarmUp, WarmUpEnd};
use proptest::prelude::*;

use crate::support::{Numbers, Value, World, memory, options};

const MIB: u64 = 1 << 20;

fn reopen(device: &Arc<dyn Device>, options: &LevelOptions, capacity: u64) -> World {
    reopen_with(device, Arc::new(Numbers), options, capacity)
}

fn reopen_with(
    device: &Arc<dyn Device>,
    codec: Arc<dyn Codec<u64, Value>>,
    options: &LevelOptions,
    capacity: u64,
) -> World {
    let level = Level::open(device.clone(), codec, options).unwrap();
    let cache = Cache::builder()
        .capacity(capacity)
        .weigher(|_, value: &Value| value.bytes.len() as u64 + 64)
        .reclaim(Reclaim::Inline)
        .second_level(level.clone())
        .build()
        .unwrap();
    World { level, cache }
}

/// Has it put back what it can.
fn warm(world: &World) -> WarmUpEnd {
    world.level.warm_up(world.cache.spare_room());
    match world.level.wait_warm() {
        WarmUp::Ended(end) => end,
        other => panic!("{other:?}"),
    }
}

fn passed(world: &World, why: &str) -> u64 {
    let counters = world.level.stats().counters;
    let one = counters.iter().find(|c| c.name == "warm_passed" && c.label == Some(why));
    one.unwrap_or_else(|| panic!("there is no label {why}")).value
}

fn warmed(world: &World) -> u64 {
    world.level.stats().count("warmed")
}

#[derive(Clone, Debug)]
enum Deed {
    Insert(u64, usize),
    Remove(u64),
    Spill,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => (0..60u64, 0..6000usize).prop_map(|(key, len)| Deed::Insert(key, len)),
        2 => (0..60u64).prop_map(Deed::Remove),
        1 => Just(Deed::Spill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The twin is a map. What was spilled last of a key that has not changed since is back, and nothing else is; all of
    /// it without a load.
    #[test]
    fn what_the_level_has_is_back_and_nothing_else(
        deeds in prop::collection::vec(deed(), 1..150),
        sealed in any::<bool>(),
    ) {
        let device = memory(16 * MIB);
        let world = World::create(&device, &options());
        let (mut now, mut there) = (HashMap::new(), HashMap::new());
        for (version, deed) in deeds.into_iter().enumerate() {
            match deed {
                Deed::Insert(key, len) => {
                    world.insert(key, version as u64, len);
                    now.insert(key, version as u64);
                    there.remove(&key);
                }
                Deed::Remove(key) => {
                    world.cache.remove(&key);
                    now.remove(&key);
                    there.remove(&key);
                }
                Deed::Spill => {
                    world.spill();
                    there.extend(now.iter());
                }
            }
        }
        // Without a close the newest segment has no footer.
        let device = if sealed { world.close(); device } else { copy_of(&device) };
        let world = reopen(&device, &options(), 64 * MIB);
        prop_assert_eq!(warm(&world), WarmUpEnd::Done);
        for key in 0..60 {
            let found = world.cache.get(&key).map(|value| value.version);
            prop_assert_eq!(found, there.get(&key).copied(), "key {}", key);
        }
        prop_assert_eq!(warmed(&world), there.len() as u64);
        let stats = world.level.stats();
        prop_assert_eq!((stats.loads, stats.count("forgotten")), (0, 0));
        world.close();
    }
}

/// What is on a device now, on another one.
fn copy_of(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    let size = device.info().size_bytes;
    let copy = memory(size);
    let arena = crate::support::arena();
    for offset in (0..size).step_by(MIB as usize) {
        let buffer = arena.alloc(MIB as usize).unwrap();
        let buffer = device.run(Request::read(offset, buffer)).into_buffer().unwrap();
        copy.run(Request::write(offset, buffer)).result.unwrap();
    }
    copy
}

/// A closed level with these keys, of a KiB each; those of later lots are newer.
fn filled(device: &Arc<dyn Device>, lots: &[std::ops::Range<u64>]) {
    let world = World::create(device, &options());
    for lot in lots {
        lot.clone().for_each(|key| world.insert(key, 1, 1024));
        world.spill();
    }
    world.close();
}

#[test]
fn it_takes_only_room_that_is_spare_and_the_newest_come_first() {
    let device = memory(32 * MIB);
    filled(&device, &[0..4000, 4000..8000]);
    let one_thread = options();
    one_thread.tunables.set("warm_up_threads", "1").unwrap();
    let world = reopen(&device, &one_thread, 4 * MIB);
    assert_eq!(warm(&world), WarmUpEnd::NoRoom);
    let stats = world.cache.stats();
    assert_eq!(stats.counter("left"), 0, "nothing is evicted for it");
    assert_eq!(stats.counter("misses") + stats.counter("ghost_hits_mru"), 0, "it is no use");
    let held = warmed(&world) * (1024 + 64);
    assert!(held <= 4 * MIB * 15 / 16 && held > 4 * MIB * 7 / 8, "{held}");
    let back =
        |keys: std::ops::Range<u64>| keys.filter(|key| world.cache.contains(key)).count() as u64;
    let (older, newer) = (back(0..4000), back(4000..8000));
    assert_eq!(older + newer, warmed(&world));
    // Pieces of one lot come in as they come.
    assert!(newer > 2 * older, "{older} older ones, {newer} newer ones");
    world.close();
}

#[test]
fn it_ends_once_something_was_evicted_and_what_memory_has_stays() {
    let device = memory(32 * MIB);
    filled(&device, std::slice::from_ref(&(0..1000)));
    let world = reopen(&device, &options(), 4 * MIB);
    assert!(world.level.wait_rebuilt());
    let room = world.cache.spare_room();
    // A stream of others runs through memory, and then most of it is free again.
    (10_000..15_000).for_each(|key| world.insert(key, 1, 1024));
    (10_000..15_000).for_each(|key| _ = world.cache.remove(&key));
    world.level.warm_up(room);
    assert_eq!(world.level.wait_warm(), WarmUp::Ended(WarmUpEnd::NoRoom));
    assert_eq!(warmed(&world), 0);
    world.close();

    let world = reopen(&device, &options(), 64 * MIB);
    assert!(world.level.wait_rebuilt());
    world.insert(7, 2, 100);
    assert!(world.get(8).is_some());
    assert_eq!(warm(&world), WarmUpEnd::Done);
    assert_eq!(world.cache.get(&7).unwrap().version, 2, "a newer one is not overwritten");
    assert_eq!((warmed(&world), passed(&world, "there")), (998, 1), "the older one is forgotten");
    // Once a life.
    world.cache.flush();
    assert_eq!(warm(&world), WarmUpEnd::Done);
    assert_eq!(warmed(&world), 998);
    world.close();
}

#[test]
fn rotten_blocks_are_passed_over_and_counted() {
    let device = memory(16 * MIB);
    filled(&device, std::slice::from_ref(&(0..2000)));
    // Every now and then a byte of what was written, but not of logs: those have their own tests.
    let arena = crate::support::arena();
    let wanted: Vec<Vec<u8>> = (0..40).map(|n| Value::new(n * 50, 1, 1024).bytes).collect();
    let size = device.info().size_bytes;
    let buffer = arena.alloc(size as usize).unwrap();
    let mut buffer = device.run(Request::read(0, buffer)).into_buffer().unwrap();
    for content in &wanted {
        let at = buffer.windows(32).position(|bytes| bytes == &content[..32]).expect("it is there");
        buffer[at] ^= 1;
    }
    device.run(Request::write(0, buffer)).result.unwrap();
    let world = reopen(&device, &options(), 64 * MIB);
    assert_eq!(warm(&world), WarmUpEnd::Done);
    assert_eq!((warmed(&world), passed(&world, "rotten")), (1960, 40));
    for key in 0..2000 {
        assert_eq!(world.get(key).is_some(), key % 50 != 0, "key {key}");
    }
    world.close();
}

#[test]
fn a_read_that_fails_is_counted_and_the_rest_comes_back() {
    let plain = memory(32 * MIB);
    filled(&plain, &[0..2000, 2000..4000, 4000..6000]);
    let faulty = Arc::new(FaultDevice::new(plain, 3));
    let device: Arc<dyn Device> = faulty.clone();
    let world = reopen(&device, &options(), 64 * MIB);
    assert!(world.level.wait_rebuilt());
    // In the middle of what was written.
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Read).within(3 * MIB..3 * MIB + 4096));
    assert_eq!(warm(&world), WarmUpEnd::Done);
    let errors = world.level.stats().count("warm_errors");
    assert!(errors > 0 && warmed(&world) >= 3000, "{errors}, {}", warmed(&world));
    assert_eq!(world.level.health(), forebay_l2::Health::Healthy);
    world.close();
}

#[test]
fn a_close_ends_it() {
    let plain = memory(32 * MIB);
    filled(&plain, &[0..4000, 4000..8000]);
    for removes in [false, true] {
        let faulty = Arc::new(FaultDevice::new(copy_of(&plain), 3));
        let device: Arc<dyn Device> = faulty.clone();
        let world = reopen(&device, &options(), 64 * MIB);
        assert!(world.level.wait_rebuilt());
        let slow = Fault::Delay(Duration::from_millis(30));
        faulty.add(Rule::new(slow).on(Op::Read));
        world.level.warm_up(world.cache.spare_room());
        assert_eq!(world.level.warmth(), WarmUp::Running);
        match removes {
            true => world.level.remove().unwrap(),
            false => world.level.close(),
        }
        // No thread of it is left.
        assert_eq!(world.level.warmth(), WarmUp::Ended(WarmUpEnd::Closed));
        assert!(warmed(&world) < 8000);
        world.close();
    }
}

#[test]
fn a_cache_that_is_gone_takes_nothing_and_is_let_go_of() {
    let device = memory(32 * MIB);
    filled(&device, std::slice::from_ref(&(0..4000)));
    let World { level, cache } = reopen(&device, &options(), 64 * MIB);
    let room = cache.spare_room();
    drop(cache);
    assert_eq!(room.bytes(), 0);
    level.warm_up(room);
    assert_eq!(level.wait_warm(), WarmUp::Ended(WarmUpEnd::NoRoom));
    level.close();
    // After a close it does not begin.
    let world = reopen(&device, &options(), 64 * MIB);
    world.level.close();
    assert_eq!(warm(&world), WarmUpEnd::Closed);
    world.close();
}

#[test]
fn it_can_be_switched_off() {
    let device = memory(16 * MIB);
    filled(&device, std::slice::from_ref(&(0..100)));
    let off = options();
    off.tunables.set("warm_up", "false").unwrap();
    let world = reopen(&device, &off, 64 * MIB);
    assert_eq!(world.level.warmth(), WarmUp::NotAsked);
    assert_eq!(warm(&world), WarmUpEnd::Off);
    assert_eq!((warmed(&world), world.level.stats().count("warm_ended")), (0, 1));
    world.close();
}

/// Keys that need their note to be made again; it is the key's upper half.
struct Noted {
    makes_keys: bool,
    panics: AtomicBool,
}

impl Noted {
    fn new(makes_keys: bool) -> Arc<Self> {
        Arc::new(Self { makes_keys, panics: AtomicBool::new(false) })
    }
}

impl Codec<u64, Value> for Noted {
    fn key_bytes(&self) -> usize {
        4
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        out.copy_from_slice(&(*key as u32).to_le_bytes());
    }
    fn note_bytes(&self) -> usize {
        if self.makes_keys { 4 } else { 0 }
    }
    fn encode_note(&self, key: &u64, out: &mut [u8]) {
        let high = ((key >> 32) as u32).to_le_bytes();
        out.copy_from_slice(&high[..self.note_bytes()]);
    }
    fn decodes_keys(&self) -> bool {
        self.makes_keys
    }
    fn decode_key(&self, key: &[u8], note: &[u8]) -> Option<u64> {
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told");
        let (low, high) = (key.try_into().ok()?, note.try_into().ok()?);
        Some(u64::from(u32::from_le_bytes(low)) | u64::from(u32::from_le_bytes(high)) << 32)
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

/// The key of that number, its upper half not zero.
fn noted(number: u64) -> u64 {
    number | (number % 7 + 1) << 32
}

#[test]
fn notes_make_keys_again_also_of_what_was_carried_forward() {
    let device = memory(8 * MIB);
    let level = Level::create(device.clone(), Noted::new(true), &options()).unwrap();
    let world = World::over(level);
    (0..70).for_each(|n| world.insert_as(noted(n), 1, 1000, Class::Metadata));
    world.spill();
    for round in 1..40u64 {
        (0..400).for_each(|n| world.insert(noted(round * 1000 + n), 1, 1000));
        world.spill();
    }
    assert!(world.level.stats().count("carried") > 0, "{:?}", world.level.stats().short());
    world.close();
    let world = reopen_with(&device, Noted::new(true), &options(), 64 * MIB);
    assert_eq!(warm(&world), WarmUpEnd::Done);
    let back = (0..70).filter(|n| world.cache.contains(&noted(*n))).count();
    assert!(back >= 60, "{back}");
    assert_eq!(warmed(&world), world.level.len());
    // Their class came with them.
    let states = world.cache.stats().states;
    let metadata = states.iter().filter(|state| state.class == Class::Metadata);
    assert_eq!(metadata.map(|state| state.blocks).sum::<u64>(), back as u64);
    world.close();
}

#[test]
fn what_was_written_without_notes_is_served_and_not_warmed() {
    let device = memory(16 * MIB);
    let level = Level::create(device.clone(), Noted::new(false), &options()).unwrap();
    let world = World::over(level);
    (0..100).for_each(|n| world.insert(noted(n), 1, 1000));
    world.spill();
    assert_eq!(warm(&world), WarmUpEnd::NoKeys);
    world.close();
    let world = reopen_with(&device, Noted::new(true), &options(), 64 * MIB);
    assert_eq!(warm(&world), WarmUpEnd::Done);
    assert_eq!((warmed(&world), passed(&world, "unknown_owner")), (0, 100));
    (0..100).for_each(|n| assert!(world.get(noted(n)).is_some()));
    world.close();
}

#[test]
fn what_a_codec_panics_on_is_passed_over() {
    let device = memory(16 * MIB);
    let level = Level::create(device.clone(), Noted::new(true), &options()).unwrap();
    let world = World::over(level);
    (0..100).for_each(|n| world.insert(noted(n), 1, 1000));
    world.spill();
    world.close();
    let codec = Noted::new(true);
    codec.panics.store(true, Ordering::Relaxed);
    let world = reopen_with(&device, codec, &options(), 64 * MIB);
    assert_eq!(warm(&world), WarmUpEnd::Done);
    assert_eq!((warmed(&world), passed(&world, "undecodable")), (0, 100));
    (0..100).for_each(|n| assert!(world.get(noted(n)).is_some()));
    world.cache.insert_with(noted(1), Value::new(noted(1), 2, 10), Attributes::DATA).unwrap();
    world.close();
}

/// The first thread of the warm-up panics once another one is at work, and that one takes its time then.
#[derive(Default)]
struct Meeting {
    inside: AtomicU64,
    panicked: AtomicBool,
}

impl Meeting {
    #[allow(clippy::disallowed_methods, reason = "it is about which thread this is")]
    fn weigh(&self) -> u64 {
        let thread = std::thread::current();
        let Some(name) = thread.name().filter(|name| name.starts_with("l2-warm")) else {
            return 64;
        };
        if name == "l2-warm" {
            while self.inside.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            self.panicked.store(true, Ordering::SeqCst);
            panic!("as it was told");
        }
        if !self.panicked.load(Ordering::SeqCst) {
            self.inside.fetch_add(1, Ordering::SeqCst);
            while !self.panicked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(100));
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
        64
    }
}

#[test]
fn who_hears_that_it_has_ended_by_a_panic_finds_none_of_its_threads_at_work() {
    let device = memory(32 * MIB);
    filled(&device, std::slice::from_ref(&(0..4000)));
    let two = options();
    two.tunables.set("warm_up_threads", "2").unwrap();
    let meeting = Arc::new(Meeting::default());
    let level = Level::open(device, Arc::new(Numbers), &two).unwrap();
    let weighing = meeting.clone();
    let cache = Cache::builder()
        .capacity(64 * MIB)
        .weigher(move |_, _: &Value| weighing.weigh())
        .reclaim(Reclaim::Inline)
        .second_level(level.clone())
        .build()
        .unwrap();
    let world = World { level, cache };
    assert_eq!(warm(&world), WarmUpEnd::Failed);
    assert_eq!(meeting.inside.load(Ordering::SeqCst), 0);
    assert_eq!(world.level.health(), Health::Healthy);
    world.close();
}
