//! Roots: what a drain waits for, what a closed set refuses, and what callbacks may do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use forebay_io::{Completion, Device, DrainError, Drained, ErrorKind, Request, Roots, in_callback};

use crate::double::{Double, fail, failure};

pub(crate) fn set(device: &Arc<Double>, count: usize) -> Arc<Roots> {
    Arc::new(Roots::new(device.clone(), count))
}

/// A request that the double keeps pending.
pub(crate) fn kept(offset: u64) -> Request {
    Request::discard(offset, 512)
}

/// Starts a drain on its own thread. It has begun when this returns.
pub(crate) fn drain_on_another_thread(roots: &Arc<Roots>) -> JoinHandle<Drained> {
    let begun = roots.stats().drains;
    let theirs = roots.clone();
    let thread = thread::spawn(move || theirs.drain().unwrap());
    while roots.stats().drains == begun {
        thread::yield_now();
    }
    thread
}

fn quiet(roots: &Roots) {
    assert_eq!(roots.stats().total_in_flight(), 0);
}

type Ends = Arc<Mutex<Vec<Result<u64, ErrorKind>>>>;

/// A request that records its offset when it succeeds, or its error.
fn noted(ends: &Ends, offset: u64) -> Request {
    let ends = ends.clone();
    kept(offset).on_done(move |end: Completion| {
        let end = end.result.map(|()| offset).map_err(|error| error.kind());
        ends.lock().unwrap().push(end);
    })
}

fn taken(ends: &Ends) -> Vec<Result<u64, ErrorKind>> {
    std::mem::take(&mut ends.lock().unwrap())
}

#[test]
fn an_idle_set_drains_at_once() {
    let roots = set(&Double::new(), 0);
    assert!(roots.len() >= 1);
    for _ in 0..5 {
        let drained = roots.drain().unwrap();
        assert_eq!(drained.waited_for, 0);
        assert!(drained.failures.is_empty());
    }
    assert_eq!(roots.stats().drains, 5);
}

#[test]
fn a_drain_waits_for_earlier_requests_only() {
    for count in [1, 3] {
        let device = Double::new();
        let roots = set(&device, count);
        // From several threads, so that several roots have requests.
        for offset in 0..4 {
            let roots = roots.clone();
            thread::spawn(move || roots.submit(kept(offset))).join().unwrap();
        }
        roots.submit(kept(4));
        let drain = drain_on_another_thread(&roots);
        roots.submit(kept(5));
        for _ in 0..5 {
            assert!(!drain.is_finished(), "with {} in flight", roots.stats());
            device.first().finish(Ok(()));
        }
        assert_eq!(drain.join().unwrap().waited_for, 5);
        assert_eq!(roots.stats().total_in_flight(), 1);
        // The next drain covers the rest.
        let drain = drain_on_another_thread(&roots);
        assert!(!drain.is_finished());
        device.first().finish(Ok(()));
        assert_eq!(drain.join().unwrap().waited_for, 1);
        quiet(&roots);
    }
}

#[test]
fn children_belong_to_their_parents_generation() {
    let device = Double::new();
    let roots = set(&device, 2);
    let inside = roots.clone();
    roots.submit(kept(0).on_done(move |_| {
        let deeper = inside.clone();
        inside.submit(kept(1).on_done(move |_| deeper.submit(kept(2))));
        // Completes at once, but its callback runs after this one.
        let deeper = inside.clone();
        inside.submit(Request::flush().on_done(move |_| deeper.submit(kept(3))));
    }));
    let drain = drain_on_another_thread(&roots);
    roots.close();
    for left in [2, 2, 1, 0] {
        assert!(!drain.is_finished());
        device.first().finish(Ok(()));
        assert_eq!((device.len(), roots.stats().total_in_flight()), (left, left as u64));
    }
    assert_eq!(drain.join().unwrap().waited_for, 1);
    assert_eq!(roots.stats().refused, 0);
}

