//! Lookups of keys that neither memory nor the device has change nothing in memory.

use std::sync::Arc;

use forebay_cache::Class;
use forebay_l2::{AdmissionRefusal, Codec, HybridBuilder, HybridCache, HybridStats};

use crate::support::{block_on, memory};

const KEYS: u64 = 4_000;
const VALUE_BYTES: usize = 256;

/// Odd keys never reach the device.
struct EvenKeys;

impl Codec<u64, Vec<u8>> for EvenKeys {
    fn key_bytes(&self) -> usize {
        8
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        out.copy_from_slice(&key.to_le_bytes());
    }
    fn encoded_len(&self, value: &Vec<u8>) -> usize {
        value.len()
    }
    fn encode(&self, value: &Vec<u8>, out: &mut [u8]) {
        out.copy_from_slice(value);
    }
    fn decode(&self, _key: &u64, bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
    fn admit(&self, key: &u64, _class: Class) -> Result<(), AdmissionRefusal> {
        if key.is_multiple_of(2) { Ok(()) } else { Err(AdmissionRefusal::ClassExcluded) }
    }
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; VALUE_BYTES]
}

/// A cache that has evicted most keys: the even ones are on the device, the odd ones have ghosts.
fn cache() -> HybridCache<u64, Vec<u8>> {
    let weigh = |_: &u64, value: &Vec<u8>| value.len() as u64;
    let cache = HybridBuilder::new(memory(32 << 20), Arc::new(EvenKeys), weigh)
        .capacity(KEYS / 4 * VALUE_BYTES as u64)
        .seed(7)
        .memory_tunable("ghost_percent", "400")
        .l2_tunable("admit_all", "true")
        .l2_tunable("write_max_bytes_per_s", "64G")
        .build()
        .unwrap();
    assert!(cache.l2().wait_rebuilt());
    for key in 0..KEYS {
        cache.insert(key, value(key)).unwrap();
        if key % 100 == 99 {
            cache.flush_to_device().unwrap();
        }
    }
    cache
}

fn absent_from_memory(cache: &HybridCache<u64, Vec<u8>>, odd: u64) -> Vec<u64> {
    let of_parity = (0..KEYS).filter(|key| key % 2 == odd);
    of_parity.filter(|key| !cache.memory().contains(key)).collect()
}

/// What requests change in memory: ghosts that were used, accesses that the simulations have seen,
/// and loads.
fn learned(stats: &HybridStats) -> [u64; 4] {
    ["ghost_hits_mru", "ghost_hits_mfu", "simulation_accesses", "misses"]
        .map(|name| stats.memory.counter(name))
}

#[test]
fn a_lookup_of_an_absent_key_leaves_its_ghost_and_the_simulations_alone() {
    let cache = cache();
    let absent = absent_from_memory(&cache, 1);
    assert!(absent.len() as u64 > KEYS / 8, "{}", cache.stats().memory);
    let before = cache.stats();
    for key in &absent {
        assert!(cache.get(key).is_none());
        assert!(block_on(cache.get_async(key)).is_none());
    }
    let after = cache.stats();
    assert_eq!(learned(&after), learned(&before));
    // Each lookup was counted: in memory, and by the L2 that it asked.
    let (lookups, l2) = (2 * absent.len() as u64, |stats: &HybridStats| stats.l2.count("misses"));
    let missed = |stats: &HybridStats| stats.memory.counter("lookups_missed");
    assert_eq!((missed(&after) - missed(&before), l2(&after) - l2(&before)), (lookups, lookups));
    // An insert finds the ghost, and the simulations see it once.
    let (before, mut ghosts) = (learned(&after), 0);
    for key in &absent {
        cache.insert(*key, value(*key)).unwrap();
        let now = learned(&cache.stats());
        ghosts = now[0] + now[1] - before[0] - before[1];
    }
    assert!(ghosts > absent.len() as u64 / 2, "{ghosts} of {} ghosts", absent.len());
    let seen = learned(&cache.stats())[2] - before[2];
    assert!(seen <= absent.len() as u64, "{seen} accesses by {} inserts", absent.len());
    cache.close().unwrap();
}

#[test]
fn a_lookup_of_a_key_on_the_device_is_one_load() {
    let cache = cache();
    let absent = absent_from_memory(&cache, 0);
    assert!(absent.len() as u64 > KEYS / 8, "{}", cache.stats().memory);
    let before = cache.stats();
    let found = |key: &u64| cache.get(key).inspect(|v| assert_eq!(**v, value(*key))).is_some();
    let found = absent.iter().filter(|key| found(key)).count() as u64;
    let after = cache.stats();
    assert!(found > absent.len() as u64 / 2, "{found} of {}", absent.len());
    assert_eq!(after.l2.hits - before.l2.hits, found);
    let [mru, mfu, seen, misses] = learned(&after);
    let [mru_before, mfu_before, seen_before, misses_before] = learned(&before);
    assert_eq!(misses - misses_before, found);
    assert!(seen - seen_before <= found, "{} accesses by {found} loads", seen - seen_before);
    assert!(mru + mfu > mru_before + mfu_before, "a load uses the ghost");
    cache.close().unwrap();
}
