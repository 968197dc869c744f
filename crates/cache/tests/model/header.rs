//! The header protocol through the public interface: hits against evictions, removals, overwrites,
//! resizes and flushes, each of which frees headers that are reused at once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::thread::JoinHandle;

use crate::harness::World;
use forebay_base::model::{below, check, join, spawn};

/// Overwrites key 1 with these versions, and reports each when its insert has returned.
fn overwrite(
    world: &Arc<World>,
    inserted: &Arc<AtomicU64>,
    versions: Range<u64>,
) -> JoinHandle<()> {
    let (world, inserted) = (world.clone(), inserted.clone());
    spawn(move || {
        for version in versions {
            world.cache().insert(1, world.block(1, version)).unwrap();
            inserted.store(version, Ordering::Relaxed);
        }
    })
}

/// Makes a header be used and freed.
fn come_and_go(world: &Arc<World>) -> JoinHandle<()> {
    let world = world.clone();
    spawn(move || {
        assert!(world.insert(2));
        assert!(world.cache().remove(&2).is_some());
    })
}

/// A writer overwrites, another thread uses and frees headers. A reader must never miss the key,
/// nor see a version older than the last whose insert had returned when the lookup began. (A
/// version may be seen before its insert returns, and the one before it once more after that.)
#[test]
fn an_overwritten_key_is_always_there() {
    check(18_000, || {
        let world = Arc::new(World::inline(100));
        world.insert(1);
        let inserted = Arc::new(AtomicU64::new(0));
        let writer = overwrite(&world, &inserted, 1..4);
        let other = come_and_go(&world);
        for _ in 0..3 {
            let least = inserted.load(Ordering::Relaxed);
            let block = world.cache().get(&1).expect("a key that is only ever overwritten");
            block.check(1);
            assert!(block.version >= least, "an older version came back");
        }
        join([writer, other]);
        assert_eq!(world.cache().get(&1).unwrap().version, 3);
        World::end(world);
    });
}

/// The same with the fewest steps by which a header can leave a slot and come back to it while a
/// lookup is between the slot and the header.
#[test]
fn a_header_that_comes_back_to_its_slot_hides_nothing() {
    check(60_000, || {
        let world = Arc::new(World::inline(100));
        world.insert(1);
        let writer = {
            let world = world.clone();
            spawn(move || (0..2).for_each(|_| assert!(world.insert(1))))
        };
        assert!(world.get(1), "a key that is only ever overwritten was missed");
        join([writer]);
        World::end(world);
    });
}

/// As the first, for lookups of several keys at once, between whose probes and pins more can
/// happen.
#[test]
fn many_at_once_miss_nothing() {
    check(12_000, || {
        let world = Arc::new(World::inline(100));
        world.insert(1);
        world.insert(3);
        let inserted = Arc::new(AtomicU64::new(0));
        let writer = overwrite(&world, &inserted, 1..3);
        let other = come_and_go(&world);
        let mut found = Vec::new();
        for _ in 0..2 {
            let least = inserted.load(Ordering::Relaxed);
            world.cache().get_many(&[2, 1, 3], &mut found);
            found[0].iter().for_each(|block| block.check(2));
            let block = found[1].as_ref().expect("a key that is only ever overwritten");
            block.check(1);
            assert!(block.version >= least, "an older version came back");
            found[2].as_ref().expect("a key that stays").check(3);
        }
        drop(found);
        join([writer, other]);
        World::end(world);
    });
}

/// As above, for `begin`, which must not load a block that is cached.
#[test]
fn an_overwritten_key_is_never_loaded() {
    check(9000, || {
        let world = Arc::new(World::inline(100));
        world.insert(1);
        let writer = {
            let world = world.clone();
            spawn(move || (0..3).for_each(|_| assert!(world.insert(1))))
        };
        for _ in 0..2 {
            let begun = world.cache().begin(1, 1, forebay_cache::Attributes::DATA).unwrap();
            let forebay_cache::Begin::Hit(block) = begun else { panic!("it was there") };
            block.check(1);
        }
        join([writer]);
        World::end(world);
    });
}

/// Few headers and many keys: all operations at once.
#[test]
fn hits_race_everything() {
    check(9000, || {
        let world = Arc::new(World::inline(3));
        let churn = || {
            let world = world.clone();
            spawn(move || {
                for _ in 0..5 {
                    let key = below(5);
                    match below(8) {
                        0..=3 => drop(world.insert(key)),
                        4 | 5 => drop(world.get(key)),
                        6 => drop(world.cache().remove(&key)),
                        _ => drop(world.cache().contains(&key)),
                    }
                }
            })
        };
        let writers = [churn(), churn()];
        for _ in 0..4 {
            let held = world.cache().get(&below(5));
            world.get(below(5));
            if let Some(held) = held {
                held.check(*held.key());
            }
        }
        join(writers);
        World::end(world);
    });
}

/// A pinned block outlives its removal from the cache, and is dropped by its last pin.
#[test]
fn a_pin_keeps_what_the_cache_has_let_go() {
    check(9000, || {
        let world = Arc::new(World::inline(2));
        world.insert(1);
        let held = world.cache().get_owned(&1).unwrap();
        let second = held.clone();
        let remover = {
            let world = world.clone();
            spawn(move || {
                world.cache().remove(&1);
                world.insert(1);
            })
        };
        let flusher = {
            let world = world.clone();
            spawn(move || {
                world.cache().clear();
            })
        };
        let dropper = spawn(move || {
            second.check(1);
            drop(second);
        });
        held.check(1);
        assert_eq!(held.version, 0);
        drop(held);
        join([remover, flusher, dropper]);
        World::end(world);
    });
}

/// The target moves up and down, below the resident weight, while blocks are inserted and evicted.
#[test]
fn resizes_and_flushes_race_inserts() {
    check(6000, || {
        let world = Arc::new(World::inline(4));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 4 {
                    // A block heavier than a shrunken cache is refused.
                    world.insert(key);
                    world.get(key);
                }
            })
        };
        let threads = [inserter(0), inserter(2)];
        world.cache().resize(1);
        world.cache().retain(|key, _, _| key % 2 == 1);
        world.cache().resize(6);
        world.cache().clear();
        join(threads);
        world.cache().resize(2);
        assert!(world.cache().stats().resident_bytes() <= 2);
        World::end(world);
    });
}

/// A removal is reported to exactly one remover, whatever else happens to the block.
#[test]
fn each_block_is_removed_once() {
    check(6000, || {
        let world = Arc::new(World::inline(100));
        world.insert(1);
        let remover = || {
            let world = world.clone();
            spawn(move || u64::from(world.cache().remove(&1).is_some()))
        };
        let threads = [remover(), remover()];
        world.get(1);
        let flushed = world.cache().retain(|_, _, _| false);
        let removed: u64 = join(threads).into_iter().sum();
        assert_eq!(removed + flushed, 1);
        World::end(world);
    });
}
