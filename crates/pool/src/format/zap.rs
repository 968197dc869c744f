//! Directories: small ones are stored inside the dnode, large ones in leaves, with filters and a
//! change buffer beside them.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of a name; the minimum is one byte.
pub const ZAP_NAME_MAX: usize = 255;
/// Maximum length of a value; the minimum is one byte.
pub const ZAP_VALUE_MAX: usize = 32;
/// Size of a leaf in memory while it changes, and record size of a directory.
pub const ZAP_LEAF_BYTES: usize = 16 << 10;
/// Size of a buffer page in memory while it changes.
pub const ZAP_PAGE_BYTES: usize = 4 << 10;
/// The size of a stored leaf is a multiple of this.
pub const ZAP_LEAF_STEP: usize = 512;
/// Maximum number of hash bits that select a leaf.
pub const ZAP_DEPTH_MAX: u8 = 24;
/// Maximum number of hash bits that select a buffer page.
pub const ZAP_PAGE_DEPTH_MAX: u8 = 20;
/// Number of leaves, with consecutive numbers, that share a filter block.
pub const ZAP_FILTER_LEAVES: usize = 16;
/// First bytes of a filter block.
pub const ZAP_FILTER_MAGIC: u32 = u32::from_le_bytes(*b"FbZf");
/// First bytes of a leaf.
pub const ZAP_LEAF_MAGIC: u32 = u32::from_le_bytes(*b"FbZl");

/// `ZapHeadPhys::form`: the entries follow.
pub const ZAP_MICRO: u8 = 1;
/// `ZapHeadPhys::form`: a [`ZapFatPhys`]; the entries are in leaves.
pub const ZAP_FAT: u8 = 2;

/// `ZapLeafPhys::form`: slots follow the records.
pub const ZAP_LEAF_STORED: u8 = 1;
/// `ZapLeafPhys::form`: slots end at [`ZAP_LEAF_BYTES`]. Only in memory.
pub const ZAP_LEAF_OPEN: u8 = 2;

/// Header of a directory's inline content.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapHeadPhys {
    /// [`ZAP_MICRO`] or [`ZAP_FAT`].
    pub form: u8,
    /// Zeros.
    pub reserved: [u8; 3],
    /// Seed of the name hash, XXH3 with 64 bits.
    pub seed: U64,
}

const _: () = assert!(size_of::<ZapHeadPhys>() == 12);

/// Header of an entry of a micro directory. Its name follows, then its value.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapMicroEntryPhys {
    /// Distinguishes names with equal upper 32 bits of the hash.
    pub collision: U16,
    /// Length of the name.
    pub name_bytes: u8,
    /// Length of the value.
    pub value_bytes: u8,
}

const _: () = assert!(size_of::<ZapMicroEntryPhys>() == 4);

/// Inline content of a fat directory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapFatPhys {
    /// Header with the form [`ZAP_FAT`].
    pub head: ZapHeadPhys,
    /// Depth of the deepest leaf.
    pub depth: u8,
    /// 1 if leaves have slots of filter blocks, and new names may be in buffer pages; else 0.
    pub aided: u8,
    /// No buffer page is deeper. 0 if there is one page only.
    pub page_depth: u8,
    /// Zero.
    pub reserved: u8,
    /// Number of entries in all leaves and buffer pages.
    pub entries: U64,
    /// Number of entries in buffer pages.
    pub buffered: U64,
    /// Number of buffer pages.
    pub pages: U32,
    /// Number of leaves of each depth.
    pub leaves_at: [U32; ZAP_DEPTH_MAX as usize + 1],
}

const _: () = assert!(size_of::<ZapFatPhys>() == 136);
const _: () = assert!(size_of::<ZapFatPhys>() <= super::TAIL_BYTES - super::ATTRIBUTES_MAX);

/// Header of a leaf. Records follow: length of the name (one byte), length of the value (one byte),
/// name, value. Then slots, see [`ZapSlotPhys`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapLeafPhys {
    /// [`ZAP_LEAF_MAGIC`].
    pub magic: U32,
    /// The upper bits of the hashes of its names; bits past `depth` are zero.
    pub prefix: U32,
    /// Number of significant bits of `prefix`.
    pub depth: u8,
    /// [`ZAP_LEAF_STORED`] on a device.
    pub form: u8,
    /// Number of entries.
    pub count: U16,
    /// End of the records.
    pub records_end: U16,
    /// Start of the slots, a multiple of 8.
    pub slots_at: U16,
    /// Bytes of records without a slot.
    pub hole_bytes: U16,
    /// Zeros.
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<ZapLeafPhys>() == 24);

/// Header of a filter block. Data of the slots follows: for each, `names` bytes with the lower
/// eight bits of each fingerprint, ascending, then `2 * names` bits with their upper bits in unary.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapFilterPhys {
    /// [`ZAP_FILTER_MAGIC`].
    pub magic: U32,
    /// Zeros.
    pub reserved: [u8; 4],
    /// Seed of the name hash.
    pub seed: U64,
    /// The filter of leaf `i` of the block's leaves is slot `i`.
    pub slots: [ZapFilterSlotPhys; ZAP_FILTER_LEAVES],
}

