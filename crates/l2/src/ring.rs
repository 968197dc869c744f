//! The ring, as all threads of a level see it: which use each segment is in, and where the log ends.
//!
//! # Invariants
//!
//! - Segment `s` is only ever used as numbers that are `s` modulo the number of segments: strictly in turn, so that the
//!   oldest is always the next to be used again.
//! - `head` only grows: everything that the index knows lies before it, and so does everything on the device.
//!
//! Who writes: the writer's thread, and before it starts the rebuild. No locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

use crate::geometry::Geometry;
use crate::record::{BlockAddr, UNIT_BYTES};

/// What is known of the ring.
pub(crate) struct Ring {
    pub(crate) geometry: Geometry,
    guid: AtomicU64,
    /// The use that each segment is in; 0 if nothing is in it.
    seqs: Box<[AtomicU64]>,
    /// The end of the log: its segment's sequence number, and the unit there.
    head: AtomicU64,
}

/// Bits of the head that hold the unit.
const UNIT_BITS: u32 = 22;

impl Ring {
    /// A ring of which nothing is known.
    pub(crate) fn new(geometry: Geometry, guid: u64) -> Self {
        Self {
            geometry,
            guid: AtomicU64::new(guid),
            seqs: (0..geometry.segments).map(|_| AtomicU64::new(0)).collect(),
            head: AtomicU64::new(0),
        }
    }

    /// Names the level.
    pub(crate) fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    /// The use that a segment is in; 0 if nothing is in it.
    #[inline]
    pub(crate) fn seq(&self, segment: u32) -> u64 {
        self.seqs[segment as usize].load(Ordering::Acquire)
    }

    pub(crate) fn set_seq(&self, segment: u32, seq: u64) {
        self.seqs[segment as usize].store(seq, Ordering::Release);
    }

    /// Whether `new` comes after `old` in the log, or at the same place.
    #[inline]
    pub(crate) fn is_newer(&self, old: BlockAddr, new: BlockAddr) -> bool {
        (self.seq(new.segment), new.unit) >= (self.seq(old.segment), old.unit)
    }

    /// The end of the log, as the place of a tombstone that is to be written.
    pub(crate) fn head(&self) -> BlockAddr {
        let head = self.head.load(Ordering::Acquire);
        let segment = self.geometry.segment_of(head >> UNIT_BITS);
        BlockAddr { segment, unit: (head & ((1 << UNIT_BITS) - 1)) as u32, units: 0 }
    }

    /// The log ends at `bytes` of the segment that is used as `seq` now. Before anything enters the index that lies there.
    pub(crate) fn set_head(&self, seq: u64, bytes: u64) {
        // A batch may turn out shorter than was planned: then the head is a little past the log's end, which does no harm.
        self.head.fetch_max((seq << UNIT_BITS) | (bytes / UNIT_BYTES), Ordering::AcqRel);
    }

    /// The level is made anew: nothing is known of it, and nobody has used it yet.
    pub(crate) fn reset(&self, guid: u64) {
        self.guid.store(guid, Ordering::Release);
        self.seqs.iter().for_each(|seq| seq.store(0, Ordering::Release));
        self.head.store(0, Ordering::Release);
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.seqs) as u64
    }
}
