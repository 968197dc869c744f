//! Object sets and datasets.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::BlockPtrPhys;

/// An object set: an array of dnodes, stored like an object's data in blocks of
/// [`DNODE_BLOCK_BYTES`](super::DNODE_BLOCK_BYTES).
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ObjsetPhys {
    /// Root of the tree of dnode blocks.
    pub root: BlockPtrPhys,
    /// Number of dnode blocks before the end.
    pub blocks: U64,
    /// Number of objects in use.
    pub objects: U64,
    /// Bytes allocated on devices: dnode blocks, their indirect blocks, and all blocks of objects.
    pub allocated_bytes: U64,
    /// Height of the tree.
    pub levels: u8,
    /// Zeros.
    pub reserved: [u8; 7],
}

const _: () = assert!(size_of::<ObjsetPhys>() == 96);

/// Blocks of a dataset that RAM, or an L2, may cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CacheMode {
    /// All blocks.
    #[default]
    All = 0,
    /// Metadata only.
    Metadata = 1,
    /// No blocks.
    None = 2,
}

impl CacheMode {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::All, Self::Metadata, Self::None].into_iter().find(|mode| *mode as u8 == raw)
    }
}

/// When an fsync of a dataset returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SyncMode {
    /// Once the intent log is durable.
    #[default]
    Log = 0,
    /// Once the transaction group is durable. Operations are not logged; an fsync commits the txg.
    Txg = 1,
}

impl SyncMode {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Log, Self::Txg].into_iter().find(|mode| *mode as u8 == raw)
    }
}

/// What changes of a dataset do while the pool is suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FailMode {
    /// They wait until the pool is cleared.
    #[default]
    Wait = 0,
    /// They fail at once.
    Continue = 1,
}

impl FailMode {
    /// Decodes the on-disk number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Wait, Self::Continue].into_iter().find(|mode| *mode as u8 == raw)
    }
}

/// A dataset: the attributes of an object of kind `Dataset` among the pool's own objects.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DatasetPhys {
    /// Its objects.
    pub objset: ObjsetPhys,
    /// The GUID of the dataset.
    pub guid: U64,
    /// The txg that created it.
    pub created_txg: U64,
    /// Number of its root object; 0 if there is none.
    pub root_object: U64,
    /// Log2 of the record size of new objects.
    pub record_shift: u8,
    /// Compression of data, see `Compression`.
    pub data_compression: u8,
    /// Copies of data: 1 or 2.
    pub data_copies: u8,
    /// Copies of metadata: 1 or 2.
    pub metadata_copies: u8,
    /// Compression of metadata.
    pub metadata_compression: u8,
    /// A [`CacheMode`].
    pub cache: u8,
    /// A [`SyncMode`].
    pub sync: u8,
    /// A [`CacheMode`] for L2 devices.
    pub l2: u8,
    /// Kind of its user; 0 for none.
    pub flavour: U32,
    /// A [`FailMode`].
    pub fail_mode: u8,
    /// Zeros.
    pub reserved: [u8; 3],
    /// Zeros.
    pub reserved_words: [U32; 10],
}

const _: () = assert!(size_of::<DatasetPhys>() == 176);
const _: () = assert!(size_of::<DatasetPhys>() <= super::ATTRIBUTES_MAX);
