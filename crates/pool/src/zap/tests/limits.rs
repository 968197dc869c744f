//! The change buffer when something is missing: memory, space, or a block.

use super::super::memory::MemoryStore;
use super::super::{DirectoryForm, Zap, ZapCounters};
use super::buffer::{VALUE, buffered, evict_leaves, evicted, name, sweep_ends, walked};
use crate::ErrorKind;
use crate::format::{ZAP_FILTER_LEAVES, ZapBlock};
use crate::wait::Wait;

/// A directory with some buffered names, whose blocks are all evicted. Returns which names are
/// buffered.
pub(super) fn with_buffered(names: u32, more: u32) -> (Zap<MemoryStore>, MemoryStore, Vec<u32>) {
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
pub(super) fn set_readable(store: &MemoryStore, of: impl Fn(ZapBlock) -> bool, readable: bool) {
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

pub(super) fn is_page(id: ZapBlock) -> bool {
    matches!(id, ZapBlock::Page(_))
}

fn is_filter(id: ZapBlock) -> bool {
    matches!(id, ZapBlock::Filter(_))
}

pub(super) fn fetched(store: &MemoryStore) -> usize {
    store.state.lock().fetched_blocks.len()
}

/// Pages and leaves in the header.
pub(super) fn sizes(zap: &Zap<MemoryStore>) -> (u32, u64) {
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

/// A directory for whose filters and pages there is too little memory works as one without.
#[test]
fn a_directory_without_a_share_of_memory_uses_no_filters_and_pages() {
    let (zap, store) = evicted(20_000);
    let memory = store.state.lock().aid_memory.clone();
    assert!(memory.bytes() > 15_000, "ten bits a name: {}", memory.bytes());
    drop(zap);
    assert_eq!(memory.bytes(), 0);
    store.state.lock().aid_bytes_max = Some(20_000);
    let zap = Zap::open(store.clone(), Wait::Allowed).expect("it is valid");
    store.evict_if(|_| true);
    store.state.lock().fetched_blocks.clear();
    let create = |number: u32| {
        let name = name(number);
        assert!(zap.lookup(&name, Wait::Allowed).expect("it is possible").is_none());
        zap.warm(&name, Wait::Allowed).expect("it is possible");
        zap.insert(&(), &name, &VALUE).expect("it is new");
    };
    (20_000..20_100).for_each(create);
    zap.remove(&(), &name(7)).expect("it exists");
    assert_eq!(buffered(&zap), 0);
    let leaves_only = |id: &ZapBlock| matches!(id, ZapBlock::Leaf(_));
    assert!(store.state.lock().fetched_blocks.iter().all(leaves_only));
    store.commit();
    let stats = zap.audit().expect("it is valid");
    assert!(stats.filters < stats.leaves, "those of changed leaves are void: {stats}");
    // Others are closed.
    store.state.lock().aid_bytes_max = None;
    evict_leaves(&store);
    (20_100..21_000).for_each(create);
    // Leaves without a filter have got one.
    store.commit();
    evict_leaves(&store);
    (21_000..22_000).for_each(create);
    assert!(store.counted(ZapCounters::DIRECTORY_NAMES_BUFFERED) > 500);
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 21_999);
}

/// What was buffered before stays a part of the directory, and moves.
#[test]
fn buffered_names_need_no_share_of_memory() {
    let (zap, store, waiting) = with_buffered(20_000, 500);
    drop(zap);
    store.state.lock().aid_bytes_max = Some(0);
    let zap = Zap::open(store.clone(), Wait::Allowed).expect("it is valid");
    for number in &waiting[..50] {
        assert!(zap.lookup(&name(*number), Wait::Allowed).expect("it is possible").is_some());
        zap.insert(&(), &name(*number), &VALUE).expect_err("it exists");
        zap.remove(&(), &name(*number)).expect("it exists");
        zap.insert(&(), &name(*number), &VALUE).expect("it is new");
    }
    store.state.lock().prefetches_nothing = false;
    sweep_ends(&zap);
    assert_eq!(buffered(&zap), 0);
    store.commit();
    assert_eq!(zap.audit().expect("it is valid").entries, 20_500);
}

/// A removal must succeed in a full pool.
#[test]
fn a_transaction_that_is_short_of_space_opens_no_filter() {
    let (zap, store) = evicted(20_000);
    store.state.lock().is_short_of_space = true;
    for number in 0..100 {
        zap.remove(&(), &name(number)).expect("it exists");
    }
    assert_eq!(store.dirty_blocks(is_filter), 0);
    store.commit();
    evict_leaves(&store);
    for number in 0..200 {
        let found = zap.lookup(&name(number), Wait::Allowed).expect("it is possible");
        assert_eq!(found.is_some(), number >= 100);
    }
    let stats = zap.audit().expect("it is valid");
    assert!(stats.filters < stats.leaves && stats.entries == 19_900, "{stats}");
}
