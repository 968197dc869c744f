//! Warm-up: an import loads blocks from L2 devices into memory.

use std::sync::Arc;

use forebay_io::Device;
use forebay_pool::format::{CacheMode, Compression};
use forebay_pool::{BlockCache, DatasetSettings, ErrorKind, ImportOptions, L2DeviceStats, Pool};

use crate::common::{MIB, cache, check, create, import_options, memory};

const RECORD: u64 = 8192;
const RECORDS: u64 = 500;

fn import(device: &Arc<dyn Device>, caching: &Arc<dyn Device>, cache: &Arc<BlockCache>) -> Pool {
    let options = ImportOptions { find_l2_devices: false, ..import_options(cache) };
    let devices = vec![Arc::clone(device).into()];
    let pool =
        Pool::import_with(devices, vec![Arc::clone(caching).into()], &options).expect("the pool");
    pool.wait_for_l2_warm_up();
    pool
}

fn l2_stats(pool: &Pool) -> L2DeviceStats {
    let device = pool.l2_devices().pop().expect("one L2 device");
    device.stats.unwrap_or_else(|| panic!("{:?}", device.state))
}

fn counter(pool: &Pool, name: &str, label: &str) -> u64 {
    let counters = l2_stats(pool).counters;
    counters.iter().filter(|(n, l, _)| *n == name && *l == label).map(|(.., value)| value).sum()
}

fn device_reads(pool: &Pool) -> u64 {
    pool.stats().counters.iter().filter(|c| c.0 == "reads").map(|c| c.2).sum()
}

