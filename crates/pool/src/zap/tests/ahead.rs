//! What directories with a change buffer read ahead.

use super::super::Zap;
use super::super::memory::MemoryStore;
use super::buffer::{VALUE, buffered, evicted, name};
use super::limits::sizes;
use crate::format::{ZAP_FILTER_LEAVES, ZAP_LEAF_BYTES, ZapBlock};
use crate::wait::Wait;

const NAMES: u32 = 60_000;

fn is_leaf(id: &ZapBlock) -> bool {
    matches!(id, ZapBlock::Leaf(_))
}

/// A directory that was just opened, of which nothing is in memory.
fn cold() -> (Zap<MemoryStore>, MemoryStore) {
    let (zap, store) = evicted(NAMES);
    drop(zap);
    store.evict_if(|_| true);
    let zap = Zap::open(store.clone(), Wait::Allowed).expect("it is valid");
    {
        let mut state = store.state.lock();
        (state.fetches, state.read_ahead) = (0, 0);
        state.fetched_blocks.clear();
        state.prefetched.clear();
    }
    (zap, store)
}

/// The share of memory of the only directory, which takes it with its first name.
fn shared_bytes(zap: &Zap<MemoryStore>) -> u64 {
    create(zap, 10 * NAMES..10 * NAMES + 1);
    let bytes = zap.store().state.lock().aid_memory.bytes();
    assert!(bytes > 0);
    bytes
}

/// The cache has memory for so many leaves, and so many bytes more.
fn set_memory(store: &MemoryStore, leaves: u64, more: u64) {
    store.state.lock().cache_bytes = leaves * ZAP_LEAF_BYTES as u64 + more;
}

/// Creates names as the file system does.
fn create(zap: &Zap<MemoryStore>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let name = name(number);
        assert!(zap.lookup(&name, Wait::Allowed).expect("it is possible").is_none());
        zap.warm(&name, Wait::Allowed).expect("it is possible");
        zap.insert(&(), &name, &VALUE).expect("it is new");
    }
}

#[test]
fn leaves_are_read_ahead_into_free_memory() {
    let (zap, store) = cold();
    let leaves = sizes(&zap).1;
    assert!(leaves > 64, "{leaves}");
    // A filter that cannot tell may have a leaf read before the pass.
    set_memory(&store, leaves + 4, 2 * shared_bytes(&zap));
    create(&zap, NAMES..NAMES + 100);
    let state = store.state.lock();
    let away = state.leaves.iter().filter(|(id, leaf)| is_leaf(id) && leaf.is_away()).count();
    assert_eq!(away, 0, "of {leaves} leaves");
    assert!(state.fetches <= 4, "{} leaves were waited for", state.fetches);
}

/// Filters and pages need memory, too, and are used by each create.
#[test]
fn leaves_that_find_no_free_memory_are_not_read_ahead() {
    let (zap, store) = cold();
    // What was read in vain before has memory of its own.
    set_memory(&store, sizes(&zap).1, shared_bytes(&zap) / 2);
    create(&zap, NAMES..NAMES + 600);
    assert!(buffered(&zap) > 300);
    let state = store.state.lock();
    assert!(!state.prefetched.iter().any(is_leaf));
    assert!(state.fetches <= 12, "{} leaves were waited for", state.fetches);
}

/// A create reads its leaf if its page is full. That says nothing about filters.
#[test]
fn full_pages_start_no_pass() {
    let (zap, store) = cold();
    for number in NAMES..NAMES + 20_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    assert!(buffered(&zap) > 1000);
    let state = store.state.lock();
    assert!(state.fetches > 50, "pages were full: {}", state.fetches);
    assert!(!state.prefetched.iter().any(is_leaf));
}

/// Leaves that a change needs are read before its transaction, but many at a time all the same.
#[test]
fn leaves_without_filters_are_read_ahead() {
    let (zap, store) = cold();
    for (id, block) in &mut store.state.lock().leaves {
        if let ZapBlock::Filter(_) = id {
            // The txg of each slot's leaf.
            (0..ZAP_FILTER_LEAVES).for_each(|slot| block.bytes[16 + slot * 16..][..8].fill(0));
        }
    }
    for number in NAMES..NAMES + 1000 {
        zap.warm(&name(number), Wait::Allowed).expect("it is possible");
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    let (waited, leaves) = (store.state.lock().fetches, sizes(&zap).1);
    assert!(waited <= 6, "{waited} of {leaves} leaves were waited for");
}

/// Filters and pages that were evicted return together, not one after another.
#[test]
fn evicted_filters_and_pages_are_read_ahead_again() {
    let (zap, store) = cold();
    let is_aside = |id: &ZapBlock| !is_leaf(id);
    for round in 0..4 {
        let first = NAMES + 1000 * round;
        create(&zap, first..first + 1000);
        store.commit();
        let pages = sizes(&zap).0;
        let blocks = store.state.lock().leaves.keys().filter(|id| is_aside(id)).count();
        assert!(round == 0 || pages > 4 && blocks > 12, "{pages} pages, {blocks} blocks");
        let waited = store.state.lock().fetched_blocks.iter().filter(|id| is_aside(id)).count();
        assert!(waited <= 2, "round {round}: {waited} of {blocks} blocks were waited for");
        store.state.lock().fetched_blocks.clear();
        store.evict_if(|id| is_aside(&id));
    }
}

/// If reads would queue in the device, they come in parts: one for each miss.
#[test]
fn filters_and_pages_come_in_parts_if_reads_would_queue() {
    const AT_ONCE: usize = 3;
    let (zap, store) = cold();
    store.state.lock().prefetches_at_once = Some(AT_ONCE);
    create(&zap, NAMES..NAMES + 200);
    let state = store.state.lock();
    let is_filter = |id: &ZapBlock| matches!(id, ZapBlock::Filter(_));
    let filters = state.leaves.keys().filter(|id| is_filter(id)).count();
    let waited = state.fetched_blocks.iter().filter(|id| is_filter(id)).count();
    assert!(filters > 4 * AT_ONCE, "{filters}");
    assert!((2..=filters * 2 / 3).contains(&waited), "{waited} of {filters}");
}

/// Leaves that are read ahead may fill the device. Filters do not wait for their end, one by one.
#[test]
fn filters_come_together_though_the_device_is_busy() {
    let (zap, store) = cold();
    store.state.lock().prefetches_at_once = Some(0);
    create(&zap, NAMES..NAMES + 200);
    let state = store.state.lock();
    let is_filter = |id: &ZapBlock| matches!(id, ZapBlock::Filter(_));
    let filters = state.leaves.keys().filter(|id| is_filter(id)).count();
    let waited = state.fetched_blocks.iter().filter(|id| is_filter(id)).count();
    assert!(filters > 12 && waited <= filters / 4, "{waited} of {filters}");
}
