//! Writes and flushes that fail: other places, suspensions, and how they end.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use forebay_base::rng::SmallRng;
use forebay_base::testing::{full, seed};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, Error, MemoryDevice, MemoryOptions, Op, Priority, Request};
use forebay_pool::format::label::LABEL_BYTES;
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Pool};

use crate::common::{MIB, cache, check, create, create_options, dataset, import, memory};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const RECORD: usize = 8192;

fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = pool.stats().counters;
    counters.iter().filter(|(found, _, _)| *found == name).map(|(_, _, value)| value).sum()
}

fn faulty(device: &Arc<dyn Device>) -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let faulty = Arc::new(FaultDevice::new(Arc::clone(device), 1));
    (Arc::clone(&faulty), faulty)
}

/// Writes an object of some records and returns its number.
fn write(pool: &Pool, data: &Dataset, content: &[u8]) -> u64 {
    let tx = pool.begin().expect("space");
    let number = data.create_object(&tx, b"").expect("an object");
    data.object(number).expect("it").write(&tx, 0, content).expect("space");
    number
}

fn overwrite(pool: &Pool, data: &Dataset, number: u64, content: &[u8]) {
    let tx = pool.begin().expect("space");
    data.object(number).expect("it").write(&tx, 0, content).expect("space");
}

fn content(rng: &mut SmallRng, records: usize) -> Vec<u8> {
    let mut content = vec![0; records * RECORD];
    rng.fill(&mut content);
    content
}

fn assert_holds(data: &Dataset, number: u64, wanted: &[u8]) {
    let mut found = vec![0; wanted.len()];
    data.object(number).expect("it").read(0, &mut found).expect("a read");
    assert!(found == wanted, "object {number} has other content");
}

/// A device with bad places: the next commit writes of its choice, and later all requests there.
struct BadPlaces {
    inner: Arc<dyn Device>,
    state: Mutex<BadState>,
}

#[derive(Default)]
struct BadState {
    /// Writes of a commit that are still good, before a bad one.
    good_before: Option<u64>,
    bad: Vec<Range<u64>>,
    /// Refused writes.
    refused: u64,
}

impl BadPlaces {
    fn new(inner: &Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), state: Mutex::default() })
    }

    /// The place of the `n`-th write of a commit from now on is bad.
    fn fail_nth(&self, n: u64) {
        self.state.lock().unwrap().good_before = Some(n);
    }

    fn bad(&self) -> usize {
        self.state.lock().unwrap().bad.len()
    }

    fn refused(&self) -> u64 {
        self.state.lock().unwrap().refused
    }
}

impl Decorator for BadPlaces {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        let mut state = self.state.lock().unwrap();
        let range = request.offset()..request.end().unwrap_or(u64::MAX);
        let of_commit = request.op() == Op::Write && request.priority() == Priority::AsyncWrite;
        match &mut state.good_before {
            Some(0) if of_commit => {
                state.bad.push(range.clone());
                state.good_before = None;
            }
            Some(left) if of_commit => *left -= 1,
            _ => {}
        }
        let is_bad = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        if request.op() == Op::Flush || !state.bad.iter().any(is_bad) {
            return Some(request);
        }
        state.refused += u64::from(request.op() == Op::Write);
        drop(state);
        let (op, len) = (request.op(), range.end - range.start);
        let error = Error::system(op, &self.inner.info().name, (range.start, len), EIO);
        request.finish(Err(error));
        None
    }
}

/// A device that loses everything that no flush has covered when a flush fails.
struct LossyFlushes {
    inner: Arc<dyn Device>,
    state: Mutex<LossyState>,
}

#[derive(Default)]
struct LossyState {
    fails: u64,
    /// What unflushed writes have overwritten, oldest first.
    before: Vec<(u64, Vec<u8>)>,
}

impl LossyFlushes {
    fn new(inner: &Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), state: Mutex::default() })
    }

    fn fail_flushes(&self, n: u64) {
        self.state.lock().unwrap().fails = n;
    }
}

/// Memory for the device's own requests.
fn buffer(len: usize) -> forebay_base::arena::Buffer {
    use forebay_base::arena::{Arena, ArenaConfig, HugePages};
    use std::sync::OnceLock;
    static ARENA: OnceLock<Arc<Arena>> = OnceLock::new();
    let config = ArenaConfig { limit_bytes: 64 << 20, huge_pages: HugePages::Never };
    let arena = ARENA.get_or_init(|| Arena::new(config).expect("address space"));
    arena.alloc(len).expect("memory")
}

