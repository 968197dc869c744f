//! What users' code on a level's own threads may do: codecs and drops of values run there, and may let go of the level, or ask it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};

use forebay_cache::{Attributes, Cache, Candidate, Class, Filler, Reclaim, SecondLevel};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_l2::{Codec, ErrorKind, Health, Level, LevelOptions};

use crate::support::{Numbers, Value, World, memory, options};

type Slot<V> = Arc<Mutex<Option<Arc<Level<u64, V>>>>>;

/// A level that the cache does not keep.
struct Loosely(Weak<Level<u64, Value>>);

impl SecondLevel<u64, Value> for Loosely {
    fn offer(&self, candidates: Vec<Candidate<u64, Value>>) {
        if let Some(level) = self.0.upgrade() {
            level.offer(candidates);
        }
    }

    fn load(&self, filler: Filler<u64, Value>) -> Result<(), Filler<u64, Value>> {
        match self.0.upgrade() {
            Some(level) => level.load(filler),
            None => Err(filler),
        }
    }

    fn forget(&self, key: &u64) {
        if let Some(level) = self.0.upgrade() {
            level.forget(key);
        }
    }
}

/// Lets go of the level when it is told to, in the middle of a batch.
struct LetsGo {
    slot: Slot<Value>,
    told: Mutex<mpsc::Receiver<()>>,
}

impl Codec<u64, Value> for LetsGo {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        Numbers.encode_key(key, out);
    }
    fn encoded_len(&self, value: &Value) -> usize {
        Numbers.encoded_len(value)
    }
    fn encode(&self, value: &Value, out: &mut [u8]) {
        let _ = self.told.lock().unwrap().recv();
        let level = self.slot.lock().unwrap().take();
        if let Some(level) = &level {
            assert_eq!(level.remove().unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(level.health(), Health::Healthy);
        }
        drop(level);
        Numbers.encode(value, out);
    }
    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        Numbers.decode(key, bytes)
    }
}

#[test]
fn the_last_one_to_let_go_may_be_the_writer() {
    let device = memory(16 << 20);
    let slot: Slot<Value> = Arc::default();
    let (tell, told) = mpsc::channel();
    let codec = LetsGo { slot: Arc::clone(&slot), told: Mutex::new(told) };
    let level = Level::create(Arc::clone(&device), Arc::new(codec), &options()).unwrap();
    let hook = Arc::new(Loosely(Arc::downgrade(&level)));
    let cache = Cache::builder()
        .capacity(1 << 30)
        .weigher(|_, value: &Value| value.bytes.len() as u64)
        .reclaim(Reclaim::Inline)
        .second_level(hook.clone())
        .build()
        .unwrap();
    cache.insert_with(1, Value::new(1, 1, 1000), Attributes::DATA).unwrap();
    cache.offer_all(8, |candidates| level.offer(candidates));
    *slot.lock().unwrap() = Some(level);
    assert!(hook.0.upgrade().is_some());
    tell.send(()).unwrap();
    // Nothing more is held here: it is closed by its own writer, and ends all the same.
    drop(tell);
    while Arc::strong_count(&device) > 1 {
        std::thread::yield_now();
    }
    assert!(slot.lock().unwrap().is_none());
    cache.close();
    let world = World::open(&device, &options());
    assert!(world.level.wait_rebuilt());
    assert_eq!(world.get(1).map(|value| value.version), Some(1), "what it had taken is written");
    world.level.close();
    world.cache.close();
}

/// Asks the level when it goes.
struct Asks {
    key: u64,
    level: Arc<OnceLock<Weak<Level<u64, Asks>>>>,
    gone: Arc<AtomicBool>,
}

impl Drop for Asks {
    fn drop(&mut self) {
        if let Some(level) = self.level.get().and_then(Weak::upgrade) {
            // The first takes the lock of the queue, the second that of the key's part of the index.
            let _ = level.stats();
            level.forget(&self.key);
        }
        self.gone.store(true, Ordering::Release);
    }
}

/// Has the cache let go of everything while a block is encoded.
struct Flushes(Arc<OnceLock<Weak<Cache<u64, Asks>>>>);

impl Codec<u64, Asks> for Flushes {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        Numbers.encode_key(key, out);
    }
    fn encoded_len(&self, _: &Asks) -> usize {
        8
    }
    fn encode(&self, value: &Asks, out: &mut [u8]) {
        out.copy_from_slice(&value.key.to_le_bytes());
        if let Some(cache) = self.0.get().and_then(Weak::upgrade) {
            cache.flush();
        }
    }
    fn decode(&self, _: &u64, _: &[u8]) -> Option<Asks> {
        None
    }
}

#[test]
fn drops_of_values_may_ask_the_level() {
    let (cache_slot, level_slot) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let options = LevelOptions { immutable_keys: true, ..options() };
    let codec = Arc::new(Flushes(Arc::clone(&cache_slot)));
    let level = Level::create(memory(16 << 20), codec, &options).unwrap();
    level_slot.set(Arc::downgrade(&level)).unwrap();
    let cache = Cache::builder().capacity(1 << 20).weigher(|_, _: &Asks| 64);
    let cache = cache.reclaim(Reclaim::Inline).second_level(level.clone()).build().unwrap();
    let cache = Arc::new(cache);
    let insert = |key| {
        let gone = Arc::new(AtomicBool::new(false));
        let value = Asks { key, level: Arc::clone(&level_slot), gone: Arc::clone(&gone) };
        assert!(cache.insert_with(key, value, Attributes::DATA).is_ok());
        gone
    };
    // One that has left the cache when it is offered, and whose last pin the offer has.
    let gone = insert(1);
    let mut kept = Vec::new();
    cache.offer_all(8, |candidates| kept.extend(candidates));
    cache.flush();
    assert!(!kept.is_empty() && !gone.load(Ordering::Acquire));
    level.offer(kept);
    assert!(gone.load(Ordering::Acquire));
    assert_eq!(level.stats().count("admitted_in_vain"), 1);
    // One that leaves the cache while it is written, and whose last pin the writer has.
    cache_slot.set(Arc::downgrade(&cache)).unwrap();
    let gone = insert(2);
    cache.offer_all(8, |candidates| level.offer(candidates));
    level.flush().unwrap();
    while !gone.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert_eq!(level.stats().count("outdated"), 1);
    level.close();
    cache.close();
}

#[test]
fn each_block_that_was_taken_is_accounted_for() {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let world = World::create(&device, &options());
    for key in 0..200 {
        world.insert_as(key, 1, 900, if key % 3 == 0 { Class::Metadata } else { Class::Data });
    }
    world.spill();
    for key in 200..300 {
        world.insert(key, 1, 900);
    }
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    world.cache.offer_all(16, |candidates| world.level.offer(candidates));
    assert!(world.level.flush().is_err());
    world.level.close();
    let stats = world.level.stats();
    let count = |name| stats.count(name);
    assert!(count("admitted_lost") > 0);
    let ended = ["stored", "outdated", "admitted_in_vain", "admitted_lost"].map(count);
    assert_eq!(count("admitted"), ended.iter().sum::<u64>(), "{ended:?}");
    let settled = ["admitted", "refused", "offered_known"].map(count);
    assert_eq!(count("offered"), settled.iter().sum::<u64>(), "{settled:?}");
    world.cache.close();
}
