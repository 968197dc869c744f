//! Entries, and changes of weights.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_cache::{Attributes, Class, KeyedCache, Refusal};

use super::{Constant, TICK, advance, audit, inline};

#[test]
fn entries_insert_once() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    let entry = |key: &str| cache.entry(key.to_owned());
    assert_eq!(*entry("a").or_insert_with(|| 1).unwrap(), 1);
    assert_eq!(*entry("a").or_insert_with(|| unreachable!("it is cached")).unwrap(), 1);
    assert_eq!(*entry("b").or_insert(2).unwrap(), 2);
    assert!(entry("c").or_try_insert_with(|| Err::<u64, _>("not today")).is_err());
    assert_eq!(*entry("c").or_try_insert_with(|| Ok::<_, String>(3)).unwrap(), 3);
    assert_eq!(entry("c").key(), "c");
    audit(&cache);
}

#[test]
fn an_entry_is_modified_or_made() {
    let (builder, _) = inline::<String, u64>(10);
    let counts = builder.build().unwrap();
    for word in ["a", "b", "a", "a"] {
        let entry = counts.entry(word.to_owned()).and_modify(|count| count + 1).unwrap();
        entry.or_insert(1).unwrap();
    }
    assert_eq!(counts.get("a").as_deref(), Some(&3));
    assert_eq!(counts.get("b").as_deref(), Some(&1));
    audit(&counts);
}

#[test]
fn a_modified_value_keeps_its_class_and_begins_a_new_life() {
    let (builder, clock) = inline::<String, u64>(10);
    let cache = builder.time_to_live(10 * TICK).build().unwrap();
    let key = || "a".to_owned();
    cache.entry(key()).attributes(Attributes::METADATA).or_insert(1).unwrap();
    advance(&clock, 9 * TICK);
    drop(cache.entry(key()).and_modify(|value| value + 1).unwrap());
    advance(&clock, 9 * TICK);
    assert_eq!(cache.get("a").as_deref(), Some(&2));
    let metadata = |_: &String, _: &u64, class| class == Class::Metadata;
    assert_eq!(cache.retain(metadata), 0);
    // What has expired is not modified.
    advance(&clock, 2 * TICK);
    drop(cache.entry(key()).and_modify(|_| unreachable!("it has expired")).unwrap());
    assert!(!cache.contains("a"));
    audit(&cache);
}

#[test]
fn a_value_of_a_colliding_key_is_not_modified() {
    let cache = inline::<String, u64>(10).0.hasher(Constant).build().unwrap();
    cache.insert("a".to_owned(), 1).unwrap();
    drop(cache.entry("b".to_owned()).and_modify(|_| unreachable!("it is of a")).unwrap());
    assert_eq!(cache.get("a").as_deref(), Some(&1));
    audit(&cache);
}

#[test]
fn a_modification_that_is_too_heavy_is_returned() {
    let cache = KeyedCache::<String, Vec<u8>>::builder()
        .capacity(100)
        .weigher(|_, value| value.len() as u64)
        .build()
        .unwrap();
    cache.insert("a".to_owned(), vec![1; 10]).unwrap();
    let refused = cache.entry("a".to_owned()).and_modify(|_| vec![2; 200]).unwrap_err();
    assert!(matches!(refused.reason, Refusal::TooHeavy { .. }), "{refused}");
    assert_eq!((refused.value.len(), refused.removed), (200, true));
    assert!(!cache.contains("a"));
    audit(&cache);
}

/// The upper half of a value is the number of the last insert, the lower half counts modifications.
#[test]
fn no_modification_is_lost_and_none_undoes_an_insert() {
    let (builder, _) = inline::<String, u64>(100);
    let cache = builder.build().unwrap();
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let done = AtomicBool::new(false);
    let modify = || {
        let entry = cache.entry("a".to_owned()).and_modify(|value| value + 1).unwrap();
        drop(entry);
    };
    cache.insert("a".to_owned(), 0).unwrap();
    std::thread::scope(|scope| {
        let modifiers = [0, 1].map(|_| scope.spawn(|| (0..rounds).for_each(|_| modify())));
        modifiers.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(cache.get("a").as_deref(), Some(&(2 * rounds)));
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                modify();
            }
        });
        for number in 1..=rounds {
            cache.insert("a".to_owned(), number << 32).unwrap();
            for _ in 0..3 {
                assert_eq!(*cache.get("a").unwrap() >> 32, number);
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    audit(&cache);
}

#[test]
fn a_weight_is_changed_in_place() {
    let cache = KeyedCache::<String, u64>::builder()
        .capacity(1000)
        .weigher(|_, value| *value)
        .time_to_live(10 * TICK)
        .hasher(Constant)
        .build()
        .unwrap();
    assert_eq!(cache.set_weight("a", 5), Ok(false));
    cache.insert("a".to_owned(), 10).unwrap();
    assert_eq!(cache.stats().resident_bytes(), 10);
    assert_eq!(cache.set_weight("a", 500), Ok(true));
    assert_eq!(cache.stats().resident_bytes(), 500);
    // Another key of the same hash.
    assert_eq!(cache.set_weight("b", 5), Ok(false));
    assert!(matches!(cache.set_weight("a", 5000), Err(Refusal::TooHeavy { .. })));
    assert_eq!(cache.stats().resident_bytes(), 500);
    assert_eq!(cache.get("a").as_deref(), Some(&10));
    audit(&cache);
}
