//! The change buffer when something is missing: memory, space, or a block.

use super::super::entry::{HashedName, prefix_mask};
use super::super::memory::MemoryStore;
use super::super::{DirectoryForm, Zap};
use super::buffer::{VALUE, buffered, evict_leaves, evicted, name, sweep_ends, walked};
use crate::{Error, ErrorKind};
use crate::format::{ZAP_FILTER_LEAVES, ZAP_LEAF_BYTES, ZapBlock};
use crate::wait::Wait;

/// A directory with some buffered names, whose blocks are all evicted. Returns which names are
/// buffered.
fn with_buffered(names: u32, more: u32) -> (Zap<MemoryStore>, MemoryStore, Vec<u32>) {
    let (zap, store) = evicted(names);
    store.state.lock().prefetches_nothing = true;
    let mut waiting = Vec::new();
    for number in names..names + more {
        let before = buffered(&zap);
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        if buffered(&zap) == before + 1 {
            waiting.push(number);
        }
    }
    store.commit();
    store.evict_if(|_| true);
    (zap, store, waiting)
}

/// Makes blocks unreadable, and evicts those that no transaction has open; or makes them readable
/// again.
fn set_readable(store: &MemoryStore, of: impl Fn(ZapBlock) -> bool, readable: bool) {
    {
        let mut state = store.state.lock();
        let ids: Vec<_> = state.leaves.keys().copied().filter(|id| of(*id)).collect();
        for id in ids {
            match readable {
                true => state.unreadable.remove(&id),
                false => state.unreadable.insert(id),
            };
        }
    }
    if !readable {
        store.evict_if(of);
    }
}

fn is_page(id: ZapBlock) -> bool {
    matches!(id, ZapBlock::Page(_))
}

fn is_filter(id: ZapBlock) -> bool {
    matches!(id, ZapBlock::Filter(_))
}

fn fetched(store: &MemoryStore) -> usize {
    store.state.lock().fetched_blocks.len()
}

/// Pages and leaves in the header.
fn sizes(zap: &Zap<MemoryStore>) -> (u32, u64) {
    match &zap.write_state.state.lock().form {
        DirectoryForm::Micro(_) => (0, 0),
        DirectoryForm::Fat(fat) => (fat.header.pages.get(), fat.leaves()),
    }
}

#[test]
fn pages_shrink_with_their_leaves_and_are_listed_one_at_a_time() {
    let (zap, store) = evicted(100_000);
    store.state.lock().prefetches_nothing = true;
    for number in 100_000..112_000 {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        if number % 3000 == 0 {
            store.commit();
            evict_leaves(&store);
        }
    }
    store.commit();
    let (pages, leaves) = sizes(&zap);
    assert!(pages > 20, "{pages} pages for {leaves} leaves");
    // The youngest names stay, some of them in pages.
    for number in 0..111_700 {
        zap.remove(&(), &name(number)).expect("it is there");
    }
    store.commit();
    let (pages, leaves) = sizes(&zap);
    assert!(pages <= 2 * leaves as u32, "{pages} pages for {leaves} leaves");
    // A block stays in memory only for the operation that has fetched it.
    store.without_cache();
    store.evict_if(|_| true);
    assert_eq!(walked(&zap).len(), 300);
    assert_eq!(zap.audit().expect("it is valid").entries, 300);
    sweep_ends(&zap);
    assert_eq!(walked(&zap).len(), 300);
}

#[test]
fn a_removal_is_undone_without_reading_anything() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    let in_page = waiting[0];
    for number in [7, in_page] {
        let value = zap.remove(&(), &name(number)).expect("it is there");
        // Blocks that this transaction has open stay in memory.
        set_readable(&store, |_| true, false);
        let before = fetched(&store);
        let entries = zap.len();
        zap.restore(&(), &name(number), &value).expect("it is possible");
        assert_eq!((zap.len(), fetched(&store)), (entries + 1, before));
        set_readable(&store, |_| true, true);
        store.commit();
        store.evict_if(|_| true);
    }
    assert_eq!(zap.audit().expect("it is valid").entries, 20_500);
    assert_eq!(walked(&zap).len(), 20_500);
}

