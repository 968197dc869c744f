//! Writing all values of a hybrid cache to a device with errors: what is reported as written is
//! there.

use std::ops::Range;
use std::sync::Arc;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_l2::{ErrorKind, Health, HybridCache};

use crate::support::{copy, memory};

const DEVICE: u64 = 16 << 20;
/// Where the first segment begins.
const SEGMENTS: u64 = 64 << 10;
/// Size of a segment's header.
const PAGE: u64 = 4096;
/// They fill more than one segment.
const KEYS: u64 = 3000;

type Hybrid = HybridCache<u64, Vec<u8>>;

fn open(device: &Arc<dyn Device>) -> Hybrid {
    let builder = HybridCache::builder(device.clone()).capacity(8 << 20);
    builder.l2_tunable("warm_up", "false").build().unwrap()
}

/// A cache whose values are in memory only, and its device.
fn filled() -> (Arc<FaultDevice>, Arc<dyn Device>, Hybrid) {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let device: Arc<dyn Device> = faults.clone();
    let cache = open(&device);
    (0..KEYS).for_each(|key| cache.insert(key, vec![key as u8; 500]).unwrap());
    (faults, device, cache)
}

/// Number of values that the device has after a reopen.
fn found(device: &Arc<dyn Device>) -> u64 {
    let cache = open(device);
    assert!(cache.l2().wait_rebuilt());
    let found = (0..KEYS).filter(|key| cache.get(key).is_some()).count();
    cache.close().unwrap();
    found as u64
}

/// An I/O error of writes to the batches of these segments, but not to their headers.
fn refuse_batches(faults: &FaultDevice, cache: &Hybrid, segments: Range<u64>, times: u64) {
    let bytes = cache.l2().label().segment_bytes;
    for segment in segments {
        let begin = SEGMENTS + segment * bytes;
        let batches = Rule::new(Fault::Error(5)).on(Op::Write).within(begin + PAGE..begin + bytes);
        faults.add(batches.times(times));
    }
}

#[test]
fn values_whose_write_failed_are_written_again() {
    for closes in [false, true] {
        let (faults, device, cache) = filled();
        refuse_batches(&faults, &cache, 0..2, 1);
        let copied = match closes {
            true => {
                cache.close().unwrap();
                copy(&device)
            }
            false => {
                cache.flush_to_device().unwrap();
                let copied = copy(&device);
                cache.close().unwrap();
                copied
            }
        };
        assert!(cache.stats().l2.count("admitted_lost") > 0);
        assert_eq!(found(&copied), KEYS, "closes: {closes}");
    }
}

#[test]
fn values_that_a_failed_flush_may_have_lost_are_written_again() {
    let (faults, device, cache) = filled();
    // The first flush is that of the first segment's header, the second that of the next one.
    let rule = faults.add(Rule::new(Fault::Error(5)).on(Op::Flush).after(1).times(1));
    cache.flush_to_device().unwrap();
    assert_eq!((faults.remove(rule), cache.l2().health()), (Some(1), Health::Healthy));
    let stored = cache.stats().l2.count("stored");
    assert!(stored > KEYS, "{stored} writes of {KEYS} values");
    assert_eq!(found(&copy(&device)), KEYS);
    cache.close().unwrap();
}

#[test]
fn a_device_that_refuses_all_values_fails_the_l2() {
    for closes in [false, true] {
        let (faults, _device, cache) = filled();
        refuse_batches(&faults, &cache, 0..u64::from(cache.l2().label().segments), u64::MAX);
        let error = if closes { cache.close() } else { cache.flush_to_device() }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(matches!(cache.l2().health(), Health::Failed { .. }), "closes: {closes}");
    }
}
