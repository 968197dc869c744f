//! A value that memory has got from elsewhere, because the L2 declined the load, is newer than that
//! of the device. The device takes it, or at least never returns the older one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_cache::{Attributes, Begin, SecondaryCache};
use forebay_io::Device;
use forebay_l2::{Codec, HybridBuilder, HybridCache, L2Key, L2Options};

use crate::support::{Fixture, Value, memory, options};

const DEVICE_BYTES: u64 = 16 << 20;
const KEYS: u64 = 20;

/// A codec whose answers a test changes. Values are versions.
struct SwitchedCodec {
    decodes: AtomicBool,
    admits: AtomicBool,
}

impl SwitchedCodec {
    fn new() -> Arc<Self> {
        Arc::new(Self { decodes: AtomicBool::new(true), admits: AtomicBool::new(true) })
    }
}

impl Codec<u64, u64> for SwitchedCodec {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        L2Key::encode(key, out);
    }
    fn encoded_len(&self, _version: &u64) -> usize {
        8
    }
    fn encode(&self, version: &u64, out: &mut [u8]) {
        out.copy_from_slice(&version.to_le_bytes());
    }
    fn decode(&self, _key: &u64, bytes: &[u8]) -> Option<u64> {
        let decodes = self.decodes.load(Ordering::SeqCst);
        decodes.then(|| u64::from_le_bytes(bytes.try_into().unwrap()))
    }
    fn admit_value(&self, _key: &u64, _version: &u64) -> bool {
        self.admits.load(Ordering::SeqCst)
    }
}

type Hybrid = HybridCache<u64, u64>;

fn builder(device: &Arc<dyn Device>, codec: &Arc<SwitchedCodec>) -> HybridBuilder<u64, u64> {
    let weigh = |_: &u64, _: &u64| 64;
    let builder = HybridBuilder::new(device.clone(), codec.clone(), weigh).capacity(1 << 20);
    builder.l2_tunable("admit_all", "true").l2_tunable("write_max_bytes_per_s", "64G")
}

fn open(device: &Arc<dyn Device>, codec: &Arc<SwitchedCodec>) -> Hybrid {
    let cache = builder(device, codec).build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    cache
}

/// A cache that has the first version of all keys on the device alone.
fn first_on_device(cache: &Hybrid) {
    (0..KEYS).for_each(|key| cache.insert(key, 1).unwrap());
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
}

/// Loads the second version of all keys, because the values of the device do not decode now.
fn load_second(cache: &Hybrid, codec: &SwitchedCodec) {
    codec.decodes.store(false, Ordering::SeqCst);
    for key in 0..KEYS {
        let version = match key % 2 {
            0 => *cache.get_or_load(key, || Ok::<_, String>(2)).unwrap(),
            _ => *cache.entry(key).or_insert(2).unwrap(),
        };
        assert_eq!(version, 2);
    }
    codec.decodes.store(true, Ordering::SeqCst);
}

fn assert_all(cache: &Hybrid, version: Option<u64>) {
    for key in 0..KEYS {
        assert_eq!(cache.get(&key).map(|found| *found), version, "key {key}");
    }
}

#[test]
fn a_loaded_value_is_written_over_the_one_that_the_device_could_not_serve() {
    let (device, codec) = (memory(DEVICE_BYTES), SwitchedCodec::new());
    let cache = open(&device, &codec);
    first_on_device(&cache);
    load_second(&cache, &codec);
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    assert_all(&cache, Some(2));
    // Now those of the device are in memory, and need no write.
    let stored = cache.stats().l2.count("stored");
    assert_eq!(stored, 2 * KEYS);
    cache.flush_to_device().unwrap();
    assert_eq!(cache.stats().l2.count("stored"), stored);
    cache.close().unwrap();
    drop(cache);
    let cache = open(&device, &codec);
    assert_all(&cache, Some(2));
    cache.close().unwrap();
    assert_eq!(cache.stats().l2.count("stored"), 0, "the device has these");
}

#[test]
fn the_close_writes_what_was_loaded_over_a_value_of_the_device() {
    let (device, codec) = (memory(DEVICE_BYTES), SwitchedCodec::new());
    let cache = open(&device, &codec);
    first_on_device(&cache);
    load_second(&cache, &codec);
    cache.close().unwrap();
    drop(cache);
    assert_all(&open(&device, &codec), Some(2));
}

#[test]
fn the_older_value_does_not_come_back_after_an_eviction_without_a_write() {
    let (device, codec) = (memory(DEVICE_BYTES), SwitchedCodec::new());
    let cache = open(&device, &codec);
    first_on_device(&cache);
    load_second(&cache, &codec);
    codec.admits.store(false, Ordering::SeqCst);
    cache.flush_to_device().unwrap();
    assert!(cache.stats().l2.count("refused") >= KEYS);
    cache.memory().evict_all();
    assert_all(&cache, None);
    // The keys are free for others.
    codec.admits.store(true, Ordering::SeqCst);
    (0..KEYS).for_each(|key| _ = cache.get_or_load(key, || Ok::<_, String>(3)).unwrap());
    cache.close().unwrap();
    drop(cache);
    assert_all(&open(&device, &codec), Some(3));
}

#[test]
fn a_loaded_value_of_an_immutable_key_is_that_of_the_device() {
    let (device, codec) = (memory(DEVICE_BYTES), SwitchedCodec::new());
    let cache = builder(&device, &codec).immutable_keys().build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    first_on_device(&cache);
    codec.decodes.store(false, Ordering::SeqCst);
    (0..KEYS).for_each(|key| _ = cache.get_or_load(key, || Ok::<_, String>(1)).unwrap());
    codec.decodes.store(true, Ordering::SeqCst);
    let stored = cache.stats().l2.count("stored");
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    assert_eq!(cache.stats().l2.count("stored"), stored, "nothing to write");
    assert_all(&cache, Some(1));
    cache.close().unwrap();
}

