//! Fixtures: pools on memory devices, with fixed seeds and a stopped clock.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::clock::{Clock, ManualClock};
use forebay_io::{Device, MemoryDevice, MemoryOptions};
use forebay_pool::format::DamageKind;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, Dataset, DatasetSettings, HostId, ImportOptions,
    NewVdev, Pool, Result,
};

/// A mebibyte.
pub const MIB: u64 = 1 << 20;

/// Names of the datasets in each pool.
pub const DATASETS: [&str; 2] = ["one", "two"];

/// A block cache of `bytes` bytes.
///
/// # Panics
/// If the system has no memory.
pub fn cache(bytes: u64) -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes, seed: Some(1), ..BlockCacheOptions::default() };
    BlockCache::new(options).expect("a cache")
}

/// A memory device. The devices of a pool need different names.
///
/// # Panics
/// If the system cannot start a thread.
pub fn memory(name: &str, bytes: u64, sector_bytes: u32) -> Arc<dyn Device> {
    disk(name, bytes, (sector_bytes, sector_bytes))
}

/// Creates a memory device with sectors and physical sectors of so many bytes.
pub fn disk(name: &str, bytes: u64, (sector_bytes, physical_bytes): (u32, u32)) -> Arc<dyn Device> {
    let options = MemoryOptions {
        sector_bytes,
        physical_bytes,
        submission_queues: 1,
        ..MemoryOptions::default()
    };
    Arc::new(MemoryDevice::new(name, bytes, &options).expect("a memory device"))
}

/// A stopped clock, so that nothing happens because time has passed.
pub fn clock() -> Option<Arc<dyn Clock>> {
    Some(Arc::new(ManualClock::new()))
}

/// The host that imports the pools.
pub fn host() -> HostId {
    HostId { id: 1, name: "sim".to_owned() }
}

/// Options for a new pool.
pub fn create_options(cache: &Arc<BlockCache>) -> CreateOptions {
    CreateOptions {
        host: host(),
        seed: Some(7),
        clock: clock(),
        ..CreateOptions::new("tank", Arc::clone(cache))
    }
}

/// Options to import a pool.
pub fn import_options(cache: &Arc<BlockCache>) -> ImportOptions {
    ImportOptions {
        host: host(),
        seed: Some(7),
        clock: clock(),
        ..ImportOptions::new(Arc::clone(cache))
    }
}

/// A new pool with [`DATASETS`], on an object store if a device takes each address once. It
/// discards nothing in the background, so that a run depends on its seed alone.
///
/// # Errors
/// The errors of [`Pool::create`].
pub fn create(
    devices: &[Arc<dyn Device>],
    cache: &Arc<BlockCache>,
    settings: &DatasetSettings,
) -> Result<Pool> {
    create_tree(devices.iter().map(vdev).collect(), cache, settings)
}

/// The vdev of a new pool that this device is.
pub fn vdev(device: &Arc<dyn Device>) -> NewVdev {
    match device.info().append_only {
        Some(_) => NewVdev::ObjectStore(Arc::clone(device).into()),
        None => NewVdev::Device(Arc::clone(device).into()),
    }
}

/// As [`create`], of devices and mirrors.
///
/// # Errors
/// The errors of [`Pool::create_tree`].
pub fn create_tree(
    vdevs: Vec<NewVdev>,
    cache: &Arc<BlockCache>,
    settings: &DatasetSettings,
) -> Result<Pool> {
    let pool = Pool::create_tree(vdevs, &create_options(cache))?;
    pool.set_tunable("trim_files", "false")?;
    for name in DATASETS {
        pool.create_dataset(name, settings)?;
    }
    Ok(pool)
}

/// Imports the pool on the devices.
///
/// # Errors
/// The errors of [`Pool::import`].
pub fn import(devices: &[Arc<dyn Device>], options: &ImportOptions) -> Result<Pool> {
    Pool::import(devices.iter().map(|device| Arc::clone(device).into()).collect(), options)
}

/// Imports the pool on the devices, with these L2 devices and no others.
///
/// # Errors
/// The errors of [`Pool::import_with`].
pub fn import_with(
    devices: &[Arc<dyn Device>],
    l2_devices: &[Arc<dyn Device>],
    options: &ImportOptions,
) -> Result<Pool> {
    let options = ImportOptions { find_l2_devices: false, ..options.clone() };
    let opened = |devices: &[Arc<dyn Device>]| {
        devices.iter().map(|device| Arc::clone(device).into()).collect()
    };
    Pool::import_with(opened(devices), opened(l2_devices), &options)
}

/// The pool's [`DATASETS`].
///
/// # Errors
/// The errors of [`Pool::dataset`].
pub fn datasets(pool: &Pool) -> Result<Vec<Dataset>> {
    DATASETS.iter().map(|name| pool.dataset(name)).collect()
}

/// Checks a pool.
///
/// # Errors
/// The report of the check, if it is not clean.
pub fn check(pool: &Pool) -> Result<(), String> {
    check_but(pool, |_| false)
}

/// Checks a pool on mirrors. A side may be out of date: bad copies of blocks with a good one do not
/// count.
///
/// # Errors
/// The report of the check, if there is anything else.
pub fn check_degraded(pool: &Pool) -> Result<(), String> {
    check_but(pool, |kind| kind == DamageKind::BadCopy)
}

fn check_but(pool: &Pool, expected: fn(DamageKind) -> bool) -> Result<(), String> {
    let mut report = pool
        .check(&mut |_| ControlFlow::Continue(()))
        .map_err(|error| format!("the check: {error:?}"))?;
    let listed = report.damaged.len();
    report.damaged.retain(|one| !expected(one.kind));
    report.damaged_count -= (listed - report.damaged.len()) as u64;
    match report.is_clean() {
        true => Ok(()),
        false => Err(report.to_string()),
    }
}

pub use forebay_base::testing::full;

/// The number in an environment variable.
///
/// # Panics
/// If the variable is not a number.
pub fn env_number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
