//! The secondary cache's guards against the evictor and removals, with a double that keeps offered
//! blocks and finishes them on another thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::sync::Mutex;
use forebay_cache::{Candidate, LoadGuard, Reclaim, Refusal, SecondaryCache, Writing};

use crate::harness::{Block, Ledger, World};
use forebay_base::model::{below, check, join, spawn};

/// A secondary cache in memory.
struct Double {
    writing: Mutex<Vec<Writing<u64, Block>>>,
    loads: Mutex<Vec<LoadGuard<u64, Block>>>,
    stored: Mutex<HashMap<u64, u64>>,
    offered: AtomicU64,
}

impl Double {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            writing: Mutex::named("double", Vec::new()),
            loads: Mutex::named("double", Vec::new()),
            stored: Mutex::named("double", HashMap::new()),
            offered: AtomicU64::new(0),
        })
    }

    /// Completes the writes and loads that have begun.
    fn step(&self, ledger: &Arc<Ledger>) {
        let writing = std::mem::take(&mut *self.writing.lock());
        for block in writing {
            let (key, version) = (*block.key(), block.version);
            block.check(key);
            if block.is_outdated() || below(3) == 0 {
                drop(block);
            } else {
                self.stored.lock().insert(key, version);
                if !block.stored() {
                    // Removed meanwhile: the written copy is outdated.
                    self.stored.lock().remove(&key);
                }
            }
        }
        let loads = std::mem::take(&mut *self.loads.lock());
        for guard in loads {
            let key = *guard.key();
            match below(3) {
                0 => drop(guard),
                1 => guard.withdraw(),
                _ => guard.publish(Block::new(ledger, key)).check(key),
            }
        }
    }

    fn stop(&self) {
        self.writing.lock().clear();
        self.loads.lock().clear();
    }
}

impl SecondaryCache<u64, Block> for Double {
    fn offer(&self, candidates: Vec<Candidate<u64, Block>>) {
        for candidate in candidates {
            self.offered.fetch_add(1, Ordering::Relaxed);
            candidate.value().check(*candidate.key());
            if below(3) > 0 {
                let writing = candidate.write();
                self.writing.lock().extend(writing);
            }
        }
    }

    fn load(&self, guard: LoadGuard<u64, Block>) -> Result<(), LoadGuard<u64, Block>> {
        if !self.stored.lock().contains_key(guard.key()) {
            return Err(guard);
        }
        self.loads.lock().push(guard);
        Ok(())
    }

    fn forget(&self, key: &u64) {
        self.stored.lock().remove(key);
    }
}

fn world(double: &Arc<Double>) -> Arc<World> {
    let double = double.clone();
    Arc::new(World::build(3, move |builder| {
        builder.reclaim(Reclaim::Inline).secondary_cache(double).tunable("offer_ahead", "4")
    }))
}

/// Writes begin and end while blocks are evicted, removed and overwritten. Loads are answered by
/// the secondary cache, on its thread.
#[test]
fn writes_and_loads_race_evictions_and_removals() {
    check(6000, || {
        let double = Double::new();
        let world = world(&double);
        let inserter = {
            let world = world.clone();
            spawn(move || (0..5).for_each(|key| _ = world.insert(key)))
        };
        let asker = {
            let world = world.clone();
            spawn(move || {
                for _ in 0..3 {
                    let key = below(5);
                    let load = || Ok::<_, forebay_cache::LoadError>(world.block(key, 1));
                    match world.cache().begin(key, 1, forebay_cache::Attributes::DATA).unwrap() {
                        forebay_cache::Begin::Hit(block) => block.check(key),
                        // The double may never answer: the wait is given up.
                        forebay_cache::Begin::InFlight(in_flight) => drop(in_flight),
                        forebay_cache::Begin::Vacant(guard) => {
                            guard.publish(load().unwrap()).check(key);
                        }
                    }
                    if below(2) == 0 {
                        world.cache().remove(&below(5));
                    }
                }
            })
        };
        for _ in 0..3 {
            double.step(&world.ledger);
        }
        join([inserter, asker]);
        double.stop();
        World::end(world);
    });
}

/// A block that is being written is not evicted. A remover takes it all the same.
#[test]
fn what_is_being_written_stays() {
    check(6000, || {
        let double = Double::new();
        let world = world(&double);
        (0..4).for_each(|key| _ = world.insert(key));
        let writing = std::mem::take(&mut *double.writing.lock());
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || (first..first + 3).for_each(|key| _ = world.insert(key)))
        };
        let threads = [inserter(10), inserter(20)];
        for block in &writing {
            assert!(world.cache().contains(block.key()), "evicted while it was being written");
            block.check(*block.key());
        }
        let removed = writing.first().map(|block| world.cache().remove(block.key()).is_some());
        assert!(removed != Some(false), "evicted while it was being written");
        for (i, block) in writing.into_iter().enumerate() {
            assert_eq!(block.stored(), i > 0, "whether what was written is outdated");
        }
        join(threads);
        double.stop();
        World::end(world);
    });
}

/// An insert over an older value races the close of the cache. Cached or refused, once it has
/// returned, neither the cache nor the secondary cache returns the older value.
#[test]
fn an_insert_that_meets_a_close_leaves_no_older_value() {
    const KEY: u64 = 1;
    check(6000, || {
        let double = Double::new();
        let world = world(&double);
        world.insert(KEY);
        double.stored.lock().insert(KEY, 0);
        let closer = {
            let world = world.clone();
            spawn(move || world.cache().close())
        };
        if let Err(refused) = world.cache().insert(KEY, world.block(KEY, 1)) {
            assert_eq!(refused.reason, Refusal::Closed);
        }
        let found = world.cache().get(&KEY).map(|block| block.version);
        assert!(found.is_none_or(|version| version == 1), "the cache returns the older value");
        assert!(!double.stored.lock().contains_key(&KEY), "the older value is stored");
        join([closer]);
        double.stop();
        World::end(world);
    });
}
