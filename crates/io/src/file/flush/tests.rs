//! Flushes over a device that a test plays.

use forebay_base::sync::{Arc, Mutex, thread};

use super::{Flushes, LOST, MAX_WAITING};
use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::request::{Op, Request};
use crate::waiter::Waiter;

/// Keeps what is submitted; refuses it when closed.
struct Below {
    info: DeviceInfo,
    flying: Mutex<Vec<Request>>,
    closed: Mutex<bool>,
}

impl Device for Below {
    fn submit(&self, request: Request) {
        if *self.closed.lock() {
            let error = error(ErrorKind::Closed);
            return request.finish(Err(error));
        }
        self.flying.lock().push(request);
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn health(&self) -> Health {
        Health::Healthy
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::new(Engine::Memory, Vec::new())
    }

    fn help(&self, _: &Waiter) {}

    fn close(&self) {
        *self.closed.lock() = true;
    }
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, Op::Flush, &"below".into(), (0, 0), "the test says so")
}

fn lost() -> Error {
    Error::system(Op::Flush, &"below".into(), (0, 0), 5)
}

/// Flushes, what they go to, and how they ended.
struct Bench {
    below: Arc<Below>,
    flushes: Arc<Flushes>,
    ends: Arc<Mutex<Vec<(u32, Result<(), Error>)>>>,
}

impl Bench {
    fn new() -> Self {
        let info = DeviceInfo {
            name: "below".into(),
            size_bytes: 1 << 20,
            sector_bytes: 512,
            read_only: false,
            direct: false,
            engine: Engine::Memory,
        };
        let flying = Mutex::named("test-flying", Vec::new());
        let closed = Mutex::named("test-closed", false);
        let below = Arc::new(Below { info, flying, closed });
        let weak = Arc::downgrade(&below);
        let flushes = Flushes::new(weak, &below.info.name);
        Self { below, flushes, ends: Arc::new(Mutex::named("test-ends", Vec::new())) }
    }

    fn request(&self, name: u32) -> Request {
        let ends = Arc::clone(&self.ends);
        Request::flush().on_done(move |completion| ends.lock().push((name, completion.result)))
    }

    fn submit(&self, name: u32) {
        self.flushes.submit(self.request(name));
    }

    /// How many are on their way below.
    fn flying(&self) -> usize {
        self.below.flying.lock().len()
    }

    /// Ends the one that is on its way.
    fn end(&self, result: Result<(), Error>) {
        let request = self.below.flying.lock().remove(0);
        request.finish(result);
    }

    fn ends(&self) -> Vec<(u32, Result<(), ErrorKind>)> {
        let ends = std::mem::take(&mut *self.ends.lock());
        ends.into_iter().map(|(name, end)| (name, end.map_err(|error| error.kind()))).collect()
    }
}

#[test]
fn what_comes_meanwhile_goes_together_afterwards() {
    let bench = Bench::new();
    (1..=4).for_each(|name| bench.submit(name));
    assert_eq!(bench.flying(), 1);
    bench.end(Ok(()));
    assert_eq!(bench.ends(), [(1, Ok(()))]);
    assert_eq!(bench.flying(), 1);
    // This one is not covered by what is on its way.
    bench.submit(5);
    bench.end(Ok(()));
    assert_eq!(bench.ends(), [(2, Ok(())), (3, Ok(())), (4, Ok(()))]);
    bench.end(Ok(()));
    assert_eq!(bench.ends(), [(5, Ok(()))]);
    bench.submit(6);
    bench.end(Ok(()));
    assert_eq!((bench.ends(), bench.flying(), bench.flushes.refused()), (vec![(6, Ok(()))], 0, 0));
}

