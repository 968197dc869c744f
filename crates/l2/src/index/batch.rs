//! What is done to many records at once: rebuilding, sweeping, emptying a segment.
//!
//! Records of a log come in random order of identity. Putting them in one by one would miss the processor's caches
//! twice each; so a batch is first sorted by partition, in two linear passes, and then goes in a partition after the other,
//! under one lock each: a partition's table fits into a cache.

use super::Index;
use super::slot::Slot;
use super::slot_array::NoMemory;
use super::table::{Growth, PutOutcome};
use crate::record::{BlockAddr, KeyHash, Record, RecordState};

/// Records ahead for which slots are fetched.
const PREFETCH_DISTANCE: usize = 8;

/// Records of a part of a partition that a batch is sorted into, at least.
const PART_RECORDS: usize = 16;
/// The most parts of a partition, as a power of two: more places to write to at once than fit into a cache would be
/// slower.
const MAX_PART_BITS: u32 = 4;

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchOutcome {
    /// Records whose identity was not in the index.
    pub(crate) inserted: u64,
    /// Records that took the place of older ones.
    pub(crate) replaced: u64,
    /// Records that were older than what is there.
    pub(crate) stale: u64,
}

impl Index {
    /// Puts many records in, as [`insert`](Index::insert) would do with each in turn. Pays off from some thousand on;
    /// takes 16 bytes a record for its time. Tables that have to grow do so towards their share of `expected`, the records that
    /// the index will have in the end, by a guess: when the last batch is in,
    /// [`sweep_tombstones`](Index::sweep_tombstones) gives back what is too much.
    ///
    /// # Errors
    /// When there is no memory; some records may have gone in.
    ///
    /// # Panics
    /// If a number of a place does not fit into a slot.
    pub(crate) fn insert_batch(
        &self,
        records: &[(KeyHash, Record)],
        newer: impl Fn(BlockAddr, BlockAddr) -> bool,
        expected: u64,
    ) -> Result<BatchOutcome, NoMemory> {
        // Hashes spread evenly, but some partitions get a little more than their share.
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

    /// The records as slots, sorted by partition and, within it, roughly by order (records of one identity stay in
    /// theirs); and where each partition ends.
    fn by_partition(
        &self,
        records: &[(KeyHash, Record)],
    ) -> Result<(Vec<Slot>, Vec<usize>), NoMemory> {
        // As many parts of each partition as there are enough records for.
        let each = (records.len() / self.partitions.len() / PART_RECORDS).max(1);
        let fine = each.ilog2().min(MAX_PART_BITS);
        let shift = 64 - self.partition_bits - fine;
        let mut ends = vec![0usize; self.partitions.len() << fine];
        for (hash, _) in records {
            ends[(hash.0 >> shift) as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            // For now, where it begins.
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

    /// Removes tombstones, and gives back what was expected and did not come. Returns how many there were.
    pub(crate) fn sweep_tombstones(&self) -> u64 {
        self.retain(|slot| slot.state() != RecordState::Tombstone)
    }

    /// Removes every record of a segment, of whatever state, by looking at all records of the index: for a segment
    /// that cannot say what is in it. Returns how many there were.
    pub(crate) fn remove_segment(&self, segment: u32) -> u64 {
        self.retain(|slot| slot.addr().segment != segment)
    }

    /// Removes everything and gives the memory back.
    pub(crate) fn clear(&self) {
        self.retain(|_| false);
    }

    fn retain(&self, wanted: impl Fn(Slot) -> bool) -> u64 {
        let one = |partition| self.with(partition, |table| table.retain(&wanted) as u64);
        (0..self.partitions.len()).map(one).sum()
    }

    /// Shows every record to `f`, a partition at a time and under its lock: `f` must not use the index.
    pub(crate) fn for_each(&self, mut f: impl FnMut(KeyHash, Record)) {
        for (number, partition) in self.partitions.iter().enumerate() {
            let table = partition.table.lock();
            for slot in table.iter() {
                f(slot.key_hash(number, self.partition_bits), slot.record());
            }
        }
    }
}
