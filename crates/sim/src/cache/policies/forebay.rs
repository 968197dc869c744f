//! Forebay's own cache, the real one: `forebay_cache::Cache` with values of no bytes and a weight of one.
//!
//! What makes a run exact and repeatable is part of the cache's public builder:
//!
//! * `Reclaim::Inline`: the inserting thread evicts what it displaces, one entry for one, and no thread of the cache runs
//!   beside it. With one thread that is exact: no insert goes past the capacity, none evicts more than it needs.
//! * `capacity` counts weights alone; headers, index and ghosts come on top, and take no entry away.
//! * A seed for the hash and the evictor's draws, and a clock that stands.
//!
//! `sublists` is 1 so that nothing depends on the number of processors. It changes nothing else: one thread adds to one
//! sublist of each list, however many there are. Everything else is as users have it.

use forebay_base::clock::ManualClock;
use forebay_base::sync::Arc;
use forebay_cache::{Attributes, BuildError, Cache, Reclaim, Refusal};

/// The cache, and what it does on an access.
pub struct Forebay {
    cache: Cache<u64, ()>,
}

impl Forebay {
    /// An empty cache of `capacity` entries.
    ///
    /// # Errors
    /// When the system gives no memory for it.
    pub fn new(capacity: usize, seed: u64) -> Result<Self, BuildError> {
        let cache = Cache::builder()
            .capacity(capacity as u64)
            .weigher(|_, ()| 1)
            .reclaim(Reclaim::Inline)
            .seed(seed)
            .clock(Arc::new(ManualClock::new()))
            .tunable("sublists", "1")
            .build()?;
        Ok(Self { cache })
    }

    /// An access. True if the key was there; if not, it is inserted.
    ///
    /// # Errors
    /// When the cache refuses the entry: the system is out of memory.
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

    /// Entries that are there.
    pub fn resident(&self) -> usize {
        self.cache.stats().resident_blocks() as usize
    }

    /// The cache itself, to look at its counters.
    pub fn cache(&self) -> &Cache<u64, ()> {
        &self.cache
    }
}
