//! The change buffer and the filters of whole directories.

use std::collections::BTreeSet;

use forebay_base::rng::SmallRng;
use forebay_base::testing;

use super::super::memory::MemoryStore;
use super::super::{Cookie, DirectoryForm, DrainStep, Ordering, Zap, ZapCounters};
use super::{is_micro, new};
use crate::ErrorKind;
use crate::format::ZapBlock;
use crate::wait::Wait;

pub(super) const VALUE: [u8; 9] = [7; 9];

pub(super) fn name(number: u32) -> Vec<u8> {
    format!("{number:0>20}").into_bytes()
}

/// A directory with these names, whose leaves are not resident.
pub(super) fn evicted(names: u32) -> (Zap<MemoryStore>, MemoryStore) {
    let zap = new(3);
    for number in 0..names {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    let store = zap.store().clone();
    store.commit();
    evict_leaves(&store);
    (zap, store)
}

/// Evicts all leaves, but no filter block or buffer page.
pub(super) fn evict_leaves(store: &MemoryStore) {
    store.evict_if(|id| matches!(id, ZapBlock::Leaf(_)));
}

pub(super) fn buffered(zap: &Zap<MemoryStore>) -> u64 {
    zap.write_state.state.lock().buffered()
}

pub(super) fn sweep_ends(zap: &Zap<MemoryStore>) {
    while zap.merge_some().expect("it is possible") > 0 {}
}

/// All names, by a walk.
pub(super) fn walked(zap: &Zap<MemoryStore>) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    for entry in zap.cursor(Cookie::START, Wait::Allowed) {
        assert!(names.insert(entry.expect("it is valid").name.to_vec()), "a name appears once");
    }
    names
}

#[test]
fn names_are_created_without_their_leaves() {
    let (zap, store) = evicted(40_000);
    let fetches = || store.state.lock().fetches;
    let mut absent = 0;
    for number in 40_000..43_000 {
        // As the kernel does: look up, then create.
        let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
        absent += u32::from(found.is_none());
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        zap.merge_requested();
        let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
        assert_eq!(found.as_deref(), Some(&VALUE[..]));
        let error = zap.insert(&(), &name(number), &VALUE).expect_err("it exists");
        assert_eq!(error.kind(), ErrorKind::Exists);
        if number % 500 == 0 {
            store.commit();
            evict_leaves(&store);
        }
    }
    assert_eq!(absent, 3000);
    // Some wait for a leaf because its filter cannot tell, and take the names of the leaf along.
    let waited = fetches();
    assert!(waited <= 60, "{waited} of 6000 operations read a leaf");
    assert!(buffered(&zap) > 100);
    assert_eq!(zap.len(), 43_000);
    store.commit();
    let stats = zap.audit().expect("it is valid");
    assert_eq!((stats.entries, stats.buffered), (43_000, buffered(&zap)));
    assert_eq!(stats.filters, stats.leaves, "{stats}");
    assert_eq!(walked(&zap).len(), 43_000);
    sweep_ends(&zap);
    assert_eq!(buffered(&zap), 0);
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 43_000);
    assert_eq!(walked(&zap).len(), 43_000);
}

#[test]
fn a_reopened_directory_has_its_buffered_names() {
    let (zap, store) = evicted(20_000);
    store.state.lock().prefetches_nothing = true;
    for number in 20_000..20_500 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    let before = buffered(&zap);
    assert!(before > 250, "{before}");
    store.commit();
    store.evict(&mut SmallRng::from_seed(1), 1);
    let zap = Zap::open(store.clone(), Wait::Allowed).expect("it is valid");
    assert_eq!((zap.len(), buffered(&zap)), (20_500, before));
    for number in 20_000..20_500 {
        let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
        assert!(found.is_some());
    }
    // Replaced, renamed and removed where they are.
    for number in 20_000..20_500 {
        zap.replace(&(), &name(number), b"new").expect("it exists");
        zap.upsert(&(), &name(number), b"longer value").expect("it is possible");
        assert_eq!(&*zap.remove(&(), &name(number)).expect("it exists"), b"longer value");
        let error = zap.remove(&(), &name(number)).expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = zap.replace(&(), &name(number), b"v").expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    assert_eq!(zap.len(), 20_000);
    assert_eq!(zap.audit().expect("it is valid").buffered, 0);
}

#[test]
fn pages_split_and_names_move_while_leaves_arrive() {
    let (zap, store) = evicted(30_000);
    let mut rng = SmallRng::from_seed(testing::seed(9));
    for number in 30_000..90_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        zap.merge_requested();
        if number % 4000 == 0 {
            store.commit();
            evict_leaves(&store);
        }
        if rng.below(3000) == 0 {
            zap.audit().expect("it is valid");
            evict_leaves(&store);
        }
    }
    store.commit();
    let stats = zap.audit().expect("it is valid");
    assert!(stats.pages > 2, "{stats}");
    let merged = store.counted(ZapCounters::DIRECTORY_NAMES_MERGED);
    let leaves = store.counted(ZapCounters::DIRECTORY_LEAVES_MERGED);
    let waited = store.state.lock().fetches;
    assert!(merged > 5 * leaves, "{merged} names moved to {leaves} leaves");
    assert!(waited < 6000, "{waited} of 60,000 creates waited for a leaf");
    assert_eq!(zap.len(), 90_000);
    assert_eq!(walked(&zap).len(), 90_000);
}

