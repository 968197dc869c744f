//! Writing, and finding what is being written.

use std::cell::Cell;

use forebay_base::clock::ManualClock;
use forebay_base::sync::{Arc, thread};
use forebay_cache::{Attributes, OwnerCaching};
use forebay_io::Op;
use forebay_io::fault::{Fault, Rule};

use super::{block_cache, fixture, fixture_with, props};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockPtrPhys, Compression};
use crate::lease::Lease;
use crate::store::WriteProps;
use crate::store::barrier::{NoPause, Pause};
use crate::store::counters::StoreCounters;
use crate::store::in_flight::InFlightWrites;

#[test]
fn blocks_come_back_from_cache_and_devices() {
    let mut fixture = fixture(2);
    for (at, compression) in
        [Compression::Off, Compression::Lz4, Compression::Zstd].into_iter().enumerate()
    {
        for len in [1, 511, 512, 513, 4096, 16 << 10, 100_000, 1 << 20] {
            let copies = 1 + at % 2;
            let (bp, content) = fixture.write(len, &props(copies, compression));
            assert_eq!(bp.copy_count(), copies);
            assert_eq!(fixture.store.peek(&bp).unwrap()[..], content);
            fixture.store.wait_and_flush().unwrap();
            fixture.forget(&bp);
            assert!(fixture.store.peek(&bp).is_none());
            assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
            assert_eq!(fixture.store.peek(&bp).unwrap()[..], content);
            assert_eq!(fixture.store.read_uncached(&bp).unwrap()[..], content);
            for copy in 0..copies {
                assert_eq!(fixture.store.read_copy(&bp, copy).unwrap()[..], content);
            }
            assert!(fixture.store.read_copy(&bp, copies).is_err());
        }
    }
    assert_eq!(fixture.counted(StoreCounters::UNCACHED_WRITES), 0);
    assert_eq!(fixture.counted(StoreCounters::BLOCKS_WRITTEN), 24);
    fixture.audit();
}

#[test]
fn a_block_on_its_way_is_found_whatever_the_cache_wants() {
    for caching in [OwnerCaching::All, OwnerCaching::Metadata, OwnerCaching::None] {
        let mut fixture = fixture_with(block_cache(64 << 20), 1, 4096, caching, 20_000_000);
        for compression in [Compression::Off, Compression::Lz4] {
            let (bp, content) = fixture.write(20_000, &props(1, compression));
            assert!(fixture.store.in_flight_bytes() > 0);
            // The device has nothing yet.
            fixture.store.cache().cache().clear();
            assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
            assert_eq!(fixture.store.peek(&bp).is_some(), caching == OwnerCaching::All);
            fixture.store.wait_and_flush().unwrap();
            fixture.forget(&bp);
            assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        }
        let uncached = fixture.counted(StoreCounters::UNCACHED_WRITES);
        assert_eq!(uncached, if caching == OwnerCaching::All { 0 } else { 2 });
        assert_eq!(fixture.counted(StoreCounters::VERIFY_FAILURES), 0);
        // What the cache does not take has not failed.
        let (bp, _) = fixture.write(4096, &props(1, Compression::Off));
        fixture.store.wait_and_flush().unwrap();
        fixture.forget(&bp);
        fixture.store.prefetch(&bp, Attributes::DATA, Box::new(|_| {}));
        fixture.store.devices().drain();
        assert_eq!(fixture.store.cache().cache().stats().counter("loads_failed"), 0);
        fixture.audit();
    }
}

#[test]
fn a_commit_does_not_wait_for_a_cache_that_is_full_of_pins() {
    let mut fixture = fixture_with(block_cache(8 << 20), 1, 512, OwnerCaching::All, 0);
    let mut pins = Vec::new();
    while fixture.counted(StoreCounters::UNCACHED_WRITES) == 0 {
        let (bp, _) = fixture.write(64 << 10, &props(1, Compression::Off));
        pins.extend(fixture.store.peek(&bp));
        fixture.store.wait_and_flush().unwrap();
    }
    assert!(!pins.is_empty());
    assert_eq!(fixture.store.cache().cache().stats().counter("throttle_waits"), 0);
    drop(pins);
    fixture.audit();
}