/// Names of which the leaf of `of` has at least so many bytes.
fn fill_leaf(zap: &Zap<MemoryStore>, of: &[u8], bytes: usize) {
    for number in 1_000_000..2_000_000 {
        let used = leaf_of(zap, of).0;
        if (bytes..ZAP_LEAF_BYTES - 1000).contains(&used) {
            return;
        }
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
    }
    panic!("the leaf never has so many names");
}

/// Used bytes of the leaf of a name, and the hashes that it covers.
fn leaf_of(zap: &Zap<MemoryStore>, name: &[u8]) -> (usize, u32, u32) {
    let hash = HashedName::new(zap.seed, name).hash();
    let (leaf, _) = zap
        .run_alone(None, Wait::Allowed, |state, access| match &mut state.form {
            DirectoryForm::Micro(_) => unreachable!("it is fat"),
            DirectoryForm::Fat(fat) => fat.with_leaf_of(access, hash, |leaf| {
                Ok((leaf.used_bytes(), hash & prefix_mask(leaf.depth()), leaf.depth()))
            }),
        })
        .expect("it is valid");
    (leaf.0, leaf.1, leaf.1 | !prefix_mask(leaf.2))
}

/// Other names of the leaf of a name.
fn fillers(zap: &Zap<MemoryStore>, of: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let (seed, (_, first, last)) = (zap.seed, leaf_of(zap, of));
    let all = (0..10_000_000u32).map(|number| format!("filler {number:0>60}").into_bytes());
    all.filter(move |name| (first..=last).contains(&HashedName::new(seed, name).hash()))
}

/// Restores a name without space, and checks the directory.
fn restore_in_full(zap: &Zap<MemoryStore>, store: &MemoryStore, name: &[u8]) {
    store.state.lock().is_full = true;
    zap.restore(&(), name, &VALUE).expect("it has had the space before");
    store.state.lock().is_full = false;
    store.commit();
    let stats = zap.audit().expect("it is valid");
    assert_eq!(stats.entries, zap.len());
    assert!(zap.lookup(name, Wait::Allowed).expect("it is possible").is_some());
}

/// The thread that moves names fills the leaf, which had just enough space.
#[test]
fn a_removal_is_undone_after_names_have_moved_to_its_leaf() {
    let (zap, store) = evicted(20_000);
    let long = vec![b'n'; 250];
    zap.insert(&(), &long, &VALUE).expect("it is new");
    fill_leaf(&zap, &long, ZAP_LEAF_BYTES - 3000);
    store.commit();
    let (used, ..) = leaf_of(&zap, &long);
    let mut fillers = fillers(&zap, &long);
    evict_leaves(&store);
    let mut waiting = 0;
    while used + waiting <= ZAP_LEAF_BYTES - 100 {
        let before = buffered(&zap);
        let filler = fillers.next().expect("there are many");
        zap.insert(&(), &filler, &VALUE).expect("it is new");
        assert_eq!(buffered(&zap), before + 1, "its filter can tell");
        waiting += filler.len() + VALUE.len() + 10;
    }
    store.commit();
    evict_leaves(&store);
    zap.remove(&(), &long).expect("it is there");
    sweep_ends(&zap);
    restore_in_full(&zap, &store, &long);
}

