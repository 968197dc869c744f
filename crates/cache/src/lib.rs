//! An adaptive replacement cache whose hits take no lock.
//!
//! [`Cache<K, V>`](Cache) maps small keys to values with a weight in bytes. It adapts between
//! recency and frequency, and between metadata and data. It loads each block once, however many
//! threads request it. It keeps to a capacity, or to a hard bound on all memory that it uses.
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
//! // One load per block, however many threads request it.
//! let block = cache.get_or_load_with(2, Attributes::METADATA, || {
//!     Ok::<_, std::io::Error>(vec![2; 8192]) // read it from a disk here
//! })?;
//! assert_eq!(block[0], 2);
//!
//! println!("{}", cache.stats());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`KeyedCache`] is a cache for keys of any type, such as `String`, whose entries can expire.
//!
//! # Guarantees
//!
//! * A hit takes no lock, moves no list entry, and writes to no shared cache line except the
//!   block's header.
//! * A pinned block is never evicted.
//! * The thread that releases the last pin drops the value, or the evictor does. This may happen
//!   under locks of the cache. So the drop of `V` must not block and must not call the cache.
//! * A cache full of pinned blocks returns a new block uncached, and counts it. With the tunable
//!   `overflow_wait_ms`, inserters first wait for capacity, in FIFO order and for that time.
//! * A listener ([`Builder::on_evicted`]) misses no block, unless it is told that it may.
//! * Errors are never cached. All waiters of a load get its error.
//!
//! # Modules
//!
//! | module | contains |
//! |---|---|
//! | `cache`, `builder`, `lookup`, `insert` | the interface, hits, inserts and removals |
//! | `operations`, `entry`, `weight` | visits, conditional changes, changes of weights |
//! | `header` | block descriptors, the protocol of pins, their memory |
//! | `index` | from hashes to headers and ghosts |
//! | `lists` | the order of blocks and ghosts |
//! | `policy` | which list gives up blocks; admission; miniature simulations |
//! | `curve` | miss-ratio curves (feature `insight`) |
//! | `evict` | the evictor, the reclaimer, sweeps |
//! | `capacity` | credits, waiting inserters, targets, overhead |
//! | `load` | load guards and single flight |
//! | `keyed` | the cache for keys of any type; expiry |
//! | `secondary` | the interface of L2, and warm-up |
//! | `recorder` | the flight recorder: why blocks were missed |
//! | `stats`, `counters`, `tunables` | observation and configuration |
//!
//! `docs/locking.md` has the locks and the proofs.

mod attributes;
#[cfg(feature = "bench_internals")]
pub mod bench_internals;
mod builder;
mod cache;
mod callbacks;
mod capacity;
pub mod counters;
#[cfg(feature = "insight")]
mod curve;
mod entry;
mod error;
mod evict;
mod frequency;
mod guard;
mod header;
mod index;
mod inner;
mod insert;
mod insight_budget;
mod key;
mod key_calls;
mod key_numbers;
mod keyed;
mod lists;
mod load;
mod lookup;
#[cfg(forebay_model)]
#[doc(hidden)]
pub mod model;
mod operations;
mod owner;
mod policy;
#[cfg_attr(not(feature = "insight"), path = "recorder/off.rs")]
mod recorder;
mod sample;
mod secondary;
mod stats;
pub mod tunables;
mod weight;

pub use attributes::{Attributes, Cause, Class, Hint};
pub use builder::Builder;
pub use cache::{Cache, Owner};
pub use callbacks::{Delivery, Evicted};
pub use capacity::overhead::Overhead;
#[cfg(feature = "insight")]
pub use curve::report::{Curve, CurvePoint, OwnerCurve, SecondaryCurve};
pub use entry::Entry;
// In the signatures of `KeyedCache`.
pub use equivalent::Equivalent;
pub use error::{BuildError, CloseTimeout, OwnerError, Refusal, Refused};
pub use evict::expire::Expiry;
pub use guard::{OwnedRef, Ref, SlotHint};
pub use index::IndexStats;
pub use inner::Reclaim;
pub use key::{Key, OwnerId};
pub use keyed::KeyedCache;
pub use keyed::builder::KeyedBuilder;
pub use keyed::compute::{Computed, Op};
pub use keyed::entry::KeyedEntry;
pub use keyed::guard::{KeyedOwnedRef, KeyedRef};
pub use keyed::hasher::SeededState;
pub use keyed::iter::KeyedIter;
pub use load::error::LoadError;
pub use load::load_guard::{Begin, InFlight, LoadFuture, LoadGuard, Present};
pub use operations::Iter;
pub use owner::OwnerCaching;
#[cfg(feature = "insight")]
pub use recorder::{
    BlockGroup, Explanation, MissCause, MissEvent, MissGroup, Remedy, SecondaryFate,
};
pub use secondary::change::Change;
pub use secondary::warm_up::{WarmUp, WarmUpRefusal};
pub use secondary::{Candidate, Holding, SecondaryCache, Writing};
pub use stats::{StateStats, Stats, Usage};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