#[test]
fn a_callback_has_ended_before_a_drain_returns_and_is_dropped() {
    struct Last(Arc<AtomicBool>);
    impl Drop for Last {
        fn drop(&mut self) {
            thread::yield_now();
            self.0.store(true, Ordering::Relaxed);
        }
    }
    for _ in 0..200 {
        let device = Double::new();
        let roots = set(&device, 1);
        let dropped = Arc::new(AtomicBool::new(false));
        let last = Last(dropped.clone());
        roots.submit(kept(0).on_done(move |_| {
            let _last = &last;
        }));
        let drain = drain_on_another_thread(&roots);
        device.first().finish(Ok(()));
        drain.join().unwrap();
        assert!(dropped.load(Ordering::Relaxed));
    }
}

#[test]
fn a_closed_set_refuses() {
    let device = Double::new();
    let roots = set(&device, 2);
    let ends = Ends::default();
    roots.submit(noted(&ends, 1));
    roots.close();
    roots.close();
    roots.submit(noted(&ends, 2));
    roots.submit_all(&mut vec![noted(&ends, 3), noted(&ends, 4)]);
    assert_eq!(taken(&ends), [Err(ErrorKind::Closed); 3]);
    let (request, pending) = kept(4096).pending();
    roots.submit(request);
    let error = pending.wait(&*device).result.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("discard of 512 bytes at 4096 of double: "), "{text}");
    assert!(text.contains("open the device again"), "{text}");
    let stats = roots.stats();
    assert_eq!((stats.refused, stats.total_in_flight(), stats.failed), (4, 1, 0));
    assert!(stats.closed);

    // Accepted requests complete as before. Requests without a parent stay refused.
    let drain = drain_on_another_thread(&roots);
    roots.submit(noted(&ends, 5));
    device.first().finish(Ok(()));
    assert_eq!(drain.join().unwrap().waited_for, 1);
    assert_eq!(taken(&ends), [Err(ErrorKind::Closed), Ok(1)]);
    assert_eq!(device.len(), 0);
}

#[test]
fn only_a_callback_of_the_set_itself_may_pass_a_closed_door() {
    let device = Double::new();
    let (mine, other) = (set(&device, 3), set(&device, 3));
    let ends = Ends::default();
    mine.close();
    // In the callback of another set, of no set, and of a refused request.
    let (inside, theirs) = (mine.clone(), ends.clone());
    other.submit(Request::flush().on_done(move |_| inside.submit(noted(&theirs, 1))));
    let (inside, theirs) = (mine.clone(), ends.clone());
    Request::flush().on_done(move |_| inside.submit(noted(&theirs, 2))).finish(Ok(()));
    let (inside, theirs) = (mine.clone(), ends.clone());
    mine.submit(kept(3).on_done(move |_| inside.submit(noted(&theirs, 3))));
    assert_eq!(taken(&ends), [Err(ErrorKind::Closed); 3]);
    assert_eq!(mine.stats().refused, 4);
}

#[test]
fn a_request_belongs_to_the_set_it_was_submitted_to() {
    let device = Double::new();
    let (mine, other) = (set(&device, 1), set(&device, 1));
    let (inside, others) = (mine.clone(), other.clone());
    mine.submit(kept(0).on_done(move |_| {
        let back = inside.clone();
        others.submit(kept(1).on_done(move |_| back.submit(kept(2))));
        // Its callback runs in the same call of the thread, yet it is not a child of the request
        // before.
        let back = inside.clone();
        others.submit(Request::flush().on_done(move |_| back.submit(kept(3))));
    }));
    let in_flight = || (mine.stats().total_in_flight(), other.stats().total_in_flight());
    device.first().finish(Ok(()));
    assert_eq!(in_flight(), (1, 1));
    mine.close();
    // It was a child in the other set, which gives it no right in this one.
    device.first().finish(Ok(()));
    assert_eq!((in_flight(), mine.stats().refused), ((1, 0), 1));
    device.finish_all();
    assert_eq!(in_flight(), (0, 0));
}

#[test]
fn a_drain_in_a_callback_is_an_error() {
    let device = Double::new();
    let roots = set(&device, 2);
    let (told, tell) = mpsc::channel();
    let inside = roots.clone();
    roots.submit(kept(0).on_done(move |_| told.send(inside.drain()).unwrap()));
    device.first().finish(Ok(()));
    let refused = tell.recv().unwrap().unwrap_err();
    assert_eq!(refused, DrainError::InCallback);
    assert!(refused.to_string().contains("on another thread"));
    assert_eq!(roots.stats().drains, 0);
    roots.drain().unwrap();
}

