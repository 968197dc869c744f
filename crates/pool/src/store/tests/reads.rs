//! Reading: damage, healing, single flight, prefetch.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, thread};
use forebay_cache::{Attributes, OwnerCaching};
use forebay_io::fault::{Fault, Rule};
use forebay_io::{Op, Priority};
use zerocopy::little_endian::{U32, U64};

use super::{Fixture, block_cache, fixture, fixture_over, fixture_with, mirror_fixture, props};
use crate::devices::Place;
use crate::error::{Error, ErrorKind};
use crate::format::{BlockPtrPhys, Compression, Dva, DvaPhys};
use crate::store::counters::StoreCounters;

#[test]
fn rot_in_one_copy_is_healed_and_counted() {
    for compression in [Compression::Off, Compression::Lz4] {
        let mut fixture = fixture(2);
        let (bp, content) = fixture.write(32 << 10, &props(2, compression));
        fixture.store.wait_and_flush().unwrap();
        fixture.forget(&bp);
        let first = bp.dvas().next().unwrap();
        fixture.rot(first, bp.allocated_bytes(512));
        assert_eq!(fixture.store.read_copy(&bp, 0).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        assert_eq!(fixture.counted(StoreCounters::HEALED), 1);
        assert_eq!(fixture.store.read_copy(&bp, 0).unwrap()[..], content);
        // The second copy is nobody's but a scrub's to find.
        fixture.rot(bp.dvas().nth(1).unwrap(), bp.allocated_bytes(512));
        assert!(fixture.store.read_copy(&bp, 1).is_err());
        fixture.store.heal(&bp, 1).unwrap();
        assert_eq!(fixture.store.read_copy(&bp, 1).unwrap()[..], content);
        assert_eq!(fixture.counted(StoreCounters::HEALED), 2);
        fixture.audit();
    }
}

#[test]
fn rot_in_both_copies_is_an_error() {
    let mut fixture = fixture(2);
    let (bp, content) = fixture.write(32 << 10, &props(2, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    bp.dvas().for_each(|dva| fixture.rot(dva, bp.allocated_bytes(512)));
    let error = fixture.store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for dva in bp.dvas() {
        assert!(error.to_string().contains(&dva.to_string()), "{error}");
    }
    assert_eq!(fixture.store.heal(&bp, 0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(fixture.counted(StoreCounters::BLOCKS_LOST), 1);
    assert_eq!(fixture.counted(StoreCounters::HEALED), 0);
    // An error is not cached: what comes back is found.
    bp.dvas().for_each(|dva| fixture.rot(dva, bp.allocated_bytes(512)));
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    fixture.audit();
}

#[test]
fn a_device_that_fails_is_gone_around() {
    let mut fixture = fixture(2);
    let (bp, content) = fixture.write(8192, &props(2, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    let device = usize::from(bp.dvas().next().unwrap().device);
    fixture.faults[device].add(Rule::new(Fault::Error(5)));
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    // It could not be written anew either, which is only counted.
    assert_eq!(fixture.counted(StoreCounters::HEAL_FAILURES), 1);
    fixture.forget(&bp);
    fixture.faults[1 - device].add(Rule::new(Fault::Error(5)));
    let error = fixture.store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    fixture.faults.iter().for_each(|device| device.clear());
    fixture.audit();
}

/// `ENODEV`: the device is gone.
const GONE: i32 = 19;

fn failure(fixture: &Fixture, bp: &BlockPtrPhys) -> Error {
    fixture.forget(bp);
    fixture.store.read(bp, Attributes::DATA).map(drop).unwrap_err()
}

/// Also if they do not say that they are gone, but fail whatever is read; and the pieces of a gang.
#[test]
fn a_block_is_gone_if_no_device_answers_that_could_have_it() {
    for (errno, largest) in [(GONE, u64::MAX), (5, u64::MAX), (GONE, 4096), (5, 4096)] {
        let mut fixture = fixture(2);
        fixture.space.largest = largest;
        let (bp, content) = fixture.write(16 << 10, &props(2, Compression::Off));
        fixture.store.wait_and_flush().unwrap();
        for device in &fixture.faults {
            device.add(Rule::new(Fault::Error(errno)));
        }
        let error = failure(&fixture, &bp);
        assert!(error.is_gone() && error.kind() == ErrorKind::Device, "{errno} {largest}: {error}");
        assert_eq!(fixture.counted(StoreCounters::BLOCKS_LOST), 0, "it may come back");
        fixture.faults[1].clear();
        assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        fixture.faults[0].clear();
        fixture.audit();
    }
}

#[test]
fn bad_sectors_and_wrong_checksums_are_not_gone() {
    let mut fixture = fixture(2);
    let (bp, _) = fixture.write(16 << 10, &props(2, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    let bytes = bp.allocated_bytes(512);
    for dva in bp.dvas() {
        let bad = Rule::new(Fault::Error(5)).on(Op::Read).within(dva.offset..dva.offset + 512);
        fixture.faults[usize::from(dva.device)].add(bad);
    }
    let error = failure(&fixture, &bp);
    assert!(!error.is_gone() && error.kind() == ErrorKind::Device, "{error}");
    fixture.faults.iter().for_each(|device| device.clear());
    let [first, second] = bp.copies.map(|copy| copy.get().unwrap());
    fixture.rot(second, bytes);
    fixture.faults[usize::from(first.device)].add(Rule::new(Fault::Error(GONE)));
    let error = failure(&fixture, &bp);
    assert!(!error.is_gone() && error.kind() == ErrorKind::Corrupt, "{error}");
    assert_eq!(fixture.counted(StoreCounters::BLOCKS_LOST), 2);
    fixture.faults.iter().for_each(|device| device.clear());
    fixture.audit();
}

/// There is no memory to read the label: that says nothing about the device.
#[test]
fn want_of_memory_is_no_answer_of_a_device() {
    let mut fixture = fixture(1);
    let (bp, _) = fixture.write(16 << 10, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.faults[0].add(Rule::new(Fault::Error(5)));
    let error = failure(&fixture, &bp);
    let (other, mut held) = (block_cache(8 << 20), Vec::new());
    for bytes in [64 << 10, 4096, 512] {
        held.extend(std::iter::from_fn(|| other.try_alloc(bytes).ok()));
    }
    let place = Place { dva: bp.dvas().next().unwrap(), leaf: 0 };
    let devices = fixture.store.devices();
    let answer = devices.is_silent(place, &error, &other);
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::NoMemory);
    assert!(devices.has_silent_vdev(&other), "it may be");
    drop(held);
    assert!(devices.is_silent(place, &error, &other).unwrap());
    fixture.faults[0].clear();
    assert!(!devices.is_silent(place, &error, &other).unwrap());
    assert!(!devices.has_silent_vdev(&other));
    fixture.audit();
}

/// A side that was written without the block cannot have it, and has no wrong checksum.
#[test]
fn a_block_is_gone_with_the_only_side_that_has_it() {
    let mut fixture = mirror_fixture();
    fixture.store.devices().begin_txg(5);
    fixture.faults[1].add(Rule::new(Fault::Error(5)).on(Op::Write));
    let (bp, content) = fixture.write(16 << 10, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.faults[1].clear();
    assert!(fixture.store.devices().get(0).unwrap().status().missed(1).is_some());
    fixture.faults[0].add(Rule::new(Fault::Error(GONE)));
    let error = failure(&fixture, &bp);
    assert!(error.is_gone() && error.kind() == ErrorKind::Device, "{error}");
    fixture.faults[0].clear();
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    fixture.audit();
}

#[test]
fn rot_on_the_way_never_reaches_a_reader() {
    let mut fixture = fixture(2);
    let seed = 4711;
    println!("seed {seed}");
    let blocks: Vec<_> =
        (0..64).map(|_| fixture.write(16 << 10, &props(2, Compression::Lz4))).collect();
    fixture.store.wait_and_flush().unwrap();
    for device in &fixture.faults {
        device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).with_probability(0.3));
        device.add(Rule::new(Fault::Error(5)).on(Op::Read).with_probability(0.1));
    }
    let mut lost = 0;
    for _ in 0..10 {
        for (bp, content) in &blocks {
            fixture.forget(bp);
            match fixture.store.read(bp, Attributes::DATA) {
                Ok(block) => assert_eq!(block[..], content[..]),
                Err(_) => lost += 1,
            }
        }
    }
    assert_eq!(fixture.counted(StoreCounters::BLOCKS_LOST), lost);
    fixture.faults.iter().for_each(|device| device.clear());
    for (bp, content) in &blocks {
        assert_eq!(fixture.store.read_uncached(bp).unwrap()[..], content[..]);
    }
    fixture.audit();
}

#[test]
fn rot_that_is_on_the_way_only_is_read_past() {
    let mut fixture = fixture(2);
    let (bp, content) = fixture.write(16 << 10, &props(2, Compression::Lz4));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    for device in &fixture.faults {
        device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).times(1));
    }
    let found = fixture.store.read(&bp, Attributes::DATA).unwrap();
    assert_eq!(found[..], content[..]);
    drop(found);
    assert_eq!(fixture.counted(StoreCounters::VERIFY_FAILURES), 2, "both copies, once each");
    assert_eq!(fixture.counted(StoreCounters::BLOCKS_LOST), 0);
    fixture.audit();
}

#[test]
fn one_read_however_many_ask() {
    let mut fixture = fixture_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 20_000_000);
    let (bp, content) = fixture.write(64 << 10, &props(1, Compression::Lz4));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (store, content) = (fixture.store.clone(), content.clone());
            let read = move || {
                assert_eq!(store.read(&bp, Attributes::DATA).unwrap()[..], content);
            };
            thread::spawn_named("reader", read).unwrap()
        })
        .collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(fixture.counted(StoreCounters::READS), 1);
    fixture.audit();
}

#[test]
fn who_waits_for_a_load_that_fails_hears_why() {
    let mut fixture = fixture_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 20_000_000);
    let (bp, _) = fixture.write(8192, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    fixture.rot(bp.dvas().next().unwrap(), 8192);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let store = fixture.store.clone();
            let read = move || store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
            thread::spawn_named("reader", read).unwrap()
        })
        .collect();
    for reader in readers {
        let error = reader.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    fixture.audit();
}

#[test]
fn what_the_cache_refuses_is_read_all_the_same() {
    let cache = block_cache(64 << 20);
    let mut fixture = fixture_with(cache, 1, 512, OwnerCaching::Metadata, 0);
    let (bp, content) = fixture.write(8192, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    for _ in 0..3 {
        assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        assert!(fixture.store.peek(&bp).is_none());
    }
    assert_eq!(fixture.store.read(&bp, Attributes::METADATA).unwrap()[..], content);
    assert_eq!(fixture.store.peek(&bp).unwrap()[..], content);
    fixture.audit();
}

#[test]
fn pools_share_a_cache_and_not_blocks() {
    let cache = block_cache(64 << 20);
    let mut fixtures: Vec<_> = (0..3).map(|_| fixture_over(Arc::clone(&cache), 1, 512)).collect();
    let written: Vec<_> = fixtures
        .iter_mut()
        .enumerate()
        .map(|(n, fixture)| {
            fixture.rng = forebay_base::rng::SmallRng::from_seed(n as u64);
            fixture.write(4096, &props(1, Compression::Off))
        })
        .collect();
    // The same place and birth, and other content.
    assert_eq!(written[0].0.copies, written[1].0.copies);
    for (fixture, (bp, content)) in fixtures.iter().zip(&written) {
        assert_eq!(fixture.store.peek(bp).unwrap()[..], content[..]);
    }
    // Blocks are pinned until a flush.
    fixtures.iter().for_each(|fixture| fixture.store.wait_and_flush().unwrap());
    let last = fixtures.pop().unwrap();
    last.audit();
    for (fixture, (bp, content)) in fixtures.iter().zip(&written) {
        assert_eq!(fixture.store.peek(bp).unwrap()[..], content[..]);
    }
    fixtures.into_iter().for_each(super::Fixture::audit);
}

#[test]
fn a_prefetched_block_is_there() {
    let mut fixture = fixture_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 10_000_000);
    let blocks: Vec<_> =
        (0..16).map(|_| fixture.write(16 << 10, &props(1, Compression::Lz4))).collect();
    fixture.store.wait_and_flush().unwrap();
    blocks.iter().for_each(|(bp, _)| fixture.forget(bp));
    let done = Arc::new(AtomicU64::new(0));
    for (bp, _) in &blocks {
        let done = Arc::clone(&done);
        let tell = move |ok| {
            done.fetch_add(u64::from(ok), Ordering::SeqCst);
        };
        fixture.store.prefetch(bp, Attributes::DATA, Box::new(tell));
    }
    for (bp, content) in &blocks {
        assert_eq!(fixture.store.read(bp, Attributes::DATA).unwrap()[..], content[..]);
    }
    fixture.store.devices().drain();
    assert_eq!(done.load(Ordering::SeqCst), 16);
    assert_eq!(fixture.counted(StoreCounters::PREFETCHES), 16);
    assert!(fixture.counted(StoreCounters::PREFETCHES_JOINED) > 0);
    assert_eq!(fixture.store.counters().sum(StoreCounters::READS.at(0)), 0);
    fixture.store.prefetch(&blocks[0].0, Attributes::DATA, Box::new(|ok| assert!(ok)));
    assert_eq!(fixture.counted(StoreCounters::PREFETCHES_NEEDLESS), 1);
    fixture.audit();
}

#[test]
fn a_prefetch_that_fails_leaves_the_block_to_readers() {
    let mut fixture = fixture(2);
    let (bp, content) = fixture.write(16 << 10, &props(2, Compression::Lz4));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    fixture.rot(bp.dvas().next().unwrap(), bp.allocated_bytes(512));
    fixture.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(!ok)));
    fixture.store.devices().drain();
    assert_eq!(fixture.counted(StoreCounters::PREFETCHES_FAILED), 1);
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!(fixture.counted(StoreCounters::HEALED), 1);
    fixture.audit();
}

