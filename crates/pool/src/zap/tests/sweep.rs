//! Which leaves get their names next.

use std::cell::Cell;
use std::collections::HashSet;

use super::super::DirectoryForm;
use super::super::ZapCounters;
use super::super::memory::MemoryStore;
use super::buffer::{VALUE, buffered, evict_leaves, evicted, name};
use super::new;
use crate::format::ZapBlock;

/// Leaves and filter blocks that were read to move names.
fn read(store: &MemoryStore) -> [usize; 2] {
    let read = &store.state.lock().prefetched;
    let count = |f: fn(&ZapBlock) -> bool| read.iter().filter(|id| f(id)).count();
    [count(|id| matches!(id, ZapBlock::Leaf(_))), count(|id| matches!(id, ZapBlock::Filter(_)))]
}

/// In steady state, most of the space of pages is in use, and a leaf that is read gets as many
/// names as its share of a page has space for. Filter blocks are read for many leaves at a time.
#[test]
fn a_leaf_gets_many_names_at_a_time() {
    let (zap, store) = evicted(120_000);
    let create = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            zap.insert(&(), &name(number), &VALUE).expect("it is new");
            if store.state.lock().merge_requests > 0 {
                zap.merge_requested();
                store.commit();
                evict_leaves(&store);
            }
        }
    };
    create(120_000..135_000);
    store.state.lock().prefetched.clear();
    let counted = |counter| store.counted(counter);
    let counters = [ZapCounters::DIRECTORY_NAMES_MERGED, ZapCounters::DIRECTORY_LEAVES_MERGED];
    let (before, fetches) = (counters.map(counted), store.state.lock().fetches);
    create(135_000..160_000);
    let after = counters.map(counted);
    let [names, leaves] = [after[0] - before[0], after[1] - before[1]];
    let [leaves_read, filters_read] = read(&store);
    let waited = store.state.lock().fetches - fetches;
    println!(
        "{names} names to {leaves} leaves, {leaves_read} leaves and {filters_read} filter blocks \
         read, {waited} waited for"
    );
    assert!(names > 9 * leaves, "{names} names were moved to {leaves} leaves");
    assert!(4 * filters_read < leaves_read, "{filters_read} filter blocks, {leaves_read} leaves");
    assert!(waited < 500, "{waited} of 25,000 creates waited for a leaf");
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 160_000);
}

/// A batch for a page that is full does not read leaves that get a handful of names each.
#[test]
fn a_nearly_empty_buffer_is_left_alone() {
    let (zap, store) = evicted(120_000);
    for number in 120_000..120_200 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    store.commit();
    evict_leaves(&store);
    store.state.lock().prefetched.clear();
    let before = buffered(&zap);
    assert!(before > 0 && store.state.lock().merge_requests == 0, "{before} names");
    let batch = zap.merge_batch(false).expect("it is possible");
    assert!(!batch.has_moved);
    assert_eq!((buffered(&zap), read(&store)), (before, [0, 0]));
}

/// When a directory has just become deeper, most blocks in the upper half of its blocks are no
/// leaves. The sweep passes them in one step.
#[test]
fn blocks_without_a_leaf_are_passed_at_once() {
    const DEPTH: u8 = 10;
    let zap = new(3);
    let depth = || match &zap.write_state.state.lock().form {
        DirectoryForm::Fat(fat) => fat.header.depth,
        DirectoryForm::Micro(_) => 0,
    };
    let mut names = 0;
    while depth() < DEPTH {
        zap.insert(&(), &name(names), &VALUE).expect("it is new");
        names += 1;
    }
    let store = zap.store().clone();
    store.commit();
    evict_leaves(&store);
    while store.state.lock().merge_requests == 0 {
        zap.insert(&(), &name(names), &VALUE).expect("it is new");
        names += 1;
    }
    match &mut zap.write_state.state.lock().form {
        DirectoryForm::Fat(fat) => fat.sweep.next = 1 << (DEPTH - 1),
        DirectoryForm::Micro(_) => unreachable!("it is large"),
    }
    let batch = zap.start_merge(64, false);
    assert!(batch.leaves() >= 8, "{} leaves", batch.leaves());
}

