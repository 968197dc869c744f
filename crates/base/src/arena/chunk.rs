//! The header of a chunk: which of its blocks are free and which of its pages are backed.
//!
//! Purpose: pure bookkeeping of one chunk; it makes no system calls and takes no locks.
//! Headers lie out of band, at the start of their region ([`super::region`]), so that a
//! block of 8 KiB is two pages and not three.
//!
//! Words. A block is *live* when it has left the chunk (for a caller or a magazine) and
//! *free* otherwise. A page is *backed* when it may be resident and so counts as committed;
//! it is *idle* when it is backed and no live block touches it. A free block is *warm* when
//! all its pages are backed.
//!
//! Invariants: all pages of live blocks are backed; `live`, `warm` and `idle` are what the
//! two bitmaps say ([`Chunk::audit`]).
//!
//! Access: every field belongs to whoever owns the chunk, which is one of: the class it
//! serves (under that class's lock), the pool (under the pool's lock), the one buffer that is
//! a run of chunks, or a thread that took it out of the pool. While `purging` is set, the
//! purger works on idle pages outside the lock; the chunk is in no list then.

use super::classes::{CHUNK_BYTES, Geometry};
use super::lists::Links;
use super::pages::{CHUNK_PAGES, PageSet};

/// Most blocks that a chunk can have.
const MAX_BLOCKS: usize = CHUNK_BYTES / 512;

/// The header of a chunk.
#[repr(C, align(128))]
pub(super) struct Chunk {
    /// Where the chunk hangs in the lists of its class or of the pool.
    pub(super) links: Links,
    /// Live blocks.
    pub(super) live: u16,
    /// Free blocks all of whose pages are backed.
    pub(super) warm: u16,
    /// Backed pages that no live block touches.
    pub(super) idle: u16,
    /// The part of `idle` that is in the class's total.
    pub(super) idle_counted: u16,
    /// The class it serves; meaningless outside a class.
    pub(super) class: u8,
    /// Advised to be a huge page: all pages are backed until it is demoted.
    pub(super) huge: bool,
    /// A purger releases idle pages; see the module's head.
    pub(super) purging: bool,
    /// Pages that may be resident.
    pub(super) backed: PageSet,
    /// A bit a block, set when it is free.
    free: [u64; MAX_BLOCKS / 64],
}

impl Chunk {
    /// A chunk in the pool of which nothing is backed.
    pub(super) const fn new() -> Self {
        Self {
            links: Links::NONE,
            live: 0,
            warm: 0,
            idle: 0,
            idle_counted: 0,
            class: 0,
            huge: false,
            purging: false,
            backed: PageSet::EMPTY,
            free: [0; MAX_BLOCKS / 64],
        }
    }

    /// Starts to serve `class`. The chunk keeps its backed pages.
    pub(super) fn assign(&mut self, class: usize) {
        let g = Geometry::of(class);
        self.class = class as u8;
        self.live = 0;
        self.free = [0; MAX_BLOCKS / 64];
        for word in 0..g.blocks.div_ceil(64) {
            self.free[word] = u64::MAX >> (64 - (g.blocks - word * 64).min(64));
        }
        self.idle = self.backed.count() as u16;
        self.idle_counted = 0;
        self.warm = self.count_warm(g) as u16;
    }

    /// Makes it a huge chunk: all pages count as backed. Returns how many were not before.
    pub(super) fn set_huge(&mut self) -> usize {
        let added = CHUNK_PAGES - self.backed.count();
        self.huge = true;
        self.backed = PageSet::FULL;
        added
    }

    /// Takes a block of which every page is backed.
    pub(super) fn take_warm(&mut self, g: Geometry) -> Option<usize> {
        if self.warm == 0 {
            return None;
        }
        let block = self.find_warm(g)?;
        self.clear_free(block);
        self.live += 1;
        self.warm -= 1;
        if g.in_page == 1 {
            self.idle -= g.pages as u16;
        } else if self.free_in_page(g, block / g.in_page) == g.in_page - 1 {
            self.idle -= 1;
        }
        Some(block)
    }

