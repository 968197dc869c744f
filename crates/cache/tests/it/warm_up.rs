//! Warm-up: which blocks it inserts into free capacity, and which not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::{
    Attributes, Begin, Cache, Class, OwnerCaching, OwnerId, Reclaim, WarmUpRefusal,
};

use crate::support::OwnedKey;

const WEIGHT: u64 = 1000;
const CAPACITY: u64 = 160 * WEIGHT;

fn key(number: u64) -> OwnedKey {
    OwnedKey(OwnerId::NONE, number)
}

fn cache() -> Cache<OwnedKey, u64> {
    Cache::builder()
        .capacity(CAPACITY)
        .weigher(|_, _: &u64| WEIGHT)
        .reclaim(Reclaim::Inline)
        .seed(5)
        .build()
        .unwrap()
}

#[test]
fn it_is_filled_up_to_the_mark_without_a_use_or_an_eviction() {
    let cache = cache();
    let warm_up = cache.warm_up();
    assert_eq!(warm_up.bytes(), CAPACITY / 16 * 15);
    let taken = (0..200).filter(|n| warm_up.put(key(*n), *n, Attributes::DATA, || true).is_ok());
    assert_eq!(taken.count() as u64, CAPACITY / 16 * 15 / WEIGHT);
    assert!(warm_up.bytes() < WEIGHT);
    assert_eq!(warm_up.put(key(300), 0, Attributes::DATA, || true), Err(WarmUpRefusal::NoCapacity));
    let stats = cache.stats();
    for name in ["misses", "lookups_missed", "hits_mru", "left", "loads_failed", "in_flight_joins"]
    {
        assert_eq!(stats.counter(name), 0, "{name}");
    }
    assert_eq!(stats.resident_blocks(), stats.counter("inserts"));
    assert!((0..150).all(|n| cache.get(&key(n)).is_some_and(|value| *value == n)));
    // They compete as any others do: new blocks evict them.
    (1000..2000).for_each(|n| cache.insert(key(n), n).unwrap());
    assert!(cache.stats().counter("left") > 0);
    assert_eq!(warm_up.bytes(), 0, "something was evicted");
    drop(warm_up);
    cache.audit();
}

#[test]
fn what_blocks_cost_beside_their_weight_is_seen_while_they_come_in() {
    const BOUND: u64 = 8 << 20;
    const EACH: u64 = 4096;
    let puts = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&puts);
    let cache = Cache::builder()
        .bound(BOUND)
        .overhead(move || counted.load(Ordering::Relaxed) * EACH / 4)
        .weigher(|_, _: &u64| EACH)
        .build()
        .unwrap();
    let warm_up = cache.warm_up();
    while warm_up.put(key(puts.load(Ordering::Relaxed)), 0, Attributes::DATA, || true).is_ok() {
        puts.fetch_add(1, Ordering::Relaxed);
    }
    // The reclaimer, which would refresh the bound too, may not have run at all.
    let stats = cache.stats();
    let total = stats.reserved + stats.overhead.total();
    assert!(total <= BOUND, "{} and {:?}", stats.reserved, stats.overhead);
    assert!(total >= BOUND / 10 * 8, "{} and {:?}", stats.reserved, stats.overhead);
    assert_eq!(stats.counter("left"), 0);
    drop(warm_up);
    cache.audit();
}

#[test]
fn what_is_there_or_loading_or_remembered_stays_as_it_is() {
    let cache = cache();
    let warm_up = cache.warm_up();
    cache.insert(key(1), 10).unwrap();
    assert!(warm_up.has(&key(1)) && !warm_up.has(&key(2)));
    assert_eq!(
        warm_up.put(key(1), 11, Attributes::DATA, || true),
        Err(WarmUpRefusal::AlreadyCached)
    );
    let Begin::Vacant(guard) = cache.begin(key(2), WEIGHT, Attributes::DATA).unwrap() else {
        panic!("it is not cached");
    };
    assert!(warm_up.has(&key(2)));
    assert_eq!(
        warm_up.put(key(2), 21, Attributes::DATA, || true),
        Err(WarmUpRefusal::AlreadyCached)
    );
    drop(guard.publish(20));
    assert_eq!((*cache.get(&key(1)).unwrap(), *cache.get(&key(2)).unwrap()), (10, 20));
    // Evicted blocks have ghosts, and warm-up does not bring them back.
    (1000..1400).for_each(|n| cache.insert(key(n), n).unwrap());
    let gone = (1000..1400).find(|n| !cache.contains(&key(*n))).expect("not all of them fit");
    (1000..1400).filter(|n| *n != gone).for_each(|n| _ = cache.remove(&key(n)));
    let later = cache.warm_up();
    let ghosts = cache.stats().counter("ghost_hits_mru");
    assert_eq!(
        later.put(key(gone), 0, Attributes::DATA, || true),
        Err(WarmUpRefusal::EvictedBefore)
    );
    assert_eq!(cache.stats().counter("ghost_hits_mru"), ghosts);
    drop((warm_up, later));
    cache.audit();
}

#[test]
fn the_slot_is_claimed_before_the_value_is_checked() {
    let cache = std::sync::Arc::new(cache());
    let warm_up = cache.warm_up();
    let outdated = warm_up.put(key(1), 1, Attributes::DATA, || {
        assert!(!cache.contains(&key(1)), "it is not visible yet");
        assert!(warm_up.has(&key(1)), "but it is being loaded");
        false
    });
    assert_eq!(outdated, Err(WarmUpRefusal::Outdated));
    assert!(!warm_up.has(&key(1)));
    // A thread that overwrites the key in between wins.
    let put = warm_up.put(key(1), 1, Attributes::METADATA, || {
        cache.insert(key(1), 2).unwrap();
        true
    });
    assert_eq!((put, *cache.get(&key(1)).unwrap()), (Ok(()), 2));
    let put = warm_up.put(key(3), 1, Attributes::DATA, || cache.remove(&key(3)).is_none());
    assert_eq!(put, Ok(()));
    assert!(!cache.contains(&key(3)));
    assert_eq!(cache.stats().resident_blocks(), 1);
    // A waiter gets it.
    let waiter = std::sync::Mutex::new(None);
    let put = warm_up.put(key(4), 40, Attributes::DATA, || {
        let Begin::InFlight(in_flight) = cache.begin(key(4), WEIGHT, Attributes::DATA).unwrap()
        else {
            panic!("it is being loaded");
        };
        *waiter.lock().unwrap() = Some(in_flight);
        true
    });
    let in_flight = waiter.into_inner().unwrap().unwrap();
    assert_eq!((put, *in_flight.wait().unwrap()), (Ok(()), 40));
    drop(warm_up);
    cache.audit();
}

#[test]
fn warm_up_respects_owners_and_ends_with_the_cache() {
    let cache = cache();
    let warm_up = cache.warm_up();
    let owner = cache.open_owner(OwnerCaching::Metadata).unwrap().into_id();
    let put = |class| {
        let attributes = Attributes { class, ..Attributes::DATA };
        warm_up.put(OwnedKey(owner, class as u64), 7, attributes, || true)
    };
    assert_eq!(put(Class::Data), Err(WarmUpRefusal::ByOwner));
    assert_eq!(put(Class::Metadata), Ok(()));
    assert!(cache.close_owner(owner));
    assert_eq!(put(Class::Metadata), Err(WarmUpRefusal::Closed));
    cache.audit();
    drop(cache);
    assert_eq!(warm_up.bytes(), 0);
    assert_eq!(warm_up.put(key(1), 1, Attributes::DATA, || true), Err(WarmUpRefusal::Closed));
}
