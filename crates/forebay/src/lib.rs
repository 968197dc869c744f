//! Caches that scale with cores: in memory, or in memory and on an SSD.
//!
//! A hit takes no lock and moves no list entry. The policy adapts between recency and frequency, so
//! a scan cannot evict the working set. However many threads ask for a value, it is loaded once.
//! The cache on an SSD serves hits within a second of a restart, and never returns a value that
//! was removed or overwritten, not even after a crash.
//!
//! | cache | for |
//! |---|---|
//! | [`KeyedCache`] | any keys, in memory; entries can expire |
//! | [`Cache`] | blocks under small keys, in memory |
//! | [`HybridCache`] | the same in memory and on a device, where values survive the program |
//!
//! ```
//! use std::time::Duration;
//! use forebay::KeyedCache;
//!
//! let pages = KeyedCache::<String, Vec<u8>>::builder()
//!     .capacity(64 << 20)
//!     .weigher(|name, page| (name.len() + page.len()) as u64)
//!     .time_to_live(Duration::from_secs(60))
//!     .build()?;
//! pages.insert("index".to_owned(), b"<html>".to_vec())?;
//! // A reference borrows the value: nothing is cloned.
//! assert_eq!(pages.get("index").map(|page| page.len()), Some(6));
//!
//! // One load, however many threads ask at once. `get_or_load_async` takes a future.
//! let page = pages.get_or_load("about".to_owned(), || {
//!     Ok::<_, std::io::Error>(b"about".to_vec()) // render it here
//! })?;
//! assert_eq!(page.len(), 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to go on
//!
//! - [What each cache can do](guide::operations), in a table.
//! - Guides for users of other caches: [moka](guide::from_moka),
//!   [quick_cache](guide::from_quick_cache), [foyer](guide::from_foyer). Each has the code of both,
//!   one below the other, and what differs.
//! - Examples in the repository, below `crates/forebay/examples`: `web_service`, `sessions`,
//!   `storage_engine`, `hybrid_restart`, `artifact_cache`, `lsm_block_cache`.
//! - [`cache`], [`l2`], [`io`] and [`base`]: all items of the parts, with their documentation. The
//!   names at the root are those that most programs need. The errors of the hybrid cache are
//!   [`l2::Error`], its devices are in [`io`], and clocks in [`base::clock`].
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `hybrid` | yes | [`HybridCache`], and the modules [`l2`] and [`io`] |
//! | `derive` | yes | `#[derive(Key)]`, with `#[key(crate = forebay::cache)]` below it |
//! | `insight` | yes | miss-ratio curves ([`Cache::curve`]) and causes of misses ([`Cache::explain`]) |
//! | `serde` | no | `Postcard`: values on a device of any type that serde encodes |
//! | `bytes` | no | values on a device of the type `bytes::Bytes` |
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
    Attributes, Begin, BuildError, Builder, Cache, Cause, Class, CloseTimeout, Computed, Delivery,
    Entry, Equivalent, Evicted, Hint, InFlight, Iter, Key, KeyedBuilder, KeyedCache, KeyedEntry,
    KeyedIter, KeyedOwnedRef, KeyedRef, LoadError, LoadGuard, Op, OwnedRef, Owner, OwnerCaching,
    OwnerError, OwnerId, Present, Reclaim, Ref, Refusal, Refused, SeededState, SlotHint, Stats,
    Usage,
};
#[cfg(feature = "insight")]
pub use forebay_cache::{Curve, CurvePoint, Explanation};
#[cfg(feature = "serde")]
pub use forebay_l2::Postcard;
#[cfg(feature = "hybrid")]
pub use forebay_l2::{
    Expiring, HybridBuilder, HybridCache, HybridEntry, HybridMemory, HybridStats, InsertError,
    L2Key, L2Value, Lifetime,
};

pub mod guide;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
