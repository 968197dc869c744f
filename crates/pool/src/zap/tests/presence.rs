//! What lookups and removals read of a directory whose blocks are not in memory.

use super::super::memory::MemoryStore;
use super::super::{Zap, ZapCounters};
use super::buffer::{VALUE, name};
use super::limits::with_buffered;
use crate::format::ZapBlock;
use crate::wait::Wait;

/// The blocks that an operation reads if nothing is in memory before.
fn reads(store: &MemoryStore, operation: impl FnOnce()) -> Vec<ZapBlock> {
    store.commit();
    store.evict_if(|_| true);
    store.state.lock().fetched_blocks.clear();
    operation();
    std::mem::take(&mut store.state.lock().fetched_blocks)
}

fn is_leaf(block: &ZapBlock) -> bool {
    matches!(block, ZapBlock::Leaf(_))
}

fn exists(zap: &Zap<MemoryStore>, number: u32) -> bool {
    zap.lookup(&name(number), Wait::Allowed).expect("it is possible").is_some()
}

fn remove(zap: &Zap<MemoryStore>, number: u32) {
    assert!(exists(zap, number));
    zap.remove(&(), &name(number)).expect("it exists");
}

#[test]
fn a_removal_reads_its_leaf_only() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    for number in 0..200 {
        let read = reads(&store, || remove(&zap, number));
        match number {
            // The directory does not know yet how it is used: filter and leaf.
            0..4 => assert!(read.len() == 2 && is_leaf(&read[1]), "{number}: {read:?}"),
            _ => assert!(read.len() == 1 && is_leaf(&read[0]), "{number}: {read:?}"),
        }
    }
    // A buffered name is in its page. The leaf is read before if its filter is void, and the first
    // time, as names were in their leaves.
    for number in waiting.into_iter().take(50) {
        let read = reads(&store, || remove(&zap, number));
        assert!(read.len() <= 2 + usize::from(read.iter().any(is_leaf)), "{number}: {read:?}");
    }
    let voided = store.counted(ZapCounters::DIRECTORY_FILTERS_VOIDED);
    assert!(voided >= 196, "{voided}");
    store.commit();
    let stats = zap.audit().expect("it is valid");
    assert!(stats.filters < stats.leaves / 2, "{stats}");
    // New names of such leaves make filters again.
    for number in 30_000..31_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        store.commit();
    }
    let stats = zap.audit().expect("it is valid");
    assert_eq!(
        (stats.filters, stats.entries),
        (stats.leaves, 20_000 + 500 - 250 + 1000),
        "{stats}"
    );
}

#[test]
fn names_that_do_not_exist_read_no_leaf_after_one_that_was_read_in_vain() {
    let (zap, store, _) = with_buffered(20_000, 500);
    for number in 0..10 {
        reads(&store, || assert!(exists(&zap, number)));
    }
    let mut leaves = 0;
    for number in 40_000..40_200 {
        let read = reads(&store, || assert!(!exists(&zap, number)));
        assert!(number > 40_000 || is_leaf(&read[0]), "it was likely to exist: {read:?}");
        leaves += read.iter().filter(|block| is_leaf(block)).count();
    }
    // A filter is wrong once in 256 times.
    assert!((1..6).contains(&leaves), "{leaves}");
    zap.audit().expect("it is valid");
}

#[test]
fn a_leaf_that_lost_names_is_read_once_by_creates() {
    let (zap, store, _) = with_buffered(20_000, 500);
    for number in 0..200 {
        reads(&store, || remove(&zap, number));
    }
    store.commit();
    let stats = zap.audit().expect("it is valid");
    let void = (stats.leaves - stats.filters) as usize;
    assert!(void > 20, "{stats}");
    let mut leaves = Vec::new();
    for number in 30_000..30_400 {
        let create = || zap.insert(&(), &name(number), &VALUE).expect("it is new");
        leaves.extend(reads(&store, create).into_iter().filter(is_leaf));
    }
    let all = leaves.len();
    leaves.sort_unstable_by_key(|block| format!("{block}"));
    leaves.dedup();
    // A filter is wrong once in 256 times.
    assert!(all <= leaves.len() + 4 && all <= void + 4, "{all}, of {}, void: {void}", leaves.len());
}

#[test]
fn names_that_wait_in_pages_read_no_leaf_after_one_that_was_read_in_vain() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    for number in 0..10 {
        reads(&store, || assert!(exists(&zap, number)));
    }
    let names = &waiting[..100];
    let read = names.iter().map(|number| reads(&store, || assert!(exists(&zap, *number))));
    let leaves: usize = read.map(|read| read.iter().filter(|block| is_leaf(block)).count()).sum();
    // A filter is wrong once in 256 times.
    assert!((1..4).contains(&leaves), "{leaves}");
}

#[test]
fn a_search_that_a_filter_answers_counts_once() {
    let (zap, store, _) = with_buffered(20_000, 500);
    for number in 40_000..40_100 {
        let counted = || store.counted(ZapCounters::DIRECTORY_FILTER_ABSENT);
        let before = counted();
        let read = reads(&store, || assert!(!exists(&zap, number)));
        let has_leaf = read.iter().any(is_leaf);
        assert!(has_leaf || read.len() == 2, "a filter and a page: {read:?}");
        assert_eq!(counted() - before, u64::from(!has_leaf));
    }
    // A new name goes to its page.
    for number in 50_000..50_100 {
        let before = store.counted(ZapCounters::DIRECTORY_FILTER_ABSENT);
        let create = || zap.insert(&(), &name(number), &VALUE).expect("it is new");
        let has_leaf = reads(&store, create).iter().any(is_leaf);
        let counted = store.counted(ZapCounters::DIRECTORY_FILTER_ABSENT) - before;
        assert_eq!(counted, u64::from(!has_leaf));
    }
}

#[test]
fn merges_of_leaves_read_no_filter() {
    let (zap, store, _) = with_buffered(20_000, 0);
    for number in 0..20_000 {
        let read = reads(&store, || remove(&zap, number));
        // The first lookups do not know yet how the directory is used.
        let is_filter = |block: &ZapBlock| matches!(block, ZapBlock::Filter(_));
        assert!(number < 4 || !read.iter().any(is_filter), "{number}: {read:?}");
    }
}

/// Those of the thread that moves names do not count.
#[test]
fn waits_of_operations_are_counted() {
    let (zap, store, _) = with_buffered(20_000, 500);
    let waits = || store.state.lock().waits;
    let before = waits();
    let read: usize = (0..50).map(|number| reads(&store, || remove(&zap, number)).len()).sum();
    assert_eq!(waits() - before, read as u64);
    let before = waits();
    let read = reads(&store, || {
        zap.merge_some().expect("it is possible");
    });
    assert!(read.iter().any(is_leaf), "{read:?}");
    assert_eq!(waits(), before);
}
