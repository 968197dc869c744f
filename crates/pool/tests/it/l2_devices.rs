//! L2 devices: adding, use, failures and removal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_base::clock::ManualClock;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, FileDevice, Op, OpenOptions, Request};
use forebay_pool::format::CacheMode;
use forebay_pool::{
    BlockCache, CreateOptions, Dataset, DatasetSettings, ErrorKind, HealthState, ImportOptions,
    L2Device, L2DeviceState, L2DeviceStats, Object, Opened, Pool,
};

use crate::common::{
    MIB, cache, check, copy_of, create, create_options, dataset, import_options, memory,
};

const RECORD: u64 = 8192;
/// Records of the object: several times the RAM cache.
const RECORDS: u64 = 3000;

/// Imports a pool with the given L2 devices, without searching for others and without warm-up.
fn import(device: &Arc<dyn Device>, caches: &[&Arc<dyn Device>], cache: &Arc<BlockCache>) -> Pool {
    let options = ImportOptions {
        find_l2_devices: false,
        tunables: vec![("l2_warm_up".to_owned(), "false".to_owned())],
        ..import_options(cache)
    };
    let caches = caches.iter().map(|device| Arc::clone(*device).into()).collect();
    let pool = Pool::import_with(vec![Arc::clone(device).into()], caches, &options).unwrap();
    pool.wait_for_l2_rebuild();
    pool
}

/// Content of a record.
fn content(record: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![(record % 251) as u8; RECORD as usize];
    bytes[..8].copy_from_slice(&record.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn write(pool: &Pool, object: &Object, version: u64) {
    for first in (0..RECORDS).step_by(100) {
        let tx = pool.begin().unwrap();
        for record in first..(first + 100).min(RECORDS) {
            object.write(&tx, record * RECORD, &content(record, version)).unwrap();
        }
    }
    pool.sync().unwrap();
}

#[track_caller]
fn read(object: &Object, version: u64) {
    let mut bytes = vec![0; RECORD as usize];
    // In an order without streams, so that nothing is prefetched.
    for step in 0..RECORDS {
        let record = step * 1009 % RECORDS;
        object.read(record * RECORD, &mut bytes).unwrap();
        assert!(bytes == content(record, version), "record {record} has wrong content");
    }
}

struct Fixture {
    device: Arc<dyn Device>,
    caching: Arc<dyn Device>,
    cache: Arc<BlockCache>,
}

/// A pool with an object, and an L2 device that holds most of the object.
fn fixture() -> (Fixture, Pool, Dataset, Object) {
    let fixture =
        Fixture { device: memory(128 * MIB), caching: memory(64 * MIB), cache: cache(8 * MIB) };
    let pool = create(&fixture.device, &fixture.cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    drop(tx);
    write(&pool, &object, 1);
    let guid = pool.add_l2_device(Arc::clone(&fixture.caching).into(), false).unwrap();
    let listed = only(&pool);
    assert_eq!((listed.guid, listed.size_bytes), (guid, 64 * MIB));
    fill(&pool, &object, 1);
    (fixture, pool, data, object)
}

/// Reads until the L2 device holds half of the records, more than the RAM cache.
fn fill(pool: &Pool, object: &Object, version: u64) {
    until(|| {
        read(object, version);
        stats(pool).records >= RECORDS / 2
    });
}

/// Tries again until it holds. Two minutes only end a test that hangs.
fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(120), "in vain");
    }
}

