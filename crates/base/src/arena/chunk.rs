//! The header of a chunk: its free blocks and its backed pages.
//!
//! The header makes no system calls and takes no locks. Headers are at the start of their region
//! ([`super::region`]) and not in the chunk, so that a block of 8 KiB takes two pages and not
//! three.
//!
//! Terms. A block is *live* while a buffer or a magazine has it, and *free* otherwise. A page is
//! *backed* when it may be resident, so it counts as committed. It is *idle* when it is backed and
//! no live block is on it. A free block is *backed* when all its pages are.
//!
//! A page has the size of the system's pages. A block may have several pages and may share its
//! first and last page with other blocks.
//!
//! Invariants: all pages of live blocks are backed. `live`, `backed_blocks` and `idle` agree with
//! the two bitmaps (`Chunk::audit` checks it).
//!
//! Access: the owner of the chunk has all its fields. The owner is the class that the chunk serves
//! (under the lock of the class), the pool (under its lock), the buffer that is a run of chunks, or
//! the thread that took the chunk out of the pool. While `purging` is set, the chunk is in no list,
//! and the purger works on its idle pages outside the lock.

use std::ops::RangeInclusive;

use super::classes::{CHUNK_BYTES, Geometry};
use super::lists::Links;
use super::pages::{PageSet, word_masks};

/// The largest number of blocks in a chunk.
const MAX_BLOCKS: usize = CHUNK_BYTES / 512;

/// The header of a chunk.
#[repr(C, align(128))]
pub(super) struct Chunk {
    /// Links of the lists of its class or of the pool.
    pub(super) links: Links,
    /// Number of live blocks.
    pub(super) live: u16,
    /// Number of free blocks that are backed.
    pub(super) backed_blocks: u16,
    /// Number of backed pages without a live block.
    pub(super) idle: u16,
    /// The part of `idle` that the total of the class includes.
    pub(super) idle_counted: u16,
    /// The class that the chunk serves; meaningless outside a class.
    pub(super) class: u8,
    /// The system was advised to use a huge page: all pages count as backed until it is split.
    pub(super) huge: bool,
    /// A purger releases idle pages of the chunk.
    pub(super) purging: bool,
    /// Pages that may be resident.
    pub(super) backed: PageSet,
    /// One bit per block, set when it is free.
    free: [u64; MAX_BLOCKS / 64],
}

impl Chunk {
    /// A chunk in the pool without backed pages.
    pub(super) const fn new() -> Self {
        Self {
            links: Links::NONE,
            live: 0,
            backed_blocks: 0,
            idle: 0,
            idle_counted: 0,
            class: 0,
            huge: false,
            purging: false,
            backed: PageSet::EMPTY,
            free: [0; MAX_BLOCKS / 64],
        }
    }

    /// Assigns the chunk to `class`. It keeps its backed pages.
    pub(super) fn assign(&mut self, class: usize, g: Geometry) {
        self.class = class as u8;
        self.live = 0;
        self.free = [0; MAX_BLOCKS / 64];
        for word in 0..g.blocks.div_ceil(64) {
            self.free[word] = u64::MAX >> (64 - (g.blocks - word * 64).min(64));
        }
        self.idle = self.backed.count() as u16;
        self.idle_counted = 0;
        self.backed_blocks = self.count_backed(g) as u16;
    }

    /// Makes it a huge chunk, in which `all` pages count as backed. Returns the number of pages
    /// that were not backed before.
    pub(super) fn set_huge(&mut self, all: &PageSet) -> usize {
        let added = all.count() - self.backed.count();
        self.huge = true;
        self.backed = *all;
        added
    }

    /// Allocates a free block that is backed.
    pub(super) fn alloc_backed(&mut self, g: Geometry) -> Option<usize> {
        if self.backed_blocks == 0 {
            return None;
        }
        let block = self.find_backed(g)?;
        self.idle -= self.idle_under(g, block) as u16;
        self.clear_free(block);
        self.live += 1;
        self.backed_blocks -= 1;
        Some(block)
    }

    /// Allocates any free block and backs its missing pages. Returns the block and their number.
    pub(super) fn alloc_any(&mut self, g: Geometry) -> Option<(usize, usize)> {
        let block = self.next_free(0)?;
        let (first, count) = g.pages_of(block);
        // Blocks that share a page with it may become backed.
        let neighbours = *g.blocks_on(first).start()..=*g.blocks_on(first + count - 1).end();
        let backed_before = self.count_backed_among(g, neighbours.clone());
        let backed = self.backed.count_range(first, count);
        self.idle -= self.idle_under(g, block) as u16;
        self.clear_free(block);
        self.live += 1;
        self.backed.insert_range(first, count);
        self.backed_blocks = self.backed_blocks - backed_before as u16
            + self.count_backed_among(g, neighbours) as u16;
        Some((block, count - backed))
    }

