//! Operations on many records: rebuild, sweep, and removal of a segment.
//!
//! Log records come in random order of key hash. Inserting them one by one would miss the
//! processor's caches twice each. So a batch is first sorted by partition in two linear passes.
//! Then each partition is filled under its lock while its table stays in the cache.

use super::Index;
use super::slot::Slot;
use super::slot_array::NoMemory;
use super::table::{Growth, PutOutcome};
use crate::record::{BlockAddr, KeyHash, Record, RecordState};

/// Slots are prefetched this many records ahead.
const PREFETCH_DISTANCE: usize = 8;

/// Minimum number of records in a part of a partition.
const PART_RECORDS: usize = 16;
/// Maximum parts of a partition, as a power of two. More write targets than fit into the
/// processor's cache would be slower.
const MAX_PART_BITS: u32 = 4;

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchOutcome {
    /// Records whose key hash was not in the index.
    pub(crate) inserted: u64,
    /// Records that replaced older ones.
    pub(crate) replaced: u64,
    /// Records older than those in the index.
    pub(crate) stale: u64,
}

impl Index {
    /// Inserts many records, as [`insert`](Index::insert) would one by one. Pays off from some
    /// thousand records. Uses 16 bytes per record temporarily.
    ///
    /// `expected` estimates the final number of records in the index. Full tables grow toward their
    /// share of it. After the last batch, [`sweep_tombstones`](Index::sweep_tombstones) releases
    /// the excess.
    ///
    /// # Errors
    /// If memory is exhausted. Some records may have been inserted.
    ///
    /// # Panics
    /// If an address does not fit into a slot.
    pub(crate) fn insert_batch(
        &self,
        records: &[(KeyHash, Record)],
        newer: impl Fn(BlockAddr, BlockAddr) -> bool,
        expected: u64,
    ) -> Result<BatchOutcome, NoMemory> {
        // Hashes spread evenly, but some partitions receive slightly more than their share.
        let share = expected / self.partitions.len() as u64;
        let growth = Growth::Expecting { records: share + share / 64 };
        let (sorted, ends) = self.by_partition(records)?;
        let mut outcome = BatchOutcome::default();
        let mut begin = 0;
        for (partition, end) in ends.into_iter().enumerate() {
            let slots = &sorted[begin..end];
            begin = end;
            if slots.is_empty() {
                continue;
            }
            self.with(partition, |table| -> Result<(), NoMemory> {
                for (at, slot) in slots.iter().enumerate() {
                    if let Some(next) = slots.get(at + PREFETCH_DISTANCE) {
                        table.prefetch(next.order());
                    }
                    match table.put(*slot, &newer, growth)? {
                        PutOutcome::Inserted => outcome.inserted += 1,
                        PutOutcome::Replaced(_) => outcome.replaced += 1,
                        PutOutcome::Stale => outcome.stale += 1,
                    }
                }
                Ok(())
            })?;
        }
        Ok(outcome)
    }

    /// Returns the records as slots, sorted by partition and roughly by order within it, and the
    /// end of each partition. Records of one key hash keep their order.
    fn by_partition(
        &self,
        records: &[(KeyHash, Record)],
    ) -> Result<(Vec<Slot>, Vec<usize>), NoMemory> {
        // As many parts per partition as the number of records justifies.
        let each = (records.len() / self.partitions.len() / PART_RECORDS).max(1);
        let fine = each.ilog2().min(MAX_PART_BITS);
        let shift = 64 - self.partition_bits - fine;
        let mut ends = vec![0usize; self.partitions.len() << fine];
        for (hash, _) in records {
            ends[(hash.0 >> shift) as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            // At first the beginning of the part.
            sum += std::mem::replace(end, sum);
        }
        let mut sorted = Vec::new();
        let bytes = std::mem::size_of_val(records);
        sorted.try_reserve_exact(records.len()).map_err(|_| NoMemory::Heap { bytes })?;
        sorted.resize(records.len(), Slot::EMPTY);
        for (hash, record) in records {
            let at = &mut ends[(hash.0 >> shift) as usize];
            sorted[*at] = Slot::new(*hash, record);
            *at += 1;
        }
        let last_parts = ends.into_iter().skip((1 << fine) - 1).step_by(1 << fine);
        Ok((sorted, last_parts.collect()))
    }

    /// Removes tombstones and releases excess memory. Returns the number of tombstones.
    pub(crate) fn sweep_tombstones(&self) -> u64 {
        self.retain(|slot| slot.state() != RecordState::Tombstone)
    }

    /// Removes every record of a segment by a scan of the whole index, for a segment whose log is
    /// unreadable. Returns the number of records.
    pub(crate) fn remove_segment(&self, segment: u32) -> u64 {
        self.retain(|slot| slot.addr().segment != segment)
    }

    /// Marks the live blocks of a segment that begin at `unit` or later as bad, by a scan of the
    /// whole index. Returns their number.
    pub(crate) fn supersede_from(&self, segment: u32, unit: u32) -> u64 {
        let is_from = |addr: BlockAddr| addr.segment == segment && addr.unit >= unit;
        let one = |partition| self.with(partition, |table| table.supersede(is_from));
        (0..self.partitions.len()).map(one).sum()
    }

    /// Removes all records and releases the memory.
    pub(crate) fn clear(&self) {
        self.retain(|_| false);
    }

    fn retain(&self, wanted: impl Fn(Slot) -> bool) -> u64 {
        let one = |partition| self.with(partition, |table| table.retain(&wanted) as u64);
        (0..self.partitions.len()).map(one).sum()
    }

    /// Calls `f` with every record, one partition at a time under its lock. `f` must not use the
    /// index.
    pub(crate) fn for_each(&self, mut f: impl FnMut(KeyHash, Record)) {
        for (number, partition) in self.partitions.iter().enumerate() {
            let table = partition.table.lock();
            for slot in table.iter() {
                f(slot.key_hash(number, self.partition_bits), slot.record());
            }
        }
    }
}
