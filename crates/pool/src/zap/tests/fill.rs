//! Leaves stay packed, and come back.

use forebay_base::rng::SmallRng;

use super::super::memory::MemoryStore;
use super::super::{Zap, ZapStats};
use super::{is_micro, new};

/// An object number and a type.
const VALUE: [u8; 9] = [7; 9];

fn stats(zap: &Zap<MemoryStore>) -> ZapStats {
    zap.store().commit();
    let stats = zap.audit().expect("it is valid");
    assert_eq!(stats.stored_bytes, zap.store().stored_bytes() as u64, "the statistics are true");
    stats
}

fn check_packed(zap: &Zap<MemoryStore>, least: f64) {
    let stats = stats(zap);
    if stats.leaves > 16 {
        assert!(stats.fill() >= least, "{} entries: {stats}", stats.entries);
    }
    if stats.leaves > 16 && least > 0.5 {
        assert!(stats.bytes_an_entry() <= 60.0, "{stats}");
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
    // Leaves that merged as far as they could: two buddies do not fit one leaf's five eighths.
    assert!(few.used_bytes as f64 / few.full_bytes as f64 > 0.25, "{few}");
    for name in kept {
        zap.remove(&(), name).expect("it is there");
    }
    assert!(is_micro(&zap) && zap.is_empty());
    assert_eq!(zap.store().leaf_count(), 0);
    assert_eq!(zap.store().state.lock().inline.len(), 12, "an empty directory is its dnode");
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
fn removing_what_is_not_in_memory_gives_all_back() {
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

/// A directory of more than a hundred leaves, and its store, after it was used for a while.
fn in_use() -> (Zap<MemoryStore>, MemoryStore) {
    let zap = new(1);
    for number in 0..60_000u32 {
        zap.insert(&(), number.to_string().as_bytes(), &VALUE).expect("it is new");
    }
    let store = zap.store().clone();
    store.commit();
    assert!(store.leaf_count() > 64);
    (zap, store)
}

#[test]
fn in_a_directory_in_use_the_first_miss_brings_all_that_left() {
    let (zap, store) = in_use();
    store.evict(&mut SmallRng::from_seed(1), 10);
    for number in 0..60_000u32 {
        zap.lookup(number.to_string().as_bytes()).expect("it is possible");
    }
    let state = store.state.lock();
    assert!(state.read_ahead > 4, "{} were not resident", state.read_ahead);
    assert_eq!(state.fetches, 1);
}

#[test]
fn one_miss_brings_no_more_than_a_batch_and_what_is_asked_for_with_its_last_part() {
    let (zap, store) = in_use();
    store.evict(&mut SmallRng::from_seed(1), 2);
    let mut number = 0u32;
    while store.state.lock().fetches == 0 {
        zap.lookup(number.to_string().as_bytes()).expect("it is possible");
        number += 1;
    }
    let read_ahead = store.state.lock().read_ahead;
    assert!((32..128).contains(&read_ahead), "{read_ahead} were read ahead");
}

#[test]
fn cold_directories_are_read_ahead() {
    let zap = new(1);
    for number in 0..60_000u32 {
        zap.insert(&(), number.to_string().as_bytes(), &VALUE).expect("it is new");
    }
    let store = zap.store().clone();
    store.commit();
    store.evict(&mut SmallRng::from_seed(1), 1);
    let zap = Zap::open(store.clone()).expect("it is valid");
    for number in 0..60_000u32 {
        zap.lookup(number.to_string().as_bytes()).expect("it is possible");
    }
    let fetches = store.state.lock().fetches;
    assert!(fetches <= 6, "{fetches} of {} leaves were waited for", store.leaf_count());
    assert!(store.leaf_count() > 64);
}
