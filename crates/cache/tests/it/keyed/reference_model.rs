//! Random operations, compared with a map of values and times.
//!
//! The cache is large enough for all keys, so that the model knows each answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};
use forebay_base::rng::SmallRng;
use forebay_cache::{Computed, KeyedBuilder, KeyedCache, Op};

use super::{TICK, advance, audit, inline};
use crate::support::{full, seed};

const KEYS: u64 = 24;

/// What the model knows of a key.
#[derive(Clone, Copy)]
struct Known {
    value: u64,
    deadline_ns: u64,
    used_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Config {
    time_to_live: Option<u64>,
    time_to_idle: Option<u64>,
    expire_with: bool,
    idle_with: bool,
}

struct Model {
    config: Config,
    known: HashMap<String, Known>,
}

fn ticks(n: u64) -> Duration {
    TICK * n as u32
}

/// The lifetime of an entry by its value, in ticks.
fn own_lifetime(value: u64) -> Option<u64> {
    (!value.is_multiple_of(3)).then_some(value % 50)
}

/// The time that an entry may be idle by its value, in ticks.
fn own_idle(value: u64) -> Option<u64> {
    (!value.is_multiple_of(4)).then_some(value % 40)
}

impl Model {
    fn insert(&mut self, key: &str, value: u64, now_ns: u64) {
        let own = if self.config.expire_with { own_lifetime(value) } else { None };
        let lifetime = [self.config.time_to_live, own].into_iter().flatten().min();
        let deadline_ns = lifetime.map_or(u64::MAX, |n| now_ns + ticks(n).as_nanos() as u64);
        self.known.insert(key.to_owned(), Known { value, deadline_ns, used_ns: now_ns });
    }