fn only(pool: &Pool) -> L2Device {
    let mut all = pool.l2_devices();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn stats(pool: &Pool) -> L2DeviceStats {
    let device = only(pool);
    device.stats.unwrap_or_else(|| panic!("{:?}", device.state))
}

fn counter(pool: &Pool, name: &str) -> u64 {
    let counters = stats(pool).counters;
    counters.iter().filter(|(n, ..)| *n == name).map(|(.., value)| value).sum()
}

fn unavailable(pool: &Pool) -> String {
    match only(pool).state {
        L2DeviceState::Unavailable(why) => why,
        state => panic!("{state:?}"),
    }
}

#[test]
fn evicted_blocks_are_found_on_l2_after_an_import() {
    let (fixture, pool, data, object) = fixture();
    let hits = stats(&pool).hits;
    assert!(hits > 0, "{:?}", stats(&pool));
    check(&pool);
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();

    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    assert_eq!(only(&pool).state, L2DeviceState::Active);
    let found = stats(&pool);
    assert!(found.records >= RECORDS / 2 && found.rebuild.done, "{found:?}");
    assert!(found.memory_bytes > 0);
    // The index may change size between the two looks.
    until(|| fixture.cache.l2_memory_bytes() == stats(&pool).memory_bytes);
    let data = pool.dataset("data").unwrap();
    let object = data.object(number).unwrap();
    read(&object, 1);
    let found = stats(&pool);
    assert!(found.hits >= RECORDS / 3, "{found:?}");
    // Overwritten records have new keys.
    write(&pool, &object, 2);
    read(&object, 2);
    check(&pool);
    drop((object, data));
    // Ends the pool as a crash would.
    pool.abandon();
    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    let data = pool.dataset("data").unwrap();
    read(&data.object(number).unwrap(), 2);
    check(&pool);
    drop(data);
    pool.export().unwrap();
}

#[test]
fn a_pool_works_without_its_l2_device() {
    let (fixture, pool, data, object) = fixture();
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();
    let pool = import(&fixture.device, &[], &fixture.cache);
    assert!(unavailable(&pool).contains("does without"), "{}", unavailable(&pool));
    assert_eq!(pool.health().state, HealthState::Online, "it is not wanted");
    let data = pool.dataset("data").unwrap();
    read(&data.object(number).unwrap(), 1);
    let tx = pool.begin().unwrap();
    let other = data.create_object(&tx, b"new").unwrap();
    drop(tx);
    check(&pool);
    drop(data);
    pool.export().unwrap();
    // The device is back, and its content is still valid.
    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    assert!(stats(&pool).records >= RECORDS / 2, "{:?}", stats(&pool));
    assert_eq!(counter(&pool, "rollbacks"), 0);
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object(other).unwrap().size(), 0);
    read(&data.object(number).unwrap(), 1);
    assert!(stats(&pool).hits > 0);
    drop(data);
    pool.export().unwrap();

    // There is no device at its path.
    let devices = vec![Arc::clone(&fixture.device).into()];
    let pool = Pool::import(devices, &import_options(&fixture.cache)).unwrap();
    let why = unavailable(&pool);
    assert!(why.contains("memory"), "{why}");
    pool.export().unwrap();
}

#[test]
fn an_l2_device_does_not_serve_blocks_of_another_history() {
    // With the device present when the pool goes back to an old state, and without.
    for present in [true, false] {
        let (fixture, pool, data, object) = fixture();
        let number = object.number();
        pool.sync().unwrap();
        let old = copy_of(&fixture.device);
        // The other history continues, and the L2 device caches its blocks.
        write(&pool, &object, 2);
        fill(&pool, &object, 2);
        drop((object, data));
        pool.abandon();

        let caches: &[&Arc<dyn Device>] = if present { &[&fixture.caching] } else { &[] };
        let pool = import(&old, caches, &fixture.cache);
        let data = pool.dataset("data").unwrap();
        let object = data.object(number).unwrap();
        read(&object, 1);
        // Reuses the same txgs, and often the same addresses, for other content.
        for version in 3..8 {
            write(&pool, &object, version);
        }
        read(&object, 7);
        drop((object, data));
        pool.export().unwrap();
        let pool = import(&old, &[&fixture.caching], &fixture.cache);
        assert_eq!(only(&pool).state, L2DeviceState::Active);
        assert_eq!(counter(&pool, "rollbacks"), u64::from(!present));
        let data = pool.dataset("data").unwrap();
        let object = data.object(number).unwrap();
        read(&object, 7);
        read(&object, 7);
        check(&pool);
        drop((object, data));
        pool.export().unwrap();
    }
}

