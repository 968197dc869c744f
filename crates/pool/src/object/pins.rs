//! The level-1 indirect blocks of an open object, pinned in the cache. A read of a cached block
//! then looks at one of them only.

use forebay_cache::SlotHint;
use zerocopy::FromBytes;

use super::tree::{POINTERS, Tree};
use crate::block_cache::BlockRef;
use crate::format::BlockPtrPhys;

/// A power of two. Bounds the number of blocks that an open object keeps from eviction.
const SLOTS: usize = 16;

/// Blocks that others have displaced and that stay pinned. An operation of a directory needs
/// several blocks at once, and all of them may share a slot.
const DISPLACED: usize = 8;

/// Level-1 indirect blocks in a direct-mapped table, by their index within the level.
#[derive(Default)]
pub(crate) struct Pins {
    slots: Option<Box<[Option<Pin>; SLOTS]>>,
    /// The newest last.
    displaced: Vec<Pin>,
}

struct Pin {
    parent: u64,
    /// `None` for a hole.
    content: Option<BlockRef>,
    /// The pointer of each child of a hole: null or preallocated.
    hole: BlockPtrPhys,
    /// Hints for the child blocks. Allocated with the first hint.
    hints: Option<Box<[SlotHintEntry; POINTERS]>>,
}

/// Where a block was in memory. May be stale.
#[derive(Clone, Copy, Default)]
struct SlotHintEntry {
    /// The cache slot.
    slot_hint: SlotHint,
    /// Offset of the content from the content of the indirect block, in units of [`ALIGN_BYTES`].
    /// Both lie in the same arena. 0 if they are more than a tebibyte apart.
    units: i32,
}

/// Alignment of all buffers of an arena.
const ALIGN_BYTES: isize = 512;

impl SlotHintEntry {
    fn of(slot_hint: SlotHint, content: &[u8], from: &[u8]) -> Self {
        let bytes = content.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) as isize;
        Self { slot_hint, units: i32::try_from(bytes / ALIGN_BYTES).unwrap_or(0) }
    }

    /// The address of the content, for a prefetch.
    fn content(self, from: &[u8]) -> *const u8 {
        from.as_ptr().wrapping_offset(self.units as isize * ALIGN_BYTES)
    }
}

/// A block that was in memory when it was last read.
pub(super) struct KnownBlock<'a> {
    pub(super) ptr: &'a BlockPtrPhys,
    /// The cache slot.
    pub(super) slot_hint: SlotHint,
    /// Address of the content. Valid for a prefetch only, never to be dereferenced.
    pub(super) content: *const u8,
}

