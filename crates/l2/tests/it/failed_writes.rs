//! Batches whose writes fail but reach the device, and other contents that a restart must not trust
//! after a removal relied on their absence.

use std::sync::Arc;

use forebay_cache::Class;
use forebay_io::fault::{Crash, Fault, FaultDevice, Rule};
use forebay_io::record::{Event, Image, RecordDevice, RecordOptions};
use forebay_io::{Device, Op, Request};
use forebay_l2::{ErrorKind, Health, L2Options};

use crate::crash;
use crate::support::{
    Fixture, arena, contents, copy, device_with, memory, options, put_difference,
};

const DEVICE: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Keys written at once.
const BATCH: u64 = 20;

/// Options for many small segments.
pub(crate) fn small_segments() -> L2Options {
    L2Options { segment_bytes: Some(SEGMENT), ..options() }
}

/// Offsets of the open segment and of the next one, for an L2 that was never reopened.
pub(crate) fn open_segments(fixture: &Fixture) -> [u64; 2] {
    let segments = u64::from(fixture.l2.label().segments);
    let begun = fixture.l2.stats().count("segments");
    [begun - 1, begun].map(|nth| (64 << 10) + nth % segments * SEGMENT)
}

/// Writes keys from `first` on until the ring has used this many more segments. Returns the first
/// key that was not written.
pub(crate) fn fill(fixture: &Fixture, first: u64, segments: u64, class: Class) -> u64 {
    let until = fixture.l2.stats().count("segments") + segments;
    let mut next = first;
    while fixture.l2.stats().count("segments") < until {
        (next..next + BATCH).for_each(|key| fixture.insert_as(key, 1, 1000, class));
        fixture.spill();
        next += BATCH;
    }
    next
}

#[test]
fn failed_batches_that_reached_the_device_restore_nothing() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    let segments = u64::from(fixture.l2.label().segments);
    // Metadata is reinserted, so each segment has blocks of the next victim.
    let mut keys = fill(&fixture, 0, segments + 4, Class::Metadata);
    assert!(fixture.l2.stats().count("reinserted") > 0);
    // The next batches fail but reach the device. Footers fail and do not.
    for begin in open_segments(&fixture) {
        let footer = begin + SEGMENT - PAGE;
        let batch = Rule::new(Fault::ErrorAfter(5)).on(Op::Write).within(begin + PAGE..footer);
        faults.add(batch.times(1));
        faults.add(Rule::new(Fault::Error(5)).on(Op::Write).within(footer..footer + PAGE));
    }
    keys = fill(&fixture, keys, 4, Class::Metadata);
    let batches = faults.injected().iter().filter(|one| one.fault == Fault::ErrorAfter(5)).count();
    // The open segment has one only if there was space.
    assert!(batches == 1 || batches == 2, "{batches}");
    faults.clear();
    // Keys that the L2 does not hold are removed without a write.
    let gone: Vec<u64> = (0..keys).filter(|key| fixture.get(*key).is_none()).collect();
    assert!(gone.len() as u64 > BATCH, "the ring has come round");
    for key in &gone {
        fixture.cache.remove(key);
        fixture.l2.forget_checked(key).unwrap();
    }
    let after = copy(&device);
    fixture.close();
    let fixture = Fixture::open(&after, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.l2.rebuild().damaged, 0);
    for key in gone {
        assert_eq!(fixture.get(key).map(|value| value.version), None, "{key} of {keys}");
    }
    fixture.close();
}

#[test]
fn a_flush_reports_blocks_whose_write_failed() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    let next = fill(&fixture, 0, 1, Class::Data);
    let [open, _] = open_segments(&fixture);
    let batches = open + PAGE..open + SEGMENT - PAGE;
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write).within(batches).times(1));
    let keys = next..next + BATCH / 4;
    keys.clone().for_each(|key| fixture.insert(key, 1, 1000));
    fixture.offer_all();
    let error = fixture.l2.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    fixture.offer_all();
    fixture.l2.flush().unwrap();
    fixture.cache.clear();
    assert!(keys.into_iter().all(|key| fixture.get(key).is_some()), "they are offered again");
    fixture.close();
}

