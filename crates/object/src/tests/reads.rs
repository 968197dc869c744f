//! Tests of reads: how they share gets, and what they do with bodies that come in pieces.

use std::ops::Range;
use std::time::Duration;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::testing;
use forebay_io::{Pending, Priority, Request};
use futures_util::FutureExt;

use super::{Host, SECTOR, Session, options, pattern, simulate};
use crate::decorator::StoreDecorator;
use crate::format::{MUTABLE_BYTES, WINDOW_BYTES, names};
use crate::memory::MemoryStore;
use crate::simulated::{Network, SimulatedStore};
use crate::store::{ObjectStore, Sink, StoreError, StoreErrorKind, StoreFuture};

impl Session {
    /// Starts a read of a sector.
    fn begin(&self, at: u64, priority: Priority) -> Pending {
        self.begin_block(at, 1, priority)
    }

    /// Starts a read of some sectors.
    fn begin_block(&self, at: u64, sectors: u64, priority: Priority) -> Pending {
        let read = Request::read(MUTABLE_BYTES + at * SECTOR, self.buffer(sectors * SECTOR));
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

/// Sectors of a block that ends at no end of an object.
const BLOCK: u64 = 96;
/// Sectors of three objects, in a whole number of blocks.
const THREE: u64 = 3 * WINDOW_BYTES / SECTOR;

/// A host with three objects without gaps.
async fn with_three_objects() -> Host {
    let host = Host::new(options("one", 1)).await;
    for window in 0..3 {
        let at = MUTABLE_BYTES + window * WINDOW_BYTES;
        host.session.write(at, WINDOW_BYTES / SECTOR, 1).await.unwrap();
    }
    assert_eq!(host.session.engine.lock().map.len(), 3);
    host
}

/// Ends reads of all blocks, one after the other, and compares their bytes.
async fn expect_blocks(reads: Vec<Pending>) {
    for (block, read) in (0..).zip(reads) {
        let bytes = read.await.into_buffer().unwrap();
        let sectors = (MUTABLE_BYTES / SECTOR + block * BLOCK..).zip(bytes.chunks(SECTOR as usize));
        for (sector, chunk) in sectors {
            assert!(chunk == pattern(sector, 1), "sector {sector}");
        }
    }
}

fn begin_blocks(session: &Session, priority: Priority) -> Vec<Pending> {
    let begin = |at: u64| session.begin_block(at * BLOCK, BLOCK, priority);
    (0..THREE / BLOCK).map(begin).collect()
}

#[test]
fn a_block_in_two_objects_shares_the_gets_of_its_neighbours() {
    simulate(async {
        let Host { session, .. } = with_three_objects().await;
        for priority in [Priority::AsyncRead, Priority::SyncRead] {
            let before = session.counter("requests");
            expect_blocks(begin_blocks(&session, priority)).await;
            assert_eq!(session.counter("requests") - before, 3, "one for each object");
        }
        // Alone, both halves are read at the same time.
        let before = session.counter("requests");
        let block = WINDOW_BYTES / SECTOR / BLOCK;
        let read = session.begin_block(block * BLOCK, BLOCK, Priority::SyncRead);
        assert_eq!(read.await.into_buffer().unwrap().len() as u64, BLOCK * SECTOR);
        assert_eq!(session.counter("requests") - before, 2);
        // So are all of them.
        session.expect(MUTABLE_BYTES + 5 * SECTOR, THREE - 9, 1).await;
        assert_eq!(session.counter("requests") - before, 5);
    });
}

#[test]
fn a_block_in_two_objects_is_whole_whatever_happens_to_its_gets() {
    let first = testing::seed(0);
    for seed in (0..30).map(|n| first.wrapping_add(n)) {
        let memory = MemoryStore::new();
        let store = SimulatedStore::new(Arc::clone(&memory), Network::GOOD, seed);
        simulate(async {
            let session = Session::create(&store, options("one", seed)).await;
            session.write(MUTABLE_BYTES, THREE, 1).await.unwrap();
            // An answer says that an object is gone, and bodies are cut.
            store.hide(seed % 4);
            store.set_network(Network { cut: 300, refused: 200, ..Network::GOOD });
            expect_blocks(begin_blocks(&session, Priority::AsyncRead)).await;
        });
    }
}

#[test]
fn a_block_fails_once_if_one_of_its_objects_is_lost() {
    simulate(async {
        let Host { memory, session, .. } = with_three_objects().await;
        let lost = session.engine.lock().map.get((MUTABLE_BYTES + WINDOW_BYTES) / SECTOR).copied();
        let lost = names::data(&lost.unwrap());
        memory.remove(&lost);
        let mut failed = 0;
        for read in begin_blocks(&session, Priority::AsyncRead) {
            if let Err(error) = read.await.result {
                assert!(error.to_string().contains(&lost), "{error}");
                failed += 1;
            }
        }
        // Those that lie in it, at least in part.
        let window = WINDOW_BYTES / SECTOR;
        assert_eq!(failed, (2 * window).div_ceil(BLOCK) - window / BLOCK);
        assert_eq!(session.engine.lock().in_flight, 0);
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
        assert_eq!(*third, pattern(MUTABLE_BYTES / SECTOR + 2, 1));
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
