//! Upper bounds of the space that changes need on devices, charged before the changes are made. A
//! txg then never runs out of space when it syncs, and writers are throttled by the bytes that must
//! be written.
//!
//! Blocks are counted uncompressed, in all copies, together with the indirect blocks that change
//! because of them. The blocks that they replace are not subtracted: the same txg frees them, but
//! the space is reusable only two txgs later.

use crate::format::{DNODE_BLOCK_BYTES, ObjectKind};
use crate::object::tree::INDIRECT_BYTES;

use super::Objset;

impl Objset {
    fn metadata(&self, bytes: usize) -> u64 {
        bytes as u64 * u64::from(self.copies().1)
    }

    /// Copies of data, and of metadata.
    fn copies(&self) -> (u8, u8) {
        self.settings.lock().copies_at_most()
    }

    /// Bytes for `count` indirect blocks of an object.
    pub(crate) fn cost_of_indirect(&self, count: usize) -> u64 {
        self.metadata(count * INDIRECT_BYTES)
    }

    /// Bytes for a block of an object.
    pub(crate) fn cost_of_block(&self, kind: ObjectKind, bytes: u64) -> u64 {
        let (data, metadata) = self.copies();
        let copies = if kind == ObjectKind::Data { data } else { metadata };
        bytes * u64::from(copies)
    }

    /// Bytes for a block of dnodes. `new_parent`: its parent indirect block was not charged yet.
    pub(crate) fn cost_of_dnodes(&self, new_parent: bool) -> u64 {
        self.metadata(DNODE_BLOCK_BYTES + if new_parent { INDIRECT_BYTES } else { 0 })
    }
}
