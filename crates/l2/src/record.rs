//! The types that the index and the log share: key hashes, block addresses and records.
//!
//! The order of two block addresses depends on the sequence numbers of their segments, which the
//! ring knows.

use forebay_cache::Class;

/// The unit of block addresses and lengths, in bytes.
pub(crate) const UNIT_BYTES: u64 = 64;
/// Maximum number of segments in a ring. The largest segment number fits 18 bits.
pub(crate) const MAX_SEGMENTS: u32 = 1 << 18;
/// Maximum number of units in a segment. A unit number, and the segment's end, fit 22 bits.
pub(crate) const MAX_SEGMENT_UNITS: u32 = (1 << 22) - 1;
/// Maximum number of units in a block with its header. Fits 18 bits.
pub(crate) const MAX_BLOCK_UNITS: u32 = (1 << 18) - 1;
/// Maximum count of hits. Fits 2 bits.
pub(crate) const MAX_HITS: u8 = 3;

/// The hash of an encoded key with the L2's seed. Identifies the key in the log and in the index.
/// Different keys may share a hash. The newest block of any of them then replaces the others, and
/// its header holds the actual key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyHash(pub(crate) u64);

/// What a tombstone of the log covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tombstone {
    Key(KeyHash),
    /// All keys of a group.
    Group(u64),
}

/// The address of a block on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockAddr {
    /// The segment's number.
    pub(crate) segment: u32,
    /// First unit within the segment.
    pub(crate) unit: u32,
    /// Units of the block with its header. 0 for a tombstone.
    pub(crate) units: u32,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RecordState {
    /// The block can be loaded.
    Live,
    /// The block is being written.
    Pending,
    /// The block must not be returned. Forgetting the key still requires a tombstone.
    Bad,
    /// A tombstone: older blocks must not be returned.
    Tombstone,
}

/// The index's record of a key hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) addr: BlockAddr,
    pub(crate) class: Class,
    /// Loads since the block was written, at most [`MAX_HITS`]. Of an undecodable block: reads
    /// since the first that did not decode.
    pub(crate) hits: u8,
    /// The cache has held the block since it was written or loaded, and has not reported its
    /// eviction. A hint: reports may come late.
    pub(crate) in_memory: bool,
    /// The last read of the block did not decode.
    pub(crate) undecodable: bool,
    pub(crate) state: RecordState,
}

/// The outcome of an insert into the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// The key hash had no record.
    Inserted,
    /// The record replaced this one.
    Replaced(Record),
    /// The index holds a newer record and keeps it.
    Stale,
}
