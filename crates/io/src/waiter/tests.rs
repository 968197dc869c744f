//! One completion, stored by one thread and found by another.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "plain threads for a test")]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use super::Pending;
use crate::completion::in_callback;
use crate::payload::StableBytes;
use crate::request::{Op, Request};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A waker, and the number of its wakes.
fn waker() -> (Waker, Arc<Wakes>) {
    let wakes = Arc::new(Wakes::default());
    (Waker::from(wakes.clone()), wakes)
}

fn pending() -> (Request, Pending) {
    Request::discard(4096, 512).pending()
}

#[test]
fn the_last_waker_is_woken_once() {
    let (request, pending) = pending();
    let mut pending = pin!(pending);
    let ((first, first_wakes), (second, second_wakes)) = (waker(), waker());
    assert!(pending.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    assert!(pending.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    // The replaced waker is dropped at once.
    drop(first);
    assert_eq!(Arc::strong_count(&first_wakes), 1);
    request.finish(Ok(()));
    assert_eq!((first_wakes.count(), second_wakes.count()), (0, 1));
    let Poll::Ready(completion) = pending.as_mut().poll(&mut Context::from_waker(&second)) else {
        panic!("it was woken, but there is nothing");
    };
    assert_eq!((completion.op, completion.offset), (Op::Discard, 4096));
    let again = catch_unwind(AssertUnwindSafe(|| pending.poll(&mut Context::from_waker(&second))));
    assert!(again.is_err(), "the end was given twice");
}

#[test]
fn an_end_that_comes_first_needs_no_wake() {
    let (request, pending) = pending();
    assert!(!pending.waiter().is_complete());
    request.finish(Ok(()));
    assert!(pending.waiter().is_complete());
    let (waker, wakes) = waker();
    assert!(pin!(pending).poll(&mut Context::from_waker(&waker)).is_ready());
    assert_eq!(wakes.count(), 0);
}

#[test]
fn parked_threads_all_wake_and_a_future_as_well() {
    let (request, pending) = pending();
    let (parked, parks) = mpsc::channel();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (waiter, parked) = (pending.waiter(), parked.clone());
            thread::spawn(move || {
                parked.send(()).unwrap();
                waiter.park();
                assert!(waiter.is_complete());
            })
        })
        .collect();
    let mut pending = pin!(pending);
    let (waker, wakes) = waker();
    assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    threads.iter().for_each(|_| parks.recv().unwrap());
    request.finish(Ok(()));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(wakes.count(), 1);
    // `park` takes nothing, and does not block after completion.
    pending.waiter().park();
    assert!(pending.poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_completion_needs_no_waiting_thread() {
    let (request, pending) = pending();
    let waiter = pending.waiter();
    drop(pending);
    request.finish(Ok(()));
    assert!(waiter.is_complete());
}

#[test]
fn a_dropped_request_is_an_end() {
    let (request, pending) = pending();
    drop(request);
    let completion = pending.waiter.take().expect("complete");
    let error = completion.result.unwrap_err();
    assert!(error.to_string().contains("dropped unfinished"), "{error}");
    assert_eq!(error.range(), (4096, 512));
}

#[test]
fn a_waker_that_panics_is_contained() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (request, pending) = pending();
    let mut pending = pin!(pending);
    let bad = Waker::from(Arc::new(Bad));
    assert!(pending.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    request.finish(Ok(()));
    let (waker, _) = waker();
    assert!(pending.poll(&mut Context::from_waker(&waker)).is_ready());
}

/// Completions race polls: a poll that found nothing is always followed by a wake.
#[test]
fn no_wake_is_lost() {
    for _ in 0..2000 {
        let (request, pending) = pending();
        let thread = thread::spawn(move || request.finish(Ok(())));
        let mut pending = pin!(pending);
        let (waker, wakes) = waker();
        let early = pending.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        thread.join().unwrap();
        assert!(early || wakes.count() == 1);
        assert!(early || pending.poll(&mut Context::from_waker(&waker)).is_ready());
    }
}

/// Reports whether it was dropped in a callback.
struct Tells(mpsc::Sender<bool>);

// SAFETY: it has no bytes.
unsafe impl StableBytes for Tells {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.send(in_callback()).unwrap();
    }
}

#[test]
fn an_untaken_completion_is_dropped_in_the_callback() {
    for dropped in [false, true] {
        let (sent, received) = mpsc::channel();
        let (request, pending) = Request::write_shared(0, Box::new(Tells(sent))).pending();
        drop(pending);
        match dropped {
            true => drop(request),
            false => request.finish(Ok(())),
        }
        assert!(received.recv().unwrap(), "the engine's thread, outside of any callback");
    }
}
