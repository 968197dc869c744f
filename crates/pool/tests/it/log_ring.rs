//! The ring of the intent log keeps its extents while it stays where it is.
//!
//! A ring that became longer would put blocks where the root before still needs others.

use std::sync::Arc;

use forebay_io::Device;
use forebay_pool::inspect::{Inspector, LogExtentInfo};
use forebay_pool::{AttachOptions, NewVdev, Pool};

use crate::common::{MIB, cache, check, copy_of, create, dataset, memory};
use crate::log_device::{Parts, content, failing, fsync, import};

/// The extents of the ring, as the newest root names them.
fn ring(devices: &[&Arc<dyn Device>]) -> Vec<LogExtentInfo> {
    let devices = devices.iter().map(|one| Arc::clone(one)).collect();
    let newest = Inspector::new(devices).expect("memory").txg(None).expect("a root");
    newest.found.log.extents
}

fn bytes_of(ring: &[LogExtentInfo]) -> u64 {
    ring.iter().map(|extent| extent.bytes).sum()
}

/// The name of a device of the log by which the pool finds it.
fn guid(pool: &Pool, at: usize) -> String {
    let devices = pool.devices();
    let log: Vec<_> = devices.iter().filter(|one| one.log).collect();
    format!("{:x}", log[at].guid)
}

#[test]
fn on_its_vdev_while_devices_come_and_go() {
    let parts = Parts::new(1);
    let (pool, number) = parts.create();
    Parts::log_takes_fsyncs(&pool, number);
    let data = parts.data();
    let first = ring(&[&data, &parts.log(0)]);
    let (second, third) = (memory(64 * MIB), memory(96 * MIB));
    let options = AttachOptions::default;

    // Larger ones take the place of the only one.
    pool.replace_device(&guid(&pool, 0), Arc::clone(&second).into(), options()).expect("it suits");
    Parts::log_takes_fsync_of(&pool, number, 2);
    assert_eq!(ring(&[&data, &second]), first, "replaced");
    pool.attach_device(&guid(&pool, 0), Arc::clone(&third).into(), options()).expect("it suits");
    Parts::log_takes_fsync_of(&pool, number, 3);
    assert_eq!(ring(&[&data, &second, &third]), first, "attached");
    pool.detach_device(&guid(&pool, 1)).expect("the other one is whole");
    Parts::log_takes_fsync_of(&pool, number, 4);
    assert_eq!(ring(&[&data, &second]), first, "detached");

    // Each import chooses the place of the log.
    fsync(&pool, number, 5);
    pool.abandon();
    let pool = import(&[Arc::clone(&data), Arc::clone(&second)]).expect("after a crash");
    assert_eq!(content(&pool, number), 5);
    Parts::log_takes_fsync_of(&pool, number, 6);
    assert_eq!(ring(&[&data, &second]), first, "after a crash");
    pool.export().expect("exported");
    let pool = import(&[Arc::clone(&data), Arc::clone(&second)]).expect("after an export");
    Parts::log_takes_fsync_of(&pool, number, 7);
    assert_eq!(ring(&[&data, &second]), first, "after an export");
    check(&pool);

    // A new vdev has a ring as long as it has space.
    pool.remove_log().expect("removed");
    pool.add_vdev(NewVdev::Log(vec![second.clone().into()]), true, None).expect("added");
    Parts::log_takes_fsync_of(&pool, number, 8);
    let longer = ring(&[&data, &second]);
    assert!(bytes_of(&longer) > bytes_of(&first), "{longer:?} after {first:?}");
    pool.export().expect("exported");
}

#[test]
fn at_home_whatever_log_vdevs_there_were() {
    let data: Arc<dyn Device> = failing(memory(64 * MIB));
    let pool = create(&data, &cache(32 * MIB));
    let number = {
        let dataset = dataset(&pool);
        let tx = pool.begin().expect("space");
        dataset.create_object(&tx, &[]).expect("an object")
    };
    fsync(&pool, number, 1);
    let hold = |pool: &Pool| pool.set_tunable("txg_timeout_ms", "100000").expect("a tunable");
    let home = ring(&[&data]);
    assert!(bytes_of(&home) > 0);
    let mut pool = pool;
    for (round, size) in [(0, 16 * MIB), (10, 32 * MIB)] {
        let log: Arc<dyn Device> = failing(memory(size));
        pool.add_vdev(NewVdev::Log(vec![Arc::clone(&log).into()]), false, None).expect("added");
        // No group is to come between the two copies.
        hold(&pool);
        Parts::log_takes_fsync_of(&pool, number, round + 2);
        let away = ring(&[&data, &log]);
        assert!(away.iter().all(|extent| !home.contains(extent)), "{away:?} is home");
        let crashed = [copy_of(&data), copy_of(&log)];
        let crashed_pool = import(&crashed).expect("after a crash");
        Parts::log_takes_fsync_of(&crashed_pool, number, round + 3);
        assert_eq!(ring(&[&crashed[0], &crashed[1]]), away, "after a crash");
        crashed_pool.abandon();

        pool.remove_log().expect("removed");
        fsync(&pool, number, round + 4);
        assert_eq!(ring(&[&data]), home, "removed");
        pool.export().expect("exported");
        pool = import(&[Arc::clone(&data)]).expect("after an export");
        assert_eq!(content(&pool, number), round + 4);
        fsync(&pool, number, round + 5);
        assert_eq!(ring(&[&data]), home, "after an export");
    }
    check(&pool);
    pool.export().expect("exported");
}
