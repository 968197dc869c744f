//! Changes that fail halfway, and pools that end while they are dirty.

use std::sync::Arc;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, Op};
use forebay_pool::format::Compression;
use forebay_pool::{Dataset, DatasetSettings, ErrorKind, Object, Pool, Transaction};

use crate::common::{MIB, cache, check, create, dataset, import, memory};

const RECORD: u64 = 4096;

/// Uses up the space of a transaction, except for less than a record of `small`.
fn exhaust(tx: &Transaction<'_>, big: &Object, small: &Object) {
    small.write(tx, RECORD, &[1; RECORD as usize]).expect("space");
    fill(tx, big, 0);
    fill(tx, small, 2 * RECORD);
}

fn fill(tx: &Transaction<'_>, object: &Object, mut at: u64) {
    let record = vec![2; object.record_bytes() as usize];
    while object.write(tx, at, &record).is_ok() {
        at += record.len() as u64;
    }
}

/// Two objects to fill a pool with, and more small objects than fit into a few blocks of dnodes.
fn populate(pool: &Pool, data: &Dataset) -> (Object, Object, Vec<u64>) {
    let tx = pool.begin().expect("space");
    let new = |record| data.create_object_with(&tx, record, b"other").expect("an object");
    let big = data.object(new(128 << 10)).expect("it");
    let small = data.object(new(RECORD as u32)).expect("it");
    let others = (0..400).map(|_| new(RECORD as u32)).collect();
    drop(tx);
    pool.sync().expect("a txg");
    (big, small, others)
}

/// Txgs end only on request.
fn hold_txgs(pool: &Pool) {
    for (name, value) in [("dirty_max_bytes", "1073741824"), ("txg_timeout_ms", "100000")] {
        pool.set_tunable(name, value).expect("a tunable");
    }
}

