//! Directories: names and their values, inside the dnode while few, in leaves when many.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest name in bytes; the shortest has one.
pub const ZAP_NAME_MAX: usize = 255;
/// Longest value in bytes; the shortest has one.
pub const ZAP_VALUE_MAX: usize = 32;
/// A leaf in memory while it changes, and the record size of a directory's object.
pub const ZAP_LEAF_BYTES: usize = 16 << 10;
/// A stored leaf is a multiple of this long.
pub const ZAP_LEAF_STEP: usize = 512;
/// Most bits of a name's hash that a leaf can be chosen by.
pub const ZAP_DEPTH_MAX: u8 = 24;
/// First bytes of a leaf.
pub const ZAP_LEAF_MAGIC: u32 = u32::from_le_bytes(*b"FbZl");

/// `ZapHeadPhys::form`: the entries follow.
pub const ZAP_MICRO: u8 = 1;
/// `ZapHeadPhys::form`: a [`ZapFatPhys`], the entries are in leaves.
pub const ZAP_FAT: u8 = 2;

/// `ZapLeafPhys::form`: slots follow the records.
pub const ZAP_LEAF_STORED: u8 = 1;
/// `ZapLeafPhys::form`: slots end where the leaf's [`ZAP_LEAF_BYTES`] do. Only in memory.
pub const ZAP_LEAF_OPEN: u8 = 2;

/// Front of a directory's inline content.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapHeadPhys {
    /// [`ZAP_MICRO`] or [`ZAP_FAT`].
    pub form: u8,
    /// Zeros.
    pub reserved: [u8; 3],
    /// Seed of the names' hash, XXH3 with 64 bits.
    pub seed: U64,
}

const _: () = assert!(size_of::<ZapHeadPhys>() == 12);

/// Front of an entry of a micro directory; its name follows, then its value.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapMicroEntryPhys {
    /// Tells names apart whose hashes' upper 32 bits are the same.
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
    /// With the form [`ZAP_FAT`].
    pub head: ZapHeadPhys,
    /// Depth of the deepest leaf.
    pub depth: u8,
    /// Zeros.
    pub reserved: [u8; 3],
    /// Entries in all leaves.
    pub entries: U64,
    /// Leaves of each depth.
    pub leaves_at: [U32; ZAP_DEPTH_MAX as usize + 1],
}

const _: () = assert!(size_of::<ZapFatPhys>() == 124);
const _: () = assert!(size_of::<ZapFatPhys>() <= super::TAIL_BYTES - super::ATTRIBUTES_MAX);

/// Front of a leaf. Records follow: length of the name (one byte), of the value (one byte), name, value.
/// Then slots, see [`ZapSlotPhys`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZapLeafPhys {
    /// [`ZAP_LEAF_MAGIC`].
    pub magic: U32,
    /// What the upper bits of its names' hashes are; bits past `depth` are zero.
    pub prefix: U32,
    /// How many of those bits count.
    pub depth: u8,
    /// [`ZAP_LEAF_STORED`] on a device.
    pub form: u8,
    /// Entries.
    pub count: U16,
    /// Where records end.
    pub records_end: U16,
    /// Where slots begin, a multiple of 8.
    pub slots_at: U16,
    /// Bytes of records that no slot leads to.
    pub hole_bytes: U16,
    /// Zeros.
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<ZapLeafPhys>() == 24);

/// Leads to an entry of a leaf: upper 32 bits of the name's hash, then 16 bits of collision number, then 16
/// bits of where in the leaf its record is. Slots are in the order of these numbers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct ZapSlotPhys(U64);

const _: () = assert!(size_of::<ZapSlotPhys>() == 8);

impl ZapSlotPhys {
    /// A slot for the record at `at`.
    #[inline]
    pub fn new(position: u64, at: u16) -> Self {
        Self(U64::new(position << 16 | u64::from(at)))
    }

    /// The name's place in the order of the directory: hash and collision number.
    #[inline]
    pub fn position(self) -> u64 {
        self.0.get() >> 16
    }

    /// Upper half of the name's hash.
    #[inline]
    pub fn hash(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    /// Where in the leaf the record is.
    #[inline]
    pub fn at(self) -> usize {
        usize::from(self.0.get() as u16)
    }
}
