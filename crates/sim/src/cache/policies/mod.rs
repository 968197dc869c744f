//! The policies: Forebay's own cache, the textbook's, and the optimum.
//!
//! A policy keeps arrays over all keys of its trace, which are small numbers: the code is then as short as the
//! textbook's pseudocode, and quick. Memory is of no concern here.

mod lists;

pub mod arc;
pub mod car;
pub mod clock;
pub mod fifo;
pub mod forebay;
pub mod lfu;
pub mod lirs;
pub mod lru;
pub mod opt;
pub mod s3_fifo;
pub mod sieve;
pub mod two_q;
pub mod w_tiny_lfu;

/// A policy that knows nothing but the accesses so far.
pub trait Policy: Sized {
    /// An empty cache of `capacity` entries, at least one, for keys below `keys`.
    fn new(capacity: usize, keys: usize) -> Self;

    /// An access. True if the key was there; if not, it is brought in, if the policy wishes.
    fn access(&mut self, key: u32) -> bool;

    /// Entries that are there.
    fn resident(&self) -> usize;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twins;