#[test]
fn unsuitable_devices_are_refused_with_a_reason() {
    let (fixture, pool, data, object) = fixture();
    drop((object, data));
    let kind = |device: &Arc<dyn Device>, force| {
        let error = pool.add_l2_device(Arc::clone(device).into(), force).unwrap_err();
        (error.kind(), error.to_string())
    };
    for force in [false, true] {
        let (own, text) = kind(&fixture.device, force);
        assert!(own == ErrorKind::Invalid && text.contains("device of this pool"), "{text}");
        let (twice, text) = kind(&fixture.caching, force);
        assert!(twice == ErrorKind::Invalid && text.contains("already"), "{text}");
    }
    let other = memory(64 * MIB);
    let options = CreateOptions { seed: Some(8), ..create_options(&fixture.cache) };
    Pool::create(vec![Arc::clone(&other).into()], &options).unwrap().export().unwrap();
    let (pools, text) = kind(&other, false);
    assert!(pools == ErrorKind::Exists && text.contains("force"), "{text}");
    pool.add_l2_device(Arc::clone(&other).into(), true).unwrap();
    assert_eq!(pool.l2_devices().len(), 2);
    let (small, text) = kind(&memory(MIB), false);
    assert!(small == ErrorKind::Invalid, "{small:?} {text}");
    let name = other.info().name.to_string();
    pool.remove_l2_device(&name).unwrap();
    let gone = pool.remove_l2_device(&name).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    // A removed device is empty and can be added again.
    pool.add_l2_device(Arc::clone(&other).into(), false).unwrap();
    pool.remove_l2_device(&format!("{:016x}", pool.l2_devices()[1].guid)).unwrap();
    pool.export().unwrap();

    // A read-only import does not use L2 devices.
    let options = ImportOptions { read_only: true, ..import_options(&fixture.cache) };
    let devices = vec![Arc::clone(&fixture.device).into()];
    let caches = vec![Arc::clone(&fixture.caching).into()];
    let pool = Pool::import_with(devices, caches, &options).unwrap();
    assert!(unavailable(&pool).contains("reading only"));
    pool.export().unwrap();

    // Overwrite its labels.
    let config = ArenaConfig { limit_bytes: 8 * MIB, huge_pages: HugePages::Never };
    let arena = Arena::new(config).unwrap();
    for offset in [0, 63 * MIB] {
        let mut zeros = arena.alloc(MIB as usize).unwrap();
        zeros.zero();
        fixture.caching.run(Request::write(offset, zeros)).result.unwrap();
    }
    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    assert!(!unavailable(&pool).is_empty());
    // The device is unusable; add a new one in its place.
    pool.remove_l2_device(&format!("{:016x}", only(&pool).guid)).unwrap();
    assert!(pool.l2_devices().is_empty());
    pool.add_l2_device(Arc::clone(&fixture.caching).into(), false).unwrap();
    check(&pool);
    pool.export().unwrap();
}

