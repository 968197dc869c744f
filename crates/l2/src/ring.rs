//! The state of the ring that all threads of an L2 share: the sequence number of each segment, and
//! the head of the log.
//!
//! # Invariants
//!
//! - Segment `s` only has sequence numbers congruent to `s` modulo the number of segments. Segments
//!   are used strictly in order, so the oldest is always the next to be reused.
//! - `head` only grows. Everything in the index and on the device lies before it.
//!
//! The writer's thread is the only writer. Before it starts, the rebuild is. There are no locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

use crate::geometry::Geometry;
use crate::record::{BlockAddr, UNIT_BYTES};

/// The state of the ring.
pub(crate) struct Ring {
    pub(crate) geometry: Geometry,
    guid: AtomicU64,
    /// The sequence number of each segment. 0 if the segment is empty.
    seqs: Box<[AtomicU64]>,
    /// The end of the log: a sequence number, and a unit in that segment.
    head: AtomicU64,
}

/// Bits of `head` that hold the unit.
const UNIT_BITS: u32 = 22;

impl Ring {
    /// A ring whose segments are all empty.
    pub(crate) fn new(geometry: Geometry, guid: u64) -> Self {
        Self {
            geometry,
            guid: AtomicU64::new(guid),
            seqs: (0..geometry.segments).map(|_| AtomicU64::new(0)).collect(),
            head: AtomicU64::new(0),
        }
    }

    /// The guid of the L2.
    pub(crate) fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    /// The sequence number of a segment. 0 if it is empty.
    #[inline]
    pub(crate) fn seq(&self, segment: u32) -> u64 {
        self.seqs[segment as usize].load(Ordering::Acquire)
    }

    pub(crate) fn set_seq(&self, segment: u32, seq: u64) {
        self.seqs[segment as usize].store(seq, Ordering::Release);
    }

    /// Whether `new` is not before `old` in the log.
    #[inline]
    pub(crate) fn is_newer(&self, old: BlockAddr, new: BlockAddr) -> bool {
        (self.seq(new.segment), new.unit) >= (self.seq(old.segment), old.unit)
    }

    /// The end of the log, as the address of the next tombstone.
    pub(crate) fn head(&self) -> BlockAddr {
        let head = self.head.load(Ordering::Acquire);
        let segment = self.geometry.segment_of(head >> UNIT_BITS);
        BlockAddr { segment, unit: (head & ((1 << UNIT_BITS) - 1)) as u32, units: 0 }
    }

    /// Moves the head to `bytes` within the segment of sequence number `seq`. Call it before
    /// records of that range enter the index.
    pub(crate) fn set_head(&self, seq: u64, bytes: u64) {
        // A batch may turn out shorter than planned. The head is then past the log's end, which is
        // harmless.
        self.head.fetch_max((seq << UNIT_BITS) | (bytes / UNIT_BYTES), Ordering::AcqRel);
    }

    /// Empties the ring for a new guid. No other thread uses it yet.
    pub(crate) fn reset(&self, guid: u64) {
        self.guid.store(guid, Ordering::Release);
        self.seqs.iter().for_each(|seq| seq.store(0, Ordering::Release));
        self.head.store(0, Ordering::Release);
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.seqs) as u64
    }
}
