//! The hybrid cache: warm after a restart, no old versions, and its reports of a failing device.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Class, LoadError};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::record::{RecordDevice, RecordOptions};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};
use forebay_l2::{
    Codec, ErrorKind, Health, HybridBuilder, HybridCache, InsertError, L2Key, L2Value,
    WarmUpOutcome, WarmUpStatus,
};

use crate::support::block_on;

const DEVICE_BYTES: u64 = 32 << 20;

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
    HybridCache::builder(device).capacity(1 << 20).seed(7)
}

#[test]
fn values_in_memory_and_on_the_device_survive_a_restart() {
    const VALUES: u64 = 20_000;
    let device = memory_device();
    let cache = builder(device.clone()).l2_tunable("admit_all", "true").build().unwrap();
    for key in 0..VALUES {
        cache.insert(key, value(key, 0)).unwrap();
    }
    cache.flush_to_device().unwrap();
    let in_memory = cache.stats().memory.resident_blocks();
    assert!(in_memory < VALUES / 2, "{in_memory} of {VALUES} fit into memory");
    cache.close().unwrap();

    let cache = builder(device.clone()).l2_tunable("warm_up", "false").build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    let mut found = 0;
    for key in 0..VALUES {
        if let Some(found_value) = cache.get(&key) {
            assert_eq!(*found_value, value(key, 0), "key {key}");
            found += 1;
        }
    }
    // Values in memory were written, and some that were evicted before.
    assert!(found >= in_memory, "{found} found, {in_memory} had been in memory");
    assert_eq!(cache.stats().l2.hits, found);
    assert!(cache.get(&VALUES).is_none());
    cache.close().unwrap();
    assert!(cache.get(&1).is_none(), "a closed cache has nothing");
}

#[test]
fn values_in_memory_are_restored_by_the_warm_up() {
    let device = memory_device();
    let cache = builder(device.clone()).build().unwrap();
    assert_eq!(cache.l2().wait_warm_up(), WarmUpStatus::Ended(WarmUpOutcome::Done), "of nothing");
    for key in 0..1000 {
        cache.insert(key, value(key, 0)).unwrap();
    }
    (0..1000).step_by(10).for_each(|key| cache.insert(key, value(key, 1)).unwrap());
    (1..1000).step_by(10).for_each(|key| assert!(cache.remove(&key).unwrap()));
    cache.close().unwrap();
    let cache = builder(device.clone()).build().unwrap();
    assert_eq!(cache.l2().wait_warm_up(), WarmUpStatus::Ended(WarmUpOutcome::Done));
    for key in 0..1000 {
        let wanted = (key % 10 != 1).then(|| value(key, u64::from(key % 10 == 0)));
        assert_eq!(cache.memory().get(&key).map(|value| value.clone()), wanted, "key {key}");
    }
    let l2 = cache.stats().l2;
    assert_eq!((l2.count("warmed"), l2.loads), (900, 0));
    // Dropped while the warm-up may be running.
    drop(cache);
    for _ in 0..5 {
        drop(builder(device.clone()).build().unwrap());
    }
    let cache = builder(device).build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(cache.get(&2).as_deref(), Some(&value(2, 0)));
    cache.close().unwrap();
}

#[test]
fn a_close_does_not_wait_for_a_rebuild() {
    // On a busy machine a rebuild may end before the close, so longer ones are tried.
    let delays = [300, 3_000, 12_000].map(std::time::Duration::from_millis);
    let in_time = delays.into_iter().any(closes_during_a_rebuild);
    assert!(in_time, "a close has waited for the rebuild");
}

