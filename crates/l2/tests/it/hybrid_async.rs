//! Inserts, removals and closes of the hybrid cache as futures.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::record::{RecordDevice, RecordOptions};
use forebay_l2::{
    Device, ErrorKind, Health, HybridBuilder, HybridCache, InsertError, MemoryDevice,
    MemoryOptions, Refusal,
};

use crate::executor::{Executor, poll_once, yield_now};
use crate::support::block_on;

const DEVICE_BYTES: u64 = 32 << 20;
/// Until the rule is removed.
const HELD: Fault = Fault::Delay(Duration::from_secs(3600));

fn memory_device() -> Arc<MemoryDevice> {
    let options = MemoryOptions { submission_queues: 1, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new("memory", DEVICE_BYTES, &options).unwrap())
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let mut bytes = key.to_le_bytes().to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.resize(64 + (key % 200) as usize, key as u8);
    bytes
}

fn builder(device: Arc<dyn Device>) -> HybridBuilder<u64, Vec<u8>> {
    HybridCache::builder(device)
        .capacity(1 << 20)
        .seed(7)
        // A held request must not count as a stall.
        .l2_tunable("stall_timeout_ms", "600000")
}

/// A cache whose device has version 0 of these keys, and whose requests can be held.
fn with_stored(keys: u64) -> (Arc<FaultDevice>, HybridCache<u64, Vec<u8>>) {
    let faults = Arc::new(FaultDevice::new(memory_device(), 7));
    let cache = builder(faults.clone()).build().unwrap();
    (0..keys).for_each(|key| cache.insert(key, value(key, 0)).unwrap());
    cache.flush_to_device().unwrap();
    (faults, cache)
}

fn version_of(cache: &HybridCache<u64, Vec<u8>>, key: u64) -> Option<u64> {
    let found = cache.get(&key)?;
    let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
    assert_eq!(*found, value(key, version), "key {key}");
    Some(version)
}

fn is_held(faults: &FaultDevice) -> bool {
    faults.injected().iter().any(|injected| injected.fault == HELD)
}

/// Runs `test`. If it blocks, releases the held requests after a while, so that it fails instead.
fn release_if_blocked(faults: &Arc<FaultDevice>, test: impl FnOnce()) {
    let ended = Arc::new((std::sync::Mutex::new(false), std::sync::Condvar::new()));
    let (faults, seen) = (Arc::clone(faults), Arc::clone(&ended));
    let watchdog = std::thread::spawn(move || {
        let wait = Duration::from_secs(60);
        let ended = seen.1.wait_timeout_while(seen.0.lock().unwrap(), wait, |ended| !*ended);
        let blocked = !*ended.unwrap().0;
        if blocked {
            faults.clear();
        }
        blocked
    });
    test();
    *ended.0.lock().unwrap() = true;
    ended.1.notify_all();
    assert!(!watchdog.join().unwrap(), "the thread was blocked until the device went on");
}

#[test]
fn futures_of_changes_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let cache = builder(memory_device()).build().unwrap();
    is_send(&cache.insert_async(1, vec![1]));
    is_send(&cache.remove_async(&1));
    is_send(&cache.remove_group_async(1));
    is_send(&cache.flush_to_device_async());
    is_send(&cache.get_many_async(&[1]));
    is_send(&cache.l2().wait_rebuilt_async());
    is_send(&cache.close_async());
    assert!(cache.get(&1).is_none(), "a future that was not polled has changed nothing");
    cache.close().unwrap();
}

