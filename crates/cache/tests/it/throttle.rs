//! The overflow limit, the queue of inserters, and a cache in which nothing can be evicted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

use forebay_cache::{Attributes, Begin, Cache, Class, Reclaim, Refusal};

use crate::support::{audit, block_on, inline_blocks, join, threaded_blocks, wait_until};

/// Fills the cache to its limit and pins all blocks.
fn full_of_pins(cache: &Cache<u64, u64>) -> Vec<forebay_cache::OwnedRef<u64, u64>> {
    let mut pins = Vec::new();
    for key in 0.. {
        if cache.stats().reserved >= cache.stats().limit {
            return pins;
        }
        cache.insert(key, key).unwrap();
        pins.push(cache.get_owned(&key).expect("inserted just now, and nothing else can go"));
    }
    unreachable!()
}

#[test]
fn one_pinned_once_block_does_not_stop_eviction() {
    let cache = inline_blocks(100);
    let scan = || Ok::<_, String>(0);
    let pin = cache.get_or_load_weighed(1 << 40, 1, Attributes::DATA.once(), scan).unwrap();
    for key in 0..1000 {
        cache.insert(key, key).unwrap();
    }
    assert!(cache.contains(&(1 << 40)));
    assert_eq!(cache.stats().counter("refused_no_capacity"), 0);
    assert_eq!(cache.stats().resident_blocks(), 100);
    drop(pin);
    audit(&cache);
}

#[test]
fn pins_on_one_list_do_not_keep_the_others_from_being_evicted() {
    for frequent in [false, true] {
        for class in [Class::Metadata, Class::Data] {
            let cache = inline_blocks(100);
            let here = Attributes { class, ..Attributes::DATA };
            let there = Attributes {
                class: if class == Class::Data { Class::Metadata } else { Class::Data },
                ..Attributes::DATA
            };
            let mut pins = Vec::new();
            for key in 0..60 {
                cache.insert_with(key, key, here).unwrap();
                if frequent {
                    // An overwrite of a used block enters mfu.
                    cache.get(&key).unwrap();
                    cache.insert_with(key, key, here).unwrap();
                }
                pins.push(cache.get(&key).unwrap());
            }
            for key in 1000..2000 {
                cache.insert_with(key, key, there).unwrap();
            }
            for key in 2000..3000 {
                cache.insert_with(key, key, here).unwrap();
            }
            let stats = cache.stats();
            assert_eq!(stats.counter("refused_no_capacity"), 0, "{frequent} {class:?}\n{stats}");
            assert!(pins.iter().enumerate().all(|(key, pin)| **pin == key as u64));
            drop(pins);
            audit(&cache);
        }
    }
}

#[test]
fn everything_pinned_inline_refuses_at_once_and_gives_the_value_back() {
    let cache = inline_blocks(50);
    let pins: Vec<_> = (0..50)
        .map(|key| {
            cache.insert(key, key).unwrap();
            cache.get(&key).unwrap()
        })
        .collect();
    let refused = cache.insert(1000, 77).unwrap_err();
    assert_eq!((refused.reason, refused.value), (Refusal::NoCapacity, 77));
    let block =
        cache.get_or_load_weighed(1001, 1, Attributes::DATA, || Ok::<_, String>(78)).unwrap();
    assert_eq!(*block, 78);
    assert!(!cache.contains(&1001), "there was no capacity for it");
    drop(block);
    drop(pins);
    cache.insert(1000, 77).unwrap();
    audit(&cache);
}

/// The thread goes on meanwhile, and a dropped future has changed nothing.
#[test]
fn an_asynchronous_insert_waits_for_capacity() {
    let cache = threaded_blocks(200).tunable("overflow_wait_ms", "60000").build().unwrap();
    let pins = full_of_pins(&cache);
    let mut context = Context::from_waker(Waker::noop());
    let mut kept = Box::pin(cache.insert_async(1 << 40, 7));
    let mut dropped = Box::pin(cache.insert_async(0, 8));
    assert!(kept.as_mut().poll(&mut context).is_pending());
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    assert_eq!(cache.peek(&0).as_deref(), Some(&0), "a future that was not ready has replaced it");
    cache.set_tunable("overflow_wait_ms", "0").unwrap();
    let refused = block_on(cache.insert_async(1 << 41, 9)).unwrap_err();
    assert_eq!((refused.reason, refused.value), (Refusal::NoCapacity, 9));
    drop(pins);
    block_on(kept).unwrap();
    assert_eq!(cache.get(&(1 << 40)).as_deref(), Some(&7));
    audit(&cache);
    cache.close();
    assert_eq!(block_on(cache.insert_async(1, 1)).unwrap_err().reason, Refusal::Closed);
    audit(&cache);
}

