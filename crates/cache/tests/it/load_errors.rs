//! Typed errors of loads, loaders that request their own block, and loads of unknown weight.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use forebay_cache::{Attributes, Begin, Cache, LoadError};

use crate::support::{Bell, audit, block_on, inline, inline_blocks, threaded_blocks, wait_until};

#[test]
fn waiters_share_an_error_of_their_type_and_read_others() {
    let cache = threaded_blocks(100).build().unwrap();
    let waits = |n| wait_until("all wait", || cache.stats().counter("in_flight_joins") == n);
    thread::scope(|s| {
        let loader = s.spawn(|| {
            cache.get_or_load(1, || {
                waits(3);
                Err::<u64, _>(io::Error::from(io::ErrorKind::NotFound))
            })
        });
        wait_until("it loads", || cache.stats().counter("misses") == 1);
        let alike = s.spawn(|| cache.get_or_load(1, || Ok::<_, io::Error>(2)));
        let other = s.spawn(|| cache.get_or_load(1, || Ok::<_, String>(2)));
        let Some(untyped) = cache.get_or_join(&1) else { panic!("it is being loaded") };
        let Begin::InFlight(untyped) = untyped.into() else { panic!("it is being loaded") };

        let untyped = untyped.wait().unwrap_err();
        let Err(LoadError::Failed(own)) = loader.join().unwrap() else { panic!() };
        assert_eq!(own.kind(), io::ErrorKind::NotFound);
        let Err(LoadError::Failed(shared)) = alike.join().unwrap() else { panic!() };
        assert!(Arc::ptr_eq(&own, &shared));
        let Err(LoadError::OtherFailed(text)) = other.join().unwrap() else { panic!() };
        assert_eq!(text.to_string(), own.to_string());
        let LoadError::Failed(found) = untyped.clone().typed::<io::Error>() else { panic!() };
        assert!(Arc::ptr_eq(&own, &found));
        assert!(matches!(untyped, LoadError::Failed(text) if text.to_string() == own.to_string()));
    });
    audit(&cache);
}

#[test]
fn a_loader_that_requests_its_own_block_gets_an_error() {
    let (cache, second) = (inline_blocks(100), inline_blocks(100));
    let ask = |key| cache.get_or_load(key, || Ok::<_, String>(9)).map(|block| *block);
    let block = cache.get_or_load(1, || {
        assert!(matches!(ask(1), Err(LoadError::Recursive)));
        // Through another block's loader, and by hand.
        let through = cache.get_or_load(2, || ask(1).map(|_| 5)).map(|block| *block);
        let Err(LoadError::Failed(error)) = through else { panic!("{through:?}") };
        assert!(matches!(*error, LoadError::Recursive));
        let begun = cache.begin(1, 1, Attributes::DATA).unwrap();
        let Begin::InFlight(in_flight) = begun else { panic!("it is being loaded") };
        assert!(matches!(in_flight.wait(), Err(LoadError::Recursive)));
        // Other blocks, and the same one of another cache, are no recursion.
        assert_eq!(ask(3).unwrap(), 9);
        assert_eq!(*second.get_or_load(1, || Ok::<_, String>(8)).unwrap(), 8);
        Ok::<_, String>(7)
    });
    assert_eq!(*block.unwrap(), 7);
    assert_eq!(ask(1).unwrap(), 7);
    audit(&cache);
}

/// The header of a load that ended in a panic may be that of the next load.
#[test]
fn a_panic_in_a_loader_ends_its_recursion() {
    let cache = inline_blocks(100);
    let panics = || -> Result<u64, String> { panic!("a bug in the loader") };
    for _ in 0..10 {
        let outcome = catch_unwind(AssertUnwindSafe(|| drop(cache.get_or_load(1, panics))));
        assert!(outcome.is_err());
        let Begin::Vacant(guard) = cache.begin(2, 1, Attributes::DATA).unwrap() else { panic!() };
        let Begin::InFlight(late) = cache.begin(2, 1, Attributes::DATA).unwrap() else { panic!() };
        drop(guard.publish(5));
        assert_eq!(*late.wait().unwrap(), 5);
        assert!(cache.remove(&2).is_some());
    }
    audit(&cache);
}

