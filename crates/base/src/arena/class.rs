//! The chunks that serve one size class.
//!
//! Purpose: choose from which chunk a block is taken, and which chunk a purger works on.
//! Chunks are sorted by fullness into a few buckets: blocks come from the fullest chunk that
//! has a warm one, purgers start with the emptiest, so that emptier chunks drain and go back
//! to the pool.
//!
//! Invariants: a chunk with a free block is in an allocation list and one with idle pages in
//! an idle list, unless it is being purged, in which case it is in none; a chunk without live
//! blocks is not kept (the caller retires it to the pool).
//!
//! Locking: one lock a class, `arena-class`; at most one of them is held at a time.

use std::ptr::NonNull;

use super::classes::Geometry;
use super::lists::{ChunkPtr, Lane, Lists};
use super::pages::PageSet;
use super::region;
use crate::vm::PageSize;

/// Steps of fullness.
const BUCKETS: usize = 8;

/// See the module's head.
pub(super) struct Class {
    class: usize,
    geometry: Geometry,
    /// Lists `0..BUCKETS`: chunks with only cold free blocks; the rest: with warm ones.
    alloc: Lists<{ 2 * BUCKETS }>,
    idle: Lists<BUCKETS>,
    chunks: usize,
    huge_chunks: usize,
    idle_pages: usize,
    live_blocks: usize,
}

/// What to do with a chunk after a block came back to it.
pub(super) enum Given {
    /// It stays.
    Kept,
    /// It is empty and out of the class: put it into the pool.
    Retired(ChunkPtr),
}

/// Idle pages that a purger releases while their chunk is out of all lists.
pub(super) struct Purge {
    pub(super) chunk: ChunkPtr,
    pub(super) pages: PageSet,
    /// The chunk was huge, and must be advised not to be before its pages are released.
    pub(super) was_huge: bool,
}

impl Class {
    pub(super) fn new(class: usize, page: PageSize) -> Self {
        Self {
            class,
            geometry: Geometry::of(class, page),
            alloc: Lists::new(Lane::Alloc),
            idle: Lists::new(Lane::Idle),
            chunks: 0,
            huge_chunks: 0,
            idle_pages: 0,
            live_blocks: 0,
        }
    }

    /// Chunks, how many of them are huge, idle pages, live blocks.
    pub(super) fn counts(&self) -> (usize, usize, usize, usize) {
        (self.chunks, self.huge_chunks, self.idle_pages, self.live_blocks)
    }

    /// Adds a chunk from the pool.
    ///
    /// # Safety
    /// The caller owns the chunk and gives it up.
    pub(super) unsafe fn adopt(&mut self, chunk: ChunkPtr) {
        // SAFETY: the caller's chunk.
        let c = unsafe { chunk.get() };
        c.assign(self.class, self.geometry);
        self.chunks += 1;
        self.huge_chunks += usize::from(c.huge);
        self.place(chunk);
    }

    /// Whether a block can be taken without adopting a chunk.
    pub(super) fn has_free(&self) -> bool {
        (0..2 * BUCKETS).any(|list| self.alloc.first(list).is_some())
    }

    /// Takes up to `want` warm blocks, from the fullest chunks that have some.
    pub(super) fn take_warm(&mut self, want: usize, mut out: impl FnMut(NonNull<u8>)) -> usize {
        let mut taken = 0;
        for list in (BUCKETS..2 * BUCKETS).rev() {
            while taken < want {
                let Some(chunk) = self.alloc.first(list) else { break };
                let before = taken;
                while taken < want {
                    // SAFETY: chunks in our lists are ours under the class's lock.
                    let taken_block = unsafe { chunk.get() }.take_warm(self.geometry);
                    let Some(block) = taken_block else { break };
                    out(self.address(chunk, block));
                    taken += 1;
                }
                self.live_blocks += taken - before;
                self.place(chunk);
                if taken == before {
                    debug_assert!(false, "a chunk in a warm list has a warm block");
                    break;
                }
            }
        }
        taken
    }

