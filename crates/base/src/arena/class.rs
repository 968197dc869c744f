//! The chunks that serve one size class.
//!
//! A class selects the chunk for an allocation and the chunk for a purger. Chunks are sorted by
//! fullness into a few buckets. Allocations use the fullest chunk that has a backed free block, and
//! purgers start with the emptiest chunk. So emptier chunks drain and return to the pool.
//!
//! Invariants: a chunk with a free block is in an allocation list, and a chunk with idle pages is
//! in an idle list. A chunk that is being purged is in neither. A class keeps no chunk without live
//! blocks; the caller retires such a chunk to the pool.
//!
//! Locking: one lock per class, `arena-class`; a thread holds at most one of them.

use std::ptr::NonNull;

use super::classes::Geometry;
use super::lists::{ChunkPtr, ListKind, Lists};
use super::pages::PageSet;
use super::region;
use crate::vm::PageSize;

/// Number of buckets by fullness.
const BUCKETS: usize = 8;

/// The chunks of one size class.
pub(super) struct Class {
    class: usize,
    geometry: Geometry,
    /// Lists `0..BUCKETS`: chunks without a backed free block; the other lists: chunks with one.
    alloc: Lists<{ 2 * BUCKETS }>,
    idle: Lists<BUCKETS>,
    chunks: usize,
    huge_chunks: usize,
    idle_pages: usize,
    live_blocks: usize,
}

/// The state of a chunk after a block of it was freed.
pub(super) enum AfterFree {
    /// It stays in the class.
    InClass,
    /// It is empty and has left the class: put it into the pool.
    Retired(ChunkPtr),
}

/// Idle pages that a purger releases while their chunk is out of all lists.
pub(super) struct Purge {
    pub(super) chunk: ChunkPtr,
    pub(super) pages: PageSet,
    /// The chunk was huge: advise against a huge page before its pages are released.
    pub(super) was_huge: bool,
}

impl Class {
    pub(super) fn new(class: usize, page: PageSize) -> Self {
        Self {
            class,
            geometry: Geometry::of(class, page),
            alloc: Lists::new(ListKind::Alloc),
            idle: Lists::new(ListKind::Idle),
            chunks: 0,
            huge_chunks: 0,
            idle_pages: 0,
            live_blocks: 0,
        }
    }

    /// Numbers of chunks, huge chunks, idle pages and live blocks.
    pub(super) fn counts(&self) -> (usize, usize, usize, usize) {
        (self.chunks, self.huge_chunks, self.idle_pages, self.live_blocks)
    }

    /// Adds a chunk from the pool.
    ///
    /// # Safety
    /// The caller owns the chunk and passes it to the class.
    pub(super) unsafe fn add_chunk(&mut self, chunk: ChunkPtr) {
        // SAFETY: the caller owns the chunk.
        let c = unsafe { chunk.get() };
        c.assign(self.class, self.geometry);
        self.chunks += 1;
        self.huge_chunks += usize::from(c.huge);
        self.relist(chunk);
    }

    /// Whether a block can be allocated without another chunk.
    pub(super) fn has_free(&self) -> bool {
        (0..2 * BUCKETS).any(|list| self.alloc.first(list).is_some())
    }

    /// Allocates up to `wanted` backed blocks from the fullest chunks that have some. Returns their
    /// number.
    pub(super) fn alloc_backed(
        &mut self,
        wanted: usize,
        mut out: impl FnMut(NonNull<u8>),
    ) -> usize {
        let mut taken = 0;
        for list in (BUCKETS..2 * BUCKETS).rev() {
            while taken < wanted {
                let Some(chunk) = self.alloc.first(list) else { break };
                let before = taken;
                while taken < wanted {
                    // SAFETY: the class owns the chunks in its lists, and its lock is held.
                    let taken_block = unsafe { chunk.get() }.alloc_backed(self.geometry);
                    let Some(block) = taken_block else { break };
                    out(self.address(chunk, block));
                    taken += 1;
                }
                self.live_blocks += taken - before;
                self.relist(chunk);
                if taken == before {
                    debug_assert!(false, "a chunk in a backed list has a backed block");
                    break;
                }
            }
        }
        taken
    }

