//! Loads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use forebay_cache::{KeyedCache, LoadError};

use super::{audit, inline};
use crate::support::{block_on, join};

#[test]
fn threads_that_ask_at_once_cause_one_load() {
    const THREADS: usize = 8;
    let (builder, _) = inline::<String, u64>(1000);
    let cache = builder.build().unwrap();
    let (start, loads) = (Barrier::new(THREADS), AtomicU64::new(0));
    let rounds = if cfg!(miri) { 3 } else { 200 };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..rounds {
                    start.wait();
                    let loaded = cache.get_or_load(format!("{round}"), || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        Ok::<_, std::io::Error>(round)
                    });
                    assert_eq!(*loaded.unwrap(), round);
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), rounds);
    audit(&cache);
}

#[test]
fn weights_are_learned() {
    let cache = KeyedCache::<String, Vec<u8>>::builder()
        .capacity(10_000)
        .weigher(|_, value| value.len() as u64)
        .build()
        .unwrap();
    let load = |key: u64, bytes| {
        let value = || Ok::<_, std::io::Error>(vec![1; bytes]);
        cache.get_or_load(key.to_string(), value).unwrap()
    };
    for key in 0..1000 {
        assert!(load(key, 500).into_owned().is_cached());
    }
    let heavy = load(5000, 20_000);
    assert_eq!(heavy.len(), 20_000);
    assert!(!heavy.into_owned().is_cached());
    // A heavy value does not keep others out.
    assert!(load(5001, 500).into_owned().is_cached());
    assert!(cache.stats().resident_bytes() <= 10_200);
    audit(&cache);
}

#[test]
fn errors_are_returned_and_not_cached() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    let failed = cache.get_or_load("a".to_owned(), || Err("no such row")).unwrap_err();
    let LoadError::Failed(error) = failed else { panic!("{failed}") };
    assert_eq!(*error, "no such row");
    assert_eq!(*cache.get_or_load("a".to_owned(), || Ok::<_, String>(1)).unwrap(), 1);
    audit(&cache);
}

#[test]
fn an_asynchronous_loader_may_borrow_and_be_dropped() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    let page = "a page".to_owned();
    let load = || async { Ok::<_, std::io::Error>(page.len() as u64) };
    assert_eq!(*block_on(cache.get_or_load_async("a".to_owned(), load)).unwrap(), 6);
    // A future that is dropped while it loads abandons the load.
    let never = || std::future::pending::<Result<u64, std::io::Error>>();
    let mut future = Box::pin(cache.get_or_load_async("b".to_owned(), never));
    let waker = std::task::Waker::noop();
    assert!(future.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    drop(future);
    assert_eq!(*block_on(cache.get_or_load_async("b".to_owned(), load)).unwrap(), 6);
    audit(&cache);
}

#[test]
fn a_value_removed_while_it_is_loaded_is_not_cached() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = Arc::new(builder.build().unwrap());
    let (loading, removed) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let thread = std::thread::spawn({
        let (cache, loading, removed) = (cache.clone(), loading.clone(), removed.clone());
        move || {
            let loaded = cache.get_or_load("a".to_owned(), || {
                loading.wait();
                removed.wait();
                Ok::<_, std::io::Error>(1)
            });
            *loaded.unwrap()
        }
    });
    loading.wait();
    // `remove_if` knows no value, so it leaves the load alone.
    assert!(cache.remove_if("a", |_| true).is_none());
    assert!(cache.remove("a").is_none());
    removed.wait();
    assert_eq!(join("the load ends", thread), 1);
    assert!(!cache.contains("a"));
    audit(&cache);
}

#[test]
fn a_loader_that_requests_its_own_key_gets_an_error() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    let load = |key: &str| cache.get_or_load(key.to_owned(), || Ok::<_, String>(0)).map(|v| *v);
    let outer = cache.get_or_load("a".to_owned(), || {
        assert!(matches!(load("a"), Err(LoadError::Recursive)));
        Ok::<_, String>(load("b").unwrap() + 1)
    });
    assert_eq!(*outer.unwrap(), 1);
    let outer = block_on(cache.get_or_load_async("c".to_owned(), || async {
        let inner = cache.get_or_load_async("c".to_owned(), || async { Ok::<_, String>(0) }).await;
        assert!(matches!(inner, Err(LoadError::Recursive)));
        Ok::<_, String>(2)
    }));
    assert_eq!(*outer.unwrap(), 2);
    audit(&cache);
}
