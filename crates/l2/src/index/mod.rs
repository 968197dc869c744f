//! The index of an L2: maps key hashes to records.
//!
//! A [`Record`] is packed into a [`Slot`](slot::Slot) of sixteen bytes. Slots are distributed over
//! *partitions* by the upper bits of the key hash. Each partition is a sorted array with gaps (see
//! [`table`]) with its own lock. Only misses of the cache come here, so a lock costs little.
//!
//! Invariants: a record is in the partition of its key hash, and each key hash has at most one
//! record. [`Index::memory_bytes`] covers the whole index.
//!
//! Locking: `l2-index`, a leaf lock except for the callback of [`Index::change`], and never two of
//! them. Counts are sums of what each lock holder adds. They may lag while other threads work.
//!
//! Not done: the index stores no keys. Two keys with the same 64-bit hash share a record, and the
//! reader of a block compares the key.

mod batch;
mod slot;
mod slot_array;
mod table;

#[cfg(all(test, forebay_model))]
mod model;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

pub(crate) use slot_array::NoMemory;

use crate::record::{BlockAddr, InsertOutcome, KeyHash, MAX_SEGMENT_UNITS, MAX_SEGMENTS, Record};
use slot::{MIN_PARTITION_BITS, Slot};
use table::{Growth, PutOutcome, Table};

/// Maximum number of partitions, as a power of two.
const MAX_PARTITION_BITS: u32 = 13;
/// Target number of records in a partition.
const PARTITION_RECORDS: u64 = 16_384;

/// The index; see the module head.
pub(crate) struct Index {
    partitions: Box<[Partition]>,
    partition_bits: u32,
    len: AtomicU64,
    /// Bytes of all tables.
    table_bytes: AtomicU64,
}

/// A partition's lock and table, on a cache line of its own.
#[repr(align(64))]
struct Partition {
    table: Mutex<Table>,
}

impl Index {
    /// An empty index for a device of this geometry with space for about `capacity_hint` records.
    ///
    /// # Panics
    /// If addresses on such a device do not fit into a slot.
    pub(crate) fn new(segments: u32, capacity_hint: u64, units_per_segment: u32) -> Self {
        assert!(segments <= MAX_SEGMENTS, "{segments} segments are too many");
        assert!(
            units_per_segment <= MAX_SEGMENT_UNITS,
            "segments of {units_per_segment} units are too long"
        );
        let wanted = (capacity_hint / PARTITION_RECORDS).max(1).next_power_of_two().ilog2();
        let partition_bits = wanted.clamp(MIN_PARTITION_BITS, MAX_PARTITION_BITS);
        let shared_bits = (partition_bits - MIN_PARTITION_BITS) as u8;
        let partition = |_| Partition { table: Mutex::named("l2-index", Table::new(shared_bits)) };
        Self {
            partitions: (0..1usize << partition_bits).map(partition).collect(),
            partition_bits,
            len: AtomicU64::new(0),
            table_bytes: AtomicU64::new(0),
        }
    }

    #[inline]
    fn partition_of(&self, hash: KeyHash) -> usize {
        (hash.0 >> (64 - self.partition_bits)) as usize
    }

    /// Calls `f` with the table of a partition and updates the counts.
    fn with<T>(&self, partition: usize, f: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.partitions[partition].table.lock();
        let (len, bytes) = (table.len(), table.bytes());
        let outcome = f(&mut table);
        if table.len() != len {
            // The difference wraps, and so does the sum.
            let more = table.len().wrapping_sub(len) as u64;
            self.len.fetch_add(more, Ordering::Relaxed);
        }
        if table.bytes() != bytes {
            let more = table.bytes().wrapping_sub(bytes) as u64;
            self.table_bytes.fetch_add(more, Ordering::Relaxed);
        }
        outcome
    }

    /// The record of a key hash.
    #[inline]
    pub(crate) fn find(&self, hash: KeyHash) -> Option<Record> {
        self.partitions[self.partition_of(hash)].table.lock().find(hash)
    }

