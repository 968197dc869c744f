//! Upper bounds of the space that changes need on devices, charged before the changes are made. A
//! txg then never runs out of space when it syncs, and writers are throttled by the bytes that must
//! be written. Indirect blocks count less for that: see `txg/throttle.rs`.
//!
//! Blocks are counted uncompressed, in all copies, together with the indirect blocks that change
//! because of them. The blocks that they replace are not subtracted: the same txg frees them, but
//! the space is reusable only three txgs later.

use crate::format::ObjectKind;

use super::node::Node;
use super::tree::INDIRECT_BYTES;

impl Node {
    /// Bytes for `count` indirect blocks.
    pub(super) fn cost_of_indirect(&self, count: usize) -> u64 {
        let (_, metadata) = self.owner.copies_at_most();
        (count * INDIRECT_BYTES) as u64 * u64::from(metadata)
    }

    /// Bytes for a level-0 block of `bytes` bytes.
    pub(super) fn cost_of_block(&self, bytes: u64) -> u64 {
        let (data, metadata) = self.owner.copies_at_most();
        let copies = if self.kind == ObjectKind::Data { data } else { metadata };
        bytes * u64::from(copies)
    }
}
