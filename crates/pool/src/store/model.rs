//! Model checks: readers against `synchronize`, heals against commits, writers against the
//! in-flight limit, and the worker pool.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::thread::spawn_named;

use super::heals::Heals;
use super::in_flight::InFlightWrites;
use super::readers::Readers;
use super::worker_pool::{Job, WorkerPool};
use crate::error::{Error, ErrorKind};
use crate::format::TXGS_TO_REUSE;

const SCHEDULES: usize = 50_000;

/// Space that is reused only after `synchronize` never changes under a reader that entered before
/// it read the pointer.
#[test]
fn what_a_reader_sees_stays() {
    let body = || {
        let readers = Arc::new(Readers::new());
        let pointer = Arc::new(AtomicU64::new(0));
        let places = Arc::new([const { AtomicU64::new(0) }; 2]);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (readers, pointer) = (Arc::clone(&readers), Arc::clone(&pointer));
                let places = Arc::clone(&places);
                let read = move || {
                    for _ in 0..2 {
                        let _reading = readers.enter();
                        let at = pointer.load(Ordering::SeqCst);
                        assert_eq!(places[(at % 2) as usize].load(Ordering::SeqCst), at);
                    }
                };
                spawn_named("reader", read).unwrap()
            })
            .collect();
        for at in 1..4 {
            places[(at % 2) as usize].store(at, Ordering::SeqCst);
            pointer.store(at, Ordering::SeqCst);
            readers.synchronize();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    shuttle::check_pct(body, SCHEDULES, 4);
}

/// A heal never overwrites a block that reuses the space of a freed one, and a commit that reuses
/// nothing of it does not wait.
#[test]
fn a_heal_hits_no_newer_block() {
    const OLD: u64 = 1;
    const NEW: u64 = 2;
    let body = || {
        let heals = Arc::new(Heals::new());
        // The block that the tree points to, the block at the place, and the durable txg.
        let [tree, place, synced] = [OLD, OLD, 10].map(|n| Arc::new(AtomicU64::new(n)));
        let healer = {
            let (heals, tree) = (Arc::clone(&heals), Arc::clone(&tree));
            let (place, synced) = (Arc::clone(&place), Arc::clone(&synced));
            let heal = move || {
                for _ in 0..2 {
                    let _heal = heals.enter(synced.load(Ordering::SeqCst));
                    if tree.load(Ordering::SeqCst) == OLD {
                        assert_eq!(place.load(Ordering::SeqCst), OLD);
                        place.store(OLD, Ordering::SeqCst);
                    }
                }
            };
            spawn_named("healer", heal).unwrap()
        };
        let freed = 12;
        for txg in 11..freed + TXGS_TO_REUSE + 2 {
            let waited = heals.wait_before(txg);
            assert!(!waited || txg > 10 + TXGS_TO_REUSE, "a commit waits for no young heal");
            if txg == freed {
                tree.store(0, Ordering::SeqCst);
            }
            if txg == freed + TXGS_TO_REUSE {
                place.store(NEW, Ordering::SeqCst);
            }
            synced.store(txg, Ordering::SeqCst);
        }
        healer.join().unwrap();
        assert_eq!(place.load(Ordering::SeqCst), NEW);
    };
    shuttle::check_pct(body, SCHEDULES, 4);
}

#[test]
fn two_may_synchronize() {
    let body = || {
        let readers = Arc::new(Readers::new());
        let other = Arc::clone(&readers);
        let synchronize = spawn_named("synchronize", move || other.synchronize()).unwrap();
        drop(readers.enter());
        readers.synchronize();
        synchronize.join().unwrap();
        readers.synchronize();
    };
    shuttle::check_pct(body, SCHEDULES, 4);
}

/// No wake-up is lost: writers that wait for space get it, and `finish` reports each failure once.
#[test]
fn writes_come_and_go() {
    let body = || {
        let in_flight = Arc::new(InFlightWrites::new(10));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let in_flight = Arc::clone(&in_flight);
                let write = move || {
                    for bytes in [6, 12] {
                        in_flight.begin(bytes);
                        match bytes {
                            12 => {
                                in_flight.refuse(bytes, Error::new(ErrorKind::Device, "it failed"));
                            }
                            _ => in_flight.end_bytes(bytes),
                        }
                    }
                };
                spawn_named("writer", write).unwrap()
            })
            .collect();
        let early = in_flight.finish().is_err();
        writers.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(in_flight.finish().is_err() || early);
        assert!(in_flight.finish().is_ok());
        assert_eq!(in_flight.bytes(), 0);
    };
    shuttle::check_pct(body, SCHEDULES, 4);
}

/// For any schedule and any limit of jobs done ahead, the consumer gets each result, in order, and
/// no thread waits forever. Results that it leaves behind are dropped, also those of a late helper.
#[test]
fn results_come_in_order() {
    let body = || {
        let workers = WorkerPool::new(2, 4 << 20);
        let held = Arc::new(());
        for (bytes, taken) in [(1, 10), (3 << 20, 4), (1, 10)] {
            let jobs = (0..10).map(|n| {
                let held = Arc::clone(&held);
                Job { bytes, work: Box::new(move || (n, held)) }
            });
            let mut results = workers.submit(jobs.collect());
            for n in 0..taken {
                assert_eq!(results.next().map(|(n, _)| n), Some(n));
            }
            if taken == 10 {
                assert!(results.next().is_none());
            }
        }
        drop(workers);
        assert_eq!(Arc::strong_count(&held), 1);
    };
    shuttle::check_pct(body, SCHEDULES / 5, 4);
}
