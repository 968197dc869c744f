//! The life of a pool: create, fill, export, import, check.

use std::sync::Arc;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Device, FileDevice, Op, OpenOptions};
use forebay_pool::{ErrorKind, Pool, open_path};

use crate::common::{
    MIB, cache, check, create, create_options, dataset, import, import_options, memory,
};

#[test]
fn content_survives_an_export_and_an_import() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, b"attributes").unwrap();
    let directory = data.create_directory(&tx, &[]).unwrap();
    let object = data.object(number).unwrap();
    let content: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    object.write(&tx, 3000, &content).unwrap();
    data.directory(directory).unwrap().insert(&tx, b"name", &number.to_le_bytes()).unwrap();
    drop(tx);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();

    let pool = import(&device, &cache);
    check(&pool);
    assert_eq!(pool.datasets().unwrap(), ["data"]);
    let data = pool.dataset("data").unwrap();
    let value = data.directory(directory).unwrap().lookup(b"name").unwrap().unwrap();
    assert_eq!(*value, number.to_le_bytes());
    assert_eq!(data.object_info(number).unwrap().attributes, b"attributes");
    let object = data.object(number).unwrap();
    assert_eq!(object.size(), 103_000);
    let mut read = vec![1; 103_000];
    assert_eq!(object.read(0, &mut read).unwrap(), 103_000);
    assert!(read[..3000].iter().all(|byte| *byte == 0));
    assert_eq!(&read[3000..], content);

    let tx = pool.begin().unwrap();
    data.destroy(&tx, number).unwrap();
    assert_eq!(data.object(number).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    assert_eq!(object.write(&tx, 0, b"x").unwrap_err().kind(), ErrorKind::Closed);
    data.directory(directory).unwrap().remove(&tx, b"name").unwrap();
    drop(tx);
    check(&pool);
    assert_eq!(data.object_count(), 1);
}

#[test]
fn a_directory_becomes_fat_and_micro_again() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_directory(&tx, &[]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let empty = data.allocated_bytes();
    let directory = data.directory(number).unwrap();
    for batch in 0..200u64 {
        let tx = pool.begin().unwrap();
        for name in batch * 100..(batch + 1) * 100 {
            directory.insert(&tx, name.to_string().as_bytes(), &name.to_le_bytes()).unwrap();
        }
        drop(tx);
        if batch % 50 == 0 {
            check(&pool);
        }
    }
    assert_eq!(directory.len(), 20_000);
    pool.sync().unwrap();
    let stats = directory.audit().unwrap();
    assert!(stats.fill() >= 0.65, "{stats}");
    assert_eq!(directory.stats().unwrap().entries, 20_000);
    drop((directory, data));
    pool.export().unwrap();

    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    let directory = data.directory(number).unwrap();
    assert_eq!(directory.audit().unwrap().entries, 20_000);
    let walked = directory.iter().map(|entry| entry.unwrap().name.to_vec());
    let mut walked: Vec<Vec<u8>> = walked.collect();
    walked.sort_unstable();
    walked.dedup();
    assert_eq!(walked.len(), 20_000);
    for batch in 0..200u64 {
        let tx = pool.begin().unwrap();
        for name in batch * 100..(batch + 1) * 100 {
            let value = directory.remove(&tx, name.to_string().as_bytes()).unwrap();
            assert_eq!(*value, name.to_le_bytes());
        }
    }
    assert!(directory.is_empty());
    check(&pool);
    assert_eq!(data.allocated_bytes(), empty);
}

#[test]
fn a_pool_grows_by_a_device_and_survives_an_import() {
    let (first, second, cache) = (memory(32 * MIB), memory(64 * MIB), cache(32 * MIB));
    let pool = create(&first, &cache);
    let before = pool.stats().total_bytes;
    let data = dataset(&pool);
    assert_eq!(pool.add_device(second.clone().into(), false, None).unwrap(), 1);
    assert!(pool.stats().total_bytes > 2 * before, "{:?}", pool.stats());
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    // More than fits on the first device.
    data.object(number).unwrap().write(&tx, 0, &vec![5; 40 << 20]).unwrap();
    drop(tx);
    check(&pool);
    drop(data);
    pool.export().unwrap();

    let alone = Pool::import(vec![first.clone().into()], &import_options(&cache)).unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::NotAPool, "{alone}");
    let both = vec![second.into(), first.into()];
    let pool = Pool::import(both, &import_options(&cache)).unwrap();
    check(&pool);
    let mut out = vec![0; 40 << 20];
    let object = pool.dataset("data").unwrap().object(number).unwrap();
    assert_eq!(object.read(0, &mut out).unwrap(), out.len());
    assert!(out.iter().all(|byte| *byte == 5));
}

