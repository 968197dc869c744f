//! Changes whose order among all objects matters: what exists, and under which names. Encoded as they will be
//! stored, in a list a shard; a number from one counter gives the order.
//!
//! Invariant: a shard's list is in the order of its serial numbers, which are given under the shard's lock. So all
//! records below a number that was read from the counter are in the lists, or gone, once each shard has
//! been locked after that.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use forebay_base::sync::{Mutex, thread_slot};

use crate::format::{LogEntry, LogRecord};
use crate::txg::slot_of;

/// A shard tells the sum of its bytes when it differs by this much.
const BATCH_BYTES: i64 = 64 << 10;
/// Shards; the model checker wants to see few.
const SHARDS: usize = if cfg!(forebay_model) { 2 } else { 64 };

/// The shard that the calling thread uses. Threads of the model checker share one slot: there, the object decides.
#[inline]
fn shard_for(object: u64) -> usize {
    if cfg!(forebay_model) { object as usize % SHARDS } else { thread_slot().index(SHARDS) }
}

/// Encoded records of one transaction group.
#[derive(Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    // Serial number, and where the record begins.
    index: Vec<(u64, usize)>,
}

impl Records {
    /// Takes those with numbers below `cut`.
    fn take_below(&mut self, cut: u64) -> Self {
        let count = self.index.partition_point(|(serial, _)| *serial < cut);
        if count == self.index.len() {
            return std::mem::take(self);
        }
        let at = self.index[count].1;
        let mut rest = Self { bytes: self.bytes.split_off(at), index: self.index.split_off(count) };
        rest.index.iter_mut().for_each(|(_, start)| *start -= at);
        std::mem::replace(self, rest)
    }

    /// Serial numbers and records, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let ends = self.index.iter().skip(1).map(|(_, start)| *start).chain([self.bytes.len()]);
        self.index.iter().zip(ends).map(|(&(serial, start), end)| (serial, &self.bytes[start..end]))
    }
}

#[derive(Default)]
struct PendingShard {
    slots: [Records; 2],
    // What the sum knows of this shard's bytes.
    reported: i64,
}

impl PendingShard {
    fn bytes(&self) -> i64 {
        (self.slots[0].bytes.len() + self.slots[1].bytes.len()) as i64
    }
}

/// Why a change was not kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangeDropped;

/// All shards.
pub(super) struct Pending {
    shards: Box<[CachePadded<Mutex<PendingShard>>]>,
    /// The next serial number.
    serial: CachePadded<AtomicU64>,
    /// Bytes in memory, but for less than a batch a shard.
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

    /// A number that is larger than those before.
    #[inline]
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::SeqCst)
    }

    /// A number larger than those of all changes that ended before this call.
    pub(super) fn cut(&self) -> u64 {
        self.serial.load(Ordering::SeqCst)
    }

    /// Notes a change. `refuse` runs under the shard's lock when it is not kept, so that whoever takes a later
    /// change from any shard can see what it did.
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

    /// Takes all records below `cut`.
    pub(super) fn take_below(&self, cut: u64) -> Vec<Records> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            for slot in 0..2 {
                let records = shard.slots[slot].take_below(cut);
                if !records.index.is_empty() {
                    taken.push(records);
                }
            }
            self.tell(&mut shard);
        }
        taken
    }

    /// Drops the records of a txg.
    pub(super) fn drop_txg(&self, txg: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.slots[slot_of(txg)] = Records::default();
            self.tell(&mut shard);
        }
    }

    fn tell(&self, shard: &mut PendingShard) {
        let more = shard.bytes() - shard.reported;
        shard.reported += more;
        if more != 0 {
            self.bytes.fetch_add(more, Ordering::Relaxed);
        }
    }
}
