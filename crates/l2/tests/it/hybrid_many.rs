//! Lookups of many keys that take more memory than there is.

use std::sync::Arc;
use std::time::Duration;

use forebay_io::Op;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_l2::{HybridBuilder, HybridCache};

use crate::support::{block_on, memory};

type Hybrid = HybridCache<u64, Vec<u8>>;

/// A cache whose device has a value of each key, and whose memory has none.
fn with_stored(
    keys: u64,
    value_bytes: usize,
    options: impl FnOnce(HybridBuilder<u64, Vec<u8>>) -> HybridBuilder<u64, Vec<u8>>,
) -> (Arc<FaultDevice>, Hybrid) {
    let faults = Arc::new(FaultDevice::new(memory(64 << 20), 7));
    let builder = Hybrid::builder(faults.clone())
        .l2_tunable("admit_all", "true")
        .l2_tunable("write_max_bytes_per_s", "64G")
        .l2_tunable("load_timeout_ms", "600000");
    let cache = options(builder).build().unwrap();
    for key in 0..keys {
        cache.insert(key, vec![key as u8; value_bytes]).unwrap();
        cache.flush_to_device().unwrap();
    }
    cache.memory().evict_all();
    (faults, cache)
}

fn check_all_found(cache: &Hybrid, keys: u64, asynchronous: bool) {
    let keys: Vec<u64> = (0..keys).collect();
    let found = match asynchronous {
        true => block_on(cache.get_many_async(&keys)),
        false => cache.get_many(&keys),
    };
    for (key, value) in keys.iter().zip(found) {
        let value = value.unwrap_or_else(|| panic!("key {key} was not found"));
        assert!(value.iter().all(|byte| *byte == *key as u8), "key {key}");
    }
}

#[test]
fn reads_wait_for_the_memory_of_earlier_ones() {
    const KEYS: u64 = 40;
    let options = |builder: HybridBuilder<_, _>| builder.capacity(32 << 20).io_memory(6 << 20);
    let (faults, cache) = with_stored(KEYS, 256 << 10, options);
    for asynchronous in [false, true] {
        let no_memory = || cache.stats().l2.count("misses_no_memory");
        let before = no_memory();
        faults.add(Rule::new(Fault::Delay(Duration::from_secs(3600))).on(Op::Read));
        std::thread::scope(|scope| {
            scope.spawn(|| check_all_found(&cache, KEYS, asynchronous));
            // The reads in flight have all memory for I/O.
            while no_memory() == before {
                std::thread::yield_now();
            }
            faults.clear();
        });
        cache.memory().evict_all();
    }
    cache.close().unwrap();
}

#[test]
fn more_values_than_memory_holds_wait_for_capacity_once() {
    const KEYS: u64 = 200;
    let (_, cache) = with_stored(KEYS, 8 << 10, |builder| builder.capacity(1 << 20));
    for asynchronous in [false, true] {
        let timeouts = || cache.stats().memory.counter("throttle_timeouts");
        let before = timeouts();
        check_all_found(&cache, KEYS, asynchronous);
        assert!(timeouts() <= before + 1, "waited {} times", timeouts() - before);
        cache.memory().evict_all();
    }
    cache.close().unwrap();
}
