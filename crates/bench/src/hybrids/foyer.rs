//! foyer's hybrid cache on a folder or a block device, with its own runtime.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::foyer::{
    BlockEngineConfig, Device, DeviceBuilder, EvictionConfig, FileDeviceBuilder, FsDeviceBuilder,
    HybridCache, HybridCacheBuilder, HybridCachePolicy, LfuConfig, LruConfig, S3FifoConfig, Source,
};
use forebay_cache::Class;
use tokio::runtime::Runtime;

use super::{
    FoundCounts, FoundIn, HybridPlan, TaskRequests, TieredCache, check, is_block_device, runtime,
    sum_of_tasks, value,
};
use crate::options::Failure;

/// Configurations: when a value is written, and how memory evicts.
pub(super) const CONFIGS: [&str; 6] = [
    "written on insertion, LRU",
    "written on insertion, S3-FIFO",
    "written on insertion, LFU",
    "written on eviction, LRU",
    "written on eviction, S3-FIFO",
    "written on eviction, LFU",
];
/// Inserts between two waits for the device. foyer drops entries if too many wait.
const BATCH: u64 = 2000;
/// Alignment of entries, in bytes.
const PAGE: usize = 4096;
/// Upper bound of an entry's header, key and lengths, in bytes.
const HEADER: usize = 64;

pub(super) struct Foyer {
    // Dropped before the runtime.
    cache: Option<HybridCache<u64, Vec<u8>>>,
    runtime: Runtime,
    value_bytes: usize,
    inserted: AtomicU64,
    fill: bool,
}

/// Size of a value on the device, in bytes.
pub(super) fn entry_bytes(value_bytes: usize) -> u64 {
    (value_bytes + HEADER).next_multiple_of(PAGE) as u64
}

fn eviction(nth: usize) -> EvictionConfig {
    match nth % 3 {
        0 => LruConfig::default().into(),
        1 => S3FifoConfig::default().into(),
        _ => LfuConfig::default().into(),
    }
}

/// Its device: files in a folder, or a block device.
fn device(plan: &HybridPlan) -> Result<Arc<dyn Device>, Failure> {
    let bytes = plan.device_bytes as usize;
    if !is_block_device(&plan.path) {
        let files = FsDeviceBuilder::new(&plan.path).with_capacity(bytes).with_direct(plan.direct);
        return Ok(files.build()?);
    }
    if plan.fill {
        wipe(&plan.path, plan.device_bytes)?;
    }
    let file = FileDeviceBuilder::new(&plan.path).with_capacity(bytes).with_direct(plan.direct);
    Ok(file.build()?)
}

/// Overwrites the first `bytes` of a block device with zeros, since foyer would find entries of an
/// earlier run there.
fn wipe(path: &Path, bytes: u64) -> Result<(), Failure> {
    let zeros = vec![0; 1 << 20];
    let mut device = OpenOptions::new().write(true).open(path)?;
    for offset in (0..bytes).step_by(zeros.len()) {
        let len = (bytes - offset).min(zeros.len() as u64) as usize;
        device.write_all(&zeros[..len])?;
    }
    Ok(device.sync_all()?)
}

impl Foyer {
    pub(super) fn open(plan: &HybridPlan, nth: usize) -> Result<Self, Failure> {
        let runtime = runtime()?;
        let policy = match plan.fill || nth < 3 {
            true => HybridCachePolicy::WriteOnInsertion,
            false => HybridCachePolicy::WriteOnEviction,
        };
        // The default block of 16 MiB would leave a small device with few blocks.
        let block = (plan.device_bytes / 64).clamp(1 << 20, 16 << 20) as usize;
        let device = device(plan)?;
        let cache = runtime.block_on(async {
            HybridCacheBuilder::new()
                .with_name("forebay-bench")
                .with_policy(policy)
                .with_flush_on_close(false)
                .memory(plan.memory_bytes as usize)
                .with_eviction_config(eviction(nth))
                .with_weighter(|_: &u64, value: &Vec<u8>| value.len() + size_of::<Vec<u8>>())
                .storage()
                .with_engine_config(BlockEngineConfig::new(device).with_block_size(block))
                .build()
                .await
        })?;
        let (value_bytes, fill) = (plan.value_bytes, plan.fill);
        Ok(Self { cache: Some(cache), runtime, value_bytes, inserted: AtomicU64::new(0), fill })
    }

    fn cache(&self) -> &HybridCache<u64, Vec<u8>> {
        self.cache.as_ref().expect("there until it is dropped")
    }

    fn wait(&self) {
        self.runtime.block_on(self.cache().storage().wait());
    }
}

async fn get_or_fetch(cache: &HybridCache<u64, Vec<u8>>, key: u64, bytes: usize) -> FoundIn {
    let fetch = || async move { Ok::<_, Infallible>(value(key, bytes)) };
    let entry = cache.get_or_fetch(&key, fetch).await;
    let entry = entry.unwrap_or_else(|error| panic!("loading {key}: {error}"));
    check(key, entry.value());
    match entry.source() {
        Source::Memory => FoundIn::Memory,
        Source::Disk => FoundIn::Device,
        Source::Outer => FoundIn::Nowhere,
    }
}

impl TieredCache for Foyer {
    fn get_or_load(&self, key: u64, _class: Class) -> FoundIn {
        self.runtime.block_on(get_or_fetch(self.cache(), key, self.value_bytes))
    }

    fn run_tasks(&self, tasks: Vec<TaskRequests>) -> Result<FoundCounts, Failure> {
        let bytes = self.value_bytes;
        sum_of_tasks(&self.runtime, tasks, |mut task| {
            let cache = self.cache().clone();
            async move {
                let mut counts = [0; 3];
                for _ in 0..task.count {
                    let found = get_or_fetch(&cache, task.keys.next(), bytes).await;
                    counts[found as usize] += 1;
                }
                counts
            }
        })
    }

    fn get(&self, key: u64) -> bool {
        match self.runtime.block_on(self.cache().get(&key)) {
            Ok(Some(entry)) => {
                check(key, entry.value());
                true
            }
            Ok(None) => false,
            Err(error) => panic!("looking up {key}: {error}"),
        }
    }

    fn insert(&self, key: u64) {
        drop(self.cache().insert(key, value(key, self.value_bytes)));
        if self.fill && self.inserted.fetch_add(1, Ordering::Relaxed) % BATCH == BATCH - 1 {
            self.wait();
        }
    }

    fn settle(&self) -> Result<(), Failure> {
        self.wait();
        Ok(())
    }

    // Opening includes the rebuild.
    fn wait_rebuilt(&self) {}

    fn written_bytes(&self) -> u64 {
        self.cache().statistics().disk_write_bytes() as u64
    }

    fn index_bytes(&self) -> Option<u64> {
        None
    }
}

impl Drop for Foyer {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.take()
            && let Err(error) = self.runtime.block_on(cache.close())
        {
            eprintln!("cannot close foyer: {error}");
        }
    }
}
