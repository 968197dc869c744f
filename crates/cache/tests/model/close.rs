//! Closing: owners that close under load; a cache that closes or is dropped while references and
//! loads still exist.

use std::sync::Arc;

use forebay_cache::{Attributes, Begin, Delivery, LoadError, OwnerCaching, OwnerId};

use crate::harness::{Block, World};
use crate::owned::{OwnedKey, OwnedWorld};
use forebay_base::model::{below, check, join, spawn};

/// Nothing of an owner is left when its close returns: no block, no ghost, no slot, no value.
#[test]
fn an_owner_leaves_nothing_behind() {
    check(7500, || {
        let world = OwnedWorld::new(2);
        let owner = world.cache.open_owner(OwnerCaching::All).unwrap().into_id();
        let key = |n: u64| OwnedKey(owner.get(), n);
        world.insert(key(0));
        let inserter = {
            let world = world.clone();
            spawn(move || (1..4).for_each(|n| _ = world.insert(OwnedKey(owner.get(), n))))
        };
        let loader = {
            let world = world.clone();
            spawn(move || match world.cache.begin(OwnedKey(owner.get(), 2), 1, Attributes::DATA) {
                Ok(Begin::Vacant(guard)) => drop(guard.publish(Block::new(&world.ledger, 2))),
                Ok(Begin::InFlight(in_flight)) => drop(in_flight.wait()),
                Ok(Begin::Hit(block)) => drop(block),
                Err(LoadError::Closed) => {}
                Err(other) => panic!("{other}"),
            })
        };
        let reader = {
            let world = world.clone();
            spawn(move || (0..2).for_each(|n| drop(world.cache.get(&OwnedKey(owner.get(), n)))))
        };
        assert!(world.cache.close_owner(owner));
        // Sums of lists may be behind while an evictor handles a batch.
        assert_eq!(world.cache.stats().index.entries, 0, "a slot of the owner's is left");
        join([inserter, loader, reader]);
        let stats = world.cache.stats();
        assert_eq!((stats.resident_blocks(), stats.ghosts(), stats.index.entries), (0, 0, 0));
        world.end();
    });
}

/// When a close returns, every value of the owner was dropped, even if another thread has released
/// its last pin.
#[test]
fn an_owners_values_are_dropped_before_its_close_returns() {
    check(9000, || {
        let world = OwnedWorld::new(2);
        let owner = world.cache.open_owner(OwnerCaching::All).unwrap().into_id();
        world.insert(OwnedKey(owner.get(), 0));
        world.insert(OwnedKey(owner.get(), 1));
        let reader = {
            let world = world.clone();
            spawn(move || (0..2).for_each(|n| drop(world.cache.get(&OwnedKey(owner.get(), n)))))
        };
        let evictor = {
            let world = world.clone();
            spawn(move || world.cache.resize(1))
        };
        assert!(world.cache.close_owner(owner));
        assert_eq!(world.ledger.alive(), 0, "a value outlived the close of its owner");
        join([reader, evictor]);
        world.end();
    });
}

/// Closing twice at once, and closing an owner that is not open: one close succeeds, and the number
/// stays usable.
#[test]
fn an_owner_is_closed_once() {
    check(3000, || {
        let world = OwnedWorld::new(2);
        let owner = world.cache.open_owner(OwnerCaching::All).unwrap().into_id();
        world.insert(OwnedKey(owner.get(), 0));
        let closer = {
            let world = world.clone();
            spawn(move || world.cache.close_owner(owner))
        };
        let here = world.cache.close_owner(owner);
        let there = join([closer])[0];
        assert!(here != there, "closed once");
        assert!(!world.cache.close_owner(owner));
        assert!(!world.cache.close_owner(OwnerId::from_raw(u16::MAX)));
        // This build has three numbers.
        for _ in 0..2 {
            let all = [(); 3].map(|()| world.cache.open_owner(OwnerCaching::Metadata));
            assert!(all.iter().all(Result::is_ok), "its number cannot be used again");
        }
        world.end();
    });
}

