//! The caches of Forebay for programs in other languages. Keys and values are byte strings.
//!
//! [`ByteCache`] and [`HybridByteCache`] are the caches, for bindings that are written in Rust.
//! [`abi`] has the same as functions of C, which `include/forebay.h` declares.

pub mod abi;
mod hybrid;
mod memory;

pub use hybrid::{HybridByteCache, HybridOptions, HybridValue};
pub use memory::{ByteCache, CacheOptions, CacheStats, CacheValue};
