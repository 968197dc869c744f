//! Sets of roots: concurrent submissions, completions, errors, drains, cancels and a close. No
//! request is lost or completed twice, none is accepted after a close, and every drain returns (a
//! lost wake-up is a deadlock, which shuttle finds).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use forebay_io::{Completion, ErrorKind, Request, Roots};
use shuttle::thread::JoinHandle;

use crate::double::{Double, fail};
use forebay_base::model::{below, check, join, spawn};

const ROOTS: usize = 2;
/// More than the requests of one execution, children included.
const MOST: usize = 24;

/// A set, and the fate of each request. Ordinary atomics, since these notes are not part of the
/// checked code.
struct World {
    device: Arc<Double>,
    roots: Roots,
    notes: [Note; MOST],
    next: AtomicU32,
}

#[derive(Default)]
struct Note {
    /// Its submission has returned, so a later drain waits for it.
    submitted: AtomicBool,
    ends: AtomicU32,
    refused: AtomicBool,
    failed: AtomicBool,
    /// The request whose callback submitted it, plus one.
    parent: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        let device = Double::new();
        let roots = Roots::new(device.clone(), ROOTS);
        let notes = std::array::from_fn(|_| Note::default());
        Arc::new(Self { device, roots, notes, next: AtomicU32::new(0) })
    }

    /// Submits a request under root `nth`. It completes when a server completes it, or at once, and
    /// then submits `children`, half of which complete at once.
    fn submit(self: &Arc<Self>, nth: usize, at_once: bool, children: u32) {
        self.submit_of(None, nth, at_once, children);
    }

    fn submit_of(
        self: &Arc<Self>,
        parent: Option<usize>,
        nth: usize,
        at_once: bool,
        children: u32,
    ) {
        let id = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        self.notes[id].parent.store(parent.map_or(0, |id| id as u32 + 1), Ordering::Relaxed);
        let world = self.clone();
        let request = if at_once { Request::flush() } else { Request::discard(id as u64, 1) };
        let told = move |completion: Completion| {
            let note = &world.notes[id];
            let error = completion.result.map_err(|error| error.kind()).err();
            if error == Some(ErrorKind::Closed) {
                note.refused.store(true, Ordering::Relaxed);
            } else {
                note.failed.store(error.is_some(), Ordering::Relaxed);
                for child in 0..children {
                    world.submit_of(Some(id), 0, child % 2 == 0, children - 1);
                }
            }
            // Another thread may look between the completion and the return.
            shuttle::thread::yield_now();
            note.ends.fetch_add(1, Ordering::Relaxed);
        };
        self.roots.submit_nth(nth, request.on_done(told));
        self.notes[id].submitted.store(true, Ordering::Relaxed);
    }

    fn known(&self) -> impl Iterator<Item = &Note> {
        self.notes[..self.next.load(Ordering::Relaxed) as usize].iter()
    }

    /// Drains, and checks that all earlier requests and their descendants have completed. Returns
    /// the number of failures reported.
    fn drain(&self) -> u64 {
        let before: Vec<bool> =
            self.notes.iter().map(|note| note.submitted.load(Ordering::Relaxed)).collect();
        let failures = self.roots.drain().expect("in no callback").failures;
        let mut awaited = before;
        for (id, note) in self.notes.iter().enumerate() {
            // Children come after their parents.
            let parent = note.parent.load(Ordering::Relaxed) as usize;
            awaited[id] |= parent > 0 && awaited[parent - 1];
            let ends = note.ends.load(Ordering::Relaxed);
            assert!(!awaited[id] || ends == 1, "a drain returned before request {id} had ended");
        }
        failures.total()
    }

    /// A thread that completes up to `most` requests, failing some.
    fn server(self: &Arc<Self>, most: u64) -> JoinHandle<()> {
        let world = self.clone();
        spawn(move || {
            for _ in 0..most {
                match world.device.take(0) {
                    Some(request) if below(2) == 0 => fail(request, ErrorKind::Device),
                    Some(request) => request.finish(Ok(())),
                    None => shuttle::thread::yield_now(),
                }
            }
        })
    }

    /// Checks that every request completed once, and that children of accepted requests were
    /// accepted.
    fn end(&self) {
        let stats = self.roots.stats();
        assert_eq!((stats.total_in_flight(), stats.panics, self.device.len()), (0, 0, 0));
        let count = |note: fn(&Note) -> &AtomicBool| {
            self.known().filter(|known| note(known).load(Ordering::Relaxed)).count() as u64
        };
        assert_eq!(stats.refused, count(|note| &note.refused));
        assert_eq!(stats.failed, count(|note| &note.failed));
        for note in self.known() {
            assert_eq!(
                note.ends.load(Ordering::Relaxed),
                1,
                "a request was lost, or completed twice"
            );
            let child = note.parent.load(Ordering::Relaxed) > 0;
            assert!(!child || !note.refused.load(Ordering::Relaxed), "a child was refused");
        }
    }
}

