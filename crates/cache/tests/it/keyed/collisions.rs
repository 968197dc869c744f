//! Keys of equal hashes: no lookup returns another key's value, and loads do not mix.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use forebay_cache::{KeyedCache, LoadError};

use super::{Constant, audit, inline};
use crate::support::{block_on, wait_until};

fn cache() -> KeyedCache<String, u64, Constant> {
    inline(100).0.hasher(Constant).build().unwrap()
}

fn ok(value: u64) -> Result<u64, std::io::Error> {
    Ok(value)
}

#[test]
fn another_key_is_a_miss_and_is_replaced() {
    let cache = cache();
    cache.insert("a".to_owned(), 1).unwrap();
    assert!(cache.get("b").is_none() && cache.peek("b").is_none() && !cache.contains("b"));
    assert!(cache.remove("b").is_none() && cache.remove_if("b", |_| true).is_none());
    assert_eq!(cache.get("a").as_deref(), Some(&1));
    assert_eq!((cache.usage().hits(), cache.usage().misses()), (1, 1));
    cache.insert("b".to_owned(), 2).unwrap();
    assert!(cache.get("a").is_none());
    assert_eq!(cache.get("b").as_deref(), Some(&2));
    assert_eq!(*cache.get_or_load("a".to_owned(), || ok(3)).unwrap(), 3);
    assert!(!cache.contains("b"));
    assert_eq!(cache.len(), 1);
    audit(&cache);
}

#[test]
fn a_loader_may_load_another_key_of_the_same_hash() {
    let cache = cache();
    let outer = cache.get_or_load("a".to_owned(), || {
        let inner = cache.get_or_load("b".to_owned(), || ok(2)).unwrap();
        ok(*inner + 10)
    });
    assert_eq!(*outer.unwrap(), 12);
    let future = cache.get_or_load_async("c".to_owned(), || async {
        let inner = cache.get_or_load_async("d".to_owned(), || async { ok(4) }).await.unwrap();
        ok(*inner + 30)
    });
    assert_eq!(*block_on(future).unwrap(), 34);
    audit(&cache);
}

#[test]
fn a_loader_that_asks_for_its_own_key_by_a_colliding_one_gets_an_error() {
    let cache = cache();
    let own = |key: &str| match cache.get_or_load(key.to_owned(), || -> Result<u64, String> {
        panic!("a second load of {key} within the first")
    }) {
        Err(LoadError::Recursive) => ok(1),
        other => panic!("{other:?}"),
    };
    let outer = cache.get_or_load("a".to_owned(), || {
        let middle = cache.get_or_load("b".to_owned(), || {
            own("b").and(own("a"))?;
            let inner = cache.get_or_load("c".to_owned(), || own("b").and(own("a")));
            ok(*inner.unwrap() + 10)
        });
        own("a").and(ok(*middle.unwrap() + 100))
    });
    assert_eq!(*outer.unwrap(), 111);
    audit(&cache);
}

#[test]
fn an_asynchronous_loader_that_asks_for_its_own_key_by_a_colliding_one_gets_an_error() {
    let cache = cache();
    let outer = cache.get_or_load_async("a".to_owned(), || async {
        let middle = cache.get_or_load_async("b".to_owned(), || async {
            let never = || async { panic!("a second load within the first") };
            let inner = cache.get_or_load_async("a".to_owned(), never).await;
            assert!(matches!(inner, Err(LoadError::<String>::Recursive)), "{inner:?}");
            ok(1)
        });
        ok(*middle.await.unwrap() + 10)
    });
    assert_eq!(*block_on(outer).unwrap(), 11);
    audit(&cache);
}

/// The weigher runs after the loader. A request of another key must not have joined the load then.
#[test]
fn a_weigher_that_panics_does_not_fail_a_load_of_another_key() {
    let (weighing, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flags = (weighing.clone(), go_on.clone());
    let cache = KeyedCache::<String, u64>::builder()
        .capacity(100)
        .weigher(move |key, _| {
            if key == "a" {
                flags.0.store(true, Ordering::SeqCst);
                wait_until("the other load", || flags.1.load(Ordering::SeqCst));
                panic!("weigher");
            }
            1
        })
        .hasher(Constant)
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        let loads_a = scope.spawn(|| drop(cache.get_or_load("a".to_owned(), || ok(1))));
        wait_until("it weighs", || weighing.load(Ordering::SeqCst));
        let loads_b = scope.spawn(|| cache.get_or_load("b".to_owned(), || ok(2)).map(|b| *b));
        let joined = || cache.stats().counter("in_flight_joins") > 0;
        wait_until("b is loaded or waits", || loads_b.is_finished() || joined());
        go_on.store(true, Ordering::SeqCst);
        assert!(loads_a.join().is_err());
        assert_eq!(loads_b.join().unwrap().unwrap(), 2);
    });
    assert_eq!(cache.get("b").as_deref(), Some(&2));
    audit(&cache);
}

#[test]
fn an_error_reaches_only_the_requests_of_its_key() {
    let cache = cache();
    let outer = cache.get_or_load("a".to_owned(), || {
        let inner = cache.get_or_load("b".to_owned(), || Err::<u64, _>("of b"));
        assert!(matches!(inner, Err(LoadError::Failed(_))));
        ok(1)
    });
    assert_eq!(*outer.unwrap(), 1);
    audit(&cache);
}

#[test]
fn concurrent_loads_of_colliding_keys_return_their_own_values() {
    const THREADS: u64 = 4;
    let cache = cache();
    let rounds = if cfg!(miri) { 5 } else { 2000 };
    let start = Barrier::new(THREADS as usize);
    let (loads, failures) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, start, loads, failures) = (&cache, &start, &loads, &failures);
            scope.spawn(move || {
                start.wait();
                for round in 0..rounds {
                    // Two threads ask for each key.
                    let key = (thread + round) % 2;
                    let loaded = cache.get_or_load(format!("key {key}"), || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        if round % 5 == 0 { Err(format!("error {key}")) } else { Ok(key) }
                    });
                    match loaded {
                        Ok(value) => {
                            assert_eq!((*value, value.key()), (key, &format!("key {key}")))
                        }
                        Err(error) => {
                            failures.fetch_add(1, Ordering::Relaxed);
                            assert!(error.to_string().contains(&format!("error {key}")), "{error}");
                        }
                    }
                    if round % 3 == 0 {
                        cache.remove(format!("key {key}").as_str());
                    }
                }
            });
        }
    });
    assert!(loads.load(Ordering::Relaxed) > 0 && failures.load(Ordering::Relaxed) > 0);
    audit(&cache);
}
