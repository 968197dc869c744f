//! Indexes that map a block's key to its place, for comparison of growth and lookup.

#[cfg(feature = "bench_internals")]
mod forebay;
mod tables;

#[cfg(feature = "bench_internals")]
pub(crate) use forebay::ForebayIndex;
pub(crate) use tables::{FixedChains, HashTables};

/// An index as `index` measures it: one thread, but with the locks that many would need.
pub(crate) trait Table {
    /// Adds a key that is not there.
    fn insert(&mut self, key: u64, slot: u64);
    /// The place of a key.
    fn lookup(&self, key: u64) -> Option<u64>;
    /// Memory of the index itself: without headers, with what they must hold for its sake.
    fn bytes(&self) -> u64;
    /// Entries on the longest chain, where there are chains.
    fn longest_chain(&self) -> Option<u64>;
}