/// Closes caches, without and with unwritten values, while reads of the rebuild take this time.
/// Returns false if a rebuild had ended.
fn closes_during_a_rebuild(delay: std::time::Duration) -> bool {
    const VALUES: u64 = 20_000;
    let faults = Arc::new(FaultDevice::new(memory_device(), 7));
    let device: Arc<dyn Device> = faults.clone();
    let builder = || {
        let builder = builder(device.clone()).l2_tunable("admit_all", "true").immutable_keys();
        // A delayed read must not count as a stall.
        builder.l2_tunable("stall_timeout_ms", "600000")
    };
    let cache = builder().build().unwrap();
    for key in 0..VALUES {
        cache.insert(key, value(key, 0)).unwrap();
    }
    cache.close().unwrap();
    let written = cache.stats().l2.records;
    // Not reads of the label, which are before it.
    faults.add(Rule::new(Fault::Delay(delay)).on(Op::Read).within(64 << 10..DEVICE_BYTES));
    let cache = builder().build().unwrap();
    cache.close().unwrap();
    if cache.l2().rebuild().done {
        return false;
    }
    assert!(cache.stats().l2.records < written);
    let cache = builder().build().unwrap();
    cache.insert(VALUES, value(VALUES, 0)).unwrap();
    let closed = cache.close();
    if cache.l2().rebuild().done {
        return false;
    }
    match closed {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
        Ok(()) => panic!("it has lost what it was to write"),
    }
    assert!(cache.stats().l2.records < written);
    assert_eq!(cache.l2().health(), Health::Closed);
    faults.clear();
    let cache = builder().build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(cache.stats().l2.records, written, "what the device had is there");
    cache.close().unwrap();
    true
}

#[test]
fn close_during_a_rebuild_keeps_values_read_from_the_device() {
    const LAST: u64 = 40_000;
    let faults = Arc::new(FaultDevice::new(memory_device(), 7));
    let device: Arc<dyn Device> = faults.clone();
    // A delayed read below must not count as a stall.
    let patient =
        |builder: HybridBuilder<u64, Vec<u8>>| builder.l2_tunable("stall_timeout_ms", "600000");
    let builder =
        || patient(builder(device.clone()).l2_tunable("warm_up", "false").immutable_keys());
    let cache = builder().l2_tunable("admit_all", "true").build().unwrap();
    // Each batch fills memory and is written before the next one.
    for key in 0..LAST {
        cache.insert(key, value(key, 0)).unwrap();
        if key % 5_000 == 4_999 {
            cache.flush_to_device().unwrap();
        }
    }
    cache.insert(LAST, value(LAST, 0)).unwrap();
    cache.close().unwrap();
    let segments = cache.stats().l2.count("segments");
    assert!(segments > 3, "{segments} segments");
    // Reads of the oldest segment, which begins behind the label, are delayed. On a busy machine
    // the delay may be too short for this thread, so longer ones are tried. The last value is in
    // the newest segment.
    for seconds in [3, 12, 48] {
        let late = Rule::new(Fault::Delay(std::time::Duration::from_secs(seconds))).on(Op::Read);
        faults.add(late.within((64 << 10) + 4096..1 << 20));
        let cache = builder().build().unwrap();
        let done = || cache.l2().rebuild().done;
        // The newest segment becomes known eventually.
        while !done() && cache.get(&LAST).is_none() {
            assert_eq!(cache.l2().health(), Health::Healthy);
            std::thread::yield_now();
        }
        let in_time = !done();
        assert!(cache.get(&LAST).is_some(), "it is not on the device");
        cache.close().unwrap();
        faults.clear();
        if in_time {
            return;
        }
    }
    panic!("no rebuild lasted until the last value was read");
}

#[test]
fn another_name_is_refused_and_recreate_empties_the_device() {
    let device = memory_device();
    let cache = builder(device.clone()).name("pictures").build().unwrap();
    cache.insert(1, value(1, 0)).unwrap();
    cache.close().unwrap();
    let error = builder(device.clone()).name("sounds").build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let cache = builder(device.clone()).name("pictures").build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    assert_eq!(cache.get(&1).as_deref(), Some(&value(1, 0)));
    cache.close().unwrap();
    let cache = builder(device.clone()).name("pictures").recreate().build().unwrap();
    assert!(cache.get(&1).is_none());
    cache.close().unwrap();
    let cache = builder(device).name("sounds").force().recreate().build().unwrap();
    cache.close().unwrap();
}