/// `close` waits for pins and loads, and leaves an empty cache.
#[test]
fn closing_races_everything() {
    check(6000, || {
        let world = Arc::new(World::inline(3));
        world.insert(0);
        let held = world.cache().get_owned(&0).unwrap();
        let dropper = spawn(move || held.check(0));
        let user = {
            let world = world.clone();
            spawn(move || {
                world.insert(1);
                world.get(0);
                world.get(1);
                match world.cache().begin(2, 1, Attributes::DATA) {
                    Ok(Begin::Vacant(guard)) => drop(guard.publish(world.block(2, 0))),
                    Ok(_) => {}
                    Err(error) => assert!(matches!(error, LoadError::Closed)),
                }
            })
        };
        world.cache().close();
        assert_eq!(world.cache().stats().index.entries, 0, "a slot is left");
        join([dropper, user]);
        assert_eq!(world.cache().stats().resident_blocks(), 0);
        assert!(!world.insert(3));
        World::end(world);
    });
}

/// The same with a reclaimer thread and a callback thread.
#[test]
fn closing_ends_the_threads() {
    check(2400, || {
        let world = Arc::new(World::build(2, |builder| {
            builder.on_evicted(Delivery::Lossless, |event| event.value.check(event.key))
        }));
        let user = {
            let world = world.clone();
            spawn(move || (0..4).for_each(|key| _ = world.insert(key)))
        };
        if below(2) == 0 {
            world.cache().close();
        }
        join([user]);
        world.cache().drain_listener();
        World::end(world);
    });
}

/// References, loads in flight and load guards that outlive the cache keep `CacheInner` alive, and
/// the last of them frees it. Guards are published, failed or dropped by another thread.
#[test]
fn guards_outlive_the_cache() {
    check(15_000, || {
        let mut world = World::inline(2);
        world.insert(0);
        world.insert(1);
        let held = world.cache().get_owned(&0).unwrap();
        let again = held.clone();
        let other = world.cache().get_owned(&1).unwrap();
        world.cache().remove(&1);
        let Ok(Begin::Vacant(guard)) = world.cache().begin(2, 1, Attributes::DATA) else {
            panic!("it is not there")
        };
        let Ok(Begin::InFlight(in_flight)) = world.cache().begin(2, 1, Attributes::DATA) else {
            panic!("it is being loaded")
        };
        let block = world.block(2, 0);
        let cache = world.take_cache();
        let threads = [
            spawn(move || {
                held.check(0);
                drop(held);
            }),
            spawn(move || {
                again.check(0);
                other.check(1);
            }),
            spawn(move || match below(3) {
                0 => drop(guard),
                1 => guard.fail(LoadError::Abandoned),
                _ => guard.publish(block).check(2),
            }),
            spawn(move || {
                if below(2) == 0 {
                    if let Ok(block) = in_flight.wait() {
                        block.check(2);
                    }
                }
            }),
        ];
        drop(cache);
        join(threads);
        world.assert_gone();
    });
}

/// A load guard whose block is heavier than declared evicts on its own thread while the cache is
/// dropped.
#[test]
fn a_load_guard_evicts_while_the_cache_is_dropped() {
    check(24_000, || {
        let mut world = World::inline(3);
        let Ok(Begin::Vacant(guard)) = world.cache().begin(9, 1, Attributes::DATA) else {
            panic!("it is not there")
        };
        world.insert(0);
        world.insert(1);
        let block = world.block(9, 2 * crate::harness::WEIGHT);
        let cache = world.take_cache();
        let publisher = spawn(move || guard.publish(block).check(9));
        drop(cache);
        join([publisher]);
        world.assert_gone();
    });
}

/// The same with threads of the cache, which must have ended by then.
#[test]
fn guards_outlive_the_cache_and_its_threads() {
    check(3000, || {
        let mut world = World::build(2, |builder| {
            builder.on_evicted(Delivery::Lossless, |event| event.value.check(event.key))
        });
        (0..4).for_each(|key| _ = world.insert(key));
        let held = world.cache().get_owned(&3);
        let cache = world.take_cache();
        let holder = spawn(move || held.inspect(|held| held.check(3)).is_some());
        drop(cache);
        join([holder]);
        world.assert_gone();
    });
}
