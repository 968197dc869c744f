//! Waiting for capacity: FIFO order, and no capacity granted twice or lost, whichever thread times
//! out, gives up or leaves. Alone, and in a whole cache with its reclaimer thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::model::Capacity;
use forebay_cache::{Attributes, Begin, Delivery, Reclaim};

use crate::harness::{WEIGHT, World};
use forebay_base::model::{below, check, join, spawn};

/// The reserved weight never exceeds the limit, and all of it is returned.
#[test]
fn no_capacity_is_lost_or_granted_twice() {
    check(18_000, || {
        let capacity = Arc::new(Capacity::new(2, 3));
        let out = Arc::new(AtomicU64::new(0));
        let asker = |weight: u64| {
            let (capacity, out) = (capacity.clone(), out.clone());
            spawn(move || {
                for _ in 0..2 {
                    let granted = capacity.reserve(weight) || {
                        let ticket = capacity.queue_up(weight);
                        if below(3) == 0 { capacity.leave(&ticket) } else { capacity.wait(&ticket) }
                    };
                    if granted {
                        let now = out.fetch_add(weight, Ordering::Relaxed) + weight;
                        assert!(now <= 3, "{now} of 3 are out");
                        shuttle::thread::yield_now();
                        out.fetch_sub(weight, Ordering::Relaxed);
                        capacity.release(weight);
                    }
                }
            })
        };
        let threads = [asker(1), asker(2), asker(3)];
        if below(2) == 0 {
            capacity.expire();
        }
        join(threads);
        assert!(!capacity.has_waiters());
        assert_eq!(capacity.reserved(), 0, "capacity that no block holds");
    });
}

/// The same with batches of credits in shards.
#[test]
fn batches_come_back() {
    check(9000, || {
        let capacity = Arc::new(Capacity::new(64, 68));
        let asker = |weight: u64| {
            let capacity = capacity.clone();
            spawn(move || {
                let mut held = Vec::new();
                for _ in 0..4 {
                    if capacity.reserve(weight) {
                        held.push(weight);
                    }
                }
                held.into_iter().for_each(|weight| capacity.release(weight));
            })
        };
        let threads = [asker(3), asker(2), asker(60)];
        for _ in 0..3 {
            // Attempts in progress may be counted, so it may exceed the limit by as much.
            assert!(capacity.reserved() <= 68 + 65);
        }
        join(threads);
        assert_eq!(capacity.reserved(), 0, "capacity that no block holds");
    });
}

/// No ticket is granted while an earlier one waits.
#[test]
fn first_come_first_served() {
    check(12_000, || {
        let capacity = Arc::new(Capacity::new(2, 2));
        assert!(capacity.reserve(2));
        // The first is heavier: the second would fit sooner.
        let tickets = Arc::new([capacity.queue_up(2), capacity.queue_up(1)]);
        let waiter = |n: usize| {
            let (capacity, tickets) = (capacity.clone(), tickets.clone());
            spawn(move || {
                let granted = capacity.wait(&tickets[n]);
                let first = capacity.outcome(&tickets[0]);
                assert!(n == 0 || !granted || first.is_some(), "the second was served first");
                if granted {
                    capacity.release([2, 1][n]);
                }
            })
        };
        let threads = [waiter(0), waiter(1)];
        capacity.release(1);
        assert!(
            !capacity.reserve(1) || !capacity.has_waiters(),
            "a later inserter passed the queue"
        );
        capacity.release(1);
        join(threads);
        // The inserter above keeps its capacity if it got some.
        assert!(capacity.reserved() <= 1);
    });
}

/// Inserters beyond the limit and the reclaimer thread. Blocks are inserted or returned.
#[test]
fn inserters_wait_for_the_reclaimer() {
    check(3600, || {
        let world = Arc::new(World::build(2, |builder| builder.reclaim(Reclaim::Thread)));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                let mut inserted = 0;
                for key in first..first + 3 {
                    inserted += u64::from(world.insert(key));
                    let held = world.cache().get(&key);
                    assert!(world.cache().stats().reserved <= 2, "past the limit");
                    drop(held);
                }
                inserted
            })
        };
        let inserted: u64 = join([inserter(0), inserter(3)]).into_iter().sum();
        let stats = world.cache().stats();
        let refused = stats.counter("refused_no_capacity");
        assert_eq!(inserted + refused, 6);
        World::end(world);
    });
}

/// Loads wait for capacity as well, blocking and asynchronously. They return it if they find the
/// block cached after all, or are dropped while they wait.
#[test]
fn loads_wait_for_the_reclaimer() {
    check(3600, || {
        let world = Arc::new(World::build(2, |builder| builder.reclaim(Reclaim::Thread)));
        world.insert(0);
        let loader = |blocks: bool| {
            let world = world.clone();
            spawn(move || {
                for key in [1, 2] {
                    let begun = if blocks {
                        world.cache().begin(key, 1, Attributes::DATA)
                    } else {
                        let begin = world.cache().begin_async(key, 1, Attributes::DATA);
                        shuttle::future::block_on(begin)
                    };
                    match begun.expect("nothing is closed") {
                        Begin::Vacant(guard) => {
                            let version = below(2) * WEIGHT;
                            guard.publish(world.block(key, version)).check(key);
                        }
                        Begin::InFlight(in_flight) => {
                            in_flight.wait().expect("published").check(key)
                        }
                        Begin::Hit(block) => block.check(key),
                    }
                }
            })
        };
        join([loader(true), loader(false)]);
        World::end(world);
    });
}

/// Beside a lossless listener that ends, and in a cache that has more blocks than are pinned, no
/// inserter is refused: one that finds others in the queue waits behind them.
#[test]
fn a_listener_that_ends_leads_to_no_refusal() {
    check(3600, || {
        let world = Arc::new(World::build(4, |builder| {
            let builder = builder.reclaim(Reclaim::Thread).tunable("overflow_wait_ms", "0");
            builder.on_evicted(Delivery::Lossless, |event| event.value.check(event.key))
        }));
        (0..4).for_each(|key| assert!(world.insert(key)));
        let inserter = |first: u64, blocks: bool| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 2 {
                    if blocks {
                        assert!(world.insert(key), "refused while the listener is idle");
                        continue;
                    }
                    let begin = world.cache().begin_async(key, 1, Attributes::DATA);
                    match shuttle::future::block_on(begin).expect("nothing is closed") {
                        Begin::Vacant(guard) => guard.publish(world.block(key, 0)).check(key),
                        _ => panic!("no other thread has this key"),
                    }
                }
            })
        };
        join([inserter(10, true), inserter(20, false), inserter(30, false)]);
        assert_eq!(world.cache().stats().counter("refused_no_capacity"), 0);
        World::end(world);
    });
}

/// The same with fewer threads and blocks, so that more schedules of an inserter beside another,
/// the listener and the queue are searched.
#[test]
fn an_inserter_that_events_overtake_is_not_refused() {
    check(24_000, || {
        let world = Arc::new(World::build(3, |builder| {
            let builder = builder.reclaim(Reclaim::Thread).tunable("overflow_wait_ms", "0");
            builder.on_evicted(Delivery::Lossless, |event| event.value.check(event.key))
        }));
        (0..3).for_each(|key| assert!(world.insert(key)));
        let inserter = |first: u64| {
            let world = world.clone();
            spawn(move || {
                for key in first..first + 2 {
                    assert!(world.insert(key), "refused while the listener is idle");
                }
            })
        };
        join([inserter(10), inserter(20)]);
        world.cache().drain_listener();
        World::end(world);
    });
}
