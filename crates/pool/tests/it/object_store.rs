//! Pools on a device that takes each address once, as an object store does.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::append_only::{AppendOnlyDevice, AppendedSector, AppendedSectors, hash_of};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{
    Away, Device, DeviceInfo, DeviceStats, Engine, Health, MemoryDevice, MemoryOptions, Op,
    Priority, Request, Waiter,
};
use forebay_pool::{
    AttachOptions, Dataset, ErrorKind, HealthState, HostId, ImportOptions, NewVdev, Object, Opened,
    Pool,
};

use crate::common::{
    MIB, arena, cache, check, create_options, dataset, host, import_options, memory,
};

const MUTABLE: u64 = 4 * MIB;
const SIZE: u64 = 1 << 30;

/// A pool on a device that fails whatever breaks its rules.
pub(crate) struct Store {
    device: Arc<AppendOnlyDevice>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::over(disk())
    }

    pub(crate) fn over(below: Arc<dyn Device>) -> Self {
        let device = AppendOnlyDevice::new(below, MUTABLE, AppendedSectors::new());
        Self { device: Arc::new(device) }
    }

    pub(crate) fn opened(&self) -> Opened {
        Opened::from(Arc::clone(&self.device) as Arc<dyn Device>)
    }

    pub(crate) fn create(&self) -> Pool {
        let vdevs = vec![NewVdev::ObjectStore(self.opened())];
        Pool::create_tree(vdevs, &create_options(&cache(16 * MIB))).expect("a pool")
    }

    /// The device, opened again.
    fn reopen(&self) -> Self {
        self.assert_sound();
        Self { device: Arc::new(self.device.reopen()) }
    }

    /// The device, opened again after a crash now, in which all writes survive.
    pub(crate) fn crash(&self) -> Self {
        self.assert_sound();
        let below = disk();
        let mut offsets: Vec<u64> = self.device.sectors().into_keys().collect();
        offsets.extend((0..MUTABLE).step_by(4096));
        offsets.extend((SIZE - (256 << 10)..SIZE).step_by(4096));
        let arena = arena();
        for offset in offsets {
            let buffer = arena.alloc(4096).expect("memory");
            // Past the checks: a crash reads nothing.
            let read = self.below().run(Request::read(offset, buffer)).into_buffer();
            below.run(Request::write(offset, read.expect("it reads"))).result.expect("a write");
        }
        let device = AppendOnlyDevice::new(below, MUTABLE, self.device.sectors());
        Self { device: Arc::new(device) }
    }

    fn below(&self) -> &dyn Device {
        &**self.device.below()
    }

    fn import(&self) -> Pool {
        self.import_with(&import_options(&cache(16 * MIB))).expect("the pool")
    }

    fn import_with(&self, options: &ImportOptions) -> Result<Pool, forebay_pool::Error> {
        Pool::import(vec![self.opened()], options)
    }

    fn next_unused(&self) -> u64 {
        self.device.info().append_only.expect("it appends").next_unused
    }

    fn assert_sound(&self) {
        let violations = self.device.violations();
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_sound();
        }
    }
}

pub(crate) fn disk() -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: 4096, ..MemoryOptions::default() };
    Arc::new(MemoryDevice::new("store", SIZE, &options).expect("a device"))
}

/// Content that no compression makes smaller.
fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    SmallRng::from_seed(seed).fill(&mut content);
    content
}

fn write(pool: &Pool, object: &Object, seed: u64, bytes: u64) {
    for (at, piece) in noise(seed, bytes).chunks(MIB as usize).enumerate() {
        let tx = pool.begin().unwrap();
        object.write(&tx, at as u64 * MIB, piece).unwrap();
    }
}

fn new_object(pool: &Pool, data: &Dataset) -> Object {
    let tx = pool.begin().unwrap();
    data.object(data.create_object(&tx, &[]).unwrap()).unwrap()
}

fn assert_content(object: &Object, seed: u64, bytes: u64) {
    let mut found = vec![0; bytes as usize];
    assert_eq!(object.read(0, &mut found).unwrap(), found.len());
    assert!(found == noise(seed, bytes), "other bytes");
}

fn trim(pool: &Pool) -> u64 {
    let report = pool.trim(&mut |_| ControlFlow::Continue(())).expect("the trim runs");
    assert!(report.complete && report.errors == 0, "{report:?}");
    report.bytes
}

