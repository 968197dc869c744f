//! Keys of equal hashes: no lookup returns another key's value, and loads do not mix.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::{KeyedCache, LoadError};

use super::{Constant, audit, inline};
use crate::support::block_on;

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
