//! An adaptive replacement cache whose hits take no lock.
//!
//! [`Cache<K, V>`](Cache) holds values with a weight in bytes under small, copied keys. It adapts between
//! recency and frequency, by what small simulations say, and between two classes of block, metadata and data; it loads each
//! block once however many ask for it; and it keeps to a capacity, or to a hard bound on everything
//! that it uses.
//!
//! ```
//! use forebay_cache::{Attributes, Cache};
//!
//! let cache = Cache::<u64, Vec<u8>>::builder()
//!     .capacity(64 << 20)
//!     .weigher(|_key, block| block.len() as u64)
//!     .build()?;
//!
//! // A lookup returns a pinned reference that borrows the cache.
//! cache.insert(1, vec![0; 8192])?;
//! assert_eq!(cache.get(&1).map(|block| block.len()), Some(8192));
//!
//! // One load a block, however many threads ask.
//! let block = cache.get_or_load(2, 8192, Attributes::METADATA, || {
//!     Ok::<_, std::io::Error>(vec![2; 8192]) // read it from a disk here
//! })?;
//! assert_eq!(block[0], 2);
//!
//! println!("{}", cache.stats());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! * A hit takes no lock, moves nothing, and writes to no shared line but the block's own header.
//! * A value is dropped the moment the last pin goes, by whoever drops that pin, or by the evictor. So a
//!   drop of `V` must not block, and must not call the cache: it may run under locks of the cache.
//! * A block that is pinned is never evicted.
//! * Past the overflow limit inserters wait for room, first come, first served, for a bounded time;
//!   who finds none gets the block back, uncached and counted.
//! * An error is never cached; it reaches everyone who waits for the load.
//!
//! # Where things are
//!
//! `header` has the protocol of pins, `index` finds headers, `lists` keeps order, `policy` and `shadow`
//! say who goes, `evict`, `contest` and `reclaim` make them go, `room` bounds how much there is,
//! `begin`, `load`, `guard` and `flight` bring blocks in, `owner`, `second` and `spare` serve pools and second levels.
//! `docs/locking.md` has the locks and the proofs.

mod attributes;
#[cfg(feature = "bench_internals")]
pub mod bench_internals;
mod builder;
mod cache;
mod callbacks;
mod capacity;
pub mod counters;
mod error;
mod evict;
mod frequency;
mod guard;
mod header;
mod index;
mod inner;
mod insert;
mod key;
mod lists;
mod load;
mod lookup;
#[cfg(forebay_model)]
#[doc(hidden)]
pub mod model;
mod owner;
mod policy;
mod secondary;
mod stats;
pub mod tunables;

pub use attributes::{Attributes, Cause, Class, Hint};
pub use builder::Builder;
pub use cache::{Cache, Owner};
pub use callbacks::Evicted;
pub use capacity::overhead::Overhead;
pub use error::{BuildError, LoadError, OwnerError, Refusal, Refused};
pub use guard::{OwnedRef, Ref, SlotHint};
pub use index::IndexStats;
pub use inner::Reclaim;
pub use key::{Key, OwnerId};
pub use load::load_guard::{Begin, InFlight, LoadFuture, LoadGuard};
pub use owner::OwnerCaching;
pub use secondary::warm_up::{WarmUp, WarmUpRefusal};
pub use secondary::{Candidate, SecondaryCache, Writing};
pub use stats::{StateStats, Stats};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
