//! Removals of groups of keys, in memory and on the device, over restarts.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_base::testing::{full, seed};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_l2::{Device, ErrorKind, HybridCache, MemoryDevice, MemoryOptions};

use crate::executor::poll_once;
use crate::support::block_on;

/// The number of a file and of a block in it.
type Key = (u64, u32);
type Hybrid = HybridCache<Key, Vec<u8>>;

const FILES: u64 = 5;
const BLOCKS: u32 = 40;

fn device() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new("memory", 8 << 20, &MemoryOptions::default()).unwrap())
}

fn open<D: Device + 'static>(device: &Arc<D>, waits: bool) -> Hybrid {
    let builder = Hybrid::builder(device.clone()).capacity(1 << 20);
    let builder = builder.l2_tunable("admit_all", "true").l2_tunable("warm_up", "false");
    // A held request must not count as a stall.
    let builder = builder.l2_tunable("stall_timeout_ms", "600000");
    let cache = builder.l2_tunable("write_max_bytes_per_s", "64G").build().unwrap();
    assert!(!waits || cache.l2().wait_rebuilt());
    cache
}

fn reopen<D: Device + 'static>(cache: Hybrid, device: &Arc<D>, waits: bool) -> Hybrid {
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
            let removed = match round {
                0 => cache.remove_group(1),
                _ => block_on(cache.remove_group_async(1)),
            };
            assert_eq!(removed.unwrap(), u64::from(BLOCKS));
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

/// A cache with four files, all in memory and on a device whose requests can be held.
fn with_stored() -> (Arc<FaultDevice>, Hybrid) {
    let faults = Arc::new(FaultDevice::new(device(), 7));
    let cache = open(&faults, true);
    for block in 0..BLOCKS {
        (1..5).for_each(|file| cache.insert((file, block), vec![file as u8; 1000]).unwrap());
    }
    cache.flush_to_device().unwrap();
    (faults, cache)
}

#[test]
fn a_future_removes_a_group_although_nobody_polls_it() {
    let (faults, cache) = with_stored();
    // Not polled: nothing was changed.
    drop(cache.remove_group_async(4));
    faults.add(Rule::new(Fault::Delay(Duration::from_secs(3600))));
    let mut first = Box::pin(cache.remove_group_async(1));
    assert!(poll_once(first.as_mut()).is_pending(), "before its tombstone is durable");
    assert!(poll_once(pin!(cache.remove_group_async(2))).is_pending());
    // Neither memory nor the device, which would hang, is asked for them.
    assert_eq!([1, 2].map(|file| found(&cache, file)), [0, 0]);
    assert_eq!([3, 4].map(|file| found(&cache, file)), [BLOCKS as usize; 2]);
    std::thread::scope(|scope| {
        // A close waits for both.
        let close = scope.spawn(|| cache.close());
        while cache.insert((9, 0), vec![9]).is_ok() {
            std::thread::yield_now();
        }
        assert!(!close.is_finished());
        faults.clear();
        close.join().unwrap().unwrap();
    });
    assert_eq!(block_on(first).unwrap(), u64::from(BLOCKS));
    let late = block_on(cache.remove_group_async(3));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    drop(cache);
    let cache = open(&faults, true);
    assert_eq!([1, 2].map(|file| found(&cache, file)), [0, 0]);
    assert_eq!([3, 4].map(|file| found(&cache, file)), [BLOCKS as usize; 2]);
    // Blocks of the group can be written again.
    cache.insert((1, 7), vec![17]).unwrap();
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    assert_eq!(*cache.get(&(1, 7)).unwrap(), [17]);
    cache.close().unwrap();
}

#[test]
fn a_future_reports_a_group_that_may_return() {
    let (faults, cache) = with_stored();
    faults.add(Rule::new(Fault::Error(5)).on(forebay_io::Op::Write));
    faults.add(Rule::new(Fault::Error(5)).on(forebay_io::Op::Flush));
    let removed = block_on(cache.remove_group_async(1));
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Closed);
    // The device has failed by now.
    let removed = block_on(cache.remove_group_async(2));
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!([1, 2].map(|file| found(&cache, file)), [0, 0]);
    let _ = cache.close();
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
                match version % 2 {
                    0 => cache.remove_group(key.0).unwrap(),
                    _ => block_on(cache.remove_group_async(key.0)).unwrap(),
                };
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

#[test]
fn the_memory_of_removed_groups_is_counted() {
    const GROUPS: u64 = 1000;
    let cache = open(&device(), true);
    let before = cache.l2().memory_bytes();
    (0..GROUPS).for_each(|group| _ = cache.remove_group(group).unwrap());
    let after = cache.l2().memory_bytes();
    assert!(after - before >= GROUPS * 33, "{before} bytes, then {after}");
    cache.close().unwrap();
}
