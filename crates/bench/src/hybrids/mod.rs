//! Caches in memory and on a device for `rebuild` and `hybrid`: Forebay's and foyer's.
//!
//! Values contain their keys, so that wrong values are detected. The files of all subjects are in
//! one folder and are removed at the end. They go through the page cache, unless the plan says
//! otherwise. A plan may name a block device instead.

mod forebay;
#[cfg(feature = "peers")]
mod foyer;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::Class;

use crate::keys::KeyStream;
use crate::options::Failure;

/// The requests of one task.
pub(crate) struct TaskRequests {
    pub(crate) keys: KeyStream,
    /// How many.
    pub(crate) count: u64,
}

/// How many requests found their values in each place, by `FoundIn`.
pub(crate) type FoundCounts = [u64; 3];

/// Configuration of a cache that is made or reopened.
#[derive(Clone, Debug)]
pub(crate) struct HybridPlan {
    /// Its file, its folder, or a block device.
    pub(crate) path: PathBuf,
    /// Whether it bypasses the page cache.
    pub(crate) direct: bool,
    /// Weight of values in memory.
    pub(crate) memory_bytes: u64,
    pub(crate) device_bytes: u64,
    pub(crate) value_bytes: usize,
    /// Whether every value is written, and none is requested meanwhile. What a block device holds
    /// is then lost.
    pub(crate) fill: bool,
    pub(crate) seed: u64,
}

/// Where a value was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundIn {
    Memory,
    Device,
    /// Nowhere: it was loaded.
    Nowhere,
}

/// A cache in memory and on a device.
pub(crate) trait TieredCache: Send + Sync {
    /// Looks a key up, and loads its value on a miss.
    fn get_or_load(&self, key: u64, class: Class) -> FoundIn;
    /// Runs tasks on a tokio runtime with a worker for each CPU. Each of them looks its keys up,
    /// one after the other, and loads the values that it misses.
    fn run_tasks(&self, tasks: Vec<TaskRequests>) -> Result<FoundCounts, Failure>;
    /// Looks a key up.
    fn get(&self, key: u64) -> bool;
    /// Inserts the value of a key.
    fn insert(&self, key: u64);
    /// Waits until all pending writes are on the device.
    fn settle(&self) -> Result<(), Failure>;
    /// Waits for the rebuild.
    fn wait_rebuilt(&self);
    /// Bytes written to the device so far.
    fn written_bytes(&self) -> u64;
    /// Memory of its index of the device in bytes, if it reports that.
    fn index_bytes(&self) -> Option<u64>;
}

/// A subject in one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) config: &'static str,
    /// Index of the configuration.
    nth: usize,
}

impl Subject {
    /// All configurations of all subjects, grouped by subject.
    pub(crate) fn all() -> Vec<Self> {
        let ours = ["bounded by weight"].into_iter().enumerate();
        let ours = ours.map(|(nth, config)| Self { name: "forebay", config, nth });
        #[cfg(feature = "peers")]
        let ours = {
            let foyer = foyer::CONFIGS.into_iter().enumerate();
            ours.chain(foyer.map(|(nth, config)| Self { name: "foyer", config, nth }))
        };
        ours.collect()
    }

    /// The first configuration of a subject, for child processes.
    pub(crate) fn named(name: &str) -> Result<Self, Failure> {
        let found = Self::all().into_iter().find(|subject| subject.name == name);
        found.ok_or_else(|| format!("unknown subject `{name}`").into())
    }

    /// Makes the cache, or reopens it.
    pub(crate) fn open(&self, plan: &HybridPlan) -> Result<Box<dyn TieredCache>, Failure> {
        match self.name {
            #[cfg(feature = "peers")]
            "foyer" => Ok(Box::new(foyer::Foyer::open(plan, self.nth)?)),
            _ => Ok(Box::new(forebay::Forebay::open(plan)?)),
        }
    }

    /// Size of a device for `entries` values, in bytes.
    pub(crate) fn device_bytes(&self, entries: u64, value_bytes: usize) -> u64 {
        let each = match self.name {
            #[cfg(feature = "peers")]
            "foyer" => foyer::entry_bytes(value_bytes),
            _ => forebay::entry_bytes(value_bytes),
        };
        // For logs and partly filled segments.
        (entries * each * 5 / 4 + (64 << 20)).next_multiple_of(1 << 20)
    }
}

/// A runtime with a worker for each CPU.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Runs `make(task)` for each task, and adds up their counts. The tasks run on the workers, not on
/// this thread: what they start then begins on the same worker.
fn sum_of_tasks<F: Future<Output = FoundCounts> + Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    tasks: Vec<TaskRequests>,
    make: impl Fn(TaskRequests) -> F,
) -> Result<FoundCounts, Failure> {
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(make(task))).collect();
    let mut sum = [0; 3];
    for task in tasks {
        let found = runtime.block_on(task)?;
        sum.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
    }
    Ok(sum)
}

/// The value of a key, of `bytes` bytes but at least eight.
pub(crate) fn value(key: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![key as u8; bytes.max(8)];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Panics if `value` is not the value of `key`.
pub(crate) fn check(key: u64, value: &[u8]) {
    let found = value.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    assert!(found == Some(key), "the value of key {key} belongs to {found:?}");
}

/// Whether a path names a block device.
pub(crate) fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device())
}

/// A unique path in a folder, removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(folder: &Path, what: &str) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        Self(folder.join(format!("forebay-bench-{}-{nth}-{what}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file or a folder. An error has no consequence for the measurement.
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