#[test]
fn a_pool_writes_each_address_once() {
    let store = Store::new();
    let pool = store.create();
    let data = dataset(&pool);
    let kept = new_object(&pool, &data);
    write(&pool, &kept, 1, 3 * MIB);
    // Overwrites, many times.
    for round in 0..12 {
        let object = new_object(&pool, &data);
        write(&pool, &object, 100 + round, 2 * MIB);
        pool.sync().unwrap();
        write(&pool, &object, 200 + round, 2 * MIB);
        data.fsync(object.number()).unwrap();
        assert_content(&object, 200 + round, 2 * MIB);
        let number = object.number();
        drop(object);
        let tx = pool.begin_freeing().unwrap();
        data.destroy(&tx, number).unwrap();
        drop(tx);
        pool.sync().unwrap();
    }
    check(&pool);
    assert!(trim(&pool) > 20 * MIB);
    check(&pool);
    assert_content(&kept, 1, 3 * MIB);
    let number = kept.number();
    drop((kept, data));
    pool.export().unwrap();
    let again = store.reopen();
    assert!(again.next_unused() > 50 * MIB, "{}", again.next_unused());
    let pool = again.import();
    check(&pool);
    let kept = pool.dataset("data").unwrap().object(number).unwrap();
    assert_content(&kept, 1, 3 * MIB);
    // Goes on behind all that was ever written.
    write(&pool, &kept, 2, 3 * MIB);
    pool.sync().unwrap();
    assert!(again.reopen().next_unused() >= again.next_unused() + 3 * MIB);
    check(&pool);
    drop(kept);
    pool.export().unwrap();
}

#[test]
fn free_space_is_what_was_never_written() {
    let store = Store::new();
    let pool = store.create();
    let data = dataset(&pool);
    let before = pool.stats();
    assert!(before.free_bytes > SIZE / 16 * 15, "{before:?}");
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, 8 * MIB);
    pool.sync().unwrap();
    let full = pool.stats();
    assert!(full.free_bytes < before.free_bytes - 8 * MIB);
    let number = object.number();
    drop(object);
    let tx = pool.begin_freeing().unwrap();
    data.destroy(&tx, number).unwrap();
    drop(tx);
    (0..5).for_each(|_| pool.sync().unwrap());
    let freed = pool.stats();
    assert!(freed.allocated_bytes < full.allocated_bytes - 7 * MIB, "{freed:?}");
    assert!(freed.free_bytes <= full.free_bytes, "{freed:?}");
    // The sums are the same when they are read back.
    drop(data);
    pool.export().unwrap();
    let last = store.reopen();
    let pool = last.import();
    let found = pool.stats();
    assert_eq!(found.total_bytes, freed.total_bytes);
    assert!(found.allocated_bytes.abs_diff(freed.allocated_bytes) < MIB, "{found:?}, {freed:?}");
    assert!(found.free_bytes <= freed.free_bytes && found.free_bytes > SIZE / 8 * 7);
    pool.export().unwrap();
}

#[test]
fn what_was_freed_is_discarded_even_after_a_crash() {
    let store = Store::new();
    let pool = store.create();
    pool.set_tunable("trim_delay_ms", "86400000").unwrap();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, 8 * MIB);
    pool.sync().unwrap();
    let number = object.number();
    drop(object);
    let tx = pool.begin_freeing().unwrap();
    data.destroy(&tx, number).unwrap();
    drop(tx);
    (0..5).for_each(|_| pool.sync().unwrap());
    let discarded = |pool: &Pool| {
        let counters = pool.stats().counters;
        counters.iter().find(|(name, ..)| *name == "discarded_bytes").expect("a counter").2
    };
    assert_eq!(discarded(&pool), 0);
    let crashed = store.crash();
    let pool_after = crashed.import();
    pool_after.set_tunable("trim_delay_ms", "0").unwrap();
    pool_after.sync().unwrap();
    while discarded(&pool_after) < 8 * MIB {
        std::thread::yield_now();
    }
    check(&pool_after);
    pool_after.export().unwrap();
    drop(data);
    pool.export().unwrap();
}

