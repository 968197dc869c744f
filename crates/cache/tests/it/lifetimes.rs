//! Lifetimes of caches, references and loads; closing; each value is dropped once, as soon as
//! possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_cache::{
    Attributes, Begin, Cache, InFlight, LoadError, OwnerCaching, OwnerError, Reclaim, Refusal,
};

use crate::support::{Counted, Live, audit, inline, inline_blocks, join, wait_until};

fn counted(mode: Reclaim) -> (Cache<u64, Counted>, Live) {
    let cache = inline(100, |_, _: &Counted| 1).reclaim(mode).build().unwrap();
    (cache, Live::default())
}

#[test]
fn a_value_goes_the_moment_its_last_pin_does() {
    let (cache, live) = counted(Reclaim::Inline);
    cache.insert(1, live.value(1)).unwrap();
    let pin = cache.get(&1).unwrap();
    let second = pin.to_owned_ref();
    let third = second.clone();
    assert!(cache.remove(&1).is_some());
    assert!(cache.get(&1).is_none());
    assert_eq!(live.count(), 1);
    drop(pin);
    drop(second);
    assert_eq!((live.count(), third.payload()), (1, 1));
    drop(third);
    assert_eq!(live.count(), 0);

    cache.insert(2, live.value(2)).unwrap();
    let pin = cache.get(&2).unwrap();
    cache.insert(2, live.value(3)).unwrap();
    assert_eq!((pin.payload(), cache.get(&2).unwrap().payload(), live.count()), (2, 3, 2));
    drop(pin);
    assert_eq!(live.count(), 1);
    for key in 100..300 {
        cache.insert(key, live.value(key)).unwrap();
        assert_eq!(live.count() as u64, cache.stats().resident_blocks());
    }
    assert_eq!(cache.clear(), 100);
    assert_eq!(live.count(), 0);
    audit(&cache);
}

#[test]
fn guards_outlive_the_cache() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let (cache, live) = counted(mode);
        for key in 0..50 {
            cache.insert(key, live.value(key)).unwrap();
        }
        let first = cache.get_owned(&7).unwrap();
        let again = first.clone();
        let other = cache.get(&8).unwrap().into_owned();
        let removed = cache.get_owned(&9).unwrap();
        cache.remove(&9);
        drop(cache);
        assert_eq!(live.count(), 3);
        assert_eq!((first.payload(), other.payload(), removed.payload()), (7, 8, 9));
        drop(first);
        assert_eq!(live.count(), 3, "a clone holds it");
        drop(again);
        let elsewhere = thread::spawn(move || drop(other));
        join("it drops the guard", elsewhere);
        assert_eq!(live.count(), 1);
        drop(removed);
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn load_guards_and_waiters_outlive_the_cache() {
    for publish in [true, false] {
        let (cache, live) = counted(Reclaim::Thread);
        let begin = |key| cache.begin(key, 1, Attributes::DATA).unwrap();
        let Begin::Vacant(guard) = begin(1) else { panic!() };
        let in_flight = |begun: Begin<'_, u64, Counted>| -> InFlight<u64, Counted> {
            let Begin::InFlight(in_flight) = begun else { panic!() };
            in_flight
        };
        let (waits, dropped) = (in_flight(begin(1)), in_flight(begin(1)));
        drop(cache);
        drop(dropped);
        assert_eq!(*guard.key(), 1);
        if publish {
            let block = guard.publish(live.value(5));
            assert_eq!(live.count(), 1);
            let waited = waits.wait().unwrap();
            drop(block);
            assert_eq!((live.count(), waited.payload()), (1, 5));
            drop(waited);
        } else {
            drop(guard);
            assert!(matches!(waits.wait(), Err(LoadError::Abandoned)));
        }
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn guards_drop_while_the_cache_does() {
    let rounds = if crate::support::full() { 2000 } else { 150 };
    for round in 0..rounds {
        let (cache, live) = counted(if round % 2 == 0 { Reclaim::Inline } else { Reclaim::Thread });
        for key in 0..20 {
            cache.insert(key, live.value(key)).unwrap();
        }
        let threads: Vec<_> = (0..3)
            .map(|t| {
                let guards: Vec<_> = (0..20).filter_map(|key| cache.get_owned(&key)).collect();
                let Begin::Vacant(guard) = cache.begin(1000 + t, 1, Attributes::DATA).unwrap()
                else {
                    panic!()
                };
                let value = live.value(1);
                thread::spawn(move || {
                    guards.iter().for_each(|guard| assert_eq!(*guard.key(), guard.payload()));
                    drop(guards);
                    drop(guard.publish(value));
                })
            })
            .collect();
        drop(cache);
        threads.into_iter().for_each(|t| join("it drops its guards", t));
        assert_eq!(live.count(), 0, "round {round}");
    }
}

#[test]
fn close_waits_for_pins_and_loads() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let (cache, live) = counted(mode);
        let cache = Arc::new(cache);
        cache.insert(1, live.value(1)).unwrap();
        let pin = cache.get_owned(&1).unwrap();
        let Begin::Vacant(guard) = cache.begin(2, 1, Attributes::DATA).unwrap() else { panic!() };
        let (inner, done) = (cache.clone(), Arc::new(AtomicBool::new(false)));
        let told = done.clone();
        let closer = thread::spawn(move || {
            inner.close();
            told.store(true, Ordering::SeqCst);
        });
        wait_until("it closes", || !cache.contains(&1));
        // From here on all inserts are refused.
        wait_until("it refuses", || cache.insert(9, live.value(9)).is_err());
        thread::sleep(Duration::from_millis(20));
        assert!(!done.load(Ordering::SeqCst), "closed under a pin");
        drop(pin);
        thread::sleep(Duration::from_millis(20));
        assert!(!done.load(Ordering::SeqCst), "closed under a load");
        drop(guard.publish(live.value(2)));
        join("it closes", closer);
        assert_eq!(live.count(), 0);
        audit(&cache);
    }
}

