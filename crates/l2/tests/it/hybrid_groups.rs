//! Removals of groups of keys, in memory and on the device, over restarts.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_base::testing::{full, seed};
use forebay_l2::{ErrorKind, HybridCache, MemoryDevice, MemoryOptions};

/// The number of a file and of a block in it.
type Key = (u64, u32);
type Hybrid = HybridCache<Key, Vec<u8>>;

const FILES: u64 = 5;
const BLOCKS: u32 = 40;

fn device() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new("memory", 8 << 20, &MemoryOptions::default()).unwrap())
}

fn open(device: &Arc<MemoryDevice>, waits: bool) -> Hybrid {
    let builder = Hybrid::builder(device.clone()).capacity(1 << 20);
    let builder = builder.l2_tunable("admit_all", "true").l2_tunable("warm_up", "false");
    let cache = builder.l2_tunable("write_max_bytes_per_s", "64G").build().unwrap();
    assert!(!waits || cache.l2().wait_rebuilt());
    cache
}

fn reopen(cache: Hybrid, device: &Arc<MemoryDevice>, waits: bool) -> Hybrid {
    // Otherwise the close cannot write what only memory has, and says so.
    assert!(cache.l2().wait_rebuilt());
    cache.close().unwrap();
    drop(cache);
    open(device, waits)
}

fn found(cache: &Hybrid, file: u64) -> usize {
    (0..BLOCKS).filter(|block| cache.get(&(file, *block)).is_some()).count()
}

#[test]
fn a_removed_group_is_gone_from_memory_and_device_and_others_stay() {
    let device = device();
    let cache = open(&device, true);
    for block in 0..BLOCKS {
        (1..4).for_each(|file| cache.insert((file, block), vec![file as u8; 1000]).unwrap());
    }
    cache.flush_to_device().unwrap();
    // 1 is in memory and on the device, 2 on the device alone, and 4 in memory alone.
    cache.memory().evict_all();
    assert_eq!(found(&cache, 1), BLOCKS as usize);
    cache.insert((4, 0), vec![4]).unwrap();
    let tombstones = cache.stats().l2.count("tombstones");
    let removed = [1, 2, 4, 9].map(|file| cache.remove_group(file).unwrap());
    assert_eq!(removed, [u64::from(BLOCKS), 0, 1, 0]);
    assert_eq!(cache.stats().l2.count("tombstones") - tombstones, 4, "one for each group");
    assert_eq!([1, 2, 3, 4].map(|file| found(&cache, file)), [0, 0, BLOCKS as usize, 0]);
    assert!(!cache.contains(&(1, 0)) && cache.contains(&(3, 0)));
    // A key of the group can be used again.
    cache.insert((1, 7), vec![17]).unwrap();
    let cache = reopen(cache, &device, true);
    assert_eq!([1, 2, 3, 4].map(|file| found(&cache, file)), [1, 0, BLOCKS as usize, 0]);
    assert_eq!(*cache.get(&(1, 7)).unwrap(), [17]);
    cache.close().unwrap();
    assert_eq!(cache.remove_group(3).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn new_values_of_a_removed_group_are_written() {
    let device = device();
    let cache = open(&device, true);
    for round in 0..3 {
        (0..BLOCKS).for_each(|block| cache.insert((1, block), vec![round; 1000]).unwrap());
        cache.flush_to_device().unwrap();
        cache.memory().evict_all();
        assert_eq!(found(&cache, 1), BLOCKS as usize);
        if round < 2 {
            cache.remove_group(1).unwrap();
            // Also through a load, which does not forget an older value of the device.
            let loaded = cache.get_or_load((1, 0), || Ok::<_, String>(vec![10 + round]));
            assert_eq!(*loaded.unwrap(), [10 + round]);
            cache.flush_to_device().unwrap();
            cache.memory().evict_all();
            assert_eq!(*cache.get(&(1, 0)).unwrap(), [10 + round], "the device has the new one");
        }
    }
    let cache = reopen(cache, &device, true);
    assert!((0..BLOCKS).all(|block| cache.get(&(1, block)).unwrap()[0] == 2));
}

/// Against a model: what is found is the newest value. The ring wraps many times, blocks are
/// reinserted, and the cache is opened again, at times while the rebuild runs.
#[test]
fn no_removed_value_returns() {
    let mut rng = SmallRng::from_seed(seed(7));
    let device = device();
    let mut cache = open(&device, true);
    let mut model: HashMap<Key, u32> = HashMap::new();
    let (mut version, mut hits) = (0u32, 0);
    for step in 0..if full() { 400_000 } else { 40_000 } {
        let key = (rng.below(FILES), rng.below(u64::from(BLOCKS)) as u32);
        match rng.below(1000) {
            0..300 => {
                version += 1;
                let mut value = vec![0; 1000 + rng.below(8000) as usize];
                value[..4].copy_from_slice(&version.to_le_bytes());
                cache.insert(key, value).unwrap();
                model.insert(key, version);
            }
            300..310 => {
                cache.remove(&key).unwrap();
                model.remove(&key);
            }
            310..316 => {
                cache.remove_group(key.0).unwrap();
                model.retain(|(file, _), _| *file != key.0);
            }
            316..330 => _ = cache.memory().evict_all(),
            330..332 => {
                cache = reopen(cache, &device, rng.below(2) == 0);
            }
            _ => {
                let Some(value) = cache.get(&key) else { continue };
                let read = u32::from_le_bytes(value[..4].try_into().unwrap());
                assert_eq!(Some(&read), model.get(&key), "step {step}: {key:?}");
                hits += 1;
            }
        }
    }
    let stats = cache.stats().l2;
    assert!(hits > 1000, "{hits} hits: {:?}", stats.short());
}
