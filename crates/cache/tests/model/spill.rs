//! Pins beyond those that a header's word counts. In this build 8 pins crowd a word.

use std::sync::Arc;

use forebay_cache::{Attributes, Begin, OwnedRef};

use crate::harness::{Block, World};
use forebay_base::model::{below, check, join, spawn};

const KEY: u64 = 1;

/// Takes up to `most` pins in different ways, and releases them in any order.
fn come_and_go(world: &World, mut guards: Vec<OwnedRef<u64, Block>>, most: usize) {
    for _ in 0..most {
        let more = match below(3) {
            0 => world.cache().get_owned(&KEY),
            1 => match world.cache().begin(KEY, 1, Attributes::DATA).expect("nothing is closed") {
                Begin::Hit(block) => Some(block.into_owned()),
                // Removed: the load guard is dropped.
                _ => None,
            },
            _ => Some(guards[0].clone()),
        };
        guards.extend(more);
        if below(4) == 0 {
            let at = below(guards.len() as u64) as usize;
            if guards.len() > 1 {
                guards.swap_remove(at).check(KEY);
            }
        }
    }
    guards.into_iter().for_each(|guard| guard.check(KEY));
}

/// References exceed the word's count while the block is removed. The block lives as long as any of
/// them, and is freed once.
#[test]
fn spilled_pins_keep_the_block() {
    check(12_000, || {
        let world = Arc::new(World::inline(10));
        assert!(world.insert(KEY));
        let first = world.cache().get_owned(&KEY).expect("just inserted");
        let guards: Vec<_> = (0..7).map(|_| first.clone()).collect();
        let thread = |guards: Vec<OwnedRef<u64, Block>>| {
            let world = world.clone();
            spawn(move || come_and_go(&world, guards, 6))
        };
        let threads = [thread(vec![first]), thread(guards)];
        if below(2) == 0 {
            world.cache().remove(&KEY);
        }
        join(threads);
        World::end(world);
    });
}

/// A value is not taken out while others have pins on it, even if all of those are spilled: three
/// threads that have released theirs, but have not refilled the word yet, leave one pin in it.
#[test]
fn spilled_pins_keep_the_value_from_being_taken() {
    check(12_000, || {
        let world = Arc::new(World::inline(10));
        assert!(world.insert(KEY));
        let mut guards = vec![world.cache().get_owned(&KEY).expect("just inserted")];
        while guards.len() < 8 {
            guards.push(guards[0].clone());
        }
        // The ninth pin moves two out of the word. Released are as many as leave it not sparse.
        let removed = world.cache().remove(&KEY).expect("just inserted");
        guards.push(guards[0].clone());
        guards.truncate(5);
        let kept = guards.split_off(3);
        let droppers: Vec<_> = guards.into_iter().map(|guard| spawn(move || drop(guard))).collect();
        let removed = removed.try_into_value().err().expect("others have pins on it");
        kept.iter().for_each(|guard| guard.check(KEY));
        join(droppers);
        drop(kept);
        removed.try_into_value().ok().expect("the only pin").check(KEY);
        World::end(world);
    });
}

/// The evictor never evicts a block whose pins are spilled.
#[test]
fn spilled_pins_keep_the_block_from_the_evictor() {
    check(6000, || {
        let world = Arc::new(World::inline(3));
        assert!(world.insert(KEY));
        let first = world.cache().get_owned(&KEY).expect("just inserted");
        let guards: Vec<_> = (0..10).map(|_| first.clone()).collect();
        let dropper = spawn(move || drop(guards));
        for key in 2..6 {
            world.insert(key);
        }
        assert!(first.is_cached(), "evicted although it is pinned");
        first.check(KEY);
        drop(first);
        join([dropper]);
        World::end(world);
    });
}

/// More waiters join a load than the word counts. Some give up.
#[test]
fn joined_past_the_bounds() {
    check(9000, || {
        let world = Arc::new(World::inline(10));
        let begin = |world: &World| match world.cache().begin(KEY, 1, Attributes::DATA) {
            Ok(Begin::InFlight(in_flight)) => Some(in_flight),
            Ok(Begin::Hit(block)) => {
                block.check(KEY);
                None
            }
            Ok(Begin::Vacant(_)) | Err(_) => panic!("it is loading, or here"),
        };
        let Ok(Begin::Vacant(guard)) = world.cache().begin(KEY, 1, Attributes::DATA) else {
            panic!("it is empty")
        };
        let flights: Vec<_> = (0..6).map(|_| begin(&world)).collect();
        let joiner = {
            let world = world.clone();
            spawn(move || {
                let more: Vec<_> = (0..5).map(|_| begin(&world)).collect();
                for in_flight in more.into_iter().flatten() {
                    match below(2) {
                        0 => drop(in_flight),
                        _ => in_flight.wait().expect("it is published").check(KEY),
                    }
                }
            })
        };
        let leaver = spawn(move || drop(flights));
        drop(guard.publish(world.block(KEY, 0)));
        join([joiner, leaver]);
        World::end(world);
    });
}