#[test]
fn a_pool_expands_to_a_grown_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let options = OpenOptions { create_bytes: Some(16 << 20), ..OpenOptions::default() };
    let cache = cache(32 * MIB);
    let opened = open_path(&path, &options).unwrap();
    let pool = Pool::create(vec![opened], &create_options(&cache)).unwrap();
    let busy = open_path(&path, &OpenOptions::default()).map(drop).expect_err("it is locked");
    assert_eq!(busy.kind(), ErrorKind::InUse, "{busy}");
    dataset(&pool);
    let before = pool.stats().total_bytes;
    pool.export().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(48 << 20).unwrap();
    let opened = open_path(&path, &OpenOptions::default()).unwrap();
    let pool = Pool::import(vec![opened], &import_options(&cache)).unwrap();
    assert_eq!(pool.stats().total_bytes, before);
    assert_eq!(pool.expand(0).unwrap(), 48 << 20);
    assert_eq!(pool.stats().total_bytes, before + (32 << 20));
    check(&pool);
    pool.export().unwrap();
    let opened = open_path(&path, &OpenOptions::default()).unwrap();
    let pool = Pool::import(vec![opened], &import_options(&cache)).unwrap();
    assert_eq!(pool.stats().total_bytes, before + (32 << 20));
    check(&pool);
}

#[test]
fn nothing_is_placed_past_the_old_end_of_a_device_before_its_labels_state_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let options = OpenOptions { create_bytes: Some(16 << 20), ..OpenOptions::default() };
    let cache = cache(32 * MIB);
    let pool =
        Pool::create(vec![open_path(&path, &options).unwrap()], &create_options(&cache)).unwrap();
    dataset(&pool);
    pool.export().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(48 << 20).unwrap();
    // The front label cannot be written during the call.
    let file: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &OpenOptions::default()).unwrap());
    let faulty = Arc::new(FaultDevice::new(file, 1));
    let device: Arc<dyn Device> = faulty.clone();
    let pool = import(&device, &cache);
    let before = pool.stats().total_bytes;
    faulty.add(Rule::new(Fault::Error(5)).on(Op::Write).within(0..4096));
    assert_eq!(pool.expand(0).unwrap_err().kind(), ErrorKind::Device);
    pool.sync().unwrap();
    assert_eq!((pool.stats().total_bytes, pool.devices()[0].size_bytes), (before, 16 << 20));
    faulty.clear();
    pool.abandon();
    let pool = import(&device, &cache);
    check(&pool);
    // And once they can be written, the space is used.
    assert_eq!(pool.expand(0).unwrap(), 48 << 20);
    assert_eq!(pool.stats().total_bytes, before + (32 << 20));
    pool.abandon();
    let pool = import(&device, &cache);
    assert_eq!(pool.stats().total_bytes, before + (32 << 20));
    check(&pool);
}

#[test]
fn attributes_and_names_of_a_directory_are_durable_together() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let directory = data.create_directory(&tx, b"0 names").unwrap();
    let other = data.create_object(&tx, b"old").unwrap();
    let synced = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let names = data.directory(directory).unwrap();
    let tx = pool.begin().unwrap();
    names.insert(&tx, b"name", b"1").unwrap();
    data.set_attributes(&tx, directory, b"1 name").unwrap();
    assert_eq!(*names.replace(&tx, b"name", b"2").unwrap(), *b"1");
    assert_eq!(names.replace(&tx, b"none", b"2").unwrap_err().kind(), ErrorKind::NotFound);
    data.set_attributes(&tx, other, b"new").unwrap();
    drop(tx);
    // Of another object: the attributes of a directory become durable with its names, those of an
    // object with its own fsync.
    data.fsync(synced).unwrap();
    drop((names, data));
    pool.abandon();

    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    assert_eq!(data.object_info(directory).unwrap().attributes, b"1 name");
    assert_eq!(data.object_info(other).unwrap().attributes, b"old");
    let names = data.directory(directory).unwrap();
    let found: Vec<_> = names.iter().map(|entry| entry.unwrap()).collect();
    assert_eq!(found.len(), 1);
    assert_eq!((&*found[0].name, &*found[0].value), (&b"name"[..], &b"2"[..]));
    check(&pool);
}

#[test]
fn fsynced_content_survives_the_loss_of_its_txg() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let directory = data.create_directory(&tx, &[]).unwrap();
    let kept = data.create_object(&tx, b"kept").unwrap();
    data.object(kept).unwrap().write(&tx, 5, b"content").unwrap();
    data.directory(directory).unwrap().insert(&tx, b"kept", &kept.to_le_bytes()).unwrap();
    drop(tx);
    data.fsync(kept).unwrap();
    let tx = pool.begin().unwrap();
    let lost = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    drop(data);
    pool.abandon();

    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    let mut out = [1; 12];
    assert_eq!(data.object(kept).unwrap().read(0, &mut out).unwrap(), 12);
    assert_eq!(&out, b"\0\0\0\0\0content");
    assert_eq!(data.object_info(kept).unwrap().attributes, b"kept");
    let value = data.directory(directory).unwrap().lookup(b"kept").unwrap().unwrap();
    assert_eq!(*value, kept.to_le_bytes());
    assert_eq!(data.object_info(lost).unwrap_err().kind(), ErrorKind::NotFound);
    check(&pool);
}
