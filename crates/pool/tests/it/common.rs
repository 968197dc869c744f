//! Pools on memory devices, for tests.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Request};
use forebay_pool::format::Compression;
use forebay_pool::{
    BlockCache, BlockCacheOptions, CreateOptions, Dataset, DatasetSettings, HostId, ImportOptions,
    Pool,
};

static DEVICES: AtomicU64 = AtomicU64::new(0);

pub(crate) const MIB: u64 = 1 << 20;

/// A cache of this many bytes.
pub(crate) fn cache(bytes: u64) -> Arc<BlockCache> {
    BlockCache::new(BlockCacheOptions { bytes, ..BlockCacheOptions::default() }).expect("a cache")
}

/// Memory of requests.
pub(crate) fn arena() -> Arc<Arena> {
    let config = ArenaConfig { limit_bytes: 8 * MIB, huge_pages: HugePages::Auto };
    Arena::new(config).expect("memory")
}

/// A memory device of this many bytes, with sectors of 512 bytes.
pub(crate) fn memory(bytes: u64) -> Arc<dyn Device> {
    let options = MemoryOptions { sector_bytes: 512, ..MemoryOptions::default() };
    let name = format!("memory {}", DEVICES.fetch_add(1, Ordering::Relaxed));
    Arc::new(MemoryDevice::new(&name, bytes, &options).expect("a memory device"))
}

/// Copies all bytes of a device to another one that is as large.
pub(crate) fn copy(from: &dyn Device, to: &dyn Device) {
    let (size, arena) = (from.info().size_bytes, arena());
    for offset in (0..size).step_by(MIB as usize) {
        let buffer = arena.alloc((size - offset).min(MIB) as usize).expect("memory");
        let read = from.run(Request::read(offset, buffer)).into_buffer().expect("it reads");
        to.run(Request::write(offset, read)).result.expect("it takes it");
    }
}

/// A copy of a device, as a crash would leave it.
pub(crate) fn copy_of(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    let to = memory(device.info().size_bytes);
    copy(&**device, &*to);
    to
}

pub(crate) fn host() -> HostId {
    HostId { id: 1, name: "test".to_owned() }
}

pub(crate) fn create_options(cache: &Arc<BlockCache>) -> CreateOptions {
    CreateOptions { host: host(), seed: Some(7), ..CreateOptions::new("tank", Arc::clone(cache)) }
}

pub(crate) fn import_options(cache: &Arc<BlockCache>) -> ImportOptions {
    ImportOptions { host: host(), seed: Some(7), ..ImportOptions::new(Arc::clone(cache)) }
}

/// Creates a pool on one device.
pub(crate) fn create(device: &Arc<dyn Device>, cache: &Arc<BlockCache>) -> Pool {
    Pool::create(vec![Arc::clone(device).into()], &create_options(cache)).expect("a pool")
}

/// Imports the pool on this device.
pub(crate) fn import(device: &Arc<dyn Device>, cache: &Arc<BlockCache>) -> Pool {
    Pool::import(vec![Arc::clone(device).into()], &import_options(cache)).expect("the pool")
}

/// Creates a dataset with records of 8 KiB, stored as they are.
pub(crate) fn dataset(pool: &Pool) -> Dataset {
    let settings = DatasetSettings {
        record_bytes: 8192,
        data_compression: Compression::Off,
        ..DatasetSettings::default()
    };
    pool.create_dataset("data", &settings).expect("a dataset")
}

/// Checks a pool and asserts that it is clean.
pub(crate) fn check(pool: &Pool) {
    let report = pool.check(&mut |_| ControlFlow::Continue(())).expect("the check runs");
    assert!(report.is_clean(), "{report}");
}
