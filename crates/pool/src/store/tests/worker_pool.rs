//! Jobs side by side.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::worker_pool::{Job, WorkerPool};

const AHEAD_BYTES: usize = 4 << 20;

fn job<T>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Job<T> {
    Job { bytes, work: Box::new(work) }
}

#[test]
fn results_come_in_order_whoever_does_the_jobs() {
    for helpers in [0, 1, 3] {
        let workers = WorkerPool::new(helpers, AHEAD_BYTES);
        for count in [0usize, 1, 7, 8, 500] {
            let jobs = (0..count).map(|n| {
                job(100, move || {
                    // Later ones are done sooner.
                    if n % 16 == 0 {
                        (0..100_000).for_each(|n| _ = std::hint::black_box(n));
                    }
                    n
                })
            });
            let mut results = workers.submit(jobs.collect());
            for n in 0..count {
                assert_eq!(results.next(), Some(n), "{helpers} helpers, {count} jobs");
            }
            assert_eq!(results.next(), None);
        }
    }
}

#[test]
fn what_is_done_ahead_is_bounded() {
    for (bytes, most) in [(1usize, 32), (1 << 20, 4), (64 << 20, 1)] {
        let workers = WorkerPool::new(2, AHEAD_BYTES);
        let done = Arc::new(AtomicUsize::new(0));
        let count = |_| {
            let done = Arc::clone(&done);
            job(bytes, move || {
                done.fetch_add(1, Ordering::Relaxed);
            })
        };
        let mut results = workers.submit((0..100).map(count).collect());
        for taken in 0..100 {
            // As much as helpers may do before this one is taken.
            (0..100).for_each(|_| std::thread::yield_now());
            let ahead = done.load(Ordering::Relaxed) - taken;
            assert!(ahead <= most, "{ahead} of {bytes} bytes");
            assert!(results.next().is_some());
        }
    }
}

#[test]
fn what_nobody_takes_is_dropped_and_the_next_batch_is_right() {
    let workers = WorkerPool::new(2, AHEAD_BYTES);
    let held = Arc::new(());
    for taken in [0, 1, 20] {
        let hold = |_| {
            let held = Arc::clone(&held);
            job(1 << 20, move || held)
        };
        let mut results = workers.submit((0..50).map(hold).collect());
        for _ in 0..taken {
            assert!(results.next().is_some());
        }
        drop(results);
        let next = (0..50).map(|_| job(1, || Arc::new(())));
        let mut results = workers.submit(next.collect());
        let others =
            std::iter::from_fn(|| results.next()).filter(|other| !Arc::ptr_eq(other, &held));
        assert_eq!(others.count(), 50);
    }
    // Helpers may have been at one.
    drop(workers);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_panic_of_a_job_is_its_takers() {
    let workers = WorkerPool::new(0, AHEAD_BYTES);
    let jobs = (0..20).map(|n| job(1, move || assert!(n != 13, "the thirteenth")));
    let mut results = workers.submit(jobs.collect());
    let all = || while results.next().is_some() {};
    assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
}

#[test]
fn a_panic_of_a_helper_is_the_takers_too() {
    let workers = WorkerPool::new(1, AHEAD_BYTES);
    let taker = std::thread::current().id();
    let panics = Arc::new(AtomicUsize::new(0));
    let jobs = (0..20).map(|_| {
        let panics = Arc::clone(&panics);
        job(1, move || {
            if std::thread::current().id() != taker {
                panics.fetch_add(1, Ordering::Relaxed);
                panic!("a helper");
            }
            // The taker leaves it the next one.
            while panics.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        })
    });
    let mut results = workers.submit(jobs.collect());
    let all = || while results.next().is_some() {};
    assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
    assert_eq!(panics.load(Ordering::Relaxed), 1);
}
