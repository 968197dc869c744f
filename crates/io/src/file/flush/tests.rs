//! Flushes over a test double.

use forebay_base::sync::{Arc, Mutex, thread};

use super::{FlushQueue, MAX_WAITING, WRITES_LOST};
use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::request::{Op, Request};
use crate::waiter::Waiter;

/// Keeps submitted requests. Refuses them once closed.
struct Below {
    info: DeviceInfo,
    in_flight: Mutex<Vec<Request>>,
    closed: Mutex<bool>,
}

impl Device for Below {
    fn submit(&self, request: Request) {
        if *self.closed.lock() {
            let error = error(ErrorKind::Closed);
            return request.finish(Err(error));
        }
        self.in_flight.lock().push(request);
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

/// A flush queue, the device below, and the recorded completions.
struct Fixture {
    below: Arc<Below>,
    flushes: Arc<FlushQueue>,
    ends: Arc<Mutex<Vec<(u32, Result<(), Error>)>>>,
}

impl Fixture {
    fn new() -> Self {
        let info = DeviceInfo {
            name: "below".into(),
            size_bytes: 1 << 20,
            sector_bytes: 512,
            physical_bytes: 512,
            read_only: false,
            direct: false,
            buffered: None,
            block_device: false,
            engine: Engine::Memory,
            append_only: None,
        };
        let in_flight = Mutex::named("test-in-flight", Vec::new());
        let closed = Mutex::named("test-closed", false);
        let below = Arc::new(Below { info, in_flight, closed });
        let weak = Arc::downgrade(&below);
        let flushes = FlushQueue::new(weak, &below.info.name, None);
        Self { below, flushes, ends: Arc::new(Mutex::named("test-ends", Vec::new())) }
    }

    fn request(&self, name: u32) -> Request {
        let ends = Arc::clone(&self.ends);
        Request::flush().on_done(move |completion| ends.lock().push((name, completion.result)))
    }

    fn submit(&self, name: u32) {
        self.flushes.submit(self.request(name));
    }

    /// Returns the number of flushes in flight below.
    fn in_flight(&self) -> usize {
        self.below.in_flight.lock().len()
    }

    /// Completes the flush in flight.
    fn end(&self, result: Result<(), Error>) {
        let request = self.below.in_flight.lock().remove(0);
        request.finish(result);
    }

    fn ends(&self) -> Vec<(u32, Result<(), ErrorKind>)> {
        let ends = std::mem::take(&mut *self.ends.lock());
        ends.into_iter().map(|(name, end)| (name, end.map_err(|error| error.kind()))).collect()
    }
}

#[test]
fn flushes_submitted_meanwhile_are_issued_as_one() {
    let fixture = Fixture::new();
    (1..=4).for_each(|name| fixture.submit(name));
    assert_eq!(fixture.in_flight(), 1);
    fixture.end(Ok(()));
    assert_eq!(fixture.ends(), [(1, Ok(()))]);
    assert_eq!(fixture.in_flight(), 1);
    // The flush in flight does not cover this one.
    fixture.submit(5);
    fixture.end(Ok(()));
    assert_eq!(fixture.ends(), [(2, Ok(())), (3, Ok(())), (4, Ok(()))]);
    fixture.end(Ok(()));
    assert_eq!(fixture.ends(), [(5, Ok(()))]);
    fixture.submit(6);
    fixture.end(Ok(()));
    assert_eq!(
        (fixture.ends(), fixture.in_flight(), fixture.flushes.refused()),
        (vec![(6, Ok(()))], 0, 0)
    );
}

#[test]
fn after_one_that_failed_all_fail() {
    let fixture = Fixture::new();
    fixture.submit(1);
    fixture.end(Ok(()));
    (2..=4).for_each(|name| fixture.submit(name));
    fixture.end(Err(lost()));
    fixture.submit(5);
    assert_eq!(fixture.in_flight(), 0, "the kernel would say that all is well");
    let ends = std::mem::take(&mut *fixture.ends.lock());
    assert!(ends[0].1.is_ok());
    for (name, end) in &ends[1..] {
        let error = end.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert_eq!(error.errno(), (*name == 2).then_some(5));
        let text = error.to_string();
        assert!(text.starts_with("flush of below: ") && text.contains(WRITES_LOST), "{text}");
        assert!(text.contains("Input/output error"), "{text}");
    }
    assert_eq!((ends.len(), fixture.flushes.refused()), (5, 3));
}

#[test]
fn those_that_share_a_flush_share_its_failure() {
    let fixture = Fixture::new();
    (1..=3).for_each(|name| fixture.submit(name));
    fixture.end(Ok(()));
    fixture.end(Err(lost()));
    let failed = Err(ErrorKind::Device);
    assert_eq!(fixture.ends(), [(1, Ok(())), (2, failed), (3, failed)]);
}

#[test]
fn one_that_was_not_executed_says_nothing_about_others() {
    let fixture = Fixture::new();
    fixture.submit(1);
    let (request, handle) = fixture.request(2).raisable();
    fixture.flushes.submit(request);
    (3..=4).for_each(|name| fixture.submit(name));
    handle.cancel();
    // Cancelled in the queue below.
    fixture.end(Err(error(ErrorKind::Cancelled)));
    let cancelled = Err(ErrorKind::Cancelled);
    assert_eq!(fixture.ends(), [(1, cancelled), (2, cancelled)]);
    fixture.end(Err(error(ErrorKind::Cancelled)));
    assert_eq!(fixture.ends(), [(3, cancelled)]);
    fixture.end(Ok(()));
    assert_eq!(fixture.ends(), [(4, Ok(()))]);
}

#[test]
fn the_most_urgent_goes_for_all() {
    let fixture = Fixture::new();
    fixture.submit(1);
    fixture.flushes.submit(fixture.request(2).with_priority(Priority::Scrub));
    fixture.flushes.submit(fixture.request(3).with_priority(Priority::SyncRead));
    fixture.end(Ok(()));
    assert_eq!(fixture.below.in_flight.lock()[0].priority(), Priority::SyncRead);
    fixture.end(Ok(()));
    assert_eq!(fixture.ends().len(), 3);
}

#[test]
fn a_closed_or_dropped_device_ends_them_all() {
    for dropped in [false, true] {
        let mut fixture = Fixture::new();
        (0..100).for_each(|name| fixture.submit(name));
        let first = fixture.below.in_flight.lock().remove(0);
        match dropped {
            false => fixture.below.close(),
            true => fixture.below = Fixture::new().below,
        }
        first.finish(Ok(()));
        let ends = fixture.ends();
        assert_eq!(ends[0], (0, Ok(())));
        assert!(ends[1..].iter().all(|end| end.1 == Err(ErrorKind::Closed)));
        assert_eq!(ends.len(), 100);
        fixture.flushes.close();
        fixture.submit(100);
        assert_eq!(fixture.ends(), [(100, Err(ErrorKind::Closed))]);
    }
}

#[test]
fn closing_waits_for_waiting_flushes_and_a_full_list_blocks_submitters() {
    let fixture = Arc::new(Fixture::new());
    (0..=MAX_WAITING as u32).for_each(|name| fixture.submit(name));
    let theirs = Arc::clone(&fixture);
    let name = MAX_WAITING as u32 + 1;
    let late = thread::spawn_named("test-late", move || theirs.submit(name)).unwrap();
    fixture.end(Ok(()));
    late.join().unwrap();
    let theirs = Arc::clone(&fixture);
    let close = thread::spawn_named("test-close", move || theirs.flushes.close()).unwrap();
    while !close.is_finished() {
        if fixture.in_flight() > 0 {
            fixture.end(Ok(()));
        }
    }
    let ends = fixture.ends();
    assert_eq!(ends.len(), MAX_WAITING + 2);
    assert!(ends.iter().all(|end| end.1.is_ok()));
}

#[test]
fn flushes_are_issued_again_on_request_after_a_failed_one() {
    let fixture = Fixture::new();
    fixture.submit(1);
    fixture.end(Err(lost()));
    fixture.submit(2);
    assert_eq!(fixture.ends(), [(1, Err(ErrorKind::Device)), (2, Err(ErrorKind::Device))]);
    fixture.flushes.retry();
    fixture.submit(3);
    assert_eq!(fixture.in_flight(), 1, "it reaches the device");
    fixture.end(Ok(()));
    assert_eq!(fixture.ends(), [(3, Ok(()))]);
    // Another failure counts as the first one did.
    fixture.submit(4);
    fixture.end(Err(lost()));
    fixture.submit(5);
    assert_eq!(fixture.in_flight(), 0);
    assert_eq!(fixture.ends(), [(4, Err(ErrorKind::Device)), (5, Err(ErrorKind::Device))]);
}
