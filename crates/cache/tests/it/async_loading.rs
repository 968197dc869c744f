//! The asynchronous interface, under an executor of a few lines.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

use forebay_cache::{Attributes, Begin, LoadError};

use crate::support::{Bell, audit, block_on, inline_blocks, join, threaded_blocks, wait_until};

/// Pending once, then wakes at once.
#[derive(Default)]
struct Yield(bool);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>, bell: &Arc<Bell>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&Waker::from(bell.clone())))
}

#[test]
fn many_tasks_on_many_threads_and_one_load() {
    let cache = threaded_blocks(1000).build().unwrap();
    let loads = AtomicU64::new(0);
    thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for key in 0..300 {
                    let load = || async {
                        loads.fetch_add(1, Ordering::Relaxed);
                        Yield::default().await;
                        Ok::<_, String>(key + 1)
                    };
                    let block =
                        block_on(cache.get_or_load_weighed_async(key, 1, Attributes::DATA, load));
                    assert_eq!(*block.unwrap(), key + 1);
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), 300);
    audit(&cache);
}

#[test]
fn a_dropped_loader_hands_the_load_to_a_waiter() {
    let cache = inline_blocks(100);
    let bell = Arc::new(Bell::default());
    let mut first: Pin<Box<dyn Future<Output = _>>> =
        Box::pin(cache.get_or_load_weighed_async(1, 1, Attributes::DATA, || {
            std::future::pending::<Result<u64, String>>()
        }));
    assert!(poll(&mut first, &bell).is_pending());
    let mut second = Box::pin(
        cache.get_or_load_weighed_async(1, 1, Attributes::DATA, || async { Ok::<_, String>(2) }),
    );
    assert!(poll(&mut second, &bell).is_pending());
    let rings = bell.rings.load(Ordering::SeqCst);
    drop(first);
    assert!(bell.rings.load(Ordering::SeqCst) > rings, "no thread woke the waiter");
    match poll(&mut second, &bell) {
        Poll::Ready(block) => assert_eq!(*block.unwrap(), 2),
        Poll::Pending => panic!("it should have loaded the block itself"),
    }
    drop(second);
    audit(&cache);
}

#[test]
fn a_dropped_waiter_costs_the_others_nothing() {
    let cache = inline_blocks(100);
    let Begin::Vacant(guard) = cache.begin(1, 1, Attributes::DATA).unwrap() else { panic!() };
    let bell = Arc::new(Bell::default());
    let waiter = || {
        let load = || async { Err::<u64, _>("not asked") };
        Box::pin(cache.get_or_load_weighed_async(1, 1, Attributes::DATA, load))
    };
    let (mut first, mut second) = (waiter(), waiter());
    assert!(poll(&mut first, &bell).is_pending());
    assert!(poll(&mut second, &bell).is_pending());
    drop(first);
    drop(guard.publish(3));
    let Poll::Ready(block) = poll(&mut second, &bell) else { panic!("the load has ended") };
    assert_eq!(*block.unwrap(), 3);
    drop(second);
    audit(&cache);
}

/// Waits on one load begin and end in every way there is. Each waiter has a clone of its waker, so
/// the bell's references count the waiters.
#[test]
fn cancelled_waits_leave_nothing_behind() {
    let cancelled = if cfg!(miri) { 300 } else { 1_000_000 };
    let cache = inline_blocks(100);
    let begin = || cache.begin(1, 1, Attributes::DATA).unwrap();
    let Begin::Vacant(guard) = begin() else { panic!("it is empty") };
    let bell = Arc::new(Bell::default());
    let wait = |n: u64| {
        let load = || async { Err::<u64, _>("not asked") };
        let mut whole = Box::pin(cache.get_or_load_weighed_async(1, 1, Attributes::DATA, load));
        let Begin::InFlight(in_flight) = begin() else { panic!("it is loading") };
        let mut future = Box::pin(in_flight.into_future());
        match n % 3 {
            0 => assert!(poll(&mut whole, &bell).is_pending()),
            1 => assert!(poll(&mut future, &bell).is_pending()),
            _ => {}
        }
        (whole, future)
    };
    let mut kept = vec![wait(0), wait(1)];
    for n in 0..cancelled {
        drop(wait(n));
        // The two that are kept, and this function's.
        assert_eq!(Arc::strong_count(&bell), 3, "after {n} abandoned waits");
    }
    kept.push(wait(0));
    assert_eq!(bell.rings.load(Ordering::SeqCst), 0);
    drop(guard.publish(3));
    assert_eq!(bell.rings.load(Ordering::SeqCst), 3);
    for (n, (mut whole, mut future)) in kept.into_iter().enumerate() {
        match n {
            1 => {
                assert!(matches!(poll(&mut future, &bell), Poll::Ready(Ok(block)) if *block == 3))
            }
            _ => assert!(matches!(poll(&mut whole, &bell), Poll::Ready(Ok(block)) if *block == 3)),
        }
    }
    audit(&cache);
}