/// The name was in a page, and something else has opened its leaf, which is full.
#[test]
fn a_removal_from_a_page_is_undone_if_the_leaf_is_full() {
    let (zap, store) = evicted(20_000);
    let long = vec![b'n'; 250];
    fill_leaf(&zap, &long, ZAP_LEAF_BYTES - 1500);
    let mut fillers = fillers(&zap, &long);
    let mut filler = Vec::new();
    while leaf_of(&zap, &long).0 < ZAP_LEAF_BYTES - 250 {
        filler = fillers.next().expect("there are many");
        zap.insert(&(), &filler, &VALUE).expect("it is new");
    }
    store.commit();
    evict_leaves(&store);
    let before = buffered(&zap);
    zap.insert(&(), &long, &VALUE).expect("it is new");
    assert_eq!(buffered(&zap), before + 1);
    store.commit();
    evict_leaves(&store);
    zap.replace(&(), &filler, &VALUE).expect("it is there");
    zap.remove(&(), &long).expect("it is there");
    restore_in_full(&zap, &store, &long);
}

/// Directories that shrink, also to a micro directory.
#[test]
fn a_removal_is_undone_without_space() {
    let (zap, store) = evicted(3000);
    let long = vec![b'n'; 250];
    zap.insert(&(), &long, &VALUE).expect("it is new");
    let mut numbers: Vec<Vec<u8>> = (0..3000).map(name).collect();
    numbers.insert(2995, long);
    for (removed, name) in numbers.iter().enumerate() {
        for again in [true, false] {
            let value = zap.remove(&(), name).expect("it is there");
            if again {
                store.state.lock().is_full = true;
                let restored = zap.restore(&(), name, &value);
                store.state.lock().is_full = false;
                restored.unwrap_or_else(|error| panic!("after {removed} names: {error}"));
            }
        }
        if removed % 50 == 0 {
            store.commit();
        }
    }
    assert!(zap.is_empty() && super::is_micro(&zap));
}

/// The last buffered name keeps a small directory from losing its pages.
#[test]
fn the_removal_of_the_last_buffered_name_is_undone_without_space() {
    // All leaves have just split, so that none is nearly full.
    let (zap, store) = evicted(3700);
    store.state.lock().aided_leaves = 400;
    let mut number = 3700;
    while buffered(&zap) == 0 {
        evict_leaves(&store);
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        number += 1;
        store.commit();
    }
    let value = zap.remove(&(), &name(number - 1)).expect("it is there");
    assert_eq!(sizes(&zap).0, 0, "it has lost its pages");
    store.state.lock().is_full = true;
    zap.restore(&(), &name(number - 1), &value).expect("it is possible");
    store.state.lock().is_full = false;
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, u64::from(number));
}

#[test]
fn an_unreadable_page_hides_only_its_own_names() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    set_readable(&store, is_page, false);
    let lost = |number| {
        let error = zap.lookup(&name(number), Wait::Allowed).expect_err("nobody knows");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("buffer page"), "{error}");
    };
    for number in (0..20_000).step_by(100) {
        let found = zap.lookup(&name(number), Wait::Allowed).expect("its leaf has it");
        assert_eq!(found.as_deref(), Some(&VALUE[..]));
        evict_leaves(&store);
        zap.replace(&(), &name(number), &[8; 9]).expect("its leaf has it");
        zap.remove(&(), &name(number)).expect("its leaf has it");
        store.commit();
        evict_leaves(&store);
    }
    lost(waiting[0]);
    // It may be in the page.
    lost(50_000);
    zap.insert(&(), &name(waiting[1]), &VALUE).expect_err("nobody knows");
    zap.insert(&(), &name(50_001), &VALUE).expect_err("nobody knows");
    set_readable(&store, is_page, true);
    assert_eq!(zap.audit().expect("it is valid").entries, 20_300);
    for number in waiting {
        zap.lookup(&name(number), Wait::Allowed).expect("it is possible").expect("it exists");
    }
}

/// Moves names as the thread of a pool does, until none moves any more. Returns the first error.
fn move_all(zap: &Zap<MemoryStore>) -> Option<Error> {
    let mut first = None;
    loop {
        let mut batch = zap.start_merge(64, false);
        zap.load_merge(&mut batch, || false);
        while !batch.is_empty() {
            zap.finish_merge(&(), &mut batch).expect("it is possible");
        }
        let failed = batch.error.is_some();
        first = first.or(batch.error);
        if !batch.has_moved && !failed {
            return first;
        }
    }
}

