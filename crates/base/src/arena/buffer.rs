//! A buffer: one block, or one run of chunks, and whoever has it owns its bytes.
//!
//! Invariants: `start` is a live block of class `class`, or a live run, of an arena whose
//! memory exists at least as long as this buffer; `len` is within it. Nobody else touches
//! these bytes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::classes::{CHUNK_BYTES, RUN, SIZES};
use super::region;
use crate::vm::PageSize;

/// Owned, aligned memory from an [`Arena`](super::Arena): at a multiple of 4,096 bytes, or of
/// 512 if it is not longer than 2,048. Dropping it gives the memory back at once; it may outlive
/// every handle of its arena.
///
/// The content of a new buffer is unspecified: zeros, or what an earlier buffer left behind.
pub struct Buffer {
    start: NonNull<u8>,
    len: u32,
    class: u8,
}

const _: () = assert!(size_of::<Buffer>() <= 16, "a buffer fits a small value");
const _: () = assert!(size_of::<Option<Buffer>>() <= 16, "no buffer costs no more than one");

// SAFETY: a buffer owns its bytes, and giving them back locks what it touches.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer only hands out shared slices.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// The module's invariants hold, and nobody else owns the block.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize, class: usize) -> Self {
        Self { start, len: len as u32, class: class as u8 }
    }

    /// Bytes asked for.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of memory that the buffer takes: its block, or its whole pages if it is a run.
    #[inline]
    pub fn footprint(&self) -> usize {
        // SAFETY: the arena exists while there is a buffer of it.
        let page = unsafe { region::inner_of(self.start).as_ref() }.page;
        footprint(self.class as usize, self.len(), page)
    }

    /// Sets every byte to zero.
    pub fn zero(&mut self) {
        self.fill(0);
    }
}

/// Bytes of memory for `len` bytes in `class`: of a run, whole pages of `page`.
#[inline]
pub(super) fn footprint(class: usize, len: usize, page: PageSize) -> usize {
    SIZES.get(class).map_or_else(|| page.round_up(len), |size| *size as usize)
}

/// Chunks of a run of `len` bytes.
pub(super) fn run_chunks(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.class as usize <= RUN, "a class of the table");
        // SAFETY: the arena's memory exists at least until the block has been taken back,
        // and this buffer is the only one that takes it back.
        unsafe {
            let inner = region::inner_of(self.start);
            super::inner::Inner::free(inner, self.start, self.class as usize, self.len());
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are within the block, initialised (fresh pages read
        // as zero), and only borrowed from this buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and this buffer is borrowed mutably.
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