#[test]
fn live_ranges_are_what_the_newest_roots_reach() {
    let store = Store::new();
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, 4 * MIB);
    pool.sync().unwrap();
    let live = |pool: &Pool| -> u64 {
        let ranges = pool.live_ranges().within(MUTABLE, SIZE - (256 << 10)).unwrap();
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
        ranges.iter().map(|(start, end)| end - start).sum()
    };
    // What is beyond the last metaslab counts as live.
    let beyond = |pool: &Pool| pool.live_ranges().within(SIZE / 2, SIZE - (256 << 10)).unwrap();
    assert_eq!(beyond(&pool), [(SIZE / 2, SIZE - (256 << 10))]);
    let full = live(&pool);
    let number = object.number();
    drop(object);
    let tx = pool.begin_freeing().unwrap();
    data.destroy(&tx, number).unwrap();
    drop(tx);
    pool.sync().unwrap();
    assert!(live(&pool) + MIB > full, "two older roots still have it");
    (0..4).for_each(|_| pool.sync().unwrap());
    assert!(live(&pool) < full - 3 * MIB);
    drop(data);
    pool.export().unwrap();
}

#[test]
fn an_older_group_is_imported_behind_what_newer_ones_wrote() {
    let store = Store::new();
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    let txg = pool.stats().synced_txg;
    write(&pool, &object, 2, 8 * MIB);
    pool.sync().unwrap();
    let number = object.number();
    drop((object, data));
    let crashed = store.crash();
    let options = ImportOptions { txg: Some(txg), ..import_options(&cache(16 * MIB)) };
    let older = crashed.import_with(&options).expect("the older group");
    let object = older.dataset("data").unwrap().object(number).unwrap();
    assert_content(&object, 1, MIB);
    write(&older, &object, 3, 2 * MIB);
    older.sync().unwrap();
    check(&older);
    drop(object);
    older.export().unwrap();
    pool.export().unwrap();
}

#[test]
fn failed_writes_go_elsewhere_or_are_repeated() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let store = Store::over(Arc::clone(&faults) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    for round in 0..8 {
        let fault = |op| Rule::new(Fault::Error(5)).on(op);
        let rule = match round % 4 {
            // Blocks of objects, and any blocks.
            0 => fault(Op::Write).within(MUTABLE..SIZE / 2).times(5),
            1 => fault(Op::Write).within(MUTABLE..SIZE / 2).after(2),
            2 => fault(Op::Flush),
            _ => fault(Op::Write),
        };
        let rule = faults.add(rule);
        write(&pool, &object, round, 2 * MIB);
        match pool.sync() {
            Ok(()) => assert_eq!(round % 4, 0, "nothing failed"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
                assert!(faults.remove(rule).is_some_and(|times| times > 0));
                pool.clear().unwrap();
                pool.sync().unwrap();
            }
        }
        assert_content(&object, round, 2 * MIB);
        store.assert_sound();
    }
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn a_pool_whose_store_was_taken_over_cannot_be_cleared() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let store = Store::over(Arc::clone(&faults) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    pool.sync().unwrap();
    // ESTALE: the device is gone, as after a takeover.
    let gone = Rule::new(Fault::Error(116)).on(Op::Flush);
    let rule = faults.add(gone);
    write(&pool, &object, 1, MIB);
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    let suspension = pool.suspension().expect("it is suspended");
    assert!(!suspension.resumable, "{suspension}");
    assert!(faults.remove(rule).is_some_and(|times| times > 0));
    pool.clear().unwrap_err();
}

#[test]
fn a_scrub_finds_damage_and_heals_nothing() {
    let store = Store::new();
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, 2 * MIB);
    pool.sync().unwrap();
    // The object store has lost some bytes.
    let damaged = store.device.sectors().into_keys().nth(20).expect("a sector");
    let buffer = arena().alloc_zeroed(4096).expect("memory");
    store.below().run(Request::write(damaged, buffer)).result.unwrap();
    let report = pool.scrub(&mut |_| ControlFlow::Continue(())).expect("the scrub runs");
    assert!(report.complete && report.lost_count > 0 && report.healed == 0, "{report:?}");
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn an_object_store_is_alone_and_given_as_such() {
    let options = create_options(&cache(16 * MIB));
    let store = Store::new();
    let refusals = [
        vec![NewVdev::Device(store.opened())],
        vec![NewVdev::ObjectStore(memory(64 * MIB).into())],
        vec![NewVdev::ObjectStore(store.opened()), NewVdev::Device(memory(64 * MIB).into())],
        vec![NewVdev::Mirror(vec![store.opened(), memory(64 * MIB).into()])],
    ];
    for vdevs in refusals {
        let error = Pool::create_tree(vdevs, &options).expect_err("it does not fit");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("object store"), "{error}");
    }
    let pool = store.create();
    let refused = pool.add_device(memory(64 * MIB).into(), false, None).unwrap_err();
    assert!(refused.to_string().contains("grows by itself"), "{refused}");
    let refused = pool.expand(0).unwrap_err();
    assert!(refused.to_string().contains("grows by itself"), "{refused}");
    let refused = pool.offline_device("store").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let refused = pool.attach_device("store", memory(64 * MIB).into(), AttachOptions::default());
    assert!(refused.unwrap_err().to_string().contains("no side of a mirror"));
    // Another host has it.
    let crashed = store.crash();
    let other = HostId { id: 2, name: "other".to_owned() };
    let foreign = ImportOptions { host: other, ..import_options(&cache(16 * MIB)) };
    assert_eq!(crashed.import_with(&foreign).unwrap_err().kind(), ErrorKind::InUse);
    let forced = ImportOptions { force: true, ..foreign };
    crashed.import_with(&forced).expect("a takeover").export().unwrap();
    pool.export().unwrap();
    assert_eq!(host().id, 1);
}