    fn get(&mut self, key: &str, now_ns: u64, is_use: bool) -> Option<u64> {
        let known = self.known.get_mut(key)?;
        let own = if self.config.idle_with { own_idle(known.value) } else { None };
        let idle = [self.config.time_to_idle, own].into_iter().flatten().min();
        let idle = idle.map(|n| ticks(n).as_nanos() as u64);
        if now_ns >= known.deadline_ns || idle.is_some_and(|n| now_ns >= known.used_ns + n) {
            self.known.remove(key);
            return None;
        }
        if is_use {
            known.used_ns = now_ns;
        }
        Some(known.value)
    }
}

impl Model {
    /// Keys and values that have not expired, sorted.
    fn alive(&mut self, now_ns: u64) -> Vec<(String, u64)> {
        let mut keys: Vec<String> = self.known.keys().cloned().collect();
        keys.sort();
        let entry = |key: String| self.get(&key, now_ns, false).map(|value| (key, value));
        keys.into_iter().filter_map(entry).collect()
    }
}

/// A cache that is configured like the model.
fn build(config: Config) -> (KeyedBuilder<String, u64>, Arc<ManualClock>) {
    let (mut builder, clock) = inline(KEYS * 2);
    if let Some(n) = config.time_to_live {
        builder = builder.time_to_live(ticks(n));
    }
    if let Some(n) = config.time_to_idle {
        builder = builder.time_to_idle(ticks(n));
    }
    if config.expire_with {
        builder = builder.expire_with(|_, value| own_lifetime(*value).map(ticks));
    }
    if config.idle_with {
        builder = builder.idle_with(|_, value| own_idle(*value).map(ticks));
    }
    (builder, clock)
}

/// One atomic step on an entry, by a number.
fn compute(cache: &KeyedCache<String, u64>, model: &mut Model, key: &str, n: u64, now_ns: u64) {
    let expected = model.get(key, now_ns, true);
    let op = match n % 3 {
        0 => Op::Nop,
        1 => Op::Put(n),
        _ => Op::Remove,
    };
    match op {
        Op::Nop => {}
        Op::Put(value) => model.insert(key, value, now_ns),
        Op::Remove => drop(model.known.remove(key)),
    }
    let computed = cache.entry(key.to_owned()).and_compute_with(|old| {
        assert_eq!(old.copied(), expected, "{key} {n}");
        op
    });
    let now = match computed.expect("there is capacity") {
        Computed::StillNone => (None, None),
        Computed::Unchanged(value) => (Some(*value), Some(*value)),
        Computed::Inserted(value) => (None, Some(*value)),
        Computed::ReplacedWith(value) => (expected, Some(*value)),
        Computed::Removed(value) => (Some(*value), None),
    };
    assert_eq!(now, (expected, model.known.get(key).map(|known| known.value)), "{key} {n}");
}

fn run(seed: u64, config: Config, operations: u64) {
    let (builder, clock) = build(config);
    let cache = builder.build().unwrap();
    let mut model = Model { config, known: HashMap::new() };
    let mut rng = SmallRng::from_seed(seed);
    for n in 0..operations {
        let key = format!("key {}", rng.below(KEYS));
        let now_ns = clock.now_ns();
        let what = rng.below(13);
        let context = format!("seed {seed} {config:?} operation {n}: {what} of {key}");
        match what {
            0..=2 => {
                cache.insert(key.clone(), n).unwrap();
                model.insert(&key, n, now_ns);
            }
            3..=5 => {
                let expected = model.get(&key, now_ns, true);
                assert_eq!(cache.get(key.as_str()).as_deref().copied(), expected, "{context}");
            }
            6 => {
                let expected = model.get(&key, now_ns, false);
                assert_eq!(cache.peek(key.as_str()).as_deref().copied(), expected, "{context}");
            }
            7 => {
                let expected = model.get(&key, now_ns, true).unwrap_or_else(|| {
                    model.insert(&key, n, now_ns);
                    n
                });
                let loaded = cache.get_or_load_by_ref(key.as_str(), || Ok::<_, String>(n));
                assert_eq!(*loaded.unwrap(), expected, "{context}");
            }
            8 => {
                let expected = model.get(&key, now_ns, false);
                model.known.remove(&key);
                assert_eq!(cache.remove(key.as_str()).as_deref().copied(), expected, "{context}");
            }
            9 => {
                let even = |value: &u64| value.is_multiple_of(2);
                let expected = model.get(&key, now_ns, false).filter(even);
                if expected.is_some() {
                    model.known.remove(&key);
                }
                let removed = cache.remove_if(key.as_str(), even);
                assert_eq!(removed.as_deref().copied(), expected, "{context}");
            }
            10 => compute(&cache, &mut model, &key, n, now_ns),
            11 => advance(&clock, TICK * rng.below(20) as u32),
            _ if rng.below(20) == 0 => {
                cache.clear();
                model.known.clear();
            }
            _ if rng.below(4) == 0 => {
                let part = rng.below(5);
                cache.retain(|_, value, _| value % 5 != part);
                model.known.retain(|_, known| known.value % 5 != part);
            }
            _ => {
                let mut found: Vec<(String, u64)> =
                    cache.iter().map(|value| (value.key().clone(), *value)).collect();
                found.sort();
                assert_eq!(found, model.alive(now_ns), "{context}");
                cache.remove_expired();
                assert_eq!(found.len(), cache.len(), "{context}");
            }
        }
    }
    audit(&cache);
}

#[test]
fn it_behaves_like_a_map_with_times() {
    let seed = seed("keyed reference model");
    let operations = if cfg!(miri) { 100 } else { 3000 };
    let rounds = if full() { 100 } else { 4 };
    for round in 0..rounds {
        for lives in 0..16 {
            let config = Config {
                time_to_live: (lives & 1 > 0).then_some(30),
                time_to_idle: (lives & 2 > 0).then_some(15),
                expire_with: lives & 4 > 0,
                idle_with: lives & 8 > 0,
            };
            run(seed.wrapping_add(round), config, operations);
        }
    }
}
