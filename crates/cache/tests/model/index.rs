//! The index under lookups without locks: a key that is there throughout is found, whatever happens
//! to its segment.

use std::sync::Arc;

use forebay_cache::{Attributes, Cache};

use crate::harness::{Block, World, neighbours};
use forebay_base::model::{below, check, join, spawn};

fn steps(cache: &Cache<u64, Block>) -> u64 {
    cache.stats().index.resize_steps
}

/// One partition grows, splits, shrinks and merges under readers.
#[test]
fn a_key_is_found_while_segments_grow_split_shrink_and_merge() {
    check(3600, || {
        let world = Arc::new(World::inline(100));
        let keys = neighbours(17);
        let (stay, come) = keys.split_at(3);
        assert!(stay.iter().all(|key| world.insert(*key)));
        let writer = {
            let (world, come) = (world.clone(), come.to_vec());
            spawn(move || {
                assert!(come.iter().all(|key| world.insert(*key)));
                let peak = world.cache().stats().index.segments;
                assert!(peak >= 3, "the segment has not split twice");
                assert!(come.iter().all(|key| world.cache().remove(key).is_some()));
                // The remains of the last removals need not have merged with all neighbours.
                let left = world.cache().stats().index;
                assert!(left.segments < peak || left.resize_steps > peak, "nothing has shrunk");
            })
        };
        let reader = {
            let (world, stay) = (world.clone(), stay.to_vec());
            spawn(move || {
                for _ in 0..3 {
                    assert!(stay.iter().all(|key| world.get(*key)), "a key was missed");
                }
            })
        };
        for _ in 0..8 {
            let key = stay[below(3) as usize];
            assert!(world.get(key), "{key} was missed");
        }
        join([writer, reader]);
        assert!(steps(world.cache()) >= 4);
        World::end(world);
    });
}

/// Two writers change the same partition. Each finds its own entries at once, and no longer after
/// their removal.
#[test]
fn writers_of_one_partition_keep_each_others_keys() {
    check(3600, || {
        let world = Arc::new(World::inline(100));
        let keys = neighbours(16);
        let writer = |keys: &[u64]| {
            let (world, keys) = (world.clone(), keys.to_vec());
            spawn(move || {
                for (i, key) in keys.iter().enumerate() {
                    assert!(world.insert(*key));
                    assert!(keys[..=i].iter().rev().take(3).all(|key| world.get(*key)));
                }
                for key in &keys[2..] {
                    assert!(world.cache().remove(key).is_some());
                    assert!(!world.get(*key), "a removed key was found");
                    assert!(world.get(keys[0]));
                }
            })
        };
        join([writer(&keys[..8]), writer(&keys[8..])]);
        assert_eq!(world.cache().stats().resident_blocks(), 4);
        World::end(world);
    });
}

/// Ghosts take part in splits and merges. A ghost hit puts a resident in its slot.
#[test]
fn ghosts_move_with_their_segments() {
    check(2400, || {
        let world = Arc::new(World::inline(4));
        let keys = neighbours(14);
        let writer = |keys: Vec<u64>| {
            let world = world.clone();
            spawn(move || {
                for key in keys {
                    world.insert(key);
                }
            })
        };
        let back = keys.iter().rev().copied().collect();
        let threads = [writer(keys.clone()), writer(back)];
        for key in &keys {
            world.get(*key);
        }
        join(threads);
        assert!(world.cache().stats().ghosts() > 0);
        World::end(world);
    });
}

/// Memory of emptied segments is returned while readers may still look at it.
#[test]
fn trimming_races_lookups() {
    check(2400, || {
        let world = Arc::new(World::inline(100));
        let keys = neighbours(13);
        assert!(world.insert(keys[0]));
        let writer = {
            let (world, keys) = (world.clone(), keys.clone());
            spawn(move || {
                for key in &keys[1..] {
                    assert!(
                        world
                            .cache()
                            .insert_with(*key, world.block(*key, 0), Attributes::METADATA)
                            .is_ok()
                    );
                }
                world.cache().retain(|key, _, _| *key == keys[0]);
            })
        };
        let trimmer = {
            let world = world.clone();
            spawn(move || (0..3).for_each(|_| world.cache().trim()))
        };
        for _ in 0..8 {
            assert!(world.get(keys[0]), "a key was missed");
        }
        join([writer, trimmer]);
        World::end(world);
    });
}
