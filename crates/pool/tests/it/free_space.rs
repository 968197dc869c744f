//! How much may be changed at once, and how many there may be of what a pool has.

use std::sync::Barrier;

use forebay_pool::format::Compression;
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Pool};

use crate::common::{MIB, cache, check, create, create_options, dataset, import_options, memory};

/// Writes to a new object, until that fails or it has `most` bytes. Returns the bytes, and why no more.
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

/// Transactions of that many threads side by side, of `most` bytes each.
fn fill_side_by_side(pool: &Pool, data: &Dataset, threads: usize, most: u64) -> u64 {
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
fn transactions_side_by_side_promise_no_more_than_there_is() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let written = fill_side_by_side(&pool, &data, 4, u64::MAX);
    assert!(written > 32 * MIB, "{written} bytes");
    pool.sync().unwrap();
    check(&pool);
}

#[test]
fn many_small_transactions_at_once_find_space_in_a_small_pool() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let written = fill_side_by_side(&pool, &data, 32, 64 << 10);
    assert_eq!(written, 32 * (64 << 10));
    pool.sync().unwrap();
    check(&pool);
}

#[test]
fn what_a_transaction_did_not_use_is_there_for_the_next() {
    let (device, cache) = (memory(32 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let settings =
        DatasetSettings { data_compression: Compression::Lz4, ..data.settings().unwrap() };
    data.set_settings(&settings).unwrap();
    // What compresses well takes little of what was reserved for it.
    for _ in 0..4 {
        let written = fill_side_by_side(&pool, &data, 1, u64::MAX);
        assert!(written > 16 * MIB, "{written} bytes");
        pool.sync().unwrap();
    }
    check(&pool);
}

#[test]
fn a_dataset_that_finds_no_owner_in_the_cache_is_not_made() {
    let (device, first) = (memory(256 * MIB), cache(64 * MIB));
    let pool = create(&device, &first);
    // Others have them all.
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
fn an_import_opens_no_dataset_that_its_log_does_not_name() {
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
    // Two are left: for the pool, and for one dataset.
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

/// Appends to an object by pieces that are smaller than its records, each a transaction, until there is no room or it has
/// `most` bytes. Returns the bytes.
fn append_in_pieces(pool: &Pool, most: u64) -> u64 {
    let settings = DatasetSettings { record_bytes: 128 << 10, ..DatasetSettings::default() };
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
fn records_that_grow_bit_by_bit_are_counted_as_they_grow() {
    let (device, cache) = (memory(256 * MIB), cache(24 * MIB));
    let pool = create(&device, &cache);
    // Many times what may be dirty: txgs must be written in time.
    assert_eq!(append_in_pieces(&pool, 160 * MIB), 160 * MIB);
    check(&pool);
}

#[test]
fn records_that_grow_bit_by_bit_find_no_space_before_the_sync_does() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let written = append_in_pieces(&pool, u64::MAX);
    assert!(written > 32 * MIB, "{written}");
    pool.sync().unwrap();
    check(&pool);
}
