//! One access to a block.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block_label::BlockLabel;

/// Bytes of a record in a file.
pub(super) const RECORD_BYTES: usize = size_of::<PackedRecord>();

const METADATA: u8 = 1 << 2;
const LABEL_SHIFT: u32 = 4;

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TraceOutcome {
    /// The block was in memory.
    Hit,
    /// The block was not in memory: it was read from an L2 device or a device, or was being read.
    Miss,
    /// Nobody asked for the block: read-ahead started to read it.
    ReadAhead,
}

/// One access to a block of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Microseconds since the start of the trace. Records of different threads may be out of order
    /// by the time that 16 accesses of a thread take.
    pub time_us: u64,
    /// Number of the dataset in this trace; the file has a table of their names.
    pub dataset: u16,
    /// What the block belongs to.
    pub label: BlockLabel,
    /// Number of the block in its object, or among the blocks of dnodes; the address of an indirect
    /// block.
    pub block: u64,
    /// Bytes of the block in memory.
    pub bytes: u32,
    /// Whether the cache treats the block as metadata.
    pub is_metadata: bool,
    /// Hit, miss or read-ahead.
    pub outcome: TraceOutcome,
}

/// A record as it is stored.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct PackedRecord {
    pub(super) time_us: U64,
    object: U64,
    block: U64,
    bytes: U32,
    dataset: U16,
    /// Bits 0 and 1: the outcome; bit 2: metadata; bits 4 and 5: the label.
    flags: u8,
    reserved: u8,
}

const _: () = assert!(size_of::<PackedRecord>() == 32);

impl TraceRecord {
    /// The object of the block; `None` for blocks that belong to no object.
    pub fn object(&self) -> Option<u64> {
        match self.label {
            BlockLabel::Object(number) => Some(number),
            _ => None,
        }
    }

    /// Identifies the block in its trace: equal for accesses to the same block only.
    pub fn identity(&self) -> [u8; 19] {
        let (kind, object) = kind_and_object(self.label);
        let mut identity = [0; 19];
        identity[..2].copy_from_slice(&self.dataset.to_le_bytes());
        identity[2] = kind;
        identity[3..11].copy_from_slice(&object.to_le_bytes());
        identity[11..].copy_from_slice(&self.block.to_le_bytes());
        identity
    }

    /// A 64-bit hash of [`identity`](Self::identity), for formats with numbers as keys.
    pub fn key(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.identity())
    }

    pub(super) fn to_packed(self) -> PackedRecord {
        let (kind, object) = kind_and_object(self.label);
        let outcome = match self.outcome {
            TraceOutcome::Hit => 0,
            TraceOutcome::Miss => 1,
            TraceOutcome::ReadAhead => 2,
        };
        let metadata = if self.is_metadata { METADATA } else { 0 };
        PackedRecord {
            time_us: self.time_us.into(),
            object: object.into(),
            block: self.block.into(),
            bytes: self.bytes.into(),
            dataset: self.dataset.into(),
            flags: outcome | metadata | kind << LABEL_SHIFT,
            reserved: 0,
        }
    }

    /// Whether a record is of a block that read-ahead began to read.
    pub(super) fn is_read_ahead(phys: &PackedRecord) -> bool {
        phys.flags & 3 == 2
    }

    /// Reads a record; `None` if it has an unknown flag.
    pub(super) fn of_packed(phys: &PackedRecord) -> Option<Self> {
        let flags = phys.flags;
        let outcome = match flags & 3 {
            0 => TraceOutcome::Hit,
            1 => TraceOutcome::Miss,
            2 => TraceOutcome::ReadAhead,
            _ => return None,
        };
        let label = match flags >> LABEL_SHIFT {
            0 => BlockLabel::Unknown,
            1 => BlockLabel::Object(phys.object.get()),
            2 => BlockLabel::Indirect,
            3 => BlockLabel::Dnodes,
            _ => return None,
        };
        Some(Self {
            time_us: phys.time_us.get(),
            dataset: phys.dataset.get(),
            label,
            block: phys.block.get(),
            bytes: phys.bytes.get(),
            is_metadata: flags & METADATA != 0,
            outcome,
        })
    }
}

fn kind_and_object(label: BlockLabel) -> (u8, u64) {
    match label {
        BlockLabel::Unknown => (0, 0),
        BlockLabel::Object(number) => (1, number),
        BlockLabel::Indirect => (2, 0),
        BlockLabel::Dnodes => (3, 0),
    }
}
