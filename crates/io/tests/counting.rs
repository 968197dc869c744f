//! The cost of a root per request, measured by the counting build: `--features counting`.
#![allow(clippy::disallowed_methods, reason = "a channel makes a gate")]

use std::sync::mpsc::sync_channel;

use forebay_base::sync::Arc;
use forebay_base::sync::count::{self, Counts};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Request, Roots};

#[path = "it/double.rs"]
mod double;

use double::Double;

const REQUESTS: u64 = 10_000;

/// The cost of `REQUESTS` calls of `f` for the calling thread.
fn cost(mut f: impl FnMut()) -> Counts {
    // The thread's slot is created at its first use.
    f();
    let before = count::thread();
    (0..REQUESTS).for_each(|_| f());
    let after = count::thread();
    Counts {
        locks: after.locks - before.locks,
        contended: after.contended - before.contended,
        rmw: after.rmw - before.rmw,
        cas_failed: after.cas_failed - before.cas_failed,
        ..Counts::default()
    }
}

#[test]
fn a_root_takes_no_lock_and_one_update_each_way() {
    let device = Double::new();
    let roots = Roots::new(device.clone(), 2);
    // The test double completes a flush without a lock of its own.
    let bare = cost(|| device.submit(Request::flush().on_done(|_| {})));
    assert_eq!((bare.locks, bare.rmw), (0, 0));
    let under = cost(|| roots.submit(Request::flush().on_done(|_| {})));
    // One update of the root's word at entry and one at exit. (The shim does not count the root's
    // reference count, which is updated as often.)
    assert_eq!((under.locks, under.cas_failed, under.rmw), (0, 0, 2 * REQUESTS));

    let mut requests = Vec::new();
    let batches = cost(|| {
        requests.extend((0..8).map(|_| Request::flush().on_done(|_| {})));
        roots.submit_all(&mut requests);
    });
    assert_eq!((batches.locks, batches.rmw), (0, 9 * REQUESTS));
    assert_eq!(roots.stats().total_in_flight(), 0);
}

#[test]
fn a_submit_under_a_root_locks_its_queue_and_nothing_else() {
    const SUBMITS: u64 = 4;
    // One queue, whose thread blocks in the callback of the first request. So no other request
    // completes and returns its permit while the submissions are counted.
    let options = MemoryOptions { latency_ns: 1, submission_queues: 1, ..MemoryOptions::default() };
    let device = Arc::new(MemoryDevice::new("counted", 1 << 20, &options).unwrap());
    let roots = Roots::new(device.clone(), 2);
    let (entered, is_in) = sync_channel(0);
    let (go, gate) = sync_channel::<()>(0);
    roots.submit(Request::flush().on_done(move |_| {
        entered.send(()).unwrap();
        gate.recv().unwrap();
    }));
    is_in.recv().unwrap();
    let submit = || roots.submit(Request::flush().on_done(|_| {}));
    // The first submission takes a batch of permits.
    submit();
    let before = count::thread().locks;
    (0..SUBMITS).for_each(|_| submit());
    assert_eq!(count::thread().locks - before, SUBMITS);
    go.send(()).unwrap();
    roots.drain().unwrap();
}
