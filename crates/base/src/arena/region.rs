//! Regions of chunks, and the functions from the address of a block to its chunk and its arena.
//!
//! A region is [`REGION_BYTES`] of address space, aligned to its size. The first chunk-sized range
//! has the header of the region and the headers of the chunks; the rest is chunks. Masking the
//! address of a block gives the header of the region, and so the header of the chunk and the arena.
//! A buffer therefore needs only an address, a length and a class.
//!
//! Only pages with headers that were used are resident. They are counted (at most
//! [`metadata_bytes`] per region), but are outside the limit of the arena.
//!
//! Invariants: the header of a region is written once, before a block of it is allocated, and does
//! not change until the arena is destroyed. Regions are not unmapped before that.

use std::ptr::NonNull;

use super::chunk::Chunk;
use super::classes::CHUNK_BYTES;
use super::inner::ArenaInner;
use super::lists::ChunkPtr;
use super::pages::PageSet;
use crate::vm::{self, PageSize};

/// Bytes and alignment of a region.
#[cfg(not(forebay_model))]
pub(super) const REGION_BYTES: usize = 256 << 20;
/// Bytes and alignment of a region. It is small, because the model build allocates it from the heap
/// and zeroes all of it.
#[cfg(forebay_model)]
pub(super) const REGION_BYTES: usize = 4 << 20;

/// Number of chunk-sized ranges in a region; the first has the headers.
pub(super) const REGION_CHUNKS: usize = REGION_BYTES / CHUNK_BYTES;

/// Largest number of resident bytes of headers in a region.
pub(super) const fn metadata_bytes(page: PageSize) -> usize {
    page.round_up(HEADERS_END)
}

/// Offset of the array of chunk headers; entry 0 is not used.
const HEADERS_OFFSET: usize = 128;
/// Offset of the end of the array.
const HEADERS_END: usize = HEADERS_OFFSET + REGION_CHUNKS * size_of::<Chunk>();

const _: () = assert!(
    size_of::<RegionHeader>() <= HEADERS_OFFSET,
    "the region header fits before the chunk headers"
);
const _: () = assert!(HEADERS_END <= CHUNK_BYTES, "the headers fit the first chunk-sized range");
const _: () = assert!(REGION_CHUNKS <= 128, "the bitmap of a region in the pool is a u128");

/// The header at the start of a region.
struct RegionHeader {
    inner: *const ArenaInner,
    region: *const vm::Region,
    number: usize,
}

/// Reserves region `number` of the arena and writes its header.
///
/// The box keeps the address of the `Region` stable, because the header points to it.
pub(super) fn reserve(
    inner: *const ArenaInner,
    page: PageSize,
    number: usize,
) -> Result<Box<vm::Region>, vm::Error> {
    let region = Box::new(vm::Region::with_pages(page, REGION_BYTES, REGION_BYTES)?);
    // Without this, a system with the huge page policy `always` would make a whole huge page
    // resident where the arena has committed one small page.
    region.advise_huge(false, 0, REGION_BYTES);
    let head = region.base().cast::<RegionHeader>();
    // SAFETY: the start of the region is writable and aligned, and no other thread has it yet.
    unsafe { head.write(RegionHeader { inner, region: &raw const *region, number }) };
    Ok(region)
}

/// The header of chunk `index` of the region that starts at `base`.
///
/// # Safety
/// `base` is the start of a region from [`reserve`], and `index < REGION_CHUNKS`.
pub(super) unsafe fn chunk_header(base: NonNull<u8>, index: usize) -> ChunkPtr {
    // SAFETY: the array of headers is within the first chunk-sized range of the region.
    ChunkPtr(unsafe { base.add(HEADERS_OFFSET).cast::<Chunk>().add(index) })
}

#[inline]
fn base_of(inside: NonNull<u8>) -> NonNull<u8> {
    let base = inside.as_ptr().map_addr(|address| address & !(REGION_BYTES - 1));
    // SAFETY: no region starts at address zero.
    unsafe { NonNull::new_unchecked(base) }
}

/// The arena of a block.
///
/// # Safety
/// `block` is the address of a block or run of an arena that exists.
#[inline]
pub(super) unsafe fn arena_of(block: NonNull<u8>) -> NonNull<ArenaInner> {
    // SAFETY: the header was written before the block was allocated.
    let inner = unsafe { base_of(block).cast::<RegionHeader>().as_ref() }.inner;
    // SAFETY: the address of an arena is not null.
    unsafe { NonNull::new_unchecked(inner.cast_mut()) }
}

/// The chunk of a block.
///
/// # Safety
/// As [`arena_of`].
#[inline]
pub(super) unsafe fn chunk_of(block: NonNull<u8>) -> ChunkPtr {
    let base = base_of(block);
    let index = (block.addr().get() - base.addr().get()) / CHUNK_BYTES;
    // SAFETY: the block is in a region, so `index` is within it.
    unsafe { chunk_header(base, index) }
}

/// The position of a chunk: the number of its region in the arena, and its index in the region.
///
/// # Safety
/// `chunk` is a header in a region of an arena that exists.
pub(super) unsafe fn position_of(chunk: ChunkPtr) -> (usize, usize) {
    let base = base_of(chunk.0.cast());
    let offset = chunk.0.addr().get() - base.addr().get() - HEADERS_OFFSET;
    // SAFETY: the header of the region was written before the header of a chunk.
    let number = unsafe { base.cast::<RegionHeader>().as_ref() }.number;
    (number, offset / size_of::<Chunk>())
}

/// The first byte of a chunk.
///
/// # Safety
/// As [`position_of`].
#[inline]
pub(super) unsafe fn data_of(chunk: ChunkPtr) -> NonNull<u8> {
    let base = base_of(chunk.0.cast());
    let index = (chunk.0.addr().get() - base.addr().get() - HEADERS_OFFSET) / size_of::<Chunk>();
    // SAFETY: the chunk is within its region.
    unsafe { base.add(index * CHUNK_BYTES) }
}

/// Releases `pages` of a chunk to the system. Returns the released pages, without locked pages.
///
/// # Safety
/// As [`position_of`], and no other thread uses or takes these pages meanwhile.
pub(super) unsafe fn release(chunk: ChunkPtr, pages: &PageSet) -> PageSet {
    // SAFETY: the caller says that the chunk is one of a live arena, and its region exists as long.
    let (region, (_, index)) = unsafe { (region_of(chunk), position_of(chunk)) };
    let page_bytes = region.page().bytes();
    let mut released = *pages;
    for (first, count) in pages.runs() {
        let offset = index * CHUNK_BYTES + first * page_bytes;
        // SAFETY: the caller owns these pages.
        if !unsafe { region.release(offset, count * page_bytes) } {
            released.remove_range(first, count);
        }
    }
    released
}

/// Advises the system to use a huge page for the chunk, or not to.
///
/// # Safety
/// As [`position_of`].
pub(super) unsafe fn advise_huge(chunk: ChunkPtr, wanted: bool) {
    // SAFETY: the caller says that the chunk is one of a live arena, and its region exists as long.
    let (region, (_, index)) = unsafe { (region_of(chunk), position_of(chunk)) };
    region.advise_huge(wanted, index * CHUNK_BYTES, CHUNK_BYTES);
}

/// # Safety
/// As [`position_of`]; the result must not be used after the arena is destroyed.
unsafe fn region_of<'a>(chunk: ChunkPtr) -> &'a vm::Region {
    // SAFETY: the header points to the boxed region, which exists as long as the arena.
    unsafe { &*base_of(chunk.0.cast()).cast::<RegionHeader>().as_ref().region }
}
