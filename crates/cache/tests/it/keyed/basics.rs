//! Lookups, inserts and removals with one thread.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_cache::{Attributes, BuildError, Cause, Delivery, KeyedCache, Refusal};

use super::{TICK, advance, audit, inline};
use crate::support::{Live, block_on};

#[test]
fn keys_are_found_in_any_equivalent_form() {
    let (builder, _) = inline::<String, u64>(100);
    let cache = builder.build().unwrap();
    cache.insert("seven".to_owned(), 7).unwrap();
    assert_eq!(cache.get("seven").as_deref(), Some(&7));
    assert_eq!(cache.get(&"seven".to_owned()).as_deref(), Some(&7));
    assert_eq!(cache.get("seven").unwrap().key(), "seven");
    assert!(cache.contains("seven") && !cache.contains("eight"));
    assert_eq!(cache.peek("seven").as_deref(), Some(&7));
    assert_eq!(cache.get_owned("seven").unwrap().key(), "seven");
    assert_eq!((cache.len(), cache.is_empty()), (1, false));
    assert_eq!(cache.remove("seven").as_deref(), Some(&7));
    assert!(cache.remove("seven").is_none() && cache.get("seven").is_none());
    assert!(cache.is_empty());
    audit(&cache);
}

#[test]
fn many_are_found_in_their_order_and_counted_like_one() {
    let (builder, clock) = inline::<String, u64>(100);
    let cache = builder.expire_with(|_, value| (*value == 30).then_some(TICK)).build().unwrap();
    for key in 0..60 {
        cache.insert(key.to_string(), key).unwrap();
    }
    advance(&clock, TICK);
    // More keys than are looked up at once, some missing, one expired, and some twice.
    let names: Vec<String> = (20..70).chain(20..25).map(|key| key.to_string()).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut pins = Vec::new();
    cache.get_many(&keys, &mut pins);
    let found: Vec<_> = pins.iter().map(|value| value.as_deref().copied()).collect();
    let wanted = |name: &String| name.parse().ok().filter(|key| *key < 60 && *key != 30);
    assert_eq!(found, names.iter().map(wanted).collect::<Vec<Option<u64>>>());
    drop(pins);
    let usage = cache.usage();
    assert_eq!((usage.hits(), usage.counter("lookups_missed")), (44, 11));
    assert_eq!(cache.len(), 59, "a lookup removes the expired entry");
    audit(&cache);
}

#[test]
fn a_close_with_a_timeout_says_what_it_waits_for() {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let inside = gate.clone();
    let cache = KeyedCache::<String, u64>::builder()
        .max_entries(100)
        .on_evicted(Delivery::Lossless, move |_| drop(inside.lock().unwrap()))
        .build()
        .unwrap();
    for key in ["a", "b", "c"] {
        cache.insert(key.to_owned(), 1).unwrap();
    }
    let pins = [cache.get_owned("a").unwrap(), cache.get_owned("b").unwrap()];
    let error = cache.close_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.in_use, 2);
    assert!(error.to_string().contains("2 of its blocks are still pinned"), "{error}");
    assert!(cache.get("c").is_none() && cache.insert("d".to_owned(), 1).is_err());
    drop(pins);
    let error = cache.close_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.in_use, 0);
    assert!(error.to_string().contains("its listener still runs"), "{error}");
    drop(held);
    cache.close_timeout(Duration::from_secs(3600)).unwrap();
    assert_eq!(cache.usage().counter("callbacks_run"), 3);
    cache.close();
}

#[test]
fn an_insert_replaces_and_a_refused_one_removes_the_old_value() {
    let cache = KeyedCache::<String, Vec<u8>>::builder()
        .capacity(1000)
        .weigher(|key, value| (key.len() + value.len()) as u64)
        .build()
        .unwrap();
    cache.insert("a".to_owned(), vec![1; 10]).unwrap();
    cache.insert("a".to_owned(), vec![2; 10]).unwrap();
    assert_eq!(cache.get("a").unwrap()[0], 2);
    assert_eq!(cache.len(), 1);
    let refused = cache.insert("a".to_owned(), vec![3; 2000]).unwrap_err();
    assert!(matches!(refused.reason, Refusal::TooHeavy { .. }) && refused.value.len() == 2000);
    assert!(!cache.contains("a"));
    audit(&cache);
}