    /// Frees a live block.
    pub(super) fn free_block(&mut self, g: Geometry, block: usize) {
        let bit = 1 << (block % 64);
        debug_assert!(block < g.blocks, "block {block} is outside its chunk");
        debug_assert!(self.free[block / 64] & bit == 0, "block {block} was free already");
        self.free[block / 64] |= bit;
        self.live -= 1;
        self.backed_blocks += 1;
        self.idle += self.idle_under(g, block) as u16;
    }

    /// The backed pages without a live block.
    pub(super) fn idle_pages(&self, g: Geometry) -> PageSet {
        let mut idle = self.backed;
        if g.shares_pages() {
            for page in 0..g.page.number_of(CHUNK_BYTES) {
                if !self.all_free(g.blocks_on(page)) {
                    idle.remove_range(page, 1);
                }
            }
        } else {
            for block in (0..g.blocks).filter(|block| !self.is_free(*block)) {
                let (first, count) = g.pages_of(block);
                idle.remove_range(first, count);
            }
        }
        idle
    }

    /// Records that `pages`, which were idle, are no longer backed.
    pub(super) fn clear_backed(&mut self, g: Geometry, pages: &PageSet) {
        self.backed.remove_all(pages);
        self.idle -= pages.count() as u16;
        self.backed_blocks = self.count_backed(g) as u16;
    }

    /// Whether it has no free block.
    pub(super) fn is_full(&self, g: Geometry) -> bool {
        self.live as usize == g.blocks
    }

    /// Recounts everything from the bitmaps.
    ///
    /// # Panics
    /// If a count disagrees.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn audit(&self, g: Geometry) {
        let free: usize = self.free.iter().map(|word| word.count_ones() as usize).sum();
        assert_eq!(free + self.live as usize, g.blocks, "free + live blocks");
        assert_eq!(self.backed_blocks as usize, self.count_backed(g), "backed free blocks");
        assert_eq!(self.idle as usize, self.idle_pages(g).count(), "idle pages");
        let live = (0..g.blocks).filter(|block| !self.is_free(*block));
        for block in live {
            let (first, count) = g.pages_of(block);
            assert!(self.backed.contains_range(first, count), "a live block is backed");
        }
        let all = PageSet::first(g.page.number_of(CHUNK_BYTES));
        assert!(!self.huge || self.backed == all, "a huge chunk is backed whole");
    }

    fn is_free(&self, block: usize) -> bool {
        self.free[block / 64] >> (block % 64) & 1 == 1
    }

    fn clear_free(&mut self, block: usize) {
        self.free[block / 64] &= !(1 << (block % 64));
    }

    /// The first free block from `block` on.
    fn next_free(&self, block: usize) -> Option<usize> {
        let mut word = block / 64;
        let mut rest = self.free.get(word)? >> (block % 64) << (block % 64);
        while rest == 0 {
            word += 1;
            rest = *self.free.get(word)?;
        }
        Some(word * 64 + rest.trailing_zeros() as usize)
    }

    fn count_free(&self, blocks: RangeInclusive<usize>) -> usize {
        if blocks.is_empty() {
            return 0;
        }
        let words = word_masks(*blocks.start(), blocks.end() + 1 - blocks.start());
        words.map(|(word, mask)| (self.free[word] & mask).count_ones() as usize).sum()
    }

    fn all_free(&self, blocks: RangeInclusive<usize>) -> bool {
        let count = (blocks.end() + 1).saturating_sub(*blocks.start());
        self.count_free(blocks) == count
    }

    /// Number of pages of `block`, which is free, that are backed and have no live block.
    fn idle_under(&self, g: Geometry, block: usize) -> usize {
        let (first, count) = g.pages_of(block);
        // Only the first and the last page can have other blocks.
        let inner = if count > 2 { self.backed.count_range(first + 1, count - 2) } else { 0 };
        let idle = |page| self.backed.contains(page) && self.all_free(g.blocks_on(page));
        inner + usize::from(idle(first)) + usize::from(count > 1 && idle(first + count - 1))
    }

    fn is_backed(&self, g: Geometry, block: usize) -> bool {
        let (first, count) = g.pages_of(block);
        self.is_free(block) && self.backed.contains_range(first, count)
    }

    fn count_backed_among(&self, g: Geometry, blocks: RangeInclusive<usize>) -> usize {
        blocks.filter(|block| self.is_backed(g, *block)).count()
    }

    fn count_backed(&self, g: Geometry) -> usize {
        if g.shares_pages() {
            let backed = (0..g.page.number_of(CHUNK_BYTES)).filter(|p| self.backed.contains(*p));
            backed.map(|page| self.count_free(g.blocks_on(page))).sum()
        } else {
            self.count_backed_among(g, 0..=g.blocks - 1)
        }
    }

    fn find_backed(&self, g: Geometry) -> Option<usize> {
        let mut at = 0;
        loop {
            let block = self.next_free(at)?;
            if self.is_backed(g, block) {
                return Some(block);
            }
            let page = g.pages_of(block).0;
            // Skip all blocks that start on a page that is not backed.
            at = match self.backed.contains(page) {
                true => block + 1,
                false => ((page + 1) * g.page.bytes()).div_ceil(g.size),
            };
        }
    }
}
