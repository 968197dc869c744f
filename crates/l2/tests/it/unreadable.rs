//! Parts of the log that one restart cannot read and a later one can, because the device fails or
//! because no memory is free.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::record::{Event, RecordDevice, RecordOptions, Recording};
use forebay_io::{Decorator, Device, Op, Request};
use forebay_l2::{Health, L2Options};

use crate::crash;
use crate::support::{Fixture, contents, copy, device_with, memory, options};

const DEVICE: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
const PAGE: u64 = 4096;

/// Options for many small segments.
fn small_segments() -> L2Options {
    L2Options { segment_bytes: Some(SEGMENT), ..options() }
}

/// A batch on a device.
struct Batch {
    offset: u64,
    seq: u64,
    number: u32,
}

fn number_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

/// All batches on a device, in the order of the log.
fn batches(contents: &[u8]) -> Vec<Batch> {
    let pages = contents.chunks(PAGE as usize).enumerate();
    let mut batches: Vec<Batch> = pages
        .filter(|(_, page)| page.starts_with(b"forelbat"))
        .map(|(nth, page)| Batch {
            offset: nth as u64 * PAGE,
            seq: number_at(page, 32),
            number: number_at(page, 40) as u32,
        })
        .collect();
    batches.sort_by_key(|batch| (batch.seq, batch.number));
    batches
}

/// The page of a batch's log block.
fn log_page(batch: &Batch) -> Range<u64> {
    batch.offset..batch.offset + PAGE
}

/// The footer of the segment that holds this offset.
fn footer_of(offset: u64) -> Range<u64> {
    let begin = (64 << 10) + (offset - (64 << 10)) / SEGMENT * SEGMENT;
    begin + SEGMENT - PAGE..begin + SEGMENT
}

fn unreadable(range: Range<u64>) -> Rule {
    Rule::new(Fault::Error(5)).on(Op::Read).within(range)
}

/// Writes blocks until several segments are full. No batch is known to be durable, because nothing
/// is flushed. Nothing is queued or being written at the end. Returns the number of keys.
fn fill_without_flush(fixture: &Fixture) -> u64 {
    let mut keys = 0;
    while fixture.l2.stats().count("segments") < 4 {
        (keys..keys + 20).for_each(|key| fixture.insert(key, 1, 1000));
        fixture.offer_all();
        keys += 20;
        let is_idle = || {
            let stats = fixture.l2.stats();
            stats.count("stored") == stats.count("admitted")
        };
        while !is_idle() {
            std::thread::yield_now();
        }
    }
    keys
}

