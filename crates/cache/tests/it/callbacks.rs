//! Eviction callbacks: on their own thread, and never in the way of reclaim.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;

use forebay_cache::{Attributes, Begin, Cache, Cause, Class, Delivery, Reclaim, Refusal};

use crate::support::{
    Counted, LONG, Live, audit, block_on, inline, join, threaded_blocks, wait_until,
};

/// A gate that callbacks can be held at.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// Opens the gate when a test ends, also by a panic. Otherwise the cache's drop would wait for
/// ever.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[test]
fn every_way_out_is_told_with_its_cause_on_a_thread_of_its_own() {
    let (told, tells) = mpsc::channel();
    let told = Mutex::new(told);
    let cache = inline(1000, |_, _: &u64| 1)
        .on_evicted(Delivery::Lossless, move |event| {
            let thread = thread::current().id();
            let what = (event.key, event.value, event.class, event.cause, thread);
            told.lock().unwrap().send(what).unwrap();
        })
        .build()
        .unwrap();
    let expect = |key: u64, value: u64, class: Class, cause: Cause| {
        let (k, v, c, why, thread) = tells.recv_timeout(LONG).unwrap();
        assert_eq!((k, v, c, why), (key, value, class, cause));
        assert_ne!(thread, thread::current().id());
    };
    cache.insert_with(1, 10, Attributes::METADATA).unwrap();
    cache.remove(&1);
    expect(1, 10, Class::Metadata, Cause::Removed);
    cache.insert(2, 20).unwrap();
    cache.insert(2, 21).unwrap();
    expect(2, 20, Class::Data, Cause::Replaced);
    assert_eq!(cache.retain(|key, _, _| *key != 2), 1);
    expect(2, 21, Class::Data, Cause::Cleared);
    // A value's capacity is released when its callback has ended; so far it has only begun.
    cache.drain_listener();
    for key in 0..1001 {
        cache.insert(key, key).unwrap();
    }
    let gone = (0..1001).find(|key| !cache.contains(key)).unwrap();
    expect(gone, gone, Class::Data, Cause::Capacity);
    assert_eq!(cache.retain(|key, _, _| *key >= 990 || *key <= 970), 19);
    let flushed: HashSet<_> = tells.iter().take(19).map(|(k, _, _, why, _)| (k, why)).collect();
    assert_eq!(flushed, (971..990).map(|key| (key, Cause::Cleared)).collect());
    // A block that was never cached has not left the cache.
    drop(cache.get_or_load_weighed(99, 1 << 40, Attributes::DATA, || Ok::<_, String>(1)).unwrap());
    drop(cache.get_or_load_weighed(98, 1, Attributes::DATA, || Err::<u64, _>("no")));
    audit(&cache);
    cache.close();
    let closed: HashSet<_> = tells.try_iter().map(|(k, _, _, why, _)| (k, why)).collect();
    assert!(closed.iter().all(|(_, why)| *why == Cause::Closed));
    // As many as the queue holds. The others are counted.
    let stats = cache.stats();
    assert_eq!(closed.len() as u64 + stats.counter("callbacks_dropped"), 981);
    assert_eq!(stats.counter("callbacks_run"), 23 + closed.len() as u64);
    audit(&cache);
}

#[test]
fn a_blocked_callback_does_not_stop_reclaim_and_the_queue_is_bounded() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let (gate, live) = (Arc::new(Gate::default()), Live::default());
        let held = gate.clone();
        let cache = Cache::<u64, Counted>::builder()
            .capacity(1000)
            .weigher(|_, _| 1)
            .reclaim(mode)
            .tunable("overflow_wait_ms", "10000")
            .on_evicted(Delivery::Lossy(20), move |event| {
                held.pass();
                drop(event);
            })
            .build()
            .unwrap();
        let _open = OpenAtEnd(gate.clone());
        for key in 0..20_000 {
            cache.insert(key, live.value(key)).unwrap();
        }
        let stats = cache.stats();
        // One in the callback and twenty in the queue. Their weight still counts.
        assert!(live.count() as u64 <= stats.limit + 1, "{stats}");
        assert!(stats.counter("callbacks_dropped") > 10_000, "{stats}");
        assert_eq!(stats.counter("callbacks_run"), 0);
        gate.open();
        cache.drain_listener();
        assert_eq!(cache.stats().counter("callbacks_run"), 21);
        assert_eq!(live.count() as u64, cache.stats().resident_blocks());
        audit(&cache);
        cache.close();
        assert_eq!(live.count(), 0);
        audit(&cache);
    }
}