#[test]
fn a_bad_side_that_a_prefetch_has_met_is_counted_and_healed() {
    let mut fixture = mirror_fixture();
    let (bp, content) = fixture.write(16 << 10, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    let (dva, bytes) = (bp.dvas().next().unwrap(), bp.allocated_bytes(512));
    let good = fixture.raw(dva, bytes).to_vec();
    fixture.rot(dva, bytes);
    // The first read of a mirror goes to its first side, the second one to the other.
    fixture.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(!ok)));
    fixture.store.devices().drain();
    let counted = |fixture: &Fixture| fixture.store.devices().get(0).unwrap().errors(0).checksums;
    let failures = |fixture: &Fixture| fixture.counted(StoreCounters::VERIFY_FAILURES);
    assert_eq!((counted(&fixture), failures(&fixture)), (0, 0), "the block may have been freed");
    assert_eq!(fixture.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!((counted(&fixture), failures(&fixture)), (1, 1));
    assert_eq!(fixture.counted(StoreCounters::HEALED), 1);
    assert_eq!(fixture.raw(dva, bytes)[..], good[..]);
    fixture.audit();
}

#[test]
fn readers_raise_the_priority_of_what_is_read_ahead() {
    let mut fixture = fixture(1);
    let (bp, content) = fixture.write(4096, &props(1, Compression::Off));
    fixture.store.wait_and_flush().unwrap();
    fixture.forget(&bp);
    // The prefetch is delayed until the rule is removed.
    let delay = std::time::Duration::from_secs(3600);
    fixture.faults[0].add(Rule::new(Fault::Delay(delay)).on(Op::Read).at(Priority::AsyncRead));
    fixture.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(ok)));
    let store = fixture.store.clone();
    let read = move || assert_eq!(store.read(&bp, Attributes::DATA).unwrap()[..], content);
    let reader = thread::spawn_named("reader", read).unwrap();
    while fixture.counted(StoreCounters::PREFETCHES_JOINED) == 0 {
        assert!(!reader.is_finished(), "it has not waited for the prefetch");
        thread::yield_now();
    }
    fixture.faults[0].clear();
    reader.join().unwrap();
    assert_eq!(fixture.counted(StoreCounters::PREFETCHES_JOINED), 1);
    fixture.audit();
}

