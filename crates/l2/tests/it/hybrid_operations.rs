//! Operations on values: a look, and removals with a condition.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::Op;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_l2::{ErrorKind, HybridCache, InsertError, MemoryDevice, MemoryOptions};

use crate::support::{DropValue, block_on, memory};

fn memory_device() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new("memory", 16 << 20, &MemoryOptions::default()).unwrap())
}

fn open(device: &Arc<MemoryDevice>) -> HybridCache<u64, Vec<u8>> {
    HybridCache::builder(device.clone()).capacity(1 << 20).build().unwrap()
}

#[test]
fn looks_count_no_use_and_read_nothing() {
    let cache = open(&memory_device());
    cache.insert(1, vec![1]).unwrap();
    cache.insert(2, vec![2]).unwrap();
    assert_eq!((cache.memory().len(), cache.memory().is_empty()), (2, false));
    let mut values: Vec<u8> = cache.memory().iter().map(|value| value[0]).collect();
    values.sort_unstable();
    assert_eq!(values, [1, 2]);
    assert_eq!(cache.memory().peek(&1).as_deref(), Some(&vec![1]));
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    assert!(cache.memory().is_empty());
    assert!(cache.contains(&1) && cache.contains(&2) && !cache.contains(&3));
    assert!(cache.memory().peek(&1).is_none());
    cache.remove(&1).unwrap();
    assert!(!cache.contains(&1));
    let stats = cache.stats();
    assert_eq!((stats.l2.loads, stats.l2.hits), (0, 0), "{:?}", stats.l2.short());
    cache.close().unwrap();
}

/// Removes by the blocking function or by the future.
fn remove_if(
    cache: &HybridCache<u64, Vec<u8>>,
    by_future: bool,
    key: u64,
    condition: impl FnMut(&Vec<u8>) -> bool,
) -> forebay_l2::Result<bool> {
    match by_future {
        false => cache.remove_if(&key, condition),
        true => block_on(cache.remove_if_async(&key, condition)),
    }
}

#[test]
fn removals_with_a_condition_hold_for_memory_and_device() {
    for by_future in [false, true] {
        let device = memory_device();
        let cache = open(&device);
        for key in 0..4 {
            cache.insert(key, vec![key as u8]).unwrap();
        }
        cache.flush_to_device().unwrap();
        // In memory and on the device, and on the device alone.
        for evicts in [false, true] {
            if evicts {
                cache.memory().evict_all();
            }
            let (kept, gone) = if evicts { (2, 3) } else { (0, 1) };
            let remove = |key, wanted: u8| {
                remove_if(&cache, by_future, key, |value| value[0] == wanted).unwrap()
            };
            assert!(!remove(kept, 9));
            assert!(remove(gone, gone as u8));
            assert!(!remove_if(&cache, by_future, gone, |_| unreachable!("it is gone")).unwrap());
        }
        let left = |cache: &HybridCache<u64, Vec<u8>>| [0, 1, 2, 3].map(|key| cache.contains(&key));
        assert_eq!(left(&cache), [true, false, true, false]);
        cache.close().unwrap();
        let closed = remove_if(&cache, by_future, 0, |_| true).unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Closed);
        let cache = open(&device);
        assert!(cache.l2().wait_rebuilt());
        assert_eq!(left(&cache), [true, false, true, false]);
        cache.close().unwrap();
    }
}

#[test]
fn a_condition_is_asked_again_if_the_value_was_replaced() {
    for by_future in [false, true] {
        let cache = open(&memory_device());
        cache.insert(1, vec![1]).unwrap();
        let mut asked = Vec::new();
        let removed = remove_if(&cache, by_future, 1, |value| {
            asked.push(value[0]);
            if value[0] < 3 {
                cache.insert(1, vec![value[0] + 1]).unwrap();
            }
            true
        });
        assert!(removed.unwrap());
        assert_eq!(asked, [1, 2, 3]);
        assert!(!cache.contains(&1));
        cache.close().unwrap();
    }
}

