//! A copy-on-write storage pool.
//!
//! * [`Pool`]: a set of devices; can be created, imported, exported, checked and scrubbed.
//! * [`Dataset`]: a named set of objects with settings.
//! * [`Object`]: bytes in records. [`Directory`]: names of up to 255 bytes, each with a short
//!   value.
//! * [`Transaction`]: changes that become durable together.
//! * [`Wait`], [`HandleView`]: calls that fail instead of waiting.
//! * [`trace`]: records of the accesses to blocks.
//! * [`BlockCache`]: block memory that several pools can share.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use forebay_io::OpenOptions;
//! use forebay_pool::{
//!     BlockCache, BlockCacheOptions, CreateOptions, DatasetSettings, ImportOptions, Pool,
//!     open_path,
//! };
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = &folder.path().join("tank.img");
//! // One cache for all pools of a process; its bound covers dirty data as well.
//! let cache = BlockCache::new(BlockCacheOptions { bytes: 64 << 20, ..Default::default() })?;
//!
//! let file = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
//! let options = CreateOptions::new("tank", cache.clone());
//! let pool = Pool::create(vec![open_path(path, &file)?], &options)?;
//! let data = pool.create_dataset("data", &DatasetSettings::default())?;
//!
//! // All changes of a transaction become durable together.
//! let tx = pool.begin()?;
//! let top = data.create_directory(&tx, &[])?;
//! let number = data.create_object(&tx, b"attributes are yours")?;
//! data.object(number)?.write(&tx, 0, b"content")?;
//! data.directory(top)?.insert(&tx, b"name", &number.to_le_bytes())?;
//! drop(tx);
//! data.fsync(number)?; // The intent log makes it durable.
//! drop(data);
//! pool.export()?;
//!
//! let devices = vec![open_path(path, &OpenOptions::default())?];
//! let pool = Pool::import(devices, &ImportOptions::new(cache))?;
//! let data = pool.dataset("data")?;
//! let value = data.directory(top)?.lookup(b"name")?.expect("it was inserted");
//! assert_eq!(*value, number.to_le_bytes());
//! let mut content = [0; 7];
//! data.object(number)?.read(0, &mut content)?;
//! assert_eq!(&content, b"content");
//!
//! let report = pool.check(&mut |_| ControlFlow::Continue(()))?;
//! assert!(report.is_clean(), "{report}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - Blocks are never overwritten in place. At any instant the devices hold a complete pool: that
//!   of the newest durable transaction group.
//! - Nothing is parsed before its checksum has been verified. Parsed fields are still checked.
//! - Only the sync thread allocates, frees and writes blocks. The intent log's ring is the
//!   exception.
//!
//! # Locking
//!
//! `docs/locking.md` lists every lock and the lock order. Reading and changing objects never waits
//! for a transaction group. Beginning a transaction may wait, so a thread holds at most one
//! transaction.
//!
//! # What it does not do
//!
//! The pool does not know POSIX. It has no snapshots or volumes. It runs on Linux only.
//! `docs/format.md` describes the on-disk format.

mod block_cache;
mod block_key;
mod block_label;
mod dataset;
mod devices;
mod error;
mod error_log;
mod events;
pub mod format;
pub mod inspect;
mod l2;
mod lease;
mod log;
mod object;
mod objset;
mod open;
mod pool;
#[cfg(feature = "testing")]
mod power_cut;
mod readahead;
mod reservation;
mod space;
mod store;
mod sync_context;
mod time;
pub mod trace;
mod tunables;
mod tx;
mod txg;
mod wait;
mod zap;

pub use block_cache::{BlockCache, BlockCacheOptions};
pub use block_key::BlockKey;
pub use block_label::BlockLabel;
pub use dataset::{DatasetSettings, RECORD_BYTES_MAX, RECORD_BYTES_MIN};
pub use devices::create::NewVdev;
pub use devices::vdev::LeafState;
pub use error::{Error, ErrorKind, Result};
pub use events::{EventCounters, EventKind, EventLog, Followed, PoolEvent};
pub use forebay_l2::L2Counters;
pub use format::label::MIN_DEVICE_BYTES;
pub use l2::{L2Device, L2DeviceState, L2DeviceStats, L2Rebuild};
pub use log::{LogCounters, LogTunables};
pub use object::ObjectUsage;
pub use open::{HostId, Opened, has_label, open_new_path, open_path};
pub use pool::{
    AttachOptions, CheckProgress, CheckReport, CounterGroup, CreateOptions, DamageReport,
    DamagedTree, Dataset, Directory, Durations, FollowedPool, GivesUp, HandleView, HealthState,
    ImportOptions, LabelInfo, LiveRanges, LoggedDamage, Object, ObjectInfo, Pool, PoolDevice,
    PoolHealth, PoolHistograms, PoolStats, PoolUsage, PoolVdev, ResilverStatus, ScrubCounters,
    ScrubProgress, ScrubReport, ScrubStatus, ScrubTunables, TrimCounters, TrimProgress, TrimReport,
    TrimTunables, TxgHistoryInfo, TxgPhase, TxgRecord, UnreachableBlocks, destroy, read_label,
};
pub use readahead::{PrefetchCounters, PrefetchTunables};
pub use space::SpaceCounters;
pub use store::counters::StoreCounters;
pub use time::utc;
pub use trace::TraceSession;
pub use tunables::{
    HeartbeatTunables, L2DeviceTunables, OperationTunables, PoolTunables, StoreTunables,
};
pub use tx::Transaction;
pub use txg::{DevicesWait, Suspension, TxgCounters, TxgTunables};
pub use wait::Wait;
pub use zap::{Cookie, Entry, LeavesByPointers, Value, ZapCounters, ZapStats, ZapTunables};

/// Protocols that the model checks in `tests/model` run. Not a stable interface.
#[doc(hidden)]
pub mod model {
    #[cfg(forebay_model)]
    pub use crate::log::model::ModelLog;
    pub use crate::txg::{Hold, TxgCounters, TxgTunables, Txgs, Wake};
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
