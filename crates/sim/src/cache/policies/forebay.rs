//! Forebay's own cache: `forebay_cache::Cache` with empty values of weight one.
//!
//! The cache's public builder makes a run exact and repeatable:
//!
//! * `Reclaim::Inline`: the inserting thread evicts as much as it inserts, and the cache has no
//!   thread of its own. With one thread, no insert exceeds the capacity and none evicts too much.
//! * `capacity` counts weights only, not headers, index and ghosts.
//! * A fixed seed for the hash and the evictor, and a stopped clock.
//!
//! `sublists` is 1, so that nothing depends on the number of CPUs. It changes nothing else: one
//! thread adds to one sublist of each list in any case. All other settings are the defaults.

use forebay_base::clock::ManualClock;
use forebay_base::sync::Arc;
use forebay_cache::{Attributes, BuildError, Builder, Cache, Reclaim, Refusal};

/// A cache of `capacity` entries to simulate.
pub(in super::super) fn builder(capacity: usize, seed: u64) -> Builder<u64, ()> {
    Cache::builder()
        .capacity(capacity as u64)
        .weigher(|_, ()| 1)
        .reclaim(Reclaim::Inline)
        .seed(seed)
        .clock(Arc::new(ManualClock::new()))
        .tunable("sublists", "1")
}

/// The cache under simulation.
pub struct Forebay {
    cache: Cache<u64, ()>,
}

impl Forebay {
    /// An empty cache of `capacity` entries.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(capacity: usize, seed: u64) -> Result<Self, BuildError> {
        Ok(Self { cache: builder(capacity, seed).build()? })
    }

    /// Accesses a key, and inserts it on a miss. Returns true for a hit.
    ///
    /// # Errors
    /// If the cache refuses the entry because the system has no memory.
    #[inline]
    pub fn access(&mut self, key: u64, attributes: Attributes) -> Result<bool, Refusal> {
        if self.cache.get(&key).is_some() {
            return Ok(true);
        }
        match self.cache.insert_with(key, (), attributes) {
            Ok(()) => Ok(false),
            Err(refused) => Err(refused.reason),
        }
    }

    /// Number of resident entries.
    pub fn resident(&self) -> usize {
        self.cache.stats().resident_blocks() as usize
    }

    /// The cache, for its counters and audits.
    pub fn cache(&self) -> &Cache<u64, ()> {
        &self.cache
    }
}