#[test]
fn creates_ask_for_moves_and_slow_down_until_names_have_moved() {
    let (zap, store) = evicted(40_000);
    let (mut asked_at, mut slowed_at) = (0, 0);
    for number in 40_000..60_000 {
        zap.pace(Wait::Allowed).expect("it is possible");
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        let state = store.state.lock();
        if state.merge_requests > 0 && asked_at == 0 {
            asked_at = number;
        }
        if state.slowed > 0 && slowed_at == 0 {
            slowed_at = number;
        }
    }
    assert!(40_000 < asked_at && asked_at < slowed_at, "{asked_at}, then {slowed_at}");
    assert_eq!(store.state.lock().merge_requests, 1, "one request until it has ended");
    assert!(!zap.end_merge_request(false), "names still want to move");
    sweep_ends(&zap);
    assert!(zap.end_merge_request(false));
    let slowed = store.state.lock().slowed;
    zap.pace(Wait::Allowed).expect("it is possible");
    assert_eq!(store.state.lock().slowed, slowed);
    zap.audit().expect("it is valid");
}

#[test]
fn a_lookup_that_asks_the_buffer_has_it_drained_when_creates_pause() {
    let (zap, store) = evicted(20_000);
    for number in 20_000..20_200 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    assert!(buffered(&zap) > 100);
    assert_eq!(store.state.lock().drain_requests, 0, "nobody looks names up");
    for block in store.state.lock().leaves.values_mut() {
        block.load();
    }
    for number in 30_000..30_100 {
        // A hint leads to the leaf from the second lookup on.
        for _ in 0..2 {
            assert!(zap.lookup(&name(number), Wait::Allowed).expect("it is possible").is_none());
        }
    }
    assert_eq!(store.state.lock().drain_requests, 1, "one until it has ended");
    assert_eq!(zap.drain_step(), DrainStep::Busy);
    zap.insert(&(), &name(40_000), &VALUE).expect("it is new");
    assert_eq!(zap.drain_step(), DrainStep::Busy, "creates go on");
    assert_eq!(zap.drain_step(), DrainStep::Idle);
    sweep_ends(&zap);
    assert!(!zap.buffers.load(Ordering::Relaxed), "lookups do without the lock again");
    assert_eq!(zap.drain_step(), DrainStep::Ended);
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 20_201);
}

#[test]
fn names_are_not_buffered_while_all_leaves_are_in_memory() {
    let (zap, store) = evicted(20_000);
    for number in 20_000..20_200 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    assert!(buffered(&zap) > 100);
    let mut number = 20_200;
    while buffered(&zap) > 0 {
        assert!(number < 30_000, "{} names are still buffered", buffered(&zap));
        for block in store.state.lock().leaves.values_mut() {
            block.load();
        }
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        number += 1;
        // Otherwise a leaf that was changed once gets all further names.
        store.commit();
    }
    assert_eq!(zap.audit().expect("it is valid").entries, u64::from(number));
}

#[test]
fn leaves_that_many_names_wait_for_get_them_first() {
    let (zap, store) = evicted(60_000);
    store.state.lock().prefetches_nothing = true;
    for number in 60_000..63_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    let (before, leaves) = (buffered(&zap), zap.stats().expect("it is valid").leaves);
    store.commit();
    evict_leaves(&store);
    let counted = |counter| store.counted(counter);
    let fetches = store.state.lock().fetches;
    let (names, merged) = (
        counted(ZapCounters::DIRECTORY_NAMES_MERGED),
        counted(ZapCounters::DIRECTORY_LEAVES_MERGED),
    );
    let left = zap.merge_some().expect("it is possible");
    let names = counted(ZapCounters::DIRECTORY_NAMES_MERGED) - names;
    let merged = counted(ZapCounters::DIRECTORY_LEAVES_MERGED) - merged;
    assert_eq!(left, before - names);
    // Those of nearly full pages come before others, page by page.
    assert!((1..=80).contains(&merged), "{merged} leaves in one batch");
    assert_eq!(store.state.lock().fetches - fetches, merged, "no leaf is read in vain");
    assert!(names * leaves * 2 >= before * merged, "{names} of {before} names to {merged} leaves");
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 63_000);
}

