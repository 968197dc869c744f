//! The cache for keys of any type: loads of colliding keys against inserts and removals, and expiry
//! against hits and reloads.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};
use forebay_base::model::{below, check, join, spawn};
use forebay_cache::{Cause, KeyedCache, LoadError, Op, Reclaim};

use crate::harness::{Block, Ledger};

const LIFETIME: Duration = Duration::from_secs(1);

/// A hasher to which all keys are alike.
#[derive(Clone)]
struct Alike;

impl Hasher for Alike {
    fn finish(&self) -> u64 {
        7
    }
    fn write(&mut self, _: &[u8]) {}
}

impl BuildHasher for Alike {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self
    }
}

/// A cache in which all keys collide and values live for a time, and what must be freed with it.
struct World {
    cache: KeyedCache<u64, Block, Alike>,
    ledger: Arc<Ledger>,
    clock: Arc<ManualClock>,
}

impl World {
    fn new() -> Arc<Self> {
        let clock = Arc::new(ManualClock::new());
        let cache = KeyedCache::builder()
            .max_entries(10)
            .hasher(Alike)
            .time_to_live(LIFETIME)
            .reclaim(Reclaim::Inline)
            .seed(crate::harness::SEED)
            .clock(clock.clone())
            .build()
            .expect("a small cache");
        Arc::new(Self { cache, ledger: Ledger::new(), clock })
    }

    fn block(&self, key: u64, version: u64) -> Block {
        let mut block = Block::new(&self.ledger, key);
        block.version = version;
        block
    }

    /// The version that is cached.
    fn get(&self, key: u64) -> Option<u64> {
        self.cache.get(&key).map(|block| {
            block.check(key);
            block.version
        })
    }

    /// Loads a block of that version, unless one is cached. Returns the version.
    fn load(&self, key: u64, version: impl FnOnce() -> u64) -> u64 {
        let load = || Ok::<_, LoadError>(self.block(key, version()));
        let block = self.cache.get_or_load(key, load).expect("the loader succeeds");
        block.check(key);
        block.version
    }

    fn end(world: Arc<Self>) {
        let world = Arc::into_inner(world).expect("all threads have ended");
        world.cache.audit();
        drop(world.cache);
        world.ledger.assert_gone();
    }
}

/// Each request gets a value or an error of its own key, and none waits for ever.
#[test]
fn loads_of_colliding_keys_do_not_mix() {
    check(9000, || {
        let world = World::new();
        let asker = |key: u64| {
            let world = world.clone();
            spawn(move || {
                let load = || if below(3) == 0 { Err(key) } else { Ok(world.block(key, 1)) };
                match world.cache.get_or_load(key, load) {
                    Ok(block) => block.check(key),
                    Err(LoadError::Failed(of)) => assert_eq!(*of, key, "an error of another key"),
                    Err(error) => panic!("{error}"),
                }
            })
        };
        let threads = [asker(1), asker(2), asker(1 + below(2))];
        match below(4) {
            0 => drop(world.cache.remove(&1)),
            1 => drop(world.cache.clear()),
            2 => drop(world.cache.insert(2, world.block(2, 2))),
            _ => drop(world.cache.remove_if(&1, |block| block.version == 1)),
        }
        world.get(1);
        join(threads);
        World::end(world);
    });
}

/// Each upsert counts one up from what it has seen, whatever loads and colliding keys are there.
#[test]
fn upserts_are_not_lost() {
    check(9000, || {
        let world = World::new();
        let counter = || {
            let world = world.clone();
            spawn(move || {
                let count = |old: Option<&Block>| world.block(1, old.map_or(1, |b| b.version + 1));
                world.cache.entry(1).and_upsert_with(count).expect("there is capacity").check(1);
            })
        };
        let threads = [counter(), counter()];
        let loads = below(2) == 0;
        if loads {
            world.load(1, || 0);
        } else {
            // It may displace the count.
            world.cache.entry(2).and_upsert_with(|_| world.block(2, 9)).expect("there is capacity");
        }
        join(threads);
        match world.get(1) {
            Some(count) if loads => assert_eq!(count, 2),
            Some(count) => assert!(count == 1 || count == 2, "{count}"),
            None => assert!(!loads && world.get(2) == Some(9)),
        }
        World::end(world);
    });
}