    /// Takes a free block from the fullest chunk that has one, and backs the pages that it
    /// lacks. Returns it and the bytes that were not backed.
    pub(super) fn take_any(&mut self) -> Option<(NonNull<u8>, usize)> {
        // Fullest first; between chunks equally full, warm ones.
        let lists = (0..BUCKETS).rev().flat_map(|bucket| [bucket + BUCKETS, bucket]);
        let chunk = lists.into_iter().find_map(|list| self.alloc.first(list))?;
        // SAFETY: chunks in our lists are ours under the class's lock.
        let (block, added) = unsafe { chunk.get() }.take_any(self.geometry)?;
        self.live_blocks += 1;
        self.place(chunk);
        Some((self.address(chunk, block), added * self.geometry.page.bytes()))
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The block is a live one of this class, and nobody uses it any more.
    pub(super) unsafe fn give(&mut self, block: NonNull<u8>) -> Given {
        // SAFETY: a block of a living arena, whose chunk serves this class while it has a
        // live block.
        let (chunk, data) = unsafe {
            let chunk = region::chunk_of(block);
            (chunk, region::data_of(chunk))
        };
        let index = (block.addr().get() - data.addr().get()) / self.geometry.size;
        // SAFETY: the chunk is ours under the class's lock.
        let c = unsafe { chunk.get() };
        debug_assert_eq!(c.class as usize, self.class, "a block goes back to its own class");
        c.give(self.geometry, index);
        self.live_blocks -= 1;
        self.settle(chunk)
    }

    /// Chooses idle pages of the emptiest chunk that has some, `bytes` at most but at least a
    /// page, and takes the chunk out of all lists until [`finish_purge`](Self::finish_purge).
    pub(super) fn begin_purge(&mut self, bytes: usize) -> Option<Purge> {
        let chunk = (0..BUCKETS).find_map(|bucket| self.idle.first(bucket))?;
        // SAFETY: chunks in our lists are ours under the class's lock.
        let c = unsafe { chunk.get() };
        let mut pages = c.idle_pages(self.geometry);
        // Whole blocks, so that no block is left that is neither warm nor free of pages.
        let unit = self.geometry.pages * self.geometry.page.bytes();
        pages.keep_highest((bytes.max(1).div_ceil(unit)).saturating_mul(self.geometry.pages));
        c.purging = true;
        let was_huge = std::mem::replace(&mut c.huge, false);
        self.huge_chunks -= usize::from(was_huge);
        self.place(chunk);
        Some(Purge { chunk, pages, was_huge })
    }

    /// Of the pages of `purge`, these have been released.
    pub(super) fn finish_purge(&mut self, purge: &Purge, released: &PageSet) -> Given {
        // SAFETY: a chunk that is being purged is still ours under the class's lock.
        let c = unsafe { purge.chunk.get() };
        c.purging = false;
        c.unback(self.geometry, released);
        self.settle(purge.chunk)
    }

    /// Puts a chunk into the lists where it belongs, or out of the class if it is empty.
    fn settle(&mut self, chunk: ChunkPtr) -> Given {
        // SAFETY: the chunk is ours under the class's lock.
        let c = unsafe { chunk.get() };
        if c.live > 0 || c.purging {
            self.place(chunk);
            return Given::Kept;
        }
        self.chunks -= 1;
        self.huge_chunks -= usize::from(c.huge);
        self.idle_pages -= c.idle_counted as usize;
        c.idle_counted = 0;
        // SAFETY: ours, and only in our lists.
        unsafe {
            self.alloc.place(chunk, None);
            self.idle.place(chunk, None);
        }
        Given::Retired(chunk)
    }

    fn place(&mut self, chunk: ChunkPtr) {
        // SAFETY: the chunk is ours under the class's lock.
        let c = unsafe { chunk.get() };
        self.idle_pages = self.idle_pages + c.idle as usize - c.idle_counted as usize;
        c.idle_counted = c.idle;
        let bucket = (c.live as usize * BUCKETS / self.geometry.blocks).min(BUCKETS - 1);
        let alloc = bucket + if c.warm > 0 { BUCKETS } else { 0 };
        let alloc = (!c.purging && !c.is_full(self.geometry)).then_some(alloc);
        let idle = (!c.purging && c.idle > 0).then_some(bucket);
        // SAFETY: ours, only in our lists, and `c` is not used any more.
        unsafe {
            self.alloc.place(chunk, alloc);
            self.idle.place(chunk, idle);
        }
    }

    fn address(&self, chunk: ChunkPtr, block: usize) -> NonNull<u8> {
        // SAFETY: the block lies within its chunk.
        unsafe { region::data_of(chunk).add(block * self.geometry.size) }
    }

    /// Backed bytes that are not idle.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn touched_bytes(&self) -> u64 {
        let (mut pages, mut listed_live) = (0, 0);
        // SAFETY: the class's lock is held, and nothing is changed.
        unsafe {
            self.alloc.for_each(|_, chunk| {
                let c = chunk.get();
                pages += c.backed.count() - c.idle as usize;
                listed_live += c.live as usize;
            });
        }
        // Chunks in no list are full.
        let g = self.geometry;
        pages += (self.live_blocks - listed_live) / g.blocks * g.page.count(g.blocks * g.size);
        (pages * g.page.bytes()) as u64
    }

    /// Checks every chunk that is in a list.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn audit(&self) {
        let mut idle_pages = 0;
        // SAFETY: the class's lock is held, and nothing is changed.
        unsafe {
            self.alloc.for_each(|list, chunk| {
                let c = chunk.get();
                c.audit(self.geometry);
                assert_eq!(list >= BUCKETS, c.warm > 0, "warm chunks are in warm lists");
                assert!(c.live > 0, "an empty chunk is not kept");
            });
            self.idle.for_each(|_, chunk| {
                let c = chunk.get();
                c.audit(self.geometry);
                assert!(c.idle > 0, "chunks in idle lists have idle pages");
                idle_pages += c.idle as usize;
            });
        }
        assert_eq!(idle_pages, self.idle_pages, "idle pages of the class");
    }
}
