//! Atomic steps on entries: what the function sees, what is done, and what other threads do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use forebay_cache::{
    Attributes, Cause, Class, Computed, Delivery, Evicted, KeyedCache, Op, Refusal,
};

use super::{Constant, TICK, advance, audit, inline};

#[test]
fn a_decision_is_carried_out() {
    let (builder, _) = inline::<String, u64>(10);
    let cache = builder.build().unwrap();
    let compute = |saw: Option<u64>, op| {
        let decide = |old: Option<&u64>| {
            assert_eq!(old.copied(), saw);
            op
        };
        cache.entry("a".to_owned()).and_compute_with(decide).unwrap()
    };
    assert!(matches!(compute(None, Op::Nop), Computed::StillNone));
    assert!(matches!(compute(None, Op::Remove), Computed::StillNone));
    assert!(cache.is_empty());
    assert!(matches!(compute(None, Op::Put(1)), Computed::Inserted(value) if *value == 1));
    assert!(matches!(compute(Some(1), Op::Nop), Computed::Unchanged(value) if *value == 1));
    assert!(matches!(compute(Some(1), Op::Put(2)), Computed::ReplacedWith(value) if *value == 2));
    assert_eq!(cache.get("a").as_deref(), Some(&2));
    let removed = compute(Some(2), Op::Remove);
    assert_eq!(format!("{removed:?}"), "Removed(..)");
    let Computed::Removed(removed) = removed else { unreachable!() };
    assert_eq!(removed.try_into_entry().ok(), Some(("a".to_owned(), 2)));
    assert!(cache.is_empty());
    audit(&cache);
}

#[test]
fn a_value_is_made_of_the_old_one_or_of_none() {
    let (builder, clock) = inline::<String, u64>(10);
    let cache = builder.time_to_live(10 * TICK).build().unwrap();
    let count = || {
        let entry = cache.entry("a".to_owned()).attributes(Attributes::METADATA);
        *entry.and_upsert_with(|count| count.map_or(1, |count| count + 1)).unwrap()
    };
    assert_eq!((count(), count()), (1, 2));
    advance(&clock, 9 * TICK);
    assert_eq!(count(), 3, "an upsert begins a new life");
    advance(&clock, 9 * TICK);
    assert_eq!(count(), 4);
    assert_eq!(cache.retain(|_, _, class| class == Class::Metadata), 0);
    advance(&clock, 10 * TICK);
    assert_eq!(count(), 1, "an expired value is none");
    audit(&cache);
}

#[test]
fn the_listener_hears_of_each_value_once() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let (builder, clock) = inline::<u64, u64>(10);
    let cache = builder
        .time_to_live(10 * TICK)
        .on_evicted(Delivery::Lossless, move |gone| {
            note.lock().unwrap().push((gone.value, gone.cause));
        })
        .build()
        .unwrap();
    let compute = |op: Op<u64>| drop(cache.entry(7).and_compute_with(|_| op).unwrap());
    let ops = [Op::Put(1), Op::Put(2), Op::Nop, Op::Remove, Op::Remove, Op::Put(3)];
    ops.into_iter().for_each(compute);
    advance(&clock, 10 * TICK);
    compute(Op::Put(4));
    cache.drain_listener();
    let want = [(1, Cause::Replaced), (2, Cause::Removed), (3, Cause::Expired)];
    assert_eq!(*seen.lock().unwrap(), want);
    audit(&cache);
}

#[test]
fn an_entry_of_a_colliding_key_is_none_and_gives_way() {
    let cache = inline::<&str, u64>(10).0.hasher(Constant).build().unwrap();
    cache.insert("a", 1).unwrap();
    let seen = cache.entry("b").and_compute_with(|old| {
        assert_eq!(old, None);
        Op::Remove
    });
    assert!(matches!(seen, Ok(Computed::StillNone)));
    assert_eq!(cache.get("a").as_deref(), Some(&1));
    assert_eq!(*cache.entry("b").and_upsert_with(|old| old.map_or(2, |_| 9)).unwrap(), 2);
    assert_eq!((cache.get("a").as_deref(), cache.get("b").as_deref()), (None, Some(&2)));
    audit(&cache);
}

#[test]
fn a_value_that_is_put_takes_the_place_of_a_load() {
    let (builder, _) = inline::<&str, u64>(10);
    let cache = builder.build().unwrap();
    let loaded = cache.get_or_load("a", || {
        // Seen while it is loaded, and by its own loader: neither waits.
        let nothing = cache.entry("a").and_compute_with(|_| Op::Nop).unwrap();
        assert!(matches!(nothing, Computed::StillNone));
        assert_eq!(*cache.entry("a").and_upsert_with(|old| old.map_or(1, |_| 9)).unwrap(), 1);
        Ok::<_, std::io::Error>(7)
    });
    assert_eq!(*loaded.unwrap(), 7, "the load goes to those that wait for it");
    assert_eq!(cache.get("a").as_deref(), Some(&1));
    audit(&cache);
}

/// A load of key 7 by another thread, which lasts until it is told to end.
struct SlowLoad {
    end: mpsc::Sender<()>,
    loaded: mpsc::Receiver<u64>,
}