#[test]
fn an_async_loader_that_requests_its_own_block_gets_an_error() {
    let cache = inline_blocks(100);
    let ask = || cache.get_or_load_async(1, || async { Ok::<_, String>(9) });
    let block = block_on(cache.get_or_load_async(1, || async {
        assert!(matches!(ask().await, Err(LoadError::Recursive)));
        assert!(matches!(Box::pin(ask()).await, Err(LoadError::Recursive)));
        Ok::<_, String>(7)
    }));
    assert_eq!(*block.unwrap(), 7);
    // The closure itself, before there is a future.
    let block = block_on(cache.get_or_load_async(2, || {
        let inner = cache.get_or_load(2, || Ok::<_, String>(9));
        assert!(matches!(inner, Err(LoadError::Recursive)));
        async { Ok::<_, String>(6) }
    }));
    assert_eq!(*block.unwrap(), 6);
    audit(&cache);
}

/// Between its polls a loader is not this thread's: another task may wait for it.
#[test]
fn another_task_of_the_thread_waits_for_an_async_loader() {
    let cache = inline_blocks(100);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut context = Context::from_waker(&waker);
    let go = std::cell::Cell::new(false);
    let loader = async || {
        std::future::poll_fn(|_| if go.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        Ok::<_, String>(7)
    };
    let mut first = Box::pin(cache.get_or_load_async(1, loader));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let mut second = Box::pin(cache.get_or_load_async(1, async || Ok::<_, String>(9)));
    assert!(second.as_mut().poll(&mut context).is_pending());
    go.set(true);
    assert!(matches!(first.as_mut().poll(&mut context), Poll::Ready(Ok(block)) if *block == 7));
    assert!(matches!(second.as_mut().poll(&mut context), Poll::Ready(Ok(block)) if *block == 7));
    drop((first, second));
    audit(&cache);
}

#[test]
fn async_loaders_borrow_and_are_abandoned_when_dropped() {
    let cache: Cache<u64, Vec<u8>> = Cache::builder().max_entries(1000).build().unwrap();
    let mut parts = vec![vec![1], vec![2]];
    let whole = block_on(cache.get_or_load_async(1, async || {
        parts.push(vec![3]);
        Ok::<_, String>(parts.concat())
    }));
    assert_eq!(*whole.unwrap(), [1, 2, 3]);
    assert_eq!(parts.len(), 3);

    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell);
    let never = async || std::future::pending::<Result<Vec<u8>, String>>().await;
    let mut dropped = Box::pin(cache.get_or_load_async(2, never));
    assert!(dropped.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(dropped);
    let again = block_on(cache.get_or_load_async(2, async || Ok::<_, String>(parts[0].clone())));
    assert_eq!(*again.unwrap(), [1]);
    audit(&cache);
}

#[test]
fn a_load_without_a_weight_reserves_the_mean() {
    let cache = inline(1 << 20, |_, v: &u64| *v).build().unwrap();
    let reserved = |key| {
        let before = cache.stats().reserved;
        let mut during = 0;
        let load = || {
            during = cache.stats().reserved - before;
            Ok::<_, String>(1000)
        };
        drop(cache.get_or_load(key, load).unwrap());
        during
    };
    let first = cache.expected_weight();
    assert_eq!(reserved(0), first);
    assert!(cache.expected_weight() > first, "a block of 1000 bytes was loaded");
    for key in 1..100 {
        assert!((first..=1000).contains(&reserved(key)));
    }
    assert_eq!((cache.expected_weight(), reserved(100)), (1000, 1000));
    // Blocks that are too heavy for the cache do not make the next ones so.
    for key in 200..300 {
        drop(cache.get_or_load(key, || Ok::<_, String>(1 << 40)).unwrap());
        assert!(!cache.contains(&key));
    }
    drop(cache.get_or_load(300, || Ok::<_, String>(1000)).unwrap());
    assert!(cache.contains(&300), "{} bytes were reserved", cache.expected_weight());
    audit(&cache);
}