#[test]
fn heavy_values_that_wait_for_their_callback_do_not_starve_inserters() {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let cache = Cache::<u64, u64>::builder()
        .capacity(1 << 20)
        .weigher(|_, _| 4096)
        .tunable("overflow_wait_ms", "10000")
        .on_evicted(Delivery::Lossy(4096), move |_| held.pass())
        .build()
        .unwrap();
    let _open = OpenAtEnd(gate.clone());
    for key in 0..5000 {
        cache.insert(key, key).unwrap();
    }
    let stats = cache.stats();
    assert!(stats.reserved <= stats.limit, "{stats}");
    assert!(stats.resident_bytes() >= stats.capacity / 2, "{stats}");
    gate.open();
    audit(&cache);
}

#[test]
fn a_panic_is_caught_and_counted() {
    let ran = Arc::new(AtomicU64::new(0));
    let counter = ran.clone();
    let cache = inline(100, |_, _: &u64| 1)
        .on_evicted(Delivery::Lossless, move |event| {
            counter.fetch_add(1, Ordering::SeqCst);
            assert!(event.key % 2 == 0, "a bug in a callback");
        })
        .build()
        .unwrap();
    for key in 0..200 {
        cache.insert(key, key).unwrap();
        cache.drain_listener();
    }
    assert_eq!(ran.load(Ordering::SeqCst), 100);
    let stats = cache.stats();
    let odd = (0..200).filter(|key| key % 2 == 1 && !cache.contains(key)).count() as u64;
    assert!(odd > 0);
    assert_eq!((stats.counter("callbacks_run"), stats.counter("panics_caught")), (100, odd));
    audit(&cache);
    cache.close();
    audit(&cache);
}

#[test]
fn a_callback_may_call_the_cache() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let shared: Arc<Mutex<std::sync::Weak<Cache<u64, u64>>>> = Arc::default();
        let seen = shared.clone();
        let cache = Cache::builder()
            .capacity(100)
            .weigher(|_, _: &u64| 1)
            .reclaim(mode)
            .tunable("overflow_wait_ms", "5000")
            .on_evicted(Delivery::Lossless, move |event| {
                let Some(cache) = seen.lock().unwrap().upgrade() else { return };
                if event.cause == Cause::Capacity && event.value < 3 {
                    // It is inserted again, a few times.
                    let _ = cache.insert(event.key, event.value + 1);
                }
                cache.get(&(event.key + 1));
                let _ = cache.stats();
            })
            .build()
            .unwrap();
        let cache = Arc::new(cache);
        *shared.lock().unwrap() = Arc::downgrade(&cache);
        for key in 0..3000 {
            // Two threads that evict for themselves may take each other's capacity.
            let inserted = cache.insert(key, 0);
            assert!(inserted.is_ok() || mode == Reclaim::Inline);
        }
        cache.drain_listener();
        assert!(cache.stats().counter("callbacks_run") > 0);
        cache.close();
        audit(&cache);
    }
}

#[test]
fn a_callback_may_hold_the_last_reference() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let (gate, live) = (Arc::new(Gate::default()), Live::default());
        let held = gate.clone();
        type Shared = Mutex<Option<Arc<Cache<u64, Counted>>>>;
        let shared: Arc<Shared> = Arc::default();
        let last = shared.clone();
        let (told, tells) = mpsc::channel();
        let told = Mutex::new(told);
        let cache = Cache::builder()
            .capacity(100)
            .weigher(|_, _: &Counted| 1)
            .reclaim(mode)
            .on_evicted(Delivery::Lossy(4096), move |event| {
                held.pass();
                drop(event);
                let cache = last.lock().unwrap().take();
                if let Some(cache) = cache {
                    assert!(Arc::strong_count(&cache) == 1);
                    drop(cache);
                    told.lock().unwrap().send(()).unwrap();
                }
            })
            .build()
            .unwrap();
        for key in 0..150 {
            let _ = cache.insert(key, live.value(key));
        }
        let cache = Arc::new(cache);
        *shared.lock().unwrap() = Some(cache.clone());
        drop(cache);
        gate.open();
        tells.recv_timeout(LONG).unwrap();
        wait_until("the cache is gone", || live.count() == 0);
    }
}

