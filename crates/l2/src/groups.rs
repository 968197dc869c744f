//! Groups of keys that were forgotten together.
//!
//! A group is a number that a key names, such as that of a file. Forgetting a group takes one
//! tombstone, however many blocks it has. The index is not searched: here is the log position of
//! each group's tombstone, and a block of the group that lies before it is *void*. Each lookup that
//! finds a record asks whether it is.
//!
//! If the tombstone cannot be written, the group stays void in this process, and the label is
//! voided, as for a key ([`forget`](crate::forget)). With immutable keys the blocks may return
//! after a restart, as forgotten keys may.
//!
//! Locking: `l2-groups`, a leaf lock, to read or change the table. A lookup takes it only if there
//! is a forgotten group.

use std::collections::HashMap;

use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_cache::Key;

use crate::error::Result;
use crate::forget::{ForgetCallback, UnfinishedForget};
use crate::record::{BlockAddr, KeyHash, Record, Tombstone};
use crate::shared::L2Shared;

/// A position in the log: the sequence number of a segment, and a unit in it.
pub(crate) type LogPosition = (u64, u32);

/// The forgotten groups.
///
/// # Why no old block returns
///
/// 1. While a group is being forgotten, all its blocks are void, wherever they are. Only then its
///    blocks leave memory. So a load that began before finds its block outdated, and a later one
///    misses.
/// 2. A block that left memory is outdated, so the writer leaves it out of batches that it
///    assembles from then on. A batch takes its tombstones last, and they cover its own blocks. So
///    all older blocks of the group precede the tombstone in the log.
/// 3. Segments are reused strictly in order. So the tombstone outlives the blocks that it covers,
///    and its entry here is dropped with its segment. A void block is not reinserted: that would
///    move it behind the tombstone. A lookup that found the block earlier asks here first, and then
///    for the segment's number, or for the record again. A reused segment has no record of its old
///    use and has its new number before the entry is dropped, so one of the two stops the lookup.
/// 4. The rebuild reads newer segments first, and serves none before those that follow it. So it
///    knows the tombstone before it serves a block that precedes it.
pub(crate) struct Groups {
    forgotten: Mutex<HashMap<u64, ForgottenGroup>>,
    /// How many there are.
    count: AtomicUsize,
    /// How many the table has memory for.
    capacity: AtomicUsize,
}

#[derive(Default)]
struct ForgottenGroup {
    /// Blocks before this are void: the end of the batch of the newest tombstone.
    position: LogPosition,
    /// Threads that forget the group. Until they have, all its blocks are void.
    forgetting: u32,
}

impl Groups {
    pub(crate) fn new() -> Self {
        let forgotten = Mutex::named("l2-groups", HashMap::new());
        let (count, capacity) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { forgotten, count, capacity }
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u64, ForgottenGroup>)) {
        let mut forgotten = self.forgotten.lock();
        change(&mut forgotten);
        self.count.store(forgotten.len(), Ordering::SeqCst);
        self.capacity.store(forgotten.capacity(), Ordering::Relaxed);
    }

    /// Bytes of memory of the table, outside of this structure.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // The map is full at seven eighths, and has a byte beside each entry.
        let places = self.capacity.load(Ordering::Relaxed).div_ceil(7) * 8;
        (places * (size_of::<(u64, ForgottenGroup)>() + 1)) as u64
    }

    /// Makes all blocks of the group void until [`end`](Self::end).
    fn begin(&self, group: u64) {
        self.change(|forgotten| forgotten.entry(group).or_default().forgetting += 1);
    }

    /// Ends what [`begin`](Self::begin) began. The tombstone is durable, and its position was set.
    pub(crate) fn end(&self, group: u64) {
        self.change(|forgotten| {
            if let Some(entry) = forgotten.get_mut(&group) {
                entry.forgetting -= 1;
            }
        });
    }

    /// Sets the position of a tombstone, unless that of a newer one is known.
    pub(crate) fn set_position(&self, group: u64, position: LogPosition) {
        self.change(|forgotten| {
            let entry = forgotten.entry(group).or_default();
            entry.position = entry.position.max(position);
        });
    }

    /// Drops tombstones of segments before that sequence number: the blocks that they cover are
    /// gone.
    pub(crate) fn prune(&self, oldest_seq: u64) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.change(|forgotten| {
                forgotten.retain(|_, entry| entry.forgetting > 0 || entry.position.0 >= oldest_seq);
                shrink(forgotten);
            });
        }
    }

    /// Drops all tombstones, because the log is void.
    pub(crate) fn clear(&self) {
        self.change(|forgotten| {
            forgotten.retain(|_, entry| entry.forgetting > 0);
            shrink(forgotten);
            forgotten.values_mut().for_each(|entry| entry.position = (0, 0));
        });
    }

    fn is_void(&self, group: impl FnOnce() -> Option<u64>, position: LogPosition) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let Some(group) = group() else { return false };
        let forgotten = self.forgotten.lock();
        let entry = forgotten.get(&group);
        entry.is_some_and(|entry| entry.forgetting > 0 || position < entry.position)
    }
}

