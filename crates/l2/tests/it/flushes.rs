//! Each flush of the device is needed. Each test checks the images of a power cut that lose some
//! writes for which no flush has ended.

use std::sync::Arc;

use forebay_io::fault::{Crash, Fault, FaultDevice, Rule};
use forebay_io::record::{CrashPoint, Event, Image, RecordDevice, RecordOptions, Survives};
use forebay_io::{Device, Op, Request};
use forebay_l2::{ErrorKind, L2Options, read_label};

use crate::crash;
use crate::support::{Fixture, arena, memory, options, put_difference};

const DEVICE: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Offset of the first segment.
const FIRST_SEGMENT: u64 = 64 << 10;
/// Bytes that a new L2 clears at each end of its device.
const CLEARED: u64 = 1 << 20;

fn small_segments() -> L2Options {
    L2Options { segment_bytes: Some(SEGMENT), ..options() }
}

/// A device that records what happens to it from now on.
fn recording_over(base: &Image) -> (Arc<RecordDevice>, Arc<dyn Device>) {
    let options = RecordOptions { base: Some(base.clone()), ..RecordOptions::default() };
    let recorder = Arc::new(RecordDevice::new(crash::memory(base), options));
    (recorder.clone(), recorder)
}

/// All images in which each unflushed write is there or not.
fn images(point: &CrashPoint<'_>) -> Vec<Image> {
    let unflushed = point.unflushed().count();
    assert!(unflushed < 8, "{unflushed} unflushed writes have too many images");
    let image = |kept: u32| {
        let mut nth = 0;
        point.image(|_| {
            nth += 1;
            if kept >> (nth - 1) & 1 == 1 { Survives::All } else { Survives::None }
        })
    };
    (0..1 << unflushed).map(image).collect()
}

/// The version of a key, after the rebuild of an L2 on this device.
fn version_on(device: &Arc<dyn Device>, key: u64) -> Option<u64> {
    let fixture = Fixture::open(device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    let version = fixture.get(key).map(|value| value.version);
    fixture.close();
    version
}

/// The state that a killed process leaves: version 1 of key 1 is durable. The batch with its
/// tombstone is written but not flushed. Returns the image without this batch and with it.
fn killed_before_a_tombstone_is_flushed() -> (Image, Image) {
    let (recorder, device) = recording_over(&Image::zero(DEVICE, PAGE as u32));
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let begun = recorder.position();
    fixture.l2.forget_checked(&1).unwrap();
    let recording = recorder.recording();
    fixture.close();
    let is_flush = |event: &Event| matches!(event, Event::Flush);
    let flush = begun + recording.events()[begun..].iter().position(is_flush).unwrap();
    let killed = recording.at(flush);
    (killed.at_least(), killed.at_most())
}

/// The last batch of this image holds the tombstone of key 1. If the batch is damaged, the rebuild
/// finds the damage, and the key does not return.
fn check_that_the_last_batch_is_counted(image: &Image) {
    let batches = image.sectors().filter(|(_, sector)| sector.starts_with(b"forelbat"));
    let (last, _) = batches.last().unwrap();
    let device = crash::memory(image);
    let mut zeros = arena().alloc(PAGE as usize).unwrap();
    zeros.fill(0);
    device.run(Request::write(last, zeros)).result.unwrap();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.l2.rebuild().damaged, 1);
    assert_eq!(fixture.get(1).map(|value| value.version), None);
    fixture.close();
}

#[test]
fn a_new_label_is_durable_only_after_the_old_contents_are_cleared() {
    let foreign = memory(DEVICE);
    for offset in (0..DEVICE).step_by(CLEARED as usize) {
        let mut buffer = arena().alloc(CLEARED as usize).unwrap();
        buffer.fill(0xaa);
        foreign.run(Request::write(offset, buffer)).result.unwrap();
    }
    let (recorder, device) = recording_over(&Image::of(&*foreign, &arena()).unwrap());
    let fixture = Fixture::create(&device, &L2Options { force: true, ..small_segments() });
    let (recording, guid) = (recorder.recording(), fixture.l2.label().guid);
    fixture.close();
    let mut labels = 0;
    for position in 0..=recording.len() {
        for image in images(&recording.at(position)) {
            if read_label(&crash::memory(&image)).is_err() {
                continue;
            }
            labels += 1;
            for (begin, end) in [(PAGE, CLEARED), (DEVICE - CLEARED, DEVICE - PAGE)] {
                let mut bytes = vec![0; (end - begin) as usize];
                image.read(begin, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == 0), "a label without cleared ends");
            }
        }
    }
    assert!(labels > 2, "only {labels} images have a label");
    // The call has returned.
    let durable = crash::memory(&recording.at(recording.len()).at_least());
    assert_eq!(read_label(&durable).unwrap().guid, guid);
}

#[test]
fn a_user_mark_and_a_removal_are_durable_when_the_call_returns() {
    let (recorder, device) = recording_over(&Image::zero(DEVICE, PAGE as u32));
    let fixture = Fixture::create(&device, &small_segments());
    let durable = || {
        let recording = recorder.recording();
        crash::memory(&recording.at(recording.len()).at_least())
    };
    fixture.l2.set_user_mark(7).unwrap();
    assert_eq!(read_label(&durable()).unwrap().user_mark, 7);
    fixture.insert(1, 1, 1000);
    fixture.spill();
    fixture.l2.remove().unwrap();
    assert_eq!(read_label(&durable()).unwrap_err().kind(), ErrorKind::NotAnL2);
    fixture.close();
}

