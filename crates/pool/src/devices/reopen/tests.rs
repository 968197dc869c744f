use forebay_base::rng::SmallRng;
use forebay_base::sync::atomic::{AtomicU32, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_io::{Device, MemoryDevice, MemoryOptions, OpenOptions, Priority, Request};

use super::*;
use crate::block_cache::BlockCacheOptions;
use crate::devices::Place;
use crate::devices::attach::{Labels, NewSide};
use crate::devices::create::{CreateOptions, NewVdev, create};
use crate::devices::import::Imported;
use crate::devices::label::Uberblock;
use crate::format::{BlockPtrPhys, Dva};
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

/// Txg 5 is durable, the log has all, and nothing is waited for.
fn resumed(config: &Config) -> Resumed<'_> {
    Resumed {
        config,
        synced: 5,
        beats: None,
        relies_on_devices: false,
        log_is_on: &|_, _| Ok(true),
        takes_lost_end: false,
        pause: &|_| panic!("nothing passes"),
    }
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

/// The files of both sides were cut to nothing, and are back.
fn gone_and_back(memory: &BlockCache, folder: &Path) -> Imported {
    let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    let paths = ["a", "b"].map(|name| folder.join(name));
    let opened = paths.iter().map(|path| open_path(path, &options).unwrap());
    let pool = mirror(opened.collect(), memory);
    for path in &paths {
        let content = std::fs::read(path).unwrap();
        std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        let leaf = pool.devices.leaves().find(|leaf| Path::new(leaf.name()) == path).unwrap();
        leaf.device().run(Request::flush()).result.unwrap_err();
        assert!(leaf.is_gone());
        std::fs::write(path, content).unwrap();
    }
    assert!(pool.devices.has_gone_vdev());
    pool
}

#[test]
fn what_passes_by_itself_refuses_no_device() {
    let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
    let pool = gone_and_back(&memory, folder.path());
    // Another process has one of the files, until it is waited for.
    let path = folder.path().join("a");
    std::fs::rename(&path, folder.path().join("before")).unwrap();
    std::fs::copy(folder.path().join("before"), &path).unwrap();
    let opened = open_path(&path, &OpenOptions::default()).unwrap();
    let other = Mutex::named("test", Some(opened));
    // And twice a batch of the log is in flight.
    let batches = AtomicU32::new(2);
    let log_is_on = |_: u16, _: ReadDevice<'_>| match batches.load(Ordering::Relaxed) {
        0 => Ok(true),
        left => {
            batches.store(left - 1, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Device, "an fsync is being written there"))
        }
    };
    let pause = |_: Duration| drop(other.lock().take());
    let resumed = Resumed { log_is_on: &log_is_on, pause: &pause, ..resumed(&pool.config) };
    assert!(pool.devices.reopen_gone(&resumed, &memory).unwrap());
    let vdev = pool.devices.get(0).unwrap();
    assert_eq!(vdev.used().count(), 2, "none is faulted");
    assert!(vdev.used().all(|(_, leaf)| !leaf.is_gone()));
}

#[test]
fn what_does_not_pass_is_not_tried_for_ever() {
    let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
    let pool = gone_and_back(&memory, folder.path());
    let pauses = AtomicU32::new(0);
    let pause = |_: Duration| {
        pauses.fetch_add(1, Ordering::Relaxed);
    };
    let resumed = Resumed {
        log_is_on: &|_, _| Err(Error::new(ErrorKind::Device, "an fsync is being written there")),
        pause: &pause,
        ..resumed(&pool.config)
    };
    let error = pool.devices.reopen_gone(&resumed, &memory).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    assert_eq!(pauses.load(Ordering::Relaxed), 2 * TRIES, "each side");
    assert_eq!(pool.devices.get(0).unwrap().used().count(), 2, "they are gone as before");
}