/// A load within a load of a colliding key, by two threads in opposite order.
#[test]
fn loaders_of_colliding_keys_may_nest() {
    check(6000, || {
        let world = World::new();
        let asker = |outer: u64, inner: u64| {
            let world = world.clone();
            spawn(move || world.load(outer, || 1 + world.load(inner, || 1)))
        };
        let versions = join([asker(1, 2), asker(2, 1)]);
        // The inner load of one thread may be the outer load of the other.
        assert!(versions.iter().all(|version| (1..=3).contains(version)), "{versions:?}");
        World::end(world);
    });
}

/// After a change of what is loaded and an insert, a removal, or a step that does either, nothing
/// older is returned, whatever loads are in flight, of the same key or of a colliding one.
#[test]
fn no_load_brings_back_what_was_replaced_or_removed() {
    check(9000, || {
        let world = World::new();
        let database = Arc::new(AtomicU64::new(1));
        let asker = |key: u64| {
            let (world, database) = (world.clone(), database.clone());
            let version = move || {
                let version = database.load(Ordering::Relaxed);
                shuttle::thread::yield_now();
                version
            };
            spawn(move || world.load(key, version))
        };
        let threads = [asker(1), asker(2), asker(1)];
        // So that loads have begun.
        (0..below(20)).for_each(|_| shuttle::thread::yield_now());
        database.store(2, Ordering::Relaxed);
        match below(4) {
            0 => drop(world.cache.remove(&1)),
            1 => world.cache.insert(1, world.block(1, 2)).expect("there is capacity"),
            2 => drop(world.cache.entry(1).and_upsert_with(|_| world.block(1, 2))),
            _ => drop(world.cache.entry(1).and_compute_with(|_| Op::Remove)),
        }
        let newest = |version: Option<u64>| version.is_none_or(|version| version == 2);
        assert!(newest(world.get(1)), "an outdated load has come back");
        join(threads);
        assert!(newest(world.get(1)), "an outdated load has come back");
        World::end(world);
    });
}

/// A value whose time is over is returned by no lookup, is loaded once, and its removal never takes
/// its successor.
#[test]
fn an_expired_value_is_reloaded_once() {
    check(9000, || {
        let world = World::new();
        let end_ns = LIFETIME.as_nanos() as u64;
        world.cache.insert(1, world.block(1, 1)).expect("there is capacity");
        let loads = Arc::new(AtomicUsize::new(0));
        // What a lookup that began after the end may not return.
        let judge = move |world: &World, look: &dyn Fn() -> Option<u64>| {
            let began_ns = world.clock.now_ns();
            if look() == Some(1) {
                assert!(began_ns < end_ns, "an expired value was returned");
            }
        };
        let loader = || {
            let (world, loads) = (world.clone(), loads.clone());
            spawn(move || {
                let version = || {
                    loads.fetch_add(1, Ordering::Relaxed);
                    2
                };
                judge(&world, &|| Some(world.load(1, version)));
            })
        };
        let hitter = || {
            let world = world.clone();
            spawn(move || match below(3) {
                0 => drop(world.cache.remove_expired()),
                1 => judge(&world, &|| world.cache.peek(&1).map(|block| block.version)),
                _ => judge(&world, &|| world.get(1)),
            })
        };
        let threads = [loader(), loader(), hitter(), hitter()];
        world.clock.advance(end_ns);
        join(threads);
        let loads = loads.load(Ordering::Relaxed);
        assert!(loads <= 1, "{loads} loads");
        // One of the two has removed the first value; the second one stays.
        assert_eq!(world.get(1), (loads == 1).then_some(2));
        assert_eq!(world.cache.usage().left(Cause::Expired), 1);
        World::end(world);
    });
}

/// Of two uses, the one counts after which the entry lives longer.
#[test]
fn no_use_makes_a_life_shorter() {
    check(3000, || {
        let (clock, uses) = (Arc::new(ManualClock::new()), AtomicUsize::new(0));
        let idle = move |_: &u64, _: &u64| {
            let seconds = [1, 5, 2].get(uses.fetch_add(1, Ordering::Relaxed));
            seconds.map(|seconds| *seconds * LIFETIME)
        };
        let builder = KeyedCache::builder().max_entries(10).reclaim(Reclaim::Inline);
        let builder = builder.seed(crate::harness::SEED).clock(clock.clone()).idle_with(idle);
        let cache = Arc::new(builder.build().expect("a small cache"));
        cache.insert(1, 7).expect("there is capacity");
        let user = || {
            let cache = cache.clone();
            spawn(move || assert!(cache.get(&1).is_some()))
        };
        join([user(), user()]);
        clock.advance(3 * LIFETIME.as_nanos() as u64);
        assert!(cache.contains(&1), "the longer use was lost");
    });
}
