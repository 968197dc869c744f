//! Single flight: one load per block, errors for all waiters, and loads that end early.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use forebay_cache::{Attributes, Begin, Cache, InFlight, LoadError, LoadGuard, Reclaim};

use crate::support::{
    Counted, Live, audit, inline, inline_blocks, join, threaded_blocks, wait_until,
};

fn vacant<V: Send + Sync + std::fmt::Debug + 'static>(
    cache: &Cache<u64, V>,
    key: u64,
) -> LoadGuard<u64, V> {
    match cache.begin(key, 1, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("{other:?}"),
    }
}

fn in_flight<V: Send + Sync + std::fmt::Debug + 'static>(
    cache: &Cache<u64, V>,
    key: u64,
) -> InFlight<u64, V> {
    match cache.begin(key, 1, Attributes::DATA).unwrap() {
        Begin::InFlight(in_flight) => in_flight,
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_threads_and_one_load() {
    const THREADS: u64 = 16;
    let cache = threaded_blocks(10_000).build().unwrap();
    let (loads, together) = (AtomicU64::new(0), Barrier::new(THREADS as usize));
    thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                for key in 0..200 {
                    together.wait();
                    let block = cache.get_or_load_weighed(key, 1, Attributes::DATA, || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        Ok::<_, String>(key * 3)
                    });
                    assert_eq!(*block.unwrap(), key * 3);
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), 200);
    assert_eq!(cache.stats().counter("misses"), 200);
    audit(&cache);
}

#[test]
fn an_error_reaches_every_waiter_and_is_not_cached() {
    const THREADS: u64 = 8;
    let cache = threaded_blocks(100).build().unwrap();
    let loads = AtomicU64::new(0);
    thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                s.spawn(|| {
                    let outcome = cache.get_or_load_weighed(1, 1, Attributes::DATA, || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        // All others have joined before this load ends.
                        wait_until("all have joined", || {
                            cache.stats().counter("in_flight_joins") == THREADS - 1
                        });
                        Err::<u64, _>(std::io::Error::other("the disk is gone"))
                    });
                    match outcome {
                        Err(LoadError::Failed(source)) => source.to_string(),
                        other => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), "the disk is gone");
        }
    });
    assert_eq!(loads.into_inner(), 1);
    assert!(cache.get(&1).is_none());
    assert_eq!(
        *cache.get_or_load_weighed(1, 1, Attributes::DATA, || Ok::<_, String>(5)).unwrap(),
        5
    );
    assert_eq!(cache.stats().counter("loads_failed"), 1);
    audit(&cache);
}

#[test]
fn a_panic_in_the_loader_is_its_callers_and_an_error_for_the_others() {
    let cache = Arc::new(threaded_blocks(100).build().unwrap());
    let inner = cache.clone();
    let loader = thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let load = || -> Result<u64, String> {
                wait_until("it is awaited", || inner.stats().counter("in_flight_joins") == 1);
                panic!("a bug in the loader");
            };
            inner.get_or_load_weighed(1, 1, Attributes::DATA, load).map(|block| *block)
        }));
        assert!(outcome.is_err());
    });
    wait_until("it loads", || cache.stats().counter("misses") == 1);
    let waiter = cache.get_or_load_weighed(1, 1, Attributes::DATA, || Ok::<_, String>(2));
    assert!(matches!(waiter, Err(LoadError::Panicked)), "{waiter:?}");
    join("the loader ends", loader);
    let again = cache.get_or_load_weighed(1, 1, Attributes::DATA, || Ok::<_, String>(3));
    assert_eq!(*again.unwrap(), 3);
    audit(&cache);
}

#[test]
fn a_dropped_load_guard_passes_the_load_on() {
    let cache = Arc::new(threaded_blocks(100).build().unwrap());
    let guard = vacant(&cache, 1);
    let direct = in_flight(&cache, 1);
    let inner = cache.clone();
    let waiter = thread::spawn(move || {
        *inner.get_or_load_weighed(1, 1, Attributes::DATA, || Ok::<_, String>(9)).unwrap()
    });
    wait_until("both wait", || cache.stats().counter("in_flight_joins") == 2);
    drop(guard);
    assert!(matches!(direct.wait(), Err(LoadError::Abandoned)));
    assert_eq!(join("the waiter loads it", waiter), 9);
    assert_eq!(*cache.get(&1).unwrap(), 9);
    audit(&cache);
}

