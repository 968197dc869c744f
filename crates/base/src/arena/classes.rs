//! The table of size classes.
//!
//! Purpose: map a length to the block size that serves it. Below 4 KiB the sizes double;
//! from there to 32 KiB they are all multiples of it; above, four steps to a doubling,
//! so that at most a fifth of a block (and less than 4 KiB beyond that) is waste.
//!
//! The sizes are the same whatever the system's pages are: where these are larger, several blocks
//! share a page, and a block may begin on one page and end on the next ([`Geometry`]).

use std::ops::RangeInclusive;

use crate::vm::PageSize;

/// What blocks of this size and more are multiples of, and aligned to.
const STEP_BYTES: usize = 4 << 10;

/// A chunk serves one size class at a time; it is also the size of a huge page.
pub(super) const CHUNK_BYTES: usize = 2 << 20;

const KIB: u32 = 1024;

/// Block sizes in bytes, ascending.
pub(super) const SIZES: [u32; CLASSES] = [
    512,
    KIB,
    2 * KIB,
    4 * KIB,
    8 * KIB,
    12 * KIB,
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
pub(super) const CLASSES: usize = 31;

/// Stands where a class would, for buffers that are runs of whole chunks.
pub(super) const RUN: usize = CLASSES;

/// Largest length that a size class serves; what is larger gets a run of chunks.
pub(super) const MAX_BLOCK: usize = SIZES[CLASSES - 1] as usize;

/// Classes below this one are kept in magazines.
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

/// How many blocks of `class` a magazine may hold.
pub(super) const fn magazine_capacity(class: usize) -> usize {
    let blocks = MAGAZINE_BYTES / SIZES[class] as usize;
    if blocks < MAGAZINE_BLOCKS { blocks } else { MAGAZINE_BLOCKS }
}

/// The class by length in steps (rounded up, minus one), from one step on.
static BY_STEPS: [u8; MAX_BLOCK / STEP_BYTES] = {
    let mut table = [0; MAX_BLOCK / STEP_BYTES];
    let (mut steps, mut class) = (1, 0);
    while steps <= table.len() {
        while (SIZES[class] as usize) < steps * STEP_BYTES {
            class += 1;
        }
        table[steps - 1] = class as u8;
        steps += 1;
    }
    table
};

/// The smallest class whose blocks hold `len` bytes, or [`RUN`]. `len` is not zero.
#[inline]
pub(super) fn class_of(len: usize) -> usize {
    if len <= STEP_BYTES / 2 {
        // 512, 1024 and 2048 bytes are classes 0, 1 and 2.
        (len.max(SIZES[0] as usize) - 1).ilog2() as usize - 8
    } else {
        BY_STEPS.get((len - 1) / STEP_BYTES).map_or(RUN, |class| *class as usize)
    }
}

/// How blocks of a class lie in a chunk, and on which pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Bytes of a block.
    pub(super) size: usize,
    /// Blocks in a chunk.
    pub(super) blocks: usize,
    /// Pages that a block touches, at most.
    pub(super) pages: usize,
    /// The size of a page.
    pub(super) page: PageSize,
}

impl Geometry {
    /// The geometry of `class` in pages of `page`.
    #[inline]
    pub(super) const fn of(class: usize, page: PageSize) -> Self {
        let size = SIZES[class] as usize;
        // Blocks begin at multiples of this within a page; the last of these is the worst.
        let step = 1
            << if size.trailing_zeros() < page.bytes().trailing_zeros() {
                size.trailing_zeros()
            } else {
                page.bytes().trailing_zeros()
            };
        let pages = page.number_of(page.bytes() - step + size - 1) + 1;
        Self { size, blocks: CHUNK_BYTES / size, pages, page }
    }

    /// The pages that `block` touches: the first, and how many.
    #[inline]
    pub(super) const fn pages_of(&self, block: usize) -> (usize, usize) {
        let first = self.page.number_of(block * self.size);
        (first, self.page.number_of((block + 1) * self.size - 1) + 1 - first)
    }

    /// The blocks that touch `page`; an empty range behind the last block.
    #[inline]
    pub(super) const fn blocks_on(&self, page: usize) -> RangeInclusive<usize> {
        let start = page * self.page.bytes();
        let last = (start + self.page.bytes() - 1) / self.size;
        let last = if last < self.blocks { last } else { self.blocks - 1 };
        start / self.size..=last
    }

    /// Whether pages hold whole blocks, many of them.
    #[inline]
    pub(super) const fn shares_pages(&self) -> bool {
        self.size < self.page.bytes() && self.page.bytes().is_multiple_of(self.size)
    }
}
