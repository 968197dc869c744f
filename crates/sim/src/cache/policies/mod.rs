//! The policies: Forebay's own cache, textbook policies, and the optimum.
//!
//! Keys are small numbers, so a policy keeps arrays over all keys of its trace. That makes the code
//! as short as the textbook's pseudocode, and fast. Memory use does not matter here.

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

/// A policy that does not know the future.
pub trait Policy: Sized {
    /// An empty cache of `capacity` entries, at least one, for keys below `keys`.
    fn new(capacity: usize, keys: usize) -> Self;

    /// Accesses a key. Returns true for a hit. On a miss the policy may insert the key.
    fn access(&mut self, key: u32) -> bool;

    /// Number of resident entries.
    fn resident(&self) -> usize;
}

#[cfg(test)]
mod reference_models;
#[cfg(test)]
mod tests;
