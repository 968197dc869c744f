//! Limits: space for concurrent changes, cache owners, and devices.

use std::sync::Barrier;

use forebay_pool::format::Compression;
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Pool};

use crate::common::{MIB, cache, check, create, create_options, dataset, import_options, memory};

/// Writes to a new object until a write fails or the object has `most` bytes. Returns the bytes
/// written and the error.
fn fill(pool: &Pool, data: &Dataset, most: u64, ready: &Barrier) -> (u64, Option<ErrorKind>) {
    let tx = pool.begin().expect("space");
    ready.wait();
    let number = data.create_object(&tx, &[]).expect("an object");
    let object = data.object(number).expect("it");
    let mut at = 0;
    while at < most {
        if let Err(error) = object.write(&tx, at, &vec![5; 64 << 10]) {
            return (at, Some(error.kind()));
        }
        at += 64 << 10;
    }
    (at, None)
}

/// Runs a transaction of `most` bytes on each of several threads concurrently.
fn fill_concurrently(pool: &Pool, data: &Dataset, threads: usize, most: u64) -> u64 {
    let ready = Barrier::new(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| fill(pool, data, most, &ready))).collect();
        let ends = all.into_iter().map(|one| one.join().expect("no panic"));
        ends.map(|(bytes, failed)| {
            assert!(failed.is_none_or(|kind| kind == ErrorKind::NoSpace), "{failed:?}");
            bytes
        })
        .sum()
    })
}

#[test]
fn concurrent_transactions_reserve_no_more_than_is_free() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let written = fill_concurrently(&pool, &data, 4, u64::MAX);
    assert!(written > 32 * MIB, "{written} bytes");
    pool.sync().unwrap();
    check(&pool);
}

#[test]
fn many_small_transactions_find_space_in_a_small_pool() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let written = fill_concurrently(&pool, &data, 32, 64 << 10);
    assert_eq!(written, 32 * (64 << 10));
    pool.sync().unwrap();
    check(&pool);
}

#[test]
fn unused_reservations_are_available_to_the_next_transaction() {
    let (device, cache) = (memory(32 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let settings =
        DatasetSettings { data_compression: Compression::Lz4, ..data.settings().unwrap() };
    data.set_settings(&settings).unwrap();
    // Compressible data needs little of the space reserved for it.
    for _ in 0..4 {
        let written = fill_concurrently(&pool, &data, 1, u64::MAX);
        assert!(written > 16 * MIB, "{written} bytes");
        pool.sync().unwrap();
    }
    check(&pool);
}

#[test]
fn a_dataset_without_a_cache_owner_is_not_created() {
    let (device, first) = (memory(256 * MIB), cache(64 * MIB));
    let pool = create(&device, &first);
    // Take all owners.
    let mut owners = Vec::new();
    while let Ok(owner) = first.cache().open_owner(forebay_cache::OwnerCaching::All) {
        owners.push(owner);
    }
    let failed = pool.create_dataset("data", &DatasetSettings::default()).err();
    assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::NoMemory));
    assert!(pool.datasets().unwrap().is_empty());
    drop(owners.pop());
    pool.create_dataset("data", &DatasetSettings::default()).unwrap();
    assert_eq!(pool.datasets().unwrap(), ["data"]);
}

#[test]
fn an_import_opens_only_datasets_in_its_log() {
    let (device, first) = (memory(64 * MIB), cache(64 * MIB));
    let pool = create(&device, &first);
    for n in 0..8 {
        pool.create_dataset(&format!("unused {n}"), &DatasetSettings::default()).unwrap();
    }
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, b"fsynced").unwrap();
    drop(tx);
    data.fsync(number).unwrap();
    drop(data);
    pool.abandon();
    // Leave two owners: for the pool, and for one dataset.
    let second = cache(64 * MIB);
    let mut owners = Vec::new();
    while let Ok(owner) = second.cache().open_owner(forebay_cache::OwnerCaching::All) {
        owners.push(owner);
    }
    owners.truncate(owners.len() - 2);
    let pool = Pool::import(vec![device.into()], &import_options(&second)).unwrap();
    assert_eq!(pool.datasets().unwrap().len(), 9);
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object_info(number).unwrap().attributes, b"fsynced");
    let failed = pool.dataset("unused 1").err();
    assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::NoMemory));
    drop(data);
    pool.export().unwrap();
}

#[test]
fn pools_of_any_number_of_devices_have_a_log() {
    for count in [31, 32, 33, 64] {
        let cache = cache(32 * MIB);
        let devices = (0..count).map(|_| memory(32 * MIB).into()).collect();
        let pool = Pool::create(devices, &create_options(&cache)).unwrap();
        let data = dataset(&pool);
        let tx = pool.begin().unwrap();
        let number = data.create_object(&tx, &[]).unwrap();
        drop(tx);
        data.fsync(number).unwrap();
        check(&pool);
    }
}

/// Appends to an object in pieces smaller than a record, each in a transaction, until there is no
/// space or it has `most` bytes. Returns the bytes.
fn append_in_pieces(pool: &Pool, most: u64) -> u64 {
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: 128 << 10,
        ..DatasetSettings::default()
    };
    let data = pool.create_dataset("pieces", &settings).unwrap();
    let tx = pool.begin().unwrap();
    let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
    drop(tx);
    let piece = vec![5; 8 << 10];
    while object.size() < most {
        let written = pool.begin().and_then(|tx| object.write(&tx, object.size(), &piece));
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => panic!("{error:?} at {}", object.size()),
        }
    }
    object.size()
}

#[test]
fn growing_records_are_charged_as_they_grow() {
    let (device, cache) = (memory(256 * MIB), cache(24 * MIB));
    let pool = create(&device, &cache);
    // Many times the dirty limit: txgs must be synced in time.
    assert_eq!(append_in_pieces(&pool, 160 * MIB), 160 * MIB);
    check(&pool);
}

#[test]
fn growing_records_run_out_of_space_before_the_sync_does() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let written = append_in_pieces(&pool, u64::MAX);
    assert!(written > 32 * MIB, "{written}");
    pool.sync().unwrap();
    check(&pool);
}
