//! Several owners of one cache: which blocks each lets be cached, and closing.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_cache::{
    Attributes, Begin, Cache, Key, LoadError, OwnerCaching, OwnerError, OwnerId, Reclaim, Refusal,
};

use crate::support::{Counted, Live, audit, join, wait_until};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PoolKey {
    owner: OwnerId,
    block: u64,
}

impl Hash for PoolKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u16(self.owner.get());
        state.write_u64(self.block);
    }
}

// SAFETY: plain data; `Hash` and `Eq` depend on it alone.
unsafe impl Key for PoolKey {
    fn owner(&self) -> OwnerId {
        self.owner
    }
}

fn pools(capacity: u64, mode: Reclaim) -> (Cache<PoolKey, Counted>, Live) {
    let cache = Cache::builder().capacity(capacity).weigher(|_, _| 1).reclaim(mode).seed(3);
    (cache.build().unwrap(), Live::default())
}

#[test]
fn owners_limit_what_is_cached() {
    let (cache, live) = pools(100, Reclaim::Inline);
    for (caching, metadata, data) in [
        (OwnerCaching::All, true, true),
        (OwnerCaching::Metadata, true, false),
        (OwnerCaching::None, false, false),
    ] {
        let owner = cache.open_owner(caching).unwrap();
        for (block, attributes, kept) in
            [(1, Attributes::METADATA, metadata), (2, Attributes::DATA, data)]
        {
            let key = PoolKey { owner: owner.id(), block };
            let inserted = cache.insert_with(key, live.value(block), attributes);
            assert_eq!(
                inserted.as_ref().err().map(|r| r.reason),
                (!kept).then_some(Refusal::ByOwner)
            );
            drop(inserted);
            assert_eq!(cache.contains(&key), kept);
            cache.remove(&key);
            let load = || Ok::<_, String>(live.value(block));
            assert_eq!(
                cache.get_or_load_weighed(key, 1, attributes, load).unwrap().payload(),
                block
            );
            assert_eq!(cache.contains(&key), kept);
            // One load for all requests, cached or not.
            cache.remove(&key);
            let Begin::Vacant(guard) = cache.begin(key, 1, attributes).unwrap() else { panic!() };
            assert_eq!(guard.refusal(), (!kept).then_some(Refusal::ByOwner));
            let Begin::InFlight(in_flight) = cache.begin(key, 1, attributes).unwrap() else {
                panic!()
            };
            drop(guard.publish(live.value(7)));
            assert_eq!(in_flight.wait().unwrap().payload(), 7);
            assert_eq!(live.count() as u64, cache.stats().resident_blocks());
        }
        // From now on. Cached blocks stay.
        let here = cache.stats().resident_blocks();
        owner.set_caching(OwnerCaching::None);
        assert_eq!(cache.stats().resident_blocks(), here);
        let key = PoolKey { owner: owner.id(), block: 3 };
        let refused = cache.insert_with(key, live.value(3), Attributes::METADATA).unwrap_err();
        assert_eq!(refused.reason, Refusal::ByOwner);
        owner.close();
        assert_eq!(cache.stats().resident_blocks(), 0);
    }
    assert_eq!(live.count(), 0);
    audit(&cache);
}

#[test]
fn numbers_that_nobody_has_are_refused_and_never_lost() {
    let (cache, live) = pools(100, Reclaim::Inline);
    for raw in [17, 4095, 4096, u16::MAX] {
        let id = OwnerId::from_raw(raw);
        assert!(!cache.close_owner(id));
        assert!(!cache.set_owner_caching(id, OwnerCaching::All));
        let key = PoolKey { owner: id, block: 1 };
        assert_eq!(cache.insert(key, live.value(1)).unwrap_err().reason, Refusal::Closed);
        assert!(matches!(cache.begin(key, 1, Attributes::DATA), Err(LoadError::Closed)));
    }
    assert!(!cache.close_owner(OwnerId::NONE));
    let owners: Vec<_> = (0..4095).map(|_| cache.open_owner(OwnerCaching::All).unwrap()).collect();
    let mut ids: Vec<_> = owners.iter().map(|owner| owner.id()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4095);
    assert!(!ids.contains(&OwnerId::NONE));
    assert!(matches!(
        cache.open_owner(OwnerCaching::All),
        Err(OwnerError::TooMany { limit: 4095 })
    ));
    drop(owners);
    assert!(cache.open_owner(OwnerCaching::All).is_ok());
    audit(&cache);
}

#[test]
fn a_number_is_not_given_out_again_at_once() {
    let (cache, _) = pools(100, Reclaim::Inline);
    let first = cache.open_owner(OwnerCaching::All).unwrap();
    let id = first.id();
    first.close();
    assert_ne!(cache.open_owner(OwnerCaching::All).unwrap().id(), id);
}

