//! Expiry, by a clock that the tests advance.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};
use forebay_cache::{Cause, KeyedCache};

use super::{TICK, advance, audit, inline};
use crate::support::{Live, block_on, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn expired<K, V>(cache: &KeyedCache<K, V>) -> u64
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    cache.usage().left(Cause::Expired)
}

#[test]
fn time_to_live_counts_from_the_insertion() {
    let (builder, clock) = inline::<String, u64>(10);
    let cache = builder.time_to_live(10 * SECOND).build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    advance(&clock, 10 * SECOND - TICK);
    assert_eq!(cache.get("a").as_deref(), Some(&1));
    cache.insert("b".to_owned(), 2).unwrap();
    advance(&clock, TICK);
    assert!(cache.peek("a").is_none() && !cache.contains("a"));
    assert!(cache.get("a").is_none());
    assert_eq!(cache.len(), 1, "a lookup removes the expired entry");
    assert_eq!(cache.get("b").as_deref(), Some(&2));
    assert_eq!(expired(&cache), 1);
    audit(&cache);
}

#[test]
fn an_insert_begins_a_new_life() {
    let (builder, clock) = inline::<String, u64>(10);
    let cache = builder.time_to_live(10 * SECOND).build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    advance(&clock, 9 * SECOND);
    cache.insert("a".to_owned(), 2).unwrap();
    advance(&clock, 9 * SECOND);
    assert_eq!(cache.get("a").as_deref(), Some(&2));
}

#[test]
fn time_to_idle_counts_from_the_last_use() {
    let (builder, clock) = inline::<String, u64>(10);
    let cache = builder.time_to_idle(10 * SECOND).build().unwrap();
    for key in ["used", "idle", "peeked", "loaded"] {
        cache.insert(key.to_owned(), 1).unwrap();
    }
    for _ in 0..5 {
        advance(&clock, 4 * SECOND);
        assert!(cache.get("used").is_some());
        let load = || -> Result<u64, std::io::Error> { unreachable!("it is cached") };
        cache.get_or_load_by_ref("loaded", load).unwrap();
        cache.peek("peeked");
    }
    assert!(cache.get("idle").is_none() && cache.get("peeked").is_none());
    assert_eq!(expired(&cache), 2);
    audit(&cache);
}

#[test]
fn an_entry_has_a_time_to_idle_of_its_own() {
    let (builder, clock) = inline::<&str, u64>(10);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let cache = builder
        .time_to_idle(100 * SECOND)
        .idle_with(move |_, value| {
            counted.fetch_add(1, Ordering::Relaxed);
            (*value > 0).then_some(*value as u32 * SECOND)
        })
        .expire_with(|_, value| (*value == 4).then_some(10 * SECOND))
        .build()
        .unwrap();
    for (key, value) in [("used", 3), ("idle", 3), ("mortal", 4), ("common", 0), ("cut", 1000)] {
        cache.insert(key, value).unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 5);
    for second in [2, 4, 6, 8] {
        advance(&clock, 2 * SECOND);
        assert!(cache.get("used").is_some() && cache.get("mortal").is_some());
        assert_eq!(cache.contains("idle"), second < 3);
    }
    assert!(cache.get("idle").is_none());
    advance(&clock, 2 * SECOND);
    assert!(cache.get("mortal").is_none(), "uses do not extend the life beyond its end");
    advance(&clock, 89 * SECOND);
    assert!(cache.get("used").is_none());
    assert!(cache.get("common").is_some() && cache.get("cut").is_some());
    advance(&clock, 100 * SECOND);
    assert_eq!(cache.remove_expired(), 2);
    audit(&cache);
}

#[test]
fn a_use_without_a_time_to_idle_lasts() {
    let (builder, clock) = inline::<String, u64>(10);
    let changed = Arc::new(AtomicBool::new(true));
    let idles = Arc::clone(&changed);
    let idle = move |_: &String, _: &u64| idles.load(Ordering::Relaxed).then_some(SECOND);
    let cache = builder.idle_with(idle).build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    for is_idle in [false, true] {
        changed.store(is_idle, Ordering::Relaxed);
        assert!(cache.get("a").is_some());
        advance(&clock, 100 * SECOND);
        assert!(cache.contains("a"), "no use makes the life shorter");
    }
    advance(&clock, 63 * 24 * 3600 * SECOND);
    assert!(!cache.contains("a"), "lifetimes are cut");
    audit(&cache);
}

#[test]
fn the_shorter_lifetime_counts() {
    let (builder, clock) = inline::<u64, u64>(10);
    let cache = builder
        .time_to_live(10 * SECOND)
        .time_to_idle(6 * SECOND)
        .expire_with(|_, value| (*value > 0).then_some(*value as u32 * SECOND))
        .build()
        .unwrap();
    for value in [0, 2, 100] {
        cache.insert(value, value).unwrap();
    }
    let mut alive = Vec::new();
    for _ in 0..11 {
        advance(&clock, SECOND);
        alive.push([0, 2, 100].map(|key| cache.get(&key).is_some()));
    }
    let expected = |second: u64| [second < 10, second < 2, second < 10];
    assert_eq!(alive, (1..=11).map(expected).collect::<Vec<_>>());
}

#[test]
fn a_lifetime_of_zero_is_over_at_once_and_a_short_one_is_not() {
    let (builder, clock) = inline::<u64, u64>(10);
    let cache =
        builder.expire_with(|_, value| Some(Duration::from_micros(*value))).build().unwrap();
    cache.insert(0, 0).unwrap();
    cache.insert(1, 1).unwrap();
    assert!(cache.get(&0).is_none());
    assert!(cache.get(&1).is_some());
    let loaded = cache.get_or_load(0, || Ok::<_, std::io::Error>(0)).unwrap();
    assert_eq!(*loaded, 0, "a loaded value is returned whatever its lifetime is");
    drop(loaded);
    advance(&clock, TICK);
    assert!(cache.get(&1).is_none());
    audit(&cache);
}

