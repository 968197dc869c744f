//! What an fsync makes durable.

use std::time::Duration;

use crate::common::{MIB, cache, check, create, dataset, import, memory};

#[test]
fn an_fsync_waits_for_open_transactions() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_directory(&tx, &[]).unwrap();
    let other = data.create_object(&tx, &[]).unwrap();
    let directory = data.directory(number).unwrap();
    directory.insert(&tx, b"old name", &[1]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    std::thread::scope(|scope| {
        let tx = pool.begin().unwrap();
        directory.remove(&tx, b"old name").unwrap();
        let fsync = scope.spawn(|| data.fsync(other).unwrap());
        // Gives the fsync time to take half of the transaction. It must wait for the transaction
        // instead.
        std::thread::sleep(Duration::from_millis(30));
        assert!(!fsync.is_finished(), "an fsync passed a transaction");
        directory.insert(&tx, b"new name", &[1]).unwrap();
        drop(tx);
        fsync.join().unwrap();
    });
    drop((directory, data));
    pool.abandon();
    let pool = import(&device, &cache);
    let directory = pool.dataset("data").unwrap().directory(number).unwrap();
    assert!(directory.lookup(b"old name").unwrap().is_none());
    assert!(directory.lookup(b"new name").unwrap().is_some());
    check(&pool);
}

#[test]
fn truncates_racing_fsyncs_keep_durable_content() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let object = data.object(number).unwrap();
    std::thread::scope(|scope| {
        let syncer = scope.spawn(|| {
            for _ in 0..200 {
                data.fsync(number).unwrap();
            }
        });
        for _ in 0..400 {
            let tx = pool.begin().unwrap();
            object.write(&tx, 0, &[7; 20_000]).unwrap();
            drop(tx);
            let tx = pool.begin().unwrap();
            object.truncate(&tx, 5_000).unwrap();
        }
        syncer.join().unwrap();
    });
    data.fsync(number).unwrap();
    drop((object, data));
    pool.abandon();
    let pool = import(&device, &cache);
    let object = pool.dataset("data").unwrap().object(number).unwrap();
    let mut out = vec![0; 20_000];
    // Each finished truncate is durable, and no written byte became zero.
    assert_eq!(object.read(0, &mut out).unwrap(), 5_000);
    assert!(out[..5_000].iter().all(|byte| *byte == 7));
    check(&pool);
}

#[test]
fn attributes_set_with_names_are_durable_with_any_fsync() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let names = data.create_directory(&tx, &[]).unwrap();
    let numbers: Vec<_> = (0..4).map(|_| data.create_object(&tx, b"0").unwrap()).collect();
    drop(tx);
    pool.sync().unwrap();
    let directory = data.directory(names).unwrap();
    let transaction = |f: &dyn Fn(&forebay_pool::Transaction<'_>)| f(&pool.begin().unwrap());
    let [one, two, three, four] = numbers[..] else { unreachable!() };
    // Plain attributes are not durable with the fsync of another object.
    transaction(&|tx| data.set_attributes(tx, one, b"1").unwrap());
    transaction(&|tx| {
        data.set_attributes(tx, two, b"1").unwrap();
        directory.insert(tx, b"link", &two.to_le_bytes()).unwrap();
        data.set_attributes_with_names(tx, two, b"2").unwrap();
    });
    transaction(&|tx| data.set_attributes(tx, three, b"1").unwrap());
    transaction(&|tx| data.set_attributes_with_names(tx, three, b"2").unwrap());
    data.fsync(names).unwrap();
    // A batch of its own: older plain attributes must not be replayed after logged ones.
    data.fsync(two).unwrap();
    data.fsync(three).unwrap();
    transaction(&|tx| data.set_attributes_with_names(tx, four, b"1").unwrap());
    transaction(&|tx| data.set_attributes(tx, four, b"2").unwrap());
    data.fsync(four).unwrap();
    drop((directory, data));
    pool.abandon();
    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    let attributes = |number| data.object_info(number).unwrap().attributes;
    assert!(data.directory(names).unwrap().lookup(b"link").unwrap().is_some());
    let found = numbers.iter().map(|number| attributes(*number)).collect::<Vec<_>>();
    assert_eq!(found, [b"0", b"2", b"2", b"2"]);
    check(&pool);
}