#[test]
fn keys_and_values_are_dropped_once() {
    let live = Live::default();
    let (builder, _) = inline(10);
    let cache = builder.build().unwrap();
    for n in 0..100 {
        cache.insert((n, vec![live.value(n).payload(); 3]), live.value(n)).unwrap();
    }
    assert_eq!((cache.len(), live.count()), (10, 10));
    let held = cache.get_owned(&(99, vec![99; 3])).unwrap();
    assert_eq!(cache.clear(), 10);
    assert_eq!(live.count(), 1);
    assert!(!held.is_cached());
    assert_eq!(held.clone().payload(), 99);
    drop(held);
    assert_eq!(live.count(), 0);
    audit(&cache);
}

#[test]
fn remove_if_removes_what_is_wanted() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    assert!(cache.remove_if("a", |value| *value == 2).is_none());
    assert!(cache.remove_if("b", |_| true).is_none());
    assert_eq!(cache.remove_if("a", |value| *value == 1).as_deref(), Some(&1));
    assert!(cache.is_empty());
}

#[test]
fn the_listener_gets_keys_and_causes() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (builder, _) = inline::<String, u64>(80);
    let note = seen.clone();
    let cache = builder
        .on_evicted(forebay_cache::Delivery::Lossless, move |evicted| {
            note.lock().unwrap().push((evicted.key, evicted.value, evicted.cause));
        })
        .build()
        .unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    cache.insert("a".to_owned(), 2).unwrap();
    cache.remove("a");
    for n in 0..81 {
        cache.insert(format!("key {n}"), n).unwrap();
    }
    cache.drain_listener();
    cache.remove("key 80");
    audit(&cache);
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|(key, value, _)| (key.clone(), *value));
    let of = |key: &str| -> Vec<_> {
        let events = seen.iter().filter(|event| event.0 == key);
        events.map(|(_, value, cause)| (*value, *cause)).collect()
    };
    assert_eq!(of("a"), [(1, Cause::Replaced), (2, Cause::Removed)]);
    assert_eq!(of("key 80"), [(80, Cause::Removed)]);
    let evicted: Vec<_> = seen.iter().filter(|event| event.2 == Cause::Capacity).collect();
    assert!(!evicted.is_empty() && evicted.len() == seen.len() - 3, "{seen:?}");
    assert!(evicted.iter().all(|(key, value, _)| *key == format!("key {value}")));
}

#[test]
fn all_entries_are_visited_and_some_retained() {
    let (builder, clock) = inline::<String, u64>(100);
    let lifetime = |value: &u64| value.is_multiple_of(10).then_some(TICK);
    let cache = builder.expire_with(move |_, value| lifetime(value)).build().unwrap();
    for n in 0..50 {
        cache.insert(n.to_string(), n).unwrap();
    }
    advance(&clock, TICK);
    let visit = |cache: &KeyedCache<String, u64>| {
        let mut values: Vec<u64> = cache.iter().map(|value| *value).collect();
        values.sort_unstable();
        values
    };
    let alive: Vec<u64> = (0..50).filter(|n| n % 10 > 0).collect();
    assert_eq!(visit(&cache), alive);
    assert_eq!(cache.len(), 50);
    // Expired entries are not shown to `keep`.
    let keep = |key: &String, value: &u64, _| {
        assert!(!value.is_multiple_of(10) && *key == value.to_string());
        !value.is_multiple_of(2)
    };
    assert_eq!(cache.retain(keep), 25);
    assert_eq!(visit(&cache), alive.into_iter().filter(|n| n % 2 > 0).collect::<Vec<_>>());
    assert_eq!((&cache).into_iter().count(), 25);
    let stopped = std::panic::AssertUnwindSafe(|| cache.retain(|_, _, _| panic!("keep")));
    assert!(std::panic::catch_unwind(stopped).is_err());
    audit(&cache);
}