#[test]
fn a_failing_l2_device_costs_only_its_hits() {
    let fixture =
        Fixture { device: memory(128 * MIB), caching: memory(64 * MIB), cache: cache(8 * MIB) };
    let faults = Arc::new(FaultDevice::new(Arc::clone(&fixture.caching), 3));
    let pool = create(&fixture.device, &fixture.cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    drop(tx);
    write(&pool, &object, 1);
    pool.add_l2_device((Arc::clone(&faults) as Arc<dyn Device>).into(), false).unwrap();
    fill(&pool, &object, 1);
    // Damaged reads, then failing reads, then no working request at all.
    faults.add(Rule::new(Fault::Rot { bits: 3 }).on(Op::Read));
    read(&object, 1);
    assert!(counter(&pool, "load_corrupt") > 0, "{:?}", stats(&pool));
    faults.clear();
    faults.add(Rule::new(Fault::Error(5)).on(Op::Read));
    read(&object, 1);
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write));
    faults.add(Rule::new(Fault::Error(5)).on(Op::Flush));
    for version in 2..5 {
        write(&pool, &object, version);
        read(&object, version);
    }
    let state = only(&pool).state;
    assert!(matches!(state, L2DeviceState::Failed(_)), "{state:?} {:?}", stats(&pool));
    let health = pool.health();
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    assert!(health.reasons[0].contains(": failed: "), "{health:?}");
    check(&pool);
    drop((object, data));
    // The label cannot be voided, but the device is removed from the pool.
    let name = only(&pool).path;
    assert_eq!(pool.remove_l2_device(&name).unwrap_err().kind(), ErrorKind::Device);
    assert!(pool.l2_devices().is_empty());
    pool.export().unwrap();
}

