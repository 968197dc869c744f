//! The lowest indirect blocks of an open object, pinned in the cache, so that a read of a cached block takes one
//! look at one of them.

use forebay_base::arena::Buffer;
use zerocopy::FromBytes;

use crate::block_cache::BlockRef;
use crate::format::BlockPtrPhys;
use super::tree::POINTERS;

/// A power of two; bounds what an open object keeps from being evicted.
const SLOTS: usize = 16;

/// Indirect blocks by their number among those of the lowest level, each in the one slot that it fits.
#[derive(Default)]
pub(crate) struct Pins {
    slots: Option<Box<[Option<Pin>; SLOTS]>>,
}

struct Pin {
    parent: u64,
    /// Nothing for a hole.
    content: Option<BlockRef>,
}

impl Pins {
    /// The pointer of a block, if the indirect block that has it is pinned.
    #[inline]
    pub(crate) fn find(&self, parent: u64, block: u64) -> Option<BlockPtrPhys> {
        let pin = self.slots.as_ref()?[parent as usize % SLOTS].as_ref()?;
        if pin.parent != parent {
            return None;
        }
        let Some(content) = &pin.content else { return Some(BlockPtrPhys::HOLE) };
        let at = block as usize % POINTERS * size_of::<BlockPtrPhys>();
        let bytes = content.get(at..at + size_of::<BlockPtrPhys>());
        let ptr = bytes.and_then(|bytes| BlockPtrPhys::read_from_bytes(bytes).ok());
        Some(ptr.unwrap_or(BlockPtrPhys::HOLE))
    }

    /// Pins an indirect block that was checked, or the knowledge that there is none.
    pub(crate) fn set(&mut self, parent: u64, content: Option<BlockRef>) {
        let slots = self.slots.get_or_insert_with(|| Box::new([const { None }; SLOTS]));
        slots[parent as usize % SLOTS] = Some(Pin { parent, content });
    }

    /// Forgets all: the tree is another one.
    pub(crate) fn clear(&mut self) {
        self.slots = None;
    }
}
