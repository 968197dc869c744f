//! Recordings, and the images that crashes leave.

use forebay_base::arena::Arena;
use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::record::{Event, Image, Outcome, RecordDevice, RecordOptions, Survives};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op, Request};

use crate::common::{arena, filled};

const SECTOR: u64 = 512;
const SECTORS: u64 = 64;

fn memory() -> Arc<MemoryDevice> {
    let options = MemoryOptions::default();
    Arc::new(MemoryDevice::new("memory", SECTORS * SECTOR, &options).unwrap())
}

fn write(device: &dyn Device, arena: &Arena, sector: u64, sectors: u64, fill: u8) {
    let buffer = filled(arena, (sectors * SECTOR) as usize, fill);
    device.run(Request::write(sector * SECTOR, buffer)).result.unwrap();
}

fn fill_of(image: &Image, sector: u64) -> u8 {
    let mut bytes = [0; SECTOR as usize];
    image.read(sector * SECTOR, &mut bytes);
    bytes[0]
}

#[test]
fn the_events_are_in_order_and_the_rest_is_not_recorded() {
    let arena = arena();
    let device = RecordDevice::new(memory(), RecordOptions::default());
    let handle: &dyn Device = &device;
    write(handle, &arena, 1, 2, 7);
    handle.run(Request::read(0, arena.alloc(512).unwrap())).result.unwrap();
    handle.run(Request::flush()).result.unwrap();
    handle.run(Request::discard(0, SECTOR)).result.unwrap();
    // Misaligned, and past the end.
    handle.run(Request::write(1, filled(&arena, 512, 1))).result.unwrap_err();
    handle.run(Request::write(SECTORS * SECTOR, filled(&arena, 512, 1))).result.unwrap_err();
    handle.run(Request::discard(0, u64::MAX)).result.unwrap_err();
    let recording = device.recording();
    assert!(recording.is_complete());
    assert_eq!(recording.len(), device.position());
    let done = |event: &Event, of| matches!(event, Event::Ended { begun, outcome: Outcome::Done } if *begun == of);
    let [first, first_end, flush, flush_end, discard, discard_end] = recording.events() else {
        panic!("{:?}", recording.events());
    };
    assert!(matches!(first, Event::Write { offset: SECTOR, bytes } if bytes.len() == 1024));
    assert!(matches!(flush, Event::Flush));
    assert!(matches!(discard, Event::Discard { offset: 0, len: SECTOR }));
    assert!(done(first_end, 0) && done(flush_end, 2) && done(discard_end, 4));
}

#[test]
fn flushed_writes_are_in_every_crash_image() {
    let (arena, mut rng) = (arena(), SmallRng::from_seed(3));
    let device = RecordDevice::new(memory(), RecordOptions::default());
    let handle: &dyn Device = &device;
    let mut now = [0u8; SECTORS as usize];
    // Position, and the fills that were flushed by then.
    let mut promises = vec![(0, now)];
    for step in 1..=60 {
        let sector = rng.below(SECTORS - 4);
        let sectors = 1 + rng.below(4);
        write(handle, &arena, sector, sectors, step);
        now[sector as usize..(sector + sectors) as usize].fill(step);
        if rng.below(4) == 0 {
            handle.run(Request::flush()).result.unwrap();
            promises.push((device.position(), now));
        }
    }
    let recording = device.recording();
    for position in 0..=recording.len() {
        let crash = recording.at(position);
        let (_, promised) = promises.iter().rev().find(|(at, _)| *at <= position).unwrap();
        let unflushed: Vec<_> = crash.unflushed().collect();
        for _ in 0..3 {
            let image = crash.sampled(&mut rng);
            for sector in 0..SECTORS {
                let covers = |change: &forebay_io::record::Unflushed| {
                    (change.offset..change.offset + change.len).contains(&(sector * SECTOR))
                };
                if !unflushed.iter().any(covers) {
                    let at_least = fill_of(&crash.at_least(), sector);
                    assert_eq!(fill_of(&image, sector), at_least);
                    // Not older than the flushed fill: fills grow with time.
                    assert!(at_least >= promised[sector as usize]);
                }
            }
        }
    }
    assert_eq!(recording.prefix(recording.len()), Image::of(handle, &arena).unwrap());
}

#[test]
fn an_image_can_be_put_on_a_device_and_be_the_base_of_the_next_recording() {
    let arena = arena();
    let first = RecordDevice::new(memory(), RecordOptions::default());
    write(&first, &arena, 0, 3, 1);
    write(&first, &arena, 2, 2, 2);
    let recording = first.recording();
    // The first write lost, the second in part.
    let image = recording.at(recording.len()).image(|change| match change.event {
        0 => Survives::None,
        _ => Survives::Sectors(vec![true]),
    });
    assert_eq!((0..5).map(|at| fill_of(&image, at)).collect::<Vec<_>>(), [0, 0, 2, 0, 0]);
    let medium = memory();
    image.write_to(&*medium, &arena).unwrap();
    let base = Image::of(&*medium, &arena).unwrap();
    assert_eq!(base, image);
    let second =
        RecordDevice::new(medium, RecordOptions { base: Some(base), ..RecordOptions::default() });
    write(&second, &arena, 4, 1, 5);
    let recording = second.recording();
    assert_eq!(fill_of(&recording.at(recording.len()).at_least(), 2), 2);
    assert_eq!(fill_of(&recording.prefix(recording.len()), 4), 5);
}

#[test]
fn recording_ends_at_its_bound_and_the_device_goes_on() {
    let arena = arena();
    let options = RecordOptions { max_bytes: 4 * SECTOR, ..RecordOptions::default() };
    let device = RecordDevice::new(memory(), options);
    for sector in 0..8 {
        write(&device, &arena, sector, 1, 1);
    }
    let recording = device.recording();
    assert!(!recording.is_complete());
    assert!(recording.len() < 8);
    let handle: &dyn Device = &device;
    assert_eq!(fill_of(&Image::of(handle, &arena).unwrap(), 7), 1);
    assert_eq!(fill_of(&recording.prefix(recording.len()), 7), 0);
}

#[test]
fn a_write_that_failed_may_be_there_and_no_flush_settles_it() {
    let arena = arena();
    let faults = Arc::new(FaultDevice::new(memory(), 1));
    let device = RecordDevice::new(faults.clone(), RecordOptions::default());
    let handle: &dyn Device = &device;
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write).nth(1));
    handle.run(Request::write(0, filled(&arena, 512, 9))).result.unwrap_err();
    handle.run(Request::flush()).result.unwrap();
    let recording = device.recording();
    let crash = recording.at(recording.len());
    assert_eq!(crash.unflushed().count(), 1);
    assert_eq!((fill_of(&crash.at_least(), 0), fill_of(&crash.at_most(), 0)), (0, 9));
    // Refused requests never happened.
    device.close();
    handle.run(Request::write(0, filled(&arena, 512, 8))).result.unwrap_err();
    let recording = device.recording();
    assert_eq!(fill_of(&recording.prefix(recording.len()), 0), 9);
}