#[test]
fn a_slow_device_does_not_block_the_executor() {
    const KEYS: u64 = 20;
    let (faults, cache) = with_stored(KEYS);
    faults.add(Rule::new(HELD));
    let (done, ticks, released) = (Cell::new(0), Cell::new(0u64), Cell::new(false));
    release_if_blocked(&faults, || {
        let mut executor = Executor::default();
        for key in 0..KEYS {
            let (cache, done, released) = (&cache, &done, &released);
            executor.spawn(async move {
                match key % 2 {
                    0 => cache.insert_async(key, value(key, 1)).await.unwrap(),
                    _ => assert!(cache.remove_async(&key).await.unwrap()),
                }
                assert!(released.get(), "key {key}: done before its tombstone was durable");
                done.set(done.get() + 1);
            });
        }
        // The ticker ticks while all of them wait for the device.
        executor.spawn(async {
            while !is_held(&faults) || ticks.get() < 1000 {
                ticks.set(ticks.get() + 1);
                yield_now().await;
            }
            assert_eq!(done.get(), 0);
            released.set(true);
            faults.clear();
        });
        executor.run();
    });
    assert_eq!(done.get(), KEYS);
    for key in 0..KEYS {
        assert_eq!(version_of(&cache, key), (key % 2 == 0).then_some(1), "key {key}");
    }

    // Neither does the close, which writes and flushes values and ends threads.
    let before = faults.injected().len();
    faults.add(Rule::new(HELD));
    let (ticks, closed) = (Cell::new(0u64), Cell::new(0));
    release_if_blocked(&faults, || {
        let mut executor = Executor::default();
        for _ in 0..3 {
            executor.spawn(async {
                cache.close_async().await.unwrap();
                closed.set(closed.get() + 1);
            });
        }
        executor.spawn(async {
            while faults.injected().len() == before || ticks.get() < 1000 {
                ticks.set(ticks.get() + 1);
                yield_now().await;
            }
            assert_eq!(closed.get(), 0, "closed before its values were written");
            faults.clear();
        });
        executor.run();
    });
    assert_eq!(closed.get(), 3);
    cache.close().unwrap();
    match block_on(cache.insert_async(1, value(1, 2))) {
        Err(InsertError::Refused(refused)) => assert_eq!(refused.reason, Refusal::Closed),
        other => panic!("inserted into a closed cache: {other:?}"),
    }
    assert_eq!(block_on(cache.remove_async(&2)).unwrap_err().kind(), ErrorKind::Closed);
    drop(cache);
    let cache = builder(faults).build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    for key in 0..KEYS {
        assert_eq!(version_of(&cache, key), (key % 2 == 0).then_some(1), "key {key}");
    }
    cache.close().unwrap();
}

#[test]
fn a_change_goes_on_without_its_future() {
    let (faults, cache) = with_stored(4);
    // Not polled: nothing was changed.
    drop(cache.insert_async(0, value(0, 1)));
    assert_eq!(version_of(&cache, 0), Some(0));
    faults.add(Rule::new(HELD));
    assert!(poll_once(pin!(cache.insert_async(1, value(1, 1)))).is_pending());
    assert!(poll_once(pin!(cache.remove_async(&2))).is_pending());
    assert!(!cache.memory().contains(&1) && !cache.memory().contains(&2));
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A lookup, a later change and a close come after them.
        let lookup = scope.spawn(|| {
            let found = version_of(&cache, 1);
            (found, released.load(Ordering::SeqCst))
        });
        let again = scope.spawn(|| {
            let removed = cache.remove(&2).unwrap();
            (removed, released.load(Ordering::SeqCst))
        });
        while !is_held(&faults) {
            std::thread::yield_now();
        }
        released.store(true, Ordering::SeqCst);
        faults.clear();
        assert_eq!(lookup.join().unwrap(), (Some(1), true));
        assert_eq!(again.join().unwrap(), (false, true));
    });
    assert_eq!(version_of(&cache, 2), None);
    let held = faults.injected().len();
    faults.add(Rule::new(HELD));
    assert!(poll_once(pin!(cache.insert_async(3, value(3, 1)))).is_pending());
    std::thread::scope(|scope| {
        let close = scope.spawn(|| cache.close());
        while faults.injected().len() == held {
            std::thread::yield_now();
        }
        faults.clear();
        close.join().unwrap().unwrap();
    });
    drop(cache);
    let cache = builder(faults).build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    let versions = [0, 1, 2, 3].map(|key| version_of(&cache, key));
    assert_eq!(versions, [Some(0), Some(1), None, Some(1)]);
    cache.close().unwrap();
}

