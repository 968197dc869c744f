//! The cache for keys of any type.

mod basics;
mod collisions;
mod compute;
mod entries;
mod expiry;
mod loading;
mod panics;
mod reference_model;
mod stress;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::clock::ManualClock;
use forebay_cache::{KeyedBuilder, KeyedCache, Reclaim};

/// A time that the cache's clock counts exactly.
const TICK: Duration = Duration::from_millis(5);

/// A hasher to which all keys are alike.
#[derive(Clone, Default)]
struct Constant;

impl Hasher for Constant {
    fn finish(&self) -> u64 {
        7
    }
    fn write(&mut self, _: &[u8]) {}
}

impl BuildHasher for Constant {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self
    }
}

/// A cache that evicts in the inserting thread, in exact order, and its clock.
fn inline<K, V>(entries: u64) -> (KeyedBuilder<K, V>, Arc<ManualClock>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let clock = Arc::new(ManualClock::new());
    let builder = KeyedCache::builder()
        .max_entries(entries)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .tunable("sublists", "1")
        .clock(clock.clone());
    (builder, clock)
}

fn advance(clock: &ManualClock, by: Duration) {
    clock.advance(by.as_nanos() as u64);
}

/// Audits a cache that no thread uses.
fn audit<K, V, S>(cache: &KeyedCache<K, V, S>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    cache.drain_listener();
    cache.audit();
}