impl Decorator for LossyFlushes {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        let mut state = self.state.lock().unwrap();
        match request.op() {
            Op::Write => {
                let old = Request::read(request.offset(), buffer(request.len() as usize));
                let old = self.inner.run(old).into_buffer().expect("a read of memory");
                state.before.push((request.offset(), old.to_vec()));
                Some(request)
            }
            Op::Flush if state.fails > 0 => {
                state.fails -= 1;
                for (offset, old) in std::mem::take(&mut state.before).into_iter().rev() {
                    let mut bytes = buffer(old.len());
                    bytes.copy_from_slice(&old);
                    self.inner.run(Request::write(offset, bytes)).result.expect("a write");
                }
                let error = Error::system(Op::Flush, &self.inner.info().name, (0, 0), EIO);
                drop(state);
                request.finish(Err(error));
                None
            }
            Op::Flush => {
                state.before.clear();
                Some(request)
            }
            _ => Some(request),
        }
    }
}

/// A device that, as a file, refuses each flush after a failed one until it may try again.
struct StickyFlushes {
    inner: Arc<dyn Device>,
    /// Good flushes before the one that fails.
    good: Mutex<Option<u64>>,
    has_failed: AtomicBool,
}

impl StickyFlushes {
    fn fails(&self, request: &Request) -> bool {
        if request.op() != Op::Flush {
            return false;
        }
        let mut good = self.good.lock().unwrap();
        match &mut *good {
            Some(0) => {
                *good = None;
                self.has_failed.store(true, Ordering::SeqCst);
            }
            Some(more) => *more -= 1,
            None => {}
        }
        self.has_failed.load(Ordering::SeqCst)
    }
}

impl Decorator for StickyFlushes {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if !self.fails(&request) {
            return Some(request);
        }
        let error = Error::system(Op::Flush, &self.inner.info().name, (0, 0), EIO);
        request.finish(Err(error));
        None
    }

    fn own_retry_flushes(&self) {
        self.has_failed.store(false, Ordering::SeqCst);
    }
}

/// Nobody's flush succeeds after a failed one, before what it may have lost is written again.
#[test]
fn a_failed_flush_is_forgotten_only_once_the_pool_is_cleared() {
    // The flush before the uberblocks, and the one after.
    for good in [0, 1] {
        let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
        let sticky = Arc::new(StickyFlushes {
            inner: Arc::clone(&memory),
            good: Mutex::default(),
            has_failed: AtomicBool::new(false),
        });
        let device: Arc<dyn Device> = Arc::clone(&sticky) as Arc<dyn Device>;
        let pool = create(&device, &cache);
        let data = dataset(&pool);
        let number = write(&pool, &data, &[7; RECORD]);
        *sticky.good.lock().unwrap() = Some(good);
        pool.sync().expect_err("a flush fails");
        assert!(sticky.has_failed.load(Ordering::SeqCst), "flush {good}: others may flush");
        data.fsync(number).expect_err("suspended");
        assert!(sticky.has_failed.load(Ordering::SeqCst), "flush {good}: others may flush");
        pool.clear().expect("the device works");
        assert!(!sticky.has_failed.load(Ordering::SeqCst));
        data.fsync(number).expect("durable");
        drop(data);
        pool.abandon();
        let pool = import(&memory, &cache);
        assert_holds(&pool.dataset("data").expect("it"), number, &[7; RECORD]);
        check(&pool);
    }
}

#[test]
fn a_write_that_fails_once_is_repeated() {
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let (faulty, device) = faulty(&memory);
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let wanted = content(&mut SmallRng::from_seed(1), 20);
    faulty.add(Rule::new(Fault::Error(EIO)).on(Op::Write).times(3));
    let number = write(&pool, &data, &wanted);
    pool.sync().expect("the second attempts succeed");
    assert_eq!(counter(&pool, "write_errors"), 3);
    assert_eq!(counter(&pool, "write_retries"), 3);
    assert_eq!(counter(&pool, "suspended"), 0);
    drop(data);
    pool.export().expect("exported");
    let pool = import(&memory, &cache);
    assert_holds(&pool.dataset("data").expect("it"), number, &wanted);
    check(&pool);
}