#[test]
fn a_removed_entry_can_be_taken_out() {
    let (builder, _) = inline::<String, Vec<u8>>(10);
    let cache = builder.build().unwrap();
    cache.insert("a".to_owned(), vec![1]).unwrap();
    let other = cache.get_owned("a").unwrap();
    let removed = other.clone().try_into_entry().unwrap_err();
    assert!(removed.is_cached());
    drop(removed);
    let removed = cache.remove("a").unwrap().try_into_entry().unwrap_err();
    drop(other);
    assert_eq!(removed.try_into_entry().unwrap(), ("a".to_owned(), vec![1]));
    audit(&cache);
}

#[test]
fn a_size_has_to_be_given_and_only_one() {
    let builder = KeyedCache::<String, u64>::builder;
    let error = |builder: forebay_cache::KeyedBuilder<String, u64>| builder.build().unwrap_err();
    assert!(matches!(error(builder()), BuildError::NoCapacity));
    assert!(matches!(error(builder().max_entries(0)), BuildError::NoCapacity));
    assert!(matches!(error(builder().capacity(100)), BuildError::NoWeigher));
    assert!(matches!(error(builder().bound(1 << 30)), BuildError::NoWeigher));
    let both = builder().max_entries(1).capacity(1).weigher(|_, _| 1);
    assert!(matches!(error(both), BuildError::TwoSizes));
    assert!(matches!(error(builder().max_entries(1).weigher(|_, _| 1)), BuildError::TwoSizes));
    builder().bound(1 << 30).weigher(|key, _| key.len() as u64).build().unwrap();
}

#[test]
fn the_hasher_can_be_chosen() {
    let (builder, _) = inline::<String, u64>(100);
    let cache = builder.hasher(std::hash::RandomState::new()).build().unwrap();
    for n in 0..50 {
        cache.insert(n.to_string(), n).unwrap();
    }
    assert!((0..50).all(|n| cache.get(n.to_string().as_str()).as_deref() == Some(&n)));
    // An identity hasher is good enough: the cache hashes the result again.
    let (builder, _) = inline::<u64, u64>(100);
    let cache = builder.hasher(Identity::default()).build().unwrap();
    for n in 0..50 {
        cache.insert(n << 40, n).unwrap();
    }
    assert!((0..50).all(|n| cache.get(&(n << 40)).as_deref() == Some(&n)));
    audit(&cache);
}

#[derive(Clone, Default)]
struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = u64::from_ne_bytes(bytes.try_into().unwrap());
    }
}

impl std::hash::BuildHasher for Identity {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self::default()
    }
}

#[test]
fn peek_and_contains_are_no_uses() {
    let (builder, _) = inline::<String, u64>(100);
    let cache = builder.build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    cache.peek("a").unwrap();
    assert!(cache.contains("a") && cache.peek("b").is_none());
    assert_eq!((cache.usage().hits(), cache.usage().misses()), (0, 0));
    cache.get("a").unwrap();
    assert!(cache.get("b").is_none());
    assert_eq!((cache.usage().hits(), cache.usage().misses()), (1, 1));
}

#[test]
fn a_closed_cache_refuses() {
    let (builder, _) = inline::<String, u64>(100);
    let cache = builder.build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    cache.close();
    assert!(cache.get("a").is_none());
    assert_eq!(cache.insert("a".to_owned(), 1).unwrap_err().reason, Refusal::Closed);
    assert!(cache.get_or_load("a".to_owned(), || Ok::<_, std::io::Error>(1)).is_err());
}

#[test]
fn references_and_futures_cross_threads() {
    fn check<T: Send>(value: T) -> T {
        value
    }
    let (builder, _) = inline::<String, u64>(100);
    let cache = check(builder.build().unwrap());
    let value = cache.get_or_load_with_async("a".to_owned(), Attributes::DATA, || async {
        Ok::<_, std::io::Error>(1)
    });
    assert_eq!(*block_on(check(value)).unwrap(), 1);
    check(cache.get("a").unwrap());
    check(cache.get_owned("a").unwrap());
}