#[test]
fn a_value_that_memory_cannot_hold_is_not_removed_unseen() {
    for by_future in [false, true] {
        let device = memory_device();
        let cache = open(&device);
        cache.insert(1, vec![7; 100 << 10]).unwrap();
        cache.close().unwrap();
        drop(cache);
        let small = HybridCache::<u64, Vec<u8>>::builder(device.clone()).capacity(64 << 10);
        let cache = small.l2_tunable("warm_up", "false").build().unwrap();
        assert!(cache.l2().wait_rebuilt());
        let error = remove_if(&cache, by_future, 1, |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
        assert!(cache.contains(&1));
        cache.close().unwrap();
    }
}

thread_local! {
    /// What the value changes in its drop.
    static OTHER: RefCell<Option<HybridCache<u64, u64>>> = const { RefCell::new(None) };
}

#[test]
fn a_failed_removal_is_reported_although_the_value_changes_another_cache() {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let cache = HybridCache::<u64, DropValue>::builder(faults.clone()).capacity(1 << 20);
    let cache = cache.without_writing_on_close().build().unwrap();
    let change_other = || {
        OTHER
            .with_borrow(|other| other.iter().for_each(|other| assert!(other.remove(&1).unwrap())));
    };
    cache.insert(1, DropValue::new(1, change_other)).unwrap();
    cache.flush_to_device().unwrap();
    let other = HybridCache::<u64, u64>::builder(memory(16 << 20)).capacity(1 << 20);
    let other = other.build().unwrap();
    other.insert(1, 1).unwrap();
    OTHER.set(Some(other));
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    faults.add(Rule::new(Fault::Error(5)).on(Op::Flush));
    let error = cache.remove(&1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let other = OTHER.take().unwrap();
    assert!(!other.memory().contains(&1), "the value was not dropped on this thread");
    other.close().unwrap();
    let _ = cache.close();
}

#[test]
fn entries_modify_what_memory_or_the_device_has() {
    let device = memory_device();
    let cache = open(&device);
    for key in 0..4 {
        cache.insert(key, vec![key as u8]).unwrap();
    }
    cache.flush_to_device().unwrap();
    let more = |value: &Vec<u8>| vec![value[0] + 10];
    drop(cache.entry(0).and_modify(more).unwrap());
    cache.memory().evict_all();
    // 0 was only in memory. 1 is on the device alone, and 9 is nowhere.
    let modified = cache.entry(1).and_modify(more).unwrap().or_insert(vec![0]).unwrap();
    assert_eq!(*modified, [11]);
    drop(modified);
    let made = cache.entry(9).and_modify(|_| unreachable!("it is missing")).unwrap();
    assert_eq!(*made.or_insert_with(|| vec![9]).unwrap(), [9]);
    assert!(cache.entry(8).or_try_insert_with(|| Err("no")).is_err());
    assert!(cache.get(&0).is_none(), "the older value is back");
    cache.close().unwrap();
    assert!(cache.entry(2).and_modify(more).is_ok(), "a closed cache has no value");
    drop(cache);
    let cache = open(&device);
    assert!(cache.l2().wait_rebuilt());
    let values = [0, 1, 2, 9].map(|key| cache.get(&key).map(|value| value[0]));
    assert_eq!(values, [None, Some(11), Some(2), Some(9)]);
}

#[test]
fn no_modification_is_lost() {
    let cache = open(&memory_device());
    cache.insert(1, vec![0]).unwrap();
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    drop(cache.entry(1).and_modify(|value| vec![value[0] + 1]).unwrap());
                    cache.flush_to_device().unwrap();
                }
            });
        }
    });
    assert_eq!(cache.get(&1).unwrap()[0], 150);
}

#[test]
fn a_value_that_memory_cannot_hold_is_not_modified() {
    let device = memory_device();
    let cache = open(&device);
    cache.insert(1, vec![1; 100]).unwrap();
    cache.close().unwrap();
    drop(cache);
    let tiny = HybridCache::<u64, Vec<u8>>::builder(device).capacity(64).build().unwrap();
    assert!(tiny.l2().wait_rebuilt());
    let error = tiny.entry(1).and_modify(|_| unreachable!("not held")).unwrap_err();
    assert!(matches!(error, InsertError::NotHeld), "{error}");
    assert!(error.to_string().starts_with("cannot modify a value of the device"), "{error}");
    assert_eq!(tiny.get(&1).unwrap().len(), 100);
}

#[test]
fn a_close_with_a_timeout_goes_on() {
    let device = memory_device();
    let cache = open(&device);
    cache.insert(1, vec![1]).unwrap();
    let held = cache.get(&1);
    let error = cache.close_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("drop those that are held"), "{error}");
    assert!(cache.insert(2, vec![2]).is_err());
    drop(held);
    cache.close_timeout(Duration::from_secs(3600)).unwrap();
    drop(cache);
    let cache = open(&device);
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(cache.get(&1).as_deref(), Some(&vec![1]));
}
