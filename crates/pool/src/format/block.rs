//! Block pointers: address, checksum and encoding of a block.

use std::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Unit of device addresses in bytes, independent of the sector size.
pub const SECTOR_UNIT: u64 = 512;

/// Pointers in an indirect block, as a power of two.
pub(crate) const POINTERS_SHIFT: u32 = 9;

/// Maximum number of blocks in a tree of this height.
pub(crate) const fn capacity(levels: u8) -> u64 {
    match levels {
        0 => 0,
        1..=8 => 1 << ((levels - 1) as u32 * POINTERS_SHIFT),
        _ => u64::MAX,
    }
}

const DEVICE_SHIFT: u32 = 48;
const UNIT_MASK: u64 = (1 << DEVICE_SHIFT) - 1;

/// A device address: the number of a device and an offset on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Dva {
    /// Number of the device in the pool.
    pub device: u16,
    /// Offset in bytes; a multiple of [`SECTOR_UNIT`].
    pub offset: u64,
}

impl fmt::Debug for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.device, self.offset)
    }
}

impl fmt::Display for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// On-disk form of a [`Dva`]: the device in the upper 16 bits, the offset in units of
/// [`SECTOR_UNIT`] below. Zero is no address, because a label lies there.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct DvaPhys(U64);

const _: () = assert!(size_of::<DvaPhys>() == 8);

impl DvaPhys {
    /// No address.
    pub const NONE: Self = Self(U64::ZERO);

    /// # Panics
    /// If the offset is not a multiple of [`SECTOR_UNIT`], or does not fit 48 bits of units.
    pub fn new(dva: Dva) -> Self {
        assert!(dva.offset.is_multiple_of(SECTOR_UNIT), "{dva} is not aligned");
        let units = dva.offset / SECTOR_UNIT;
        assert!(units <= UNIT_MASK, "{dva} is out of reach");
        Self(U64::new(u64::from(dva.device) << DEVICE_SHIFT | units))
    }

    /// Returns the address, if there is one.
    pub fn get(self) -> Option<Dva> {
        let raw = self.0.get();
        (raw != 0).then(|| Dva {
            device: (raw >> DEVICE_SHIFT) as u16,
            offset: (raw & UNIT_MASK) * SECTOR_UNIT,
        })
    }

    /// The on-disk value.
    pub fn raw(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for DvaPhys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(dva) => write!(f, "{dva}"),
            None => f.write_str("none"),
        }
    }
}

/// Compression of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Uncompressed.
    #[default]
    Off = 0,
    /// LZ4 block format, without a size prefix.
    Lz4 = 1,
    /// One Zstandard frame.
    Zstd = 2,
}

impl Compression {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Off,
            1 => Self::Lz4,
            2 => Self::Zstd,
            _ => return None,
        })
    }
}

/// Checksum of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Checksum {
    /// XXH3, 128 bits, of the bytes on the device.
    #[default]
    Xxh3 = 0,
}

impl Checksum {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        (raw == 0).then_some(Self::Xxh3)
    }
}

/// Content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockKind {
    /// Data of an object.
    Data = 0,
    /// Block pointers.
    Indirect = 1,
    /// Dnodes.
    Dnode = 2,
    /// A leaf, buffer page or filter block of a directory.
    ZapLeaf = 3,
    /// Part of the space maps: index, bases, log.
    Space = 4,
    /// The root block of a transaction group.
    Root = 5,
    /// Pointers to the pieces of a block that did not fit any contiguous free range.
    Gang = 6,
}

impl BlockKind {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Data,
            1 => Self::Indirect,
            2 => Self::Dnode,
            3 => Self::ZapLeaf,
            4 => Self::Space,
            5 => Self::Root,
            6 => Self::Gang,
            _ => return None,
        })
    }

    /// The kind in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Indirect => "indirect",
            Self::Dnode => "dnodes",
            Self::ZapLeaf => "directory block",
            Self::Space => "space map",
            Self::Root => "root",
            Self::Gang => "gang",
        }
    }

    /// Whether it is not user data.
    pub fn is_metadata(self) -> bool {
        self != Self::Data
    }
}