#[test]
fn a_value_that_does_not_decode_is_read_a_few_times() {
    let (device, codec) = (memory(DEVICE_BYTES), SwitchedCodec::new());
    let cache = open(&device, &codec);
    first_on_device(&cache);
    let count = |name| cache.stats().l2.count(name);
    // Not in a row: it decodes in between.
    for _ in 0..2 {
        codec.decodes.store(false, Ordering::SeqCst);
        (0..2).for_each(|_| assert!(cache.get(&1).is_none()));
        codec.decodes.store(true, Ordering::SeqCst);
        assert_eq!(cache.get(&1).map(|found| *found), Some(1));
        cache.memory().evict_all();
    }
    assert_eq!((count("load_undecodable"), count("misses_bad")), (4, 0));
    codec.decodes.store(false, Ordering::SeqCst);
    (0..10).for_each(|_| assert!(cache.get(&1).is_none()));
    assert_eq!(count("load_undecodable"), 4 + 3);
    // The third lookup has begun again after its load.
    assert_eq!(count("misses_bad"), 8);
    // The record stays, for a tombstone.
    codec.decodes.store(true, Ordering::SeqCst);
    let tombstones = count("tombstones");
    assert!(!cache.remove(&1).unwrap());
    assert_eq!(count("tombstones"), tombstones + 1);
    cache.close().unwrap();
}

#[test]
fn a_value_of_an_immutable_key_that_often_does_not_decode_stays() {
    let (device, codec) = (memory(DEVICE_BYTES), SwitchedCodec::new());
    let cache = builder(&device, &codec).immutable_keys().build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    first_on_device(&cache);
    codec.decodes.store(false, Ordering::SeqCst);
    (0..4).for_each(|_| assert!(cache.get(&1).is_none()));
    assert_eq!(cache.stats().l2.count("load_undecodable"), 4);
    codec.decodes.store(true, Ordering::SeqCst);
    assert_all(&cache, Some(1));
    cache.close().unwrap();
}

#[test]
fn a_new_value_of_a_guard_replaces_that_of_the_device() {
    let device = memory(DEVICE_BYTES);
    let fixture = Fixture::create(&device, &options());
    fixture.insert(1, 1, 100);
    fixture.spill();
    match fixture.cache.begin_new(1, 64, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => _ = guard.publish(Value::new(1, 2, 100)),
        other => panic!("it is not in memory: {other:?}"),
    }
    fixture.spill();
    assert_eq!(fixture.get(1).map(|value| value.version), Some(2));
    fixture.close();
    let fixture = Fixture::open(&device, &options());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(1).map(|value| value.version), Some(2));
    fixture.close();
}

#[test]
fn a_load_whose_key_was_inserted_meanwhile_leaves_the_newer_block() {
    let device = memory(DEVICE_BYTES);
    let fixture = Fixture::create(&device, &options());
    fixture.insert(1, 1, 100);
    fixture.spill();
    let begin = || match fixture.cache.begin_new(1, 64, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("it is not in memory: {other:?}"),
    };
    let guard = begin();
    fixture.insert(1, 3, 100);
    fixture.spill();
    guard.publish(Value::new(1, 2, 100));
    assert_eq!(fixture.get(1).map(|value| value.version), Some(3));
    fixture.cache.clear();
    // A caller has got this one, so the older one is outdated.
    let guard = begin();
    fixture.cache.clear();
    guard.publish(Value::new(1, 4, 100));
    assert_eq!(fixture.get(1), None);
    fixture.close();
}

/// All memory of an arena.
fn exhaust(arena: &Arc<Arena>) -> Vec<Buffer> {
    let mut held = Vec::new();
    for bytes in [1 << 20, 64 << 10, 4096] {
        held.extend(std::iter::from_fn(|| arena.alloc(bytes).ok()));
    }
    held
}

#[test]
fn a_value_published_while_there_is_no_memory_for_reads_replaces_that_of_the_device() {
    let config = ArenaConfig { limit_bytes: 32 << 20, huge_pages: HugePages::Never };
    let arena = Arena::new(config).unwrap();
    let options = L2Options { arena: Arc::clone(&arena), ..options() };
    let device = memory(DEVICE_BYTES);
    let fixture = Fixture::create(&device, &options);
    (0..KEYS).for_each(|key| fixture.insert(key, 1, 100));
    fixture.spill();
    let held = exhaust(&arena);
    for key in 0..KEYS {
        match fixture.cache.begin(key, 64, Attributes::DATA).unwrap() {
            Begin::Vacant(guard) => _ = guard.publish(Value::new(key, 2, 100)),
            other => panic!("{key} was found without memory for the read: {other:?}"),
        }
    }
    drop(held);
    assert_eq!(fixture.l2.stats().count("misses_no_memory"), KEYS);
    let would_write = |key: &u64| fixture.l2.would_write(key, Attributes::DATA.class);
    assert!((0..KEYS).all(|key| would_write(&key)));
    fixture.spill();
    for key in 0..KEYS {
        assert_eq!(fixture.get(key).map(|value| value.version), Some(2));
    }
    fixture.close();
    let fixture = Fixture::open(&device, &options);
    assert!(fixture.l2.wait_rebuilt());
    for key in 0..KEYS {
        assert_eq!(fixture.get(key).map(|value| value.version), Some(2));
    }
    fixture.close();
}
