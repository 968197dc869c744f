//! A copy-on-write storage pool.

mod block_cache;
mod dataset;
mod devices;
mod error;
pub mod format;
mod handles;
mod log;
mod object;
mod objset;
mod pool;
mod prefetch;
mod space;
mod store;
mod sync;
mod tunables;
mod tx;
mod txg;
mod zap;

pub use block_cache::{BlockCache, BlockCacheOptions, BlockKey};
pub use dataset::{DatasetSettings, RECORD_BYTES_MAX, RECORD_BYTES_MIN};
pub use devices::open::{HostId, Opened, open_path};
pub use error::{Error, ErrorKind, Result};
pub use handles::{Dataset, Directory, Object, ObjectInfo};
pub use log::{LogCounters, LogTunables};
pub use pool::{
    CheckProgress, CheckReport, CreateOptions, Durations, ImportOptions, Pool, PoolStats,
    ScrubProgress, ScrubReport,
};
pub use prefetch::{PrefetchCounters, PrefetchTunables};
pub use space::SpaceCounters;
pub use store::counters::StoreCounters;
pub use tunables::{PoolTunables, StoreTunables};
pub use tx::Transaction;
pub use txg::{TxgCounters, TxgTunables};
pub use zap::{Cookie, Entry, Value, ZapStats};

/// What the model checks in `tests/model` look at. No stable interface.
#[doc(hidden)]
pub mod model {
    #[cfg(forebay_model)]
    pub use crate::log::model::ModelLog;
    pub use crate::txg::{Hold, TxgCounters, TxgTunables, Txgs, Wake};
}
