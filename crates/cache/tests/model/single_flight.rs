//! Single flight: one load at a time, and one outcome for all waiters, whichever thread publishes,
//! fails, drops, removes or overwrites.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_cache::{Attributes, Begin, LoadError, LoadGuard};

use crate::harness::{Block, World};
use forebay_base::model::{below, check, join, spawn};

const KEY: u64 = 1;

/// Ends a load in one of three ways. True if it was published.
fn end_load(world: &World, guard: LoadGuard<u64, Block>, version: u64) -> bool {
    match below(4) {
        0 => drop(guard),
        1 => guard.fail(LoadError::failed("the disk is gone")),
        _ => {
            guard.publish(world.block(KEY, version)).check(KEY);
            return true;
        }
    }
    false
}

fn begin(world: &World) -> Begin<'_, u64, Block> {
    world.cache().begin(KEY, 1, Attributes::DATA).expect("nothing is closed")
}

/// Without removals, no two loads of a key overlap, and a loaded block is never loaded again.
#[test]
fn one_load_at_a_time() {
    check(12_000, || {
        let world = Arc::new(World::inline(10));
        let loading = Arc::new(AtomicUsize::new(0));
        let published = Arc::new(AtomicUsize::new(0));
        let asker = || {
            let (world, loading, published) = (world.clone(), loading.clone(), published.clone());
            spawn(move || match begin(&world) {
                Begin::Hit(block) => {
                    block.check(KEY);
                    assert_eq!(published.load(Ordering::Relaxed), 1);
                }
                Begin::InFlight(in_flight) => match in_flight.wait() {
                    Ok(block) => block.check(KEY),
                    Err(LoadError::Abandoned | LoadError::Failed(_)) => {}
                    Err(other) => panic!("{other}"),
                },
                Begin::Vacant(guard) => {
                    assert_eq!(loading.fetch_add(1, Ordering::Relaxed), 0, "two loads at a time");
                    assert_eq!(published.load(Ordering::Relaxed), 0, "loaded although it is there");
                    shuttle::thread::yield_now();
                    loading.fetch_sub(1, Ordering::Relaxed);
                    // Counted before it is visible.
                    match below(4) {
                        0 => drop(guard),
                        1 => guard.fail(LoadError::failed("the disk is gone")),
                        _ => {
                            published.fetch_add(1, Ordering::Relaxed);
                            guard.publish(world.block(KEY, 0)).check(KEY);
                        }
                    }
                }
            })
        };
        join([asker(), asker(), asker(), asker()]);
        assert!(published.load(Ordering::Relaxed) <= 1);
        assert_eq!(world.get(KEY), published.load(Ordering::Relaxed) == 1);
        World::end(world);
    });
}

/// Every kind of wait gets exactly one outcome: blocking, callback, future, and giving up.
#[test]
fn every_waiter_gets_one_ending() {
    check(9000, || {
        let world = Arc::new(World::inline(10));
        let endings = Arc::new(AtomicUsize::new(0));
        let Begin::Vacant(guard) = begin(&world) else { panic!("it is empty") };
        let waiter = |way: u64| {
            let (world, endings) = (world.clone(), endings.clone());
            spawn(move || {
                let Begin::InFlight(in_flight) = begin(&world) else { return };
                let ended =
                    move |result: Result<forebay_cache::OwnedRef<u64, Block>, LoadError>| {
                        if let Ok(block) = result {
                            block.check(KEY);
                        }
                        endings.fetch_add(1, Ordering::Relaxed);
                    };
                match way {
                    0 => ended(in_flight.wait()),
                    1 => in_flight.on_ready(ended),
                    2 => ended(shuttle::future::block_on(std::future::IntoFuture::into_future(
                        in_flight,
                    ))),
                    _ => drop(in_flight),
                }
            })
        };
        // The loader's thread begins last, so that some waiters find the load in flight.
        let threads = [waiter(0), waiter(1), waiter(2), waiter(3)];
        end_load(&world, guard, 0);
        join(threads);
        let counter = |name| world.cache().stats().counter(name);
        // The thread that dropped its wait may have joined or not.
        let joined = counter("in_flight_joins") as usize;
        let ended = endings.load(Ordering::Relaxed);
        assert!(ended == joined || ended + 1 == joined, "{ended} endings of {joined} waiters");
        // Requests after a failed load got a load guard and dropped it.
        World::end(world);
    });
}

/// A load that is removed or overwritten meanwhile is handed out uncached.
#[test]
fn removals_and_overwrites_race_loads() {
    check(12_000, || {
        let world = Arc::new(World::inline(3));
        let asker = |version: u64| {
            let world = world.clone();
            spawn(move || {
                let found = world.cache().get_or_load_weighed(KEY, 1, Attributes::DATA, || {
                    match below(3) {
                        0 => Err("the disk is gone"),
                        _ => Ok(world.block(KEY, version)),
                    }
                });
                if let Ok(block) = found {
                    block.check(KEY);
                }
            })
        };
        let threads = [asker(10), asker(20)];
        match below(3) {
            0 => {
                world.cache().remove(&KEY);
            }
            1 => {
                world.cache().clear();
            }
            _ => {
                world.cache().insert(KEY, world.block(KEY, 30)).ok();
            }
        }
        world.get(KEY);
        join(threads);
        World::end(world);
    });
}

/// The content of a published load is never older than a value inserted meanwhile.
#[test]
fn an_outdated_load_does_not_replace_an_insert() {
    check(9000, || {
        let world = Arc::new(World::inline(10));
        let loader = {
            let world = world.clone();
            spawn(move || {
                if let Begin::Vacant(guard) = begin(&world) {
                    // This content is older than any value inserted from now on.
                    drop(guard.publish(world.block(KEY, 1)));
                }
            })
        };
        let waiter = {
            let world = world.clone();
            spawn(move || match begin(&world) {
                Begin::Hit(block) => block.check(KEY),
                Begin::InFlight(in_flight) => in_flight.wait().unwrap().check(KEY),
                Begin::Vacant(guard) => drop(guard),
            })
        };
        world.cache().insert(KEY, world.block(KEY, 2)).unwrap();
        let version = world.cache().get(&KEY).expect("inserted, and not removed").version;
        assert_eq!(version, 2, "an outdated load has come over an insert");
        join([loader, waiter]);
        assert_eq!(world.cache().get(&KEY).unwrap().version, 2);
        World::end(world);
    });
}

/// Loads without capacity are handed out uncached, to waiters too. Wrong declared weights are
/// corrected.
#[test]
fn loads_without_capacity_reach_their_waiters() {
    check(9000, || {
        let world = Arc::new(World::inline(2));
        world.insert(5);
        world.insert(6);
        // Pinned, so that nothing can be evicted for a while.
        let held = [world.cache().get_owned(&5), world.cache().get_owned(&6)];
        let asker = |weight: u64| {
            let world = world.clone();
            spawn(move || {
                let load =
                    || Ok::<_, LoadError>(world.block(KEY, below(3) * crate::harness::WEIGHT));
                let found =
                    world.cache().get_or_load_weighed(KEY, weight, Attributes::METADATA, load);
                found.unwrap().check(KEY);
            })
        };
        let threads = [asker(1), asker(2), asker(3)];
        drop(held);
        join(threads);
        World::end(world);
    });
}