#[test]
fn a_failed_destroy_is_not_replayed() {
    let (device, cache) = (memory(32 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let (big, small, others) = populate(&pool, &data);
    let victim = others[300];
    hold_txgs(&pool);
    let tx = pool.begin().expect("space");
    exhaust(&tx, &big, &small);
    let error = data.destroy(&tx, victim).expect_err("no space");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    drop(tx);
    assert_eq!(data.object_info(victim).expect("it lives").attributes, b"other");
    data.fsync(others[0]).expect("durable");
    drop((data, big, small));
    pool.abandon();
    let pool = import(&device, &cache);
    let data = pool.dataset("data").expect("the dataset");
    assert_eq!(data.object_info(victim).expect("it lives").attributes, b"other");
}

#[test]
fn a_failed_write_has_written_a_prefix() {
    let (device, cache) = (memory(32 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let (big, small, others) = populate(&pool, &data);
    hold_txgs(&pool);
    let object = data.object(others[0]).expect("it");
    let tx = pool.begin().expect("space");
    object.write(&tx, 8192, &[7; 10]).expect("space");
    object.truncate(&tx, 0).expect("shorter");
    fill(&tx, &big, 0);
    let (len, written) = object.write_some(&tx, 0, &vec![9; 2 << 20]);
    assert_eq!(written.expect_err("no space").kind(), ErrorKind::NoSpace);
    drop(tx);
    let size = object.size();
    assert_eq!(size, len, "the returned length");
    object.fsync().expect("durable");
    drop((object, big, small, data));
    pool.abandon();
    let pool = import(&device, &cache);
    let object = pool.dataset("data").and_then(|data| data.object(others[0])).expect("it");
    assert_eq!(object.size(), size);
    let tx = pool.begin_freeing().expect("space");
    object.truncate(&tx, size + 16384).expect("longer");
    drop(tx);
    let mut out = vec![1; size as usize + 16384];
    assert_eq!(object.read(0, &mut out).expect("it reads"), out.len());
    let (written, behind) = out.split_at(size as usize);
    assert!(written.iter().all(|byte| *byte == 9));
    assert!(behind.iter().all(|byte| *byte == 0), "stale bytes show after an extension");
    check(&pool);
}

#[test]
fn changes_without_space_do_not_count_as_dirty() {
    let (device, cache) = (memory(32 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let (big, small, others) = populate(&pool, &data);
    pool.sync().expect("a txg");
    assert_eq!(cache.dirty_bytes(), 0);
    let tx = pool.begin().expect("space");
    exhaust(&tx, &big, &small);
    for _ in 0..100 {
        assert!(data.set_attributes(&tx, others[300], b"x").is_err());
    }
    drop(tx);
    pool.sync().expect("a txg");
    pool.sync().expect("a txg");
    assert_eq!(cache.dirty_bytes(), 0);
}

#[test]
fn a_suspended_pool_releases_its_memory() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    drop(dataset(&pool));
    pool.export().expect("exported");
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&device), 1));
    let dynamic: Arc<dyn Device> = Arc::clone(&faulty) as Arc<dyn Device>;
    for round in 0..3 {
        let pool = import(&dynamic, &cache);
        let data = pool.dataset("data").expect("the dataset");
        let tx = pool.begin().expect("space");
        let number = data.create_object(&tx, &[]).expect("an object");
        let object = data.object(number).expect("it");
        object.write(&tx, 0, &vec![1; 4 << 20]).expect("space");
        drop(tx);
        faulty.add(Rule::new(Fault::Error(5)).on(Op::Write));
        assert!(pool.sync().is_err());
        drop((object, data, pool));
        faulty.clear();
        assert_eq!(cache.dirty_bytes(), 0, "round {round}");
    }
}

#[test]
fn an_abandoned_pool_releases_its_memory() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    hold_txgs(&pool);
    let tx = pool.begin().expect("space");
    let object = data.object(data.create_object(&tx, &[]).expect("an object")).expect("it");
    object.write(&tx, 0, &vec![1; 4 << 20]).expect("space");
    drop(tx);
    drop((object, data));
    pool.abandon();
    assert_eq!(cache.dirty_bytes(), 0);
}

#[test]
fn punching_in_a_full_pool_does_not_suspend_it() {
    let (device, cache) = (memory(64 * MIB), cache(512 * MIB));
    let pool = create(&device, &cache);
    let settings = DatasetSettings {
        data_compression: Compression::Off,
        record_bytes: RECORD as u32,
        metadata_compression: Compression::Off,
        ..DatasetSettings::default()
    };
    let data = pool.create_dataset("data", &settings).expect("a dataset");
    let tx = pool.begin().expect("space");
    let object = data.object(data.create_object(&tx, &[]).expect("an object")).expect("it");
    drop(tx);
    // Punching one of two records under its own indirect block keeps that block.
    let offset_of = |n: u64| (n * 512 + 510) * RECORD;
    let mut count = 0u64;
    'fill: while let Ok(tx) = pool.begin() {
        for _ in 0..16 {
            if object.write(&tx, offset_of(count), &[1; 2 * RECORD as usize]).is_err() {
                break 'fill;
            }
            count += 1;
        }
    }
    for _ in 0..3 {
        pool.sync().expect("a txg");
    }
    let tx = pool.begin_freeing().expect("space to free");
    let mut punched = 0;
    for n in 0..count {
        if let Err(error) = object.punch(&tx, offset_of(n), RECORD) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            break;
        }
        punched += 1;
    }
    drop(tx);
    assert!(punched > 0);
    pool.sync().expect("charged changes have space");
}

/// Space is reserved for each indirect block as if it were full. Few of these bytes are written,
/// so they slow no change down.
#[test]
fn indirect_blocks_that_are_nearly_empty_slow_no_change_down() {
    let (device, cache) = (memory(256 * MIB), cache(64 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    hold_txgs(&pool);
    for (name, value) in [("dirty_max_bytes", "16777216"), ("dirty_sync_percent", "100")] {
        pool.set_tunable(name, value).expect("a tunable");
    }
    let objects: Vec<_> = (0..64)
        .map(|_| {
            let tx = pool.begin().expect("space");
            let number = data.create_object_with(&tx, RECORD as u32, &[]).expect("an object");
            drop(tx);
            data.object(number).expect("it")
        })
        .collect();
    pool.sync().expect("a txg");
    let delayed = || {
        let counters = pool.stats().counters;
        counters
            .iter()
            .filter(|(name, ..)| *name == "delayed")
            .map(|(.., value)| value)
            .sum::<u64>()
    };
    let before = delayed();
    for object in &objects {
        let tx = pool.begin().expect("space");
        object.write(&tx, 1 << 30, b"far").expect("space");
    }
    // More than the share of the limit from which changes are slowed down.
    let dirty = pool.stats().dirty_bytes;
    assert!(dirty > 11 * MIB, "{dirty} bytes are reserved");
    assert_eq!(delayed(), before);
    pool.sync().expect("a txg");
    assert_eq!(pool.stats().dirty_bytes, 0);
    check(&pool);
}