/// Opens a copy of the device with unreadable parts, removes all keys, and opens it again without a
/// fault. No key may return. Returns the number of keys that the first open found.
fn remove_all_and_reopen(device: &Arc<dyn Device>, unread: Vec<Rule>, keys: u64) -> usize {
    let faults = Arc::new(FaultDevice::new(copy(device), 7));
    unread.into_iter().for_each(|rule| _ = faults.add(rule));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    let damaged = fixture.l2.rebuild().damaged;
    let found = (0..keys).filter(|key| fixture.get(*key).is_some()).count();
    for key in 0..keys {
        fixture.cache.remove(&key);
        fixture.l2.forget_checked(&key).unwrap();
    }
    faults.clear();
    let crashed = copy(&device);
    fixture.close();
    let fixture = Fixture::open(&crashed, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    for key in 0..keys {
        assert_eq!(fixture.get(key).map(|value| value.version), None, "{key} of {keys}");
    }
    fixture.close();
    assert!(damaged > 0);
    found
}

#[test]
fn keys_removed_while_their_log_block_was_unreadable_do_not_return() {
    let device = memory(DEVICE);
    let fixture = Fixture::create(&device, &small_segments());
    let keys = fill_without_flush(&fixture);
    let crashed = contents(&device);
    fixture.close();
    let first = &batches(&crashed)[0];
    let next = first.offset - PAGE + SEGMENT;
    let next = &crashed[next as usize..][..PAGE as usize];
    assert!(next.starts_with(b"forelseg"));
    assert_eq!(number_at(next, 60) as u32, 0, "no batch of the first segment is known as durable");
    let crashed = device_with(&crashed);
    // Listed by a footer, and found along the chain.
    let found = remove_all_and_reopen(&crashed, vec![unreadable(log_page(first))], keys);
    assert!(found > 0, "newer segments are intact");
    let both = vec![unreadable(log_page(first)), unreadable(footer_of(first.offset))];
    let found = remove_all_and_reopen(&crashed, both, keys);
    assert!(found > 0, "newer segments are intact");
}

/// The image of a crash just after a write that begins with these bytes: the last of them.
fn just_after(recording: &Recording, magic: &[u8]) -> Arc<dyn Device> {
    let is_it =
        |event: &Event| matches!(event, Event::Write { bytes, .. } if bytes.starts_with(magic));
    let at = recording.events().iter().rposition(is_it).unwrap();
    crash::memory(&recording.prefix(at + 1))
}

#[test]
fn an_unreadable_log_block_of_the_newest_segment_is_damage() {
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let device: Arc<dyn Device> = recorder.clone();
    let fixture = Fixture::create(&device, &small_segments());
    let keys = fill_without_flush(&fixture);
    let recording = recorder.recording();
    fixture.close();
    // With a footer that does not know any batch as durable.
    let crashed = just_after(&recording, b"forelend");
    let all = batches(&contents(&crashed));
    let newest = all.last().unwrap().seq;
    let first = all.iter().find(|batch| batch.seq == newest).unwrap();
    remove_all_and_reopen(&crashed, vec![unreadable(log_page(first))], keys);
}

#[test]
fn a_tombstone_that_is_unreadable_once_hides_what_it_removed() {
    let device = memory(DEVICE);
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    fixture.l2.forget_checked(&1).unwrap();
    let crashed = contents(&device);
    fixture.close();
    // The newest segment has no footer. The tombstone is in its last batch.
    let all = batches(&crashed);
    let faults = Arc::new(FaultDevice::new(device_with(&crashed), 7));
    let rule = faults.add(unreadable(log_page(all.last().unwrap())).times(1));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(faults.remove(rule), Some(1));
    assert_eq!(fixture.get(1).map(|value| value.version), None);
    assert_eq!(fixture.l2.rebuild().damaged, 1);
    fixture.close();
}

#[test]
fn an_unreadable_footer_does_not_readmit_a_failed_batch() {
    let recorder = Arc::new(RecordDevice::new(memory(DEVICE), RecordOptions::default()));
    let faults = Arc::new(FaultDevice::new(recorder.clone(), 7));
    let device: Arc<dyn Device> = faults.clone();
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    // The next batch fails but reaches the device.
    let segment = 64 << 10..(64 << 10) + SEGMENT - PAGE;
    let rule = Rule::new(Fault::ErrorAfter(5)).on(Op::Write).within(segment).times(1);
    let rule = faults.add(rule);
    fixture.insert(2, 1, 1000);
    fixture.spill();
    assert_eq!(faults.remove(rule), Some(1));
    let recording = recorder.recording();
    fixture.close();
    // The process ends between the footer, which excludes the batch, and the next header.
    let crashed = just_after(&recording, b"forelend");
    assert_eq!(batches(&contents(&crashed)).len(), 2);
    let fixture = Fixture::open(&crashed, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.get(1).map(|value| value.version), Some(1));
    fixture.cache.remove(&2);
    fixture.l2.forget_checked(&2).unwrap();
    assert_eq!(fixture.l2.stats().count("tombstones"), 0);
    let crashed = copy(&crashed);
    fixture.close();
    let faults = Arc::new(FaultDevice::new(crashed, 7));
    faults.add(unreadable(footer_of(64 << 10)));
    let device: Arc<dyn Device> = faults.clone();
    // With the fault, and without it.
    for damaged in [1, 0] {
        let fixture = Fixture::open(&device, &small_segments());
        assert!(fixture.l2.wait_rebuilt());
        assert_eq!(fixture.get(2).map(|value| value.version), None);
        assert_eq!(fixture.l2.rebuild().damaged, damaged);
        assert_eq!(fixture.l2.stats().count("read_errors"), damaged);
        fixture.close();
        faults.clear();
    }
}

#[test]
fn a_batch_counts_only_after_the_one_that_it_was_written_after() {
    let device = memory(DEVICE);
    let fixture = Fixture::create(&device, &small_segments());
    fixture.insert(1, 1, 1000);
    fixture.spill();
    let begun = contents(&device);
    fixture.close();
    // Two histories of the next segment, with batches of equal size.
    let [ours, other] = [[2, 3], [4, 5]].map(|keys| {
        let device = device_with(&begun);
        let fixture = Fixture::open(&device, &small_segments());
        assert!(fixture.l2.wait_rebuilt());
        for key in keys {
            fixture.insert(key, 1, 1000);
            fixture.spill();
        }
        let crashed = contents(&device);
        fixture.close();
        crashed
    });
    let last = |contents: &[u8]| {
        let Batch { offset, seq, number } = batches(contents).pop().unwrap();
        (offset, seq, number)
    };
    let (offset, _, number) = last(&ours);
    assert_eq!(last(&ours), last(&other));
    assert_eq!(number, 1);
    // The last batch is of the other history.
    let mut mixed = ours;
    let batch = offset as usize..footer_of(offset).start as usize;
    mixed[batch.clone()].copy_from_slice(&other[batch]);
    let fixture = Fixture::open(&device_with(&mixed), &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    let found = [1, 2, 5].map(|key| fixture.get(key).is_some());
    assert_eq!(found, [true, true, false]);
    fixture.close();
}

/// Options with an arena of this size.
fn with_arena(limit_bytes: u64) -> L2Options {
    let config = ArenaConfig { limit_bytes, huge_pages: HugePages::Never };
    L2Options { arena: Arena::new(config).unwrap(), ..small_segments() }
}

/// A closed L2 with several segments, and its number of keys.
fn several_segments() -> (Vec<u8>, u64) {
    let device = memory(DEVICE);
    let fixture = Fixture::create(&device, &small_segments());
    let mut keys = 0;
    while fixture.l2.stats().count("segments") < 6 {
        (keys..keys + 20).for_each(|key| fixture.insert(key, 1, 1000));
        fixture.spill();
        keys += 20;
    }
    fixture.close();
    (contents(&device), keys)
}

fn assert_intact(device: &Arc<dyn Device>, keys: u64) {
    let fixture = Fixture::open(device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.l2.rebuild().damaged, 0);
    let lost = (0..keys).filter(|key| fixture.get(*key).is_none()).count();
    assert_eq!(lost, 0, "of {keys}");
    fixture.close();
}

#[test]
fn reads_wait_for_the_memory_of_earlier_ones() {
    let (closed, keys) = several_segments();
    let device = device_with(&closed);
    // The writer's buffer, and fewer pages than segments.
    let fixture = Fixture::open(&device, &with_arena(48 << 10));
    assert!(fixture.l2.wait_rebuilt(), "{:?}", fixture.l2.health());
    assert_eq!(fixture.l2.rebuild().damaged, 0);
    fixture.close();
    assert_intact(&device, keys);
}

/// Takes away all memory when a range is read for the first time.
struct Exhausting {
    inner: Arc<dyn Device>,
    arena: Arc<Arena>,
    trigger: Range<u64>,
}

impl Decorator for Exhausting {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() == Op::Read && self.trigger.contains(&request.offset()) {
            // As if something else took all that this request and the writer do not hold.
            self.arena.set_limit(1);
        }
        Some(request)
    }
}

/// Opens the device and takes away the memory at a read of `trigger`. Nothing may change.
fn exhaust_at(before: &[u8], trigger: Range<u64>) {
    let backing = device_with(before);
    let options = with_arena(4 << 20);
    let device: Arc<dyn Device> = Arc::new(Exhausting {
        inner: backing.clone(),
        arena: options.arena.clone(),
        trigger: trigger.clone(),
    });
    let fixture = Fixture::open(&device, &options);
    assert!(!fixture.l2.wait_rebuilt(), "{trigger:?}");
    assert_eq!(fixture.l2.rebuild().damaged, 0);
    match fixture.l2.health() {
        Health::Failed { why, voided } => assert!(why.contains("memory") && !voided, "{why}"),
        health => panic!("{health:?}"),
    }
    fixture.close();
    assert!(contents(&backing) == before, "{trigger:?}");
}

#[test]
fn a_rebuild_without_memory_changes_nothing() {
    let (closed, keys) = several_segments();
    let device = device_with(&closed);
    // As a crash leaves a segment that was just begun: without a footer.
    let fixture = Fixture::open(&device, &small_segments());
    assert!(fixture.l2.wait_rebuilt());
    (keys..keys + 5).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    let crashed = contents(&device);
    fixture.close();
    std::thread::scope(|scope| {
        let exhaust = |before, trigger| _ = scope.spawn(move || exhaust_at(before, trigger));
        // The read after the trigger finds no memory: another header, the newest footer, the
        // newest log, and older segments.
        for (before, newest_footer) in [(&closed, true), (&crashed, false)] {
            let all = batches(before);
            let newest = all.last().unwrap();
            let last = all.iter().find(|batch| batch.seq == newest.seq).unwrap();
            exhaust(before, 64 << 10..(64 << 10) + PAGE);
            exhaust(before, last.offset + SEGMENT..last.offset + SEGMENT + PAGE);
            exhaust(before, footer_of(last.offset));
            match newest_footer {
                true => exhaust(before, footer_of(all[0].offset)),
                // The search behind the end of the log.
                false => exhaust(before, log_page(newest)),
            }
        }
    });
    assert_intact(&device_with(&closed), keys);
    assert_intact(&device_with(&crashed), keys + 5);
}
