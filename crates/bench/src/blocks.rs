//! Blocks for the hit-only benches: one region for all of them, and handles.
//!
//! Peers hold the cheapest owned handle for them: a counted slice of one large region in huge pages
//! ([`RegionBlock`]), or a heap block (`Arc<[u8]>`). All peers share both, to save memory.
//!
//! Invariant: the region is written only in [`BlockRegion::new`].

use std::ops::Deref;
use std::sync::Arc;

use forebay_base::vm::Region;

use crate::keys::scramble;

/// Size of a block in the hit-only benches, as in R1.
pub(crate) const BLOCK_BYTES: usize = 8192;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A handle that peers store and clone.
pub(crate) trait Handle: Deref<Target = [u8]> + Clone + Send + Sync + 'static {}
impl<T: Deref<Target = [u8]> + Clone + Send + Sync + 'static> Handle for T {}

/// Adjacent blocks in one range of memory.
pub(crate) struct BlockRegion {
    region: Region,
    blocks: usize,
}

impl BlockRegion {
    /// `blocks` filled blocks, in huge pages if requested and available.
    pub(crate) fn new(
        blocks: usize,
        huge_pages: bool,
    ) -> Result<Arc<Self>, forebay_base::vm::Error> {
        let bytes = (blocks * BLOCK_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
        let region = Region::reserve(bytes, HUGE_PAGE_BYTES)?;
        region.advise_huge(huge_pages, 0, bytes);
        // SAFETY: the region is `bytes` long, private and zero-filled, and there is no other
        // reference into it yet.
        let all = unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), bytes) };
        for (key, block) in all.chunks_exact_mut(BLOCK_BYTES).take(blocks).enumerate() {
            fill(block, key as u64);
        }
        Ok(Arc::new(Self { region, blocks }))
    }

    /// The number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    /// The block of a key.
    #[inline]
    pub(crate) fn block(&self, key: usize) -> &[u8] {
        assert!(key < self.blocks, "the key names a block");
        // SAFETY: the block lies within the region, which lives as long as `self` and is
        // not written after `new`.
        unsafe {
            std::slice::from_raw_parts(
                self.region.base().as_ptr().add(key * BLOCK_BYTES),
                BLOCK_BYTES,
            )
        }
    }

    /// Counted handles of all blocks, by key.
    pub(crate) fn handles(self: &Arc<Self>) -> Vec<RegionBlock> {
        let one = |key| {
            RegionBlock(Arc::new(Span { start: self.block(key).as_ptr(), _region: self.clone() }))
        };
        (0..self.blocks).map(one).collect()
    }

    /// Separately allocated copies of all blocks, by key.
    pub(crate) fn heap_handles(&self) -> Vec<Arc<[u8]>> {
        (0..self.blocks).map(|key| Arc::from(self.block(key))).collect()
    }
}

/// Fills a block with a pattern that depends on the key.
pub(crate) fn fill(block: &mut [u8], key: u64) {
    for (i, chunk) in block.chunks_mut(8).enumerate() {
        let word = scramble(key.wrapping_add(i as u64)).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

struct Span {
    start: *const u8,
    _region: Arc<BlockRegion>,
}

// SAFETY: the pointer is into the region that `_region` keeps alive, which is never written.
unsafe impl Send for Span {}
// SAFETY: several threads may share a pointer to memory that is only read.
unsafe impl Sync for Span {}

/// A counted handle of a block in a region.
#[derive(Clone)]
pub(crate) struct RegionBlock(Arc<Span>);

impl Deref for RegionBlock {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is a block of the region that the span keeps alive, read only.
        unsafe { std::slice::from_raw_parts(self.0.start, BLOCK_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_handles_show_the_same_bytes() {
        let region = BlockRegion::new(5, true).expect("a small region");
        let (spans, heap) = (region.handles(), region.heap_handles());
        drop(region);
        for (key, (span, heap)) in spans.iter().zip(&heap).enumerate() {
            assert_eq!(**span, **heap);
            assert_eq!(span[..8], scramble(key as u64).to_le_bytes());
        }
    }
}
