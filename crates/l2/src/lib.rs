//! A persistent secondary cache (L2): a log of blocks in a ring of segments on a device.
//!
//! - [`HybridCache`]: a cache in memory and on a device;
//! - [`L2`]: the device side alone, for a [`forebay_cache::Cache`];
//! - [`Codec`]: how keys and values become bytes, and which blocks may be written.
//!
//! ```
//! use forebay_l2::HybridCache;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("cache");
//! let cache = HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
//!
//! cache.insert(1, "old".to_owned())?;
//! // After this call returns, the old value is gone, also after a crash.
//! cache.insert(1, "new".to_owned())?;
//! let loaded = cache.get_or_load(2, || Ok::<_, std::io::Error>("loaded".to_owned()))?;
//! assert_eq!(*loaded, "loaded");
//! drop(loaded);
//!
//! // Writes values that are in memory only. They survive a restart.
//! cache.close()?;
//! drop(cache);
//! let cache = HybridCache::<u64, String>::open(&path, 64 << 20, 4 << 20)?;
//! cache.l2().wait_rebuilt(); // Not required: the cache serves at once.
//! assert_eq!(cache.get(&1).as_deref().map(String::as_str), Some("new"));
//! cache.remove(&1)?;
//! assert!(cache.get(&1).is_none());
//! cache.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Terms
//!
//! The *ring* is the L2's *segments* in the order of their use. Each use of a segment has a
//! *sequence number*. A *batch* is one sequential write: a log block, then blocks. A log block
//! holds *records*, one for each block or *tombstone*. A tombstone invalidates older blocks of a
//! key. A *block address* says where a block lies. The *key hash* identifies a key in the log and
//! in the index.
//!
//! # Guarantees
//!
//! - A loaded block is published only if its checksum, its segment's sequence number and its key
//!   all match. All else is a miss.
//! - A written block becomes live in one step: the writer checks the *retired* mark in the header
//!   of the cache's block and changes the index record under one lock. A block that the cache
//!   removed or overwrote is never found.
//! - A removal of a key that the device may hold returns after the flush of the batch that holds
//!   its tombstone.

mod codec;
mod counters;
mod device_io;
mod error;
mod forget;
mod format;
mod geometry;
mod groups;
mod hybrid;
mod index;
mod l2;
mod label;
mod load;
mod options;
mod promise;
mod rebuild;
mod record;
mod ring;
mod shared;
mod stats;
mod tunables;
mod warm_up;
mod write_queue;
mod writer;

// What a user of `HybridCache` needs of the crates below.
pub use forebay_cache::{
    Attributes, Cause, Class, Delivery, Evicted, Hint, Key, LoadError, OwnedRef, OwnerId, Ref,
    Refusal, Refused, Stats,
};
pub use forebay_io::{Device, FileDevice, MemoryDevice, MemoryOptions, OpenError, OpenOptions};

pub use codec::{AdmissionRefusal, Codec, MAX_KEY_BYTES, MAX_NOTE_BYTES};
pub use counters::L2Counters;
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "serde")]
pub use hybrid::Postcard;
pub use hybrid::{
    Expiring, HybridBuilder, HybridCache, HybridEntry, HybridMemory, HybridStats, InsertError,
    L2Key, L2Value, Lifetime,
};
pub use l2::L2;
pub use label::{LabelInfo, read_label};
pub use options::L2Options;
pub use rebuild::RebuildStats;
pub use shared::Health;
pub use stats::L2Stats;
pub use tunables::L2Tunables;
pub use warm_up::{WarmUpOutcome, WarmUpStatus};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
