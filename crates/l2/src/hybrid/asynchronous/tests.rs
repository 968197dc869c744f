#![allow(clippy::disallowed_methods, reason = "the test passes results by channels")]

use std::sync::mpsc;
use std::time::Duration;

use forebay_base::sync::thread::{spawn_named, yield_now};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{MemoryDevice, MemoryOptions, Op};

use crate::{Codec, HybridBuilder};

/// What the codec does when it encodes a key for the next time.
type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct HookedCodec(Hook);

impl Codec<u64, u64> for HookedCodec {
    fn key_bytes(&self) -> usize {
        8
    }

    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        let hook = self.0.lock().take();
        hook.into_iter().for_each(|hook| hook());
        out.copy_from_slice(&key.to_le_bytes());
    }

    fn encoded_len(&self, _value: &u64) -> usize {
        8
    }

    fn encode(&self, value: &u64, out: &mut [u8]) {
        out.copy_from_slice(&value.to_le_bytes());
    }

    fn decode(&self, _key: &u64, bytes: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// Without a slot no request waits for the removal. One that begins between its two parts has the
/// old value read, which must not stay in memory.
#[test]
fn a_removal_without_a_slot_outlasts_a_load_of_the_old_value() {
    let hook: Hook = Arc::new(Mutex::named("test-hook", None));
    let options = MemoryOptions::default();
    let device = Arc::new(MemoryDevice::new("memory", 16 << 20, &options).unwrap());
    let faults = Arc::new(FaultDevice::new(device, 7));
    let codec = Arc::new(HookedCodec(Arc::clone(&hook)));
    let cache = HybridBuilder::new(faults.clone(), codec, |_, _| 8)
        .capacity(1 << 20)
        .l2_tunable("load_timeout_ms", "600000")
        .l2_tunable("stall_timeout_ms", "600000")
        .build()
        .unwrap();
    let cache = Arc::new(cache);
    assert!(cache.l2().wait_rebuilt());
    cache.insert(1, 7).unwrap();
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    faults.add(Rule::new(Fault::Delay(Duration::from_secs(3600))).on(Op::Read));
    let (found, lookup) = mpsc::sync_channel(1);
    let (reader, seen) = (Arc::clone(&cache), Arc::clone(&faults));
    *hook.lock() = Some(Box::new(move || {
        let lookup = move || found.send(reader.get(&1).map(|value| *value)).unwrap();
        spawn_named("lookup", lookup).unwrap();
        while seen.injected().is_empty() {
            yield_now();
        }
    }));
    let (ended, end) = mpsc::sync_channel(1);
    let done = move |was_cached, forgotten| ended.send((was_cached, forgotten)).unwrap();
    cache.remove_without_slot(&1, done);
    let (was_cached, forgotten) = end.recv().unwrap();
    assert!(!was_cached, "only the device had it");
    forgotten.unwrap();
    faults.clear();
    // The lookup began before the removal ended, so it may have either.
    let _ = lookup.recv().unwrap();
    assert_eq!(cache.get(&1).as_deref(), None, "the old value came back");
    cache.close().unwrap();
}
