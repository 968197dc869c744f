//! Caches in memory and on a device, as the benches `rebuild` and `hybrid` use them: ours, and
//! foyer's.
//!
//! Values say whose they are, so that a wrong one is found out. Files of all subjects are in one
//! folder, go through the page cache, and are removed at the end.

mod forebay;
#[cfg(feature = "peers")]
mod foyer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_cache::Class;

use crate::options::Failure;

/// How a cache is to be made, or opened again.
#[derive(Clone, Debug)]
pub(crate) struct HybridPlan {
    /// Its file, or its folder if it wants several.
    pub(crate) path: PathBuf,
    /// Weight of values in memory.
    pub(crate) memory_bytes: u64,
    pub(crate) device_bytes: u64,
    pub(crate) value_bytes: usize,
    /// Every value is to be written, and none is asked for meanwhile.
    #[cfg_attr(not(feature = "peers"), allow(dead_code, reason = "ours is filled as it is used"))]
    pub(crate) fill: bool,
    pub(crate) seed: u64,
}

/// Where a value was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundIn {
    Memory,
    Device,
    /// It had to be loaded.
    Nowhere,
}

/// A cache in memory and on a device.
pub(crate) trait TieredCache: Send + Sync {
    /// The value of that key, loaded if need be.
    fn get_or_load(&self, key: u64, class: Class) -> FoundIn;
    /// Whether it has that key.
    fn get(&self, key: u64) -> bool;
    /// Puts a value in.
    fn insert(&self, key: u64);
    /// Waits until what is to be written is on the device.
    fn settle(&self) -> Result<(), Failure>;
    /// Waits until it knows all that the device has.
    fn wait_rebuilt(&self);
    /// Bytes written to the device so far.
    fn written_bytes(&self) -> u64;
    /// Bytes of memory that it says that its index of the device takes, if it says so.
    fn index_bytes(&self) -> Option<u64>;
}

/// A subject, with one way to set it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) config: &'static str,
    /// Which of the configurations.
    nth: usize,
}

impl Subject {
    /// All subjects, those of a name beside each other, with all that is to be tried.
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

    /// The one of that name that a child process was told to use.
    pub(crate) fn named(name: &str) -> Result<Self, Failure> {
        let found = Self::all().into_iter().find(|subject| subject.name == name);
        found.ok_or_else(|| format!("no subject `{name}`").into())
    }

    /// Makes it, or opens what it has left at its path.
    pub(crate) fn open(&self, plan: &HybridPlan) -> Result<Box<dyn TieredCache>, Failure> {
        match self.name {
            #[cfg(feature = "peers")]
            "foyer" => Ok(Box::new(foyer::Foyer::open(plan, self.nth)?)),
            _ => Ok(Box::new(forebay::Forebay::open(plan)?)),
        }
    }

    /// Bytes of a device that holds `entries` values of that size.
    pub(crate) fn device_bytes(&self, entries: u64, value_bytes: usize) -> u64 {
        let each = match self.name {
            #[cfg(feature = "peers")]
            "foyer" => foyer::entry_bytes(value_bytes),
            _ => forebay::entry_bytes(value_bytes),
        };
        // Logs, and segments that are not full.
        (entries * each * 5 / 4 + (64 << 20)).next_multiple_of(1 << 20)
    }
}

/// The value of a key, of so many bytes, eight at least.
pub(crate) fn value(key: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![key as u8; bytes.max(8)];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Panics if this is not the value of that key.
pub(crate) fn check(key: u64, value: &[u8]) {
    let found = value.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    assert!(found == Some(key), "the value of {key} is that of {found:?}");
}

/// A path of its own in a folder; what is there is removed when this goes.
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
        // Whichever it is; nothing depends on it.
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