#[test]
fn bad_records_leave_the_index_with_their_segment() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    let segments = u64::from(fixture.l2.label().segments);
    let first = fill(&fixture, 0, 2, Class::Data);
    let [open, _] = open_segments(&fixture);
    let batches = open + PAGE..open + SEGMENT - PAGE;
    let rule = Rule::new(Fault::Error(5)).on(Op::Write).within(batches).times(1);
    let rule = faults.add(rule);
    let keys = fill(&fixture, first, segments + 2, Class::Data);
    assert_eq!(faults.remove(rule), Some(1));
    let found = (0..keys).filter(|key| fixture.get(*key).is_some()).count() as u64;
    assert!(found > BATCH && found < keys - BATCH, "the ring has come round: {found} of {keys}");
    assert_eq!(fixture.l2.len(), found, "every record is of a block");
    fixture.close();
}

#[test]
fn a_crash_after_a_rebuild_does_not_lose_a_tombstone_it_found() {
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let begun = recorder.position();
    fixture.l2.forget_checked(&1).unwrap();
    let recording = recorder.recording();
    fixture.close();
    // The process ends after the tombstone is written, before it is flushed.
    let is_flush = |event: &Event| matches!(event, Event::Flush);
    let flush = begun + recording.events()[begun..].iter().position(is_flush).unwrap();
    let crashed = recording.at(flush);
    let backing = crash::memory(&crashed.at_least());
    let faults = Arc::new(FaultDevice::new(backing.clone(), 7));
    faults.add(Rule::new(Fault::Volatile));
    put_difference(&*faults, &crashed.at_least(), &crashed.at_most());
    assert!(faults.volatile_bytes() > 0);
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(1).map(|value| value.version), None);
    // The tombstone hides the block. After it has left the index, a forget needs no tombstone.
    while !fixture.l2.is_empty() {
        std::thread::yield_now();
    }
    fixture.l2.forget_checked(&1).unwrap();
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    faults.crash(Crash::LoseAll).unwrap();
    fixture.close();
    let fixture = Fixture::open(&backing, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(1).map(|value| value.version), None);
    fixture.close();
}

#[test]
fn batches_that_arrive_after_a_restart_do_not_count() {
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let begun = recorder.position();
    fixture.insert(2, 1, 1000);
    fixture.spill();
    let recording = recorder.recording();
    fixture.close();
    // The batch with the second key has not arrived when the L2 is opened.
    let is_write = |event: &Event| matches!(event, Event::Write { .. });
    let batch = begun + recording.events()[begun..].iter().position(is_write).unwrap();
    let (before, after) = (recording.prefix(batch), recording.prefix(batch + 1));
    let backing = crash::memory(&before);
    let fixture = Fixture::open(&backing, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(2).map(|value| value.version), None);
    fixture.l2.forget_checked(&2).unwrap();
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    put_difference(&*backing, &before, &after);
    let crashed = copy(&backing);
    fixture.close();
    let fixture = Fixture::open(&crashed, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(2).map(|value| value.version), None);
    assert_eq!(fixture.get(1).map(|value| value.version), Some(1));
    fixture.close();
}

