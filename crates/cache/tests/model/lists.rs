//! The multilists: no block is ever in no ring or in two, while threads insert, evict, remove, mark
//! and compact. The audit checks every header, ring, sum and ghost.

use std::sync::Arc;

use forebay_cache::{Attributes, Reclaim};

use crate::harness::World;
use forebay_base::model::{below, check, join, spawn};

/// Inserters evict, a remover takes blocks away from the evictor, a reader marks them.
#[test]
fn inserts_evictions_removals_and_marks_race() {
    check(9000, || {
        let world = Arc::new(World::build(3, |builder| {
            builder.reclaim(Reclaim::Inline).tunable("evict_batch_limit", "2")
        }));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 4 {
                    let attributes = match below(3) {
                        0 => Attributes::DATA,
                        1 => Attributes::METADATA,
                        _ => Attributes::DATA.once(),
                    };
                    world.offer(key, attributes);
                }
            })
        };
        let threads = [inserter(0), inserter(2)];
        for _ in 0..4 {
            world.get(below(6));
            world.cache().remove(&below(6));
        }
        join(threads);
        World::end(world);
    });
}

/// Candidates are compared with victims, and move to mfu, while other threads use and remove both.
/// The simulations replay accesses while others are recorded.
#[test]
fn admission_races_uses_removals_and_itself() {
    check(4500, || {
        let world = Arc::new(World::build(4, |builder| {
            builder.reclaim(Reclaim::Inline).tunable("evict_batch_limit", "2")
        }));
        // Two uses, so that they are compared.
        for key in [0, 1, 2, 3, 4, 0, 1, 2] {
            if !world.get(key) {
                world.insert(key);
            }
        }
        let user = |first: u64| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 4 {
                    if !world.get(key % 6) {
                        world.insert(key % 6);
                    }
                }
            })
        };
        let threads = [user(0), user(3)];
        for _ in 0..2 {
            world.get(below(6));
            world.cache().remove(&below(6));
        }
        join(threads);
        World::end(world);
    });
}

/// Two sublists per list, so that a header freed from one is reused in the other while the evictor
/// of the first holds its number.
#[test]
fn headers_change_sublists_under_the_evictor() {
    check(6000, || {
        let world = Arc::new(World::build(2, |builder| {
            builder.reclaim(Reclaim::Inline).tunable("sublists", "2")
        }));
        let inserter = |step: u64| {
            let world = world.clone();
            spawn(move || {
                for key in 0..5 {
                    world.insert(key * step % 7);
                }
            })
        };
        let threads = [inserter(1), inserter(3)];
        for key in 0..4 {
            world.cache().remove(&key);
        }
        join(threads);
        World::end(world);
    });
}

/// Stale entries are removed in steps, between which the others may change.
#[test]
fn compaction_races_inserts_removals_and_the_evictor() {
    check(4500, || {
        let world = Arc::new(World::inline(12));
        for key in 0..10 {
            world.insert(key);
        }
        for key in [1, 2, 3, 4, 6, 8] {
            world.cache().remove(&key);
        }
        let compactor = {
            let world = world.clone();
            spawn(move || (0..2).for_each(|_| world.cache().trim()))
        };
        let evictor = {
            let world = world.clone();
            spawn(move || {
                world.cache().resize(5);
                world.cache().resize(12);
            })
        };
        for key in 10..15 {
            world.get(key - 10);
            world.insert(key);
            world.cache().remove(&(key - 9));
        }
        join([compactor, evictor]);
        World::end(world);
    });
}

/// The hand that clears marks of blocks as they leave the correlated-reference window.
#[test]
fn marks_mature_under_hits() {
    check(3000, || {
        let world = Arc::new(World::build(4, |builder| {
            builder.reclaim(Reclaim::Inline).tunable("correlated_window_permille", "500")
        }));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 4 {
                    world.insert(key);
                    world.get(key);
                }
            })
        };
        join([inserter(0), inserter(3)]);
        World::end(world);
    });
}

/// The reclaimer thread, woken by inserters that do not wait.
#[test]
fn the_reclaimers_thread_races_inserters() {
    check(2400, || {
        let world = Arc::new(World::build(4, |builder| builder.tunable("overflow_shift", "0")));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 5 {
                    world.insert(key);
                    world.get(key);
                }
            })
        };
        let threads = [inserter(0), inserter(3)];
        world.cache().remove(&3);
        join(threads);
        world.cache().audit();
        World::end(world);
    });
}
