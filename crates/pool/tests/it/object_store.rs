//! Pools on a device that takes each address once, as an object store does.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::append_only::{AppendOnlyDevice, AppendedSector, AppendedSectors, hash_of};
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, DeviceInfo, Engine, MemoryDevice, MemoryOptions, Op, Request};
use forebay_pool::{
    AttachOptions, Dataset, ErrorKind, HostId, ImportOptions, NewVdev, Object, Opened, Pool,
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

    /// A pool with an object.
    pub(crate) fn create_with_object(&self) -> (Pool, Dataset, Object) {
        let pool = self.create();
        let data = dataset(&pool);
        let object = new_object(&pool, &data);
        (pool, data, object)
    }

    /// The device, opened again.
    pub(crate) fn reopen(&self) -> Self {
        self.assert_sound();
        Self { device: Arc::new(self.device.reopen()) }
    }

    /// The device, opened again after a crash now, in which all writes survive.
    pub(crate) fn crash(&self) -> Self {
        self.assert_sound();
        let below = disk();
        let arena = arena();
        let copy = |offset| {
            let buffer = arena.alloc(4096).expect("memory");
            // Past the checks: a crash reads nothing.
            let read = self.below().run(Request::read(offset, buffer)).into_buffer();
            below.run(Request::write(offset, read.expect("it reads"))).result.expect("a write");
        };
        // The labels first: a group that is being written meanwhile is not in them, and what they
        // name is not overwritten.
        (0..MUTABLE).step_by(4096).for_each(copy);
        (SIZE - (256 << 10)..SIZE).step_by(4096).for_each(copy);
        let sectors = self.device.sectors();
        sectors.keys().copied().for_each(copy);
        let device = AppendOnlyDevice::new(below, MUTABLE, sectors);
        Self { device: Arc::new(device) }
    }

    fn below(&self) -> &dyn Device {
        &**self.device.below()
    }

    pub(crate) fn import(&self) -> Pool {
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
pub(crate) fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    SmallRng::from_seed(seed).fill(&mut content);
    content
}

pub(crate) fn write(pool: &Pool, object: &Object, seed: u64, bytes: u64) {
    for (at, piece) in noise(seed, bytes).chunks(MIB as usize).enumerate() {
        let tx = pool.begin().unwrap();
        object.write(&tx, at as u64 * MIB, piece).unwrap();
    }
}

pub(crate) fn new_object(pool: &Pool, data: &Dataset) -> Object {
    let tx = pool.begin().unwrap();
    data.object(data.create_object(&tx, &[]).unwrap()).unwrap()
}

pub(crate) fn assert_content(object: &Object, seed: u64, bytes: u64) {
    let mut found = vec![0; bytes as usize];
    assert_eq!(object.read(0, &mut found).unwrap(), found.len());
    assert!(found == noise(seed, bytes), "other bytes");
}

pub(crate) fn destroy(pool: &Pool, data: &Dataset, object: Object) {
    let number = object.number();
    drop(object);
    let tx = pool.begin_freeing().unwrap();
    data.destroy(&tx, number).unwrap();
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
        destroy(&pool, &data, object);
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
    destroy(&pool, &data, object);
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
    let (pool, data, object) = store.create_with_object();
    pool.set_tunable("trim_delay_ms", "86400000").unwrap();
    write(&pool, &object, 1, 8 * MIB);
    pool.sync().unwrap();
    destroy(&pool, &data, object);
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
    let (pool, data, object) = store.create_with_object();
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
    destroy(&pool, &data, object);
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
    let (pool, data, object) = store.create_with_object();
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
    let (pool, data, object) = store.create_with_object();
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
    let (pool, _data, object) = store.create_with_object();
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
    let (pool, data, object) = store.create_with_object();
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
    /// Times that somebody waited for all writes.
    unplugs: usize,
    /// Writes of data since then: a store lets them wait for more.
    plugged: usize,
    /// Flushes that came while writes may have waited for more.
    waited: usize,
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

impl Decorator for Publisher {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        let mut state = self.state.lock().unwrap();
        if let Some(payload) = request.payload() {
            let sectors = (request.offset()..).step_by(4096).zip(payload.bytes().chunks(4096));
            state.written.extend(sectors.map(|(at, bytes)| (at, bytes.to_vec())));
            let is_data = (MUTABLE..SIZE - (256 << 10)).contains(&request.offset());
            state.plugged += usize::from(is_data && request.op() == Op::Write);
        } else if request.op() == Op::Flush {
            let image = state.written.clone();
            state.images.push(image);
            state.waited += usize::from(state.plugged > 0);
        }
        Some(request)
    }

    fn own_unplug(&self) {
        let mut state = self.state.lock().unwrap();
        state.unplugs += 1;
        state.plugged = 0;
    }

    fn own_info(&self) -> &DeviceInfo {
        &self.info
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
    let (pool, data, object) = store.create_with_object();
    let number = object.number();
    write(&pool, &object, 0, MIB);
    pool.sync().unwrap();
    let mut published = vec![(publisher.flushes(), 0)];
    for seed in 1..6 {
        write(&pool, &object, seed, MIB);
        let unplugs = publisher.state.lock().unwrap().unplugs;
        pool.sync().unwrap();
        let waits = publisher.state.lock().unwrap().unplugs - unplugs;
        assert_eq!(waits, 1, "its last writes are one object");
        let flushes = publisher.flushes();
        assert_eq!(flushes - published.last().expect("one").0, 1, "a group has one flush");
        published.push((flushes, seed));
    }
    assert_eq!(publisher.state.lock().unwrap().waited, 0, "commits wait for writes that wait");
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
