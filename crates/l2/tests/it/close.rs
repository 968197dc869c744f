//! Closing a hybrid cache while other threads change it: late changes are refused, and the device
//! stays warm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_cache::Refusal;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_l2::{ErrorKind, Health, HybridCache, InsertError};

use crate::support::memory;

const KEYS: u64 = 2000;

type Hybrid = HybridCache<u64, Vec<u8>>;

fn open(device: &Arc<dyn Device>) -> Hybrid {
    let builder = HybridCache::builder(device.clone()).capacity(8 << 20);
    builder.l2_tunable("warm_up", "false").build().unwrap()
}

/// A device with a value of each key.
fn filled() -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let cache = open(&device);
    (0..KEYS).for_each(|key| cache.insert(key, vec![key as u8; 500]).unwrap());
    cache.close().unwrap();
    (faults, device)
}

/// After a reopen the device has all unchanged values.
fn assert_warm(device: &Arc<dyn Device>, changed: u64) {
    let cache = open(device);
    assert!(cache.l2().wait_rebuilt());
    let lost = (changed..KEYS).filter(|key| cache.get(key).is_none()).count();
    assert_eq!(lost, 0, "of {} values", KEYS - changed);
    cache.close().unwrap();
}

/// Overwrites key 0 until the insert is refused. Returns an error if it is refused for another
/// reason.
fn change(cache: &Hybrid, changing: &AtomicBool) -> Result<(), String> {
    loop {
        changing.store(true, Ordering::SeqCst);
        match cache.insert(0, vec![1; 500]) {
            Ok(()) => {}
            Err(InsertError::Refused(refused)) => {
                assert_eq!((refused.reason, refused.value), (Refusal::Closed, vec![1; 500]));
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        }
        std::thread::yield_now();
    }
}

#[test]
fn late_changes_are_refused_and_the_device_stays_warm() {
    let (_, device) = filled();
    let cache = open(&device);
    assert!(cache.l2().wait_rebuilt());
    // The cache cannot close while the value is held, so later changes are late.
    let held = cache.get(&1).unwrap();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| cache.close());
        change(&cache, &AtomicBool::new(false)).unwrap();
        for key in [1, KEYS - 1, KEYS] {
            let late = cache.remove(&key).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
            let late = cache.insert(key, vec![2; 500]).unwrap_err();
            assert!(matches!(late, InsertError::Refused(_)), "{late}");
        }
        assert_eq!(cache.flush_to_device().unwrap_err().kind(), ErrorKind::Closed);
        drop(held);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(cache.l2().health(), Health::Closed);
    assert_eq!(cache.remove(&5).unwrap_err().kind(), ErrorKind::Closed);
    assert!(cache.insert(5, vec![2; 500]).is_err());
    cache.close().unwrap();
    drop(cache);
    assert_warm(&device, 1);
}

#[test]
fn close_that_cancels_a_rebuild_keeps_the_device_intact() {
    let (faults, device) = filled();
    faults.add(Rule::new(Fault::Delay(Duration::from_millis(300))).on(Op::Read));
    let cache = open(&device);
    let changing = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| change(&cache, &changing));
        while !changing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // Inserted values may not have been written.
        let _ = cache.close();
        changes.join().unwrap().unwrap();
    });
    let late = cache.remove(&7).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
    assert_eq!(cache.l2().health(), Health::Closed);
    drop(cache);
    faults.clear();
    assert_warm(&device, 1);
}
