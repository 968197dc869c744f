//! Failing devices: every load is correct or a miss, no old version returns, and every call ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultCounters, FaultDevice, Rule};
use forebay_io::{Device, Op, Priority, Request};
use forebay_l2::{ErrorKind, Health, L2, L2Options};

use crate::support::{Fixture, NumberCodec, arena, copy, memory, options};

const KEYS: u64 = 150;
/// Until the rule is removed.
const HELD: Fault = Fault::Delay(Duration::from_secs(3600));

/// An L2 on a device with fault injection.
fn failing(options: &L2Options) -> (Arc<FaultDevice>, Arc<dyn Device>, Fixture) {
    let faults = Arc::new(FaultDevice::new(memory(16 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, options);
    (faults, device, fixture)
}

fn small() -> L2Options {
    let options = L2Options { segment_bytes: Some(128 << 10), ..options() };
    options.tunables.set("batch_bytes", "64K").unwrap();
    options
}

/// Random work without the rule, under it, without it again, then after a reopen. Returns how often
/// the rule fired.
fn work_under(rule: &Rule, seed: u64) -> u64 {
    let (faults, device, fixture) = failing(&small());
    let mut rng = SmallRng::from_seed(seed);
    let mut now: BTreeMap<u64, u64> = BTreeMap::new();
    let mut version = 0;
    // Whether every change was forgotten for good.
    let mut sure = true;
    for phase in 0..3 {
        if phase == 1 {
            faults.add(rule.clone());
        }
        if phase == 2 {
            faults.clear();
        }
        for _ in 0..400 {
            let key = rng.below(KEYS);
            match rng.below(10) {
                0..5 => {
                    version += 1;
                    fixture.insert(key, version, 200 + rng.below(2000) as usize);
                    now.insert(key, version);
                }
                5 => {
                    fixture.cache.remove(&key);
                    now.remove(&key);
                }
                6 => {
                    fixture.cache.offer_all(64, |c| {
                        forebay_cache::SecondaryCache::offer(&*fixture.l2, c);
                    });
                    // The flush may fail.
                    let _ = fixture.l2.flush();
                }
                7 if rng.below(4) == 0 => drop(fixture.cache.clear()),
                _ => {
                    let found = fixture.get(key).map(|value| value.version);
                    let right = now.get(&key).copied();
                    assert!(found.is_none() || found == right, "{key}: {found:?}, not {right:?}");
                }
            }
        }
        sure &= fixture.l2.stats().count("forget_failures") == 0;
    }
    let stats = fixture.l2.stats();
    let injected = faults.counters().total(FaultCounters::FAULTS_INJECTED);
    println!("{rule:?}, {injected} times: {:?}, {:?}", stats.health, stats.short());
    let Fixture { l2, cache } = fixture;
    l2.close();
    cache.close();
    cache.audit();
    let stats = l2.stats();
    let fixture = match L2::open(device.clone(), Arc::new(NumberCodec), &small()) {
        Ok(l2) => {
            assert!(sure, "what could not be forgotten voids the label");
            let fixture = Fixture::over(l2);
            assert!(fixture.l2.wait_rebuilt());
            for key in 0..KEYS {
                let found = fixture.get(key).map(|value| value.version);
                let right = now.get(&key).copied();
                assert!(found.is_none() || found == right, "{key}: {found:?}, not {right:?}");
            }
            fixture
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotAnL2, "{error}");
            assert!(matches!(stats.health, Health::Failed { voided: true, .. }), "{stats:?}");
            Fixture::create(&device, &small())
        }
    };
    fixture.close();
    injected
}

/// Does random work under faults of this kind, once for each number and probability. The faults
/// must happen often.
fn check_faults(fault: Fault, op: Op, runs: &[(u64, f64)], at_least: u64) {
    let first = forebay_base::testing::seed(0);
    let under = |&(n, probability): &(u64, f64)| {
        work_under(&Rule::new(fault).on(op).with_probability(probability), first.wrapping_add(n))
    };
    let injected: u64 = runs.iter().map(under).sum();
    // With other seeds, the L2 may fail earlier.
    let at_least = if first == 0 { at_least } else { at_least / 3 };
    assert!(injected >= at_least, "{fault:?} was injected {injected} times only");
}

#[test]
fn failed_and_corrupt_reads_are_misses() {
    check_faults(Fault::Error(5), Op::Read, &[(1, 0.2), (2, 0.2)], 15);
    check_faults(Fault::Rot { bits: 3 }, Op::Read, &[(3, 0.2), (4, 0.2)], 15);
}

#[test]
fn failed_and_torn_writes_lose_blocks_only() {
    let runs = [(10, 0.02), (11, 0.3), (12, 0.1), (13, 0.1)];
    check_faults(Fault::Error(5), Op::Write, &runs, 40);
    check_faults(Fault::ErrorAfter(5), Op::Write, &runs, 40);
    check_faults(Fault::Torn { reported: true }, Op::Write, &runs, 40);
}

#[test]
fn failed_flushes_lose_blocks_only() {
    let runs = [(20, 0.1), (21, 0.1), (22, 0.1), (23, 0.02), (24, 0.02), (25, 0.05)];
    check_faults(Fault::Error(5), Op::Flush, &runs, 12);
    check_faults(Fault::ErrorAfter(5), Op::Flush, &runs, 12);
}

#[test]
fn a_vanished_device_misses_and_reports_failed_forgets() {
    let (faults, _device, fixture) = failing(&options());
    (0..KEYS).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    assert!(fixture.get(3).is_some());
    faults.add(Rule::new(Fault::Error(19)));
    assert_eq!(fixture.get(5), None);
    // The cache continues. The L2 cannot forget durably and reports it.
    fixture.insert(7, 2, 1000);
    let error = fixture.l2.forget_checked(&8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(matches!(fixture.l2.health(), Health::Failed { voided: false, .. }));
    // The record of this key has already left the index. A retry must not report success.
    fixture.l2.forget_checked(&7).unwrap_err();
    assert!(fixture.l2.stats().count("forget_failures") >= 2);
    // The device has no block of this key.
    fixture.l2.forget_checked(&(KEYS + 1)).unwrap();
    assert_eq!(fixture.get(9), None);
    assert!(fixture.l2.remove().is_err());
    faults.clear();
    fixture.l2.remove().unwrap();
    fixture.close();
}

#[test]
fn no_key_counts_as_forgotten_while_the_label_of_a_removed_l2_is_valid() {
    let (faults, device, fixture) = failing(&options());
    (0..KEYS).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    faults.add(Rule::new(Fault::Error(19)));
    fixture.l2.remove().unwrap_err();
    let error = fixture.l2.forget_checked(&3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    // The device has no block of this key.
    fixture.l2.forget_checked(&(KEYS + 1)).unwrap();
    faults.clear();
    fixture.close();
    let reopened = Fixture::open(&device, &options());
    assert!(reopened.l2.wait_rebuilt());
    assert!(reopened.get(3).is_some(), "the error was right");
    reopened.l2.remove().unwrap();
    reopened.close();
    assert!(L2::<u64, _>::open(device, Arc::new(NumberCodec), &options()).is_err());
}

#[test]
fn immutable_keys_are_forgotten_without_a_write() {
    let options = L2Options { immutable_keys: true, ..options() };
    let (faults, device, fixture) = failing(&options);
    (0..KEYS).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    fixture.cache.remove(&3);
    assert_eq!(fixture.get(3), None);
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    faults.clear();
    fixture.close();
    let fixture = Fixture::open(&device, &options);
    assert!(fixture.l2.wait_rebuilt());
    // The block may return: it is still correct.
    assert_eq!(fixture.get(3).map(|value| value.version), Some(1));
    fixture.close();
}

#[test]
fn a_hanging_device_blocks_no_caller() {
    let options = options();
    options.tunables.set("load_timeout_ms", "50").unwrap();
    options.tunables.set("stall_timeout_ms", "300").unwrap();
    let (faults, _device, fixture) = failing(&options);
    (0..KEYS).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    faults.add(Rule::new(HELD).at(Priority::SyncRead));
    assert_eq!(fixture.get(1), None);
    let stats = fixture.l2.stats();
    assert_eq!(stats.count("load_timeouts"), 1, "{:?}", stats.short());
    // Other loads are not attempted.
    assert_eq!(fixture.get(2), None);
    assert_eq!(fixture.l2.stats().count("misses_stalled"), 2);
    faults.clear();
    faults.add(Rule::new(HELD).on(Op::Write));
    let error = fixture.l2.forget_checked(&5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    fixture.insert(6, 2, 1000);
    faults.clear();
    fixture.close();
}

#[test]
fn loads_end_after_the_l2_has_failed() {
    let options = options();
    options.tunables.set("load_timeout_ms", "600").unwrap();
    options.tunables.set("stall_timeout_ms", "50").unwrap();
    let (faults, _device, fixture) = failing(&options);
    (0..KEYS).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    faults.add(Rule::new(HELD).at(Priority::SyncRead));
    faults.add(Rule::new(HELD).on(Op::Write));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fixture.get(1));
        while faults.counters().total(FaultCounters::FAULTS_INJECTED) == 0 {
            std::thread::yield_now();
        }
        // This also ends the writer.
        fixture.l2.forget_checked(&5).unwrap_err();
        assert_eq!(reader.join().unwrap(), None);
    });
    assert_eq!(fixture.l2.stats().count("load_timeouts"), 1);
    faults.clear();
    fixture.close();
}

#[test]
fn a_device_that_hangs_during_reinsertion_fails_the_l2() {
    let options = options();
    options.tunables.set("stall_timeout_ms", "50").unwrap();
    let faults = Arc::new(FaultDevice::new(memory(8 << 20), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &options);
    for round in 0..12 {
        (0..250).for_each(|key| fixture.insert(round * 250 + key, 1, 4000));
        fixture.spill();
    }
    assert!(fixture.l2.stats().count("evicted") > 0);
    faults.add(Rule::new(HELD).on(Op::Read).at(Priority::AsyncRead));
    (0..250).for_each(|key| fixture.insert(1_000_000 + key, 1, 4000));
    fixture.offer_all();
    assert!(fixture.l2.flush().is_err());
    assert_eq!(fixture.l2.stats().count("read_errors"), 1, "{:?}", fixture.l2.stats().short());
    assert!(matches!(fixture.l2.health(), Health::Failed { .. }));
    faults.clear();
    fixture.close();
}

#[test]
fn removal_waits_for_writes_or_reports_a_pending_one() {
    // Forever, until the device is closed; and for as long as a removal waits.
    for (hang_ms, waits_ms) in [(3_600_000, "50"), (1000, "600000")] {
        let options = options();
        options.tunables.set("stall_timeout_ms", "50").unwrap();
        let (faults, device, fixture) = failing(&options);
        let hang = Fault::Delay(Duration::from_millis(hang_ms));
        faults.add(Rule::new(hang).on(Op::Write).times(1));
        (0..KEYS).for_each(|key| fixture.insert(key, 1, 1000));
        fixture.offer_all();
        assert!(fixture.l2.flush().is_err());
        assert!(matches!(fixture.l2.health(), Health::Failed { .. }));
        fixture.l2.set_tunable("stall_timeout_ms", waits_ms).unwrap();
        // The first write of a new L2 is the header of its first segment.
        let header = || {
            let page = device.run(Request::read(64 << 10, arena().alloc(4096).unwrap()));
            page.into_buffer().unwrap().iter().any(|byte| *byte != 0)
        };
        match fixture.l2.remove() {
            Ok(()) => assert!(hang_ms < 3_600_000 && header()),
            Err(error) => {
                assert!(hang_ms == 3_600_000 && !header(), "{error}");
                assert_eq!(error.kind(), ErrorKind::Device);
                assert!(error.to_string().contains("still pending"), "{error}");
            }
        }
        // Closing the device ends the delays.
        device.close();
        fixture.cache.close();
    }
}

#[test]
fn numbers_of_segments_whose_headers_cannot_be_read_are_not_used_again() {
    const SEGMENT: u64 = 128 << 10;
    let (faults, device, fixture) = failing(&small());
    // Several batches per segment.
    let mut keys = 0;
    while fixture.l2.stats().used_bytes < 9 * SEGMENT
        || fixture.l2.stats().count("batches") % 3 != 0
    {
        (0..20).for_each(|key| fixture.insert(keys + key, 1, 1000));
        fixture.spill();
        keys += 20;
    }
    // Its tombstone is in the newest segment.
    fixture.l2.forget_checked(&0).unwrap();
    let used = fixture.l2.stats().used_bytes / SEGMENT;
    fixture.close();
    for segment in [used - 1, used - 2] {
        let header = (64 << 10) + segment * SEGMENT;
        let error = Rule::new(Fault::Error(5)).on(Op::Read);
        faults.add(error.within(header..header + 4096));
    }
    let fixture = Fixture::open(&device, &small());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(0).map(|value| value.version), None);
    for key in 0..keys {
        fixture.cache.remove(&key);
        assert_eq!(fixture.get(key), None);
    }
    fixture.insert(keys, 2, 1000);
    fixture.spill();
    // As a crash would leave the device, with all of it readable.
    faults.clear();
    let after = copy(&device);
    fixture.close();
    let fixture = Fixture::open(&after, &small());
    assert!(fixture.l2.wait_rebuilt());
    for key in 0..keys {
        assert_eq!(fixture.get(key), None, "key {key} of {keys}");
    }
    assert_eq!(fixture.get(keys).map(|value| value.version), Some(2));
    fixture.close();
}
