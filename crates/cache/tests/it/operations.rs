//! Operations on cached blocks: looks that count no use, visits of all, removals with a value or a
//! condition.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use forebay_cache::{Attributes, Begin, Cache, LoadError, Reclaim, Refusal};

use crate::support::{
    Counted, Live, audit, inline, inline_blocks, join, threaded_blocks, wait_until,
};

#[test]
fn a_peek_saves_no_block_from_eviction() {
    let cache = inline_blocks(100);
    for key in 0..100 {
        cache.insert(key, key).unwrap();
    }
    assert_eq!(cache.peek(&3).as_deref(), Some(&3));
    let stats = cache.stats();
    assert_eq!((stats.hits(), stats.counter("lookups_missed")), (0, 0));
    cache.get(&4);
    for key in 100..110 {
        cache.insert(key, key).unwrap();
    }
    assert!(cache.peek(&3).is_none() && cache.peek(&4).is_some());
    assert_eq!((cache.len(), cache.is_empty()), (100, false));
    cache.clear();
    assert_eq!((cache.len(), cache.is_empty()), (0, true));
    audit(&cache);
}

#[test]
fn a_visit_of_all_blocks_pins_one_at_a_time_and_holds_no_lock() {
    let cache = inline_blocks(1000);
    for key in 0..1000 {
        cache.insert(key, key).unwrap();
    }
    let mut visited = 0;
    for block in &cache {
        assert_eq!(*block.key(), *block);
        visited += 1;
        // Whatever is not pinned can be evicted, by inserts in the middle of the visit too.
        if visited == 500 {
            let kept = *block.key();
            for key in 1000..3000 {
                cache.insert(key, key).unwrap();
            }
            assert!(cache.contains(&kept), "the block of the visit is pinned");
        }
    }
    assert!(visited >= 1000, "{visited}");
    audit(&cache);
}