    /// Takes any free block and backs the pages that it lacks. Returns it and their number.
    pub(super) fn take_any(&mut self, g: Geometry) -> Option<(usize, usize)> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let block = word * 64 + self.free[word].trailing_zeros() as usize;
        let page = block * g.pages / g.in_page;
        let backed = self.backed.count_range(page, g.pages);
        self.clear_free(block);
        self.live += 1;
        if g.in_page == 1 {
            self.idle -= backed as u16;
            self.warm -= u16::from(backed == g.pages);
        } else {
            let others = self.free_in_page(g, page);
            if backed == 0 {
                self.warm += others as u16;
            } else {
                self.warm -= 1;
                self.idle -= u16::from(others == g.in_page - 1);
            }
        }
        self.backed.insert_range(page, g.pages);
        Some((block, g.pages - backed))
    }

    /// Takes a live block back.
    pub(super) fn give(&mut self, g: Geometry, block: usize) {
        let bit = 1 << (block % 64);
        debug_assert!(block < g.blocks, "block {block} is outside its chunk");
        debug_assert!(self.free[block / 64] & bit == 0, "block {block} was free already");
        self.free[block / 64] |= bit;
        self.live -= 1;
        self.warm += 1;
        if g.in_page == 1 {
            self.idle += g.pages as u16;
        } else if self.free_in_page(g, block / g.in_page) == g.in_page {
            self.idle += 1;
        }
    }

    /// The backed pages that no live block touches.
    pub(super) fn idle_pages(&self, g: Geometry) -> PageSet {
        let mut idle = self.backed;
        if g.in_page == 1 {
            for block in 0..g.blocks {
                if !self.is_free(block) {
                    idle.remove_range(block * g.pages, g.pages);
                }
            }
        } else {
            for page in 0..CHUNK_PAGES {
                if self.free_in_page(g, page) < g.in_page {
                    idle.remove_range(page, 1);
                }
            }
        }
        idle
    }

    /// Notes that `pages`, which were idle, are no longer backed.
    pub(super) fn unback(&mut self, g: Geometry, pages: &PageSet) {
        self.backed.remove_all(pages);
        self.idle -= pages.count() as u16;
        self.warm = self.count_warm(g) as u16;
    }

    /// Whether it has no free block.
    pub(super) fn is_full(&self, g: Geometry) -> bool {
        self.live as usize == g.blocks
    }

    /// Recounts everything from the bitmaps and panics where they disagree.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn audit(&self) {
        let g = Geometry::of(self.class as usize);
        let free: usize = self.free.iter().map(|word| word.count_ones() as usize).sum();
        assert_eq!(free + self.live as usize, g.blocks, "free + live blocks");
        assert_eq!(self.warm as usize, self.count_warm(g), "warm blocks");
        assert_eq!(self.idle as usize, self.idle_pages(g).count(), "idle pages");
        let live = (0..g.blocks).filter(|block| !self.is_free(*block));
        for block in live {
            let page = block * g.pages / g.in_page;
            assert!(self.backed.contains_range(page, g.pages), "a live block is backed");
        }
        assert!(!self.huge || self.backed == PageSet::FULL, "a huge chunk is backed whole");
    }

    fn is_free(&self, block: usize) -> bool {
        self.free[block / 64] >> (block % 64) & 1 == 1
    }

    fn clear_free(&mut self, block: usize) {
        self.free[block / 64] &= !(1 << (block % 64));
    }

    /// Free blocks in `page`, for classes below a page.
    fn free_in_page(&self, g: Geometry, page: usize) -> usize {
        let first = page * g.in_page;
        let mask = (1 << g.in_page) - 1;
        (self.free[first / 64] >> (first % 64) & mask).count_ones() as usize
    }

    fn count_warm(&self, g: Geometry) -> usize {
        if g.in_page > 1 {
            let backed = (0..CHUNK_PAGES).filter(|page| self.backed.contains(*page));
            backed.map(|page| self.free_in_page(g, page)).sum()
        } else {
            let free = (0..g.blocks).filter(|block| self.is_free(*block));
            free.filter(|block| self.backed.contains_range(block * g.pages, g.pages)).count()
        }
    }

    fn find_warm(&self, g: Geometry) -> Option<usize> {
        for (index, word) in self.free.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros() as usize;
                let block = index * 64 + bit;
                if self.backed.contains_range(block * g.pages / g.in_page, g.pages) {
                    return Some(block);
                }
                // The rest of a page that is not backed can be skipped at once.
                let first = bit / g.in_page * g.in_page;
                rest &= !(((1 << g.in_page) - 1) << first);
            }
        }
        None
    }
}