/// Of two sides that are back, one has lost its end: the other one goes on alone.
#[test]
fn a_side_that_has_lost_its_end_resumes_only_without_a_better_one() {
    for cut in [&["a"][..], &["a", "b"]] {
        let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
        let pool = gone_and_back(&memory, folder.path());
        for name in cut {
            let file = std::fs::File::options().write(true).open(folder.path().join(name));
            let file = file.unwrap();
            file.set_len(SIZE / 2).unwrap();
            file.set_len(SIZE).unwrap();
        }
        let resumed = resumed(&pool.config);
        assert!(pool.devices.reopen_gone(&resumed, &memory).unwrap());
        let vdev = pool.devices.get(0).unwrap();
        let used: Vec<_> = vdev.used().map(|(_, leaf)| leaf.name().to_owned()).collect();
        match cut.len() {
            1 => assert!(used.len() == 1 && used[0].ends_with("/b"), "{used:?}"),
            _ => assert_eq!(used.len(), 2, "{used:?}"),
        }
        let events = pool.devices.events().log().after(0);
        let told = events.iter().filter(|event| event.kind == EventKind::DeviceLostEnd).count();
        assert_eq!(told, if cut.len() == 2 { 2 } else { 0 }, "{events:?}");
    }
}

/// From the moment on that it is closed, until another leaf has its place or it has failed.
#[test]
fn a_device_that_is_closed_to_reopen_does_not_answer() {
    let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
    let options = OpenOptions { create_bytes: Some(SIZE), ..OpenOptions::default() };
    let open = |name: &str| open_path(&folder.path().join(name), &options);
    let pool = mirror(vec![open("a").unwrap(), open("b").unwrap()], &memory);
    let place = |leaf| Place { dva: Dva { device: 0, offset: 2 << 20 }, leaf };
    let read = |leaf| {
        let buffer = memory.alloc(4096).unwrap();
        pool.devices.read(place(leaf), buffer, Priority::SyncRead).map(drop)
    };
    let vdev = pool.devices.get(0).unwrap();
    for leaf in [0, 1] {
        read(leaf).expect("it is open");
        assert!(!pool.devices.has_silent_vdev(&memory), "one answers");
        Side { vdev, at: leaf }.leaf().close_to_reopen();
        let error = read(leaf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(pool.devices.is_silent(place(leaf), &error, &memory).unwrap(), "{error}");
    }
    assert!(pool.devices.has_silent_vdev(&memory), "none answers");
    let new = pool.devices.exchange(Side { vdev, at: 0 }, open("a").unwrap()).unwrap();
    assert!(!pool.devices.has_silent_vdev(&memory), "one answers");
    read(new.at).expect("it is open");
    assert_eq!(read(0).unwrap_err().kind(), ErrorKind::Device, "it was removed");
    pool.devices.close();
}

/// What the pool has in memory is saved by waiting for the other side, which may be whole.
#[test]
fn a_side_that_has_lost_its_end_does_not_resume_while_another_is_late() {
    let (memory, folder) = (memory(), tempfile::tempdir().unwrap());
    let pool = gone_and_back(&memory, folder.path());
    let path = |name: &str| folder.path().join(name);
    let file = std::fs::File::options().write(true).open(path("a")).unwrap();
    file.set_len(SIZE / 2).unwrap();
    file.set_len(SIZE).unwrap();
    std::fs::rename(path("b"), path("away")).unwrap();
    let resumed = resumed(&pool.config);
    let error = pool.devices.reopen_gone(&resumed, &memory).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    let late = path("b").display().to_string();
    assert!(error.to_string().contains(&format!("because {late} is not back")), "{error}");
    assert!(pool.devices.has_gone_vdev(), "they are gone as before");
    std::fs::rename(path("away"), path("b")).unwrap();
    assert!(pool.devices.reopen_gone(&resumed, &memory).unwrap());
    let vdev = pool.devices.get(0).unwrap();
    let used: Vec<_> = vdev.used().map(|(_, leaf)| leaf.name().to_owned()).collect();
    assert_eq!(used, [late]);
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
        let resumed = resumed(config);
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