/// Releases memory if the table has four times what it needs. It may need as much again soon.
fn shrink(forgotten: &mut HashMap<u64, ForgottenGroup>) {
    if forgotten.capacity() / 4 > forgotten.len() {
        forgotten.shrink_to(2 * forgotten.len());
    }
}

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// The group that the key names.
    pub(crate) fn group_of(&self, key: &K) -> Option<u64> {
        self.with_codec(|codec| codec.group(key)).flatten()
    }

    /// Whether a block of that key at this address belongs to a group that was forgotten since.
    pub(crate) fn is_void(&self, key: &K, addr: BlockAddr) -> bool {
        let position = (self.ring.seq(addr.segment), addr.unit);
        self.groups.is_void(|| self.group_of(key), position)
    }

    /// The record of a key, unless its block is void.
    pub(crate) fn find_of(&self, key: &K, hash: KeyHash) -> Option<Record> {
        let mut record = self.index.find(hash)?;
        while !self.is_void(key, record.addr) {
            // If its segment was reused meanwhile, its tombstone may have been dropped.
            let now = self.index.find(hash)?;
            if now.addr == record.addr {
                return Some(now);
            }
            record = now;
        }
        None
    }

    /// As [`is_void`](Self::is_void), by the encoded key and the note. A key that cannot be
    /// restored may be of any group.
    pub(crate) fn is_void_encoded(&self, (key, note): (&[u8], &[u8]), addr: BlockAddr) -> bool {
        if self.groups.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let key = self.with_codec(|codec| codec.decode_key(key, note)).flatten();
        key.is_none_or(|key| self.is_void(&key, addr))
    }

    /// Forgets all blocks of a group. `remove_cached` removes them from memory.
    ///
    /// # Errors
    /// As [`forget`](Self::forget). In this process the blocks do not return.
    pub(crate) fn forget_group(&self, group: u64, remove_cached: impl FnOnce()) -> Result<()> {
        self.groups.begin(group);
        remove_cached();
        let can_write = self.status.is_open() && self.write_queue.wait_started();
        if !can_write || !self.write_queue.write_tombstone(Tombstone::Group(group)) {
            return self.void_label_or_fail();
        }
        self.groups.end(group);
        Ok(())
    }

    /// As [`forget_group`](Self::forget_group), without blocking the thread: `done` gets the
    /// outcome, on any thread. [`WriteQueue::started`](crate::write_queue::WriteQueue::started)
    /// must have been awaited.
    pub(crate) fn forget_group_then(
        self: &Arc<Self>,
        group: u64,
        remove_cached: impl FnOnce(),
        done: ForgetCallback,
    ) {
        self.groups.begin(group);
        remove_cached();
        let forget = UnfinishedForget { tombstone: Tombstone::Group(group), done };
        match self.status.is_open() && self.write_queue.is_started() {
            true => self.write_tombstone_then(forget),
            false => self.void_then(forget),
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_forgotten_groups_is_counted_and_released() {
        const GROUPS: u64 = 10_000;
        let groups = Groups::new();
        assert_eq!(groups.memory_bytes(), 0);
        for group in 0..GROUPS {
            groups.begin(group);
            groups.set_position(group, (1 + group / 100, 0));
            groups.end(group);
        }
        let full = groups.memory_bytes();
        assert!(full >= GROUPS * 33, "{full}");
        groups.prune(1 + GROUPS / 100 - 1);
        let few = groups.memory_bytes();
        assert!((100 * 33..full / 8).contains(&few), "{few} of {full}");
        groups.prune(u64::MAX);
        assert_eq!(groups.memory_bytes(), 0);
    }
}