#[test]
fn the_listener_is_told_that_an_entry_has_expired_however_that_is_found() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let (builder, clock) = inline::<u64, u64>(80);
    let cache = builder
        .time_to_live(SECOND)
        .on_evicted(forebay_cache::Delivery::Lossless, move |evicted| {
            note.lock().unwrap().push((evicted.key, evicted.cause))
        })
        .build()
        .unwrap();
    for key in 0..5 {
        cache.insert(key, key).unwrap();
    }
    advance(&clock, SECOND);
    cache.get(&0);
    cache.insert(1, 1).unwrap();
    assert_eq!(*cache.get_or_load(2, || Ok::<_, std::io::Error>(9)).unwrap(), 9);
    assert!(cache.remove(&3).is_none());
    assert_eq!(cache.remove_expired(), 1);
    cache.drain_listener();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|(key, _)| *key);
    assert_eq!(seen, (0..5).map(|key| (key, Cause::Expired)).collect::<Vec<_>>());
    assert_eq!((expired(&cache), cache.len()), (5, 2));
    audit(&cache);
}

#[test]
fn a_held_value_outlives_its_time() {
    let live = Live::default();
    let (builder, clock) = inline::<u64, _>(10);
    let cache = builder.time_to_live(SECOND).build().unwrap();
    cache.insert(1, live.value(1)).unwrap();
    let held = cache.get_owned(&1).unwrap();
    advance(&clock, SECOND);
    assert_eq!(cache.remove_expired(), 1);
    assert_eq!(held.payload(), 1);
    drop(held);
    assert_eq!(live.count(), 0);
    audit(&cache);
}

#[test]
fn an_expired_value_is_loaded_once_however_many_threads_ask() {
    const THREADS: usize = 8;
    let (builder, clock) = inline::<String, u64>(10);
    let cache = builder.time_to_live(SECOND).build().unwrap();
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let (start, loads) = (Barrier::new(THREADS), AtomicU64::new(0));
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    let loaded = cache.get_or_load_by_ref("a", || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        Ok::<_, std::io::Error>(round)
                    });
                    assert_eq!(*loaded.unwrap(), round);
                });
            }
        });
        assert_eq!(loads.load(Ordering::Relaxed), round + 1);
        advance(&clock, SECOND);
    }
    audit(&cache);
}

#[test]
fn the_reclaimer_removes_what_nobody_asks_for() {
    let live = Live::default();
    let clock = Arc::new(ManualClock::new());
    let cache = KeyedCache::builder()
        .max_entries(100_000)
        .expire_with(|key: &u64, _| (!key.is_multiple_of(4)).then_some(SECOND))
        .clock(clock.clone())
        .build()
        .unwrap();
    let entries = if cfg!(miri) { 40 } else { 80_000 };
    for key in 0..entries {
        cache.insert(key, live.value(key)).unwrap();
    }
    assert_eq!(cache.len() as u64, entries);
    wait_until("the reclaimer has walked", || {
        // Each slice of the walk takes a second of this clock.
        advance(&clock, SECOND);
        cache.len() as u64 == entries / 4
    });
    wait_until("the values were dropped", || live.count() as u64 == entries / 4);
    assert!((0..entries).step_by(4).all(|key| cache.contains(&key)));
    audit(&cache);
}

/// A clock that nobody may read.
struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        if !NOT_READ.with(|flag| flag.get()) {
            return 0;
        }
        panic!("the clock was read");
    }
}

thread_local! {
    static NOT_READ: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[test]
fn hits_of_a_value_without_an_end_read_no_clock() {
    let build = |builder: forebay_cache::KeyedBuilder<u64, u64>| {
        let cache = builder.max_entries(100).clock(Arc::new(NoClock)).build().unwrap();
        cache.insert(1, 1).unwrap();
        cache
    };
    let plain = build(KeyedCache::builder());
    let selective = build(KeyedCache::builder().expire_with(|key, _| (*key > 1).then_some(SECOND)));
    NOT_READ.with(|flag| flag.set(true));
    for cache in [&plain, &selective] {
        assert_eq!(cache.get(&1).as_deref(), Some(&1));
        assert!(cache.contains(&1));
    }
    NOT_READ.with(|flag| flag.set(false));
}

/// All entries are pinned when the insert begins.
#[test]
fn a_value_that_waits_for_capacity_begins_its_life_afterwards() {
    let clock = Arc::new(ManualClock::new());
    let cache = KeyedCache::<String, u64>::builder()
        .max_entries(100)
        .time_to_live(Duration::from_secs(10))
        .clock(clock.clone())
        .tunable("overflow_wait_ms", "60000")
        .build()
        .unwrap();
    let mut pins = Vec::new();
    while cache.stats().reserved < cache.stats().limit {
        let key = pins.len().to_string();
        cache.insert(key.clone(), 0).unwrap();
        pins.push(cache.get_owned(&key).expect("inserted just now, and nothing else can go"));
    }
    let mut insert = Box::pin(cache.insert_async("late".to_owned(), 7));
    let mut context = Context::from_waker(Waker::noop());
    assert!(insert.as_mut().poll(&mut context).is_pending());
    advance(&clock, Duration::from_secs(9));
    drop(pins);
    block_on(insert).unwrap();
    advance(&clock, Duration::from_secs(9));
    assert_eq!(cache.get("late").as_deref(), Some(&7));
    assert!(cache.get("0").is_none());
    advance(&clock, Duration::from_secs(2));
    assert!(cache.get("late").is_none());
}