#[test]
fn a_close_waits_for_the_owners_pins_and_loads_only() {
    let (cache, live) = pools(1000, Reclaim::Thread);
    let [mine, other] = [(); 2].map(|()| cache.open_owner(OwnerCaching::All).unwrap().into_id());
    let key = |owner, block| PoolKey { owner, block };
    for block in 0..100 {
        cache.insert(key(mine, block), live.value(block)).unwrap();
        cache.insert(key(other, block), live.value(block)).unwrap();
    }
    let others_pin = cache.get(&key(other, 1)).unwrap();
    let pin = cache.get_owned(&key(mine, 1)).unwrap();
    let Begin::Vacant(load) = cache.begin(key(mine, 500), 1, Attributes::DATA).unwrap() else {
        panic!()
    };
    let closed = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            assert!(cache.close_owner(mine));
            closed.store(true, Ordering::SeqCst);
        });
        wait_until("it closes", || !cache.contains(&key(mine, 2)));
        assert!(!cache.close_owner(mine), "another thread is closing it");
        assert!(!cache.set_owner_caching(mine, OwnerCaching::All));
        let late = cache.get_or_load_weighed(key(mine, 3), 1, Attributes::DATA, || {
            Ok::<_, String>(live.value(3))
        });
        assert!(matches!(late, Err(LoadError::Closed)));
        thread::sleep(Duration::from_millis(10));
        assert!(!closed.load(Ordering::SeqCst));
        drop(pin);
        thread::sleep(Duration::from_millis(10));
        assert!(!closed.load(Ordering::SeqCst));
        drop(load.publish(live.value(9)));
        wait_until("it has closed", || closed.load(Ordering::SeqCst));
    });
    assert_eq!(live.count(), 100);
    assert_eq!(cache.stats().resident_blocks(), 100);
    drop(others_pin);
    audit(&cache);
}

#[test]
fn ghosts_go_with_their_owner() {
    let (cache, live) = pools(50, Reclaim::Inline);
    let owners = [(); 2].map(|()| cache.open_owner(OwnerCaching::All).unwrap().into_id());
    for block in 0..100 {
        for owner in owners {
            cache.insert(PoolKey { owner, block }, live.value(block)).unwrap();
        }
    }
    assert!(cache.stats().ghosts() > 0);
    assert!(cache.close_owner(owners[0]));
    assert!(cache.stats().ghosts() > 0, "the other's ghosts are still there");
    audit(&cache);
    assert!(cache.close_owner(owners[1]));
    let stats = cache.stats();
    assert_eq!((stats.ghosts(), stats.resident_blocks(), stats.index.entries), (0, 0, 0));
    assert_eq!(live.count(), 0);
    audit(&cache);
}

/// The life of one pool: opened, used by two threads at once, closed. Nothing of it remains.
fn pool_life(cache: &Cache<PoolKey, Counted>, rounds: u64, tag: u64) {
    for round in 0..rounds {
        let live = Live::default();
        let id = cache.open_owner(OwnerCaching::All).unwrap().into_id();
        let stop = AtomicBool::new(false);
        let stamp = (tag << 48) | (round << 24);
        let work = |part: u64| {
            for i in 0.. {
                let key = PoolKey { owner: id, block: (i * 5 + part) % 200 };
                let mine = stamp | key.block;
                let outcome = cache.get_or_load_weighed(key, 1, Attributes::DATA, || {
                    Ok::<_, String>(live.value(mine))
                });
                match outcome {
                    // Of this use of the number, not of an earlier one.
                    Ok(block) => assert_eq!(block.payload(), mine),
                    Err(LoadError::Closed) => return,
                    Err(other) => panic!("{other}"),
                }
                if i % 7 == 0 {
                    let closed = cache.insert_with(key, live.value(mine), Attributes::METADATA);
                    if closed.is_err_and(|r| r.reason == Refusal::Closed) {
                        return;
                    }
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        };
        thread::scope(|s| {
            s.spawn(|| work(0));
            s.spawn(|| work(3));
            thread::sleep(Duration::from_millis(2));
            if round % 2 == 0 {
                // Under load.
                assert!(cache.close_owner(id));
            }
            stop.store(true, Ordering::Relaxed);
        });
        if round % 2 == 1 {
            assert!(cache.close_owner(id));
        }
        assert_eq!(live.count(), 0, "values of a closed owner");
        let left = cache.iter().filter(|block| block.key().owner == id).count();
        assert_eq!(left, 0, "blocks of a closed owner");
    }
}

#[test]
fn owners_come_and_go_under_load() {
    let rounds = if crate::support::full() { 1000 } else { 60 };
    let (cache, live) = pools(300, Reclaim::Thread);
    let cache = std::sync::Arc::new(cache);
    let threads: Vec<_> = (1..4)
        .map(|tag| {
            let cache = cache.clone();
            thread::spawn(move || pool_life(&cache, rounds, tag))
        })
        .collect();
    // And a thread with keys without owner, all the time.
    let mut i = 0;
    while threads.iter().any(|t| !t.is_finished()) {
        let key = PoolKey { owner: OwnerId::NONE, block: i % 500 };
        let outcome = cache.get_or_load_weighed(key, 1, Attributes::DATA, || {
            Ok::<_, String>(live.value(key.block))
        });
        assert_eq!(outcome.unwrap().payload(), key.block);
        i += 1;
    }
    threads.into_iter().for_each(|t| join("a pool closes", t));
    audit(&cache);
    cache.clear();
    let stats = cache.stats();
    assert_eq!((stats.ghosts(), stats.index.entries, live.count()), (0, 0, 0), "{stats}");
    audit(&cache);
}
