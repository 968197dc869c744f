//! User code on the L2's own threads: codecs and value drops run there, and may drop the last
//! reference to the L2 or call it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};

use forebay_cache::{Attributes, Cache, Candidate, Class, LoadGuard, Reclaim, SecondaryCache};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_l2::{Codec, ErrorKind, Health, L2, L2Options};

use crate::support::{DropValue, Fixture, NumberCodec, Value, memory, options};

type Slot<V> = Arc<Mutex<Option<Arc<L2<u64, V>>>>>;

/// An L2 that the cache does not keep alive.
struct WeakL2(Weak<L2<u64, Value>>);

impl SecondaryCache<u64, Value> for WeakL2 {
    fn offer(&self, candidates: Vec<Candidate<u64, Value>>) {
        if let Some(l2) = self.0.upgrade() {
            l2.offer(candidates);
        }
    }

    fn load(&self, guard: LoadGuard<u64, Value>) -> Result<(), LoadGuard<u64, Value>> {
        match self.0.upgrade() {
            Some(l2) => l2.load(guard),
            None => Err(guard),
        }
    }

    fn forget(&self, key: &u64) {
        if let Some(l2) = self.0.upgrade() {
            l2.forget(key);
        }
    }
}

/// Drops the L2 on request, in the middle of a batch.
struct DroppingCodec {
    slot: Slot<Value>,
    told: Mutex<mpsc::Receiver<()>>,
}

impl Codec<u64, Value> for DroppingCodec {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        NumberCodec.encode_key(key, out);
    }
    fn encoded_len(&self, value: &Value) -> usize {
        NumberCodec.encoded_len(value)
    }
    fn encode(&self, value: &Value, out: &mut [u8]) {
        let _ = self.told.lock().unwrap().recv();
        let l2 = self.slot.lock().unwrap().take();
        if let Some(l2) = &l2 {
            assert_eq!(l2.remove().unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(l2.health(), Health::Healthy);
        }
        drop(l2);
        NumberCodec.encode(value, out);
    }
    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        NumberCodec.decode(key, bytes)
    }
}

#[test]
fn the_writer_may_drop_the_last_reference() {
    let device = memory(16 << 20);
    let slot: Slot<Value> = Arc::default();
    let (tell, told) = mpsc::channel();
    let codec = DroppingCodec { slot: Arc::clone(&slot), told: Mutex::new(told) };
    let l2 = L2::create(Arc::clone(&device), Arc::new(codec), &options()).unwrap();
    let hook = Arc::new(WeakL2(Arc::downgrade(&l2)));
    let cache = Cache::builder()
        .capacity(1 << 30)
        .weigher(|_, value: &Value| value.bytes.len() as u64)
        .reclaim(Reclaim::Inline)
        .secondary_cache(hook.clone())
        .build()
        .unwrap();
    cache.insert_with(1, Value::new(1, 1, 1000), Attributes::DATA).unwrap();
    cache.offer_all(8, |candidates| l2.offer(candidates));
    *slot.lock().unwrap() = Some(l2);
    assert!(hook.0.upgrade().is_some());
    tell.send(()).unwrap();
    // The test holds no reference. The L2 is closed by its own writer, and ends.
    drop(tell);
    while Arc::strong_count(&device) > 1 {
        std::thread::yield_now();
    }
    assert!(slot.lock().unwrap().is_none());
    cache.close();
    let fixture = Fixture::open(&device, &options());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(1).map(|value| value.version), Some(1), "what it had taken is written");
    fixture.l2.close();
    fixture.cache.close();
}

/// Makes the cache evict all values while a block is encoded.
struct FlushingCodec(Arc<OnceLock<Weak<Cache<u64, DropValue>>>>);

impl Codec<u64, DropValue> for FlushingCodec {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        NumberCodec.encode_key(key, out);
    }
    fn encoded_len(&self, _: &DropValue) -> usize {
        8
    }
    fn encode(&self, value: &DropValue, out: &mut [u8]) {
        out.copy_from_slice(&value.key.to_le_bytes());
        if let Some(cache) = self.0.get().and_then(Weak::upgrade) {
            cache.clear();
        }
    }
    fn decode(&self, _: &u64, _: &[u8]) -> Option<DropValue> {
        None
    }
}

#[test]
fn value_drops_may_call_the_l2() {
    let cache_slot = Arc::new(OnceLock::new());
    let level_slot: Arc<OnceLock<Weak<L2<u64, DropValue>>>> = Arc::default();
    let options = L2Options { immutable_keys: true, ..options() };
    let codec = Arc::new(FlushingCodec(Arc::clone(&cache_slot)));
    let l2 = L2::create(memory(16 << 20), codec, &options).unwrap();
    level_slot.set(Arc::downgrade(&l2)).unwrap();
    let cache = Cache::builder().capacity(1 << 20).weigher(|_, _: &DropValue| 64);
    let cache = cache.reclaim(Reclaim::Inline).secondary_cache(l2.clone()).build().unwrap();
    let cache = Arc::new(cache);
    let insert = |key| {
        let gone = Arc::new(AtomicBool::new(false));
        let (l2, dropped) = (Arc::clone(&level_slot), Arc::clone(&gone));
        let value = DropValue::new(key, move || {
            if let Some(l2) = l2.get().and_then(Weak::upgrade) {
                // The first call takes the lock of the write queue, the second one that of the
                // key's index partition.
                let _ = l2.stats();
                l2.forget(&key);
            }
            dropped.store(true, Ordering::Release);
        });
        assert!(cache.insert_with(key, value, Attributes::DATA).is_ok());
        gone
    };
    // A value that has left the cache when it is offered. The offer holds its last pin.
    let gone = insert(1);
    let mut kept = Vec::new();
    cache.offer_all(8, |candidates| kept.extend(candidates));
    cache.clear();
    assert!(!kept.is_empty() && !gone.load(Ordering::Acquire));
    l2.offer(kept);
    assert!(gone.load(Ordering::Acquire));
    assert_eq!(l2.stats().count("admitted_dropped"), 1);
    // A value that leaves the cache while it is written. The writer holds its last pin.
    cache_slot.set(Arc::downgrade(&cache)).unwrap();
    let gone = insert(2);
    cache.offer_all(8, |candidates| l2.offer(candidates));
    l2.flush().unwrap();
    while !gone.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert_eq!(l2.stats().count("outdated"), 1);
    l2.close();
    cache.close();
}

#[test]
fn every_offered_block_is_counted_once() {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &options());
    for key in 0..200 {
        fixture.insert_as(key, 1, 900, if key % 3 == 0 { Class::Metadata } else { Class::Data });
    }
    fixture.spill();
    for key in 200..300 {
        fixture.insert(key, 1, 900);
    }
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    fixture.cache.offer_all(16, |candidates| fixture.l2.offer(candidates));
    assert!(fixture.l2.flush().is_err());
    fixture.l2.close();
    let stats = fixture.l2.stats();
    let count = |name| stats.count(name);
    assert!(count("admitted_lost") > 0);
    let ended = ["stored", "outdated", "admitted_dropped", "admitted_lost"].map(count);
    assert_eq!(count("admitted"), ended.iter().sum::<u64>(), "{ended:?}");
    let settled = ["admitted", "refused", "offered_known"].map(count);
    assert_eq!(count("offered"), settled.iter().sum::<u64>(), "{settled:?}");
    fixture.cache.close();
}
