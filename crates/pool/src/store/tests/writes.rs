//! Writing, and finding what is being written.

use forebay_base::sync::Arc;
use forebay_cache::{Attributes, OwnerCaching};
use forebay_io::Op;
use forebay_io::fault::{Fault, Rule};

use super::{block_cache, props, rig, rig_with};
use crate::error::ErrorKind;
use crate::format::{BlockPtrPhys, Compression};
use crate::store::WriteProps;
use crate::store::counters::StoreCounters;

#[test]
fn blocks_come_back_from_cache_and_devices() {
    let mut rig = rig(2);
    for (at, compression) in
        [Compression::Off, Compression::Lz4, Compression::Zstd].into_iter().enumerate()
    {
        for len in [1, 511, 512, 513, 4096, 16 << 10, 100_000, 1 << 20] {
            let copies = 1 + at % 2;
            let (bp, content) = rig.write(len, &props(copies, compression));
            assert_eq!(bp.copy_count(), copies);
            assert_eq!(rig.store.peek(&bp).unwrap()[..], content);
            rig.store.finish_writes().unwrap();
            rig.forget(&bp);
            assert!(rig.store.peek(&bp).is_none());
            assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
            assert_eq!(rig.store.peek(&bp).unwrap()[..], content);
            assert_eq!(rig.store.read_uncached(&bp).unwrap()[..], content);
            for copy in 0..copies {
                assert_eq!(rig.store.read_copy(&bp, copy).unwrap()[..], content);
            }
            assert!(rig.store.read_copy(&bp, copies).is_err());
        }
    }
    assert_eq!(rig.counted(StoreCounters::UNCACHED_WRITES), 0);
    assert_eq!(rig.counted(StoreCounters::BLOCKS_WRITTEN), 24);
    rig.audit();
}

#[test]
fn a_block_on_its_way_is_found_whatever_the_cache_wants() {
    for caching in [OwnerCaching::All, OwnerCaching::Metadata, OwnerCaching::None] {
        let mut rig = rig_with(block_cache(64 << 20), 1, 4096, caching, 20_000_000);
        for compression in [Compression::Off, Compression::Lz4] {
            let (bp, content) = rig.write(20_000, &props(1, compression));
            assert!(rig.store.flight_bytes() > 0);
            // The device has nothing yet.
            rig.store.cache().cache().flush();
            assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
            assert_eq!(rig.store.peek(&bp).is_some(), caching == OwnerCaching::All);
            rig.store.finish_writes().unwrap();
            rig.forget(&bp);
            assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        }
        let uncached = rig.counted(StoreCounters::UNCACHED_WRITES);
        assert_eq!(uncached, if caching == OwnerCaching::All { 0 } else { 2 });
        assert_eq!(rig.counted(StoreCounters::VERIFY_FAILURES), 0);
        rig.audit();
    }
}

#[test]
fn a_write_fails_if_one_copy_does() {
    let mut rig = rig(2);
    rig.store.finish_writes().unwrap();
    rig.faults[1].add(Rule::new(Fault::Error(5)).on(Op::Write).times(1));
    rig.write(8192, &props(2, Compression::Off));
    let error = rig.store.finish_writes().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("memory1"), "{error}");
    assert_eq!(rig.counted(StoreCounters::WRITE_ERRORS), 1);
    // It is told once.
    rig.store.finish_writes().unwrap();
    rig.faults[0].add(Rule::new(Fault::Error(5)).on(Op::Flush).times(1));
    assert_eq!(rig.store.finish_writes().unwrap_err().kind(), ErrorKind::Device);
    rig.audit();
}

#[test]
fn bytes_on_their_way_are_bounded() {
    let mut rig = rig_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 20_000_000);
    for _ in 0..40 {
        rig.write(512 << 10, &props(1, Compression::Off));
        assert!(rig.store.flight_bytes() <= 8 << 20);
    }
    assert!(rig.counted(StoreCounters::WRITE_WAITS) > 0);
    rig.audit();
}

#[test]
fn steps_apart_do_the_same() {
    let mut rig = rig(1);
    let plain = WriteProps { cache: None, ..props(1, Compression::Off) };
    let content = Arc::new(rig.content(8192));
    let sealed = rig.store.seal(&content, &plain).unwrap();
    let placed = rig.store.place(&sealed, &content, &plain, &mut rig.space).unwrap();
    let bp = placed.bp;
    let held = rig.store.hold_shared(&bp, Arc::clone(&content));
    // Not submitted yet.
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content[..]);
    rig.store.submit(placed, crate::store::WritePayload::new(sealed, held));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content[..]);
    assert_eq!(Arc::strong_count(&content), 1);
    rig.audit();
}

#[test]
fn places_that_are_there_already() {
    use crate::store::Allocate;
    let mut rig = rig(2);
    let places = rig.space.allocate(16 << 10, 2).unwrap();
    let content = rig.content(16 << 10);
    let bytes = content.to_vec();
    let bp = rig.store.write_at(places, content, &props(2, Compression::Zstd)).unwrap();
    assert_eq!(bp.copies, places);
    rig.store.finish_writes().unwrap();
    assert_eq!(rig.store.read_copy(&bp, 1).unwrap()[..], bytes);
    rig.audit();
}

#[test]
fn what_is_freed_is_all_that_was_taken() {
    let mut rig = rig(2);
    let pointers: Vec<BlockPtrPhys> =
        (1..20).map(|n| rig.write(n * 1000, &props(1 + n % 2, Compression::Lz4)).0).collect();
    rig.store.finish_writes().unwrap();
    let taken = rig.space.out_bytes();
    let told: u64 = pointers.iter().flat_map(|bp| rig.pieces(bp)).map(|piece| piece.1).sum();
    assert_eq!(told, taken);
    for bp in &pointers {
        rig.store.free(bp, &mut rig.space).unwrap();
    }
    assert_eq!(rig.space.out_bytes(), 0);
    assert!(pointers.iter().all(|bp| rig.store.peek(bp).is_none()));
    rig.audit();
}
