//! The pool of chunks that serve no class at the moment.
//!
//! Purpose: hand out chunks one by one to classes, and runs of adjacent chunks to large
//! buffers; reserve regions when there is none. Chunks keep their backed pages while they are
//! here: a *warm* chunk has some, and any class may have it next.
//!
//! Locking: one lock, `arena-pool`, the innermost of the arena's. A chunk that is handed out
//! belongs to whoever took it until it is put back.

use super::chunk::Chunk;
use super::classes::CHUNK_BYTES;
use super::inner::Inner;
use super::lists::{ChunkPtr, Lane, Lists};
use super::region::{self, REGION_CHUNKS};
use crate::vm::{self, PageSize};

/// A region, and which of its chunks are in the pool.
struct Slot {
    region: Box<vm::Region>,
    /// A bit a chunk, set while it is in the pool. Bit 0 (the headers) never is.
    free: u128,
    /// A bit a chunk, set once its header has been written.
    written: u128,
}

/// See the module's head.
pub(super) struct Pool {
    page: PageSize,
    slots: Vec<Slot>,
    /// No region before this one has a chunk in the pool.
    first_free: usize,
    /// Pooled chunks with backed pages: list 0 those whole, list 1 those in part.
    warm: Lists<2>,
    /// Backed pages in the pool.
    backed_pages: usize,
    /// Chunks that are not in the pool.
    taken: usize,
}

impl Pool {
    pub(super) fn new(page: PageSize) -> Self {
        Self {
            page,
            slots: Vec::new(),
            first_free: 0,
            warm: Lists::new(Lane::Alloc),
            backed_pages: 0,
            taken: 0,
        }
    }

    /// Reserves one more region.
    pub(super) fn grow(&mut self, inner: *const Inner) -> Result<(), vm::Error> {
        let region = region::reserve(inner, self.page, self.slots.len())?;
        let all = u128::MAX >> (128 - REGION_CHUNKS);
        self.slots.push(Slot { region, free: all & !1, written: 0 });
        Ok(())
    }

    /// Takes a warm chunk of which the first `pages` pages are backed, if one is at hand.
    pub(super) fn take_warm(&mut self, pages: usize) -> Option<ChunkPtr> {
        let chunk = self.warm.first(0).or(self.warm.first(1))?;
        // SAFETY: the pool's lock is held, so its chunks are ours.
        if !unsafe { chunk.get() }.backed.contains_range(0, pages) {
            return None;
        }
        // SAFETY: the chunk is in the pool, so its place is in a region of this arena.
        let (slot, index) = unsafe { region::place_of(chunk) };
        Some(self.take_at(slot, index))
    }

    /// Takes any chunk, warm ones first.
    pub(super) fn take(&mut self, inner: *const Inner) -> Result<ChunkPtr, vm::Error> {
        if let Some(chunk) = self.take_warm(0) {
            return Ok(chunk);
        }
        let slot = match (self.first_free..self.slots.len()).find(|i| self.slots[*i].free != 0) {
            Some(slot) => slot,
            None => {
                self.grow(inner)?;
                self.slots.len() - 1
            }
        };
        self.first_free = slot;
        Ok(self.take_at(slot, self.slots[slot].free.trailing_zeros() as usize))
    }

    /// Takes `count` adjacent chunks and returns the first.
    pub(super) fn take_run(
        &mut self,
        inner: *const Inner,
        count: usize,
    ) -> Result<ChunkPtr, vm::Error> {
        let found = self.slots.iter().enumerate().find_map(|(slot, s)| {
            let first = first_run(s.free, count)?;
            Some((slot, first))
        });
        let (slot, first) = match found {
            Some(found) => found,
            None => {
                self.grow(inner)?;
                (self.slots.len() - 1, 1)
            }
        };
        (first + 1..first + count).for_each(|index| _ = self.take_at(slot, index));
        Ok(self.take_at(slot, first))
    }

    /// Takes the chunk back, with whatever is backed of it.
    ///
    /// # Safety
    /// The chunk came from this pool, the caller owns it, and gives it up.
    pub(super) unsafe fn put(&mut self, chunk: ChunkPtr) {
        // SAFETY: the caller's chunk, in a region of this arena.
        let (slot, index) = unsafe { region::place_of(chunk) };
        // SAFETY: as above.
        let backed = unsafe { chunk.get() }.backed.count();
        let list = match backed {
            0 => None,
            all if all == self.page.number_of(CHUNK_BYTES) => Some(0),
            _ => Some(1),
        };
        // SAFETY: the chunk is in no list of this lane (its class has unlinked it).
        unsafe { self.warm.place(chunk, list) };
        self.backed_pages += backed;
        self.slots[slot].free |= 1 << index;
        self.first_free = self.first_free.min(slot);
        self.taken -= 1;
    }

    /// Regions, chunks outside the pool, backed pages in the pool.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.slots.len(), self.taken, self.backed_pages)
    }

    fn take_at(&mut self, slot: usize, index: usize) -> ChunkPtr {
        let s = &mut self.slots[slot];
        let bit = 1 << index;
        debug_assert!(s.free & bit != 0, "chunk {index} of region {slot} is not in the pool");
        s.free &= !bit;
        self.taken += 1;
        // SAFETY: `index` is within the region.
        let chunk = unsafe { region::header(s.region.base(), index) };
        if s.written & bit == 0 {
            s.written |= bit;
            // SAFETY: the header's place is ours, writable and aligned.
            unsafe { chunk.0.write(Chunk::new()) };
        } else {
            // SAFETY: a pooled chunk belongs to the pool, whose lock is held.
            self.backed_pages -= unsafe { chunk.get() }.backed.count();
            // SAFETY: as above.
            unsafe { self.warm.place(chunk, None) };
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
