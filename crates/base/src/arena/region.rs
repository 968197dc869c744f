//! Regions of chunks, and the way from a block's address to its chunk and its arena.
//!
//! Purpose: a region is [`REGION_BYTES`] of address space at a multiple of its size. Its
//! first chunk's worth of addresses holds the region's head and the chunks' headers, the rest
//! are chunks. So a block's address alone leads to the head (by masking) and from there to its
//! chunk's header and its arena, and a buffer needs no more than an address and a length.
//!
//! Only the pages of headers that have been used are ever resident; they are counted
//! ([`metadata_bytes`] a region at most) but are not part of the arena's limit.
//!
//! Invariants: a head is written once, before any block of its region is handed out, and is
//! not changed until the arena goes. Regions are never unmapped before that.

use std::ptr::NonNull;

use super::chunk::Chunk;
use super::classes::CHUNK_BYTES;
use super::inner::Inner;
use super::lists::ChunkPtr;
use super::pages::PageSet;
use crate::vm::{self, PageSize};

/// Bytes and alignment of a region.
#[cfg(not(forebay_model))]
pub(super) const REGION_BYTES: usize = 256 << 20;
/// Small, since the model build takes it from the heap and zeroes all of it.
#[cfg(forebay_model)]
pub(super) const REGION_BYTES: usize = 4 << 20;

/// Chunk-sized places in a region; the first holds the headers.
pub(super) const REGION_CHUNKS: usize = REGION_BYTES / CHUNK_BYTES;

/// Most bytes of heads and headers that can be resident in a region.
pub(super) const fn metadata_bytes(page: PageSize) -> usize {
    page.round_up(HEADERS_END)
}

/// Where the array of headers starts; entry 0 is not used.
const HEADERS_AT: usize = 128;
/// Where it ends.
const HEADERS_END: usize = HEADERS_AT + REGION_CHUNKS * size_of::<Chunk>();

const _: () = assert!(size_of::<Head>() <= HEADERS_AT, "the head fits before the headers");
const _: () = assert!(HEADERS_END <= CHUNK_BYTES, "the headers fit the first chunk");
const _: () = assert!(REGION_CHUNKS <= 128, "the pool's bitmap of a region is a u128");

/// What lies at the start of a region.
struct Head {
    inner: *const Inner,
    region: *const vm::Region,
    number: usize,
}

/// Reserves a region, region `number` of the arena, and writes its head.
///
/// The box keeps the region's own address stable, so that chunks can be released without
/// looking their region up.
pub(super) fn reserve(
    inner: *const Inner,
    page: PageSize,
    number: usize,
) -> Result<Box<vm::Region>, vm::Error> {
    let region = Box::new(vm::Region::with_pages(page, REGION_BYTES, REGION_BYTES)?);
    // Without this, a system whose policy is `always` would make whole huge pages resident
    // where the arena has accounted for one small page.
    region.advise_huge(false, 0, REGION_BYTES);
    let head = region.base().cast::<Head>();
    // SAFETY: the region's start is writable, aligned, and ours alone until it is published.
    unsafe { head.write(Head { inner, region: &raw const *region, number }) };
    Ok(region)
}

/// The header of chunk `index` of the region that starts at `base`.
///
/// # Safety
/// `base` is the start of a region made by [`reserve`], and `index < REGION_CHUNKS`.
pub(super) unsafe fn header(base: NonNull<u8>, index: usize) -> ChunkPtr {
    // SAFETY: the array of headers lies within the region's first chunk.
    ChunkPtr(unsafe { base.add(HEADERS_AT).cast::<Chunk>().add(index) })
}

#[inline]
fn base_of(inside: NonNull<u8>) -> NonNull<u8> {
    let base = inside.as_ptr().map_addr(|address| address & !(REGION_BYTES - 1));
    // SAFETY: regions do not start at address zero.
    unsafe { NonNull::new_unchecked(base) }
}

/// The arena that a block belongs to.
///
/// # Safety
/// `block` is the address of a block or run of a living arena.
#[inline]
pub(super) unsafe fn inner_of(block: NonNull<u8>) -> NonNull<Inner> {
    // SAFETY: the head was written before the block was handed out.
    let inner = unsafe { base_of(block).cast::<Head>().as_ref() }.inner;
    // SAFETY: an arena's address is not null.
    unsafe { NonNull::new_unchecked(inner.cast_mut()) }
}

/// The chunk that a block lies in.
///
/// # Safety
/// As [`inner_of`].
#[inline]
pub(super) unsafe fn chunk_of(block: NonNull<u8>) -> ChunkPtr {
    let base = base_of(block);
    let index = (block.addr().get() - base.addr().get()) / CHUNK_BYTES;
    // SAFETY: the block lies in a region, so its index is within it.
    unsafe { header(base, index) }
}

/// The place of a chunk: its region's number in the arena and its index there.
///
/// # Safety
/// `chunk` is a header in a region of a living arena.
pub(super) unsafe fn place_of(chunk: ChunkPtr) -> (usize, usize) {
    let base = base_of(chunk.0.cast());
    let offset = chunk.0.addr().get() - base.addr().get() - HEADERS_AT;
    // SAFETY: the head was written before any header.
    let number = unsafe { base.cast::<Head>().as_ref() }.number;
    (number, offset / size_of::<Chunk>())
}

/// The first byte of a chunk.
///
/// # Safety
/// As [`place_of`].
#[inline]
pub(super) unsafe fn data_of(chunk: ChunkPtr) -> NonNull<u8> {
    let base = base_of(chunk.0.cast());
    let index = (chunk.0.addr().get() - base.addr().get() - HEADERS_AT) / size_of::<Chunk>();
    // SAFETY: the chunk lies within its region.
    unsafe { base.add(index * CHUNK_BYTES) }
}

/// Gives the pages of a chunk in `pages` back to the system. Returns those that it took: not locked
/// ones.
///
/// # Safety
/// As [`place_of`], and nobody uses or takes these pages meanwhile.
pub(super) unsafe fn release(chunk: ChunkPtr, pages: &PageSet) -> PageSet {
    // SAFETY: by contract; the region lives as long as the arena.
    let (region, (_, index)) = unsafe { (region_of(chunk), place_of(chunk)) };
    let page_bytes = region.page().bytes();
    let mut released = *pages;
    for (first, count) in pages.runs() {
        let offset = index * CHUNK_BYTES + first * page_bytes;
        // SAFETY: the caller has these pages to itself.
        if !unsafe { region.release(offset, count * page_bytes) } {
            released.remove_range(first, count);
        }
    }
    released
}

/// Asks for a huge page for the whole chunk, or forbids it.
///
/// # Safety
/// As [`place_of`].
pub(super) unsafe fn advise_huge(chunk: ChunkPtr, wanted: bool) {
    // SAFETY: by contract.
    let (region, (_, index)) = unsafe { (region_of(chunk), place_of(chunk)) };
    region.advise_huge(wanted, index * CHUNK_BYTES, CHUNK_BYTES);
}

/// # Safety
/// As [`place_of`]; the result must not be used after the arena has gone.
unsafe fn region_of<'a>(chunk: ChunkPtr) -> &'a vm::Region {
    // SAFETY: heads point at their region's box, which lives as long as the arena.
    unsafe { &*base_of(chunk.0.cast()).cast::<Head>().as_ref().region }
}