#[test]
fn dropping_the_cache_runs_what_is_queued() {
    let (live, ran) = (Live::default(), Arc::new(AtomicU64::new(0)));
    let counter = ran.clone();
    let cache = inline(100, |_, _: &Counted| 1)
        .on_evicted(Delivery::Lossless, move |event| {
            assert_eq!(event.key, event.value.payload());
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .unwrap();
    for key in 0..300 {
        cache.insert(key, live.value(key)).unwrap();
    }
    let kept = cache.get_owned(&299).unwrap();
    let dropper = thread::spawn(move || drop(cache));
    join("it drops", dropper);
    assert_eq!(live.count(), 1);
    assert!(ran.load(Ordering::SeqCst) <= 299);
    // The callback thread has ended: the value is dropped without a callback or a count.
    drop(kept);
    assert_eq!(live.count(), 0);
}

/// A listener that is slower than the inserters, which then wait for it.
#[test]
fn a_lossless_listener_misses_no_block_and_memory_stays_bounded() {
    let total = if cfg!(miri) { 200 } else { 20_000 };
    for (mode, threads) in [(Reclaim::Inline, 1), (Reclaim::Thread, 1), (Reclaim::Thread, 4)] {
        let live = Live::default();
        let told: Arc<Mutex<Vec<u64>>> = Arc::default();
        let list = told.clone();
        let refused: Mutex<Vec<u64>> = Mutex::default();
        let cache = Cache::<u64, Counted>::builder()
            .capacity(100)
            .weigher(|_, _| 1)
            .reclaim(mode)
            .on_evicted(Delivery::default(), move |event| {
                assert_eq!(event.key, event.value.payload());
                list.lock().unwrap().push(event.key);
            })
            .build()
            .unwrap();
        thread::scope(|s| {
            for thread in 0..threads {
                let (cache, live, refused) = (&cache, &live, &refused);
                s.spawn(move || {
                    for key in (thread..total).step_by(threads as usize) {
                        // A sweep of another thread pins blocks for a moment.
                        if cache.insert(key, live.value(key)).is_err() {
                            refused.lock().unwrap().push(key);
                        }
                        // Values that wait for the listener included.
                        assert!(live.count() <= 101 + threads as i64);
                        if key % 100 == 0 {
                            let reserved = cache.stats().reserved;
                            assert!(reserved <= 101, "{reserved}");
                            cache.clear();
                        }
                    }
                });
            }
        });
        cache.drain_listener();
        let stats = cache.stats();
        let refused = refused.into_inner().unwrap();
        assert!(threads > 1 || refused.is_empty(), "nothing is pinned");
        let known = told.lock().unwrap().len() + refused.len();
        assert_eq!(known as u64 + stats.resident_blocks(), total, "{stats}");
        audit(&cache);
        cache.close();
        let mut told = std::mem::take(&mut *told.lock().unwrap());
        told.extend(refused);
        told.sort_unstable();
        assert_eq!(told, (0..total).collect::<Vec<_>>(), "each once, the rest by the close");
        assert_eq!(cache.stats().counter("callbacks_dropped"), 0);
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn loads_wait_for_a_lossless_listener_too() {
    let told = Arc::new(AtomicU64::new(0));
    let counter = told.clone();
    let cache = threaded_blocks(64)
        .tunable("overflow_wait_ms", "0")
        .on_evicted(Delivery::Lossless, move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .unwrap();
    let cache = Arc::new(cache);
    thread::scope(|s| {
        for thread in 0..4 {
            let cache = &cache;
            s.spawn(move || {
                for key in 0..2000 {
                    let key = thread * 10_000 + key;
                    let block = if key % 2 == 0 {
                        let load = || Ok::<_, String>(key);
                        cache.get_or_load(key, load).unwrap()
                    } else {
                        let load = || async move { Ok::<_, String>(key) };
                        block_on(cache.get_or_load_async(key, load)).unwrap()
                    };
                    assert_eq!(*block, key);
                }
            });
        }
    });
    cache.drain_listener();
    let stats = cache.stats();
    let told = told.load(Ordering::SeqCst);
    assert_eq!(told + stats.resident_blocks(), stats.counter("inserts"), "{stats}");
    assert_eq!(stats.counter("callbacks_dropped"), 0);
    audit(&cache);
}

/// The listener inserts while all capacity is in use, and is the only one that could free some.
#[test]
fn a_lossless_listener_that_inserts_does_not_wait_for_itself() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let shared: Arc<Mutex<std::sync::Weak<Cache<u64, u64>>>> = Arc::default();
        let seen = shared.clone();
        let back = Arc::new(AtomicU64::new(0));
        let counter = back.clone();
        let cache = Cache::builder()
            .capacity(100)
            .weigher(|_, _: &u64| 1)
            .reclaim(mode)
            .on_evicted(Delivery::Lossless, move |event| {
                let Some(cache) = seen.lock().unwrap().upgrade() else { return };
                if event.cause == Cause::Capacity && event.value < 2 {
                    // It takes the capacity of the value that has left.
                    cache.insert(event.key, event.value + 1).expect("capacity in hand");
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            })
            .build()
            .unwrap();
        let cache = Arc::new(cache);
        *shared.lock().unwrap() = Arc::downgrade(&cache);
        let inserter = {
            let cache = cache.clone();
            thread::spawn(move || (0..1000).for_each(|key| cache.insert(key, 0).unwrap()))
        };
        join("the inserter", inserter);
        cache.drain_listener();
        let stats = cache.stats();
        assert!(back.load(Ordering::SeqCst) > 500, "{stats}");
        let left = stats.counter("inserts") - stats.resident_blocks();
        assert_eq!(stats.counter("callbacks_run"), left, "{stats}");
        audit(&cache);
        cache.close();
        audit(&cache);
    }
}

#[test]
fn a_cache_full_of_pins_refuses_at_once_although_the_listener_is_lossless() {
    let cache = threaded_blocks(10)
        .tunable("overflow_wait_ms", "0")
        .on_evicted(Delivery::Lossless, |_| {})
        .build()
        .unwrap();
    (0..10).for_each(|key| cache.insert(key, key).unwrap());
    let pins: Vec<_> = cache.iter().collect();
    let refused = cache.insert(100, 100).unwrap_err();
    assert_eq!(refused.reason, Refusal::NoCapacity);
    assert!(refused.to_string().contains("pinned"), "{refused}");
    assert_eq!(cache.stats().counter("throttle_waits"), 0);
    drop(pins);
    cache.insert(100, 100).unwrap();
    audit(&cache);
}

/// The listener waits for a load whose loader finds no capacity before the listener has run.
#[test]
fn a_loader_does_not_wait_for_a_listener_that_waits_for_its_load() {
    for (wait_ms, nested_load, asynchronous) in
        [("0", false, false), ("0", true, false), ("5", false, false), ("0", true, true)]
    {
        let shared: Arc<Mutex<std::sync::Weak<Cache<u64, u64>>>> = Arc::default();
        let seen = shared.clone();
        let (began, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let hooks = Mutex::new(Some((began, goes)));
        let cache = threaded_blocks(100)
            .tunable("overflow_wait_ms", wait_ms)
            .on_evicted(Delivery::Lossless, move |_| {
                let Some((began, goes)) = hooks.lock().unwrap().take() else { return };
                began.send(()).unwrap();
                goes.recv().unwrap();
                let Some(cache) = seen.lock().unwrap().upgrade() else { return };
                assert_eq!(*cache.get_or_load(7777, || Err::<u64, _>("loaded twice")).unwrap(), 1);
            })
            .build()
            .unwrap();
        let cache = Arc::new(cache);
        *shared.lock().unwrap() = Arc::downgrade(&cache);
        cache.insert(0, 0).unwrap();
        cache.remove(&0);
        begins.recv_timeout(LONG).unwrap();
        let inside = cache.clone();
        let load = move || {
            go.send(()).unwrap();
            let mut refused = false;
            for key in 0..300 {
                if asynchronous {
                    let load = || async move { Ok::<_, String>(key) };
                    block_on(inside.get_or_load_async(key, load)).unwrap();
                } else if nested_load {
                    inside.get_or_load(key, || Ok::<_, String>(key)).unwrap();
                } else {
                    refused |= inside.insert(key, key).is_err();
                }
            }
            assert!(nested_load || refused, "values that left hold all capacity");
            Ok::<_, String>(1)
        };
        let loader = {
            let cache = cache.clone();
            thread::spawn(move || {
                if asynchronous {
                    let load = || async move { load() };
                    assert_eq!(*block_on(cache.get_or_load_async(7777, load)).unwrap(), 1);
                } else {
                    assert_eq!(*cache.get_or_load(7777, load).unwrap(), 1);
                }
            })
        };
        join("the loader", loader);
        assert_eq!(cache.stats().counter("panics_caught"), 0);
        audit(&cache);
    }
}

/// As above, with a load that turns out heavier than declared.
#[test]
fn a_publish_does_not_wait_for_a_listener_that_waits_for_its_load() {
    let shared: Arc<Mutex<std::sync::Weak<Cache<u64, u64>>>> = Arc::default();
    let seen = shared.clone();
    let (began, begins) = mpsc::channel();
    let hooks = Mutex::new(Some(began));
    let cache = inline(100, |_, weight: &u64| *weight)
        .on_evicted(Delivery::Lossless, move |_| {
            let Some(began) = hooks.lock().unwrap().take() else { return };
            began.send(()).unwrap();
            let Some(cache) = seen.lock().unwrap().upgrade() else { return };
            assert_eq!(*cache.get_or_load(7777, || Err::<u64, _>("loaded twice")).unwrap(), 50);
        })
        .build()
        .unwrap();
    let cache = Arc::new(cache);
    *shared.lock().unwrap() = Arc::downgrade(&cache);
    (0..90).for_each(|key| cache.insert(key, 1).unwrap());
    let loader = {
        let cache = cache.clone();
        thread::spawn(move || {
            let Begin::Vacant(guard) = cache.begin(7777, 1, Attributes::DATA).unwrap() else {
                panic!("nobody loads it")
            };
            cache.remove(&0);
            begins.recv_timeout(LONG).unwrap();
            assert_eq!(*guard.publish(50), 50);
        })
    };
    join("the loader", loader);
    audit(&cache);
}

#[test]
fn a_listener_that_keeps_up_leads_to_no_refusal() {
    let total = if cfg!(miri) { 100 } else { 20_000 };
    for (threads, asynchronous) in [(1, true), (1, false), (4, true), (4, false)] {
        let cache = threaded_blocks(16)
            .tunable("overflow_wait_ms", "0")
            .on_evicted(Delivery::Lossless, |_| {})
            .build()
            .unwrap();
        thread::scope(|s| {
            for thread in 0..threads {
                let cache = &cache;
                s.spawn(move || {
                    for key in 0..total {
                        let key = thread * total + key;
                        if asynchronous {
                            let load = || async move { Ok::<_, String>(key) };
                            drop(block_on(cache.get_or_load_async(key, load)).unwrap());
                        } else {
                            drop(cache.insert(key, key));
                        }
                    }
                });
            }
        });
        let refused = cache.stats().counter("refused_no_capacity");
        assert_eq!(refused, 0, "{threads} threads, asynchronous: {asynchronous}");
        audit(&cache);
    }
}

/// The queue is bounded by the capacity, so each event in it holds some.
#[test]
fn the_listener_is_not_told_of_a_load_that_never_held_capacity() {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let cache = inline(100, |_, weight: &u64| *weight)
        .on_evicted(Delivery::Lossless, move |_| held.pass())
        .build()
        .unwrap();
    let _open = OpenAtEnd(gate.clone());
    for key in 0..50 {
        let begun = cache.begin(key, 1 << 40, Attributes::DATA).unwrap();
        let Begin::Vacant(guard) = begun else { panic!("nobody loads it") };
        cache.remove(&key);
        drop(guard.publish(1));
    }
    gate.open();
    audit(&cache);
    assert_eq!(cache.stats().counter("callbacks_run"), 0);
}
