//! Changes of existence and names, whose order matters across all objects. Kept encoded, in one
//! list per shard, ordered by a global serial number.
//!
//! Invariant: a shard's list is ordered by serial number, because numbers are assigned under the
//! shard's lock. So after reading the counter and then locking each shard once, all records below
//! that number are in the lists or already dropped.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use forebay_base::sync::{Mutex, thread_slot};

use crate::format::{LogEntry, LogRecord};
use crate::txg::slot_of;

/// A shard reports its size to the sum when it differs by this much.
const BATCH_BYTES: i64 = 64 << 10;
/// Number of shards. The model checker uses few.
const SHARDS: usize = if cfg!(forebay_model) { 2 } else { 64 };

/// Returns the shard of the calling thread. Threads of the model checker share one slot; there the
/// object decides.
#[inline]
fn shard_for(object: u64) -> usize {
    if cfg!(forebay_model) { object as usize % SHARDS } else { thread_slot().index(SHARDS) }
}

/// Encoded records of one txg.
#[derive(Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    // Serial number and start offset of each record.
    index: Vec<(u64, usize)>,
}

impl Records {
    /// Takes the records with serial numbers below `cutoff`.
    fn take_below(&mut self, cutoff: u64) -> Self {
        let count = self.index.partition_point(|(serial, _)| *serial < cutoff);
        if count == self.index.len() {
            return std::mem::take(self);
        }
        let at = self.index[count].1;
        let mut rest = Self { bytes: self.bytes.split_off(at), index: self.index.split_off(count) };
        rest.index.iter_mut().for_each(|(_, start)| *start -= at);
        std::mem::replace(self, rest)
    }

    /// Iterates over serial numbers and records, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let ends = self.index.iter().skip(1).map(|(_, start)| *start).chain([self.bytes.len()]);
        self.index.iter().zip(ends).map(|(&(serial, start), end)| (serial, &self.bytes[start..end]))
    }
}

#[derive(Default)]
struct PendingShard {
    slots: [Records; 2],
    // Bytes of this shard that are included in the sum.
    reported: i64,
}

impl PendingShard {
    fn bytes(&self) -> i64 {
        (self.slots[0].bytes.len() + self.slots[1].bytes.len()) as i64
    }
}

/// A change could not be recorded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangeDropped;

/// The pending changes of all shards.
pub(super) struct Pending {
    shards: Box<[CachePadded<Mutex<PendingShard>>]>,
    /// The next serial number.
    serial: CachePadded<AtomicU64>,
    /// Bytes in memory, accurate to one batch per shard.
    bytes: CachePadded<AtomicI64>,
}

impl Pending {
    pub(super) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("log-pending", PendingShard::default()));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            serial: CachePadded::new(AtomicU64::new(1)),
            bytes: CachePadded::new(AtomicI64::new(0)),
        }
    }

    /// Returns the next serial number.
    #[inline]
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns a number above the serial numbers of all changes that were recorded before this
    /// call.
    pub(super) fn cutoff(&self) -> u64 {
        self.serial.load(Ordering::SeqCst)
    }

    /// Records a change. If it is dropped, `refuse` runs under the shard's lock, so that a thread
    /// that takes a later change sees its effect.
    #[inline]
    pub(super) fn append(
        &self,
        (txg, dataset, object): (u64, u64, u64),
        record: LogRecord<'_>,
        max_bytes: u64,
        refuse: impl FnOnce(),
    ) -> Result<(), ChangeDropped> {
        let mut shard = self.shards[shard_for(object)].lock();
        let serial = self.next_serial();
        let entry = LogEntry { txg, dataset, object, serial, record };
        let records = &mut shard.slots[slot_of(txg)];
        let start = records.bytes.len();
        if !entry.encode(&mut records.bytes) {
            refuse();
            return Err(ChangeDropped);
        }
        records.index.push((serial, start));
        let more = shard.bytes() - shard.reported;
        if more < BATCH_BYTES {
            return Ok(());
        }
        shard.reported += more;
        if self.bytes.fetch_add(more, Ordering::Relaxed) + more > max_bytes as i64 {
            refuse();
            return Err(ChangeDropped);
        }
        Ok(())
    }

    /// Takes all records with serial numbers below `cutoff`.
    pub(super) fn take_below(&self, cutoff: u64) -> Vec<Records> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            for slot in 0..2 {
                let records = shard.slots[slot].take_below(cutoff);
                if !records.index.is_empty() {
                    taken.push(records);
                }
            }
            self.report(&mut shard);
        }
        taken
    }

    /// Drops the records of a txg.
    pub(super) fn drop_txg(&self, txg: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.slots[slot_of(txg)] = Records::default();
            self.report(&mut shard);
        }
    }

    fn report(&self, shard: &mut PendingShard) {
        let more = shard.bytes() - shard.reported;
        shard.reported += more;
        if more != 0 {
            self.bytes.fetch_add(more, Ordering::Relaxed);
        }
    }
}
