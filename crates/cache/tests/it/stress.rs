//! Many threads, mixed operations, a small cache.
//!
//! Values carry their key and a version. Writers of a key take turns, so no reader may see a
//! version older than one that it knows of.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Begin, Cache, Class, Hint, LoadError, Reclaim};

use crate::support::{Counted, Live, audit, full, seed, wait_until};

const KEYS: u64 = 400;

fn payload(key: u64, version: u64) -> u64 {
    (key << 40) | version
}

struct World {
    cache: Cache<u64, Counted>,
    live: Live,
    /// The version last written, under the key's lock.
    versions: Vec<Mutex<u64>>,
    /// The version that is known to be in effect. A read that starts later must not find an older
    /// one.
    settled: Vec<AtomicU64>,
    /// Versions that are being written or were written.
    started: Vec<AtomicU64>,
}

impl World {
    fn new(mode: Reclaim, capacity: u64) -> Self {
        let cache = Cache::builder()
            .capacity(capacity)
            .weigher(|key, _: &Counted| 1 + key % 3)
            .reclaim(mode)
            .seed(5)
            .tunable("overflow_wait_ms", "50")
            .build()
            .unwrap();
        Self {
            cache,
            live: Live::default(),
            versions: (0..KEYS).map(|_| Mutex::new(0)).collect(),
            settled: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
            started: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Checks the result of a read that began when `least` was settled.
    fn check(&self, key: u64, found: &Counted, least: u64) {
        let (its_key, version) = (found.payload() >> 40, found.payload() & ((1 << 40) - 1));
        assert_eq!(its_key, key, "another key's value");
        assert!(version >= least, "key {key} went back from {least} to {version}");
        assert!(version <= self.started[key as usize].load(Ordering::SeqCst), "not yet written");
    }

    fn settled(&self, key: u64) -> u64 {
        self.settled[key as usize].load(Ordering::SeqCst)
    }

    /// Writes a new version, by insert or by removal.
    fn write(&self, key: u64, removal: bool, attributes: Attributes) {
        let mut version = self.versions[key as usize].lock().unwrap();
        *version += 1;
        self.started[key as usize].store(*version, Ordering::SeqCst);
        if removal {
            self.cache.remove(&key);
        } else {
            // Refused or not, the older value is outdated.
            drop(self.cache.insert_with(key, self.live.value(payload(key, *version)), attributes));
        }
        self.settled[key as usize].store(*version, Ordering::SeqCst);
    }

    /// Reads from the "disk", which is written before the cache.
    fn load(&self, key: u64) -> Counted {
        self.live.value(payload(key, self.started[key as usize].load(Ordering::SeqCst)))
    }

    fn step(&self, rng: &mut SmallRng) {
        let key = rng.below(KEYS).min(rng.below(KEYS));
        let attributes = Attributes {
            class: if key.is_multiple_of(2) { Class::Metadata } else { Class::Data },
            hint: if rng.below(16) == 0 { Hint::Once } else { Hint::Normal },
            label: key,
        };
        let least = self.settled(key);
        match rng.below(100) {
            0..40 => {
                if let Some(found) = self.cache.get(&key) {
                    self.check(key, &found, least);
                    if rng.below(8) == 0 {
                        let owned = found.to_owned_ref();
                        drop(found);
                        thread::yield_now();
                        // A pinned value does not change.
                        self.check(key, &owned, least);
                    }
                }
            }
            40..70 => {
                let load = || match rng.below(10) {
                    0 => Err("no luck"),
                    _ => Ok(self.load(key)),
                };
                match self.cache.get_or_load_weighed(key, 1, attributes, load) {
                    Ok(found) => self.check(key, &found, least),
                    Err(LoadError::Failed(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            70..75 => match self.cache.begin(key, 1 + key % 3, attributes).unwrap() {
                Begin::Hit(found) => self.check(key, &found, least),
                Begin::InFlight(in_flight) if rng.below(2) == 0 => drop(in_flight),
                Begin::InFlight(in_flight) => {
                    if let Ok(found) = in_flight.wait() {
                        self.check(key, &found, least);
                    }
                }
                Begin::Vacant(guard) if rng.below(4) == 0 => drop(guard),
                Begin::Vacant(guard) => {
                    let block = guard.publish(self.load(key));
                    self.check(key, &block, least);
                }
            },
            75..90 => self.write(key, false, attributes),
            90..97 => self.write(key, true, attributes),
            97 => {
                self.cache.contains(&key);
            }
            98 if rng.below(20) == 0 => {
                let part = rng.below(5);
                self.cache.retain(|key, _, _| key % 5 != part);
            }
            98 => drop(self.cache.stats()),
            _ => match rng.below(60) {
                0 => drop(self.cache.clear()),
                1 => self.cache.resize(100 + rng.below(400)),
                2 => self.cache.trim(),
                3 => self
                    .cache
                    .set_tunable("overflow_shift", &(1 + rng.below(8)).to_string())
                    .unwrap(),
                _ => {}
            },
        }
    }

    /// At rest: nothing is lost, nothing is left over.
    fn audit(&self) {
        audit(&self.cache);
        // The reclaimer's last pass may be between removing a block and dropping it.
        let settled = || self.live.count() as u64 == self.cache.stats().resident_blocks();
        wait_until("as many values live as blocks are resident", settled);
        for key in 0..KEYS {
            if let Some(found) = self.cache.get(&key) {
                self.check(key, &found, self.settled(key));
            }
        }
    }
}

fn storm(mode: Reclaim, threads: u64, name: &str) {
    let world = World::new(mode, 300);
    let (rounds, steps) = if full() { (100, 200_000) } else { (20, 30_000) };
    let seed = seed(name);
    for round in 0..rounds {
        thread::scope(|s| {
            for t in 0..threads {
                let world = &world;
                s.spawn(move || {
                    let mut rng = SmallRng::from_seed(seed ^ (t << 32) ^ (round << 48));
                    (0..steps / threads).for_each(|_| world.step(&mut rng));
                });
            }
        });
        world.audit();
    }
    let stats = world.cache.stats();
    let evicted = stats.counter("evicted_mru") + stats.counter("evicted_mfu");
    assert!(evicted > 0 && stats.hits() > 0 && world.live.made() > 0, "{stats}");
    world.cache.close();
    assert_eq!(world.live.count(), 0);
    audit(&world.cache);
}

#[test]
fn a_storm_with_a_reclaimer() {
    storm(Reclaim::Thread, 4, "a_storm_with_a_reclaimer");
}

#[test]
fn a_storm_of_more_threads_than_there_are_slots() {
    storm(Reclaim::Thread, 80, "a_storm_of_more_threads_than_there_are_slots");
}

#[test]
fn a_storm_in_which_all_evict() {
    storm(Reclaim::Inline, 4, "a_storm_in_which_all_evict");
}

/// One hot key, overwritten all the time. Readers always find it, and never an older version.
#[test]
fn an_overwritten_key_is_never_missed() {
    let live = Live::default();
    let cache =
        Cache::builder().capacity(1000).weigher(|_, _: &Counted| 1).seed(1).build().unwrap();
    cache.insert(7u64, live.value(0)).unwrap();
    let settled = AtomicU64::new(0);
    let writes = if full() { 2_000_000 } else { 100_000 };
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                loop {
                    let least = settled.load(Ordering::SeqCst);
                    let found = cache.get(&7).expect("it is there all the time");
                    assert!(found.payload() >= least);
                    if found.payload() == writes {
                        return;
                    }
                }
            });
        }
        for version in 1..=writes {
            cache.insert(7, live.value(version)).unwrap();
            settled.store(version, Ordering::SeqCst);
        }
    });
    assert_eq!(live.count(), 1);
    audit(&cache);
}

/// Blocks that fit are all there, whatever other threads do to theirs.
#[test]
fn what_fits_stays() {
    let cache = Cache::<u64, u64>::builder().capacity(1 << 20).weigher(|_, _| 1).build().unwrap();
    let first = seed("what_fits_stays");
    thread::scope(|s| {
        for t in 0..4u64 {
            let cache = &cache;
            s.spawn(move || {
                let mut rng = SmallRng::from_seed(first.wrapping_add(t));
                let mut mine = std::collections::HashMap::new();
                for i in 0..60_000 {
                    let key = (t << 32) | rng.below(5000);
                    match rng.below(4) {
                        0 => {
                            cache.insert(key, i).unwrap();
                            mine.insert(key, i);
                        }
                        1 => {
                            let removed = cache.remove(&key).map(|value| *value);
                            assert_eq!(removed, mine.remove(&key));
                        }
                        _ => assert_eq!(cache.get(&key).map(|v| *v), mine.get(&key).copied()),
                    }
                }
                for (key, value) in mine {
                    assert_eq!(cache.get(&key).map(|v| *v), Some(value));
                }
            });
        }
    });
    audit(&cache);
}