#[test]
fn an_l2_device_is_removed_while_in_use() {
    let (_fixture, pool, data, object) = fixture();
    let name = only(&pool).path;
    std::thread::scope(|scope| {
        let readers = [(); 3].map(|()| scope.spawn(|| (0..3).for_each(|_| read(&object, 1))));
        pool.remove_l2_device(&name).unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(pool.l2_devices().is_empty());
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn dataset_settings_decide_which_blocks_l2_devices_hold() {
    let (_fixture, pool, data, object) = fixture();
    let settings = DatasetSettings { l2: CacheMode::None, ..data.settings().unwrap() };
    data.set_settings(&settings).unwrap();
    assert_eq!(data.settings().unwrap().l2, CacheMode::None);
    let refused = || {
        let counters = stats(&pool).counters;
        let of = |label| counters.iter().find(|c| c.0 == "refused" && c.1 == label).unwrap().2;
        (of("owner_excluded"), of("class_excluded"))
    };
    // Blocks are offered by the thread that evicts, whenever it comes to that.
    let before = refused();
    write(&pool, &object, 2);
    while refused().0 == before.0 {
        read(&object, 2);
    }
    let none = refused();
    data.set_settings(&DatasetSettings { l2: CacheMode::Metadata, ..settings }).unwrap();
    write(&pool, &object, 3);
    while refused().1 == none.1 {
        read(&object, 3);
    }
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn an_export_writes_cached_blocks_to_l2() {
    // Everything fits into RAM, so nothing is evicted.
    let fixture =
        Fixture { device: memory(128 * MIB), caching: memory(64 * MIB), cache: cache(96 * MIB) };
    let pool = create(&fixture.device, &fixture.cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    let object = data.object(number).unwrap();
    write(&pool, &object, 1);
    pool.add_l2_device(Arc::clone(&fixture.caching).into(), false).unwrap();
    read(&object, 1);
    assert_eq!(stats(&pool).records, 0);
    // All of them, also on a machine that is busy.
    pool.set_tunable("l2_export_ms", "600000").unwrap();
    drop((object, data));
    pool.export().unwrap();
    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    assert!(stats(&pool).records >= RECORDS, "{:?}", stats(&pool));
    let data = pool.dataset("data").unwrap();
    let object = data.object(number).unwrap();
    read(&object, 1);
    let reads = |pool: &Pool| -> u64 {
        pool.stats().counters.iter().filter(|c| c.0 == "reads").map(|c| c.2).sum()
    };
    // The remaining reads determine the free space.
    assert!(reads(&pool) < RECORDS / 10, "{} reads of the pool's device", reads(&pool));
    // With the time limit 0 nothing is written.
    write(&pool, &object, 2);
    pool.set_tunable("l2_export_ms", "0").unwrap();
    drop((object, data));
    pool.export().unwrap();
    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    let data = pool.dataset("data").unwrap();
    read(&data.object(number).unwrap(), 2);
    assert!(reads(&pool) >= RECORDS, "{} reads of the pool's device", reads(&pool));
    drop(data);
    pool.export().unwrap();
}

/// Creates an empty file for an L2 device.
fn file(path: &std::path::Path) {
    std::fs::File::create(path).unwrap().set_len(64 * MIB).unwrap();
}

#[test]
fn a_device_at_the_path_of_a_lost_one_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, kept) = (folder.path().join("cache"), folder.path().join("kept"));
    let fixture =
        Fixture { device: memory(128 * MIB), caching: memory(MIB), cache: cache(96 * MIB) };
    let open = || forebay_pool::open_path(&path, &OpenOptions::default()).unwrap();
    let import = || {
        // With equal seeds, two L2 caches would get the same guid.
        let options = ImportOptions { seed: None, ..import_options(&fixture.cache) };
        let devices = vec![Arc::clone(&fixture.device).into()];
        let pool = Pool::import(devices, &options).unwrap();
        pool.wait_for_l2_rebuild();
        pool
    };
    let pool = create(&fixture.device, &fixture.cache);
    file(&path);
    pool.add_l2_device(open(), false).unwrap();
    pool.export().unwrap();

    std::fs::rename(&path, &kept).unwrap();
    let pool = import();
    assert!(!unavailable(&pool).is_empty());
    file(&path);
    let guid = pool.add_l2_device(open(), false).unwrap();
    assert_eq!((only(&pool).guid, only(&pool).state), (guid, L2DeviceState::Active));
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    drop(tx);
    write(&pool, &object, 1);
    drop((object, data));
    pool.export().unwrap();
    // The blocks written to it are found.
    for _ in 0..2 {
        let pool = import();
        assert_eq!((only(&pool).guid, only(&pool).state), (guid, L2DeviceState::Active));
        assert!(stats(&pool).records >= RECORDS, "{:?}", stats(&pool));
        pool.export().unwrap();
    }
    // The device is recognized and not initialised again, though nobody has it open.
    let options = ImportOptions { find_l2_devices: false, ..import_options(&fixture.cache) };
    let pool = Pool::import(vec![Arc::clone(&fixture.device).into()], &options).unwrap();
    let twice = pool.add_l2_device(open(), true).unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    // The lost device is back at the path of the listed one, but is not listed itself.
    std::fs::copy(&kept, &path).unwrap();
    pool.export().unwrap();
    let pool = import();
    assert_eq!(only(&pool).state, L2DeviceState::Active);
    // Its content is not used.
    assert_eq!(counter(&pool, "rollbacks"), 1, "{:?}", stats(&pool));
    pool.export().unwrap();
}

#[test]
fn devices_with_exchanged_paths_are_not_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    let fixture =
        Fixture { device: memory(128 * MIB), caching: memory(MIB), cache: cache(96 * MIB) };
    let pool = create(&fixture.device, &fixture.cache);
    let guids = [&one, &two].map(|path| {
        file(path);
        let opened = forebay_pool::open_path(path, &OpenOptions::default()).unwrap();
        pool.add_l2_device(opened, false).unwrap()
    });
    pool.export().unwrap();
    // The first device is lost, and the second one has its path.
    std::fs::rename(&two, &one).unwrap();
    let devices = vec![Arc::clone(&fixture.device).into()];
    let pool = Pool::import(devices, &import_options(&fixture.cache)).unwrap();
    pool.wait_for_l2_rebuild();
    let listed = pool.l2_devices();
    let L2DeviceState::Unavailable(why) = &listed[0].state else { panic!("{listed:?}") };
    assert!(why.contains(&format!("another L2 device of this pool, {:016x}", guids[1])), "{why}");
    assert_eq!([listed[0].guid, listed[1].guid], guids);
    drop(pool);
    let label = forebay_io::FileDevice::open(&one, &OpenOptions::default()).unwrap();
    let label: Arc<dyn Device> = Arc::new(label);
    assert_eq!(forebay_l2::read_label(&label).unwrap().guid, guids[1]);
}

/// A device that calls a function before its first request.
struct CallOnFirstRequest<F: Fn() + Send + Sync> {
    inner: Arc<dyn Device>,
    called: Once,
    callback: F,
}

impl<F: Fn() + Send + Sync> Decorator for CallOnFirstRequest<F> {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        self.called.call_once(&self.callback);
        Some(request)
    }
}

#[test]
fn a_device_whose_use_was_not_recorded_is_not_trusted_later() {
    let (fixture, pool, data, object) = fixture();
    let number = object.number();
    pool.sync().unwrap();
    let old = copy_of(&fixture.device);
    write(&pool, &object, 2);
    fill(&pool, &object, 2);
    drop((object, data));
    pool.abandon();

    // As soon as the L2 device is found, the pool's own device fails the reads for the change of
    // its record.
    let faults = Arc::new(FaultDevice::new(Arc::clone(&old), 3));
    let (failing, memory) = (Arc::clone(&faults), Arc::clone(&fixture.cache));
    let callback = move || {
        memory.cache().clear();
        failing.add(Rule::new(Fault::Error(5)).on(Op::Read).times(4));
    };
    let l2_device =
        CallOnFirstRequest { inner: Arc::clone(&fixture.caching), called: Once::new(), callback };
    let device: Arc<dyn Device> = faults.clone();
    let pool = import(&device, &[&(Arc::new(l2_device) as Arc<dyn Device>)], &fixture.cache);
    assert!(unavailable(&pool).contains("noted"), "{}", unavailable(&pool));
    faults.clear();
    // Go beyond all txgs that the L2 device has seen.
    let data = pool.dataset("data").unwrap();
    let object = data.object(number).unwrap();
    for version in 3..12 {
        write(&pool, &object, version);
    }
    drop((object, data));
    pool.export().unwrap();
    let pool = import(&old, &[&fixture.caching], &fixture.cache);
    let trusted = pool.l2_devices().iter().any(|_| counter(&pool, "rollbacks") == 0);
    assert!(!trusted, "{:?}", pool.l2_devices());
    let data = pool.dataset("data").unwrap();
    let object = data.object(number).unwrap();
    read(&object, 11);
    read(&object, 11);
    check(&pool);
    // It can be added again like any other device.
    if pool.l2_devices().is_empty() {
        pool.add_l2_device(Arc::clone(&fixture.caching).into(), false).unwrap();
        fill(&pool, &object, 11);
    }
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn copies_of_a_pool_do_not_read_each_others_blocks() {
    let (fixture, pool, data, object) = fixture();
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();
    let copy = copy_of(&fixture.device);
    let import = |device: &Arc<dyn Device>, cache: &Arc<BlockCache>| {
        let options = ImportOptions { find_l2_devices: false, seed: None, ..import_options(cache) };
        let devices = vec![Arc::clone(device).into()];
        let caches = vec![Arc::clone(&fixture.caching).into()];
        let pool = Pool::import_with(devices, caches, &options).unwrap();
        pool.wait_for_l2_rebuild();
        let data = pool.dataset("data").unwrap();
        let object = data.object(number).unwrap();
        (pool, data, object)
    };
    // One copy continues with the L2 device. Nothing is written to it: everything is in RAM at the
    // crash.
    let large = cache(96 * MIB);
    let (pool, data, object) = import(&fixture.device, &large);
    assert_eq!(counter(&pool, "rollbacks"), 0);
    for version in 2..9 {
        write(&pool, &object, version);
    }
    drop((object, data));
    pool.abandon();
    // The other copy continues too, with fewer txgs, and the L2 device caches its blocks.
    let (pool, data, object) = import(&copy, &fixture.cache);
    write(&pool, &object, 100);
    fill(&pool, &object, 100);
    drop((object, data));
    pool.abandon();
    let (pool, data, object) = import(&fixture.device, &fixture.cache);
    // The L2 device has another guid, or was emptied.
    let unavailable = only(&pool).stats.is_none();
    assert!(unavailable || counter(&pool, "rollbacks") == 1, "{:?}", stats(&pool));
    read(&object, 8);
    read(&object, 8);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();
}

#[test]
fn a_device_that_could_not_be_marked_keeps_its_content() {
    let (fixture, pool, data, object) = fixture();
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();
    let faults = Arc::new(FaultDevice::new(Arc::clone(&fixture.caching), 3));
    faults.add(Rule::new(Fault::Error(5)).on(Op::Write).within(0..4096));
    let caching: Arc<dyn Device> = faults.clone();
    let pool = import(&fixture.device, &[&caching], &fixture.cache);
    let data = pool.dataset("data").unwrap();
    read(&data.object(number).unwrap(), 1);
    let found = stats(&pool);
    assert!(found.hits > 0 && found.written_bytes == 0, "{found:?}");
    drop(data);
    pool.export().unwrap();
    let pool = import(&fixture.device, &[&fixture.caching], &fixture.cache);
    assert_eq!(counter(&pool, "rollbacks"), 0);
    assert!(stats(&pool).records >= RECORDS / 2, "{:?}", stats(&pool));
    pool.export().unwrap();
}

/// A device that keeps its writes while it hangs.
pub(crate) struct HangingDevice {
    inner: Arc<dyn Device>,
    hangs: AtomicBool,
    pending: Mutex<Vec<Request>>,
    arrived: Condvar,
}

impl HangingDevice {
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        let (hangs, pending) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        Arc::new(Self { inner, hangs, pending, arrived: Condvar::new() })
    }

    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// Waits until a write is pending.
    pub(crate) fn wait(&self) {
        let pending = self.pending.lock().unwrap();
        drop(self.arrived.wait_while(pending, |pending| pending.is_empty()).unwrap());
    }

    /// Executes the pending writes. Returns their number.
    pub(crate) fn end(&self) -> usize {
        self.hangs.store(false, Ordering::SeqCst);
        let pending = std::mem::take(&mut *self.pending.lock().unwrap());
        let count = pending.len();
        pending.into_iter().for_each(|request| request.finish(Ok(())));
        count
    }
}

impl Decorator for HangingDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() != Op::Write || !self.hangs.load(Ordering::SeqCst) {
            return Some(request);
        }
        self.pending.lock().unwrap().push(request);
        self.arrived.notify_all();
        None
    }
}

