//! Reading: damage, healing, single flight, prefetch.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, thread};
use forebay_cache::{Attributes, OwnerCaching};
use forebay_io::fault::{Fault, Rule};
use forebay_io::{Op, Priority};
use zerocopy::little_endian::{U32, U64};

use super::{block_cache, props, rig, rig_over, rig_with};
use crate::error::ErrorKind;
use crate::format::{BlockPtrPhys, Compression, Dva, DvaPhys};
use crate::store::counters::StoreCounters;

#[test]
fn rot_in_one_copy_is_healed_and_counted() {
    for compression in [Compression::Off, Compression::Lz4] {
        let mut rig = rig(2);
        let (bp, content) = rig.write(32 << 10, &props(2, compression));
        rig.store.finish_writes().unwrap();
        rig.forget(&bp);
        let first = bp.dvas().next().unwrap();
        rig.rot(first, bp.allocated_bytes(512));
        assert_eq!(rig.store.read_copy(&bp, 0).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        assert_eq!(rig.counted(StoreCounters::HEALED), 1);
        assert_eq!(rig.store.read_copy(&bp, 0).unwrap()[..], content);
        // The second copy is nobody's but a scrub's to find.
        rig.rot(bp.dvas().nth(1).unwrap(), bp.allocated_bytes(512));
        assert!(rig.store.read_copy(&bp, 1).is_err());
        rig.store.heal(&bp, 1).unwrap();
        assert_eq!(rig.store.read_copy(&bp, 1).unwrap()[..], content);
        assert_eq!(rig.counted(StoreCounters::HEALED), 2);
        rig.audit();
    }
}

#[test]
fn rot_in_both_copies_is_an_error() {
    let mut rig = rig(2);
    let (bp, content) = rig.write(32 << 10, &props(2, Compression::Off));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    bp.dvas().for_each(|dva| rig.rot(dva, bp.allocated_bytes(512)));
    let error = rig.store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for dva in bp.dvas() {
        assert!(error.to_string().contains(&dva.to_string()), "{error}");
    }
    assert_eq!(rig.store.heal(&bp, 0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(rig.counted(StoreCounters::BLOCKS_LOST), 1);
    assert_eq!(rig.counted(StoreCounters::HEALED), 0);
    // An error is not cached: what comes back is found.
    bp.dvas().for_each(|dva| rig.rot(dva, bp.allocated_bytes(512)));
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    rig.audit();
}

#[test]
fn a_device_that_fails_is_gone_around() {
    let mut rig = rig(2);
    let (bp, content) = rig.write(8192, &props(2, Compression::Off));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    let device = usize::from(bp.dvas().next().unwrap().device);
    rig.faults[device].add(Rule::new(Fault::Error(5)));
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    // It could not be written anew either, which is only counted.
    assert_eq!(rig.counted(StoreCounters::HEAL_FAILURES), 1);
    rig.forget(&bp);
    rig.faults[1 - device].add(Rule::new(Fault::Error(5)));
    let error = rig.store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    rig.faults.iter().for_each(|device| device.clear());
    rig.audit();
}

#[test]
fn rot_on_the_way_never_reaches_a_reader() {
    let mut rig = rig(2);
    let seed = 4711;
    println!("seed {seed}");
    let blocks: Vec<_> =
        (0..64).map(|_| rig.write(16 << 10, &props(2, Compression::Lz4))).collect();
    rig.store.finish_writes().unwrap();
    for device in &rig.faults {
        device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).with_probability(0.3));
        device.add(Rule::new(Fault::Error(5)).on(Op::Read).with_probability(0.1));
    }
    let mut lost = 0;
    for _ in 0..10 {
        for (bp, content) in &blocks {
            rig.forget(bp);
            match rig.store.read(bp, Attributes::DATA) {
                Ok(block) => assert_eq!(block[..], content[..]),
                Err(_) => lost += 1,
            }
        }
    }
    assert_eq!(rig.counted(StoreCounters::BLOCKS_LOST), lost);
    rig.faults.iter().for_each(|device| device.clear());
    for (bp, content) in &blocks {
        assert_eq!(rig.store.read_uncached(bp).unwrap()[..], content[..]);
    }
    rig.audit();
}

#[test]
fn rot_that_is_on_the_way_only_is_read_past() {
    let mut rig = rig(2);
    let (bp, content) = rig.write(16 << 10, &props(2, Compression::Lz4));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    for device in &rig.faults {
        device.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read).times(1));
    }
    let found = rig.store.read(&bp, Attributes::DATA).unwrap();
    assert_eq!(found[..], content[..]);
    drop(found);
    assert_eq!(rig.counted(StoreCounters::VERIFY_FAILURES), 2, "both copies, once each");
    assert_eq!(rig.counted(StoreCounters::BLOCKS_LOST), 0);
    rig.audit();
}