/// Every block of a commit in turn gets a bad place.
#[test]
fn a_block_with_a_bad_place_is_written_elsewhere() {
    let mut rng = SmallRng::from_seed(seed(3));
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let places = BadPlaces::new(&memory);
    let device: Arc<dyn Device> = Arc::clone(&places) as Arc<dyn Device>;
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let mut objects = Vec::new();
    let mut moved = 0;
    for n in (0..).step_by(if full() { 1 } else { 2 }) {
        places.fail_nth(n);
        let wanted = content(&mut rng, 6);
        objects.push((write(&pool, &data, &wanted), wanted));
        pool.sync().unwrap_or_else(|error| panic!("write {n}: {error:?}"));
        if places.bad() < objects.len() {
            // The commit has fewer writes.
            break;
        }
        moved = counter(&pool, "blocks_moved");
        assert!(n > 4 || moved > 0, "the first writes are of data and of dnodes");
        objects.iter().for_each(|(number, wanted)| assert_holds(&data, *number, wanted));
    }
    assert!(moved > 3 && objects.len() > 5, "{moved} blocks, {} commits", objects.len());
    // Each bad place was tried twice. Some copies of space maps and of the root stay missing.
    assert_eq!(places.refused(), 2 * places.bad() as u64);
    assert!(counter(&pool, "copies_missing") > 0);
    drop(data);
    pool.export().expect("exported");
    let pool = import(&device, &cache);
    let data = pool.dataset("data").expect("it");
    objects.iter().for_each(|(number, wanted)| assert_holds(&data, *number, wanted));
    drop(data);
    pool.export().expect("exported");
    // Once its places are good again, a scrub writes the missing copies.
    let pool = import(&memory, &cache);
    let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("a scrub");
    assert_eq!(report.lost_count, 0, "{report:?}");
    check(&pool);
}

#[test]
fn a_bad_place_is_not_allocated_again() {
    let mut rng = SmallRng::from_seed(seed(4));
    let (memory, cache) = (memory(16 * MIB), cache(32 * MIB));
    let places = BadPlaces::new(&memory);
    let device: Arc<dyn Device> = Arc::clone(&places) as Arc<dyn Device>;
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let number = write(&pool, &data, &content(&mut rng, 100));
    places.fail_nth(7);
    pool.sync().expect("it is written elsewhere");
    assert_eq!((places.bad(), places.refused()), (1, 2));
    // More than the device has, many times over.
    for _ in 0..60 {
        let wanted = content(&mut rng, 100);
        overwrite(&pool, &data, number, &wanted);
        pool.sync().expect("a txg");
        assert_holds(&data, number, &wanted);
    }
    assert_eq!(places.refused(), 2, "it was allocated again");
    // It is free, but not for use: it does not count as free.
    let (stats, bad) = (pool.stats(), places.state.lock().unwrap().bad[0].clone());
    let counted = stats.allocated_bytes + stats.deferred_bytes + stats.free_bytes;
    assert_eq!(stats.total_bytes - counted, bad.end - bad.start);
    check(&pool);
    drop(data);
    pool.export().expect("exported");
    // On the devices it is free space like any other.
    check(&import(&memory, &cache));
}

#[test]
fn a_device_that_takes_no_blocks_is_avoided() {
    let cache = cache(32 * MIB);
    let memories = [memory(64 * MIB), memory(64 * MIB)];
    let (broken, second) = faulty(&memories[1]);
    let devices = vec![Arc::clone(&memories[0]).into(), second.into()];
    let pool = Pool::create(devices, &create_options(&cache)).expect("a pool");
    let settings = DatasetSettings { data_copies: 2, record_bytes: 8192, ..Default::default() };
    let data = pool.create_dataset("data", &settings).expect("a dataset");
    let blocks = LABEL_BYTES..64 * MIB - LABEL_BYTES;
    broken.add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(blocks));
    let mut rng = SmallRng::from_seed(5);
    let wanted = content(&mut rng, 40);
    let number = write(&pool, &data, &wanted);
    pool.sync().expect("the other device takes all");
    assert!(counter(&pool, "blocks_moved") > 40, "those of data, and of metadata");
    assert_holds(&data, number, &wanted);
    broken.clear();
    check(&pool);
    // Both copies of each record are there.
    let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("a scrub");
    assert_eq!(report.lost_count, 0, "{report:?}");
}