    /// Counts a hit if the record is still at `addr`. `to_memory` says that the block enters
    /// memory.
    pub(crate) fn touch(&self, hash: KeyHash, addr: BlockAddr, to_memory: bool) {
        let mut table = self.partitions[self.partition_of(hash)].table.lock();
        if let Some(slot) = table.at(hash, addr) {
            slot.hit();
            if to_memory {
                slot.set_in_memory();
            }
        }
    }

    /// Memory has evicted the block, or did not receive it after all. The report may come late,
    /// when memory holds the block again.
    pub(crate) fn clear_in_memory(&self, hash: KeyHash) {
        let mut table = self.partitions[self.partition_of(hash)].table.lock();
        if let Some(slot) = table.of(hash) {
            slot.clear_in_memory();
        }
    }

    /// Memory receives a newer value of the key. A block that is live or being written becomes bad.
    pub(crate) fn supersede(&self, hash: KeyHash) {
        let mut table = self.partitions[self.partition_of(hash)].table.lock();
        if let Some(slot) = table.of(hash) {
            slot.clear_in_memory();
            slot.supersede();
        }
    }

    /// Inserts a record. An existing record of the key hash is replaced if `newer(its addr, the new
    /// addr)`.
    ///
    /// # Errors
    /// If memory is exhausted.
    ///
    /// # Panics
    /// If the address does not fit into a slot; see [`Index::new`].
    pub(crate) fn insert(
        &self,
        hash: KeyHash,
        record: Record,
        newer: impl Fn(BlockAddr, BlockAddr) -> bool,
    ) -> Result<InsertOutcome, NoMemory> {
        let slot = Slot::new(hash, &record);
        let put =
            self.with(self.partition_of(hash), |table| table.put(slot, newer, Growth::Gradual))?;
        Ok(match put {
            PutOutcome::Inserted => InsertOutcome::Inserted,
            PutOutcome::Replaced(old) => InsertOutcome::Replaced(old.record()),
            PutOutcome::Stale => InsertOutcome::Stale,
        })
    }

    /// Changes the record if it is still at `addr`. `f` returns the new record, or `None` to remove
    /// it. Returns false if the record was not there; `f` is not called then. `f` runs under the
    /// partition's lock and must not use the index.
    pub(crate) fn change(
        &self,
        hash: KeyHash,
        addr: BlockAddr,
        f: impl FnOnce(Record) -> Option<Record>,
    ) -> bool {
        self.with(self.partition_of(hash), |table| {
            let Some(slot) = table.at(hash, addr) else { return false };
            match f(slot.record()) {
                Some(record) => *slot = Slot::new(hash, &record),
                None => {
                    table.take(hash, |_| true);
                    table.shrink();
                }
            }
            true
        })
    }

    /// Removes and returns the record of a key hash.
    pub(crate) fn take(&self, hash: KeyHash) -> Option<Record> {
        self.take_if(hash, |_| true)
    }

    /// Removes the record if it is still at `addr`.
    pub(crate) fn remove_if_at(&self, hash: KeyHash, addr: BlockAddr) -> Option<Record> {
        self.take_if(hash, |slot| slot.addr() == addr)
    }

    fn take_if(&self, hash: KeyHash, wanted: impl Fn(Slot) -> bool) -> Option<Record> {
        self.with(self.partition_of(hash), |table| {
            let taken = table.take(hash, wanted)?;
            table.shrink();
            Some(taken.record())
        })
    }

    /// Number of records, tombstones included.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes of memory in use, the whole index.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let fixed = size_of::<Self>() + size_of_val::<[Partition]>(&self.partitions);
        fixed as u64 + self.table_bytes.load(Ordering::Relaxed)
    }

    /// Panics unless every structure is sound. No other thread may use the index meanwhile.
    #[cfg(test)]
    pub(crate) fn audit(&self) {
        let (mut len, mut bytes) = (0, 0);
        for partition in &self.partitions {
            let table = partition.table.lock();
            table.audit();
            len += table.len() as u64;
            bytes += table.bytes() as u64;
        }
        assert_eq!(len, self.len(), "records and their count");
        assert_eq!(bytes, self.table_bytes.load(Ordering::Relaxed), "bytes and their count");
    }
}