#[test]
fn one_read_however_many_ask() {
    let mut rig = rig_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 20_000_000);
    let (bp, content) = rig.write(64 << 10, &props(1, Compression::Lz4));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (store, content) = (rig.store.clone(), content.clone());
            let read = move || {
                assert_eq!(store.read(&bp, Attributes::DATA).unwrap()[..], content);
            };
            thread::spawn_named("reader", read).unwrap()
        })
        .collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(rig.counted(StoreCounters::READS), 1);
    rig.audit();
}

#[test]
fn who_waits_for_a_load_that_fails_hears_why() {
    let mut rig = rig_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 20_000_000);
    let (bp, _) = rig.write(8192, &props(1, Compression::Off));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    rig.rot(bp.dvas().next().unwrap(), 8192);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let store = rig.store.clone();
            let read = move || store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
            thread::spawn_named("reader", read).unwrap()
        })
        .collect();
    for reader in readers {
        let error = reader.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    rig.audit();
}

#[test]
fn what_the_cache_refuses_is_read_all_the_same() {
    let cache = block_cache(64 << 20);
    let mut rig = rig_with(cache, 1, 512, OwnerCaching::Metadata, 0);
    let (bp, content) = rig.write(8192, &props(1, Compression::Off));
    rig.store.finish_writes().unwrap();
    for _ in 0..3 {
        assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
        assert!(rig.store.peek(&bp).is_none());
    }
    assert_eq!(rig.store.read(&bp, Attributes::METADATA).unwrap()[..], content);
    assert_eq!(rig.store.peek(&bp).unwrap()[..], content);
    rig.audit();
}

#[test]
fn pools_share_a_cache_and_not_blocks() {
    let cache = block_cache(64 << 20);
    let mut rigs: Vec<_> = (0..3).map(|_| rig_over(Arc::clone(&cache), 1, 512)).collect();
    let written: Vec<_> = rigs
        .iter_mut()
        .enumerate()
        .map(|(n, rig)| {
            rig.rng = forebay_base::rng::SmallRng::from_seed(n as u64);
            rig.write(4096, &props(1, Compression::Off))
        })
        .collect();
    // The same place and birth, and other content.
    assert_eq!(written[0].0.copies, written[1].0.copies);
    for (rig, (bp, content)) in rigs.iter().zip(&written) {
        assert_eq!(rig.store.peek(bp).unwrap()[..], content[..]);
    }
    let last = rigs.pop().unwrap();
    last.audit();
    for (rig, (bp, content)) in rigs.iter().zip(&written) {
        assert_eq!(rig.store.peek(bp).unwrap()[..], content[..]);
    }
    rigs.into_iter().for_each(super::Rig::audit);
}

