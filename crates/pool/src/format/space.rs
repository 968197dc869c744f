//! Space maps: which bytes of the devices are free, and the log of what changed since.
//!
//! Ranges inside a metaslab count units of [`SECTOR_UNIT`](super::SECTOR_UNIT) from the metaslab's start.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{BlockPtrPhys, DvaPhys};

/// First bytes of a [`SpaceRootPhys`]: `FBspace1`.
pub const SPACE_ROOT_MAGIC: u64 = u64::from_le_bytes(*b"FBspace1");
/// First bytes of a [`SpaceBlockPhys`]: `FBsb`.
pub const SPACE_BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"FBsb");
/// Pointers to the index that the root has room for.
pub const SPACE_ROOT_POINTERS: usize = 8;

/// Where the space maps are. It lies in the root block of its transaction group.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceRootPhys {
    /// [`SPACE_ROOT_MAGIC`].
    pub magic: U64,
    /// The transaction group that wrote it.
    pub txg: U64,
    /// Bytes that are in use: neither free nor freed by this or an earlier txg.
    pub allocated_bytes: U64,
    /// Entries in all blocks of the log.
    pub log_entries: U64,
    /// Blocks of the log, from `log` backwards; what lies behind them is forgotten.
    pub log_blocks: U32,
    /// Metaslabs in the index.
    pub metaslabs: U32,
    /// Log2 of the pool's sector in bytes.
    pub sector_shift: u8,
    /// Levels of the index below the root: 1 if `index` points to blocks of metaslabs.
    pub index_levels: u8,
    /// Pointers of `index` that are used, from the first.
    pub index_pointers: u8,
    /// Which of `root_places` the newest root block has.
    pub root_turn: u8,
    /// Bytes of a root block; 0 if there are no places for them.
    pub root_bytes: U32,
    /// Newest block of the log.
    pub log: BlockPtrPhys,
    /// The index: the topmost blocks of a tree whose leaves are arrays of [`MetaslabPhys`].
    pub index: [BlockPtrPhys; SPACE_ROOT_POINTERS],
    /// Places of root blocks, two copies each, which take turns.
    pub root_places: [[DvaPhys; 2]; SpaceRootPhys::ROOT_PLACES],
}

const _: () = assert!(size_of::<SpaceRootPhys>() == 688);

impl SpaceRootPhys {
    /// Places for root blocks that a pool has.
    pub const ROOT_PLACES: usize = 4;
}

/// A metaslab: a stretch of a device with a space map of its own.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MetaslabPhys {
    /// Last block of the base, the ranges that were free when it was written. A hole if all was.
    pub base: BlockPtrPhys,
    /// Where it begins, in bytes from the device's beginning.
    pub start_bytes: U64,
    /// Its length.
    pub length_bytes: U64,
    /// The transaction group that wrote the base: earlier allocations are in it.
    pub flushed_txg: U64,
    /// What this transaction group and earlier ones freed is free in the base.
    pub freed_txg: U64,
    /// Bytes that are free in the base.
    pub free_bytes: U64,
    /// Ranges in the base.
    pub ranges: U32,
    /// Units of the longest of them: a hint where to look for room.
    pub largest_units: U32,
    /// Blocks of the base.
    pub blocks: U32,
    /// Number of the device.
    pub device: U16,
    /// Log2 of the size of the device's metaslabs; only the last may be shorter.
    pub shift: u8,
    /// Zeros.
    pub reserved: [u8; 9],
}

const _: () = assert!(size_of::<MetaslabPhys>() == 128);

/// What a chain of blocks holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SpaceChain {
    /// The log: [`SpaceEntryPhys`].
    Log = 1,
    /// A base: [`SpaceRangePhys`].
    Base = 2,
}

/// Head of a block of the log or of a base. Entries follow, then zeros to the block's end.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceBlockPhys {
    /// [`SPACE_BLOCK_MAGIC`].
    pub magic: U32,
    /// A [`SpaceChain`].
    pub chain: u8,
    /// Zeros.
    pub reserved_0: [u8; 3],
    /// The transaction group that wrote it.
    pub txg: U64,
    /// Its number among the blocks of the same record or base, from 0.
    pub part: U32,
    /// Entries in this block.
    pub entries: U32,
    /// Of a base: the metaslab's place in the index. Else zero.
    pub metaslab: U32,
    /// Zeros.
    pub reserved_1: U32,
    /// The block before this one: the part before, or in the log the last part of the record before.
    pub previous: BlockPtrPhys,
}

const _: () = assert!(size_of::<SpaceBlockPhys>() == 96);

/// What an entry of the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SpaceChange {
    /// Allocated, before the bases of the same transaction group were taken.
    Allocated = 1,
    /// Allocated for the space maps themselves, after that.
    AllocatedLate = 2,
    /// Freed.
    Freed = 3,
}

impl SpaceChange {
    /// From its number on disk.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Allocated, Self::AllocatedLate, Self::Freed]
            .into_iter()
            .find(|change| *change as u8 == raw)
    }
}

/// An entry of the log: a range, all in one metaslab, and what became of it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceEntryPhys {
    /// Where the range begins.
    pub place: DvaPhys,
    /// Its length in units.
    pub units: U32,
    /// A [`SpaceChange`].
    pub change: u8,
    /// Zeros.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<SpaceEntryPhys>() == 16);

/// A free range in a base; these ascend, and never touch.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceRangePhys {
    /// Where it begins, in units from the metaslab's start.
    pub start: U32,
    /// Its length in units.
    pub units: U32,
}

const _: () = assert!(size_of::<SpaceRangePhys>() == 8);