fn content(dataset: u64, record: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![(record % 251) as u8; RECORD as usize];
    bytes[..8].copy_from_slice(&(record << 8 | dataset).to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Datasets by their setting `cache`.
const MODES: [(&str, CacheMode); 3] =
    [("all", CacheMode::All), ("metadata", CacheMode::Metadata), ("none", CacheMode::None)];

/// Writes an object into the dataset with this index. Returns its number.
fn write(pool: &Pool, number: usize, object: Option<u64>, version: u64) -> u64 {
    let data = pool.dataset(MODES[number].0).unwrap();
    let tx = pool.begin().unwrap();
    let object = object.unwrap_or_else(|| data.create_object(&tx, &[]).unwrap());
    drop(tx);
    let opened = data.object(object).unwrap();
    for record in 0..RECORDS {
        let tx = pool.begin().unwrap();
        opened.write(&tx, record * RECORD, &content(number as u64, record, version)).unwrap();
    }
    pool.sync().unwrap();
    object
}

fn read(pool: &Pool, number: usize, object: u64, version: u64) {
    let data = pool.dataset(MODES[number].0).unwrap();
    let object = data.object(object).unwrap();
    let mut bytes = vec![0; RECORD as usize];
    for step in 0..RECORDS {
        let record = step * 1009 % RECORDS;
        object.read(record * RECORD, &mut bytes).unwrap();
        assert!(
            bytes == content(number as u64, record, version),
            "record {record} has wrong content"
        );
    }
}

/// Creates a pool with one dataset for each mode, all cached in full while they are written, and an
/// L2 device that has all blocks. With `modes`, sets the datasets' modes at the end. Then exports
/// the pool, or leaves it as after a crash.
fn warmed_pool(crash: bool, modes: bool) -> (Arc<dyn Device>, Arc<dyn Device>, [u64; 3]) {
    let (device, caching, ram) = (memory(128 * MIB), memory(64 * MIB), cache(64 * MIB));
    let pool = create(&device, &ram);
    pool.add_l2_device(Arc::clone(&caching).into(), false).unwrap();
    let objects = [0, 1, 2].map(|number| {
        let settings = DatasetSettings {
            data_compression: Compression::Off,
            record_bytes: RECORD as u32,
            ..DatasetSettings::default()
        };
        drop(pool.create_dataset(MODES[number].0, &settings).unwrap());
        let object = write(&pool, number, None, 1);
        read(&pool, number, object, 1);
        object
    });
    for (name, mode) in MODES.into_iter().filter(|_| modes) {
        let data = pool.dataset(name).unwrap();
        let settings = DatasetSettings { cache: mode, ..data.settings().unwrap() };
        data.set_settings(&settings).unwrap();
    }
    pool.fill_l2_devices();
    match crash {
        true => pool.abandon(),
        false => pool.export().unwrap(),
    }
    (device, caching, objects)
}

#[test]
fn datasets_are_warm_before_they_are_opened() {
    for crash in [false, true] {
        let (device, caching, objects) = warmed_pool(crash, true);
        let ram = cache(64 * MIB);
        let pool = import(&device, &caching, &ram);
        let found = l2_stats(&pool);
        assert!(counter(&pool, "warmed", "data") >= RECORDS * 9 / 10, "{:?}", found.counters);
        assert_eq!(counter(&pool, "warm_up_ended", "done"), 1, "{:?}", found.counters);
        // Two datasets exclude their data from the RAM cache.
        assert!(counter(&pool, "warm_up_skipped", "unwanted") >= 2 * RECORDS * 9 / 10);
        assert!(counter(&pool, "warm_up_skipped", "unknown_owner") == 0, "{:?}", found.counters);
        let before = (device_reads(&pool), l2_stats(&pool).hits);
        read(&pool, 0, objects[0], 1);
        let after = (device_reads(&pool), l2_stats(&pool).hits);
        assert!(after.0 - before.0 < RECORDS / 20, "{before:?}, {after:?}: reads of the device");
        assert!(after.1 - before.1 < RECORDS / 20, "{before:?}, {after:?}: loads of the L2");
        read(&pool, 1, objects[1], 1);
        read(&pool, 2, objects[2], 1);
        check(&pool);
        // The old version of an overwritten record is not warmed up.
        write(&pool, 0, Some(objects[0]), 2);
        read(&pool, 0, objects[0], 2);
        pool.export().unwrap();
        let pool = import(&device, &caching, &cache(64 * MIB));
        read(&pool, 0, objects[0], 2);
        check(&pool);
        pool.export().unwrap();
    }
}

#[test]
fn warm_up_does_not_evict() {
    let (device, caching, objects) = warmed_pool(false, false);
    let ram = cache(8 * MIB);
    let pool = import(&device, &caching, &ram);
    let stats = ram.cache().stats();
    let evicted: u64 =
        ["evicted_mru", "evicted_mfu", "evicted_once"].iter().map(|name| stats.counter(name)).sum();
    let warmed = counter(&pool, "warmed", "data");
    // The overhead of the cache grows with the number of blocks, so a few may be evicted near the
    // bound.
    assert!(evicted <= warmed / 20, "{evicted} of {warmed} were evicted again");
    assert_eq!(counter(&pool, "warm_up_ended", "no_capacity"), 1, "{:?}", l2_stats(&pool).counters);
    assert!(stats.reserved <= stats.capacity, "{} of {}", stats.reserved, stats.capacity);
    read(&pool, 0, objects[0], 1);
    pool.export().unwrap();
}

#[test]
fn an_export_interrupts_warm_up_and_the_tunable_disables_it() {
    let (device, caching, objects) = warmed_pool(false, true);
    for _ in 0..5 {
        let options = ImportOptions { find_l2_devices: false, ..import_options(&cache(64 * MIB)) };
        let caches = vec![Arc::clone(&caching).into()];
        let pool = Pool::import_with(vec![Arc::clone(&device).into()], caches, &options).unwrap();
        // Datasets may be opened for the warm-up at this time.
        pool.export().unwrap();
    }
    let off = ("l2_warm_up".to_owned(), "false".to_owned());
    let ram = cache(64 * MIB);
    let options =
        ImportOptions { find_l2_devices: false, tunables: vec![off], ..import_options(&ram) };
    let caches = vec![Arc::clone(&caching).into()];
    let pool = Pool::import_with(vec![Arc::clone(&device).into()], caches, &options).unwrap();
    pool.wait_for_l2_rebuild();
    pool.wait_for_l2_warm_up();
    assert_eq!(counter(&pool, "warmed", "data"), 0);
    let error = pool.set_tunable("l2_warm_up", "true").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    read(&pool, 0, objects[0], 1);
    assert!(l2_stats(&pool).hits > 0);
    pool.export().unwrap();
}
