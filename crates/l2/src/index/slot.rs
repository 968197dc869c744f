//! The packing of a [`Record`] into sixteen bytes.
//!
//! A [`Slot`] has two words. The first holds, from the top, the lower 56 bits of the key hash,
//! whether the last read did not decode, whether memory holds the block, hits, class and
//! [`RecordState`]. The partition determines the upper eight bits of the hash, so there are at
//! least two to the power of [`MIN_PARTITION_BITS`] partitions. The index thus compares all 64 bits
//! of a hash. The second word is the [`BlockAddr`]. An empty slot is zero.

use forebay_cache::Class;

use crate::record::{
    BlockAddr, KeyHash, MAX_BLOCK_UNITS, MAX_HITS, MAX_SEGMENT_UNITS, MAX_SEGMENTS, Record,
    RecordState,
};

/// Hash bits that a slot omits, because its partition determines them.
pub(super) const MIN_PARTITION_BITS: u32 = 8;
const SEGMENT_BITS: u32 = 24;
const UNIT_BITS: u32 = 22;
const UNITS_BITS: u32 = 18;
/// Set in every slot that is not empty.
const USED: u64 = 1;
const STATE_SHIFT: u32 = 1;
const CLASS_SHIFT: u32 = 3;
const HITS_SHIFT: u32 = 4;
const IN_MEMORY: u64 = 1 << 6;
const UNDECODABLE: u64 = 1 << 7;
const ATTRIBUTE_BITS: u64 = 0xff;

/// A packed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Slot {
    word: u64,
    addr: u64,
}

const _: () = assert!(size_of::<Slot>() == 16);
const _: () = assert!(SEGMENT_BITS + UNIT_BITS + UNITS_BITS == 64);
const _: () = assert!(MAX_SEGMENTS <= 1 << SEGMENT_BITS);
const _: () = assert!(MAX_SEGMENT_UNITS < 1 << UNIT_BITS);
const _: () = assert!(MAX_BLOCK_UNITS < 1 << UNITS_BITS);
const _: () = assert!((MAX_HITS as u64) << HITS_SHIFT < IN_MEMORY);

impl Slot {
    pub(super) const EMPTY: Self = Self { word: 0, addr: 0 };

    /// # Panics
    /// If the address does not fit. The parser of a log checks addresses first.
    #[inline]
    pub(super) fn new(hash: KeyHash, record: &Record) -> Self {
        let BlockAddr { segment, unit, units } = record.addr;
        assert!(segment < MAX_SEGMENTS, "segment {segment} is not on any device");
        assert!(unit <= MAX_SEGMENT_UNITS, "unit {unit} is not in any segment");
        assert!(units <= MAX_BLOCK_UNITS, "a block of {units} units is too long");
        let hits = record.hits.min(MAX_HITS);
        let attributes = USED
            | state_bits(record.state) << STATE_SHIFT
            | (record.class as u64) << CLASS_SHIFT
            | u64::from(hits) << HITS_SHIFT
            | if record.in_memory { IN_MEMORY } else { 0 }
            | if record.undecodable { UNDECODABLE } else { 0 };
        let addr = u64::from(segment) << (UNIT_BITS + UNITS_BITS)
            | u64::from(unit) << UNITS_BITS
            | u64::from(units);
        Self { word: hash.0 << MIN_PARTITION_BITS | attributes, addr }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.word == 0
    }

    /// The sort key of slots within a partition: the hash bits below [`MIN_PARTITION_BITS`].
    #[inline]
    pub(super) fn order(self) -> u64 {
        self.word & !ATTRIBUTE_BITS
    }

    /// The key hash, given the partition's number and the number of partition bits.
    pub(super) fn key_hash(self, partition: usize, partition_bits: u32) -> KeyHash {
        let high = (partition as u64) << (64 - partition_bits);
        KeyHash(self.word >> MIN_PARTITION_BITS | high)
    }

    #[inline]
    pub(super) fn addr(self) -> BlockAddr {
        let mask = |bits: u32| (1u64 << bits) - 1;
        BlockAddr {
            segment: (self.addr >> (UNIT_BITS + UNITS_BITS)) as u32,
            unit: (self.addr >> UNITS_BITS & mask(UNIT_BITS)) as u32,
            units: (self.addr & mask(UNITS_BITS)) as u32,
        }
    }

    #[inline]
    pub(super) fn state(self) -> RecordState {
        match self.word >> STATE_SHIFT & 0b11 {
            0 => RecordState::Live,
            1 => RecordState::Pending,
            2 => RecordState::Bad,
            _ => RecordState::Tombstone,
        }
    }

    fn hits(self) -> u8 {
        (self.word >> HITS_SHIFT) as u8 & MAX_HITS
    }

    #[inline]
    pub(super) fn record(self) -> Record {
        let class = if self.word >> CLASS_SHIFT & 1 == 0 { Class::Metadata } else { Class::Data };
        Record {
            addr: self.addr(),
            class,
            hits: self.hits(),
            in_memory: self.word & IN_MEMORY != 0,
            undecodable: self.word & UNDECODABLE != 0,
            state: self.state(),
        }
    }

    /// The block, which is live or will be, must not be returned any more. Returns false if it was
    /// not to be returned before.
    pub(super) fn supersede(&mut self) -> bool {
        let before = self.state();
        let could_return = matches!(before, RecordState::Live | RecordState::Pending);
        if could_return {
            let state = |state| state_bits(state) << STATE_SHIFT;
            self.word ^= state(before) ^ state(RecordState::Bad);
        }
        could_return
    }

    /// Counts a hit, up to the maximum.
    pub(super) fn hit(&mut self) {
        if self.hits() < MAX_HITS {
            self.word += 1 << HITS_SHIFT;
        }
    }

    /// Memory holds the block from now on.
    pub(super) fn set_in_memory(&mut self) {
        self.word |= IN_MEMORY;
    }

    /// Memory has evicted the block.
    pub(super) fn clear_in_memory(&mut self) {
        self.word &= !IN_MEMORY;
    }
}

fn state_bits(state: RecordState) -> u64 {
    match state {
        RecordState::Live => 0,
        RecordState::Pending => 1,
        RecordState::Bad => 2,
        RecordState::Tombstone => 3,
    }
}

/// The sort key of a key hash.
#[inline]
pub(super) fn order_of(hash: KeyHash) -> u64 {
    hash.0 << MIN_PARTITION_BITS
}