    /// Allocates a block from the fullest chunk that has a free block, and backs its missing pages.
    /// Returns the block and the bytes that were not backed.
    pub(super) fn alloc_any(&mut self) -> Option<(NonNull<u8>, usize)> {
        // Fullest first; among equally full chunks, those with a backed block first.
        let lists = (0..BUCKETS).rev().flat_map(|bucket| [bucket + BUCKETS, bucket]);
        let chunk = lists.into_iter().find_map(|list| self.alloc.first(list))?;
        // SAFETY: the class owns the chunks in its lists, and its lock is held.
        let (block, added) = unsafe { chunk.get() }.alloc_any(self.geometry)?;
        self.live_blocks += 1;
        self.relist(chunk);
        Some((self.address(chunk, block), added * self.geometry.page.bytes()))
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block is a live block of this class, and no code uses it any more.
    pub(super) unsafe fn free_block(&mut self, block: NonNull<u8>) -> AfterFree {
        // SAFETY: the arena exists, and the chunk serves this class while it has a live block.
        let (chunk, data) = unsafe {
            let chunk = region::chunk_of(block);
            (chunk, region::data_of(chunk))
        };
        let index = (block.addr().get() - data.addr().get()) / self.geometry.size;
        // SAFETY: the class owns the chunk, and its lock is held.
        let c = unsafe { chunk.get() };
        debug_assert_eq!(c.class as usize, self.class, "a block is freed in its own class");
        c.free_block(self.geometry, index);
        self.live_blocks -= 1;
        self.relist_or_retire(chunk)
    }

    /// Selects idle pages of the emptiest chunk that has some: at most `bytes`, but at least a
    /// page. Removes the chunk from all lists until [`finish_purge`](Self::finish_purge).
    pub(super) fn begin_purge(&mut self, bytes: usize) -> Option<Purge> {
        let chunk = (0..BUCKETS).find_map(|bucket| self.idle.first(bucket))?;
        // SAFETY: the class owns the chunks in its lists, and its lock is held.
        let c = unsafe { chunk.get() };
        let mut pages = c.idle_pages(self.geometry);
        // Whole blocks, so that a free block has all its pages or none.
        let unit = self.geometry.pages * self.geometry.page.bytes();
        pages.keep_highest((bytes.max(1).div_ceil(unit)).saturating_mul(self.geometry.pages));
        c.purging = true;
        let was_huge = std::mem::replace(&mut c.huge, false);
        self.huge_chunks -= usize::from(was_huge);
        self.relist(chunk);
        Some(Purge { chunk, pages, was_huge })
    }

    /// Ends a purge in which the system took the pages `released`.
    pub(super) fn finish_purge(&mut self, purge: &Purge, released: &PageSet) -> AfterFree {
        // SAFETY: the class owns a chunk that is being purged, and its lock is held.
        let c = unsafe { purge.chunk.get() };
        c.purging = false;
        c.clear_backed(self.geometry, released);
        self.relist_or_retire(purge.chunk)
    }

    /// Moves a chunk to its lists, or out of the class if it has no live block.
    fn relist_or_retire(&mut self, chunk: ChunkPtr) -> AfterFree {
        // SAFETY: the class owns the chunk, and its lock is held.
        let c = unsafe { chunk.get() };
        if c.live > 0 || c.purging {
            self.relist(chunk);
            return AfterFree::InClass;
        }
        self.chunks -= 1;
        self.huge_chunks -= usize::from(c.huge);
        self.idle_pages -= c.idle_counted as usize;
        c.idle_counted = 0;
        // SAFETY: the class owns the chunk, which is in no other lists.
        unsafe {
            self.alloc.move_to(chunk, None);
            self.idle.move_to(chunk, None);
        }
        AfterFree::Retired(chunk)
    }

    /// Moves a chunk to the lists of its fullness, and updates the total of idle pages.
    fn relist(&mut self, chunk: ChunkPtr) {
        // SAFETY: the class owns the chunk, and its lock is held.
        let c = unsafe { chunk.get() };
        self.idle_pages = self.idle_pages + c.idle as usize - c.idle_counted as usize;
        c.idle_counted = c.idle;
        let bucket = (c.live as usize * BUCKETS / self.geometry.blocks).min(BUCKETS - 1);
        let alloc = bucket + if c.backed_blocks > 0 { BUCKETS } else { 0 };
        let alloc = (!c.purging && !c.is_full(self.geometry)).then_some(alloc);
        let idle = (!c.purging && c.idle > 0).then_some(bucket);
        // SAFETY: the class owns the chunk, which is in no other lists, and `c` is not used any
        // more.
        unsafe {
            self.alloc.move_to(chunk, alloc);
            self.idle.move_to(chunk, idle);
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
        // SAFETY: the lock of the class is held, and nothing is changed.
        unsafe {
            self.alloc.for_each(|_, chunk| {
                let c = chunk.get();
                pages += c.backed.count() - c.idle as usize;
                listed_live += c.live as usize;
            });
        }
        // A chunk in no list is full.
        let g = self.geometry;
        pages += (self.live_blocks - listed_live) / g.blocks * g.page.count(g.blocks * g.size);
        (pages * g.page.bytes()) as u64
    }

    /// Checks every chunk that is in a list.
    #[cfg(all(test, not(forebay_model)))]
    pub(super) fn audit(&self) {
        let mut idle_pages = 0;
        // SAFETY: the lock of the class is held, and nothing is changed.
        unsafe {
            self.alloc.for_each(|list, chunk| {
                let c = chunk.get();
                c.audit(self.geometry);
                assert_eq!(
                    list >= BUCKETS,
                    c.backed_blocks > 0,
                    "chunks with a backed block are in backed lists"
                );
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