#[test]
fn invalid_arguments_are_refused_with_the_reason() {
    let build = |builder: HybridBuilder<u64, Vec<u8>>| builder.build().unwrap_err();
    let error = build(HybridCache::builder(memory_device()));
    assert_eq!(error.kind(), ErrorKind::Invalid, "no capacity: {error}");
    assert!(error.to_string().contains("call `capacity`"), "names no way out: {error}");
    let error = build(builder(memory_device()).l2_tunable("batch_bytes", "7"));
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("batch_bytes"), "names no cause: {error}");
    let small = MemoryDevice::new("small", 1 << 20, &MemoryOptions::default()).unwrap();
    assert_eq!(build(builder(Arc::new(small))).kind(), ErrorKind::TooSmall);
}

/// Random writes and removals. A crash at any moment must not restore an old version.
#[test]
fn overwritten_and_removed_values_never_return_after_a_crash() {
    let first = forebay_base::testing::seed(0);
    let rounds = if forebay_base::testing::full() { 40 } else { 4 };
    (0..rounds).for_each(|round| crash_round(first.wrapping_add(round)));
}

fn crash_round(seed: u64) {
    const KEYS: u64 = 300;
    println!("seed {seed}");
    let backing = memory_device();
    let device = Arc::new(RecordDevice::new(backing, RecordOptions::default()));
    let cache = HybridCache::<u64, Vec<u8>>::builder(device.clone())
        .capacity(16 << 10)
        .seed(seed)
        .l2_tunable("admit_all", "true")
        .l2_tunable("linger_ms", "0")
        .build()
        .unwrap();
    let mut rng = SmallRng::from_seed(seed);
    // For each key: versions by the time of their acknowledgement. 0 stands for none.
    let mut history: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
    for version in 1..3000u64 {
        let key = rng.below(KEYS);
        match rng.below(10) {
            0 => {
                cache.remove(&key).unwrap();
                history.entry(key).or_default().push((device.position(), 0));
            }
            1..5 => {
                cache.insert(key, value(key, version)).unwrap();
                history.entry(key).or_default().push((device.position(), version));
            }
            _ => {
                let newest = history.get(&key).and_then(|all| all.last()).map_or(0, |h| h.1);
                if let Some(found) = cache.get(&key) {
                    assert_eq!(*found, value(key, newest), "key {key}");
                }
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
        let cache = match builder(backing).without_writing_on_close().build() {
            Ok(cache) => cache,
            // A crash during the creation.
            Err(error) => panic!("position {position}: {error}"),
        };
        assert!(cache.l2().wait_rebuilt());
        let mut found = 0;
        for (key, versions) in &history {
            let Some(bytes) = cache.get(key) else { continue };
            found += 1;
            let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            assert_eq!(*bytes, value(*key, version), "key {key} has wrong bytes");
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

#[test]
fn device_failures_are_misses_and_failed_removals_are_reported() {
    let device = Arc::new(FaultDevice::new(memory_device(), 1));
    let cache = builder(device.clone()).l2_tunable("admit_all", "true").build().unwrap();
    for key in 0..100 {
        cache.insert(key, value(key, 1)).unwrap();
    }
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    assert_eq!(cache.get(&5).as_deref(), Some(&value(5, 1)));
    let reads = device.add(Rule::new(Fault::Error(5)).on(Op::Read));
    assert!(cache.get(&6).is_none(), "a failed read is a miss");
    let loaded = cache.get_or_load(7, || Ok::<_, std::io::Error>(value(7, 9))).unwrap();
    assert_eq!(*loaded, value(7, 9), "and the loader is asked instead");
    drop(loaded);
    device.remove(reads);
    assert_eq!(cache.get(&8).as_deref(), Some(&value(8, 1)));

    device.add(Rule::new(Fault::Error(5)).on(Op::Write));
    device.add(Rule::new(Fault::Error(5)).on(Op::Flush));
    match cache.insert(9, value(9, 2)) {
        Err(InsertError::ForgetFailed { error, value: None }) => {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        }
        other => panic!("the tombstone was not written, but: {other:?}"),
    }
    assert!(matches!(cache.l2().health(), Health::Failed { .. }));
    assert_eq!(cache.get(&9).as_deref(), Some(&value(9, 2)), "it is in memory all the same");
    assert!(cache.remove(&10).is_err());
    // A key that the device never held needs no tombstone.
    cache.insert(1000, value(1000, 1)).unwrap();
    assert!(cache.get(&11).is_none(), "a failed level has nothing");
    // Once the label is void, no old block can return.
    device.clear();
    // The L2 retries from time to time.
    let removed = std::iter::repeat_with(|| cache.remove(&12)).take(10_000).find_map(|removed| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        removed.ok()
    });
    assert_eq!(removed, Some(false));
    let _ = cache.close();
    // Without a label, a new level is created.
    let cache = builder(device).build().unwrap();
    let found = (0..100).find(|key| cache.get(key).is_some());
    assert_eq!(found, None, "a voided level came back");
    cache.close().unwrap();
}

/// Rejects some values, as after a change of the program.
struct RejectingCodec;

impl Codec<u64, Vec<u8>> for RejectingCodec {
    fn key_bytes(&self) -> usize {
        u64::BYTES
    }
    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        L2Key::encode(key, out);
    }
    fn encoded_len(&self, value: &Vec<u8>) -> usize {
        value.len()
    }
    fn encode(&self, value: &Vec<u8>, out: &mut [u8]) {
        out.copy_from_slice(value);
    }
    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Vec<u8>> {
        key.is_multiple_of(2).then(|| bytes.to_vec())
    }
}

#[test]
fn undecodable_values_are_misses() {
    let device = memory_device();
    let rejecting = || {
        HybridBuilder::new(device.clone(), Arc::new(RejectingCodec), |_, v: &Vec<u8>| {
            v.len() as u64
        })
    };
    let cache = rejecting().capacity(1 << 20).build().unwrap();
    for key in 0..50 {
        cache.insert(key, value(key, 0)).unwrap();
    }
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    for key in 0..50 {
        assert_eq!(cache.get(&key).is_some(), key % 2 == 0, "key {key}");
    }
    let loaded = cache.get_or_load(3, || Ok::<_, std::io::Error>(vec![1])).unwrap();
    assert_eq!(*loaded, [1]);
    drop(loaded);
    assert!(cache.stats().l2.count("load_undecodable") >= 25);
    cache.close().unwrap();
}

#[test]
fn futures_find_load_and_share() {
    let cache = builder(memory_device()).build().unwrap();
    let load = |bytes: Vec<u8>| move || async move { Ok::<_, std::io::Error>(bytes) };
    block_on(async {
        assert!(cache.get_async(&1).await.is_none());
        let loaded = cache.get_or_load_async(1, load(value(1, 0))).await.unwrap();
        assert_eq!(*loaded, value(1, 0));
        assert_eq!(cache.get_async(&1).await.as_deref(), Some(&value(1, 0)));
    });
    cache.flush_to_device().unwrap();
    cache.memory().evict_all();
    block_on(async {
        assert_eq!(cache.get_async(&1).await.as_deref(), Some(&value(1, 0)), "from the device");
        cache.memory().evict_all();
        let loaded = cache.get_or_load_async(1, load(vec![])).await.unwrap();
        assert_eq!(*loaded, value(1, 0), "the loader is not asked");
    });
    let failed = cache.get_or_load(2, || Err(std::io::Error::other("no such thing")));
    assert!(matches!(failed, Err(LoadError::Failed(_))), "an error is the caller's");
    assert!(cache.get(&2).is_none(), "and is not cached");
    cache.close().unwrap();
}

#[test]
fn evicted_values_return_from_the_device_and_removed_values_do_not() {
    let device = memory_device();
    let cache = builder(device.clone()).build().unwrap();
    (0..100).for_each(|key| cache.insert(key, value(key, 0)).unwrap());
    cache.flush_to_device().unwrap();
    assert_eq!(cache.memory().evict_all(), 100);
    assert!(!cache.memory().contains(&1) && cache.memory().get(&1).is_none());
    assert_eq!(cache.get(&1).as_deref(), Some(&value(1, 0)));
    assert!(cache.memory().contains(&1));
    (0..50).for_each(|key| assert_eq!(cache.remove(&key).unwrap(), key == 1, "{key}"));
    (50..60).for_each(|key| cache.insert(key, value(key, 1)).unwrap());
    // Eviction from memory uncovers no old version.
    cache.memory().evict_all();
    (0..60).for_each(|key| assert!(cache.get(&key).is_none(), "{key}"));
    cache.close().unwrap();
    let cache = builder(device).build().unwrap();
    assert!(cache.l2().wait_rebuilt());
    for key in 0..100 {
        let wanted = (key >= 60).then(|| value(key, 0));
        assert_eq!(cache.get(&key).as_deref().cloned(), wanted, "key {key}");
    }
    cache.close().unwrap();
}

#[test]
fn the_bound_covers_cache_index_and_io_memory() {
    const BOUND: u64 = 24 << 20;
    let cache = HybridCache::<u64, Vec<u8>>::builder(memory_device())
        .bound(BOUND)
        .io_memory(8 << 20)
        .l2_tunable("admit_all", "true")
        .build()
        .unwrap();
    for key in 0..60_000 {
        cache.insert(key, value(key, 0)).unwrap();
        if key % 1000 == 0 {
            let stats = cache.stats();
            let all = stats.memory.resident_bytes() + stats.memory.overhead.total();
            assert!(all <= BOUND + BOUND / 8, "{all} bytes under a bound of {BOUND}");
        }
    }
    cache.close().unwrap();
}

#[test]
fn concurrent_readers_see_the_latest_acknowledged_version() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 400;
    const STEPS: u64 = 3000;
    let cache = HybridCache::<u64, Vec<u8>>::builder(memory_device())
        .capacity(20 << 10)
        .l2_tunable("admit_all", "true")
        .l2_tunable("linger_ms", "1")
        .build()
        .unwrap();
    // Each key has one writer, which announces a version before the insert and confirms it
    // afterwards.
    let begun: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let done: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let first = forebay_base::testing::seed(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, begun, done) = (&cache, &begun, &done);
            scope.spawn(move || {
                let mut rng = SmallRng::from_seed(first.wrapping_add(thread));
                for step in 1..STEPS {
                    let key = rng.below(KEYS);
                    let at = key as usize;
                    if key % THREADS == thread && step % 4 == 0 {
                        begun[at].store(step, Ordering::SeqCst);
                        let class = Attributes {
                            class: Class::ALL[(step % 8 / 4) as usize],
                            ..Attributes::DATA
                        };
                        cache.insert_with(key, value(key, step), class).unwrap();
                        done[at].store(step, Ordering::SeqCst);
                        continue;
                    }
                    let oldest = done[at].load(Ordering::SeqCst);
                    if let Some(found) = cache.get(&key) {
                        let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
                        assert_eq!(*found, value(key, version));
                        let newest = begun[at].load(Ordering::SeqCst);
                        assert!(
                            (oldest..=newest).contains(&version),
                            "{version}: {oldest} to {newest}"
                        );
                    }
                }
            });
        }
    });
    assert!(cache.stats().l2.hits > 0, "the device was never asked");
    cache.close().unwrap();
}

#[test]
fn values_report_their_memory() {
    assert_eq!(L2Value::memory_bytes(&vec![0u8; 100]), 100 + size_of::<Vec<u8>>() as u64);
    assert_eq!(7u64.memory_bytes(), 8);
}