#[test]
fn cancel_affects_earlier_requests_only() {
    let device = Double::new();
    let roots = set(&device, 2);
    roots.submit(kept(0));
    // One or two layers of decorators change nothing.
    roots.submit(kept(1).layered(|_| {}));
    let theirs = roots.clone();
    thread::spawn(move || theirs.submit(kept(2))).join().unwrap();
    let over = device.take(0).unwrap().layered(|_| {}).layered(|_| {});
    assert!(!over.is_cancelled());
    roots.cancel();
    assert!(over.is_cancelled());
    roots.submit(kept(3));
    let cancelled: Vec<_> = (0..3).map(|_| device.first()).collect();
    assert_eq!(
        cancelled.iter().map(Request::is_cancelled).collect::<Vec<_>>(),
        [true, true, false]
    );
    roots.cancel();
    assert!(cancelled.iter().all(Request::is_cancelled));
    assert!(!kept(4).is_cancelled());

    over.finish(Ok(()));
    cancelled.into_iter().for_each(|request| fail(request, ErrorKind::Cancelled));
    let drained = roots.drain().unwrap();
    assert_eq!(drained.failures.of(ErrorKind::Cancelled), 3);
}

#[test]
fn each_failure_is_in_one_drain() {
    let device = Double::new();
    let roots = set(&device, 1);
    for offset in 0..20 {
        roots.submit(kept(offset));
    }
    let old: Vec<_> = (0..20).map(|_| device.first()).collect();
    let drain = drain_on_another_thread(&roots);
    roots.submit(kept(100));
    // A newer request fails first.
    fail(device.first(), ErrorKind::NoSpace);
    assert_eq!(roots.errors().of(ErrorKind::NoSpace), 1);
    old.into_iter().for_each(|request| fail(request, ErrorKind::Device));
    let failures = drain.join().unwrap().failures;
    assert_eq!((failures.total(), failures.of(ErrorKind::Device)), (20, 20));
    let kept: Vec<_> = failures.first().iter().map(|error| error.range().0).collect();
    assert_eq!(kept, (0..8).collect::<Vec<_>>());

    let failures = roots.drain().unwrap().failures;
    assert_eq!((failures.total(), failures.of(ErrorKind::NoSpace)), (1, 1));
    assert_eq!(failures.first()[0].range(), (100, 512));
    assert!(roots.drain().unwrap().failures.is_empty());
    // The sum remains.
    let all = roots.errors();
    assert_eq!((all.of(ErrorKind::Device), all.of(ErrorKind::NoSpace)), (20, 1));
    assert!(all.first().is_empty());
    assert_eq!(roots.stats().failed, 21);
}

#[test]
fn the_root_sees_the_same_result_as_the_user() {
    let device = Double::new();
    let roots = set(&device, 1);
    let ends = Ends::default();
    // A user's layer is part of the callback.
    let inside = roots.clone();
    roots.submit(noted(&ends, 1).layered(move |completion| {
        assert_eq!(completion.result.as_ref().unwrap_err().kind(), ErrorKind::Device);
        completion.result = Ok(());
        inside.submit(kept(2));
    }));
    let request = device.first();
    let injected = failure(&request, ErrorKind::Device);
    // A decorator's layer runs before the root.
    request.layered(move |completion| completion.result = Err(injected)).finish(Ok(()));
    assert_eq!(taken(&ends), [Ok(1)]);
    assert_eq!(roots.errors().of(ErrorKind::Device), 1);
    assert_eq!(roots.stats().total_in_flight(), 1, "what the layer submitted belongs to the root");
    device.finish_all();
    quiet(&roots);
}

#[test]
fn panics_are_counted_and_lose_nothing() {
    let device = Double::new();
    let roots = set(&device, 1);
    let inside = roots.clone();
    roots.submit(kept(0).on_done(move |_| {
        inside.submit(kept(1));
        inside.submit(Request::flush().on_done(|_| panic!("on purpose")));
        panic!("on purpose");
    }));
    let drain = drain_on_another_thread(&roots);
    let child = {
        device.first().finish(Ok(()));
        device.first()
    };
    assert!(!in_callback());
    assert!(!drain.is_finished());
    // A request that a device drops (after a panic, say) completes as well.
    drop(child);
    let failures = drain.join().unwrap().failures;
    assert_eq!((failures.panics(), failures.of(ErrorKind::Device)), (2, 1));
    assert!(failures.first()[0].to_string().contains("dropped unfinished"));
    let stats = roots.stats();
    assert_eq!((stats.panics, stats.failed, stats.total_in_flight()), (2, 1, 0));
    // The thread works as before. A request that it submits now has no parent.
    roots.close();
    roots.submit(kept(2));
    assert_eq!(roots.stats().refused, 1);
}

