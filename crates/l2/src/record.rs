//! What index and log say of a block to each other.
//!
//! How a place is ordered against another depends on the sequence numbers of their segments, which the ring knows.

use forebay_cache::Class;

/// The unit of places and lengths, in bytes.
pub(crate) const UNIT_BYTES: u64 = 64;
/// Segments of a ring, at most: the largest number of one fits 18 bits.
pub(crate) const MAX_SEGMENTS: u32 = 1 << 18;
/// Units of a segment, at most: a unit's number, and that of the segment's end, fit 22 bits.
pub(crate) const MAX_SEGMENT_UNITS: u32 = (1 << 22) - 1;
/// Units of a block with its header, at most: fits 18 bits.
pub(crate) const MAX_BLOCK_UNITS: u32 = (1 << 18) - 1;
/// The largest count of hits: fits 2 bits.
pub(crate) const MAX_HITS: u8 = 3;

/// A key, as index and log know it: the hash of its encoded bytes with the level's seed. Different keys may share one: the
/// newest block of any of them stands for all, and its header says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyHash(pub(crate) u64);

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockAddr {
    /// Number of the segment.
    pub(crate) segment: u32,
    /// First unit within the segment.
    pub(crate) unit: u32,
    /// Units that the block takes with its header; 0 for a tombstone.
    pub(crate) units: u32,
}

/// What a record is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RecordState {
    /// The block is there.
    Live,
    /// It is on its way.
    Pending,
    /// Something is there that must not be returned; a tombstone is still needed to say so for good.
    Bad,
    /// A tombstone: older blocks are not to be returned.
    Tombstone,
}

/// What the index knows of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) addr: BlockAddr,
    pub(crate) class: Class,
    /// Loads since it was written, up to [`MAX_HITS`].
    pub(crate) hits: u8,
    /// The cache has had the block since it was written or loaded, and has not said since that it let go of it.
    pub(crate) in_memory: bool,
    pub(crate) state: RecordState,
}

/// What became of a record that was put into the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// Nothing was known of the identity.
    Inserted,
    /// It took the place of this one.
    Replaced(Record),
    /// What is there is newer, and stays.
    Stale,
}
