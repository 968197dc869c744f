//! What changes may come to on devices, counted before they are made: so that a txg never finds too little space
//! when it syncs, and so that writers slow down by what will have to be written.
//!
//! Blocks are counted uncompressed and in all copies, with the indirect blocks that change because of them. What they
//! replace is freed by the same txg, but is no space until two txgs later, and so does not count.

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

    /// Of indirect blocks of an object.
    pub(crate) fn cost_of_indirect(&self, count: usize) -> u64 {
        self.metadata(count * INDIRECT_BYTES)
    }

    /// Of a block of an object.
    pub(crate) fn cost_of_block(&self, kind: ObjectKind, bytes: u64) -> u64 {
        let (data, metadata) = self.copies();
        let copies = if kind == ObjectKind::Data { data } else { metadata };
        bytes * u64::from(copies)
    }

    /// Of a block of dnodes; `leads` if an indirect block changes that did not before.
    pub(crate) fn cost_of_dnodes(&self, leads: bool) -> u64 {
        self.metadata(DNODE_BLOCK_BYTES + if leads { INDIRECT_BYTES } else { 0 })
    }
}