/// A device whose writes and flushes wait while it is away.
pub(crate) struct Absent {
    inner: Arc<dyn Device>,
    held: Mutex<Option<Vec<Request>>>,
    /// For how long it says that it is away.
    since_ms: AtomicU64,
    /// Whether it says that it is away, and yet takes writes.
    says_away: AtomicBool,
    /// How often it was asked whether it is away.
    looks: AtomicU64,
    closed: AtomicBool,
}

impl Absent {
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            held: Mutex::new(None),
            since_ms: AtomicU64::new(60_000),
            says_away: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn leave(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    pub(crate) fn come_back(&self) {
        let held = self.held.lock().unwrap().take();
        held.into_iter().flatten().for_each(|request| self.inner.submit(request));
    }

    /// Whether a request waits.
    fn holds(&self, op: Op) -> bool {
        let held = self.held.lock().unwrap();
        held.iter().flatten().any(|request| request.op() == op)
    }

    fn fail(request: Request) {
        let range = (request.offset(), request.len());
        let kind = forebay_io::ErrorKind::Closed;
        let error = forebay_io::Error::new(kind, request.op(), &"store".into(), range, "closed");
        request.finish(Err(error));
    }
}

impl Device for Absent {
    fn submit(&self, request: Request) {
        if request.op() == Op::Read {
            return self.inner.submit(request);
        }
        let mut held = self.held.lock().unwrap();
        if self.closed.load(Ordering::SeqCst) {
            drop(held);
            return Self::fail(request);
        }
        match &mut *held {
            Some(held) => held.push(request),
            None => {
                drop(held);
                self.inner.submit(request);
            }
        }
    }

    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn stats(&self) -> DeviceStats {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let held = self.held.lock().unwrap().is_some();
        let is_away = held || self.says_away.load(Ordering::SeqCst);
        let since_ms = self.since_ms.load(Ordering::SeqCst);
        let away = Away { since_ms, error: "connection refused".to_owned() };
        self.inner.stats().with_away(is_away.then_some(away))
    }

    fn help(&self, waiter: &Waiter) {
        self.inner.help(waiter);
    }

