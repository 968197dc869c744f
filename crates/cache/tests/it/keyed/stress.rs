//! Many threads: no lookup returns another key's value, or one that is older than a removal or an
//! insert that had returned before the lookup began.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::clock::ManualClock;
use forebay_base::rng::SmallRng;
use forebay_cache::KeyedCache;

use super::{advance, audit};
use crate::support::{full, seed};

const THREADS: u64 = 4;
const KEYS_OF_THREAD: u64 = 16;

/// A hasher with collisions: it keeps a few bits.
#[derive(Clone, Default)]
struct Poor(u64);

impl Hasher for Poor {
    fn finish(&self) -> u64 {
        self.0 % 40
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(*byte));
        }
    }
}

impl BuildHasher for Poor {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self::default()
    }
}

struct Value {
    key: u64,
    version: u64,
}

fn name(key: u64) -> String {
    format!("key {key}")
}

/// Each thread changes its own keys, and reads all. `oldest` has the oldest version of each key
/// that a lookup may return: a change raises it before it returns.
fn run<S: BuildHasher + Send + Sync + 'static>(hasher: S, seed: u64, rounds: u64) {
    let clock = Arc::new(ManualClock::new());
    let cache = KeyedCache::<String, Value>::builder()
        .max_entries(48)
        .time_to_live(Duration::from_secs(1))
        .time_to_idle(Duration::from_millis(300))
        .clock(clock.clone())
        .on_evicted(|evicted| assert_eq!(evicted.key, name(evicted.value.key)))
        .hasher(hasher)
        .build()
        .unwrap();
    let oldest: Vec<AtomicU64> = (0..THREADS * KEYS_OF_THREAD).map(|_| AtomicU64::new(0)).collect();
    let current: Vec<AtomicU64> = oldest.iter().map(|_| AtomicU64::new(0)).collect();
    let check = |key: u64, value: &Value, oldest: u64| {
        assert_eq!(value.key, key, "another key's value, seed {seed}");
        assert!(value.version >= oldest, "{} is older than {oldest}, seed {seed}", value.version);
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, clock, oldest, current) = (&cache, &clock, &oldest, &current);
            scope.spawn(move || {
                let mut rng = SmallRng::from_seed(seed.wrapping_add(thread));
                for _ in 0..rounds {
                    let own = thread * KEYS_OF_THREAD + rng.below(KEYS_OF_THREAD);
                    let any = rng.below(THREADS * KEYS_OF_THREAD);
                    let change = |change: &dyn Fn(u64)| {
                        let version = current[own as usize].fetch_add(1, Ordering::SeqCst) + 1;
                        change(version);
                        oldest[own as usize].store(version, Ordering::SeqCst);
                    };
                    let at = oldest[any as usize].load(Ordering::SeqCst);
                    match rng.below(16) {
                        0..=1 => change(&|version| {
                            let _ = cache.insert(name(own), Value { key: own, version });
                        }),
                        2 => change(&|_| {
                            if let Some(removed) = cache.remove(name(own).as_str()) {
                                check(own, &removed, 0);
                            }
                        }),
                        3..=7 => {
                            let load = || {
                                let version = current[any as usize].load(Ordering::SeqCst);
                                Ok::<_, String>(Value { key: any, version })
                            };
                            check(any, &cache.get_or_load(name(any), load).unwrap(), at);
                        }
                        8 => {
                            cache.remove_if(name(any).as_str(), |value| {
                                check(any, value, 0);
                                value.version.is_multiple_of(5)
                            });
                        }
                        9 => advance(clock, Duration::from_millis(20)),
                        10 => {
                            cache.remove_expired();
                        }
                        _ => {
                            if let Some(value) = cache.get(name(any).as_str()) {
                                assert_eq!(*value.key(), name(any));
                                check(any, &value, at);
                            }
                        }
                    }
                }
            });
        }
    });
    audit(&cache);
}

fn rounds() -> u64 {
    match (cfg!(miri), full()) {
        (true, _) => 30,
        (_, true) => 2_000_000,
        _ => 60_000,
    }
}

#[test]
fn no_lookup_returns_a_wrong_or_outdated_value() {
    run(std::hash::RandomState::new(), seed("keyed stress"), rounds());
}

#[test]
fn nor_does_it_if_keys_collide() {
    run(Poor::default(), seed("keyed stress, collisions"), rounds());
}
