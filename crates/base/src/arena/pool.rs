//! The pool of chunks that serve no class.
//!
//! Classes take single chunks from the pool, and large buffers take runs of adjacent chunks. The
//! pool reserves a region when it has no chunk. Chunks keep their backed pages in the pool. A
//! *backed* chunk has some, and any class may take it.
//!
//! Locking: `arena-pool`, the innermost lock of the arena. A taken chunk belongs to the taker until
//! it is put back.

use super::chunk::Chunk;
use super::classes::CHUNK_BYTES;
use super::inner::ArenaInner;
use super::lists::{ChunkPtr, ListKind, Lists};
use super::region::{self, REGION_CHUNKS};
use crate::vm::{self, PageSize};

/// A region and its chunks in the pool.
struct PooledRegion {
    region: Box<vm::Region>,
    /// One bit per chunk, set while it is in the pool. Bit 0 (the headers) is never set.
    free: u128,
    /// One bit per chunk, set once its header is initialised.
    written: u128,
}

/// The pool of an arena.
pub(super) struct Pool {
    page: PageSize,
    regions: Vec<PooledRegion>,
    /// Regions before this one have no chunk in the pool.
    first_free: usize,
    /// Chunks in the pool with backed pages: list 0 with all pages backed, list 1 with some.
    backed_chunks: Lists<2>,
    /// Number of backed pages in the pool.
    backed_pages: usize,
    /// Number of chunks outside the pool.
    taken: usize,
}

impl Pool {
    pub(super) fn new(page: PageSize) -> Self {
        Self {
            page,
            regions: Vec::new(),
            first_free: 0,
            backed_chunks: Lists::new(ListKind::Alloc),
            backed_pages: 0,
            taken: 0,
        }
    }

    /// Reserves one more region.
    pub(super) fn grow(&mut self, inner: *const ArenaInner) -> Result<(), vm::Error> {
        let region = region::reserve(inner, self.page, self.regions.len())?;
        let all = u128::MAX >> (128 - REGION_CHUNKS);
        self.regions.push(PooledRegion { region, free: all & !1, written: 0 });
        Ok(())
    }

    /// Takes a chunk whose first `pages` pages are backed. `None` if the first backed chunk does
    /// not fit.
    pub(super) fn take_backed(&mut self, pages: usize) -> Option<ChunkPtr> {
        let chunk = self.backed_chunks.first(0).or(self.backed_chunks.first(1))?;
        // SAFETY: the pool owns the chunk, and its lock is held.
        if !unsafe { chunk.get() }.backed.contains_range(0, pages) {
            return None;
        }
        // SAFETY: the chunk is in the pool, so it is in a region of this arena.
        let (number, index) = unsafe { region::position_of(chunk) };
        Some(self.take_at(number, index))
    }

    /// Takes any chunk, backed chunks first.
    pub(super) fn take(&mut self, inner: *const ArenaInner) -> Result<ChunkPtr, vm::Error> {
        if let Some(chunk) = self.take_backed(0) {
            return Ok(chunk);
        }
        let number =
            match (self.first_free..self.regions.len()).find(|i| self.regions[*i].free != 0) {
                Some(number) => number,
                None => {
                    self.grow(inner)?;
                    self.regions.len() - 1
                }
            };
        self.first_free = number;
        Ok(self.take_at(number, self.regions[number].free.trailing_zeros() as usize))
    }

    /// Takes `count` adjacent chunks and returns the first.
    pub(super) fn take_run(
        &mut self,
        inner: *const ArenaInner,
        count: usize,
    ) -> Result<ChunkPtr, vm::Error> {
        let found = self.regions.iter().enumerate().find_map(|(number, s)| {
            let first = first_run(s.free, count)?;
            Some((number, first))
        });
        let (number, first) = match found {
            Some(found) => found,
            None => {
                self.grow(inner)?;
                (self.regions.len() - 1, 1)
            }
        };
        (first + 1..first + count).for_each(|index| _ = self.take_at(number, index));
        Ok(self.take_at(number, first))
    }

    /// Puts a chunk back, with its backed pages.
    ///
    /// # Safety
    /// The chunk came from this pool, and the caller owns it and passes it to the pool.
    pub(super) unsafe fn put(&mut self, chunk: ChunkPtr) {
        // SAFETY: the caller owns the chunk, which is in a region of this arena.
        let (number, index) = unsafe { region::position_of(chunk) };
        // SAFETY: the caller owns the chunk and passes it to the pool, so no other reference to it
        // exists.
        let backed = unsafe { chunk.get() }.backed.count();
        let list = match backed {
            0 => None,
            all if all == self.page.number_of(CHUNK_BYTES) => Some(0),
            _ => Some(1),
        };
        // SAFETY: the chunk is in no list of this kind, because its class has unlinked it.
        unsafe { self.backed_chunks.move_to(chunk, list) };
        self.backed_pages += backed;
        self.regions[number].free |= 1 << index;
        self.first_free = self.first_free.min(number);
        self.taken -= 1;
    }

    /// Numbers of regions, chunks outside the pool, and backed pages in the pool.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.regions.len(), self.taken, self.backed_pages)
    }

    fn take_at(&mut self, number: usize, index: usize) -> ChunkPtr {
        let s = &mut self.regions[number];
        let bit = 1 << index;
        debug_assert!(s.free & bit != 0, "chunk {index} of region {number} is not in the pool");
        s.free &= !bit;
        self.taken += 1;
        // SAFETY: `index` is within the region.
        let chunk = unsafe { region::chunk_header(s.region.base(), index) };
        if s.written & bit == 0 {
            s.written |= bit;
            // SAFETY: the memory of the header is writable and aligned, and the pool owns it.
            unsafe { chunk.0.write(Chunk::new()) };
        } else {
            // SAFETY: the pool owns the chunk, and its lock is held.
            self.backed_pages -= unsafe { chunk.get() }.backed.count();
            // SAFETY: the chunk was in the pool, so it is in no list but the pool's, whose lock is
            // held.
            unsafe { self.backed_chunks.move_to(chunk, None) };
        }
        chunk
    }
}

/// The first bit of the lowest run of `count` set bits.
fn first_run(bits: u128, count: usize) -> Option<usize> {
    let mut starts = bits;
    for shift in 1..count {
        starts &= bits.checked_shr(shift as u32).unwrap_or(0);
        if starts == 0 {
            break;
        }
    }
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}