#[test]
fn a_flush_goes_on_without_its_future_and_a_close_waits_for_it() {
    let faults = Arc::new(FaultDevice::new(memory_device(), 7));
    let open = || builder(faults.clone()).without_writing_on_close().build().unwrap();
    let cache = open();
    assert!(cache.l2().wait_rebuilt());
    (0..4).for_each(|key| cache.insert(key, value(key, 0)).unwrap());
    faults.add(Rule::new(HELD));
    let mut flush = Box::pin(cache.flush_to_device_async());
    assert!(poll_once(flush.as_mut()).is_pending());
    drop(cache.flush_to_device_async());
    while !is_held(&faults) {
        std::thread::yield_now();
    }
    assert!(poll_once(flush.as_mut()).is_pending(), "before the values are durable");
    std::thread::scope(|scope| {
        let close = scope.spawn(|| cache.close());
        while cache.insert(9, value(9, 0)).is_ok() {
            std::thread::yield_now();
        }
        faults.clear();
        close.join().unwrap().unwrap();
    });
    block_on(flush).unwrap();
    let late = block_on(cache.flush_to_device_async());
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    drop(cache);
    let cache = open();
    assert!(cache.l2().wait_rebuilt());
    let versions = [0, 1, 2, 3, 9].map(|key| version_of(&cache, key));
    assert_eq!(versions, [Some(0), Some(0), Some(0), Some(0), None]);
    cache.close().unwrap();
}

#[test]
fn a_future_waits_for_the_rebuild_or_its_end_by_a_close() {
    let (faults, cache) = with_stored(4);
    assert!(block_on(cache.l2().wait_rebuilt_async()), "of a new device, which needs none");
    cache.close().unwrap();
    drop(cache);
    for closes in [false, true] {
        let before = faults.injected().len();
        faults.add(Rule::new(HELD).on(forebay_io::Op::Read).within(64 << 10..1 << 20));
        let cache = builder(faults.clone()).build().unwrap();
        let mut rebuilt = pin!(cache.l2().wait_rebuilt_async());
        while faults.injected().len() == before {
            std::thread::yield_now();
        }
        assert!(poll_once(rebuilt.as_mut()).is_pending());
        std::thread::scope(|scope| {
            let close = closes.then(|| scope.spawn(|| cache.close()));
            while closes && cache.l2().health() == Health::Healthy {
                std::thread::yield_now();
            }
            faults.clear();
            close.map(|close| close.join().unwrap());
        });
        // The close may have come too late to end it.
        assert!(block_on(rebuilt) || closes);
        let _ = cache.close();
    }
}

#[test]
fn a_close_does_not_wait_for_a_flush_that_waits_for_the_rebuild() {
    let (faults, cache) = with_stored(4);
    cache.close().unwrap();
    drop(cache);
    faults.add(Rule::new(HELD).on(forebay_io::Op::Read).within(64 << 10..1 << 20));
    let cache = builder(faults.clone()).build().unwrap();
    while !is_held(&faults) {
        std::thread::yield_now();
    }
    release_if_blocked(&faults, || {
        let mut flush = Box::pin(cache.flush_to_device_async());
        let mut dropped = Box::pin(cache.flush_to_device_async());
        assert!(poll_once(flush.as_mut()).is_pending());
        assert!(poll_once(dropped.as_mut()).is_pending());
        drop(dropped);
        std::thread::scope(|scope| {
            let close = scope.spawn(|| cache.close());
            while cache.l2().health() == Health::Healthy {
                std::thread::yield_now();
            }
            faults.clear();
            close.join().unwrap().unwrap();
        });
        assert_eq!(block_on(flush).unwrap_err().kind(), ErrorKind::Closed);
    });
}

/// A waker that panics.
struct Panicking;

impl std::task::Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