#[test]
fn a_write_that_fails_is_repeated_once() {
    let mut fixture = fixture(2);
    fixture.store.wait_and_flush().unwrap();
    fixture.faults[1].add(Rule::new(Fault::Error(5)).on(Op::Write).times(1));
    let (bp, content) = fixture.write(8192, &props(2, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    assert_eq!(fixture.counted(StoreCounters::WRITE_ERRORS), 1);
    assert_eq!(fixture.counted(StoreCounters::WRITE_RETRIES), 1);
    for copy in 0..2 {
        assert_eq!(fixture.store.read_copy(&bp, copy).unwrap()[..], content);
    }
    fixture.audit();
}

#[test]
fn one_copy_of_two_suffices_and_one_of_one_does_not() {
    let mut fixture = fixture(2);
    fixture.store.wait_and_flush().unwrap();
    let broken = fixture.faults[1].add(Rule::new(Fault::Error(5)).on(Op::Write));
    let (bp, content) = fixture.write(8192, &props(2, Compression::Off));
    let missing = fixture.store.commit(&NoPause).unwrap();
    let second = bp.copies.iter().filter_map(|copy| copy.get()).find(|dva| dva.device == 1);
    assert_eq!(missing, [(second.unwrap(), 8192)]);
    assert_eq!(fixture.counted(StoreCounters::COPIES_MISSING), 1);
    fixture.forget(&bp);
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    // One of these is on the broken device.
    fixture.write(8192, &props(1, Compression::Off));
    fixture.write(8192, &props(1, Compression::Off));
    let error = fixture.store.wait_and_flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("memory1"), "{error}");
    fixture.faults[1].remove(broken);
    // It is told once.
    fixture.store.wait_and_flush().unwrap();
    fixture.faults[0].add(Rule::new(Fault::Error(5)).on(Op::Flush).times(1));
    assert_eq!(fixture.store.wait_and_flush().unwrap_err().kind(), ErrorKind::Device);
    fixture.audit();
}

/// One copy is given up, and after a failed flush the other one cannot be written again.
#[test]
fn a_block_does_not_lose_its_copies_one_after_the_other() {
    let mut fixture = fixture(2);
    fixture.store.wait_and_flush().unwrap();
    let [first, second] = [&fixture.faults[0], &fixture.faults[1]].map(Arc::clone);
    let broken = second.add(Rule::new(Fault::Error(5)).on(Op::Write));
    first.add(Rule::new(Fault::Error(5)).on(Op::Flush).times(1));
    fixture.write(8192, &props(2, Compression::Off));
    let pauses = Cell::new(0);
    let pause = OnPause(|error| {
        pauses.set(pauses.get() + 1);
        if pauses.get() == 2 {
            return Err(error);
        }
        second.remove(broken);
        first.add(Rule::new(Fault::Error(5)).on(Op::Write));
        Ok(())
    });
    let error = fixture.store.commit(&pause).expect_err("the block has no copy");
    assert_eq!((error.kind(), pauses.get()), (ErrorKind::Device, 2), "{error}");
}

/// The lease ends while the commit has a write ahead.
#[test]
fn a_write_without_a_lease_is_deferred_until_it_is_renewed() {
    struct Renew<'a>(&'a Lease);
    impl Pause for Renew<'_> {
        fn pause(&self, error: Error) -> Result<()> {
            Err(error)
        }

        fn before_write(&self) -> Result<()> {
            self.0.set_end_ns(u64::MAX);
            Ok(())
        }
    }
    let mut fixture = fixture(1);
    let lease = Arc::new(Lease::new(Arc::new(ManualClock::new())));
    fixture.store = fixture.store.clone().with_lease(Arc::clone(&lease));
    lease.set_end_ns(0);
    let (bp, content) = fixture.write(8192, &props(1, Compression::Off));
    assert_eq!(fixture.counted(StoreCounters::WRITES), 0);
    assert_eq!(fixture.store.in_flight_bytes(), 0);
    // Readers find it meanwhile.
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert!(fixture.store.settle(&Renew(&lease)).unwrap().is_empty());
    assert_eq!(fixture.counted(StoreCounters::WRITES), 1);
    fixture.store.wait_and_flush().unwrap();
    assert_eq!(fixture.store.read_copy(&bp, 0).unwrap()[..], content);
    fixture.audit();
}

struct OnPause<F>(F);

