use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_io::{Device, MemoryDevice, MemoryOptions, OpenOptions};

use super::*;
use crate::block_cache::BlockCacheOptions;
use crate::devices::attach::{Labels, NewSide};
use crate::devices::create::{CreateOptions, NewVdev, create};
use crate::devices::import::Imported;
use crate::devices::label::Uberblock;
use crate::format::BlockPtrPhys;
use crate::open::{HostId, open_path};

const SIZE: u64 = 16 << 20;

fn memory() -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes: 8 << 20, ..BlockCacheOptions::default() };
    BlockCache::new(options).unwrap()
}

/// Creates the devices of a pool whose newest durable txg is 5.
fn mirror(sides: Vec<Opened>, memory: &BlockCache) -> Imported {
    let options = CreateOptions {
        name: "tank".to_owned(),
        host: HostId::default(),
        seed: 1,
        force: false,
        heartbeat_ms: 0,
        sector_bytes: None,
    };
    let pool = create(vec![NewVdev::Mirror(sides)], &options, memory).unwrap();
    pool.devices.begin_txg(5);
    let uberblock =
        Uberblock { txg: 5, time_ns: 1, root: BlockPtrPhys::HOLE, vdev_count: 1, previous_txg: 4 };
    label::write_uberblock(&pool.devices, pool.config.pool_guid, &uberblock, memory, &|| Ok(()))
        .unwrap();
    pool
}

#[test]
fn a_closed_set_takes_no_device_that_was_opened_again() {
    let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
    let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    let open = |name: &str| open_path(&folder.path().join(name), &options);
    let pool = mirror(vec![open("a").unwrap(), open("b").unwrap()], &memory);
    let vdev = pool.devices.get(0).unwrap();
    let side = Side { vdev, at: 1 };
    side.leaf().close_to_reopen();
    let opened = open("b").unwrap();
    // An export closes the set while the device is opened.
    pool.devices.close();
    let error = pool.devices.exchange(side, opened).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    open("b").expect("nobody has its lock");
}

/// An export closes the set while the new side gets its labels.
#[test]
fn a_closed_set_takes_no_new_side() {
    let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
    let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    let path = |name: &str| folder.path().join(name);
    let open = |name: &str| open_path(&path(name), &options);
    let mut pool = mirror(vec![open("a").unwrap(), open("b").unwrap()], &memory);
    let devices = &pool.devices;
    let may_write = |_: u64| {
        devices.close();
        Ok(())
    };
    let device = open("c").unwrap();
    let new = NewSide { device, replaces: false, force: false, sector_bytes: None };
    let labels = Labels { config: &mut pool.config, memory: &memory, may_write: &may_write };
    let beside = path("a").to_str().unwrap().to_owned();
    let mut rng = SmallRng::from_seed(2);
    let error = devices.attach(&beside, new, (None, &mut rng), &|| 6, labels).map(drop);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(devices.get(0).unwrap().leaves().count(), 2);
    open("c").expect("nobody has its lock");
}

#[test]
fn a_device_whose_label_says_that_it_lacks_blocks_does_not_resume_a_txg() {
    let memory = memory();
    let device = |name: &str| -> Arc<dyn Device> {
        let options = MemoryOptions { submission_queues: 1, ..MemoryOptions::default() };
        Arc::new(MemoryDevice::new(name, SIZE, &options).unwrap())
    };
    let mut pool = mirror(vec![device("a").into(), device("b").into()], &memory);
    let vdev = pool.devices.get(0).unwrap();
    let check = |config: &Config, at| {
        let resumed = Resumed {
            config,
            synced: 5,
            beats: None,
            relies_on_devices: false,
            log_is_on: &|_, _| Ok(true),
        };
        let side = Side { vdev, at };
        resumed.check(side, &**side.leaf().device(), &memory)
    };
    check(&pool.config, 1).expect("it has all");
    // A resilver that has ended since is in no label.
    vdev.status().set_missed(1, Some(crate::devices::config::Missed { from: 3, to: 4 }));
    label::update_config(&pool.devices, &mut pool.config, &memory, &|_| Ok(())).unwrap();
    vdev.status().set_missed(1, None);
    check(&pool.config, 0).expect("it has all");
    let error = check(&pool.config, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAPool, "{error}");
    assert!(error.to_string().contains("lacks blocks from transaction group 3 on"), "{error}");
}
