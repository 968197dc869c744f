//! Objects: numbered sequences of bytes in records, with attributes.
//!
//! [`Node`] is an open object in memory. It knows where its blocks are (`tree`), what two transaction groups have
//! changed of it (`pending`), and reads, writes and syncs it (`read`, `write`, `sync`).
//!
//! What is written waits in memory, a buffer a record and txg, until the txg syncs. A record that two txgs
//! change has two buffers, since the first is being written while the second changes. Nothing is read from a
//! device while an object's lock is held: who needs a block that is not in memory lets go, fetches, and starts over.

mod fetch;
mod leaves;
mod node;
mod paths;
mod pending;
mod pins;
mod read;
mod readahead;
mod seek;
mod sync_blocks;
pub(crate) mod tree;
mod write;

pub(crate) use leaves::Leaves;
pub use node::ObjectUsage;
pub(crate) use node::{DataFields, Node};
pub(crate) use tree::SeekTarget;

/// Times that an operation starts over because what it had fetched was no longer the newest, before it gives up.
pub(crate) const RETRIES_MAX: usize = 1000;