#[test]
fn a_failed_flush_is_not_trusted_and_everything_is_written_again() {
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let lossy = LossyFlushes::new(&memory);
    let device: Arc<dyn Device> = Arc::clone(&lossy) as Arc<dyn Device>;
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let mut rng = SmallRng::from_seed(6);
    // Of the barrier before the uberblocks, and of the one after.
    for good in [0, 1] {
        let wanted = content(&mut rng, 200);
        let number = write(&pool, &data, &wanted);
        if good == 0 {
            lossy.fail_flushes(1);
        }
        let before = counter(&pool, "writes");
        let error = pool.sync();
        let written = counter(&pool, "writes") - before;
        if good == 0 {
            assert_eq!(error.expect_err("the flush failed").kind(), ErrorKind::Suspended);
            let suspension = pool.suspension().expect("it is suspended");
            assert_eq!(suspension.operation.as_deref(), Some("flush"));
            pool.clear().expect("the device works");
            assert!(written > 200);
            assert_eq!(counter(&pool, "writes_repeated"), written, "each is repeated once");
        }
        assert!(pool.suspension().is_none());
        assert_holds(&data, number, &wanted);
        drop(pool.begin().expect("changes go on"));
    }
    let before = pool.stats().synced_txg;
    drop(data);
    // As a crash: only what was written again is there.
    pool.abandon();
    let pool = import(&memory, &cache);
    assert!(pool.stats().synced_txg >= before);
    check(&pool);
}

#[test]
fn a_cleared_pool_goes_on_where_it_was_and_says_so() {
    for op in [Op::Write, Op::Flush] {
        let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
        let (faulty, device) = faulty(&memory);
        let pool = create(&device, &cache);
        let data = dataset(&pool);
        let mut rng = SmallRng::from_seed(7);
        let old = content(&mut rng, 10);
        let first = write(&pool, &data, &old);
        pool.sync().expect("a txg");
        faulty.add(Rule::new(Fault::Error(EIO)).on(op));
        let new = content(&mut rng, 10);
        let second = write(&pool, &data, &new);
        assert_eq!(data.fsync(second).expect_err("no device").kind(), ErrorKind::Suspended);
        let suspension = pool.suspension().expect("it is suspended");
        assert_eq!(suspension.txg, pool.stats().synced_txg + 1);
        assert_eq!(suspension.operation, Some(op.to_string()));
        assert_eq!(suspension.device.as_deref(), Some(&*memory.info().name));
        assert!(suspension.error.contains("Input/output error"), "{suspension}");
        assert!(suspension.time_ns > 0 && suspension.resumable);
        assert_eq!(pool.begin().expect_err("suspended").kind(), ErrorKind::Suspended);
        assert_holds(&data, first, &old);
        assert_holds(&data, second, &new);
        // Not yet.
        let error = pool.clear().expect_err("the device fails still");
        assert_eq!(error.kind(), ErrorKind::Suspended);
        assert!(format!("{error:?}").contains("Input/output error"), "{error:?}");
        assert_eq!(data.fsync(second).expect_err("as before").kind(), ErrorKind::Suspended);
        faulty.clear();
        assert_eq!(data.fsync(second).expect_err("as before").kind(), ErrorKind::Suspended);
        pool.clear().expect("the device works");
        pool.clear().expect("there is nothing to do");
        assert!(pool.suspension().is_none() && pool.stats().suspended.is_none());
        assert_eq!((counter(&pool, "suspended"), counter(&pool, "resumed")), (2, 1));
        data.fsync(second).expect("it is durable");
        drop(data);
        pool.abandon();
        let pool = import(&memory, &cache);
        let data = pool.dataset("data").expect("it");
        assert_holds(&data, first, &old);
        assert_holds(&data, second, &new);
        check(&pool);
    }
}

#[test]
fn whichever_request_of_a_commit_fails_for_a_while_it_is_not_lost() {
    let mut rng = SmallRng::from_seed(seed(8));
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let (faulty, device) = faulty(&memory);
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let mut objects = Vec::new();
    for op in [Op::Write, Op::Flush, Op::Read] {
        let all = if op == Op::Write { 40 } else { 3 };
        for n in (0..all).step_by(if full() || all < 10 { 1 } else { 3 }) {
            let wanted = content(&mut rng, 5);
            objects.push((write(&pool, &data, &wanted), wanted));
            cache.cache().clear();
            faulty.add(Rule::new(Fault::Error(EIO)).on(op).after(n));
            let synced = pool.sync();
            faulty.clear();
            match synced {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Suspended, "{op} {n}: {error:?}");
                    pool.clear().unwrap_or_else(|error| panic!("{op} {n}: {error:?}"));
                }
            }
            assert!(pool.suspension().is_none());
        }
    }
    assert!(counter(&pool, "resumed") > 5);
    assert_eq!(counter(&pool, "suspended"), counter(&pool, "resumed"));
    objects.iter().for_each(|(number, wanted)| assert_holds(&data, *number, wanted));
    check(&pool);
    drop(data);
    pool.abandon();
    let pool = import(&memory, &cache);
    let data = pool.dataset("data").expect("it");
    objects.iter().for_each(|(number, wanted)| assert_holds(&data, *number, wanted));
    check(&pool);
}

