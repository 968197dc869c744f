//! Levels whose user was set back: what is younger than the user knows of is never returned.

use std::sync::Arc;

use forebay_io::{Device, Request};
use forebay_l2::{Codec, Level, LevelOptions};

use crate::support::{Numbers, Value, World, arena, memory, options};

const KEYS: u64 = 600;
const SEGMENT: u64 = 128 << 10;
const SEGMENTS_AT: u64 = 64 << 10;
const BYTES: u64 = 8 << 20;

/// A key's stamp is the key.
struct Stamped;

impl Codec<u64, Value> for Stamped {
    fn key_bytes(&self) -> usize {
        8
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

fn until(max_stamp: u64) -> LevelOptions {
    let options = LevelOptions { immutable_keys: true, max_stamp, ..options() };
    LevelOptions { segment_bytes: Some(SEGMENT), ..options }
}

/// A device with all keys, written in order.
fn written() -> Arc<dyn Device> {
    let device = memory(BYTES);
    let level = Level::create(device.clone(), Arc::new(Stamped), &until(KEYS)).unwrap();
    let world = World::over(level);
    for lot in 0..KEYS / 50 {
        (lot * 50..(lot + 1) * 50).for_each(|key| world.insert(key, 1, 2000));
        world.spill();
    }
    world.close();
    device
}

fn opened(device: &Arc<dyn Device>, max_stamp: u64) -> World {
    let level = Level::open(device.clone(), Arc::new(Stamped), &until(max_stamp)).unwrap();
    assert!(level.wait_rebuilt());
    World::over(level)
}

fn found(world: &World) -> usize {
    (0..KEYS).filter(|key| world.get(*key).is_some()).count()
}

/// Where the header of the newest segment is: the one with the largest sequence number.
fn newest_header(device: &Arc<dyn Device>) -> u64 {
    let seq_at = |at: &u64| {
        let page = arena().alloc(4096).unwrap();
        let page = device.run(Request::read(*at, page)).into_buffer().unwrap();
        match page.starts_with(b"forelseg") {
            true => u64::from_le_bytes(page[32..40].try_into().unwrap()),
            false => 0,
        }
    };
    let segments = (BYTES - SEGMENTS_AT) / SEGMENT;
    let offsets = (0..segments).map(|segment| SEGMENTS_AT + segment * SEGMENT);
    offsets.max_by_key(seq_at).unwrap()
}

#[test]
fn a_level_with_younger_blocks_than_its_user_knows_of_is_emptied() {
    let device = written();
    let world = opened(&device, KEYS);
    assert_eq!((found(&world), world.level.stats().count("set_back")), (KEYS as usize, 0));
    world.close();
    let world = opened(&device, 100);
    assert_eq!((found(&world), world.level.stats().count("set_back")), (0, 1));
    world.close();
    // For good.
    let world = opened(&device, KEYS);
    assert_eq!((found(&world), world.level.stats().count("set_back")), (0, 0));
    world.close();
}

#[test]
fn it_is_emptied_also_if_the_header_is_lost_that_knows_how_young_they_are() {
    let device = written();
    let mut zeros = arena().alloc(4096).unwrap();
    zeros.zero();
    device.run(Request::write(newest_header(&device), zeros)).result.unwrap();
    // All headers that are left are from before the user's time; blocks behind them need not be.
    let world = opened(&device, KEYS - 60);
    assert_eq!((found(&world), world.level.stats().count("set_back")), (0, 1));
    world.close();
}
