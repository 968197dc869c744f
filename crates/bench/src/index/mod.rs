//! Indexes that map a block's key to its slot, to compare growth and lookup.

#[cfg(feature = "bench_internals")]
mod forebay;
mod tables;

#[cfg(feature = "bench_internals")]
pub(crate) use forebay::ForebayIndex;
pub(crate) use tables::{FixedChains, HashTables};

/// An index with the locks that many threads would need, used by one thread.
pub(crate) trait Table {
    /// Adds a missing key.
    fn insert(&mut self, key: u64, slot: u64);
    /// The slot of a key.
    fn lookup(&self, key: u64) -> Option<u64>;
    /// Memory of the index without headers, but with its links in them.
    fn bytes(&self) -> u64;
    /// Length of the longest chain, if there are chains.
    fn longest_chain(&self) -> Option<u64>;
}