#[test]
fn several_at_once_are_as_many_by_one() {
    let device = Double::new();
    let roots = set(&device, 2);
    let mut requests: Vec<_> = (0..10).map(kept).collect();
    roots.submit_all(&mut requests);
    assert!(requests.is_empty());
    roots.submit_all(&mut requests);
    assert_eq!((roots.stats().total_in_flight(), device.len()), (10, 10));
    // Children too.
    let inside = roots.clone();
    roots.submit(Request::flush().on_done(move |_| {
        inside.close();
        inside.submit_all(&mut (10..15).map(kept).collect());
    }));
    assert_eq!((roots.stats().total_in_flight(), device.len()), (15, 15));
    let drain = drain_on_another_thread(&roots);
    device.finish_all();
    assert_eq!(drain.join().unwrap().waited_for, 15);
    quiet(&roots);
}

#[test]
fn a_request_under_two_sets_is_of_both() {
    /// A device with its own set of roots.
    struct DeviceWithRoots(Arc<Double>, Arc<Roots>);
    impl Device for DeviceWithRoots {
        fn submit(&self, request: Request) {
            self.1.submit(request);
        }
        fn info(&self) -> &forebay_io::DeviceInfo {
            self.0.info()
        }
        fn health(&self) -> forebay_io::Health {
            self.0.health()
        }
        fn stats(&self) -> forebay_io::DeviceStats {
            self.0.stats()
        }
        fn help(&self, _: &forebay_io::Waiter) {}
        fn close(&self) {}
    }
    let device = Double::new();
    let below = set(&device, 1);
    let above = Arc::new(Roots::new(Arc::new(DeviceWithRoots(device.clone(), below.clone())), 1));
    let ends = Ends::default();
    above.submit(noted(&ends, 1));
    let in_flight = || (above.stats().total_in_flight(), below.stats().total_in_flight());
    assert_eq!(in_flight(), (1, 1));
    fail(device.first(), ErrorKind::Gone);
    assert_eq!(in_flight(), (0, 0));
    assert_eq!(taken(&ends), [Err(ErrorKind::Gone)]);
    let counts = [&above, &below].map(|roots| roots.drain().unwrap().failures.of(ErrorKind::Gone));
    assert_eq!(counts, [1, 1]);
}

#[test]
fn a_set_may_go_before_its_requests() {
    let device = Double::new();
    let roots = set(&device, 2);
    let ends = Ends::default();
    roots.submit(noted(&ends, 1));
    drop(roots);
    device.finish_all();
    assert_eq!(taken(&ends), [Ok(1)]);
}

#[test]
fn drains_of_many_threads_take_turns() {
    let device = Double::new();
    let roots = set(&device, 2);
    let drained = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (roots, device, drained) = (roots.clone(), device.clone(), drained.clone());
            thread::spawn(move || {
                for _ in 0..200 {
                    roots.submit(kept(n));
                    device.take(0).into_iter().for_each(|request| request.finish(Ok(())));
                    let found = roots.drain().unwrap();
                    drained.fetch_add(found.failures.total(), Ordering::Relaxed);
                }
            })
        })
        .collect();
    while !threads.iter().all(JoinHandle::is_finished) {
        device.take(0).into_iter().for_each(|request| fail(request, ErrorKind::Device));
        thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(drained.load(Ordering::Relaxed), roots.errors().total());
    quiet(&roots);
}

#[test]
fn it_says_how_it_stands() {
    let device = Double::new();
    let roots = set(&device, 1);
    roots.submit(kept(0));
    let text = roots.stats().to_string();
    let expected = "1 roots, open: 1 in flight [1]\n0 drains, 0 failed, 0 refused, 0 panics";
    assert_eq!(text, expected);
    assert!(format!("{roots:?}").contains("double"));
}