const _: () = assert!(size_of::<ZapFilterPhys>() == 272);

/// The filter of one leaf. All zeros: none.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapFilterSlotPhys {
    /// Birth txg of the leaf that the filter was made from. With another leaf the filter is void.
    pub leaf_txg: U64,
    /// Offset of its data in the block.
    pub at: U16,
    /// Number of fingerprints.
    pub names: U16,
    /// Depth of the leaf.
    pub depth: u8,
    /// Zeros.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<ZapFilterSlotPhys>() == 16);

/// What a block of a directory's object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZapBlock {
    /// The leaf with this number: its hash prefix in reverse bit order.
    Leaf(u64),
    /// The filter block of the [`ZAP_FILTER_LEAVES`] leaves from this number times as many on.
    Filter(u64),
    /// The buffer page with this number: its hash prefix in reverse bit order.
    Page(u64),
}

impl fmt::Display for ZapBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaf(id) => write!(f, "leaf {id}"),
            Self::Filter(index) => write!(f, "filter block {index}"),
            Self::Page(id) => write!(f, "buffer page {id}"),
        }
    }
}

/// Leaves from this number on lie behind the filter blocks and buffer pages.
const FAR_LEAF: u64 = 1 << 13;
/// Number of filter blocks, and of buffer pages.
const ASIDE: u64 = 1 << (ZAP_DEPTH_MAX - ZAP_FILTER_LEAVES.trailing_zeros() as u8);
const _: () = assert!(ZAP_PAGE_DEPTH_MAX == ZAP_DEPTH_MAX - 4);

/// The blocks of a directory's object that hold filters and buffer pages.
pub const ZAP_ASIDE: std::ops::Range<u64> = FAR_LEAF..FAR_LEAF + 2 * ASIDE;

impl ZapBlock {
    /// Block number in the directory's object. Filter blocks and buffer pages alternate. They are
    /// near the first leaves, so that the indirect blocks above both are few and short.
    #[inline]
    pub fn block(self) -> u64 {
        match self {
            Self::Leaf(id) if id < FAR_LEAF => id,
            Self::Leaf(id) => id + 2 * ASIDE,
            Self::Filter(index) => ZAP_ASIDE.start + 2 * index,
            Self::Page(id) => ZAP_ASIDE.start + 2 * id + 1,
        }
    }

    /// The content of a block of a directory's object.
    #[inline]
    pub fn of(block: u64) -> Self {
        match block {
            _ if block < FAR_LEAF => Self::Leaf(block),
            _ if block >= ZAP_ASIDE.end => Self::Leaf(block - 2 * ASIDE),
            _ if block.is_multiple_of(2) => Self::Filter((block - FAR_LEAF) / 2),
            _ => Self::Page((block - FAR_LEAF) / 2),
        }
    }
}

/// Refers to an entry of a leaf: upper 32 bits of the name's hash, 16 bits of collision number (the
/// next 16 bits of the hash, or the first free number after them, modulo 2^16), and 16 bits of
/// offset of the record in the leaf. Slots are sorted by these numbers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct ZapSlotPhys(U64);

const _: () = assert!(size_of::<ZapSlotPhys>() == 8);

impl ZapSlotPhys {
    /// Creates a slot for the record at offset `at`.
    #[inline]
    pub fn new(position: u64, at: u16) -> Self {
        Self(U64::new(position << 16 | u64::from(at)))
    }

    /// Position of the name in the order of the directory: hash and collision number.
    #[inline]
    pub fn position(self) -> u64 {
        self.0.get() >> 16
    }

    /// Upper half of the name's hash.
    #[inline]
    pub fn hash(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    /// Offset of the record in the leaf.
    #[inline]
    pub fn at(self) -> usize {
        usize::from(self.0.get() as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_one_content() {
        let leaves = [0, 1, FAR_LEAF - 1, FAR_LEAF, FAR_LEAF + 1, (1 << ZAP_DEPTH_MAX) - 1];
        let asides = [0, 1, 17, ASIDE - 1];
        let all = leaves.map(ZapBlock::Leaf).into_iter();
        let all = all.chain(asides.map(ZapBlock::Filter)).chain(asides.map(ZapBlock::Page));
        let blocks: std::collections::BTreeSet<u64> = all
            .inspect(|one| assert_eq!(ZapBlock::of(one.block()), *one))
            .map(ZapBlock::block)
            .collect();
        assert_eq!(blocks.len(), leaves.len() + 2 * asides.len());
        assert!(ZAP_ASIDE.contains(&ZapBlock::Page(ASIDE - 1).block()));
        assert!(!ZAP_ASIDE.contains(&ZapBlock::Leaf(FAR_LEAF).block()));
    }
}
