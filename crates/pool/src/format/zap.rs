//! Directories: small ones are stored inside the dnode, large ones in leaves.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of a name; the minimum is one byte.
pub const ZAP_NAME_MAX: usize = 255;
/// Maximum length of a value; the minimum is one byte.
pub const ZAP_VALUE_MAX: usize = 32;
/// Size of a leaf in memory while it changes, and record size of a directory.
pub const ZAP_LEAF_BYTES: usize = 16 << 10;
/// The size of a stored leaf is a multiple of this.
pub const ZAP_LEAF_STEP: usize = 512;
/// Maximum number of hash bits that select a leaf.
pub const ZAP_DEPTH_MAX: u8 = 24;
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
    /// Zeros.
    pub reserved: [u8; 3],
    /// Number of entries in all leaves.
    pub entries: U64,
    /// Number of leaves of each depth.
    pub leaves_at: [U32; ZAP_DEPTH_MAX as usize + 1],
}

const _: () = assert!(size_of::<ZapFatPhys>() == 124);
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

/// Refers to an entry of a leaf: upper 32 bits of the name's hash, 16 bits of collision number, and
/// 16 bits of offset of the record in the leaf. Slots are sorted by these numbers.
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
