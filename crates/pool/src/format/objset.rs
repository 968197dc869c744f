//! Sets of objects, and datasets, which are such sets with settings.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::BlockPtrPhys;

/// A set of objects: an array of dnodes, stored as the tree of an object is, in blocks of
/// [`DNODE_BLOCK_BYTES`](super::DNODE_BLOCK_BYTES).
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ObjsetPhys {
    /// Root of the tree of dnode blocks.
    pub root: BlockPtrPhys,
    /// Blocks of dnodes that lie before the end.
    pub blocks: U64,
    /// Objects in use.
    pub objects: U64,
    /// Bytes allocated on devices by the dnode blocks, their indirect blocks, and all objects' blocks.
    pub allocated_bytes: U64,
    /// Height of the tree.
    pub levels: u8,
    /// Zeros.
    pub reserved: [u8; 7],
}

const _: () = assert!(size_of::<ObjsetPhys>() == 96);

/// What RAM, or an L2, caches of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CacheMode {
    /// All blocks.
    #[default]
    All = 0,
    /// Metadata only.
    Metadata = 1,
    /// Nothing.
    None = 2,
}

impl CacheMode {
    /// From its number on disk.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::All, Self::Metadata, Self::None].into_iter().find(|mode| *mode as u8 == raw)
    }
}

/// When a dataset's fsync returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SyncMode {
    /// When the intent log holds it.
    #[default]
    Log = 0,
    /// When a transaction group holds it: operations are not logged, an fsync commits the txg.
    Txg = 1,
}

impl SyncMode {
    /// From its number on disk.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Log, Self::Txg].into_iter().find(|mode| *mode as u8 == raw)
    }
}

/// A dataset: the attributes of an object of kind `Dataset` among the pool's own.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DatasetPhys {
    /// Its objects.
    pub objset: ObjsetPhys,
    /// Names it for ever.
    pub guid: U64,
    /// The transaction group that created it.
    pub created_txg: U64,
    /// Number of the object that its user starts from; 0 if there is none.
    pub root_object: U64,
    /// Log2 of the size of records of new objects.
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
    /// A [`CacheMode`]: what L2 devices hold.
    pub l2: u8,
    /// Kind of user, for them to say; 0 is none.
    pub flavour: U32,
    /// Zeros.
    pub reserved: [U32; 11],
}

const _: () = assert!(size_of::<DatasetPhys>() == 176);
const _: () = assert!(size_of::<DatasetPhys>() <= super::ATTRIBUTES_MAX);
