//! Sets of roots under load: submitting threads, a failing device, drains and a close.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use forebay_base::rng::SmallRng;
use forebay_io::{ErrorKind, Roots};

use crate::double::{Double, fail};
use crate::roots::{kept, set};

const SUBMITTERS: u64 = 3;
const EACH: u64 = 4000;

/// The outcome of each request.
#[derive(Default)]
struct Tally {
    ends: Vec<AtomicU32>,
    accepted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// Requests created, children included.
    made: AtomicU64,
}

impl Tally {
    fn new() -> Arc<Self> {
        let ends = (0..SUBMITTERS * EACH * 3).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { ends, ..Self::default() })
    }
}

/// Submits a request. Unless refused, its callback submits another with probability one half.
fn submit(roots: &Arc<Roots>, tally: &Arc<Tally>, depth: u32) {
    let id = tally.made.fetch_add(1, Ordering::Relaxed);
    let (inside, told) = (roots.clone(), tally.clone());
    roots.submit(kept(id).on_done(move |completion| {
        told.ends[id as usize].fetch_add(1, Ordering::Relaxed);
        match completion.result.map_err(|error| error.kind()) {
            Err(ErrorKind::Closed) => {
                assert_eq!(depth, 0, "a child was refused");
                told.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(_) => told.failed.fetch_add(1, Ordering::Relaxed),
            Ok(()) => 0,
        };
        told.accepted.fetch_add(1, Ordering::Relaxed);
        if depth < 2 && id.is_multiple_of(2) {
            submit(&inside, &told, depth + 1);
        }
    }));
}

/// Completes pending requests until `stop`, failing one in `failing`.
fn serve(device: &Double, failing: u64, seed: u64, stop: &AtomicBool) {
    let mut rng = SmallRng::from_seed(seed);
    while !stop.load(Ordering::Acquire) || device.len() > 0 {
        match device.take(0) {
            Some(request) if rng.below(failing) == 0 => fail(request, ErrorKind::Device),
            Some(request) => request.finish(Ok(())),
            None => thread::yield_now(),
        }
    }
}

/// Runs the load. With `failing` 1 the device fails every request.
fn load(roots: usize, failing: u64) {
    let device = Double::new();
    let roots = set(&device, roots);
    let (tally, stop) = (Tally::new(), AtomicBool::new(false));
    let start = Barrier::new(SUBMITTERS as usize + 1);
    let in_drains = thread::scope(|s| {
        for seed in 0..2 {
            let (device, stop) = (&device, &stop);
            s.spawn(move || serve(device, failing, seed, stop));
        }
        for _ in 0..SUBMITTERS {
            s.spawn(|| {
                start.wait();
                (0..EACH).for_each(|_| submit(&roots, &tally, 0));
            });
        }
        start.wait();
        let mut in_drains = 0;
        while tally.made.load(Ordering::Relaxed) < SUBMITTERS * EACH / 2 {
            in_drains += roots.drain().unwrap().failures.total();
        }
        roots.close();
        in_drains += roots.drain().unwrap().failures.total();
        // Later requests are refused, so none is in flight.
        assert_eq!(roots.stats().total_in_flight(), 0);
        stop.store(true, Ordering::Release);
        in_drains
    });
    assert_eq!(device.len(), 0, "something was accepted after the last drain");
    let made = tally.made.load(Ordering::Relaxed) as usize;
    assert!(tally.ends[..made].iter().all(|ends| ends.load(Ordering::Relaxed) == 1));
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!((of(&tally.accepted) + of(&tally.refused)) as usize, made);
    let stats = roots.stats();
    assert_eq!((stats.refused, stats.failed), (of(&tally.refused), of(&tally.failed)));
    assert_eq!(in_drains, of(&tally.failed), "each failure is found by one drain");
    assert_eq!(stats.panics, 0);
    if failing == 1 {
        assert_eq!(of(&tally.failed), of(&tally.accepted));
    }
}

#[test]
fn no_request_is_lost_completed_twice_or_accepted_late() {
    for roots in [1, 4] {
        load(roots, 5);
    }
}

#[test]
fn drains_return_though_everything_fails() {
    load(3, 1);
}
