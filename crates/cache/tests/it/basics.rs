//! The basic operations.

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
    assert!(cache.remove(&7).is_some());
    assert!(cache.remove(&7).is_none());
    assert!(cache.get(&7).is_none());
    cache.audit();
}

#[test]
fn many_are_found_in_their_order_and_counted_like_one() {
    let cache = inline(1000);
    for i in 0..100 {
        cache.insert(i, i * 2).unwrap();
    }
    let mut found = Vec::new();
    // More keys than are looked up at once, some missing and some twice.
    let keys: Vec<u64> = (80..120).chain(90..110).collect();
    cache.get_many(&keys, &mut found);
    let wanted: Vec<_> = keys.iter().map(|key| (*key < 100).then_some(key * 2)).collect();
    assert_eq!(found.iter().map(|v| v.as_deref().copied()).collect::<Vec<_>>(), wanted);
    let hits = wanted.iter().flatten().count() as u64;
    let stats = cache.stats();
    assert_eq!((stats.counter("hits_mru"), stats.counter("lookups_missed")), (hits, 60 - hits));
    // The blocks are pinned while they are in `found`.
    assert!(cache.remove(&99).is_some());
    assert_eq!(found[19].as_deref(), Some(&198));
    cache.get_many(&[99, 1], &mut found);
    assert_eq!(found.iter().map(|v| v.as_deref().copied()).collect::<Vec<_>>(), [None, Some(2)]);
    cache.get_many(&[], &mut found);
    assert!(found.is_empty());
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
    assert_eq!(cache.clear(), 100);
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
            .get_or_load_weighed(i % 250, 1, Attributes::DATA, || Ok::<_, std::io::Error>(i % 250))
            .unwrap();
        assert_eq!(*v, i % 250);
    }
    cache.audit();
}