impl<F: Fn(Error) -> Result<()>> Pause for OnPause<F> {
    fn pause(&self, error: Error) -> Result<()> {
        (self.0)(error)
    }
}

#[test]
fn payloads_are_kept_until_a_flush_and_are_few() {
    let mut fixture = fixture_with(block_cache(32 << 20), 1, 512, OwnerCaching::None, 0);
    let (bp, content) = fixture.write(8192, &props(1, Compression::Lz4));
    fixture.store.settle(&NoPause).unwrap();
    // The device has it, but may lose it.
    let place = bp.copies[0].get().unwrap();
    fixture.rot(place, 512);
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert!(fixture.store.cache().dirty_bytes() > 0, "its memory counts");
    for _ in 0..24 {
        fixture.write(1 << 20, &props(1, Compression::Off));
        assert!(fixture.store.cache().dirty_bytes() <= 18 << 20);
    }
    assert!(fixture.counted(StoreCounters::EARLY_FLUSHES) > 0);
    fixture.store.wait_and_flush().unwrap();
    assert_eq!(fixture.store.cache().dirty_bytes(), 0);
    fixture.audit();
}

#[test]
fn bytes_on_their_way_are_bounded() {
    let mut fixture = fixture_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 20_000_000);
    for _ in 0..40 {
        fixture.write(512 << 10, &props(1, Compression::Off));
        assert!(fixture.store.in_flight_bytes() <= 8 << 20);
    }
    fixture.audit();
}

#[test]
fn a_write_beyond_the_limit_waits_for_the_end_of_another() {
    let in_flight = Arc::new(InFlightWrites::new(8));
    assert!(!in_flight.begin(4) && !in_flight.begin(4));
    let other = Arc::clone(&in_flight);
    let third = thread::spawn_named("third", move || other.begin(4)).expect("a thread");
    while in_flight.waiters() == 0 {
        thread::yield_now();
    }
    in_flight.refuse(4, Error::new(ErrorKind::Invalid, "it was not submitted"));
    assert!(third.join().expect("no panic"), "it waited");
    assert_eq!(in_flight.bytes(), 8);
}

#[test]
fn steps_apart_do_the_same() {
    let mut fixture = fixture(1);
    let plain = WriteProps { cache: None, ..props(1, Compression::Off) };
    let content = Arc::new(fixture.content(8192));
    let sealed = fixture.store.seal(&content, &plain).unwrap();
    let placed = fixture.store.place(&sealed, &content, &plain, &mut fixture.space).unwrap();
    let bp = placed.bp;
    let held = fixture.store.hold_shared(&bp, Arc::clone(&content));
    // Not submitted yet.
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content[..]);
    fixture.store.submit(placed, crate::store::WritePayload::new(sealed, held));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content[..]);
    assert_eq!(Arc::strong_count(&content), 1);
    fixture.audit();
}

#[test]
fn places_that_are_there_already() {
    use crate::store::Allocate;
    let mut fixture = fixture(2);
    let places = fixture.space.allocate(16 << 10, 2).unwrap();
    let content = fixture.content(16 << 10);
    let bytes = content.to_vec();
    let bp = fixture.store.write_at(places, content, &props(2, Compression::Zstd)).unwrap();
    assert_eq!(bp.copies, places);
    fixture.store.wait_and_flush().unwrap();
    assert_eq!(fixture.store.read_copy(&bp, 1).unwrap()[..], bytes);
    fixture.audit();
}

#[test]
fn what_is_freed_is_all_that_was_taken() {
    let mut fixture = fixture(2);
    let pointers: Vec<BlockPtrPhys> =
        (1..20).map(|n| fixture.write(n * 1000, &props(1 + n % 2, Compression::Lz4)).0).collect();
    fixture.store.wait_and_flush().unwrap();
    let taken = fixture.space.out_bytes();
    let reported: u64 =
        pointers.iter().flat_map(|bp| fixture.pieces(bp)).map(|piece| piece.1).sum();
    assert_eq!(reported, taken);
    for bp in &pointers {
        fixture.store.free(bp, &mut fixture.space).unwrap();
    }
    assert_eq!(fixture.space.out_bytes(), 0);
    assert!(pointers.iter().all(|bp| fixture.store.peek(bp).is_none()));
    fixture.audit();
}