#[test]
fn a_change_ends_although_user_code_panics_in_it() {
    let (faults, cache) = with_stored(2);
    faults.add(Rule::new(HELD));
    let mut insert = pin!(cache.insert_async(0, value(0, 1)));
    let mut remove = pin!(cache.remove_async(&1));
    assert!(poll_once(insert.as_mut()).is_pending());
    assert!(poll_once(remove.as_mut()).is_pending());
    // Requests for both wait; the end of the change wakes them.
    let waker = std::task::Waker::from(Arc::new(Panicking));
    let mut lookups = [0, 1].map(|key| {
        let cache = &cache;
        Box::pin(async move { cache.get_async(&key).await.is_some() })
    });
    for lookup in &mut lookups {
        let polled = lookup.as_mut().poll(&mut std::task::Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    faults.clear();
    block_on(insert).unwrap();
    assert!(block_on(remove).unwrap());
    drop(lookups);
    assert_eq!([0, 1].map(|key| version_of(&cache, key)), [Some(1), None]);
    cache.close().unwrap();
}

#[test]
fn refused_values_replace_what_the_device_has() {
    let (_, cache) = with_stored(2);
    let heavy = vec![0; 2 << 20];
    match block_on(cache.insert_async(0, heavy)) {
        Err(InsertError::Refused(refused)) => {
            assert!(matches!(refused.reason, Refusal::TooHeavy { .. }));
            assert_eq!(refused.value.len(), 2 << 20);
        }
        other => panic!("cached beyond the capacity: {other:?}"),
    }
    assert_eq!(version_of(&cache, 0), None);
    cache.close().unwrap();
}

#[test]
fn failed_changes_are_reported() {
    let (faults, cache) = with_stored(20);
    faults.add(Rule::new(Fault::Error(5)).on(forebay_io::Op::Write));
    faults.add(Rule::new(Fault::Error(5)).on(forebay_io::Op::Flush));
    match block_on(cache.insert_async(9, value(9, 2))) {
        Err(InsertError::ForgetFailed { error, value: None }) => {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        }
        other => panic!("the tombstone was not written, but: {other:?}"),
    }
    assert!(matches!(cache.l2().health(), Health::Failed { .. }));
    assert_eq!(version_of(&cache, 9), Some(2), "it is in memory all the same");
    let errors = RefCell::new(0);
    let mut executor = Executor::default();
    for key in 10..15 {
        let (cache, errors) = (&cache, &errors);
        executor.spawn(async move {
            *errors.borrow_mut() += u64::from(cache.remove_async(&key).await.is_err());
        });
    }
    executor.run();
    assert_eq!(*errors.borrow(), 5);
    // Once the label is void, no old value can return. The L2 retries from time to time.
    faults.clear();
    let removed = std::iter::repeat_with(|| block_on(cache.remove_async(&15)));
    let removed = removed.take(10_000).find_map(|removed| {
        std::thread::sleep(Duration::from_millis(10));
        removed.ok()
    });
    assert_eq!(removed, Some(false));
    let _ = cache.close();
}

/// Concurrent inserts and removals. A crash at any moment must not restore an old version.
#[test]
fn overwritten_and_removed_values_never_return_after_a_crash() {
    let first = forebay_base::testing::seed(0);
    let rounds = if forebay_base::testing::full() { 40 } else { 4 };
    (0..rounds).for_each(|round| crash_round(first.wrapping_add(round)));
}

fn crash_round(seed: u64) {
    const KEYS: u64 = 300;
    println!("seed {seed}");
    let device = Arc::new(RecordDevice::new(memory_device(), RecordOptions::default()));
    let cache = builder(device.clone())
        .capacity(16 << 10)
        .l2_tunable("admit_all", "true")
        .l2_tunable("linger_ms", "0")
        .build()
        .unwrap();
    let mut rng = SmallRng::from_seed(seed);
    // For each key: versions by the time of their acknowledgement. 0 stands for none.
    let history: RefCell<HashMap<u64, Vec<(usize, u64)>>> = RefCell::default();
    for group in 1..250u64 {
        // Each key has one change at a time. Some futures are dropped after their first poll: their
        // versions may or may not be acknowledged, at any later time.
        let first = rng.below(KEYS);
        let mut executor = Executor::default();
        for (version, key) in (0..8).map(|nth| (group * 8 + nth, (first + nth) % KEYS)) {
            let (cache, device, history) = (&cache, &device, &history);
            let version = if rng.below(10) < 2 { 0 } else { version };
            executor.spawn(async move {
                match version {
                    0 => drop(cache.remove_async(&key).await.unwrap()),
                    _ => cache.insert_async(key, value(key, version)).await.unwrap(),
                }
                let mut history = history.borrow_mut();
                history.entry(key).or_default().push((device.position(), version));
            });
        }
        executor.run();
        for key in (0..8).map(|_| rng.below(KEYS)) {
            let history = history.borrow();
            let newest = history.get(&key).and_then(|all| all.last()).map_or(0, |h| h.1);
            if let Some(found) = version_of(&cache, key) {
                assert_eq!(found, newest, "key {key}");
            }
        }
    }
    let positions = device.position();
    let recording = device.recording();
    cache.close().unwrap();
    let arena =
        Arena::new(ArenaConfig { limit_bytes: 4 << 20, huge_pages: HugePages::Auto }).unwrap();
    for nth in 0..8 {
        let position = positions * (nth + 1) / 8;
        let image = recording.at(position).sampled(&mut rng);
        let backing = memory_device();
        image.write_to(&*backing, &arena).unwrap();
        let cache = builder(backing).without_writing_on_close().build().unwrap();
        assert!(cache.l2().wait_rebuilt());
        let mut found = 0;
        for (key, versions) in &*history.borrow() {
            let Some(version) = version_of(&cache, *key) else { continue };
            found += 1;
            // The last version acknowledged before the crash, or any that began after it.
            let before = versions.iter().rposition(|(at, _)| *at <= position);
            let allowed = &versions[before.unwrap_or(0)..];
            assert!(
                allowed.iter().any(|(_, v)| *v == version),
                "seed {seed}, position {position}: key {key} came back as {version}, not one of {allowed:?}"
            );
        }
        assert!(nth < 4 || found > 0, "nothing survives");
        cache.close().unwrap();
    }
}

/// A flush or a close goes on without its future, and is far from its end when the cache is
/// dropped.
#[test]
fn a_drop_waits_until_the_values_are_written() {
    const KEYS: u64 = 2000;
    for closes in [false, true] {
        let faults = Arc::new(FaultDevice::new(memory_device(), 7));
        let open = || builder(faults.clone()).l2_tunable("queue_bytes", "64KiB").build().unwrap();
        let cache = open();
        assert!(cache.l2().wait_rebuilt());
        (0..KEYS).for_each(|key| cache.insert(key, value(key, 0)).unwrap());
        faults.add(Rule::new(HELD));
        match closes {
            false => assert!(poll_once(pin!(cache.flush_to_device_async())).is_pending()),
            true => assert!(poll_once(pin!(cache.close_async())).is_pending()),
        }
        while !is_held(&faults) {
            std::thread::yield_now();
        }
        let l2 = Arc::clone(cache.l2());
        std::thread::scope(|scope| {
            let dropping = scope.spawn(move || drop(cache));
            // A drop that does not wait closes the L2 soon.
            for _ in 0..10_000 {
                if l2.health() != Health::Healthy {
                    break;
                }
                std::thread::yield_now();
            }
            faults.clear();
            dropping.join().unwrap();
        });
        assert_eq!(l2.health(), Health::Closed);
        drop(l2);
        let cache = open();
        assert!(cache.l2().wait_rebuilt());
        let lost = (0..KEYS).filter(|key| version_of(&cache, *key) != Some(0)).count();
        assert_eq!(lost, 0, "of {KEYS} values, closes: {closes}");
        cache.close().unwrap();
    }
}

/// A close waits for a value that the thread holds which drops the cache.
#[test]
fn a_drop_does_not_wait_for_values_that_are_held() {
    let (faults, cache) = with_stored(1);
    let held = cache.get(&0).expect("inserted just now");
    let late = cache.close_timeout(Duration::from_millis(1));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
    drop(cache);
    assert_eq!(*held, value(0, 0));
    drop(held);
    let cache = builder(faults).build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(version_of(&cache, 0), Some(0));
    cache.close().unwrap();
}