#[test]
fn who_must_not_wait_evicts_or_is_refused() {
    let cache = threaded_blocks(200).tunable("overflow_wait_ms", "60000").build().unwrap();
    let mut pins = full_of_pins(&cache);
    let begin = |key| match cache.begin_new(key, 1, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("{other:?}"),
    };
    let guard = begin(1 << 40);
    assert_eq!(guard.refusal(), Some(Refusal::NoCapacity));
    assert_eq!(*guard.publish(5), 5);
    assert!(!cache.contains(&(1 << 40)));
    // What can be evicted makes space.
    pins.drain(..100);
    let guard = begin(1 << 41);
    assert_eq!(guard.refusal(), None);
    assert_eq!(*guard.publish(6), 6);
    assert!(cache.contains(&(1 << 41)));
    assert_eq!(cache.stats().counter("throttle_waits"), 0);
    drop(pins);
    audit(&cache);
}

#[test]
fn who_must_not_wait_reserves_what_a_block_occupies() {
    let cache = Cache::<u64, [u8; 64]>::builder().bound(8 << 20).reclaim(Reclaim::Inline);
    let cache = cache.weigher(|_, _| 0).build().unwrap();
    let begin = |key| match cache.begin_new(key, 64, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("{other:?}"),
    };
    let mut pins = Vec::new();
    let mut keys = 0..;
    loop {
        let guard = begin(keys.next().unwrap());
        let is_full = guard.refusal().is_some();
        pins.push(guard.publish([1; 64]));
        if is_full {
            break;
        }
    }
    drop(pins);
    // The first one finds no capacity, and evicts.
    let before = cache.stats().counter("overflows");
    let guard = begin(keys.next().unwrap());
    assert_eq!(guard.refusal(), None);
    drop(guard.publish([1; 64]));
    assert!(cache.stats().counter("overflows") > before);
    audit(&cache);
}

#[test]
fn everything_pinned_with_a_thread_ends_in_a_bounded_wait() {
    let cache = threaded_blocks(200).tunable("overflow_wait_ms", "30").build().unwrap();
    let pins = full_of_pins(&cache);
    let refused = cache.insert(1 << 40, 77).unwrap_err();
    assert_eq!((refused.reason, refused.value), (Refusal::NoCapacity, 77));
    let stats = cache.stats();
    assert_eq!(stats.counter("throttle_timeouts"), 1);
    assert!(stats.throttle_wait_ns.count >= 1);
    assert!(stats.counter("evict_not_enough") > 0);
    assert!(stats.counter("evict_skipped_pinned") > 0);
    // A load is handed out uncached, to the loader and to all waiters.
    match cache.begin(1 << 41, 1, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => {
            assert_eq!(guard.refusal(), Some(Refusal::NoCapacity));
            let Begin::InFlight(in_flight) = cache.begin(1 << 41, 1, Attributes::DATA).unwrap()
            else {
                panic!("the load is in flight");
            };
            let block = guard.publish(5);
            assert_eq!(*in_flight.wait().unwrap(), 5);
            assert_eq!(*block, 5);
        }
        other => panic!("{other:?}"),
    }
    assert!(!cache.contains(&(1 << 41)));
    let refused =
        block_on(cache.get_or_load_weighed_async(1 << 42, 1, Attributes::DATA, || async {
            Ok::<_, String>(6)
        }));
    assert_eq!(*refused.unwrap(), 6);
    assert!(!cache.contains(&(1 << 42)));
    assert_eq!(cache.stats().counter("refused_no_capacity"), 3);
    drop(pins);
    cache.insert(1 << 40, 77).unwrap();
    audit(&cache);
}

/// Polls each of these futures. Takes out those that are ready.
fn take_ready<F: Future + Unpin>(waiting: &mut Vec<(u64, F)>) -> Vec<(u64, F::Output)> {
    let mut context = Context::from_waker(Waker::noop());
    let mut ready = Vec::new();
    waiting.retain_mut(|(n, future)| match Pin::new(future).poll(&mut context) {
        Poll::Ready(output) => {
            ready.push((*n, output));
            false
        }
        Poll::Pending => true,
    });
    ready
}

