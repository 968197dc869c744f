//! Changes of dataset settings during use.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::rng::SmallRng;
use forebay_pool::format::{CacheMode, Compression, SyncMode};
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Pool};

use crate::common::{MIB, cache, check, create, dataset, import, memory};

const BYTES: usize = 1 << 20;

/// Writes a new compressible object, and returns its allocated bytes.
fn bytes_taken(pool: &Pool, data: &Dataset) -> u64 {
    let before = data.allocated_bytes();
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|at| (at / 512) as u8 | 1).collect();
    data.object(number).unwrap().write(&tx, 0, &content).unwrap();
    drop(tx);
    pool.sync().unwrap();
    data.allocated_bytes() - before
}

#[test]
fn settings_survive_an_import_and_apply_to_later_writes() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let plain = bytes_taken(&pool, &data);
    assert!(plain >= BYTES as u64, "{plain}");
    let old = data.settings().unwrap();
    let packed = DatasetSettings {
        record_bytes: 64 << 10,
        data_compression: Compression::Zstd,
        cache: CacheMode::Metadata,
        ..old
    };
    let invalid = DatasetSettings { record_bytes: 5000, ..old };
    assert_eq!(data.set_settings(&invalid).unwrap_err().kind(), ErrorKind::Invalid);
    data.set_settings(&packed).unwrap();
    // No other change follows before the export.
    drop(data);
    pool.abandon();

    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    let found = data.settings().unwrap();
    assert_eq!(found.data_compression, Compression::Zstd);
    assert_eq!(found.cache, CacheMode::Metadata);
    assert_eq!(found.record_bytes, 64 << 10);
    let small = bytes_taken(&pool, &data);
    assert!(small < plain / 4, "{small} bytes after {plain}");
    // Changes apply without an import too, and while objects are open.
    data.set_settings(&DatasetSettings { data_copies: 2, ..old }).unwrap();
    let double = bytes_taken(&pool, &data);
    assert!(double >= 2 * BYTES as u64, "{double}");
    check(&pool);
    drop(data);
    pool.export().unwrap();
    let pool = import(&device, &cache);
    assert_eq!(pool.dataset("data").unwrap().settings().unwrap().data_copies, 2);
    check(&pool);
}

/// Creates an object under a name, with content that identifies it.
fn make(pool: &Pool, data: &Dataset, directory: u64) -> u64 {
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    data.object(number).unwrap().write(&tx, 0, &number.to_le_bytes()).unwrap();
    let names = data.directory(directory).unwrap();
    names.insert(&tx, &number.to_le_bytes(), &number.to_le_bytes()).unwrap();
    number
}

fn assert_made(data: &Dataset, directory: u64, number: u64) {
    let mut out = [0; 8];
    assert_eq!(data.object(number).unwrap().read(0, &mut out).unwrap(), 8, "object {number}");
    assert_eq!(out, number.to_le_bytes());
    let names = data.directory(directory).unwrap();
    assert!(names.lookup(&number.to_le_bytes()).unwrap().is_some(), "object {number}");
}

#[test]
fn fsynced_content_survives_changes_of_the_sync_mode() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let directory = data.create_directory(&tx, &[]).unwrap();
    drop(tx);
    let settings = data.settings().unwrap();
    let mut kept = Vec::new();
    for sync in [SyncMode::Txg, SyncMode::Log, SyncMode::Txg, SyncMode::Log] {
        let before = make(&pool, &data, directory);
        data.set_settings(&DatasetSettings { sync, ..settings }).unwrap();
        let after = make(&pool, &data, directory);
        data.fsync(before).unwrap();
        data.fsync(after).unwrap();
        kept.extend([before, after]);
    }
    drop(data);
    pool.abandon();
    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    kept.iter().for_each(|number| assert_made(&data, directory, *number));
    check(&pool);
}

#[test]
fn settings_change_during_concurrent_writes() {
    let seed = forebay_base::testing::seed(0);
    for round in 0..4 {
        let (device, cache) = (memory(128 * MIB), cache(32 * MIB));
        let pool = create(&device, &cache);
        let data = dataset(&pool);
        let tx = pool.begin().unwrap();
        let directory = data.create_directory(&tx, &[]).unwrap();
        drop(tx);
        let settings = data.settings().unwrap();
        let ended = AtomicBool::new(false);
        let work = |thread: u64| {
            let mut rng = SmallRng::from_seed(seed.wrapping_add(round * 10 + thread));
            let mut kept = Vec::new();
            while !ended.load(Ordering::Relaxed) || kept.is_empty() {
                let number = make(&pool, &data, directory);
                if rng.below(3) == 0 {
                    data.fsync(number).unwrap();
                    kept.push(number);
                } else if rng.below(2) == 0 {
                    // Its number is reused by another thread.
                    let tx = pool.begin().unwrap();
                    let names = data.directory(directory).unwrap();
                    names.remove(&tx, &number.to_le_bytes()).unwrap();
                    data.destroy(&tx, number).unwrap();
                }
            }
            kept
        };
        let kept = std::thread::scope(|scope| {
            let workers = [0, 1, 2].map(|thread| scope.spawn(move || work(thread)));
            for round in 0..20 {
                let sync = [SyncMode::Txg, SyncMode::Log][round % 2];
                let data_copies = 1 + (round / 2 % 2) as u8;
                let wanted = DatasetSettings { sync, data_copies, ..settings };
                data.set_settings(&wanted).unwrap();
            }
            ended.store(true, Ordering::Relaxed);
            workers.map(|worker| worker.join().expect("it ends")).concat()
        });
        drop(data);
        pool.abandon();
        let pool = import(&device, &cache);
        let data = pool.dataset("data").unwrap();
        kept.iter().for_each(|number| assert_made(&data, directory, *number));
        data.directory(directory)
            .unwrap()
            .audit()
            .unwrap_or_else(|error| panic!("{seed}: {error}"));
        check(&pool);
    }
}
