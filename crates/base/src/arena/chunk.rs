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
//! Pages are the system's, of whatever size: a block may have several, or share one with others, or
//! both.
//!
//! Invariants: all pages of live blocks are backed; `live`, `warm` and `idle` are what the
//! two bitmaps say ([`Chunk::audit`]).
//!
//! Access: every field belongs to whoever owns the chunk, which is one of: the class it
//! serves (under that class's lock), the pool (under the pool's lock), the one buffer that is
//! a run of chunks, or a thread that took it out of the pool. While `purging` is set, the
//! purger works on idle pages outside the lock; the chunk is in no list then.

use std::ops::RangeInclusive;

use super::classes::{CHUNK_BYTES, Geometry};
use super::lists::Links;
use super::pages::{PageSet, word_masks};

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
    pub(super) fn assign(&mut self, class: usize, g: Geometry) {
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

    /// Makes it a huge chunk: `all` its pages count as backed. Returns how many were not before.
    pub(super) fn set_huge(&mut self, all: &PageSet) -> usize {
        let added = all.count() - self.backed.count();
        self.huge = true;
        self.backed = *all;
        added
    }

    /// Takes a block of which every page is backed.
    pub(super) fn take_warm(&mut self, g: Geometry) -> Option<usize> {
        if self.warm == 0 {
            return None;
        }
        let block = self.find_warm(g)?;
        self.idle -= self.idle_under(g, block) as u16;
        self.clear_free(block);
        self.live += 1;
        self.warm -= 1;
        Some(block)
    }

    /// Takes any free block and backs the pages that it lacks. Returns it and their number.
    pub(super) fn take_any(&mut self, g: Geometry) -> Option<(usize, usize)> {
        let block = self.next_free(0)?;
        let (first, count) = g.pages_of(block);
        // Blocks that share a page with it may become warm.
        let neighbours = *g.blocks_on(first).start()..=*g.blocks_on(first + count - 1).end();
        let warm_before = self.warm_among(g, neighbours.clone());
        let backed = self.backed.count_range(first, count);
        self.idle -= self.idle_under(g, block) as u16;
        self.clear_free(block);
        self.live += 1;
        self.backed.insert_range(first, count);
        self.warm = self.warm - warm_before as u16 + self.warm_among(g, neighbours) as u16;
        Some((block, count - backed))
    }

    /// Takes a live block back.
    pub(super) fn give(&mut self, g: Geometry, block: usize) {
        let bit = 1 << (block % 64);
        debug_assert!(block < g.blocks, "block {block} is outside its chunk");
        debug_assert!(self.free[block / 64] & bit == 0, "block {block} was free already");
        self.free[block / 64] |= bit;
        self.live -= 1;
        self.warm += 1;
        self.idle += self.idle_under(g, block) as u16;
    }

    /// The backed pages that no live block touches.
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
    pub(super) fn audit(&self, g: Geometry) {
        let free: usize = self.free.iter().map(|word| word.count_ones() as usize).sum();
        assert_eq!(free + self.live as usize, g.blocks, "free + live blocks");
        assert_eq!(self.warm as usize, self.count_warm(g), "warm blocks");
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

    /// The backed pages under `block`, which is free, that no live block touches.
    fn idle_under(&self, g: Geometry, block: usize) -> usize {
        let (first, count) = g.pages_of(block);
        // Only the outer ones can be other blocks' too.
        let inner = if count > 2 { self.backed.count_range(first + 1, count - 2) } else { 0 };
        let idle = |page| self.backed.contains(page) && self.all_free(g.blocks_on(page));
        inner + usize::from(idle(first)) + usize::from(count > 1 && idle(first + count - 1))
    }

    fn is_warm(&self, g: Geometry, block: usize) -> bool {
        let (first, count) = g.pages_of(block);
        self.is_free(block) && self.backed.contains_range(first, count)
    }

    fn warm_among(&self, g: Geometry, blocks: RangeInclusive<usize>) -> usize {
        blocks.filter(|block| self.is_warm(g, *block)).count()
    }

    fn count_warm(&self, g: Geometry) -> usize {
        if g.shares_pages() {
            let backed = (0..g.page.number_of(CHUNK_BYTES)).filter(|p| self.backed.contains(*p));
            backed.map(|page| self.count_free(g.blocks_on(page))).sum()
        } else {
            self.warm_among(g, 0..=g.blocks - 1)
        }
    }

    fn find_warm(&self, g: Geometry) -> Option<usize> {
        let mut at = 0;
        loop {
            let block = self.next_free(at)?;
            if self.is_warm(g, block) {
                return Some(block);
            }
            let page = g.pages_of(block).0;
            // All blocks that begin on a page that is not backed can be skipped at once.
            at = match self.backed.contains(page) {
                true => block + 1,
                false => ((page + 1) * g.page.bytes()).div_ceil(g.size),
            };
        }
    }
}