#[test]
fn after_one_that_failed_all_fail() {
    let bench = Bench::new();
    bench.submit(1);
    bench.end(Ok(()));
    (2..=4).for_each(|name| bench.submit(name));
    bench.end(Err(lost()));
    bench.submit(5);
    assert_eq!(bench.flying(), 0, "the kernel would say that all is well");
    let ends = std::mem::take(&mut *bench.ends.lock());
    assert!(ends[0].1.is_ok());
    for (name, end) in &ends[1..] {
        let error = end.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert_eq!(error.errno(), (*name == 2).then_some(5));
        let text = error.to_string();
        assert!(text.starts_with("flush of below: ") && text.contains(LOST), "{text}");
        assert!(text.contains("Input/output error"), "{text}");
    }
    assert_eq!((ends.len(), bench.flushes.refused()), (5, 3));
}

#[test]
fn those_that_share_a_flush_share_its_failure() {
    let bench = Bench::new();
    (1..=3).for_each(|name| bench.submit(name));
    bench.end(Ok(()));
    bench.end(Err(lost()));
    let failed = Err(ErrorKind::Device);
    assert_eq!(bench.ends(), [(1, Ok(())), (2, failed), (3, failed)]);
}

#[test]
fn one_that_was_not_executed_says_nothing_about_others() {
    let bench = Bench::new();
    bench.submit(1);
    let (request, handle) = bench.request(2).raisable();
    bench.flushes.submit(request);
    (3..=4).for_each(|name| bench.submit(name));
    handle.cancel();
    // Cancelled in the queue below.
    bench.end(Err(error(ErrorKind::Cancelled)));
    let cancelled = Err(ErrorKind::Cancelled);
    assert_eq!(bench.ends(), [(1, cancelled), (2, cancelled)]);
    bench.end(Err(error(ErrorKind::Cancelled)));
    assert_eq!(bench.ends(), [(3, cancelled)]);
    bench.end(Ok(()));
    assert_eq!(bench.ends(), [(4, Ok(()))]);
}

#[test]
fn the_most_urgent_goes_for_all() {
    let bench = Bench::new();
    bench.submit(1);
    bench.flushes.submit(bench.request(2).with_priority(Priority::Scrub));
    bench.flushes.submit(bench.request(3).with_priority(Priority::SyncRead));
    bench.end(Ok(()));
    assert_eq!(bench.below.flying.lock()[0].priority(), Priority::SyncRead);
    bench.end(Ok(()));
    assert_eq!(bench.ends().len(), 3);
}

#[test]
fn a_closed_or_dropped_device_ends_them_all() {
    for dropped in [false, true] {
        let mut bench = Bench::new();
        (0..100).for_each(|name| bench.submit(name));
        let first = bench.below.flying.lock().remove(0);
        match dropped {
            false => bench.below.close(),
            true => bench.below = Bench::new().below,
        }
        first.finish(Ok(()));
        let ends = bench.ends();
        assert_eq!(ends[0], (0, Ok(())));
        assert!(ends[1..].iter().all(|end| end.1 == Err(ErrorKind::Closed)));
        assert_eq!(ends.len(), 100);
        bench.flushes.close();
        bench.submit(100);
        assert_eq!(bench.ends(), [(100, Err(ErrorKind::Closed))]);
    }
}

#[test]
fn closing_waits_for_those_that_wait_and_a_full_list_for_room() {
    let bench = Arc::new(Bench::new());
    (0..=MAX_WAITING as u32).for_each(|name| bench.submit(name));
    let theirs = Arc::clone(&bench);
    let name = MAX_WAITING as u32 + 1;
    let late = thread::spawn_named("test-late", move || theirs.submit(name)).unwrap();
    bench.end(Ok(()));
    late.join().unwrap();
    let theirs = Arc::clone(&bench);
    let close = thread::spawn_named("test-close", move || theirs.flushes.close()).unwrap();
    while !close.is_finished() {
        if bench.flying() > 0 {
            bench.end(Ok(()));
        }
    }
    let ends = bench.ends();
    assert_eq!(ends.len(), MAX_WAITING + 2);
    assert!(ends.iter().all(|end| end.1.is_ok()));
}