/// Two drains, submissions to two roots whose callbacks submit too, and a server that fails some
/// requests.
#[test]
fn drains_race_submissions_and_errors() {
    check(12_000, || {
        let world = World::new();
        let submitter = |nth: usize| {
            let world = world.clone();
            spawn(move || {
                world.submit(nth, below(2) == 0, 2);
                world.submit(nth, below(2) == 0, 0);
            })
        };
        let drainer = || {
            let world = world.clone();
            spawn(move || world.drain())
        };
        let drains = [drainer(), drainer()];
        let threads = [submitter(0), submitter(1), world.server(4)];
        join(threads);
        world.device.finish_all();
        let found: u64 = join(drains).into_iter().sum();
        world.device.finish_all();
        let rest = world.drain();
        assert_eq!(found + rest, world.roots.errors().total(), "a failure is found by one drain");
        world.end();
    });
}

/// A close during submissions: accepted requests are waited for, none is accepted after it, and
/// children of accepted requests count as accepted.
#[test]
fn nothing_is_accepted_after_a_close() {
    check(12_000, || {
        let world = World::new();
        let submitter = |nth: usize| {
            let world = world.clone();
            spawn(move || {
                world.submit(nth, below(2) == 0, 2);
                world.submit(nth, false, 1);
            })
        };
        let closer = {
            let world = world.clone();
            spawn(move || {
                world.roots.close();
                world.submit(1, false, 0);
                world.drain();
                // All accepted requests have completed by now.
                let stats = world.roots.stats();
                assert_eq!((stats.total_in_flight(), world.device.len()), (0, 0));
                world.submit(0, false, 0);
                assert_eq!(world.device.len(), 0);
            })
        };
        let threads = [submitter(0), submitter(1), world.server(3)];
        join(threads);
        world.device.finish_all();
        join([closer]);
        world.end();
    });
}

/// The last request of a generation leaves while the drain goes to sleep, at both roots; three
/// drains in a row and one beside them.
#[test]
fn no_wake_is_lost() {
    check(12_000, || {
        let world = World::new();
        world.submit(0, false, 0);
        world.submit(1, false, 1);
        let servers = [world.server(2), world.server(2)];
        let beside = {
            let world = world.clone();
            spawn(move || {
                world.drain();
            })
        };
        let row = {
            let world = world.clone();
            spawn(move || {
                for nth in 0..2 {
                    world.drain();
                    world.submit(nth, true, 1);
                }
                world.drain();
            })
        };
        join(servers);
        world.device.finish_all();
        join([beside, row]);
        world.device.finish_all();
        world.end();
    });
}

/// A cancel reaches all requests submitted before it, and none submitted after it.
#[test]
fn a_cancel_divides_before_from_after() {
    check(12_000, || {
        let world = World::new();
        let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let canceller = {
            let (world, begun, ended) = (world.clone(), begun.clone(), ended.clone());
            spawn(move || {
                begun.store(1, Ordering::Relaxed);
                world.roots.cancel();
                ended.store(1, Ordering::Relaxed);
            })
        };
        let submitter = {
            let world = world.clone();
            spawn(move || {
                for offset in 0..3 {
                    let after = ended.load(Ordering::Relaxed) == 1;
                    let nth = offset as usize % ROOTS;
                    world.roots.submit_nth(nth, Request::discard(offset, 1));
                    let before = begun.load(Ordering::Relaxed) == 0;
                    let request = world.device.first();
                    let cancelled = request.is_cancelled();
                    assert!(!after || !cancelled, "it came after the cancel");
                    shuttle::thread::yield_now();
                    let done = ended.load(Ordering::Relaxed) == 1;
                    assert!(!(before && done) || request.is_cancelled(), "it came before");
                    request.finish(Ok(()));
                }
            })
        };
        join([canceller, submitter]);
        world.drain();
        world.end();
    });
}

/// A completion races a thread that waits and a future that polls.
#[test]
fn completions_reach_waiting_threads_and_futures() {
    check(12_000, || {
        let device = Double::new();
        let waiter = |future: bool| {
            let (request, pending) = Request::discard(0, 1).pending();
            forebay_io::Device::submit(&*device, request);
            let device = device.clone();
            spawn(move || {
                let completion = match future {
                    true => shuttle::future::block_on(pending),
                    false => pending.wait(&*device),
                };
                assert!(completion.result.is_ok());
            })
        };
        let waiters = [waiter(false), waiter(true)];
        let server = {
            let device = device.clone();
            spawn(move || device.take(0).into_iter().for_each(|request| request.finish(Ok(()))))
        };
        join([server]);
        device.finish_all();
        join(waiters);
    });
}
