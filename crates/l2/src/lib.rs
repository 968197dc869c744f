//! A persistent second level for a cache: a log of blocks on a device, in segments that are used in turn.
//!
//! * [`HybridCache`]: a cache in memory and on a device, for programs that want nothing else;
//! * [`L2`]: the device's part alone, to be handed to a cache;
//! * [`Codec`]: how keys and values of a cache become bytes, and what may be written.
//!
//! ```
//! use forebay_io::{FileDevice, OpenOptions};
//! use forebay_l2::HybridCache;
//! use std::sync::Arc;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("cache");
//! let options = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
//! let device = Arc::new(FileDevice::open(&path, &options)?);
//! let cache = HybridCache::<u64, String>::builder(device.clone()).capacity(4 << 20).build()?;
//!
//! cache.insert(1, "what it was".to_owned())?;
//! // When this returns, the older value never comes back, not even if the machine stops now.
//! cache.insert(1, "what it is".to_owned())?;
//! let loaded = cache.get_or_load(2, || Ok::<_, std::io::Error>("read from afar".to_owned()))?;
//! assert_eq!(*loaded, "read from afar");
//! drop(loaded);
//!
//! // What is in memory only goes to the device, and is there again after a restart.
//! cache.close()?;
//! let cache = HybridCache::<u64, String>::builder(device).capacity(4 << 20).build()?;
//! cache.level().wait_rebuilt(); // It serves at once; this is for the example's sake.
//! assert_eq!(cache.get(&1).as_deref().map(String::as_str), Some("what it is"));
//! cache.remove(&1)?;
//! assert!(cache.get(&1).is_none());
//! cache.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//!
//! A *level* is a second level on one device. Its *ring* is its *segments* in the order of their use. A *batch* is
//! one sequential write: a log block, then blocks. A *record* is one line of a log block: a block, or a
//! *tombstone*, which says that older blocks of a key are not to be returned. A *place* says where a block lies. The
//! *identity* of a key is its hash, by which log and index know it.

mod codec;
mod counters;
mod device_io;
mod error;
mod forget;
mod format;
mod geometry;
mod hybrid;
mod index;
mod l2;
mod label;
mod load;
mod options;
mod rebuild;
mod record;
mod ring;
mod shared;
mod stats;
mod tunables;
mod warm_up;
mod write_queue;
mod writer;

pub use codec::{AdmissionRefusal, Codec, MAX_KEY_BYTES, MAX_NOTE_BYTES};
pub use counters::L2Counters;
pub use error::{Error, ErrorKind, Result};
pub use hybrid::{
    HybridBuilder, HybridCache, HybridMemory, HybridStats, InsertError, L2Key, L2Value,
};
pub use l2::L2;
pub use label::{LabelInfo, read_label};
pub use options::L2Options;
pub use rebuild::RebuildStats;
pub use shared::Health;
pub use stats::L2Stats;
pub use tunables::L2Tunables;
pub use warm_up::{WarmUpOutcome, WarmUpStatus};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