#[test]
fn who_waits_is_served_first_come_first_served() {
    let tunables = |b: forebay_cache::Builder<u64, u64>| b.tunable("overflow_wait_ms", "60000");
    let cache = Arc::new(tunables(threaded_blocks(100)).build().unwrap());
    let mut pins = full_of_pins(&cache);
    // A load in flight cannot be evicted for the next one.
    let begin = |n| Box::pin(cache.begin_async((1 << 40) + n, 1, Attributes::DATA));
    let mut waiting: Vec<_> = (0..8).map(|n| (n, begin(n))).collect();
    // They queue in this order, and a thread behind them.
    assert!(take_ready(&mut waiting).is_empty(), "granted without capacity");
    let inner = cache.clone();
    let thread = thread::spawn(move || match inner.begin(1 << 41, 1, Attributes::DATA).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("{other:?}"),
    });
    wait_until("the thread waits", || cache.stats().counter("throttle_waits") > 8);
    let mut loads = Vec::new();
    for n in 0..8 {
        assert!(take_ready(&mut waiting).is_empty(), "granted without capacity");
        pins.pop();
        let mut ready = Vec::new();
        wait_until("one is served", || {
            assert!(!thread.is_finished(), "the thread was served out of turn");
            ready = take_ready(&mut waiting);
            !ready.is_empty()
        });
        for (served, begun) in ready {
            assert_eq!(served, n, "served out of turn");
            let Begin::Vacant(guard) = begun.unwrap() else { panic!("{n} is there already") };
            assert_eq!(guard.refusal(), None);
            loads.push(guard);
        }
    }
    pins.pop();
    let last = join("the thread is served", thread);
    assert_eq!(last.refusal(), None);
    drop((loads, last));
    assert!(cache.stats().throttle_wait_ns.count >= 1);
    drop(pins);
    audit(&cache);
}

#[test]
fn a_dropped_async_wait_leaves_the_queue() {
    let cache = threaded_blocks(100).tunable("overflow_wait_ms", "60000").build().unwrap();
    let pins = full_of_pins(&cache);
    for _ in 0..3 {
        let mut waiting = Box::pin(cache.begin_async(1 << 40, 1, Attributes::DATA));
        let waker = std::task::Waker::noop();
        let polled = waiting.as_mut().poll(&mut std::task::Context::from_waker(waker));
        assert!(polled.is_pending());
        drop(waiting);
    }
    drop(pins);
    // No one is ahead in the queue.
    cache.insert(1 << 41, 1).unwrap();
    audit(&cache);
}

#[test]
fn a_storm_never_passes_the_limit() {
    for (shift, inserts) in [("0", 20_000), ("3", 20_000), ("6", 20_000), ("20", 500)] {
        let cache = threaded_blocks(3000)
            .tunable("overflow_shift", shift)
            .tunable("overflow_wait_ms", "5000")
            .build()
            .unwrap();
        let (stop, most) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(cache.stats().reserved, Ordering::Relaxed);
                }
            });
            let threads: Vec<_> = (0..4u64)
                .map(|t| {
                    let cache = &cache;
                    s.spawn(move || {
                        for i in 0..inserts {
                            cache.insert(t << 32 | i, i).unwrap();
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        let stats = cache.stats();
        assert!(most.into_inner() <= stats.limit, "shift {shift}");
        assert!(stats.resident_blocks() <= stats.limit);
        audit(&cache);
    }
}

#[test]
fn a_change_of_the_overflow_limit_takes_effect_at_run_time() {
    let cache = threaded_blocks(1024).tunable("overflow_shift", "10").build().unwrap();
    assert_eq!(cache.stats().limit, 1025);
    cache.set_tunable("overflow_shift", "1").unwrap();
    wait_until("the limit follows", || cache.stats().limit == 1536);
    cache.resize(2048);
    wait_until("the limit follows", || cache.stats().limit == 3072);
    assert_eq!(cache.stats().capacity, 2048);
    audit(&cache);
}

#[test]
fn a_reservation_that_was_too_small_is_set_right_or_refused() {
    let cache = Cache::<u64, u64>::builder()
        .capacity(1000)
        .weigher(|_, v| *v)
        .reclaim(Reclaim::Inline)
        .tunable("sublists", "1")
        .seed(1)
        .build()
        .unwrap();
    for key in 0..500u64 {
        // Declared weight 1, true weight up to 100.
        let value = 1 + key % 100;
        let block = cache.get_or_load_weighed(key, 1, Attributes::DATA, || Ok::<_, String>(value));
        assert_eq!(*block.unwrap(), value);
        assert!(cache.stats().resident_bytes() <= 1000);
    }
    let stats = cache.stats();
    assert_eq!(
        stats.counter("refused_no_capacity"),
        0,
        "everything that was cached can go\n{stats}"
    );
    // Declared too heavy, true weight small. That is known only after the load, so nothing was
    // reserved.
    let block =
        cache.get_or_load_weighed(9999, 1 << 40, Attributes::DATA, || Ok::<_, String>(1)).unwrap();
    assert_eq!(*block, 1);
    drop(block);
    audit(&cache);
}
