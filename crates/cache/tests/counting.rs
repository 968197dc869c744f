//! The cost of a hit as the counting build counts it: `--features counting`.
#![allow(clippy::disallowed_methods, reason = "tests start threads themselves")]

use std::sync::Arc;
use std::thread;

use forebay_base::clock::ManualClock;
use forebay_base::rng::SmallRng;
use forebay_base::sync::count::{self, Counts};
use forebay_cache::{Attributes, Begin, Cache, KeyedCache};

const BLOCKS: u64 = 10_000;
const HITS: u64 = 100_000;

fn filled() -> Cache<u64, u64> {
    let cache = Cache::builder().capacity(4 * BLOCKS).weigher(|_, _| 1).seed(1).build().unwrap();
    for key in 0..BLOCKS {
        cache.insert(key, key).unwrap();
    }
    cache
}

/// The cost of `HITS` calls of `hit` on the calling thread.
fn cost(mut hit: impl FnMut(u64)) -> Counts {
    let mut rng = SmallRng::from_seed(1);
    // The thread's slot and its counters' shard are made at their first use.
    hit(0);
    let before = count::thread();
    for _ in 0..HITS {
        hit(rng.below(BLOCKS));
    }
    let after = count::thread();
    Counts {
        locks: after.locks - before.locks,
        rmw: after.rmw - before.rmw,
        cas_failed: after.cas_failed - before.cas_failed,
        retries: after.retries - before.retries,
        ..Counts::default()
    }
}

/// Two updates per hit. Now and then another key's slot has the same tag, and its header is pinned
/// to compare keys.
fn assert_cheap(cost: Counts) {
    let strangers = cost.rmw - 2 * HITS;
    assert!(strangers < HITS / 50, "{cost:?}");
    assert_eq!(Counts { rmw: 0, ..cost }, Counts::default());
}

#[test]
fn a_hit_of_a_keyed_cache_is_as_cheap() {
    let plain = KeyedCache::<String, u64>::builder().max_entries(4 * BLOCKS).seed(1);
    let mortal = KeyedCache::<String, u64>::builder().max_entries(4 * BLOCKS).seed(1);
    let hour = std::time::Duration::from_secs(3600);
    // Time stands still: the first use of an entry in each tick notes the time, by one update.
    let mortal = mortal.clock(Arc::new(ManualClock::new()));
    for builder in [plain, mortal.time_to_live(hour).time_to_idle(hour)] {
        let cache = builder.build().unwrap();
        let names: Vec<String> = (0..BLOCKS).map(|key| format!("key {key}")).collect();
        for (name, key) in names.iter().zip(0..) {
            cache.insert(name.clone(), key).unwrap();
        }
        let name = |key: u64| names[key as usize].as_str();
        assert_cheap(cost(|key| assert_eq!(*cache.get(name(key)).unwrap(), key)));
        assert_cheap(cost(|key| assert!(cache.contains(name(key)))));
        let load = || -> Result<u64, String> { panic!("it is there") };
        assert_cheap(cost(|key| {
            assert_eq!(*cache.get_or_load_by_ref(name(key), load).unwrap(), key);
        }));
    }
}

#[test]
fn a_hit_takes_no_lock_and_two_updates_of_its_own_header() {
    let cache = filled();
    assert_cheap(cost(|key| assert_eq!(*cache.get(&key).unwrap(), key)));
    assert_cheap(cost(|key| assert_eq!(*cache.get_owned(&key).unwrap(), key)));
    assert_cheap(cost(|key| assert!(cache.contains(&key))));
    let mut found = Vec::new();
    assert_cheap(cost(|key| {
        cache.get_many(&[key], &mut found);
        assert_eq!(found[0].as_deref(), Some(&key));
    }));
    drop(found);
    let begin = |key| match cache.begin(key, 1, Attributes::DATA).unwrap() {
        Begin::Hit(block) => assert_eq!(*block, key),
        other => panic!("{other:?}"),
    };
    assert_cheap(cost(begin));
    let load = |key| {
        let block =
            cache.get_or_load_weighed(key, 1, Attributes::DATA, || -> Result<u64, String> {
                panic!("it is there")
            });
        assert_eq!(*block.unwrap(), key);
    };
    assert_cheap(cost(load));
    cache.audit();
}

#[test]
fn a_miss_of_a_lookup_takes_no_lock_and_no_update() {
    let cache = filled();
    let cost = cost(|key| assert!(cache.get(&(key + (1 << 40))).is_none()));
    assert_eq!(cost.locks, 0);
    assert!(cost.rmw < HITS / 50, "{cost:?}");
}

#[test]
fn hits_of_many_threads_take_no_lock_either() {
    let cache = filled();
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let cost = cost(|key| assert_eq!(*cache.get(&key).unwrap(), key));
                assert_eq!(cost.locks, 0);
                // Two per hit, other keys' headers, and retries of threads that met on one header.
                assert!(cost.rmw - cost.cas_failed < 2 * HITS + HITS / 50, "{cost:?}");
            });
        }
    });
    cache.audit();
}
