//! Caches that scale with cores: in memory, or in memory and on an SSD.
//!
//! A hit takes no lock and moves no list entry. The policy adapts between recency and frequency, so
//! a scan cannot evict the working set. However many threads ask for a value, it is loaded once.
//! The cache on an SSD is warm again within a second of a restart, and never returns a value that
//! was removed or overwritten, not even after a crash.
//!
//! | cache | for |
//! |---|---|
//! | [`Cache`] | blocks and other values under small keys, in memory |
//! | [`HybridCache`] | the same in memory and on a device, where values survive the program |
//!
//! ```
//! use forebay::Cache;
//!
//! let cache = Cache::<u64, Vec<u8>>::builder()
//!     .capacity(64 << 20) // the unit is the weigher's, here bytes
//!     .weigher(|_key, value| value.len() as u64)
//!     .build()?;
//! cache.insert(1, vec![0; 8192])?;
//! // A reference borrows the value: nothing is cloned.
//! assert_eq!(cache.get(&1).map(|value| value.len()), Some(8192));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to go on
//!
//! - Guides for users of other caches: [moka](guide::from_moka),
//!   [quick_cache](guide::from_quick_cache), [foyer](guide::from_foyer). Each has the code of both,
//!   one below the other, and what differs.
//! - Examples in the repository, below `crates/forebay/examples`: `web_service`, `storage_engine`,
//!   `hybrid_restart`.
//! - [`cache`], [`l2`], [`io`] and [`base`]: all items of the parts, with their documentation. The
//!   names at the root are those that most programs need.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `hybrid` | yes | [`HybridCache`], and the modules [`l2`] and [`io`] |
//! | `insight` | yes | miss-ratio curves ([`Cache::curve`]) and causes of misses ([`Cache::explain`]) |
//! | `counting` | no | counts of lock acquisitions and failed compare-and-swaps, see [`base::sync`] |
//!
//! Without `hybrid` the crate does no I/O. No feature brings an async runtime: the asynchronous
//! functions work under any executor.
//!
//! # Versions
//!
//! The crate needs Linux and Rust 1.90. It follows [semantic versioning](https://semver.org): until
//! 1.0 only a new 0.x may break programs, a new 0.x.y does not. This holds for the modules
//! [`cache`], [`l2`], [`io`] and [`base`], too, except for items whose documentation calls them not
//! stable. A newer minimum of Rust comes with a new 0.x only. So does a new format on devices: a
//! device of another format is refused and not changed, and `recreate` empties it.

pub use forebay_base as base;
pub use forebay_cache as cache;
#[cfg(feature = "hybrid")]
pub use forebay_io as io;
#[cfg(feature = "hybrid")]
pub use forebay_l2 as l2;

pub use forebay_cache::{
    Attributes, BuildError, Builder, Cache, Cause, Class, Evicted, Hint, Key, LoadError, OwnedRef,
    Ref, Refusal, Refused, Stats,
};
#[cfg(feature = "hybrid")]
pub use forebay_l2::{HybridBuilder, HybridCache, HybridStats, InsertError, L2Key, L2Value};

pub mod guide;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
