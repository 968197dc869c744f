//! Tests of reads: how they share gets, and what they do with bodies that come in pieces.

use std::ops::Range;
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::{Pending, Priority, Request};
use futures_util::FutureExt;

use super::{Host, SECTOR, Session, options, simulate};
use crate::decorator::StoreDecorator;
use crate::format::MUTABLE_BYTES;
use crate::memory::MemoryStore;
use crate::simulated::Network;
use crate::store::{ObjectStore, Sink, StoreError, StoreErrorKind, StoreFuture};

impl Session {
    /// Starts a read of a sector.
    fn begin(&self, at: u64, priority: Priority) -> Pending {
        let read = Request::read(MUTABLE_BYTES + at * SECTOR, self.buffer(SECTOR));
        let (request, pending) = read.with_priority(priority).pending();
        self.engine.submit(request);
        pending
    }
}

/// Less than what read-ahead waits for more of it.
const SOON: Duration = Duration::from_micros(400);

#[test]
fn read_ahead_that_comes_one_by_one_shares_a_get() {
    simulate(async {
        let Host { session, .. } = Host::new(options("one", 1)).await;
        session.write(MUTABLE_BYTES, 2048, 1).await.unwrap();
        let before = session.counter("requests");
        let mut reads = Vec::new();
        for at in 0..16 {
            reads.push(session.begin(at, Priority::AsyncRead));
            if at % 4 == 3 {
                tokio::time::sleep(SOON).await;
            }
        }
        for read in reads {
            read.await.result.unwrap();
        }
        assert_eq!(session.counter("requests") - before, 1);
        // It does not wait for ever.
        for at in 100..164 {
            drop(session.begin(at, Priority::AsyncRead));
            tokio::time::sleep(SOON).await;
        }
        assert!(session.counter("requests") - before > 2);
    });
}

#[test]
fn a_read_that_is_needed_now_waits_for_nothing() {
    simulate(async {
        let Host { store, session, .. } = Host::new(options("one", 1)).await;
        session.write(MUTABLE_BYTES, 2048, 1).await.unwrap();
        store.set_network(Network::INSTANT);
        for ahead in [0, 1] {
            let others: Vec<_> =
                (0..ahead).map(|at| session.begin(at, Priority::AsyncRead)).collect();
            // The reader waits for more.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let begun = tokio::time::Instant::now();
            let needed = session.begin(9, Priority::SyncRead);
            needed.await.result.unwrap();
            assert_eq!(begun.elapsed(), Duration::ZERO, "beside {ahead} others");
            for other in others {
                other.await.result.unwrap();
            }
        }
    });
}

/// A store whose bodies stop in the middle of the third sector, until it is told to go on, or for
/// good.
struct Hesitant {
    inner: Arc<MemoryStore>,
    hesitates: AtomicBool,
    cuts: AtomicBool,
    ranges: Mutex<Vec<Range<u64>>>,
}

impl Hesitant {
    fn new() -> Arc<Self> {
        let [hesitates, cuts] = std::array::from_fn(|_| AtomicBool::new(false));
        let ranges = Mutex::named("test-ranges", Vec::new());
        Arc::new(Self { inner: MemoryStore::new(), hesitates, cuts, ranges })
    }
}

/// Bytes until it stops.
const STOP: usize = 2 * SECTOR as usize + 100;

impl StoreDecorator for Hesitant {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn own_read_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        sink: &'a dyn Sink,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.ranges.lock().push(range.clone());
            let body = self.inner.get_range(key, range).await?;
            if self.cuts.swap(false, Ordering::Relaxed) {
                sink.write(&body[..STOP]);
                return Err(StoreError::new(StoreErrorKind::Other, "the connection was reset"));
            }
            for part in body.chunks(STOP) {
                sink.write(part);
                while self.hesitates.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            // Nobody has asked for that.
            sink.write(&[0; 100]);
            Ok(())
        })
    }
}

#[test]
fn a_read_ends_when_its_bytes_are_there_though_more_are_to_come() {
    simulate(async {
        let store = Hesitant::new();
        let session = Session::create(&store, options("one", 1)).await;
        session.write(MUTABLE_BYTES, 2048, 1).await.unwrap();
        store.hesitates.store(true, Ordering::Relaxed);
        let before = session.counter("requests");
        let mut reads: Vec<_> = (0..4).map(|at| session.begin(at, Priority::SyncRead)).collect();
        let last = reads.split_off(2);
        for read in reads {
            read.await.result.unwrap();
        }
        let mut third = last.into_iter().next().unwrap();
        assert!((&mut third).now_or_never().is_none(), "it lacks bytes");
        store.hesitates.store(false, Ordering::Relaxed);
        let third = third.await.into_buffer().unwrap();
        assert_eq!(*third, super::pattern(MUTABLE_BYTES / SECTOR + 2, 1));
        assert_eq!(session.counter("requests") - before, 1);
    });
}

#[test]
fn a_body_that_was_cut_is_read_on_from_there() {
    simulate(async {
        let store = Hesitant::new();
        let session = Session::create(&store, options("one", 1)).await;
        session.write(MUTABLE_BYTES, 2048, 1).await.unwrap();
        store.cuts.store(true, Ordering::Relaxed);
        let before = session.counter_of("request_bytes", "get");
        session.expect(MUTABLE_BYTES + 5 * SECTOR, 64, 1).await;
        let (start, end) = (5 * SECTOR, 69 * SECTOR);
        assert_eq!(*store.ranges.lock(), [start..end, start + STOP as u64..end]);
        assert_eq!(session.counter("retries"), 1);
        assert_eq!(session.counter_of("request_bytes", "get") - before, 64 * SECTOR);
    });
}
