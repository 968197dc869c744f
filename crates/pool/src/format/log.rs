//! The intent log: its root, the heads of its blocks, and the heads of its records.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::DvaPhys;

/// Most extents of a log.
pub const LOG_EXTENTS_MAX: usize = 32;
/// Most bytes of a block of the log, head and padding included.
pub const LOG_BLOCK_MAX_BYTES: usize = 256 << 10;
/// Most bytes of name and body of a record. Larger writes are several records.
pub const LOG_RECORD_MAX_BYTES: usize = 128 << 10;
/// Begins a log's root: "FBlogrt1".
pub const LOG_ROOT_MAGIC: u64 = u64::from_le_bytes(*b"FBlogrt1");
/// Begins, after its checksum, a block of the log: "FBlogbk1".
pub const LOG_BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"FBlogbk1");

/// A part of the log's ring.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogExtentPhys {
    /// Where it begins.
    pub start: DvaPhys,
    /// How long it is.
    pub bytes: U64,
}

const _: () = assert!(size_of::<LogExtentPhys>() == 16);

/// The log as a root block names it: where its ring is, and where replay starts.
///
/// An *offset* counts all bytes that were ever written to the log, padding included: it never goes back. It lies
/// in the ring at the remainder by the ring's size, the extents put one after another.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogRootPhys {
    /// [`LOG_ROOT_MAGIC`].
    pub magic: U64,
    /// Names the log for ever.
    pub guid: U64,
    /// Blocks of other generations are not of this log's present life.
    pub generation: U64,
    /// Records of this transaction group and older ones are not replayed.
    pub txg: U64,
    /// Offset of the first block to replay.
    pub head_offset: U64,
    /// Sequence number of that block.
    pub head_sequence: U64,
    /// Offset of the oldest block that the root before this one would replay.
    pub tail_offset: U64,
    /// Records to be replayed, counted from the head, whose changes are in this root's group already: not zero
    /// only if a replay took several groups.
    pub replayed: U64,
    /// Extents in use.
    pub extent_count: U32,
    /// Zeros.
    pub reserved: [U32; 3],
    /// The ring; unused ones are zero.
    pub extents: [LogExtentPhys; LOG_EXTENTS_MAX],
}

const _: () = assert!(size_of::<LogRootPhys>() == 592);

/// Head of a block of the log. Records follow, then zeros to the end of the block.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogBlockPhys {
    /// XXH3, 128 bits, of the rest of the head and the records.
    pub checksum: [u8; 16],
    /// [`LOG_BLOCK_MAGIC`].
    pub magic: U64,
    /// The log's.
    pub guid: U64,
    /// The log's, when it was written.
    pub generation: U64,
    /// One more than the block before.
    pub sequence: U64,
    /// Where it begins, see [`LogRootPhys`].
    pub offset: U64,
    /// It follows from a pool in which this transaction group is durable: a replay from an older one ends here.
    pub needs_txg: U64,
    /// The oldest transaction group of its records.
    pub txg_low: U64,
    /// The newest one.
    pub txg_high: U64,
    /// Bytes from its beginning to the next block's.
    pub block_bytes: U32,
    /// Bytes of its records.
    pub payload_bytes: U32,
    /// Number of its records.
    pub records: U32,
    /// Blocks of its batch that follow it: one less from block to block, 0 in the last one. A batch is replayed whole or
    /// not at all.
    pub following: U32,
}

const _: () = assert!(size_of::<LogBlockPhys>() == 96);

/// Head of a record. Its name follows, then its body.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogRecordPhys {
    /// The transaction group of the change.
    pub txg: U64,
    /// Guid of the dataset.
    pub dataset: U64,
    /// Number of the object.
    pub object: U64,
    /// Order among the changes since the pool was imported.
    pub serial: U64,
    /// By kind: an offset, a size, the shift of a record size; or zero.
    pub argument: U64,
    /// A [`LogRecordKind`].
    pub kind: u8,
    /// The kind of a created object; or zero.
    pub object_kind: u8,
    /// Bytes of the name.
    pub name_bytes: U16,
    /// Bytes of the body.
    pub body_bytes: U32,
}

const _: () = assert!(size_of::<LogRecordPhys>() == 48);

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogRecordKind {
    /// Nothing: something that was gone by the time the block was written. The body means nothing.
    Void = 0,
    /// An object came into being. Argument: log2 of its record size; body: its attributes.
    Create = 1,
    /// An object was destroyed.
    Destroy = 2,
    /// Body: the object's attributes.
    SetAttributes = 3,
    /// Argument: offset; body: what was written there.
    Write = 4,
    /// Argument: the object's new size.
    Truncate = 5,
    /// Argument: offset; body: eight bytes, how many bytes became zero.
    Punch = 6,
    /// Name, and body: the value. The name was not there.
    ZapInsert = 7,
    /// Name, and body: the value.
    ZapUpdate = 8,
    /// Name.
    ZapRemove = 9,
}

impl LogRecordKind {
    /// From its number on disk.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Void,
            1 => Self::Create,
            2 => Self::Destroy,
            3 => Self::SetAttributes,
            4 => Self::Write,
            5 => Self::Truncate,
            6 => Self::Punch,
            7 => Self::ZapInsert,
            8 => Self::ZapUpdate,
            9 => Self::ZapRemove,
            _ => return None,
        })
    }
}
