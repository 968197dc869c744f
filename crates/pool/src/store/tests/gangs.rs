//! Blocks in pieces.

use forebay_base::sync::thread;
use forebay_cache::Attributes;
use forebay_io::Op;
use forebay_io::fault::{Fault, Rule};

use super::{block_cache, fixture_over, props};
use crate::devices::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gang::{GangPhys, gang_capacity, read_gang, write_gang};
use crate::format::{BlockPtrPhys, Compression};
use crate::store::barrier::Pause;
use crate::store::counters::StoreCounters;
use crate::store::{WritePayload, WriteProps};
use forebay_base::rng::SmallRng;
use zerocopy::little_endian::U64;

#[test]
fn pieces_of_all_sizes_come_back() {
    for (sector, copies) in [(512, 1), (512, 2), (4096, 1), (4096, 2)] {
        let mut fixture = fixture_over(block_cache(64 << 20), 2, sector);
        let sector = u64::from(sector);
        for largest in [sector, 2 * sector, 7 * sector] {
            fixture.space.largest = largest;
            for sectors in [1, 2, 3, 8, 60, 256] {
                let before = fixture.space.out_bytes();
                let len = (sectors * sector - 100) as usize;
                let (bp, content) = fixture.write(len, &props(copies, Compression::Off));
                assert_eq!(bp.is_gang(), sectors * sector > largest);
                fixture.store.wait_and_flush().unwrap();
                fixture.forget(&bp);
                assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
                (0..copies).for_each(|n| {
                    assert_eq!(fixture.store.read_copy(&bp, n).unwrap()[..], content);
                });
                let taken = fixture.space.out_bytes() - before;
                assert_eq!(fixture.pieces(&bp).iter().map(|piece| piece.1).sum::<u64>(), taken);
                fixture.store.free(&bp, &mut fixture.space).unwrap();
                assert_eq!(fixture.space.out_bytes(), before);
            }
        }
        fixture.audit();
    }
}

#[test]
fn the_largest_block_in_the_smallest_pieces() {
    let mut fixture = fixture_over(block_cache(128 << 20), 2, 512);
    fixture.space.largest = 512;
    let (bp, content) = fixture.write(16 << 20, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    assert!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..] == content);
    fixture.audit();
}

/// A gang block that cannot be written keeps the content of its block in memory, past a flush that
/// covers the pieces: the block must be written elsewhere.
#[test]
fn a_failed_gang_block_keeps_the_content_of_its_block() {
    struct GoOn;
    impl Pause for GoOn {
        fn pause(&self, _: Error) -> Result<()> {
            Ok(())
        }
    }
    let mut fixture = fixture_over(block_cache(64 << 20), 1, 512);
    fixture.space.largest = 1024;
    let props = WriteProps { cache: None, ..props(1, Compression::Off) };
    let content = fixture.content(8192);
    let bytes = content.to_vec();
    let sealed = fixture.store.seal(&content, &props).unwrap();
    let placed = fixture.store.place(&sealed, &content, &props, &mut fixture.space).unwrap();
    let bp = placed.bp;
    let head = bp.copies[0].get().unwrap();
    let place = head.offset..head.offset + 512;
    fixture.faults[0].add(Rule::new(Fault::Error(5)).on(Op::Write).within(place));
    let held = fixture.store.hold(&bp, content, None);
    fixture.store.submit(placed, WritePayload::new(sealed, held));
    while fixture.store.in_flight_bytes() > 0 {
        thread::yield_now();
    }
    // Memory is short: the commit flushes in its middle.
    let mut short = true;
    let step = || match std::mem::take(&mut short) {
        true => Err(Error::new(ErrorKind::NoMemory, "none")),
        false => Ok(()),
    };
    fixture.store.repeat(&GoOn, step).unwrap();
    assert_eq!(fixture.counted(StoreCounters::EARLY_FLUSHES), 1);
    let failed = fixture.store.settle(&GoOn).unwrap();
    assert!(failed.contains(head));
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], bytes);
    drop(failed);
    fixture.store.abandon_writes();
    assert_eq!(fixture.store.cache().dirty_bytes(), 0);
}

