//! What a user sees first.

use forebay_cache::{Attributes, Cache, Reclaim};

pub(crate) fn inline(capacity: u64) -> Cache<u64, u64> {
    Cache::builder()
        .capacity(capacity)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .tunable("sublists", "1")
        .build()
        .unwrap()
}

#[test]
fn what_is_inserted_is_found_until_it_is_removed() {
    let cache = inline(1000);
    for i in 0..1000 {
        cache.insert(i, i * 2).unwrap();
    }
    for i in 0..1000 {
        assert_eq!(cache.get(&i).map(|v| *v), Some(i * 2));
    }
    assert!(cache.remove(&7));
    assert!(!cache.remove(&7));
    assert!(cache.get(&7).is_none());
    cache.audit();
}

#[test]
fn the_capacity_is_kept_exactly_when_the_inserter_evicts() {
    let cache = inline(100);
    for i in 0..10_000 {
        cache.insert(i % 250, i).unwrap();
        assert!(cache.stats().resident_blocks() <= 100);
    }
    assert_eq!(cache.stats().resident_blocks(), 100);
    cache.audit();
    assert_eq!(cache.flush(), 100);
    cache.audit();
    assert_eq!(cache.stats().resident_blocks(), 0);
}

#[test]
fn a_thread_reclaims() {
    let cache = Cache::<u64, u64>::builder().capacity(10_000).weigher(|_, _| 1).build().unwrap();
    for i in 0..1_000_000 {
        cache.insert(i, i).unwrap();
    }
    println!("{}", cache.stats());
    cache.close();
    cache.audit();
}

#[test]
fn loads_are_single_flight() {
    let cache = inline(100);
    for i in 0..10_000u64 {
        let v = cache
            .get_or_load(i % 250, 1, Attributes::DATA, || Ok::<_, std::io::Error>(i % 250))
            .unwrap();
        assert_eq!(*v, i % 250);
    }
    cache.audit();
}