#[test]
fn full_pages_fall_back_to_reading_leaves() {
    let (zap, store) = evicted(10_000);
    // Leaves that are prefetched never arrive.
    store.state.lock().prefetches_nothing = true;
    store.without_cache();
    for number in 10_000..16_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        if number % 100 == 0 {
            store.commit();
            evict_leaves(&store);
        }
    }
    store.commit();
    assert_eq!(zap.len(), 16_000);
    zap.audit().expect("it is valid");
    assert_eq!(walked(&zap).len(), 16_000);
}

#[test]
fn void_missing_and_unreadable_filters_count_as_positive() {
    for damage in 0..3 {
        let (zap, store) = evicted(20_000);
        {
            let mut state = store.state.lock();
            match damage {
                // As if leaves had been rewritten by something that knows no filters.
                0 => state.leaves.values_mut().for_each(|leaf| leaf.txg += 1),
                1 => state.leaves.retain(|id, _| !matches!(id, ZapBlock::Filter(_))),
                _ => {
                    let ids: Vec<_> = state.leaves.keys().copied().collect();
                    let filters = ids.into_iter().filter(|id| matches!(id, ZapBlock::Filter(_)));
                    let filters: Vec<_> = filters.collect();
                    for id in &filters {
                        state.leaves.get_mut(id).expect("it is there").evict();
                    }
                    state.unreadable.extend(filters);
                }
            }
        }
        for number in (0..25_000).step_by(50) {
            let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
            assert_eq!(found.is_some(), number < 20_000);
            if number >= 20_000 {
                zap.insert(&(), &name(number), &VALUE).expect("it is new");
            }
        }
        assert_eq!(buffered(&zap), 0, "nothing is buffered without a filter");
        assert_eq!(zap.audit().expect("it is valid").entries, 20_100);
    }
}

#[test]
fn a_filter_that_lacks_a_name_is_reported() {
    let (zap, store) = evicted(20_000);
    {
        let mut state = store.state.lock();
        let txg = state.leaves[&ZapBlock::Leaf(0)].txg;
        let filter = state.leaves.get_mut(&ZapBlock::Filter(0)).expect("it is there");
        // The filter of an empty leaf, for this version.
        filter.bytes[16..24].copy_from_slice(&txg.to_le_bytes());
        filter.bytes[26..28].fill(0);
    }
    let error = zap.audit().expect_err("a name is missing");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("leaf 0: its filter lacks one of its names"), "{error}");
}

#[test]
fn cookies_survive_the_moves_of_names() {
    let (zap, store) = evicted(40_000);
    store.state.lock().prefetches_nothing = true;
    for number in 40_000..41_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    assert!(buffered(&zap) > 500);
    let mut seen = BTreeSet::new();
    let mut from = Cookie::START;
    while !from.is_end() {
        let (entries, next) = zap.batch(from, 37, Wait::Allowed).expect("it is possible");
        assert!(next > from);
        from = Cookie::from_raw(next.raw());
        for entry in entries {
            assert!(seen.insert(entry.name.to_vec()), "a name appears once");
        }
        if buffered(&zap) > 0 {
            zap.merge_some().expect("it is possible");
        }
        store.commit();
    }
    assert_eq!(seen.len(), 41_000);
    assert_eq!(buffered(&zap), 0);
}

#[test]
fn an_emptied_directory_keeps_no_filters_and_pages() {
    let (zap, store) = evicted(40_000);
    store.state.lock().prefetches_nothing = true;
    for number in 40_000..41_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    assert!(buffered(&zap) > 500);
    for number in 0..41_000 {
        zap.remove(&(), &name(number)).expect("it is there");
        if number % 1000 == 0 {
            store.commit();
            evict_leaves(&store);
        }
    }
    assert!(zap.is_empty() && is_micro(&zap));
    assert_eq!(store.leaf_count(), 0);
}

#[test]
fn nothing_is_buffered_in_a_small_directory_or_if_it_is_turned_off() {
    for (names, off) in [(60, false), (20_000, true)] {
        let (zap, store) = evicted(names);
        store.state.lock().buffers_nothing = off;
        for number in names..names + 50 {
            zap.insert(&(), &name(number), &VALUE).expect("it is new");
            evict_leaves(&store);
        }
        store.commit();
        assert_eq!(store.counted(ZapCounters::DIRECTORY_NAMES_BUFFERED), 0);
        let state = zap.write_state.state.lock();
        if let DirectoryForm::Fat(fat) = &state.form {
            assert_eq!((fat.is_aided(), fat.header.pages.get()), (off, 0));
        }
    }
}
