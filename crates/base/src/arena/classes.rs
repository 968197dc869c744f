//! The table of size classes.
//!
//! Purpose: map a length to the block size that serves it. Below a page the sizes double;
//! from a page to 32 KiB they are all multiples of a page; above, four steps to a doubling,
//! so that at most a fifth of a block (and less than a page beyond that) is waste.

/// Granularity at which memory is backed and released.
pub(super) const PAGE_BYTES: usize = crate::vm::PAGE;

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

/// The class by length in pages (rounded up, minus one), from one page on.
static BY_PAGES: [u8; MAX_BLOCK / PAGE_BYTES] = {
    let mut table = [0; MAX_BLOCK / PAGE_BYTES];
    let (mut pages, mut class) = (1, 0);
    while pages <= table.len() {
        while (SIZES[class] as usize) < pages * PAGE_BYTES {
            class += 1;
        }
        table[pages - 1] = class as u8;
        pages += 1;
    }
    table
};

/// The smallest class whose blocks hold `len` bytes, or [`RUN`]. `len` is not zero.
#[inline]
pub(super) fn class_of(len: usize) -> usize {
    if len <= PAGE_BYTES / 2 {
        // 512, 1024 and 2048 bytes are classes 0, 1 and 2.
        (len.max(SIZES[0] as usize) - 1).ilog2() as usize - 8
    } else {
        BY_PAGES.get((len - 1) / PAGE_BYTES).map_or(RUN, |class| *class as usize)
    }
}

/// How blocks of a class lie in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Bytes of a block.
    pub(super) size: usize,
    /// Blocks in a chunk.
    pub(super) blocks: usize,
    /// Pages of a block, at least one.
    pub(super) pages: usize,
    /// Blocks in a page, for classes below a page; otherwise one.
    pub(super) in_page: usize,
}

impl Geometry {
    /// The geometry of `class`.
    #[inline]
    pub(super) const fn of(class: usize) -> Self {
        let size = SIZES[class] as usize;
        let below_page = size < PAGE_BYTES;
        Self {
            size,
            blocks: CHUNK_BYTES / size,
            pages: if below_page { 1 } else { size / PAGE_BYTES },
            in_page: if below_page { PAGE_BYTES / size } else { 1 },
        }
    }
}