#[test]
fn a_panicking_weigher_abandons_the_load_and_inserts_nothing() {
    let live = Live::default();
    let cache = inline(100, |_, v: &Counted| match v.payload() {
        13 => panic!("unlucky"),
        _ => 1,
    });
    let cache = cache.build().unwrap();
    let guard = vacant(&cache, 1);
    let in_flight = in_flight(&cache, 1);
    let bad = live.value(13);
    assert!(catch_unwind(AssertUnwindSafe(|| guard.publish(bad))).is_err());
    assert!(matches!(in_flight.wait(), Err(LoadError::Panicked)));
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(1, live.value(13)))).is_err());
    assert_eq!(live.count(), 0);
    cache.insert(1, live.value(1)).unwrap();
    assert_eq!(live.count(), 1);
    audit(&cache);
}

#[test]
fn on_ready_hears_of_every_ending() {
    let cache = inline_blocks(100);
    let (told, tells) = mpsc::channel();
    let listen = |in_flight: InFlight<u64, u64>| {
        let told = told.clone();
        in_flight.on_ready(move |outcome| {
            let told_of = outcome.map(|block| (*block.key(), *block)).map_err(|e| e.to_string());
            told.send(told_of).unwrap();
        });
    };
    let guard = vacant(&cache, 1);
    listen(in_flight(&cache, 1));
    listen(in_flight(&cache, 1));
    assert!(tells.try_recv().is_err());
    drop(guard.publish(7));
    assert_eq!(tells.try_iter().collect::<Vec<_>>(), [Ok((1, 7)), Ok((1, 7))]);

    let guard = vacant(&cache, 2);
    listen(in_flight(&cache, 2));
    guard.fail(LoadError::failed("no"));
    assert_eq!(tells.try_recv().unwrap().unwrap_err(), "cannot load the block: no");

    let guard = vacant(&cache, 3);
    let late = in_flight(&cache, 3);
    drop(guard.publish(8));
    listen(late);
    assert_eq!(tells.try_recv().unwrap(), Ok((3, 8)), "at once if it has ended");

    // The block may have been removed by now. Waiters get it all the same.
    let guard = vacant(&cache, 4);
    let late = in_flight(&cache, 4);
    drop(guard.publish(8));
    assert!(cache.remove(&4).is_some());
    listen(late);
    assert_eq!(tells.try_recv().unwrap(), Ok((4, 8)));
    audit(&cache);
}

#[test]
fn a_panicking_callback_keeps_nobody_from_hearing() {
    let cache = inline_blocks(100);
    let guard = vacant(&cache, 1);
    let first = in_flight(&cache, 1);
    in_flight(&cache, 1).on_ready(|_| panic!("in a callback"));
    let last = in_flight(&cache, 1);
    let block = guard.publish(7);
    assert_eq!((*block, *first.wait().unwrap(), *last.wait().unwrap()), (7, 7, 7));
    drop(block);
    assert_eq!(cache.stats().counter("panics_caught"), 1);
    audit(&cache);
    cache.close();
}

#[test]
fn a_callback_may_use_the_cache() {
    let cache = Arc::new(inline_blocks(10));
    let guard = vacant(&cache, 1);
    let inner = Arc::downgrade(&cache);
    in_flight(&cache, 1).on_ready(move |outcome| {
        let cache = inner.upgrade().unwrap();
        assert_eq!(*cache.get(&1).unwrap(), *outcome.unwrap());
        for key in 100..200 {
            cache.insert(key, key).unwrap();
        }
        cache.remove(&1);
    });
    drop(guard.publish(7));
    assert!(!cache.contains(&1));
    audit(&cache);
}