#[test]
fn a_full_file_system_below_is_named() {
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let (faulty, device) = faulty(&memory);
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    faulty.add(Rule::new(Fault::Error(ENOSPC)).on(Op::Write));
    write(&pool, &data, &[7; RECORD]);
    pool.sync().expect_err("no space below");
    let suspension = pool.suspension().expect("it is suspended");
    let name = &memory.info().name;
    let wanted = format!("the file system that holds {name} is full; free space on it");
    assert!(suspension.error.contains(&wanted), "{suspension}");
    assert_eq!(counter(&pool, "blocks_moved"), 0, "another place needs space as well");
    faulty.clear();
    pool.clear().expect("there is space");
    drop(data);
    pool.export().expect("exported");
}

#[test]
fn one_good_copy_of_the_uberblock_suffices() {
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let (faulty, device) = faulty(&memory);
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    faulty.add(Rule::new(Fault::Error(EIO)).on(Op::Write).within(0..LABEL_BYTES));
    let number = write(&pool, &data, &[9; RECORD]);
    pool.sync().expect("the back label takes it");
    assert!(counter(&pool, "uberblocks_missing") > 0);
    drop(data);
    pool.abandon();
    let pool = import(&memory, &cache);
    assert_holds(&pool.dataset("data").expect("it"), number, &[9; RECORD]);
}

#[test]
fn an_export_gives_up_a_suspended_group() {
    let (memory, cache) = (memory(64 * MIB), cache(32 * MIB));
    let (faulty, device) = faulty(&memory);
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let number = write(&pool, &data, &[1; RECORD]);
    pool.sync().expect("a txg");
    faulty.add(Rule::new(Fault::Error(EIO)).on(Op::Write));
    overwrite(&pool, &data, number, &[2; RECORD]);
    pool.sync().expect_err("no device");
    // Someone waits meanwhile.
    let pool = Arc::new(pool);
    let waiter = std::thread::spawn({
        let pool = Arc::clone(&pool);
        move || pool.wait_resumed(&|| false)
    });
    drop(data);
    assert_eq!(pool.close().expect_err("a group is lost").kind(), ErrorKind::Suspended);
    assert!(waiter.join().expect("no panic").is_err());
    drop(pool);
    assert_eq!(cache.dirty_bytes(), 0);
    let pool = import(&memory, &cache);
    assert_holds(&pool.dataset("data").expect("it"), number, &[1; RECORD]);
    check(&pool);
}

/// The sync thread waits until others release memory.
#[test]
fn want_of_memory_suspends_nothing() {
    let (cache, options) = (cache(32 * MIB), MemoryOptions::default());
    let memory: Arc<dyn Device> =
        Arc::new(MemoryDevice::new("memory", 64 * MIB, &options).expect("a device"));
    let pool = create(&memory, &cache);
    let data = dataset(&pool);
    let wanted = content(&mut SmallRng::from_seed(9), 300);
    let number = write(&pool, &data, &wanted);
    let arena = Arc::clone(cache.arena());
    let mut hoard = Vec::new();
    for bytes in [1 << 20, 64 << 10, 4096, 512] {
        while let Ok(buffer) = arena.alloc(bytes) {
            hoard.push(buffer);
        }
    }
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| pool.sync());
        while counter(&pool, "memory_waits") < 2 {
            // The cache may have evicted blocks meanwhile.
            while let Ok(buffer) = arena.alloc(512) {
                hoard.push(buffer);
            }
            std::thread::yield_now();
        }
        assert!(pool.suspension().is_none());
        hoard.clear();
        syncing.join().expect("no panic").expect("it was only waiting");
    });
    assert_holds(&data, number, &wanted);
    check(&pool);
}
