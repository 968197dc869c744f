//! Keys that are forgotten, or get newer values, while a write is in flight, and during a rebuild.
//! A write stays in flight until the test releases it.

use std::sync::Arc;
use std::time::Duration;

use forebay_cache::{Attributes, Begin, Class};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op, Request};

use crate::failed_writes::{fill, open_segments, small_segments};
use crate::support::{Fixture, Value, arena, contents, copy, memory};

const DEVICE: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Until the rule is removed.
const HELD: Fault = Fault::Delay(Duration::from_secs(3600));

/// A device with fault injection, the medium below it, and an L2 that waits for held requests.
fn holding() -> (Arc<FaultDevice>, Arc<dyn Device>, Fixture) {
    let medium = memory(DEVICE);
    let faults = Arc::new(FaultDevice::new(medium.clone(), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.l2.set_tunable("stall_timeout_ms", "600000").unwrap();
    (faults, medium, fixture)
}

fn offer(fixture: &Fixture) {
    fixture.offer_all();
}

fn is_held(faults: &FaultDevice) -> bool {
    faults.injected().iter().any(|injected| injected.fault == HELD)
}

/// Asserts that a crash now leaves no version of the key.
fn check_forgotten(medium: &Arc<dyn Device>, key: u64) {
    let fixture = Fixture::open(&copy(medium), &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(key).map(|value| value.version), None, "key {key}");
    fixture.close();
}

/// Removes a key that the L2 holds while a header is in flight. The removal must not return before
/// a crash leaves no version of the key.
fn remove_while_held(faults: &FaultDevice, medium: &Arc<dyn Device>, fixture: &Fixture, key: u64) {
    let before = fixture.l2.stats().count("forgotten");
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| fixture.cache.remove(&key));
        while !removal.is_finished() && fixture.l2.stats().count("forgotten") == before {
            std::thread::yield_now();
        }
        let early = removal.is_finished().then(|| copy(medium));
        faults.clear();
        removal.join().unwrap();
        early.iter().for_each(|image| check_forgotten(image, key));
        check_forgotten(medium, key);
    });
}

#[test]
fn a_key_of_the_victim_needs_a_tombstone_until_the_new_header_is_written() {
    let (faults, medium, fixture) = holding();
    let segments = u64::from(fixture.l2.label().segments);
    let mut next = fill(&fixture, 0, segments, Class::Data);
    let header = open_segments(&fixture)[1];
    assert_eq!(header, 64 << 10, "the first segment is the victim");
    faults.add(Rule::new(HELD).on(Op::Write).within(header..header + PAGE).times(1));
    while !is_held(&faults) {
        fixture.insert(next, 1, 1000);
        offer(&fixture);
        next += 1;
        let stored = || fixture.l2.stats().count("stored") == next;
        while !stored() && !is_held(&faults) {
            std::thread::yield_now();
        }
    }
    remove_while_held(&faults, &medium, &fixture, 0);
    fixture.close();
}

#[test]
fn a_key_of_a_failed_batch_needs_a_tombstone_until_the_next_header_is_written() {
    let (faults, medium, fixture) = holding();
    let key = fill(&fixture, 0, 2, Class::Data);
    let [open, next] = open_segments(&fixture);
    let footer = open + SEGMENT - PAGE;
    // The batch reaches the medium. No footer excludes it.
    let rule = Rule::new(Fault::ErrorAfter(5)).on(Op::Write).within(open + PAGE..footer).times(1);
    let batch = faults.add(rule);
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write).within(footer..footer + PAGE));
    faults.add(Rule::new(HELD).on(Op::Write).within(next..next + PAGE).times(1));
    fixture.insert(key, 1, 1000);
    offer(&fixture);
    while !is_held(&faults) {
        std::thread::yield_now();
    }
    assert_eq!(faults.remove(batch), Some(1));
    remove_while_held(&faults, &medium, &fixture, key);
    fixture.close();
}

#[test]
fn a_value_that_memory_got_during_the_write_of_an_older_one_is_written_too() {
    let (faults, medium, fixture) = holding();
    // Opens a segment.
    fixture.insert(0, 1, 1000);
    fixture.spill();
    let [open, _] = open_segments(&fixture);
    faults.add(Rule::new(HELD).on(Op::Write).within(open + PAGE..open + SEGMENT).times(1));
    fixture.insert(1, 1, 1000);
    offer(&fixture);
    while !is_held(&faults) {
        std::thread::yield_now();
    }
    fixture.cache.clear();
    match fixture.cache.begin(1, 1064, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => _ = guard.publish(Value::new(1, 2, 1000)),
        other => panic!("it was found before its write ended: {other:?}"),
    }
    fixture.cache.offer_all(256, |candidates| fixture.l2.write_all(candidates).unwrap());
    faults.clear();
    fixture.l2.flush().unwrap();
    let crashed = copy(&medium);
    fixture.cache.clear();
    assert_eq!(fixture.get(1).map(|value| value.version), Some(2));
    fixture.close();
    for device in [crashed, medium] {
        let fixture = Fixture::open(&device, &small_segments());
        assert!(fixture.l2.wait_rebuilt());
        assert_eq!(fixture.get(1).map(|value| value.version), Some(2));
        fixture.close();
    }
}

/// A header that is written during the rebuild records the damage found so far.
#[test]
fn a_header_written_during_a_rebuild_voids_the_log_before_a_hole() {
    let medium = memory(DEVICE);
    let fixture = Fixture::create(&medium, &small_segments());
    let key = fill(&fixture, 0, 3, Class::Data);
    fixture.insert(key, 1, 1000);
    fixture.spill();
    fixture.l2.forget_checked(&key).unwrap();
    let hole = last_batch(&medium);
    fixture.insert(key + 1, 1, 1000);
    fixture.spill();
    let crashed = copy(&medium);
    fixture.close();
    // The tombstone is lost.
    let mut zeros = arena().alloc(PAGE as usize).unwrap();
    zeros.fill(0);
    crashed.run(Request::write(hole, zeros)).result.unwrap();
    let fixture = Fixture::open(&crashed, &small_segments());
    // Until the rebuild has ended, each forgotten key gets a tombstone behind a new header.
    fixture.l2.forget_checked(&(key + 2)).unwrap();
    check_forgotten(&crashed, key);
    assert!(fixture.l2.wait_rebuilt());
    fixture.close();
}

/// Offset of the newest segment's last batch.
fn last_batch(device: &Arc<dyn Device>) -> u64 {
    let contents = contents(device);
    let pages = contents.chunks(PAGE as usize).enumerate();
    let mut batches = pages.filter(|(_, page)| page.starts_with(b"forelbat"));
    batches.next_back().unwrap().0 as u64 * PAGE
}