/// Many buffered names, and one of the pages or leaves that they need.
fn with_full_pages(of: impl Fn(ZapBlock) -> bool) -> (Zap<MemoryStore>, MemoryStore, ZapBlock) {
    let (zap, store, _) = with_buffered(40_000, 4500);
    let mut ids: Vec<_> = store.state.lock().leaves.keys().copied().filter(|id| of(*id)).collect();
    ids.sort_unstable_by_key(|id| id.block());
    let id = ids[ids.len() / 2];
    (zap, store, id)
}

#[test]
fn an_unreadable_block_stops_no_moves_of_others() {
    let kinds: [fn(ZapBlock) -> bool; 2] = [is_page, |id| matches!(id, ZapBlock::Leaf(_))];
    for (of, what) in kinds.into_iter().zip(["buffer page", "leaf"]) {
        let (zap, store, bad) = with_full_pages(of);
        let (pages, before) = (sizes(&zap).0, buffered(&zap));
        assert!(pages > 4 && before > 2000, "{pages} pages, {before} names");
        set_readable(&store, |id| id == bad, false);
        let fetches = || {
            let fetched = &store.state.lock().fetched_blocks;
            fetched.iter().filter(|id| **id == bad).count()
        };
        let error = move_all(&zap).expect("a block cannot be read");
        assert!(error.to_string().contains(what), "{error}");
        // The rest of the buffer is below the level at which names move.
        let left = buffered(&zap);
        assert!(left < before / 2, "{left} of {before} names are left");
        // It is not read again before the pause is over.
        let tried = fetches();
        assert!(move_all(&zap).is_none());
        assert_eq!((buffered(&zap), fetches()), (left, tried));
        set_readable(&store, |_| true, true);
        assert!(move_all(&zap).is_none());
        assert_eq!(fetches(), tried, "{what}");
        store.state.lock().now_ns = 1 << 40;
        sweep_ends(&zap);
        assert_eq!(buffered(&zap), 0);
        store.commit();
        assert_eq!(zap.audit().expect("it is valid").entries, 44_500);
    }
}

/// Creates elsewhere do not wait for names that cannot move.
#[test]
fn names_in_unreadable_pages_slow_no_creates_down() {
    let (zap, store, _) = with_full_pages(is_page);
    set_readable(&store, is_page, false);
    move_all(&zap).expect("no page can be read");
    let before = store.state.lock().slowed;
    zap.pace(Wait::Allowed).expect("it is possible");
    assert_eq!(store.state.lock().slowed, before);
    set_readable(&store, |_| true, true);
    store.state.lock().now_ns = 1 << 40;
    assert!(move_all(&zap).is_none());
    assert!(buffered(&zap) < 2000, "they are tried again");
}

#[test]
fn a_change_reads_nothing_after_warming() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    for round in 0..60 {
        store.commit();
        store.evict_if(|_| true);
        let new = name(30_000 + round);
        // As the kernel does: look up, then create. Half of the times the leaf is in memory.
        if round % 2 == 0 {
            store.state.lock().leaves.values_mut().for_each(|leaf| leaf.load());
            store.evict_if(|id| is_page(id) || is_filter(id));
        }
        assert!(zap.lookup(&new, Wait::Allowed).expect("it is possible").is_none());
        zap.warm(&new, Wait::Allowed).expect("it is possible");
        let before = fetched(&store);
        zap.insert(&(), &new, &VALUE).expect("it is new");
        assert_eq!(fetched(&store), before, "round {round}");
        store.commit();
        store.evict_if(|_| true);
        let old = if round % 3 == 0 { name(waiting[round as usize]) } else { name(round) };
        zap.lookup(&old, Wait::Allowed).expect("it is possible").expect("it exists");
        zap.warm(&old, Wait::Allowed).expect("it is possible");
        let before = fetched(&store);
        zap.replace(&(), &old, &[9; 9]).expect("it exists");
        assert_eq!(fetched(&store), before, "round {round}");
    }
    zap.audit().expect("it is valid");
}