#[test]
fn a_removal_or_an_insert_makes_a_load_outdated() {
    let live = Live::default();
    let cache = inline(100, |_, _: &Counted| 1).build().unwrap();
    let guard = vacant(&cache, 1);
    let waiter = in_flight(&cache, 1);
    assert!(cache.remove(&1).is_none(), "it was not there yet");
    // A later request loads again: it must not see the content read before the removal.
    let second = vacant(&cache, 1);
    let block = guard.publish(live.value(1));
    assert_eq!((block.payload(), waiter.wait().unwrap().payload()), (1, 1));
    assert!(!cache.contains(&1));
    drop(block);
    assert_eq!(live.count(), 0, "no reference is left");
    drop(second.publish(live.value(2)));
    assert_eq!(cache.get(&1).unwrap().payload(), 2);

    let guard = vacant(&cache, 2);
    cache.insert(2, live.value(3)).unwrap();
    drop(guard.publish(live.value(4)));
    assert_eq!(cache.get(&2).unwrap().payload(), 3, "the insert was later");

    let guard = vacant(&cache, 3);
    cache.clear();
    drop(guard.publish(live.value(5)));
    assert!(!cache.contains(&3));
    assert_eq!(cache.stats().counter("refused_outdated"), 3);
    assert_eq!(cache.stats().resident_blocks(), live.count() as u64);
    audit(&cache);
}

#[test]
fn a_dropped_wait_leaves_the_load_and_its_other_waiters_alone() {
    let cache = inline_blocks(100);
    let guard = vacant(&cache, 1);
    drop(in_flight(&cache, 1));
    let waits = in_flight(&cache, 1);
    drop(in_flight(&cache, 1));
    drop(guard.publish(4));
    assert_eq!(*waits.wait().unwrap(), 4);
    audit(&cache);
}

#[test]
fn load_guards_and_in_flight_loads_travel_between_threads() {
    let cache = inline_blocks(100);
    let guard = vacant(&cache, 1);
    let in_flight = in_flight(&cache, 1);
    let waiter = thread::spawn(move || in_flight.wait().map(|block| *block));
    let guard = thread::spawn(move || {
        thread::sleep(Duration::from_millis(2));
        *guard.publish(11)
    });
    assert_eq!(join("it publishes", guard), 11);
    assert_eq!(join("it is told", waiter).unwrap(), 11);
    audit(&cache);
}

#[test]
fn a_block_whose_ghost_is_met_outlives_those_that_were_asked_for_once() {
    let cache = inline_blocks(10);
    for key in 0..11 {
        cache.insert(key, key).unwrap();
    }
    let gone = (0..11).find(|key| !cache.contains(key)).unwrap();
    drop(vacant(&cache, gone).publish(gone));
    assert_eq!(cache.stats().counter("ghost_hits_mru"), 1);
    for key in 100..200 {
        cache.insert(key, key).unwrap();
    }
    let stats = cache.stats();
    assert!(cache.contains(&gone), "{stats}");
    assert!(stats.counter("admissions_won") + stats.counter("overflowed") > 0, "{stats}");
    audit(&cache);
}

#[test]
fn a_storm_of_loads_of_few_keys_in_a_tiny_cache() {
    const KEYS: u64 = 40;
    let cache = threaded_blocks(16).tunable("overflow_wait_ms", "20").build().unwrap();
    let running: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|s| {
        for t in 0..6u64 {
            let (cache, running) = (&cache, &running);
            s.spawn(move || {
                for i in 0..4000u64 {
                    let key = (i * (t + 1) * 7 + t) % KEYS;
                    let outcome = cache.get_or_load_weighed(key, 1, Attributes::DATA, || {
                        // One load of a key at a time: nothing in this test outdates one.
                        assert_eq!(running[key as usize].fetch_add(1, Ordering::SeqCst), 0);
                        if i % 64 == 0 {
                            thread::yield_now();
                        }
                        running[key as usize].fetch_sub(1, Ordering::SeqCst);
                        if i % 10 == 9 { Err("no luck") } else { Ok(key) }
                    });
                    match outcome {
                        Ok(block) => assert_eq!((*block, *block.key()), (key, key)),
                        Err(LoadError::Failed(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    audit(&cache);
}

#[test]
fn a_first_load_of_a_cache_of_entries_evicts_one_at_most() {
    let cache =
        Cache::<u64, u64>::builder().max_entries(1000).reclaim(Reclaim::Inline).build().unwrap();
    (0..1000).for_each(|key| cache.insert(key, key).unwrap());
    assert_eq!(cache.expected_weight(), 1);
    drop(cache.get_or_load(5000, || Ok::<_, String>(1)).unwrap());
    assert!(cache.len() >= 999, "{} left", cache.len());
    audit(&cache);
}