    /// What waits fails. The content can still be read, as after a crash.
    fn close(&self) {
        let held = {
            let mut held = self.held.lock().unwrap();
            self.closed.store(true, Ordering::SeqCst);
            held.as_mut().map(std::mem::take)
        };
        held.into_iter().flatten().for_each(Self::fail);
    }
}

#[test]
fn a_pool_whose_store_is_away_goes_on_by_itself() {
    let absent = Absent::new(disk());
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let pool = store.create();
    pool.set_tunable("dirty_max_bytes", "4M").unwrap();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    assert!(pool.health().reasons.is_empty());
    absent.leave();
    // Within the bound.
    write(&pool, &object, 2, MIB);
    assert_content(&object, 2, MIB);
    let health = pool.health();
    assert!(health.reasons[0].contains("connection refused"), "{health:?}");
    assert_eq!(health.state, HealthState::Degraded);
    // An fsync and a write past the bound are told, so that their callers can wait.
    let refused = data.fsync(object.number()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    let piece = noise(3, MIB);
    let mut offsets = (2..).map(|at| at * MIB);
    let refused = loop {
        match pool.begin() {
            Ok(tx) => object.write(&tx, offsets.next().expect("one more"), &piece).unwrap(),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    assert!(!pool.wait_resumed(&|| true).unwrap(), "it gives up");
    assert!(pool.suspension().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.wait_resumed(&|| false).unwrap());
        absent.come_back();
        assert!(waiter.join().unwrap());
    });
    data.fsync(object.number()).unwrap();
    write(&pool, &object, 4, 2 * MIB);
    pool.sync().unwrap();
    assert_content(&object, 4, 2 * MIB);
    assert!(pool.health().reasons.is_empty());
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
}

/// Writes small objects and frees some of them, so that the space maps are written.
fn write_space_maps(pool: &Pool, data: &Dataset) {
    let mut before = None;
    for seed in 0..40 {
        let object = new_object(pool, data);
        write(pool, &object, seed, 64 << 10);
        pool.sync().unwrap();
        let last = before.replace(object.number()).filter(|_| seed % 2 == 0);
        drop(object);
        if let Some(number) = last {
            let tx = pool.begin_freeing().unwrap();
            data.destroy(&tx, number).unwrap();
        }
    }
}

/// A pool on an object store that was just imported. Its next commits have to read space maps.
fn imported_again(faults: &Arc<FaultDevice>) -> (Store, Arc<Absent>, Pool) {
    let absent = Absent::new(Arc::clone(faults) as Arc<dyn Device>);
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    write_space_maps(&pool, &data);
    drop(data);
    pool.export().unwrap();
    let store = store.reopen();
    let pool = store.import();
    (store, absent, pool)
}

#[test]
fn a_commit_that_reads_a_space_map_in_an_outage_waits_for_the_store() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, absent, pool) = imported_again(&faults);
    let data = pool.dataset("data").unwrap();
    let object = new_object(&pool, &data);
    // Gets fail once the store has been away for their budget.
    absent.says_away.store(true, Ordering::SeqCst);
    let reads = faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let mut seed = 0;
    loop {
        write(&pool, &object, seed, 64 << 10);
        let synced = pool.sync();
        if !faults.injected().is_empty() {
            break;
        }
        synced.unwrap();
        seed += 1;
        assert!(seed < 200, "no commit has read a space map");
    }
    // It is in the middle of a commit that does not end.
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    assert!(pool.suspension().is_none(), "{:?}", pool.suspension());
    assert!(faults.remove(reads).is_some());
    absent.says_away.store(false, Ordering::SeqCst);
    pool.sync().unwrap();
    assert_content(&object, seed, 64 << 10);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
    drop(store);
}

#[test]
fn a_commit_that_cannot_read_a_space_map_goes_on_once_the_pool_is_cleared() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, _, pool) = imported_again(&faults);
    let data = pool.dataset("data").unwrap();
    let object = new_object(&pool, &data);
    let reads = faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    let mut seed = 0;
    loop {
        write(&pool, &object, seed, 64 << 10);
        match pool.sync() {
            Ok(()) => seed += 1,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::Suspended, "{error}"),
        }
        assert!(seed < 200, "no commit has read a space map");
    }
    let suspension = pool.suspension().expect("it is suspended");
    assert!(suspension.resumable, "{suspension}");
    assert!(faults.remove(reads).is_some_and(|times| times > 0));
    pool.clear().unwrap();
    pool.sync().unwrap();
    assert_content(&object, seed, 64 << 10);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
    drop(store);
}

#[test]
fn an_export_while_the_store_is_away_waits_for_it_and_loses_nothing() {
    let absent = Absent::new(disk());
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    let number = object.number();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    absent.leave();
    // One group is being committed, and the next one is dirty.
    write(&pool, &object, 2, MIB);
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    write(&pool, &object, 3, MIB);
    drop((object, data));
    std::thread::scope(|scope| {
        let before = absent.looks.load(Ordering::SeqCst);
        let export = scope.spawn(|| pool.export());
        // The wait for the txg looks once, and ends. The wait for the store looks again and again.
        while absent.looks.load(Ordering::SeqCst) < before + 3 && !export.is_finished() {
            std::thread::yield_now();
        }
        assert!(!export.is_finished(), "it does not wait for the store");
        absent.come_back();
        export.join().unwrap().unwrap();
    });
    let pool = store.import();
    let object = pool.dataset("data").and_then(|data| data.object(number)).unwrap();
    assert_content(&object, 3, MIB);
    drop(object);
    pool.export().unwrap();
}