/// A close makes its blocks durable even if the footer cannot be written.
#[test]
fn the_blocks_of_a_close_are_durable_without_a_footer() {
    let faults = Arc::new(FaultDevice::new(memory(DEVICE), 7));
    let recorder = Arc::new(RecordDevice::new(faults.clone(), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    let footer = FIRST_SEGMENT + SEGMENT - PAGE..FIRST_SEGMENT + SEGMENT;
    let rule = faults.add(Rule::new(Fault::Error(5)).on(Op::Write).within(footer));
    fixture.insert(1, 1, 1000);
    fixture.offer_all();
    fixture.close();
    assert!(faults.remove(rule).unwrap() > 0, "the footer has failed");
    let recording = recorder.recording();
    let closed = crash::memory(&recording.at(recording.len()).at_least());
    assert_eq!(version_on(&closed, 1), Some(1));
}

/// Only the footer counts the last batch as durable. Without it, this batch would seem to be
/// unwritten when it is damaged, and its tombstones would be lost unnoticed.
#[test]
fn the_footer_of_a_closed_l2_is_durable() {
    let (recorder, device) = recording_over(&Image::zero(DEVICE, PAGE as u32));
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    fixture.l2.forget_checked(&1).unwrap();
    fixture.close();
    let recording = recorder.recording();
    check_that_the_last_batch_is_counted(&recording.at(recording.len()).at_least());
}

/// The batch with the tombstone was not flushed when the process was killed. The rebuild's footer
/// counts it as durable.
#[test]
fn the_footer_of_a_rebuild_counts_the_batches_that_it_found() {
    let (without, with) = killed_before_a_tombstone_is_flushed();
    let (recorder, device) = recording_over(&without);
    put_difference(&*device, &without, &with);
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    let recording = recorder.recording();
    fixture.close();
    check_that_the_last_batch_is_counted(&recording.at(recording.len()).at_least());
}

/// A footer that counts a lost batch would void the whole log.
#[test]
fn the_footer_of_a_rebuild_is_not_durable_before_the_batches_it_counts() {
    let (without, with) = killed_before_a_tombstone_is_flushed();
    let (recorder, device) = recording_over(&without);
    put_difference(&*device, &without, &with);
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    let recording = recorder.recording();
    fixture.close();
    let footer = |event: &Event| matches!(event, Event::Write { bytes, .. } if bytes.starts_with(b"forelend"));
    assert!(recording.events().iter().any(footer), "the rebuild writes a footer");
    for position in 0..=recording.len() {
        for image in images(&recording.at(position)) {
            let fixture = Fixture::open(&crash::memory(&image), &small_segments());
            assert!(fixture.l2.wait_rebuilt());
            assert_eq!(fixture.l2.rebuild().damaged, 0, "at {position}");
            fixture.close();
        }
    }
}

/// The process is killed again when the rebuild has written its footer. The next rebuild finds a
/// complete log, all of it in the device's volatile cache.
#[test]
fn a_tombstone_of_a_sealed_segment_is_durable_after_a_rebuild() {
    let (without, with) = killed_before_a_tombstone_is_flushed();
    let (recorder, device) = recording_over(&with);
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    let recording = recorder.recording();
    let sealed = recording.prefix(recording.len());
    fixture.close();
    let backing = crash::memory(&without);
    let faults = Arc::new(FaultDevice::new(backing.clone(), 7));
    faults.add(Rule::new(Fault::Volatile));
    put_difference(&*faults, &without, &sealed);
    assert_eq!(faults.volatile_bytes(), 2 * PAGE, "the batch and the footer");
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    while !fixture.l2.is_empty() {
        std::thread::yield_now();
    }
    fixture.l2.forget_checked(&1).unwrap();
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    faults.crash(Crash::LoseAll).unwrap();
    fixture.close();
    assert_eq!(version_on(&backing, 1), None);
}

/// A batch in flight when the process was killed may reach the medium after the rebuild. The
/// rebuild's footer excludes it, also after a power cut.
#[test]
fn the_footer_of_a_rebuild_is_durable_before_keys_are_forgotten_without_a_tombstone() {
    let (recorder, device) = recording_over(&Image::zero(DEVICE, PAGE as u32));
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let before = recorder.recording();
    let before = before.prefix(before.len());
    fixture.insert(2, 1, 1000);
    fixture.spill();
    let after = recorder.recording();
    let after = after.prefix(after.len());
    fixture.close();
    let backing = crash::memory(&before);
    let faults = Arc::new(FaultDevice::new(backing.clone(), 7));
    faults.add(Rule::new(Fault::Volatile));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    fixture.l2.forget_checked(&2).unwrap();
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    put_difference(&*backing, &before, &after);
    faults.crash(Crash::LoseAll).unwrap();
    fixture.close();
    assert_eq!(version_on(&backing, 2), None);
    assert_eq!(version_on(&backing, 1), Some(1));
}