/// Runs `f` while the time passes, so that waits for a hanging device end.
fn with_time<T>(clock: &ManualClock, f: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                clock.advance(1_000_000_000);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let result = f();
        ended.store(true, Ordering::SeqCst);
        result
    })
}

#[test]
fn an_l2_device_stays_locked_while_a_write_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let options = OpenOptions { create_bytes: Some(MIB), ..OpenOptions::default() };
    let try_lock = || FileDevice::open(&path, &options).map(|file| file.take_lock().unwrap());
    let (device, l2, cache) =
        (memory(128 * MIB), HangingDevice::new(memory(64 * MIB)), cache(8 * MIB));
    let opened =
        || Opened::from(Arc::clone(&l2) as Arc<dyn Device>).keep(try_lock().expect("unlocked"));
    let clock = Arc::new(ManualClock::new());
    let options = CreateOptions { clock: Some(clock.clone()), ..create_options(&cache) };
    let pool = Pool::create(vec![Arc::clone(&device).into()], &options).unwrap();
    pool.add_l2_device(opened(), false).unwrap();
    assert!(try_lock().is_err());
    pool.export().unwrap();
    drop(try_lock().expect("an export without pending requests unlocks at once"));

    // After the import, the mark on the device is written.
    let options = ImportOptions {
        clock: Some(clock.clone()),
        find_l2_devices: false,
        ..import_options(&cache)
    };
    let given = vec![opened()];
    l2.hang();
    let pool = Pool::import_with(vec![Arc::clone(&device).into()], given, &options).unwrap();
    l2.wait();
    with_time(&clock, || pool.export()).unwrap();
    assert!(try_lock().is_err(), "a write is pending, and another pool could use the device");
    assert!(l2.end() > 0);
    drop(try_lock().expect("the last write has ended"));

    let pool = Pool::import_with(vec![Arc::clone(&device).into()], vec![opened()], &options);
    let pool = pool.unwrap();
    pool.wait_for_l2_rebuild();
    l2.hang();
    let name = format!("{:016x}", only(&pool).guid);
    with_time(&clock, || pool.remove_l2_device(&name)).unwrap_err();
    assert!(pool.l2_devices().is_empty());
    assert!(try_lock().is_err(), "a write is pending, and another pool could use the device");
    assert!(l2.end() > 0);
    drop(try_lock().expect("the last write has ended"));
    pool.export().unwrap();
}