impl Pins {
    /// Pointer and hints of a block that the cache had when its hint was set.
    #[inline]
    pub(super) fn known(&self, block: u64) -> Option<KnownBlock<'_>> {
        let parent = Tree::parent_of(block);
        let pin = self.slots.as_ref()?[parent as usize % SLOTS].as_ref()?;
        let (content, hints) = (pin.content.as_ref()?, pin.hints.as_ref()?);
        let index = block as usize % POINTERS;
        let hint = hints[index];
        if pin.parent != parent || hint.slot_hint == SlotHint::UNKNOWN {
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

    /// The pointer of a block, if its indirect block is pinned.
    #[inline]
    pub(crate) fn find(&self, parent: u64, block: u64) -> Option<BlockPtrPhys> {
        let pin = self.pin_of(parent)?;
        let Some(content) = &pin.content else { return Some(pin.hole) };
        let at = block as usize % POINTERS * size_of::<BlockPtrPhys>();
        let bytes = content.get(at..at + size_of::<BlockPtrPhys>());
        let ptr = bytes.and_then(|bytes| BlockPtrPhys::read_from_bytes(bytes).ok());
        Some(ptr.unwrap_or(BlockPtrPhys::HOLE))
    }

    /// Pins a validated indirect block. `None` records a hole, whose children have the pointer
    /// `hole`.
    pub(crate) fn set(&mut self, parent: u64, content: Option<BlockRef>, hole: BlockPtrPhys) {
        self.displaced.retain(|pin| pin.parent != parent);
        let slots = self.slots.get_or_insert_with(|| Box::new([const { None }; SLOTS]));
        let new = Pin { parent, content, hole, hints: None };
        let old = slots[parent as usize % SLOTS].replace(new);
        if let Some(old) = old.filter(|old| old.parent != parent) {
            if self.displaced.len() == DISPLACED {
                self.displaced.remove(0);
            }
            self.displaced.push(old);
        }
    }

    #[inline]
    fn pin_of(&self, parent: u64) -> Option<&Pin> {
        match &self.slots.as_ref()?[parent as usize % SLOTS] {
            Some(pin) if pin.parent == parent => Some(pin),
            _ => self.displaced.iter().find(|pin| pin.parent == parent),
        }
    }

    fn pin_of_mut(&mut self, parent: u64) -> Option<&mut Pin> {
        match &mut self.slots.as_mut()?[parent as usize % SLOTS] {
            Some(pin) if pin.parent == parent => Some(pin),
            _ => self.displaced.iter_mut().find(|pin| pin.parent == parent),
        }
    }

    /// The cache slot of a block, or `UNKNOWN`, and the address of its content. The address is
    /// valid for a prefetch only, never to be dereferenced.
    #[inline]
    pub(crate) fn hint(&self, block: u64) -> (SlotHint, Option<*const u8>) {
        let known = self.pin_of(Tree::parent_of(block));
        let known = known.and_then(|pin| Some((pin.hints.as_ref()?, pin.content.as_ref()?)));
        let Some((hints, from)) = known else { return (SlotHint::UNKNOWN, None) };
        let hint = hints[block as usize % POINTERS];
        (hint.slot_hint, (hint.slot_hint != SlotHint::UNKNOWN).then(|| hint.content(from)))
    }

    /// Records the cache slot and the content of a block, if its indirect block is pinned.
    pub(crate) fn set_hint(&mut self, block: u64, slot_hint: SlotHint, content: &[u8]) {
        let Some(pin) = self.pin_of_mut(Tree::parent_of(block)) else { return };
        if let Some(from) = &pin.content {
            let hints =
                pin.hints.get_or_insert_with(|| Box::new([SlotHintEntry::default(); POINTERS]));
            hints[block as usize % POINTERS] = SlotHintEntry::of(slot_hint, content, from);
        }
    }

    /// Unpins all blocks: the tree has changed.
    pub(crate) fn clear(&mut self) {
        self.slots = None;
        self.displaced.clear();
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_base::arena::{Arena, ArenaConfig, HugePages};

    use super::{BlockPtrPhys, DISPLACED, Pins, SLOTS, SlotHint, SlotHintEntry};
    use crate::object::tree::POINTERS;

    #[test]
    fn blocks_that_share_a_slot_stay_pinned_together() {
        let mut pins = Pins::default();
        let parents: Vec<u64> = (0..=DISPLACED as u64).map(|at| 3 + at * SLOTS as u64).collect();
        let found = |pins: &Pins, parent: u64| pins.find(parent, parent * POINTERS as u64);
        for parent in &parents {
            pins.set(*parent, None, BlockPtrPhys::HOLE);
        }
        assert!(parents.iter().all(|parent| found(&pins, *parent).is_some()));
        // One more displaces the oldest, and a new version its old one.
        pins.set(3 + 100 * SLOTS as u64, None, BlockPtrPhys::HOLE);
        assert!(found(&pins, 3).is_none() && found(&pins, 3 + SLOTS as u64).is_some());
        pins.set(3 + SLOTS as u64, None, BlockPtrPhys::preallocated(0, 512));
        assert!(found(&pins, 3 + SLOTS as u64).is_some_and(|ptr| ptr.is_preallocated()));
        pins.clear();
        assert!(parents.iter().all(|parent| found(&pins, *parent).is_none()));
    }

    #[test]
    fn a_hint_yields_the_address_of_the_content() {
        let config = ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Never };
        let arena = Arena::new(config).expect("an arena");
        let lens = [512, 2560, 3 << 10, 7 << 10, 10 << 10, 32 << 10];
        let blocks: Vec<_> =
            lens.iter().chain(&lens).map(|len| arena.alloc(*len).expect("memory")).collect();
        for (from, content) in blocks.iter().zip(blocks.iter().rev()) {
            let hint = SlotHintEntry::of(SlotHint::UNKNOWN, content, from);
            assert_eq!(hint.content(from), content.as_ptr());
        }
    }
}
