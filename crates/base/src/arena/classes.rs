//! The table of size classes.
//!
//! The table maps a length to a block size. Up to 2 KiB the sizes double. Above, each doubling has
//! four steps, so the waste is at most a fifth of a block, plus less than a sector.
//!
//! Every size is a multiple of a sector of 512 bytes, and every multiple of 4 KiB up to 32 KiB is a
//! size. So a length in sectors of any device gets a block that is aligned to such a sector.
//!
//! The sizes do not depend on the page size of the system. Several blocks share a page, and a block
//! may start on one page and end on the next ([`Geometry`]).

use std::ops::RangeInclusive;

use crate::vm::PageSize;

/// All sizes are multiples of this.
const SECTOR_BYTES: usize = 512;
/// Sizes above [`FINE_MAX`] are multiples of this.
const STEP_BYTES: usize = 4 << 10;
/// Up to this length, a class is found by the number of sectors.
const FINE_MAX: usize = 16 << 10;

/// Size of a chunk, and of a huge page. A chunk serves one size class at a time.
pub(super) const CHUNK_BYTES: usize = 2 << 20;

const KIB: u32 = 1024;

/// Block sizes in bytes, ascending.
pub(super) const SIZES: [u32; CLASSES] = [
    512,
    KIB,
    2 * KIB,
    2 * KIB + 512,
    3 * KIB,
    3 * KIB + 512,
    4 * KIB,
    5 * KIB,
    6 * KIB,
    7 * KIB,
    8 * KIB,
    10 * KIB,
    12 * KIB,
    14 * KIB,
    16 * KIB,
    20 * KIB,
    24 * KIB,
    28 * KIB,
    32 * KIB,
    40 * KIB,
    48 * KIB,
    56 * KIB,
    64 * KIB,
    80 * KIB,
    96 * KIB,
    112 * KIB,
    128 * KIB,
    160 * KIB,
    192 * KIB,
    224 * KIB,
    256 * KIB,
    320 * KIB,
    384 * KIB,
    448 * KIB,
    512 * KIB,
    640 * KIB,
    768 * KIB,
    896 * KIB,
    1024 * KIB,
];

/// Number of size classes.
pub(super) const CLASSES: usize = 39;

/// The class number of buffers that are runs of whole chunks.
pub(super) const RUN: usize = CLASSES;

/// Largest length that a size class serves. Longer buffers are runs of chunks.
pub(super) const MAX_BLOCK: usize = SIZES[CLASSES - 1] as usize;

/// Magazines hold blocks of the classes below this one.
pub(super) const MAGAZINE_CLASSES: usize = {
    let mut class = 0;
    while SIZES[class] as usize <= MAGAZINE_BYTES {
        class += 1;
    }
    class
};

/// A magazine holds at most this many bytes of one class ...
const MAGAZINE_BYTES: usize = 64 << 10;

/// ... and at most this many blocks.
pub(super) const MAGAZINE_BLOCKS: usize = 16;

/// Number of blocks of `class` that a magazine may hold.
pub(super) const fn magazine_capacity(class: usize) -> usize {
    let blocks = MAGAZINE_BYTES / SIZES[class] as usize;
    if blocks < MAGAZINE_BLOCKS { blocks } else { MAGAZINE_BLOCKS }
}

/// The class of a length of `i + 1` sectors (rounded up), at index `i`.
static BY_SECTORS: [u8; FINE_MAX / SECTOR_BYTES] = by_steps(SECTOR_BYTES);

/// The class of a length of `i + 1` steps (rounded up), at index `i`.
static BY_STEPS: [u8; MAX_BLOCK / STEP_BYTES] = by_steps(STEP_BYTES);

/// The smallest class whose blocks hold `i + 1` steps, at index `i`.
const fn by_steps<const N: usize>(step_bytes: usize) -> [u8; N] {
    let mut table = [0; N];
    let (mut steps, mut class) = (1, 0);
    while steps <= table.len() {
        while (SIZES[class] as usize) < steps * step_bytes {
            class += 1;
        }
        table[steps - 1] = class as u8;
        steps += 1;
    }
    table
}

/// The smallest class whose blocks hold `len` bytes, or [`RUN`]. `len` must not be zero.
#[inline]
pub(super) fn class_of(len: usize) -> usize {
    if len <= FINE_MAX {
        BY_SECTORS[(len - 1) / SECTOR_BYTES] as usize
    } else {
        BY_STEPS.get((len - 1) / STEP_BYTES).map_or(RUN, |class| *class as usize)
    }
}

/// The layout of the blocks of a class in a chunk, and on its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Bytes of a block.
    pub(super) size: usize,
    /// Blocks in a chunk.
    pub(super) blocks: usize,
    /// The largest number of pages of a block.
    pub(super) pages: usize,
    /// The page size.
    pub(super) page: PageSize,
}

impl Geometry {
    /// The geometry of `class` with the page size `page`.
    #[inline]
    pub(super) const fn of(class: usize, page: PageSize) -> Self {
        let size = SIZES[class] as usize;
        // Blocks start at multiples of this in a page. The last start needs the most pages.
        let step = 1
            << if size.trailing_zeros() < page.bytes().trailing_zeros() {
                size.trailing_zeros()
            } else {
                page.bytes().trailing_zeros()
            };
        let pages = page.number_of(page.bytes() - step + size - 1) + 1;
        Self { size, blocks: CHUNK_BYTES / size, pages, page }
    }

    /// The pages of `block`: the first page and the number of pages.
    #[inline]
    pub(super) const fn pages_of(&self, block: usize) -> (usize, usize) {
        let first = self.page.number_of(block * self.size);
        (first, self.page.number_of((block + 1) * self.size - 1) + 1 - first)
    }

    /// The blocks on `page`; an empty range after the last block.
    #[inline]
    pub(super) const fn blocks_on(&self, page: usize) -> RangeInclusive<usize> {
        let start = page * self.page.bytes();
        let last = (start + self.page.bytes() - 1) / self.size;
        let last = if last < self.blocks { last } else { self.blocks - 1 };
        start / self.size..=last
    }

    /// Whether a page holds several whole blocks and no part of a block.
    #[inline]
    pub(super) const fn shares_pages(&self) -> bool {
        self.size < self.page.bytes() && self.page.bytes().is_multiple_of(self.size)
    }
}