/// A device of which a read hangs, and that notices a close that would wait for it.
struct HangingReads {
    inner: Arc<dyn Device>,
    /// Whether the next read hangs.
    hangs: AtomicBool,
    pending: Mutex<Vec<Request>>,
    closes: Mutex<Vec<usize>>,
}

impl HangingReads {
    fn new(inner: &Arc<dyn Device>) -> Self {
        let (hangs, inner) = (AtomicBool::new(false), Arc::clone(inner));
        Self { inner, hangs, pending: Mutex::new(Vec::new()), closes: Mutex::new(Vec::new()) }
    }
}

impl Decorator for HangingReads {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() != Op::Read || !self.hangs.swap(false, Ordering::SeqCst) {
            return Some(request);
        }
        self.pending.lock().unwrap().push(request);
        None
    }

    fn own_close(&self) {
        self.closes.lock().unwrap().push(self.pending.lock().unwrap().len());
    }
}

/// An export that closes files does not wait for an L2 device that hangs without having failed.
#[test]
fn closing_the_files_of_a_pool_does_not_wait_for_a_hanging_read() {
    let (fixture, pool, data, object) = fixture();
    let number = object.number();
    drop((object, data));
    pool.export().unwrap();
    let l2 = Arc::new(HangingReads::new(&fixture.caching));
    let caching: Arc<dyn Device> = l2.clone();
    // It stays open for the second round.
    let device: Arc<dyn Device> = Arc::new(HangingReads::new(&fixture.device));
    for hangs in [true, false] {
        let pool = import(&device, &[&caching], &fixture.cache);
        let object = pool.dataset("data").unwrap().object(number).unwrap();
        l2.hangs.store(hangs, Ordering::SeqCst);
        let mut bytes = vec![0; RECORD as usize];
        // A load that hangs gives up, and the pool's own device has the block.
        let mut record = 0;
        while hangs && l2.pending.lock().unwrap().is_empty() {
            object.read(record * RECORD, &mut bytes).unwrap();
            assert!(bytes == content(record, 1));
            record += 1;
        }
        drop(object);
        assert_eq!(only(&pool).state, L2DeviceState::Active, "it has not failed");
        pool.close_with_devices(None).unwrap();
        let pending = std::mem::take(&mut *l2.pending.lock().unwrap());
        assert_eq!(!pending.is_empty(), hangs);
        pending.into_iter().for_each(|request| request.finish(Ok(())));
        let expected = if hangs { vec![] } else { vec![0] };
        assert_eq!(std::mem::take(&mut *l2.closes.lock().unwrap()), expected, "{hangs}");
        drop(pool);
    }
}