/// A leaf that only got names that waited is noted as such, until something else changes it.
#[test]
fn leaves_that_only_got_waiting_names_are_noted() {
    let (zap, store) = evicted(40_000);
    let mut names = 40_000;
    while store.state.lock().merge_requests == 0 {
        zap.insert(&(), &name(names), &VALUE).expect("it is new");
        names += 1;
    }
    store.commit();
    evict_leaves(&store);
    let is_leaf = |id| matches!(id, ZapBlock::Leaf(_));
    // Reads its leaf. Some names may wait for it.
    zap.remove(&(), &name(7)).expect("it exists");
    assert_eq!((store.dirty_blocks(is_leaf), store.state.lock().moved.len()), (1, 0));
    zap.merge_some().expect("it is possible");
    let (changed, moved) = (store.dirty_blocks(is_leaf), store.state.lock().moved.len());
    assert!(moved > 8 && moved < changed, "{moved} of {changed}");
    // These are in leaves of the batch, and some of them are the only change of theirs.
    for number in (0..40_000).step_by(10).skip(1) {
        zap.remove(&(), &name(number)).expect("it exists");
    }
    let left = store.state.lock().moved.len();
    assert_eq!(left, 0, "of {moved} leaves");
}

/// Reads that somebody waits for queue behind those of a batch, so few of these are in flight.
#[test]
fn a_batch_reads_few_blocks_at_a_time() {
    let (zap, store) = evicted(40_000);
    let mut names = 40_000;
    while store.state.lock().merge_requests == 0 {
        zap.insert(&(), &name(names), &VALUE).expect("it is new");
        names += 1;
    }
    evict_leaves(&store);
    store.state.lock().prefetched.clear();
    let mut batch = zap.start_merge(64, true);
    let begun = store.state.lock().prefetched.len();
    assert!((16..=20).contains(&begun), "{begun} blocks");
    let (leaves, done) = (batch.leaves(), Cell::new(0));
    zap.load_merge(&mut batch, || {
        let begun = store.state.lock().prefetched.len();
        assert!(begun <= 2 * (done.get() + 16), "{begun} blocks when {} are loaded", done.get());
        done.set(done.get() + 1);
        false
    });
    assert_eq!((done.get(), batch.leaves()), (leaves, leaves));
    assert!(leaves > 40, "{leaves} leaves");
    assert_eq!(read(&store)[0], leaves);
}

/// Somebody waits for it, and the device reads in the order of the requests.
#[test]
fn the_block_that_is_missing_is_prefetched_first() {
    let (zap, _) = evicted(40_000);
    let DirectoryForm::Fat(fat) = &mut zap.write_state.state.lock().form else {
        unreachable!("it is large")
    };
    let ahead = fat.aside_ahead(1, u64::MAX / 2);
    assert_eq!(ahead.first(), Some(&ZapBlock::Filter(1)));
    let distinct: HashSet<_> = ahead.iter().map(|id| format!("{id:?}")).collect();
    assert_eq!(distinct.len(), ahead.len());
    assert!(ahead.contains(&ZapBlock::Filter(0)), "{ahead:?}");
}

/// If reads would queue in the device, a batch begins none before the thread waits for it, and few
/// then.
#[test]
fn a_batch_begins_few_reads_if_they_would_queue() {
    let (zap, store) = evicted(40_000);
    let mut names = 40_000;
    while store.state.lock().merge_requests == 0 {
        zap.insert(&(), &name(names), &VALUE).expect("it is new");
        names += 1;
    }
    store.commit();
    store.evict_if(|id| !matches!(id, ZapBlock::Page(_)));
    {
        let mut state = store.state.lock();
        state.prefetches_at_once = Some(0);
        state.prefetched.clear();
        state.fetched_blocks.clear();
    }
    let mut batch = zap.start_merge(64, true);
    assert_eq!(read(&store), [0, 0]);
    let (leaves, done) = (batch.leaves(), Cell::new(0));
    zap.load_merge(&mut batch, || {
        let [begun, _] = read(&store);
        assert!(begun <= done.get() + 6, "{begun} leaves when {} are loaded", done.get());
        done.set(done.get() + 1);
        false
    });
    assert_eq!((batch.leaves(), read(&store)[0]), (leaves, leaves));
    assert!(leaves > 40, "{leaves} leaves");
    // Blocks of leaves that split are not read ahead.
    let waited = &store.state.lock().fetched_blocks;
    assert!(!waited.iter().any(|id| matches!(id, ZapBlock::Leaf(_))), "{waited:?}");
}