#[test]
fn a_visit_finds_each_block_that_stays_once() {
    let cache = threaded_blocks(1 << 20).build().unwrap();
    let stay = if cfg!(miri) { 100 } else { 40_000 };
    for key in 0..stay {
        cache.insert(key, key).unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for thread in 1..3 {
            let (cache, stop) = (&cache, &stop);
            s.spawn(move || {
                for round in 0.. {
                    for key in 0..500 {
                        let key = (thread * 2 + round % 2) * 1_000_000 + key;
                        cache.insert(key, key).unwrap();
                        cache.remove(&(key ^ 1_000_000));
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..5 {
            let mut seen: HashMap<u64, u64> = HashMap::new();
            for block in cache.iter().filter(|block| *block.key() < stay) {
                *seen.entry(*block.key()).or_default() += 1;
            }
            assert_eq!(seen.len() as u64, stay, "blocks that stay were missed");
            assert!(seen.values().all(|times| *times == 1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    audit(&cache);
}

#[test]
fn a_removed_value_can_be_taken_out_once_no_other_thread_has_it() {
    let live = Live::default();
    let cache = inline(100, |_, _: &Counted| 10).build().unwrap();
    cache.insert(1, live.value(11)).unwrap();
    let cached = cache.get_owned(&1).unwrap().try_into_value().unwrap_err();
    let removed = cache.remove(&1).unwrap();
    assert!(!removed.is_cached() && cache.remove(&1).is_none());
    let removed = removed.try_into_value().unwrap_err();
    drop(cached);
    assert_eq!(cache.stats().reserved, 10);
    let value = removed.try_into_value().unwrap();
    assert_eq!((value.payload(), cache.stats().reserved, live.count()), (11, 0, 1));
    drop(value);
    // An uncached block has no weight.
    let heavy =
        cache.get_or_load_weighed(2, 500, Attributes::DATA, || Ok::<_, String>(live.value(2)));
    let heavy = heavy.unwrap().into_owned().try_into_value().unwrap();
    assert_eq!((heavy.payload(), live.count()), (2, 1));
    // It may outlive the cache.
    cache.insert(3, live.value(33)).unwrap();
    let last = cache.remove(&3).unwrap();
    audit(&cache);
    drop(cache);
    assert_eq!(last.try_into_value().unwrap().payload(), 33);
    drop(heavy);
    assert_eq!(live.count(), 0);
}

#[test]
fn one_of_many_owners_of_a_removed_block_takes_its_value_at_most() {
    let live = Live::default();
    let cache = inline(100, |_, _: &Counted| 1).build().unwrap();
    for round in 0..if cfg!(miri) { 5 } else { 2000 } {
        cache.insert(1, live.value(round)).unwrap();
        let removed = cache.remove(&1).unwrap();
        let others = [removed.clone(), removed.clone(), removed];
        let taken = AtomicU64::new(0);
        thread::scope(|s| {
            // A sweep pins headers that are on their way out, for a moment.
            s.spawn(|| cache.retain(|_, _, _| true));
            for block in others {
                let taken = &taken;
                s.spawn(move || match block.try_into_value() {
                    Ok(value) => {
                        assert_eq!(value.payload(), round);
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(block) => assert_eq!(block.payload(), round),
                });
            }
        });
        assert!(taken.into_inner() <= 1);
        assert_eq!(live.count(), 0);
    }
    audit(&cache);
}

#[test]
fn what_is_removed_is_what_the_condition_was_asked_for() {
    let cache = inline_blocks(100);
    cache.insert(1, 10).unwrap();
    let mut asked = Vec::new();
    let removed = cache.remove_if(&1, |value| {
        asked.push(*value);
        if *value < 13 {
            // No lock is held, so it may call the cache. Its first answers are for values that are
            // gone by then.
            cache.insert(1, *value + 1).unwrap();
        }
        true
    });
    assert_eq!((removed.as_deref(), asked), (Some(&13), vec![10, 11, 12, 13]));
    assert!(cache.remove_if(&1, |_| unreachable!()).is_none());
    audit(&cache);
}

#[test]
fn a_conditional_removal_races_replacements() {
    let cache = threaded_blocks(1000).build().unwrap();
    let rounds = if cfg!(miri) { 50 } else { 50_000 };
    cache.insert(7, 1).unwrap();
    thread::scope(|s| {
        s.spawn(|| (2..rounds).for_each(|value| cache.insert(7, value).unwrap()));
        s.spawn(|| {
            for _ in 0..rounds {
                let removed = cache.remove_if(&7, |value| value % 2 == 0);
                assert!(removed.is_none_or(|value| *value % 2 == 0), "an odd value was removed");
            }
        });
    });
    assert_eq!(cache.contains(&7), cache.get(&7).is_some());
    audit(&cache);
}

#[test]
fn a_load_in_flight_is_not_kept_by_retain() {
    let cache = inline_blocks(100);
    cache.insert(1, 1).unwrap();
    let Begin::Vacant(load) = cache.begin(2, 1, Attributes::DATA).unwrap() else { panic!() };
    assert_eq!(cache.retain(|_, _, _| true), 0);
    assert_eq!(*load.publish(20), 20);
    assert!(cache.contains(&1) && !cache.contains(&2));
    // And one that is removed has no value to return.
    let Begin::Vacant(load) = cache.begin(3, 1, Attributes::DATA).unwrap() else { panic!() };
    assert!(cache.remove_if(&3, |_| true).is_none() && cache.remove(&3).is_none());
    load.fail(LoadError::Abandoned);
    audit(&cache);
}

#[test]
fn a_refused_insert_says_whether_an_older_value_was_removed() {
    let cache = inline(100, |_, weight: &u64| *weight).build().unwrap();
    cache.insert(1, 10).unwrap();
    let refused = cache.insert(1, 1000).unwrap_err();
    assert!(matches!(refused.reason, Refusal::TooHeavy { .. }) && refused.removed);
    assert!(refused.to_string().contains("the older block of its key was removed"), "{refused}");
    let refused = cache.insert(1, 1000).unwrap_err();
    assert!(!refused.removed && !refused.to_string().contains("older"), "{refused}");
    assert!(!cache.contains(&1));
    audit(&cache);
}

#[test]
fn operations_are_usable_from_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let cache =
        Arc::new(Cache::<u64, u64>::builder().capacity(10).weigher(|_, _| 1).build().unwrap());
    is_send(&cache.iter());
    is_send(&cache.peek(&1));
    is_send(&cache.remove(&1));
}

#[test]
fn a_changed_weight_evicts_others_and_stays_within_the_capacity() {
    let cache = inline_blocks(100);
    (0..100).for_each(|key| cache.insert(key, key).unwrap());
    assert_eq!(cache.set_weight(&99, 50), Ok(true));
    let stats = cache.stats();
    assert_eq!((stats.resident_bytes(), stats.resident_blocks()), (100, 51));
    assert!(matches!(
        cache.set_weight(&99, 101),
        Err(Refusal::TooHeavy { weight: 101, most: 100 })
    ));
    assert_eq!(cache.set_weight(&1000, 5), Ok(false));
    let pins: Vec<_> = cache.iter().collect();
    assert_eq!(cache.set_weight(&99, 90), Err(Refusal::NoCapacity));
    assert_eq!(cache.set_weight(&99, 1), Ok(true));
    drop(pins);
    assert_eq!((cache.stats().resident_bytes(), cache.stats().reserved), (51, 51));
    audit(&cache);
}

#[test]
fn changes_of_weights_race_evictions_removals_and_each_other() {
    let cache = threaded_blocks(200).build().unwrap();
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    thread::scope(|s| {
        for thread in 0..4u64 {
            let cache = &cache;
            s.spawn(move || {
                for round in 0..rounds {
                    let key = (round * 7 + thread) % 50;
                    match round % 8 {
                        0 => _ = cache.insert(key, key),
                        1 => _ = cache.remove(&key),
                        2 => _ = cache.insert(1000 + round, round),
                        3 => _ = cache.get(&key),
                        _ => _ = cache.set_weight(&key, 1 + (round + thread) % 9),
                    }
                }
            });
        }
        s.spawn(|| {
            (0..rounds / 100).for_each(|n| _ = cache.retain(|key, _, _| key % 50 != n % 50))
        });
    });
    let stats = cache.stats();
    assert_eq!(
        stats.counter("inserts") - stats.counter("left"),
        stats.resident_blocks(),
        "{stats}"
    );
    audit(&cache);
    cache.clear();
    assert_eq!(cache.stats().reserved, 0);
}

#[test]
fn no_modification_is_lost() {
    let cache = threaded_blocks(1000).build().unwrap();
    let rounds = if cfg!(miri) { 20 } else { 5000 };
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..rounds {
                    let entry = cache.entry(7).and_modify(|count| count + 1).unwrap();
                    // The thread that makes it has not modified it, and does so next.
                    entry.or_insert_with(|| 0).unwrap();
                }
            });
        }
    });
    let count = *cache.get(&7).unwrap();
    assert!(count < 4 * rounds && count >= 4 * rounds - 4, "{count}");
    let failed = cache.entry(8).or_try_insert_with(|| Err("no luck"));
    assert!(matches!(failed, Err(LoadError::Failed(_))));
    assert_eq!(*cache.entry(8).or_try_insert_with(|| Ok::<_, String>(80)).unwrap(), 80);
    audit(&cache);
}

/// Stops the next comparison of a key that another one is found to equal.
static AT_EQ: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

#[derive(Clone, Copy, Debug)]
struct Watched(u64);

impl std::hash::Hash for Watched {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        let run = AT_EQ.lock().unwrap().take();
        run.into_iter().for_each(|run| run());
        self.0 == other.0
    }
}

impl Eq for Watched {}

impl forebay_cache::Key for Watched {}

/// The slot of a block that a sweep has retired is still there while a modification holds the
/// lock that the sweep needs to clear it.
#[test]
fn a_modification_does_not_bring_back_a_block_that_a_sweep_has_removed() {
    let cache = Arc::new(
        Cache::<Watched, u64>::builder().max_entries(10).reclaim(Reclaim::Inline).build().unwrap(),
    );
    cache.insert(Watched(1), 1).unwrap();
    let (swept, sweeps) = mpsc::channel();
    let modify = |value: &u64| {
        // Under the lock of the key's partition: the sweep begins, and waits for it.
        let (cache, swept) = (cache.clone(), swept.clone());
        *AT_EQ.lock().unwrap() = Some(Box::new(move || {
            let sweeper = cache.clone();
            swept.send(thread::spawn(move || sweeper.clear())).unwrap();
            wait_until("the block is retired", || cache.iter().next().is_none());
        }));
        value + 1
    };
    let _ = cache.entry(Watched(1)).and_modify(modify).unwrap();
    assert_eq!(join("the sweep", sweeps.recv().unwrap()), 1);
    assert_eq!(cache.peek(&Watched(1)).as_deref(), None);
    audit(&cache);
}
