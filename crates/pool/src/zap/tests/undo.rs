//! Removals that are undone in their transaction.

use super::super::entry::{HashedName, prefix_mask};
use super::super::memory::MemoryStore;
use super::super::{DirectoryForm, Zap};
use super::buffer::{VALUE, buffered, evict_leaves, evicted, name, sweep_ends, walked};
use super::limits::{fetched, set_readable, sizes, with_buffered};
use crate::format::ZAP_LEAF_BYTES;
use crate::wait::Wait;

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
    zap.store().state.lock().leaves.values_mut().for_each(|leaf| leaf.load());
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
    while used + waiting <= ZAP_LEAF_BYTES {
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

/// The page of the name is open, but only in the group before, which is being synced: to change it
/// takes space.
#[test]
fn a_removal_from_a_leaf_is_undone_while_its_page_is_synced() {
    let (zap, store) = evicted(20_000);
    for number in 20_000.. {
        zap.insert(&(), &name(number), &VALUE).expect("it is new");
        if buffered(&zap) > 0 {
            break;
        }
    }
    assert_eq!(sizes(&zap).0, 1, "all names have one page");
    store.open_next_txg();
    zap.remove(&(), &name(7)).expect("it is there");
    restore_in_full(&zap, &store, &name(7));
}
