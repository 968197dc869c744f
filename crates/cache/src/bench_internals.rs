//! The index alone, for `forebay-bench index`. Not a stable interface.

use crate::index::line::Slot;
use crate::index::{Index, Visit};

pub use crate::index::IndexStats;

/// The cache's index without headers. Numbers stand for headers' addresses.
pub struct BareIndex(Index);

impl Default for BareIndex {
    fn default() -> Self {
        Self(Index::new())
    }
}

impl BareIndex {
    /// Adds an entry. `hash_of` returns the hash of a number that was added before. False if there
    /// is no memory to grow.
    pub fn insert(&self, hash: u64, number: usize, hash_of: impl Fn(usize) -> u64) -> bool {
        let address = |number: usize| (number + 1) * 64;
        let slot = Slot::resident(hash, address(number));
        self.0.lock(hash).insert(slot, &|address| hash_of(address / 64 - 1)).is_ok()
    }

    /// The number of this hash for which `is_it` is true. Takes no lock.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(usize) -> bool) -> Option<usize> {
        self.0.find(hash, |address| {
            let number = address / 64 - 1;
            if is_it(number) { Visit::Found(number) } else { Visit::Missed(address as u64) }
        })
    }

    /// Size and quality of the index.
    pub fn stats(&self) -> IndexStats {
        self.0.stats()
    }
}
