//! Space maps: the free ranges of the devices, and the log of changes.
//!
//! Ranges within a metaslab count units of [`SECTOR_UNIT`](super::SECTOR_UNIT) from the metaslab's
//! start.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{BlockPtrPhys, DvaPhys};

/// First bytes of a [`SpaceRootPhys`]: `FBspace1`.
pub const SPACE_ROOT_MAGIC: u64 = u64::from_le_bytes(*b"FBspace1");
/// First bytes of a [`SpaceBlockPhys`]: `FBsb`.
pub const SPACE_BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"FBsb");
/// Number of index pointers in the root.
pub const SPACE_ROOT_POINTERS: usize = 8;
/// Space that a txg frees is allocatable this many txgs later.
pub(crate) const TXGS_TO_REUSE: u64 = 3;

/// Root of the space maps, in the root block of its txg.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceRootPhys {
    /// [`SPACE_ROOT_MAGIC`].
    pub magic: U64,
    /// The txg that wrote it.
    pub txg: U64,
    /// Allocated bytes: neither free nor deferred.
    pub allocated_bytes: U64,
    /// Number of entries in the log.
    pub log_entries: U64,
    /// Number of blocks of the log, from `log` backwards. Older blocks are not part of it.
    pub log_blocks: U32,
    /// Number of metaslabs.
    pub metaslabs: U32,
    /// Log2 of the pool's sector size in bytes.
    pub sector_shift: u8,
    /// Number of index levels below the root: 1 if `index` points to leaves.
    pub index_levels: u8,
    /// Number of used pointers in `index`.
    pub index_pointers: u8,
    /// Index in `root_slots` of the newest root block.
    pub root_slot: u8,
    /// Size of a root block; 0 if `root_slots` is unused.
    pub root_bytes: U32,
    /// Newest block of the log.
    pub log: BlockPtrPhys,
    /// The topmost blocks of the index, a tree whose leaves are arrays of [`MetaslabPhys`].
    pub index: [BlockPtrPhys; SPACE_ROOT_POINTERS],
    /// Addresses of root blocks, two copies each, used in rotation.
    pub root_slots: [[DvaPhys; 2]; SpaceRootPhys::ROOT_SLOTS],
}

const _: () = assert!(size_of::<SpaceRootPhys>() == 688);

impl SpaceRootPhys {
    /// Number of addresses for root blocks.
    pub const ROOT_SLOTS: usize = 4;
}

/// A metaslab: an extent of a device with its own space map.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MetaslabPhys {
    /// Last block of the base, the ranges that were free when it was written. A hole if all of it
    /// was free.
    pub base: BlockPtrPhys,
    /// Start on the device, in bytes.
    pub start_bytes: U64,
    /// Length in bytes.
    pub length_bytes: U64,
    /// The txg that wrote the base, which includes all earlier allocations.
    pub flushed_txg: U64,
    /// The base includes the frees of this txg and of earlier ones.
    pub freed_txg: U64,
    /// Free bytes in the base.
    pub free_bytes: U64,
    /// Number of ranges in the base.
    pub ranges: U32,
    /// Length of the longest range in units; a hint for the allocator.
    pub largest_units: U32,
    /// Number of blocks of the base.
    pub blocks: U32,
    /// Number of the device.
    pub device: U16,
    /// Log2 of the size of the device's metaslabs. Only the last one may be shorter.
    pub shift: u8,
    /// Zeros.
    pub reserved: [u8; 9],
}

const _: () = assert!(size_of::<MetaslabPhys>() == 128);

/// Content of a chain of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SpaceChain {
    /// The log: [`SpaceEntryPhys`].
    Log = 1,
    /// A base: [`SpaceRangePhys`].
    Base = 2,
}

/// Header of a block of the log or of a base. Entries follow, then zeros to the end of the block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceBlockPhys {
    /// [`SPACE_BLOCK_MAGIC`].
    pub magic: U32,
    /// A [`SpaceChain`].
    pub chain: u8,
    /// Zeros.
    pub reserved_0: [u8; 3],
    /// The txg that wrote it.
    pub txg: U64,
    /// Its index among the blocks of its record or base.
    pub part: U32,
    /// Number of entries in this block.
    pub entries: U32,
    /// Of a base: the metaslab's number. Otherwise zero.
    pub metaslab: U32,
    /// Zeros.
    pub reserved_1: U32,
    /// The previous block: the previous part, or in the log the last part of the previous record.
    pub previous: BlockPtrPhys,
}

const _: () = assert!(size_of::<SpaceBlockPhys>() == 96);

/// Kind of an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SpaceChange {
    /// Allocated before the bases of the same txg were copied.
    Allocated = 1,
    /// Allocated for the space maps themselves, after that.
    AllocatedLate = 2,
    /// Freed.
    Freed = 3,
}

impl SpaceChange {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Allocated, Self::AllocatedLate, Self::Freed]
            .into_iter()
            .find(|change| *change as u8 == raw)
    }
}

/// An entry of the log: a range within one metaslab, and its change.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceEntryPhys {
    /// Start of the range.
    pub place: DvaPhys,
    /// Its length in units.
    pub units: U32,
    /// A [`SpaceChange`].
    pub change: u8,
    /// Zeros.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<SpaceEntryPhys>() == 16);

/// A free range of a base. Ranges are sorted and do not adjoin.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpaceRangePhys {
    /// Start in units, from the metaslab's start.
    pub start: U32,
    /// Its length in units.
    pub units: U32,
}

const _: () = assert!(size_of::<SpaceRangePhys>() == 8);