/// A block pointer. All zeros is a hole: a block of zeros that is not stored. A preallocated
/// pointer is also a hole, but its blocks count as allocated space of their object.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct BlockPtrPhys {
    /// Addresses of its copies. A missing copy is [`DvaPhys::NONE`] and comes last.
    pub copies: [DvaPhys; 2],
    /// Checksum of the first `physical_bytes` bytes of each copy, see [`Checksum`].
    pub checksum: [u8; 16],
    /// The txg that wrote it.
    pub birth_txg: U64,
    /// Size after decompression. May be less than the object's record size; the rest is zeros. In a
    /// preallocated pointer, the bytes that each block of level 0 beneath it counts.
    pub logical_bytes: U32,
    /// Size on a device, before rounding up to sectors.
    pub physical_bytes: U32,
    /// A [`Compression`].
    pub compression: u8,
    /// A [`Checksum`].
    pub checksum_kind: u8,
    /// Height in the block tree; 0 for data.
    pub level: u8,
    /// A [`BlockKind`] of the decompressed content.
    pub kind: u8,
    /// Bit 0: the copies are gang blocks, see `docs/format.md`. Bit 1: all blocks beneath are
    /// preallocated holes. Other bits are zero.
    pub flags: u8,
    /// Zeros.
    pub reserved: [u8; 3],
    /// Level 0: 1, or the number of dnodes in use. Above: the sum over its children.
    pub fill: U64,
}

const _: () = assert!(size_of::<BlockPtrPhys>() == 64);

impl BlockPtrPhys {
    /// A hole.
    pub const HOLE: Self = Self {
        copies: [DvaPhys::NONE; 2],
        checksum: [0; 16],
        birth_txg: U64::ZERO,
        logical_bytes: U32::ZERO,
        physical_bytes: U32::ZERO,
        compression: 0,
        checksum_kind: 0,
        level: 0,
        kind: 0,
        flags: 0,
        reserved: [0; 3],
        fill: U64::ZERO,
    };

    /// Bit of `flags`: the copies are gang blocks.
    pub const GANG: u8 = 1;

    /// Bit of `flags`: there are no copies, and all blocks beneath are preallocated holes.
    pub const PREALLOCATED: u8 = 2;

    /// A pointer at `level` to preallocated holes. Each block of level 0 beneath it counts as
    /// `bytes` allocated bytes.
    pub fn preallocated(level: u8, bytes: u32) -> Self {
        Self { level, flags: Self::PREALLOCATED, logical_bytes: U32::new(bytes), ..Self::HOLE }
    }

    /// Bytes that its preallocated holes count as allocated.
    pub(crate) fn preallocated_bytes(&self) -> i64 {
        let blocks = capacity(self.level.saturating_add(1));
        let bytes = blocks.saturating_mul(u64::from(self.logical_bytes.get()));
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }

    /// Whether it is a hole whose blocks are preallocated.
    #[inline]
    pub fn is_preallocated(&self) -> bool {
        self.is_hole() && self.flags & Self::PREALLOCATED != 0
    }

    /// Whether it is a hole without preallocated blocks.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.is_hole() && !self.is_preallocated()
    }

    /// Whether it is a hole, preallocated or not.
    #[inline]
    pub fn is_hole(&self) -> bool {
        self.copies[0] == DvaPhys::NONE
    }

    /// Returns its addresses.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + use<> {
        self.copies.into_iter().filter_map(DvaPhys::get)
    }

    /// Number of copies.
    pub fn copy_count(&self) -> usize {
        self.copies.iter().filter(|copy| **copy != DvaPhys::NONE).count()
    }

    /// Whether its copies are gang blocks.
    pub fn is_gang(&self) -> bool {
        self.flags & Self::GANG != 0
    }

    /// Its block kind, if known.
    pub fn block_kind(&self) -> Option<BlockKind> {
        BlockKind::from_raw(self.kind)
    }

    /// Bytes of each copy on a device with sectors of `sector_bytes`.
    #[inline]
    pub fn allocated_bytes(&self, sector_bytes: u64) -> u64 {
        u64::from(self.physical_bytes.get()).next_multiple_of(sector_bytes)
    }
}

impl fmt::Debug for BlockPtrPhys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, bytes) = (self.level, self.logical_bytes);
        if self.is_preallocated() {
            return write!(f, "preallocated hole of level {level}, {bytes} bytes a block");
        }
        if self.is_hole() {
            return f.write_str("hole");
        }
        let kind = self.block_kind().map_or("unknown", BlockKind::name);
        write!(f, "{kind} block of level {level}")?;
        for (at, dva) in self.dvas().enumerate() {
            write!(f, "{}{dva}", if at == 0 { " at " } else { " and " })?;
        }
        write!(f, ", {bytes} bytes ({} stored) of txg {}", self.physical_bytes, self.birth_txg)
    }
}