#[test]
fn only_the_last_waker_is_rung() {
    let cache = inline_blocks(100);
    let Begin::Vacant(guard) = cache.begin(1, 1, Attributes::DATA).unwrap() else { panic!() };
    let Begin::InFlight(in_flight) = cache.begin(1, 1, Attributes::DATA).unwrap() else { panic!() };
    let (old, new) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let mut future = Box::pin(in_flight.into_future());
    assert!(poll(&mut future, &old).is_pending());
    assert!(poll(&mut future, &new).is_pending());
    drop(guard.publish(1));
    assert_eq!(old.rings.load(Ordering::SeqCst), 0);
    assert_eq!(new.rings.load(Ordering::SeqCst), 1);
    let Poll::Ready(block) = poll(&mut future, &new) else { panic!("the load has ended") };
    assert_eq!(*block.unwrap(), 1);
    drop(future);
    audit(&cache);
}

#[test]
fn errors_and_panics_of_async_loaders() {
    let cache = Arc::new(inline_blocks(100));
    let failed =
        block_on(cache.get_or_load_weighed_async(1, 1, Attributes::DATA, || async {
            Err::<u64, _>("no luck")
        }));
    assert!(matches!(failed, Err(LoadError::Failed(_))));
    drop(failed);
    let inner = cache.clone();
    let panics = thread::spawn(move || {
        let load = || async {
            Yield::default().await;
            wait_until("it is awaited", || inner.stats().counter("in_flight_joins") == 1);
            panic!("a bug in the loader");
            #[allow(unreachable_code, reason = "gives the block its type")]
            Ok::<u64, String>(1)
        };
        drop(block_on(inner.get_or_load_weighed_async(1, 1, Attributes::DATA, load)));
    });
    wait_until("it loads", || cache.stats().counter("misses") == 2);
    let waiter = block_on(
        cache.get_or_load_weighed_async(1, 1, Attributes::DATA, || async { Ok::<_, String>(2) }),
    );
    assert!(matches!(waiter, Err(LoadError::Panicked)));
    drop(waiter);
    wait_until("it has panicked", || panics.is_finished());
    assert!(panics.join().is_err());
    audit(&cache);
}

#[test]
fn an_async_request_waits_for_capacity_without_a_thread() {
    let cache =
        Arc::new(threaded_blocks(100).tunable("overflow_wait_ms", "60000").build().unwrap());
    let mut pins = Vec::new();
    while cache.stats().reserved < cache.stats().limit {
        let key = pins.len() as u64;
        cache.insert(key, key).unwrap();
        pins.push(cache.get_owned(&key).unwrap());
    }
    let inner = cache.clone();
    let waiter = thread::spawn(move || {
        let load = || async { Ok::<_, String>(5) };
        let block =
            block_on(inner.get_or_load_weighed_async(1 << 40, 1, Attributes::DATA, load)).unwrap();
        (*block, inner.contains(&(1 << 40)))
    });
    wait_until("it waits", || cache.stats().counter("throttle_waits") == 1);
    pins.pop();
    assert_eq!(join("capacity became free", waiter), (5, true));
    drop(pins);
    audit(&cache);
}
