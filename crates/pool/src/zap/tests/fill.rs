//! Fill of leaves as directories grow and shrink, and prefetch of leaves.

use forebay_base::rng::SmallRng;

use super::super::memory::MemoryStore;
use super::super::{Zap, ZapStats};
use super::{is_micro, new};
use crate::wait::Wait;

/// As long as an object number and a type.
const VALUE: [u8; 9] = [7; 9];

fn stats(zap: &Zap<MemoryStore>) -> ZapStats {
    zap.store().commit();
    let stats = zap.audit().expect("it is valid");
    assert_eq!(
        stats.stored_bytes,
        zap.store().stored_bytes() as u64,
        "the statistics match the store"
    );
    stats
}

fn check_packed(zap: &Zap<MemoryStore>, least: f64) {
    let stats = stats(zap);
    if stats.leaves > 16 {
        assert!(stats.fill() >= least, "{} entries: {stats}", stats.entries);
    }
    if stats.leaves > 16 && least > 0.5 {
        assert!(stats.bytes_per_entry() <= 60.0, "{stats}");
    }
}

fn grow_and_shrink(names: &[Vec<u8>], seed: u64) {
    let zap = new(seed);
    for (count, name) in names.iter().enumerate() {
        zap.insert(&(), name, &VALUE).expect("it is new");
        if count % 5000 == 0 {
            check_packed(&zap, 0.65);
        }
    }
    println!("{}", stats(&zap));
    let (kept, removed) = names.split_at(names.len() / 10);
    for (count, name) in removed.iter().enumerate() {
        zap.remove(&(), name).expect("it is there");
        if count % 20_000 == 0 {
            check_packed(&zap, 0.40);
        }
    }
    check_packed(&zap, 0.40);
    let few = stats(&zap);
    println!("{few}");
    // Leaves merged as far as possible: the entries of two buddies exceed five eighths of a leaf.
    assert!(few.used_bytes as f64 / few.full_bytes as f64 > 0.25, "{few}");
    for name in kept {
        zap.remove(&(), name).expect("it is there");
    }
    assert!(is_micro(&zap) && zap.is_empty());
    assert_eq!(zap.store().leaf_count(), 0);
    assert_eq!(zap.store().state.lock().inline.len(), 12, "an empty directory has only a header");
}

#[test]
fn growing_decimal_names() {
    let names: Vec<_> = (500_000..700_000u32).map(|n| n.to_string().into_bytes()).collect();
    grow_and_shrink(&names, 3);
}

#[test]
fn random_names() {
    let mut rng = SmallRng::from_seed(5);
    let names: Vec<_> = (0..60_000u32)
        .map(|number| {
            let mut name = number.to_le_bytes().to_vec();
            name.resize(4 + rng.below(60) as usize, 0);
            rng.fill(&mut name[4..]);
            name
        })
        .collect();
    grow_and_shrink(&names, 4);
}

#[test]
fn removals_from_evicted_leaves_free_all_leaves() {
    let zap = new(1);
    for number in 0..20_000u32 {
        zap.insert(&(), number.to_string().as_bytes(), &VALUE).expect("it is new");
    }
    zap.store().without_cache();
    let mut rng = SmallRng::from_seed(1);
    for number in 0..20_000u32 {
        if number % 100 == 0 {
            zap.store().commit();
            zap.store().evict(&mut rng, 1);
        }
        zap.remove(&(), number.to_string().as_bytes()).expect("it is there");
    }
    assert!(is_micro(&zap));
    assert_eq!(zap.store().leaf_count(), 0);
}

/// A directory of more than a hundred leaves that has been in use for a while, and its store.
fn in_use() -> (Zap<MemoryStore>, MemoryStore) {
    // Without filter blocks, which would be evicted instead of some leaves.
    let store = MemoryStore::with_seed(1).unaided();
    let zap = Zap::open(store, Wait::Allowed).expect("nothing fails in memory");
    for number in 0..60_000u32 {
        zap.insert(&(), number.to_string().as_bytes(), &VALUE).expect("it is new");
    }
    let store = zap.store().clone();
    store.commit();
    assert!(store.leaf_count() > 64);
    (zap, store)
}

#[test]
fn the_first_miss_of_a_directory_in_use_prefetches_all_evicted_leaves() {
    let (zap, store) = in_use();
    store.evict(&mut SmallRng::from_seed(1), 10);
    for number in 0..60_000u32 {
        zap.lookup(number.to_string().as_bytes(), Wait::Allowed).expect("it is possible");
    }
    let state = store.state.lock();
    assert!(state.read_ahead > 4, "{} were not resident", state.read_ahead);
    assert_eq!(state.fetches, 1);
}

#[test]
fn one_miss_prefetches_about_one_batch() {
    let (zap, store) = in_use();
    store.evict(&mut SmallRng::from_seed(1), 2);
    let mut number = 0u32;
    while store.state.lock().fetches == 0 {
        zap.lookup(number.to_string().as_bytes(), Wait::Allowed).expect("it is possible");
        number += 1;
    }
    let read_ahead = store.state.lock().read_ahead;
    assert!((32..128).contains(&read_ahead), "{read_ahead} were prefetched");
}

#[test]
fn leaves_of_cold_directories_are_prefetched() {
    let zap = new(1);
    for number in 0..60_000u32 {
        zap.insert(&(), number.to_string().as_bytes(), &VALUE).expect("it is new");
    }
    let store = zap.store().clone();
    store.commit();
    store.evict(&mut SmallRng::from_seed(1), 1);
    let zap = Zap::open(store.clone(), Wait::Allowed).expect("it is valid");
    for number in 0..60_000u32 {
        zap.lookup(number.to_string().as_bytes(), Wait::Allowed).expect("it is possible");
    }
    let fetches = store.state.lock().fetches;
    assert!(fetches <= 6, "{fetches} of {} leaves were fetched synchronously", store.leaf_count());
    assert!(store.leaf_count() > 64);
}