#[test]
fn without_space_all_is_given_back() {
    let mut fixture = fixture_over(block_cache(64 << 20), 1, 512);
    fixture.space.largest = 1024;
    for left in (0..=32).map(|n| n * 1024) {
        fixture.space.left = left;
        let content = fixture.content(32 << 10);
        let error = fixture.write_new(content, &props(1, Compression::Off)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!((fixture.space.out_bytes(), fixture.space.left), (0, left));
    }
    fixture.audit();
}

#[test]
fn rot_anywhere_in_a_gang_is_healed() {
    let mut fixture = fixture_over(block_cache(64 << 20), 2, 512);
    fixture.space.largest = 1024;
    let (bp, content) = fixture.write(64 << 10, &props(2, Compression::Lz4));
    fixture.store.wait_and_flush().unwrap();
    let extents = fixture.pieces(&bp);
    for (dva, bytes) in &extents {
        fixture.forget(&bp);
        fixture.rot(*dva, *bytes);
        // First copies are found by reading; the others by a scrub.
        assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        for n in 0..2 {
            if fixture.store.read_copy(&bp, n).is_err() {
                fixture.store.heal(&bp, n).unwrap();
            }
            assert_eq!(fixture.store.read_copy(&bp, n).unwrap()[..], content);
        }
    }
    assert_eq!(fixture.counted(StoreCounters::HEALED), extents.len() as u64);
    fixture.audit();
}

#[test]
fn hostile_gangs_are_errors() {
    let mut fixture = fixture_over(block_cache(64 << 20), 1, 512);
    fixture.space.largest = 1024;
    let seed = 8;
    println!("seed {seed}");
    let mut rng = SmallRng::from_seed(seed);
    let (bp, content) = fixture.write(6 << 10, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    let at = bp.dvas().next().unwrap();
    let buffer = fixture.store.cache().alloc(512).unwrap();
    let sector = fixture
        .store
        .devices()
        .read(Place { dva: at, leaf: 0 }, buffer, forebay_io::Priority::SyncRead)
        .unwrap();
    let pieces = read_gang(&sector, 5, &bp.checksum).unwrap();
    for _ in 0..2000 {
        let mut pieces = pieces.clone();
        for _ in 0..=rng.below(3) {
            let piece = rng.below(pieces.len() as u64) as usize;
            let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut pieces[piece]);
            bytes[rng.below(64) as usize] = rng.next_u64() as u8;
        }
        if rng.below(4) == 0 {
            let other = rng.below(pieces.len() as u64) as usize;
            // A circle.
            pieces[other] = BlockPtrPhys { logical_bytes: pieces[other].logical_bytes, ..bp };
        }
        let mut sector = fixture.store.cache().alloc(512).unwrap();
        let birth_txg = U64::new(5);
        let head = GangPhys { birth_txg, whole: bp.checksum, ..GangPhys::default() };
        write_gang(&mut sector, head, &pieces);
        fixture
            .store
            .devices()
            .write(Place { dva: at, leaf: 0 }, sector, forebay_io::Priority::SyncWrite)
            .unwrap();
        if let Ok(found) = fixture.store.read_uncached(&bp) {
            assert_eq!(found[..], content);
        }
        drop(fixture.store.for_each_piece(&bp, &mut |_, _| ()));
    }
    fixture.audit();
}

#[test]
fn gang_blocks_are_checked() {
    let mut rng = SmallRng::from_seed(2);
    let pieces = [BlockPtrPhys::HOLE; 7];
    assert_eq!((gang_capacity(512), gang_capacity(4096)), (7, 63));
    let mut sector = [0; 512];
    let head = GangPhys { birth_txg: U64::new(3), whole: [1; 16], ..GangPhys::default() };
    write_gang(&mut sector, head, &pieces);
    assert_eq!(read_gang(&sector, 3, &[1; 16]).unwrap().len(), 7);
    assert!(read_gang(&sector, 4, &[1; 16]).is_none());
    assert!(read_gang(&sector, 3, &[2; 16]).is_none());
    assert!(read_gang(&sector[..40], 3, &[1; 16]).is_none());
    for _ in 0..5000 {
        let mut damaged = sector;
        damaged[rng.below(512) as usize] ^= 1 << rng.below(8);
        assert!(read_gang(&damaged, 3, &[1; 16]).is_none());
    }
}