#[test]
fn streams_are_read_further_ahead_unless_told_otherwise() {
    let value = |pool: &Pool, name: &str| {
        let found = pool.tunables().into_iter().find(|(row, _)| row.name == name);
        found.expect("it exists").1
    };
    let on_disk =
        Pool::create(vec![memory(64 * MIB).into()], &create_options(&cache(16 * MIB))).unwrap();
    let mut store = Store::new();
    let mut on_store = store.create();
    for imported in [false, true] {
        if imported {
            on_store.export().unwrap();
            store = store.reopen();
            on_store = store.import();
        }
        for name in ["prefetch_max_bytes", "prefetch_ramp_bytes"] {
            assert_ne!(value(&on_store, name), value(&on_disk, name), "{name}");
        }
    }
    on_store.export().unwrap();
    store = store.reopen();
    let mut options = import_options(&cache(16 * MIB));
    options.tunables = vec![("prefetch_max_bytes".into(), value(&on_disk, "prefetch_max_bytes"))];
    let told = store.import_with(&options).unwrap();
    assert_eq!(value(&told, "prefetch_max_bytes"), value(&on_disk, "prefetch_max_bytes"));
    told.export().unwrap();
    on_disk.export().unwrap();
}

#[test]
fn an_fsync_that_began_before_the_outage_was_known_stops_to_wait_for_the_log() {
    let absent = Absent::new(disk());
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    absent.since_ms.store(0, Ordering::SeqCst);
    absent.leave();
    write(&pool, &object, 2, 64 << 10);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(|| {
            let (data, object) = (&data, &object);
            tell.send(data.fsync(object.number())).unwrap();
            drop(tell);
        });
        while !absent.holds(Op::Flush) && !absent.holds(Op::Write) {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err(), "it waits for the log");
        absent.since_ms.store(60_000, Ordering::SeqCst);
        let ended = told.recv_timeout(Duration::from_secs(60));
        // Whatever has happened, so that all ends.
        absent.come_back();
        let refused = ended.expect("it waits for the store").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Suspended, "{refused}");
    });
    data.fsync(object.number()).unwrap();
    let number = object.number();
    drop((object, data));
    let crashed = store.crash();
    let again = crashed.import();
    let object = again.dataset("data").unwrap().object(number).unwrap();
    let mut found = vec![0; 64 << 10];
    object.read(0, &mut found).unwrap();
    assert!(found == noise(2, 64 << 10), "the fsync is lost");
    drop(object);
    again.export().unwrap();
    pool.export().unwrap();
}

#[test]
fn an_export_that_gives_up_a_store_loses_only_what_is_not_durable() {
    let absent = Absent::new(disk());
    let store = Store::over(Arc::clone(&absent) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    let number = object.number();
    write(&pool, &object, 1, MIB);
    pool.sync().unwrap();
    absent.leave();
    write(&pool, &object, 2, MIB);
    assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Suspended);
    drop((object, data));
    let lost = pool.close_with_devices(Some(Arc::new(|| true))).unwrap_err();
    let text = lost.to_string();
    assert!(text.contains("has not answered") && text.contains("are lost"), "{text}");
    let crashed = store.crash();
    let again = crashed.import();
    let object = again.dataset("data").and_then(|data| data.object(number)).unwrap();
    assert_content(&object, 1, MIB);
    drop(object);
    again.export().unwrap();
}

#[test]
fn an_outage_is_no_damage() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, absent, pool) = imported_again(&faults);
    absent.says_away.store(true, Ordering::SeqCst);
    let reads = faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    pool.scrub(&mut |_| ControlFlow::Continue(())).unwrap_err();
    pool.check(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(faults.remove(reads).is_some_and(|times| times > 0));
    absent.says_away.store(false, Ordering::SeqCst);
    assert!(pool.damage().damage.is_empty(), "{:?}", pool.damage());
    check(&pool);
    pool.export().unwrap();
    drop(store);
}

/// Reads that fail at the end of an outage, of which nothing is to be seen any more.
#[test]
fn a_walk_counts_no_read_that_failed_in_an_outage_that_has_just_ended() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (store, _absent, pool) = imported_again(&faults);
    let scrub = || pool.scrub(&mut |_| ControlFlow::Continue(())).unwrap();
    let whole = scrub();
    // Of blocks with two copies, both fail: those that lead to datasets.
    for count in [1, 2] {
        for n in 0.. {
            let rule = Rule::new(Fault::Error(5)).on(Op::Read).at(Priority::Scrub);
            let rule = faults.add(rule.after(n).times(count));
            let report = scrub();
            assert!(report.complete && report.blocks * 10 >= whole.blocks * 9, "{n}: {report:?}");
            if count == 1 {
                assert_eq!((report.healed, report.lost_count), (0, 0), "{n}: {report:?}");
            }
            if faults.remove(rule) != Some(count) {
                assert!(n > whole.blocks / 2, "not all reads were tried");
                break;
            }
        }
    }
    drop(store);
    pool.export().unwrap();
}

