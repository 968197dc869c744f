//! Objects: numbered sequences of bytes in records, with attributes.
//!
//! [`Node`] is an open object in memory. It finds its blocks through the block tree (`tree`), keeps
//! the changes of up to two transaction groups (`pending`), and reads (`read`), writes (`write`)
//! and syncs (`sync_blocks`) its content. Its objset is above this module: a node reaches it as its
//! [`NodeOwner`].
//!
//! # Invariants
//!
//! - Written data stays in memory, in one buffer per record and txg, until the txg has synced. A
//!   record that two txgs change has two buffers: one is being written out while the other changes.
//!
//! # Locking
//!
//! No thread reads from a device while it holds the state lock of an object. An operation that
//! needs a block that is not in memory releases the lock, fetches the block and starts over.

mod cost;
mod fetch;
mod leaves;
mod node;
mod owner;
mod paths;
mod pending;
mod pins;
mod preallocate;
mod read;
mod readahead;
mod seek;
mod sync_blocks;
pub(crate) mod tree;
mod write;

pub(crate) use leaves::Leaves;
pub use node::ObjectUsage;
pub(crate) use node::{DataFields, Node};
pub(crate) use owner::{NodeOwner, ObjectIo};
pub(crate) use preallocate::PREALLOCATE_READS;
pub(crate) use tree::SeekTarget;

/// How often an operation starts over because the block it fetched was replaced meanwhile.
pub(crate) const RETRIES_MAX: usize = 1000;