/// The rebuild cannot write the footer that excludes a late batch. The next header does.
#[test]
fn batches_that_arrive_after_a_restart_without_a_footer_do_not_count() {
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let before = recorder.recording();
    let before = before.prefix(before.len());
    fixture.insert(2, 1, 1000);
    fixture.spill();
    let after = recorder.recording();
    let after = after.prefix(after.len());
    let footer = open_segments(&fixture)[0] + SEGMENT - PAGE;
    fixture.close();
    let backing = crash::memory(&before);
    let faults = Arc::new(FaultDevice::new(backing.clone(), 7));
    let fails = Rule::new(Fault::Error(5)).on(Op::Write).within(footer..footer + PAGE);
    let fails = faults.add(fails);
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert!(faults.remove(fails).unwrap() > 0);
    fixture.l2.forget_checked(&2).unwrap();
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    put_difference(&*backing, &before, &after);
    let crashed = copy(&backing);
    fixture.close();
    let fixture = Fixture::open(&crashed, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(2).map(|value| value.version), None);
    assert_eq!(fixture.get(1).map(|value| value.version), Some(1));
    fixture.close();
}

#[test]
fn a_tombstone_whose_flushes_fail_fails_the_l2() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    // The first, third and fifth flush from here, because a later rule does not see a request that
    // an earlier one fails. The others are those of the headers of new segments.
    for before in 0..3 {
        faults.add(Rule::new(Fault::Error(5)).on(Op::Flush).after(before).times(1));
    }
    fixture.l2.forget_checked(&1).unwrap();
    assert!(matches!(fixture.l2.health(), Health::Failed { voided: true, .. }));
    fixture.close();
}

/// A device may drop earlier writes when a flush fails. A tombstone behind such a hole would not be
/// in the log.
#[test]
fn tombstones_are_not_written_behind_a_failed_flush() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let recorder = Arc::new(RecordDevice::new(faults.clone(), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let begun = recorder.position();
    let rule = faults.add(Rule::new(Fault::Error(5)).on(Op::Flush).times(1));
    fixture.l2.forget_checked(&1).unwrap();
    assert_eq!(faults.remove(rule), Some(1));
    let recording = recorder.recording();
    let dropped = recording.events()[begun..].iter().find_map(|event| match event {
        Event::Write { offset, .. } => Some(*offset),
        _ => None,
    });
    let crashed = copy(&device);
    fixture.close();
    let mut zeros = arena().alloc(PAGE as usize).unwrap();
    zeros.fill(0);
    crashed.run(Request::write(dropped.unwrap(), zeros)).result.unwrap();
    let fixture = Fixture::open(&crashed, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(1).map(|value| value.version), None);
    assert_eq!(fixture.l2.rebuild().damaged, 0);
    fixture.close();
}

/// A batch counts only behind the batch that it was written behind.
#[test]
fn a_batch_behind_another_one_than_its_own_does_not_count() {
    // The same seed gives both the same guid.
    let options = L2Options { seed: 5, ..small_segments() };
    let written = |versions: &[(u64, u64)]| {
        let device = memory(DEVICE);
        let fixture = Fixture::create(&device, &options);
        for &(key, version) in versions {
            fixture.insert(key, version, 1000);
            fixture.spill();
        }
        let written = (contents(&device), fixture.l2.label().guid);
        fixture.close();
        written
    };
    let (old, old_guid) = written(&[(1, 1), (2, 1)]);
    let (mut new, new_guid) = written(&[(3, 1)]);
    assert_eq!(old_guid, new_guid);
    let begins = |page: &u64| old[*page as usize..].starts_with(b"forelbat");
    let last = (0..DEVICE).step_by(PAGE as usize).filter(begins).last().unwrap() as usize;
    assert!(new[last..].iter().take(SEGMENT as usize / 2).all(|byte| *byte == 0));
    let end = last + SEGMENT as usize / 2;
    new[last..end].copy_from_slice(&old[last..end]);
    let fixture = Fixture::open(&device_with(&new), &options);
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(3).map(|value| value.version), Some(1));
    assert_eq!(fixture.get(2).map(|value| value.version), None);
    fixture.close();
}

#[test]
fn footer_writes_are_retried() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    let next = fill(&fixture, 0, 2, Class::Data);
    let footer = open_segments(&fixture)[0] + SEGMENT - PAGE;
    let rule = Rule::new(Fault::Error(5)).on(Op::Write).within(footer..footer + PAGE).times(2);
    let rule = faults.add(rule);
    fill(&fixture, next, 1, Class::Data);
    assert_eq!(faults.remove(rule), Some(2));
    let page = device.run(Request::read(footer, arena().alloc(PAGE as usize).unwrap()));
    assert!(page.into_buffer().unwrap().starts_with(b"forelend"));
    fixture.close();
}