/// A device whose flush publishes all completed writes at once, and a crash loses all others.
struct Publisher {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    state: Mutex<Published>,
}

#[derive(Default)]
struct Published {
    /// Content of sectors, by offset.
    written: BTreeMap<u64, Vec<u8>>,
    /// What each flush has published.
    images: Vec<BTreeMap<u64, Vec<u8>>>,
}

impl Publisher {
    fn new() -> Arc<Self> {
        let inner = disk();
        let info = DeviceInfo { engine: Engine::ObjectStore, ..inner.info().clone() };
        Arc::new(Self { inner, info, state: Mutex::default() })
    }

    fn flushes(&self) -> usize {
        self.state.lock().unwrap().images.len()
    }
}

impl Device for Publisher {
    fn submit(&self, request: Request) {
        let mut state = self.state.lock().unwrap();
        if let Some(payload) = request.payload() {
            let sectors = (request.offset()..).step_by(4096).zip(payload.bytes().chunks(4096));
            state.written.extend(sectors.map(|(at, bytes)| (at, bytes.to_vec())));
        } else if request.op() == Op::Flush {
            let image = state.written.clone();
            state.images.push(image);
        }
        drop(state);
        self.inner.submit(request);
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn help(&self, waiter: &Waiter) {
        self.inner.help(waiter);
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// A store after a crash that has left `image`. `used` are the sectors that were ever written.
fn store_of(image: &BTreeMap<u64, Vec<u8>>, used: &AppendedSectors) -> Store {
    let below = disk();
    for (offset, content) in image {
        let mut buffer = arena().alloc(4096).expect("memory");
        buffer.copy_from_slice(content);
        below.run(Request::write(*offset, buffer)).result.expect("a write");
    }
    let after = |offset: &u64| match image.get(offset) {
        Some(content) => AppendedSector::Written(hash_of(content)),
        None => AppendedSector::Lost,
    };
    let sectors = used.keys().map(|offset| (*offset, after(offset))).collect();
    Store { device: Arc::new(AppendOnlyDevice::new(below, MUTABLE, sectors)) }
}

#[test]
fn a_group_is_one_flush_of_a_store_that_publishes_at_once() {
    let publisher = Publisher::new();
    let store = Store::over(Arc::clone(&publisher) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    let number = object.number();
    write(&pool, &object, 0, MIB);
    pool.sync().unwrap();
    let mut published = vec![(publisher.flushes(), 0)];
    for seed in 1..6 {
        write(&pool, &object, seed, MIB);
        pool.sync().unwrap();
        let flushes = publisher.flushes();
        assert_eq!(flushes - published.last().expect("one").0, 1, "a group has one flush");
        published.push((flushes, seed));
    }
    let used = store.device.sectors();
    for (flushes, seed) in published {
        let image = publisher.state.lock().unwrap().images[flushes - 1].clone();
        let crashed = store_of(&image, &used);
        let again = crashed.import();
        check(&again);
        let object = again.dataset("data").unwrap().object(number).unwrap();
        assert_content(&object, seed, MIB);
        drop(object);
        again.export().unwrap();
    }
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn what_is_written_is_on_l2_although_memory_has_it() {
    let store = Store::new();
    let pool = store.create();
    pool.add_l2_device(memory(64 * MIB).into(), false).unwrap();
    let data = dataset(&pool);
    let object = new_object(&pool, &data);
    write(&pool, &object, 1, 2 * MIB);
    pool.sync().unwrap();
    let records = || {
        let stats = pool.l2_devices().remove(0).stats;
        stats.map_or(0, |stats| stats.records)
    };
    let until = std::time::Instant::now() + Duration::from_secs(120);
    while records() < 2 * MIB / (128 << 10) {
        assert!(std::time::Instant::now() < until, "{} blocks are on L2", records());
        std::thread::yield_now();
    }
    drop((object, data));
    pool.export().unwrap();
}