#[test]
fn pointers_that_cannot_be_are_errors() {
    let mut fixture = fixture(1);
    let (good, _) = fixture.write(4096, &props(1, Compression::Lz4));
    fixture.store.wait_and_flush().unwrap();
    let at = |device, offset| [DvaPhys::new(Dva { device, offset }), DvaPhys::NONE];
    let wrong = [
        BlockPtrPhys::HOLE,
        BlockPtrPhys { copies: at(1, 1 << 20), ..good },
        BlockPtrPhys { copies: at(0, 512), ..good },
        BlockPtrPhys { copies: at(0, super::DEVICE_BYTES - 512), ..good },
        BlockPtrPhys { copies: at(0, 1 << 50), ..good },
        BlockPtrPhys { logical_bytes: U32::new(u32::MAX), ..good },
        BlockPtrPhys { logical_bytes: U32::new(0), ..good },
        BlockPtrPhys { logical_bytes: U32::new(4097), ..good },
        BlockPtrPhys { physical_bytes: U32::new(u32::MAX), ..good },
        BlockPtrPhys { physical_bytes: U32::new(0), ..good },
        BlockPtrPhys { compression: 9, ..good },
        BlockPtrPhys { compression: 2, ..good },
        BlockPtrPhys { checksum_kind: 1, ..good },
        BlockPtrPhys { checksum: [0; 16], ..good },
        BlockPtrPhys { birth_txg: U64::new(1 << 48), ..good },
        BlockPtrPhys { flags: 1, ..good },
        BlockPtrPhys { flags: 2, ..good },
        BlockPtrPhys { kind: 200, ..good },
    ];
    fixture.store.cache().cache().clear();
    for bp in wrong {
        let error = fixture.store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{bp:?}: {error}");
        fixture.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(!ok)));
        fixture.store.devices().drain();
    }
    fixture.audit();
}