#[test]
fn use_after_close_is_refused() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let (cache, live) = counted(mode);
        for key in 0..500 {
            cache.insert(key, live.value(key)).unwrap();
        }
        let owner = cache.open_owner(OwnerCaching::All).unwrap().into_id();
        cache.close();
        cache.close();
        assert_eq!(live.count(), 0);
        assert!(cache.get(&1).is_none() && cache.get_owned(&1).is_none() && !cache.contains(&1));
        let refused = cache.insert(1, live.value(1)).unwrap_err();
        assert_eq!((refused.reason, refused.value.payload()), (Refusal::Closed, 1));
        drop(refused);
        assert!(cache.remove(&1).is_none());
        assert!(matches!(cache.begin(1, 1, Attributes::DATA), Err(LoadError::Closed)));
        let load = || -> Result<Counted, String> { panic!("it must not be asked") };
        assert!(matches!(
            cache.get_or_load_weighed(1, 1, Attributes::DATA, load),
            Err(LoadError::Closed)
        ));
        assert!(matches!(cache.open_owner(OwnerCaching::All), Err(OwnerError::Closed)));
        assert!(cache.close_owner(owner));
        assert_eq!((cache.clear(), cache.retain(|_, _, _| false)), (0, 0));
        cache.resize(50);
        cache.trim();
        cache.drain_listener();
        cache.set_tunable("overflow_shift", "3").unwrap();
        let stats = cache.stats();
        assert_eq!((stats.resident_blocks(), stats.ghosts(), stats.reserved), (0, 0, 0));
        assert_eq!((stats.index.entries, stats.overhead.headers), (0, 0), "{stats}");
        audit(&cache);
    }
}

#[test]
fn close_under_load_ends_and_leaves_nothing() {
    let rounds = if crate::support::full() { 200 } else { 20 };
    for round in 0..rounds {
        let (cache, live) = counted(if round % 2 == 0 { Reclaim::Thread } else { Reclaim::Inline });
        thread::scope(|s| {
            for t in 0..3u64 {
                let (cache, live) = (&cache, &live);
                s.spawn(move || {
                    for i in 0.. {
                        let key = (i * 7 + t) % 150;
                        let outcome = cache.get_or_load_weighed(key, 1, Attributes::DATA, || {
                            Ok::<_, String>(live.value(key))
                        });
                        match outcome {
                            Ok(block) => assert_eq!(block.payload(), key),
                            Err(LoadError::Closed) => return,
                            Err(other) => panic!("{other}"),
                        }
                        if i % 16 == 0 {
                            let closed = cache
                                .insert(key, live.value(key))
                                .is_err_and(|refused| refused.reason == Refusal::Closed);
                            if closed {
                                return;
                            }
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(3));
            cache.close();
        });
        assert_eq!(live.count(), 0, "round {round}");
        audit(&cache);
    }
}

#[test]
fn an_empty_cache_costs_little_and_drops_clean() {
    let cache = inline_blocks(u64::MAX);
    let stats = cache.stats();
    assert!(stats.overhead.total() < 1 << 20, "{stats}");
    audit(&cache);
}