#[test]
fn a_prefetched_block_is_there() {
    let mut rig = rig_with(block_cache(64 << 20), 1, 512, OwnerCaching::All, 10_000_000);
    let blocks: Vec<_> =
        (0..16).map(|_| rig.write(16 << 10, &props(1, Compression::Lz4))).collect();
    rig.store.finish_writes().unwrap();
    blocks.iter().for_each(|(bp, _)| rig.forget(bp));
    let done = Arc::new(AtomicU64::new(0));
    for (bp, _) in &blocks {
        let done = Arc::clone(&done);
        let tell = move |ok| {
            done.fetch_add(u64::from(ok), Ordering::SeqCst);
        };
        rig.store.prefetch(bp, Attributes::DATA, Box::new(tell));
    }
    for (bp, content) in &blocks {
        assert_eq!(rig.store.read(bp, Attributes::DATA).unwrap()[..], content[..]);
    }
    rig.store.devices().drain();
    assert_eq!(done.load(Ordering::SeqCst), 16);
    assert_eq!(rig.counted(StoreCounters::PREFETCHES), 16);
    assert!(rig.counted(StoreCounters::PREFETCHES_JOINED) > 0);
    assert_eq!(rig.store.counters().sum(StoreCounters::READS.at(0)), 0);
    rig.store.prefetch(&blocks[0].0, Attributes::DATA, Box::new(|ok| assert!(ok)));
    assert_eq!(rig.counted(StoreCounters::PREFETCHES_NEEDLESS), 1);
    rig.audit();
}

#[test]
fn a_prefetch_that_fails_leaves_the_block_to_readers() {
    let mut rig = rig(2);
    let (bp, content) = rig.write(16 << 10, &props(2, Compression::Lz4));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    rig.rot(bp.dvas().next().unwrap(), bp.allocated_bytes(512));
    rig.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(!ok)));
    rig.store.devices().drain();
    assert_eq!(rig.counted(StoreCounters::PREFETCHES_FAILED), 1);
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!(rig.counted(StoreCounters::HEALED), 1);
    rig.audit();
}

#[test]
fn readers_hasten_what_is_read_ahead() {
    let mut rig = rig(1);
    let (bp, content) = rig.write(4096, &props(1, Compression::Off));
    rig.store.finish_writes().unwrap();
    rig.forget(&bp);
    let delay = std::time::Duration::from_millis(100);
    rig.faults[0].add(Rule::new(Fault::Delay(delay)).on(Op::Read).at(Priority::AsyncRead));
    rig.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(ok)));
    assert_eq!(rig.store.read(&bp, Attributes::DATA).unwrap()[..], content);
    assert_eq!(rig.counted(StoreCounters::PREFETCHES_JOINED), 1);
    rig.audit();
}

#[test]
fn pointers_that_cannot_be_are_errors() {
    let mut rig = rig(1);
    let (good, _) = rig.write(4096, &props(1, Compression::Lz4));
    rig.store.finish_writes().unwrap();
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
    rig.store.cache().cache().flush();
    for bp in wrong {
        let error = rig.store.read(&bp, Attributes::DATA).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{bp:?}: {error}");
        rig.store.prefetch(&bp, Attributes::DATA, Box::new(|ok| assert!(!ok)));
        rig.store.devices().drain();
    }
    rig.audit();
}

#[test]
fn many_are_read_at_once() {
    let mut rig = rig(2);
    let mut blocks: Vec<_> =
        (1..30).map(|n| rig.write(n * 700, &props(1 + n % 2, Compression::Lz4))).collect();
    rig.space.largest = 1024;
    blocks.push(rig.write(9000, &props(1, Compression::Off)));
    assert!(blocks.last().unwrap().0.is_gang());
    let pointers: Vec<_> = blocks.iter().map(|(bp, _)| *bp).collect();
    let same = |found: Vec<forebay_base::arena::Buffer>| {
        found.iter().zip(&blocks).all(|(found, (_, content))| found[..] == content[..])
    };
    assert!(same(rig.store.read_many_uncached(&pointers).unwrap()));
    rig.store.finish_writes().unwrap();
    assert!(same(rig.store.read_many_uncached(&pointers).unwrap()));
    let two = pointers.iter().find(|bp| bp.copy_count() == 2).unwrap();
    rig.rot(two.dvas().next().unwrap(), two.allocated_bytes(512));
    assert!(same(rig.store.read_many_uncached(&pointers).unwrap()));
    assert_eq!(rig.counted(StoreCounters::HEALED), 1);
    rig.rot(pointers[1].dvas().next().unwrap(), pointers[1].allocated_bytes(512));
    assert!(rig.store.read_many_uncached(&pointers).is_err());
    assert!(rig.store.read_many_uncached(&[]).unwrap().is_empty());
    rig.audit();
}
