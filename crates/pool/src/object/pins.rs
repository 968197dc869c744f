//! The lowest indirect blocks of an open object, pinned in the cache, so that a read of a cached block takes one
//! look at one of them.

use forebay_cache::Place;
use zerocopy::FromBytes;

use super::tree::{POINTERS, Tree};
use crate::block_cache::BlockRef;
use crate::format::BlockPtrPhys;

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
    /// Where the cache had the blocks that it points to; made when the first is known.
    places: Option<Box<[Place; POINTERS]>>,
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
        slots[parent as usize % SLOTS] = Some(Pin { parent, content, places: None });
    }

    /// Where the cache had a block, if that was noted.
    #[inline]
    pub(crate) fn place(&self, block: u64) -> Place {
        let parent = Tree::parent_of(block);
        let pin = self.slots.as_ref().and_then(|slots| slots[parent as usize % SLOTS].as_ref());
        let places = pin.filter(|pin| pin.parent == parent).and_then(|pin| pin.places.as_ref());
        places.map_or(Place::UNKNOWN, |places| places[block as usize % POINTERS])
    }

    /// Notes where the cache has a block, if the indirect block that points to it is pinned.
    pub(crate) fn set_place(&mut self, block: u64, place: Place) {
        let parent = Tree::parent_of(block);
        let pin = self.slots.as_mut().and_then(|slots| slots[parent as usize % SLOTS].as_mut());
        if let Some(pin) = pin.filter(|pin| pin.parent == parent) {
            let places = pin.places.get_or_insert_with(|| Box::new([Place::UNKNOWN; POINTERS]));
            places[block as usize % POINTERS] = place;
        }
    }

    /// Forgets all: the tree is another one.
    pub(crate) fn clear(&mut self) {
        self.slots = None;
    }
}