#[test]
fn a_hole_in_the_newest_segment_is_not_hidden_by_a_crash_of_the_rebuild() {
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    (1..3).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    let begun = recorder.position();
    fixture.l2.forget_checked(&1).unwrap();
    fixture.insert(3, 1, 1000);
    fixture.spill();
    let recording = recorder.recording();
    fixture.close();
    // The device loses the tombstone. The next batch counts it as durable.
    let tombstone = recording.events()[begun..].iter().find_map(|event| match event {
        Event::Write { offset, .. } => Some(*offset),
        _ => None,
    });
    let damaged = crash::memory(&recording.prefix(recording.len()));
    let mut zeros = arena().alloc(PAGE as usize).unwrap();
    zeros.fill(0);
    damaged.run(Request::write(tombstone.unwrap(), zeros)).result.unwrap();
    let base = Some(Image::of(&*damaged, &arena()).unwrap());
    let options = RecordOptions { base, ..RecordOptions::default() };
    let recorder = Arc::new(RecordDevice::new(damaged, options));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.l2.rebuild().damaged, 1);
    let recording = recorder.recording();
    fixture.close();
    assert!(recording.len() > 0);
    for position in 0..=recording.len() {
        let fixture = Fixture::open(&crash::memory(&recording.prefix(position)), &small_segments());
        assert!(fixture.l2.wait_rebuilt());
        let found = fixture.get(1).map(|value| value.version);
        assert_eq!(found, None, "at {position} of {}", recording.len());
        fixture.close();
    }
}

/// The search behind the log reads whole pages, whatever the size of a batch.
#[test]
fn the_search_for_a_hole_reads_whole_pages() {
    let large = |batch_bytes: &str| {
        let options = L2Options { segment_bytes: Some(512 << 10), ..options() };
        options.tunables.set("batch_bytes", batch_bytes).unwrap();
        options
    };
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &large("128K"));
    (1..3).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    let intact = copy(&device);
    let begun = recorder.position();
    fixture.l2.forget_checked(&1).unwrap();
    // The next batch begins after the first read of the search ends.
    fixture.insert(3, 1, 100 << 10);
    fixture.spill();
    fixture.insert(4, 1, 1000);
    fixture.spill();
    let recording = recorder.recording();
    fixture.close();
    // Everything but the last batch is lost.
    let mut batches = recording.events()[begun..].iter().filter_map(|event| match event {
        Event::Write { offset, bytes, .. } if bytes.starts_with(b"forelbat") => Some(*offset),
        _ => None,
    });
    let [tombstone, large_batch] = [batches.next().unwrap(), batches.next().unwrap()];
    assert!(batches.next().unwrap() > tombstone + (64 << 10) + 2 * PAGE);
    let holed = crash::memory(&recording.prefix(recording.len()));
    for lost in [tombstone, large_batch] {
        let mut zeros = arena().alloc(PAGE as usize).unwrap();
        zeros.fill(0);
        holed.run(Request::write(lost, zeros)).result.unwrap();
    }
    for batch_bytes in ["65537", "66048", "128K", "16M"] {
        let open = |device: &Arc<dyn Device>| {
            let fixture = Fixture::open(&copy(device), &large(batch_bytes));
            assert!(fixture.l2.wait_rebuilt());
            let outcome = (fixture.get(1).is_some(), fixture.l2.rebuild().damaged);
            fixture.close();
            outcome
        };
        assert_eq!(open(&intact), (true, 0), "batches of {batch_bytes} bytes");
        assert_eq!(open(&holed), (false, 1), "batches of {batch_bytes} bytes");
    }
}