#[test]
fn many_are_read_at_once() {
    let mut fixture = fixture(2);
    let mut blocks: Vec<_> =
        (1..30).map(|n| fixture.write(n * 700, &props(1 + n % 2, Compression::Lz4))).collect();
    fixture.space.largest = 1024;
    blocks.push(fixture.write(9000, &props(1, Compression::Off)));
    assert!(blocks.last().unwrap().0.is_gang());
    let pointers: Vec<_> = blocks.iter().map(|(bp, _)| *bp).collect();
    let same = |found: Vec<forebay_base::arena::Buffer>| {
        found.iter().zip(&blocks).all(|(found, (_, content))| found[..] == content[..])
    };
    assert!(same(fixture.store.read_many_uncached(&pointers).unwrap()));
    fixture.store.wait_and_flush().unwrap();
    assert!(same(fixture.store.read_many_uncached(&pointers).unwrap()));
    let two = pointers.iter().find(|bp| bp.copy_count() == 2).unwrap();
    fixture.rot(two.dvas().next().unwrap(), two.allocated_bytes(512));
    assert!(same(fixture.store.read_many_uncached(&pointers).unwrap()));
    assert_eq!(fixture.counted(StoreCounters::HEALED), 1);
    fixture.rot(pointers[1].dvas().next().unwrap(), pointers[1].allocated_bytes(512));
    assert!(fixture.store.read_many_uncached(&pointers).is_err());
    assert!(fixture.store.read_many_uncached(&[]).unwrap().is_empty());
    fixture.audit();
}