#[test]
fn an_unreadable_filter_block_is_replaced_with_its_next_leaf() {
    let (zap, store) = evicted(20_000);
    set_readable(&store, is_filter, false);
    for number in (0..20_000).step_by(10) {
        zap.replace(&(), &name(number), &[8; 9]).expect("it exists");
    }
    store.commit();
    store.state.lock().unreadable.clear();
    let stats = zap.audit().expect("it is valid");
    assert_eq!(stats.filters, stats.leaves, "{stats}");
}

/// Filter blocks that may be read again later stay as they are. Leaves change without them.
#[test]
fn a_filter_block_that_is_not_damaged_is_never_replaced() {
    for lacks_pointers in [false, true] {
        let (zap, store) = evicted(20_000);
        {
            let mut state = store.state.lock();
            let kind = if lacks_pointers { ErrorKind::Corrupt } else { ErrorKind::NoMemory };
            (state.unreadable_for, state.lacks_pointers) = (Some(kind), lacks_pointers);
        }
        let before = zap.audit().expect("it is valid").filters;
        set_readable(&store, is_filter, false);
        evict_leaves(&store);
        zap.replace(&(), &name(7), &[8; 9]).expect("it exists");
        zap.remove(&(), &name(8)).expect("it exists");
        for number in 20_000..20_050 {
            zap.warm(&name(number), Wait::Allowed).expect("it is possible");
            zap.insert(&(), &name(number), &VALUE).expect("it is new");
        }
        let unreadable = store.state.lock().unreadable.clone();
        let opened = store.dirty_blocks(|id| unreadable.contains(&id));
        assert_eq!(opened, 0, "{opened} filter blocks were replaced");
        store.commit();
        store.state.lock().unreadable.clear();
        let stats = zap.audit().expect("it is valid");
        assert_eq!(stats.entries, 20_049);
        assert!(stats.filters < before, "filters of changed leaves are void: {stats}");
        // A later change of such a leaf brings its filter back.
        for number in 0..20_000 {
            if number != 8 {
                zap.replace(&(), &name(number), &VALUE).expect("it exists");
            }
        }
        store.commit();
        let stats = zap.audit().expect("it is valid");
        assert_eq!(stats.filters, stats.leaves, "{stats}");
    }
}

#[test]
fn a_leaf_splits_although_both_filter_blocks_are_damaged() {
    let (zap, store) = evicted(20_000);
    set_readable(&store, is_filter, false);
    let before = sizes(&zap).1;
    for number in 20_000..50_000 {
        zap.warm(&name(number), Wait::Allowed).expect("it is possible");
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        if number % 100 == 0 {
            store.commit();
            // What was rewritten is unreadable again.
            set_readable(&store, is_filter, false);
            evict_leaves(&store);
        }
    }
    let leaves = sizes(&zap).1;
    assert!(leaves > before + 20, "{before} leaves, then {leaves}");
    store.commit();
    store.state.lock().unreadable.clear();
    assert_eq!(zap.audit().expect("it is valid").entries, 50_000);
}

#[test]
fn a_forged_depth_in_a_filter_hides_no_leaf() {
    let (zap, store) = evicted(20_000);
    {
        let mut state = store.state.lock();
        for (id, block) in &mut state.leaves {
            if let ZapBlock::Filter(_) = id {
                // The depth of each slot.
                (0..ZAP_FILTER_LEAVES).for_each(|slot| block.bytes[16 + slot * 16 + 12] = 1);
            }
        }
    }
    for number in 20_000..20_400 {
        assert!(zap.lookup(&name(number), Wait::Allowed).expect("it is possible").is_none());
    }
    for number in 0..20_000 {
        let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
        assert!(found.is_some(), "name {number}");
    }
}
