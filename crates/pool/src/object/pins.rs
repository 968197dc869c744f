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
    /// Where the blocks that it points to were; made when the first is known.
    hints: Option<Box<[SlotHintEntry; POINTERS]>>,
}

/// Where a block was in memory, as far as is known: worth a look, no more.
#[derive(Clone, Copy, Default)]
struct SlotHintEntry {
    /// Where the cache had it.
    slot_hint: Place,
    /// Where its content lay: pages of [`PAGE_BYTES`] from the content of the indirect block that points to it. Both are
    /// of one arena.
    pages: i32,
}

/// What buffers of a block or more are aligned to.
const PAGE_BYTES: isize = 4096;

impl SlotHintEntry {
    fn of(slot_hint: Place, content: &[u8], from: &[u8]) -> Self {
        let bytes = content.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) as isize;
        Self { slot_hint, pages: i32::try_from(bytes.div_euclid(PAGE_BYTES)).unwrap_or(0) }
    }

    /// The address at which its content began, for a prefetch.
    fn content(self, from: &[u8]) -> *const u8 {
        from.as_ptr().wrapping_offset(self.pages as isize * PAGE_BYTES)
    }
}

/// A block that was in memory the last time.
pub(super) struct KnownBlock<'a> {
    pub(super) ptr: &'a BlockPtrPhys,
    /// Where the cache had it.
    pub(super) slot_hint: Place,
    /// Where its content began: an address to prefetch from, and for nothing else.
    pub(super) content: *const u8,
}

impl Pins {
    /// What is known of a block, if the cache had it when it was noted.
    #[inline]
    pub(super) fn known(&self, block: u64) -> Option<KnownBlock<'_>> {
        let parent = Tree::parent_of(block);
        let pin = self.slots.as_ref()?[parent as usize % SLOTS].as_ref()?;
        let (content, hints) = (pin.content.as_ref()?, pin.hints.as_ref()?);
        let index = block as usize % POINTERS;
        let hint = hints[index];
        if pin.parent != parent || hint.slot_hint == Place::UNKNOWN {
            return None;
        }
        let at = index * size_of::<BlockPtrPhys>();
        let ptr = BlockPtrPhys::ref_from_bytes(content.get(at..at + size_of::<BlockPtrPhys>())?);
        Some(KnownBlock {
            ptr: ptr.ok()?,
            slot_hint: hint.slot_hint,
            content: hint.content(content),
        })
    }

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
        slots[parent as usize % SLOTS] = Some(Pin { parent, content, hints: None });
    }

    /// Where the cache had a block, if that was noted, and where its content began: an address to prefetch from, and for
    /// nothing else.
    #[inline]
    pub(crate) fn hint(&self, block: u64) -> (Place, Option<*const u8>) {
        let parent = Tree::parent_of(block);
        let pin = self.slots.as_ref().and_then(|slots| slots[parent as usize % SLOTS].as_ref());
        let known = pin.filter(|pin| pin.parent == parent);
        let known = known.and_then(|pin| Some((pin.hints.as_ref()?, pin.content.as_ref()?)));
        let Some((hints, from)) = known else { return (Place::UNKNOWN, None) };
        let hint = hints[block as usize % POINTERS];
        (hint.slot_hint, (hint.slot_hint != Place::UNKNOWN).then(|| hint.content(from)))
    }

    /// Notes where the cache has a block, and its content, if the indirect block that points to it is pinned.
    pub(crate) fn set_hint(&mut self, block: u64, slot_hint: Place, content: &[u8]) {
        let parent = Tree::parent_of(block);
        let pin = self.slots.as_mut().and_then(|slots| slots[parent as usize % SLOTS].as_mut());
        let Some(pin) = pin.filter(|pin| pin.parent == parent) else { return };
        if let Some(from) = &pin.content {
            let hints =
                pin.hints.get_or_insert_with(|| Box::new([SlotHintEntry::default(); POINTERS]));
            hints[block as usize % POINTERS] = SlotHintEntry::of(slot_hint, content, from);
        }
    }

    /// Forgets all: the tree is another one.
    pub(crate) fn clear(&mut self) {
        self.slots = None;
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{PAGE_BYTES, Place, SlotHintEntry};

    #[test]
    fn a_spot_leads_to_where_the_content_was() {
        let page = PAGE_BYTES as usize;
        let arena = vec![0u8; 16 * page];
        let first = arena.as_ptr().align_offset(page);
        let block = |at: usize| &arena[first + at * page..][..page];
        for (from, content) in [(3, 11), (11, 3), (5, 5), (0, 14)] {
            let hint = SlotHintEntry::of(Place::UNKNOWN, block(content), block(from));
            assert_eq!(hint.content(block(from)), block(content).as_ptr());
        }
        // Of what is shorter than a page, the page; of what is too far away, something.
        let short = &block(4)[512..1024];
        let hint = SlotHintEntry::of(Place::UNKNOWN, short, block(9));
        assert_eq!(hint.content(block(9)), block(4).as_ptr());
    }
}
