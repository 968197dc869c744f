//! A buffer owns one block, or one run of chunks.
//!
//! Invariants: `start` is a live block of class `class`, or a live run, of an arena whose memory
//! exists at least as long as the buffer. `len` bytes from `start` are within it. No other code
//! accesses these bytes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::classes::{CHUNK_BYTES, RUN, SIZES};
use super::region;
use crate::vm::PageSize;

/// Owned memory from an [`Arena`](super::Arena), aligned to 4,096 bytes if its length is a multiple
/// of that, and to 512 otherwise.
///
/// Dropping it returns the memory to the arena at once. It may outlive all handles of the arena.
/// The content of a new buffer is unspecified: zeros, or the content of an earlier buffer.
pub struct Buffer {
    start: NonNull<u8>,
    len: u32,
    class: u8,
}

const _: () = assert!(size_of::<Buffer>() <= 16, "a buffer fits a small value");
const _: () = assert!(size_of::<Option<Buffer>>() <= 16, "`None` takes no extra space");

// SAFETY: a buffer owns its bytes, and freeing them locks the state that it changes.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer only hands out shared slices.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// The invariants of the module hold, and no other buffer owns the block.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize, class: usize) -> Self {
        Self { start, len: len as u32, class: class as u8 }
    }

    /// Length in bytes, as requested.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of memory that the buffer occupies: its block, or its whole pages if it is a run.
    #[inline]
    pub fn footprint(&self) -> usize {
        // SAFETY: the arena exists while it has a buffer.
        let page = unsafe { region::arena_of(self.start).as_ref() }.page;
        footprint(self.class as usize, self.len(), page)
    }

    /// Sets every byte to zero.
    pub fn zero(&mut self) {
        self.fill(0);
    }
}

/// Bytes of memory for `len` bytes in `class`: a block, or whole pages of a run.
#[inline]
pub(super) fn footprint(class: usize, len: usize, page: PageSize) -> usize {
    SIZES.get(class).map_or_else(|| page.round_up(len), |size| *size as usize)
}

/// Number of chunks of a run of `len` bytes.
pub(super) fn run_chunks(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.class as usize <= RUN, "a class of the table");
        // SAFETY: the memory of the arena exists at least until the block is freed, and only this
        // buffer frees it.
        unsafe {
            let inner = region::arena_of(self.start);
            super::inner::ArenaInner::free(inner, self.start, self.class as usize, self.len());
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are within the block and initialised (new pages read as
        // zero), and the slice borrows this buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes from `start` are within the block and initialised, and this buffer,
        // their only owner, is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("footprint", &self.footprint())
            .finish()
    }
}