impl SlowLoad {
    fn begin(cache: &Arc<KeyedCache<u64, u64>>, value: u64) -> Self {
        let ((end, ended), (loaded, wait), (begin, begun)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let cache = cache.clone();
        std::thread::spawn(move || {
            let load = || {
                begin.send(()).unwrap();
                let _ = ended.recv();
                Ok::<_, std::io::Error>(value)
            };
            let value = cache.get_or_load(7, load).map(|value| *value).unwrap();
            let _ = loaded.send(value);
        });
        begun.recv().unwrap();
        Self { end, loaded: wait }
    }

    /// Ends the load. Returns what the thread got.
    fn end(self) -> u64 {
        drop(self.end);
        self.loaded.recv().unwrap()
    }
}

#[test]
fn a_slow_load_gives_way_in_one_step() {
    let (told, seen) = mpsc::channel();
    let (builder, _) = inline(10);
    let listener = move |gone: Evicted<u64, u64>| told.send((gone.value, gone.cause)).unwrap();
    let cache = Arc::new(builder.on_evicted(Delivery::Lossless, listener).build().unwrap());
    let load = SlowLoad::begin(&cache, 1);
    let mut calls = 0;
    let decide = |old: Option<&u64>| {
        calls += 1;
        assert_eq!((old, calls), (None, 1), "nothing has changed");
        Op::Put(2)
    };
    let put = cache.entry(7).and_compute_with(decide).unwrap();
    assert!(matches!(put, Computed::Inserted(value) if *value == 2));
    assert_eq!(load.end(), 1, "the load goes to those that wait for it");
    assert_eq!(cache.get(&7).as_deref(), Some(&2));
    audit(&cache);
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [(1, Cause::Replaced)]);
}

#[test]
fn a_removal_keeps_a_load_out() {
    for ends_early in [false, true] {
        let cache = Arc::new(inline(10).0.build().unwrap());
        let mut load = Some(SlowLoad::begin(&cache, 1));
        let mut seen = Vec::new();
        let decide = |old: Option<&u64>| {
            seen.push(old.copied());
            if ends_early && let Some(load) = load.take() {
                assert_eq!(load.end(), 1);
            }
            Op::Remove
        };
        match cache.entry(7).and_compute_with(decide).unwrap() {
            Computed::Removed(value) => assert!(ends_early && *value == 1),
            other => assert!(!ends_early && matches!(other, Computed::StillNone), "{other:?}"),
        }
        assert_eq!(seen, if ends_early { vec![None, Some(1)] } else { vec![None] });
        assert!(load.is_none_or(|load| load.end() == 1));
        assert!(!cache.contains(&7), "it was loaded before the removal");
        audit(&cache);
    }
}

#[test]
fn a_refused_value_keeps_a_load_out() {
    const HEAVY: u64 = 200;
    for ends_early in [false, true] {
        let meanwhile = Arc::new(Mutex::new(None::<SlowLoad>));
        let taken = meanwhile.clone();
        let weigh = move |_: &u64, value: &u64| {
            let load = taken.lock().unwrap().take().filter(|_| *value == HEAVY);
            assert!(load.is_none_or(|load| load.end() == 1));
            *value
        };
        let builder = KeyedCache::<u64, u64>::builder().capacity(100).weigher(weigh);
        let cache = Arc::new(builder.build().unwrap());
        let mut load = Some(SlowLoad::begin(&cache, 1));
        if ends_early {
            *meanwhile.lock().unwrap() = load.take();
        }
        let make = |old: Option<&u64>| {
            assert_eq!(old, None);
            HEAVY
        };
        let refused = cache.entry(7).and_upsert_with(make).unwrap_err();
        assert!(matches!(refused.reason, Refusal::TooHeavy { .. }), "{refused}");
        assert_eq!(refused.removed, ends_early);
        assert!(load.is_none_or(|load| load.end() == 1));
        assert!(!cache.contains(&7), "the refused value is newer");
        audit(&cache);
    }
}

#[test]
fn a_value_that_is_too_heavy_comes_back() {
    let cache = KeyedCache::<String, Vec<u8>>::builder()
        .capacity(100)
        .weigher(|_, value| value.len() as u64)
        .build()
        .unwrap();
    let key = || "a".to_owned();
    for removed in [false, true] {
        let refused = cache.entry(key()).and_upsert_with(|_| vec![0; 200]).unwrap_err();
        assert!(matches!(refused.reason, Refusal::TooHeavy { .. }), "{refused}");
        assert_eq!((refused.value.len(), refused.removed), (200, removed));
        assert!(!cache.contains("a"));
        cache.insert(key(), vec![0; 10]).unwrap();
    }
    audit(&cache);
}

/// What is counted up is taken out by others, together with the entry. Nothing is lost or counted
/// twice, although most steps find no entry.
#[test]
fn no_step_is_lost() {
    let (builder, _) = inline::<u64, u64>(1000);
    let cache = builder.build().unwrap();
    let (rounds, taken) = (if cfg!(miri) { 50 } else { 20_000 }, AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..rounds {
                    let entry = cache.entry(round % 3);
                    entry.and_upsert_with(|count| count.map_or(1, |count| count + 1)).unwrap();
                }
            });
            scope.spawn(|| {
                for round in 0..rounds {
                    let computed = cache.entry(round % 3).and_compute_with(|_| Op::Remove);
                    if let Computed::Removed(count) = computed.unwrap() {
                        taken.fetch_add(*count, Ordering::Relaxed);
                    }
                }
            });
            // Loads of nothing get in the way.
            scope.spawn(|| {
                for round in 0..rounds {
                    cache.get_or_load(round % 3, || Ok::<_, std::io::Error>(0)).unwrap();
                }
            });
        }
    });
    let left: u64 = cache.iter().map(|count| *count).sum();
    assert_eq!(taken.into_inner() + left, 2 * rounds);
    audit(&cache);
}
