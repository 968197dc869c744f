//! Callbacks run one after another, whatever they do.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "plain threads for a test")]

use std::cell::RefCell;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::{CallbackScope, RequestEnd, catch_panic, in_callback, run};
use crate::error::{Error, ErrorKind};
use crate::request::{Completion, Op, Request};

type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, what: impl Into<String>) {
    log.lock().unwrap().push(what.into());
}

/// The events in order.
fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

/// A request that records its completion as `name`.
fn noting(log: &Log, name: &'static str) -> Request {
    let log = log.clone();
    Request::flush().on_done(move |_| note(&log, name))
}

fn failure(text: &str) -> Result<(), Error> {
    Err(Error::new(ErrorKind::Device, Op::Flush, &"disk".into(), (0, 0), text))
}

#[test]
fn completions_inside_a_callback_are_delivered_after_it_in_order() {
    let log = Log::default();
    let inner = log.clone();
    let outer = Request::flush().on_done(move |_| {
        assert!(in_callback());
        let inside = inner.clone();
        let first = Request::flush().on_done(move |_| {
            noting(&inside, "third").finish(Ok(()));
            note(&inside, "first");
        });
        first.finish(Ok(()));
        noting(&inner, "second").finish(Ok(()));
        note(&inner, "outer");
    });
    assert!(!in_callback());
    outer.finish(Ok(()));
    assert!(!in_callback());
    assert_eq!(taken(&log), ["outer", "first", "second", "third"]);
}

#[test]
fn a_long_chain_is_no_recursion() {
    fn link(left: u32, end: mpsc::Sender<()>) -> Request {
        Request::flush().on_done(move |_| match left {
            0 => end.send(()).unwrap(),
            _ => link(left - 1, end).finish(Ok(())),
        })
    }
    let (end, ended) = mpsc::channel();
    let small = thread::Builder::new().stack_size(64 << 10);
    let thread = small.spawn(move || link(100_000, end).finish(Ok(()))).unwrap();
    thread.join().unwrap();
    ended.recv().unwrap();
}

#[test]
fn a_panic_in_a_callback_loses_no_other_completion() {
    let log = Log::default();
    let inner = log.clone();
    let outer = Request::flush().on_done(move |_| {
        noting(&inner, "second").finish(Ok(()));
        let third = noting(&inner, "third");
        Request::flush().on_done(|_| panic!("on purpose")).finish(Ok(()));
        third.finish(Ok(()));
        panic!("on purpose");
    });
    outer.finish(Ok(()));
    assert!(!in_callback());
    assert_eq!(taken(&log), ["second", "third"]);
}

/// A panic payload that panics again when dropped, this many times.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Bomb(self.0 - 1));
        }
    }
}

#[test]
fn a_panic_payload_may_panic() {
    for times in 0..3 {
        assert!(!catch_panic(|| std::panic::panic_any(Bomb(times))));
        let request = Request::flush().on_done(move |_| std::panic::panic_any(Bomb(times)));
        request.finish(Ok(()));
        assert!(!in_callback());
    }
    assert!(catch_panic(|| {}));
}

#[test]
fn layers_come_first_the_newest_before_all() {
    let log = Log::default();
    let [old, new, end] = [log.clone(), log.clone(), log.clone()];
    let request = Request::flush()
        .on_done(move |completion| {
            let error = completion.result.unwrap_err();
            note(&end, error.to_string());
        })
        .layered(move |completion| {
            note(&old, "old");
            assert!(completion.result.is_ok());
            completion.result = failure("the old layer says so");
        })
        .layered(move |completion| {
            note(&new, "new");
            completion.result = Ok(());
        });
    request.finish(failure("the device says so"));
    assert_eq!(taken(&log), ["new", "old", "flush of disk: the old layer says so"]);
}

#[test]
fn a_layer_that_panics_spoils_the_result_only() {
    for (result, says) in [(Ok(()), "panicked"), (failure("it burns"), "it burns")] {
        let log = Log::default();
        let [old, end] = [log.clone(), log.clone()];
        let request = Request::flush()
            .on_done(move |completion| note(&end, completion.result.unwrap_err().to_string()))
            .layered(move |_| note(&old, "old"))
            .layered(|_| panic!("on purpose"));
        request.finish(result);
        let told = taken(&log);
        assert_eq!((told.len(), &*told[0]), (2, "old"));
        assert!(told[1].contains(says), "{told:?}");
    }
}

#[test]
fn a_request_without_a_callback_just_ends() {
    Request::flush().finish(Ok(()));
    drop(Request::discard(0, 512));
    assert!(!in_callback());
}

#[test]
fn a_thread_may_end_requests_as_its_last_act() {
    thread_local! {
        static LAST: RefCell<Option<Request>> = const { RefCell::new(None) };
    }
    let log = Log::default();
    let inner = log.clone();
    let thread = thread::spawn(move || {
        // Created before this module's list, so dropped after it.
        LAST.with(|last| *last.borrow_mut() = Some(Request::flush()));
        noting(&inner, "early").finish(Ok(()));
        let nested = noting(&inner, "nested");
        let request = Request::flush().on_done(move |completion| {
            assert!(completion.result.is_err());
            nested.finish(Ok(()));
            note(&inner, "last");
        });
        LAST.with(|last| *last.borrow_mut() = Some(request));
    });
    thread.join().unwrap();
    let mut told = taken(&log);
    told.sort();
    assert_eq!(told, ["early", "last", "nested"]);
}

#[test]
fn a_panic_between_callbacks_leaves_the_thread_as_it_was() {
    let log = Log::default();
    let (inner, end) = (log.clone(), log.clone());
    let completion = Completion { op: Op::Flush, offset: 0, result: Ok(()), payload: None };
    // Not created by `layered`, which would catch the panic.
    let layers = move |_: &mut Completion| {
        noting(&inner, "later").finish(Ok(()));
        assert!(!in_callback(), "on purpose");
    };
    let callback = move |completion: Completion| {
        assert!(in_callback());
        note(&end, completion.result.unwrap_err().to_string());
    };
    let (layers, callback) = (Some(Box::new(layers) as _), Some(Box::new(callback) as _));
    run(RequestEnd { completion, layers, hold: None, callback });
    assert!(!in_callback());
    let told = taken(&log);
    assert!(told[0].contains("panicked"), "{told:?}");
    assert_eq!(told[1..], ["later"]);

    let thrown = std::panic::catch_unwind(|| {
        let _scope = CallbackScope::enter();
        panic!("on purpose");
    });
    assert!(thrown.is_err() && !in_callback());
}

/// Memory that panics on access.
struct Bad(bool);

// SAFETY: it only ever returns an empty slice.
unsafe impl crate::StableBytes for Bad {
    fn bytes(&self) -> &[u8] {
        assert!(self.0, "on purpose");
        &[]
    }
}

#[test]
fn panicking_memory_loses_no_completion() {
    let log = Log::default();
    let end = log.clone();
    let layer = |completion: &mut Completion| {
        completion.payload = Some(crate::Payload::Shared(Box::new(Bad(false))));
        panic!("on purpose");
    };
    Request::write_shared(0, Box::new(Bad(true)))
        .on_done(move |completion| note(&end, completion.result.unwrap_err().to_string()))
        .layered(layer)
        .finish(Ok(()));
    assert_eq!(taken(&log).len(), 1);
}
