//! The table of inodes in memory.
//!
//! # Invariants
//!
//! - There is at most one [`Inode`] per number.
//! - An inode stays while its `refs` is not zero. `refs` counts lookups, opens, and each
//!   `InodeRef`. It leaves zero only under the shard lock. The thread that brings it to zero checks
//!   it again under the shard lock before it evicts the inode.
//! - An inode without names is destroyed only after its eviction.
//! - A loaded inode enters the table only if nobody had that inode in memory during the load,
//!   because they may have changed it. [`LoadGuard`] tracks this.
//!
//! # Locking
//!
//! Under a shard lock the table calls no other code, and takes only the state mutexes of inodes.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::inode::Inode;

/// Number of shards, a power of two.
const SHARDS: usize = 64;
/// Number of inodes sampled to estimate the memory of all.
const SAMPLE_INODES: u64 = 1000;

/// Result of [`InodeTable::try_evict`].
pub(crate) enum Eviction {
    /// Not evicted yet: its times must be written first.
    Deferred,
    /// No longer in the table.
    Evicted(Arc<Inode>),
    /// Referenced again.
    InUse,
}

struct Slot {
    inode: Arc<Inode>,
    lookups: u64,
}

/// Loads of one inode number in progress.
#[derive(Default)]
struct PendingLoads {
    count: usize,
    /// How often an inode of this number was evicted or replaced since the first of these loads
    /// began.
    evictions: u64,
}

#[derive(Default)]
struct TableShard {
    slots: HashMap<u64, Slot, NumberHash>,
    loading: HashMap<u64, PendingLoads, NumberHash>,
}

impl TableShard {
    /// Marks loads of this number in progress as stale.
    fn note_eviction(&mut self, number: u64) {
        if let Some(readers) = self.loading.get_mut(&number) {
            readers.evictions += 1;
        }
    }
}

/// Result of [`InodeTable::get_or_load`].
pub(crate) enum CacheLookup<'a> {
    /// The inode, with a new reference.
    Hit(Arc<Inode>),
    /// The inode is not in memory: load it and call [`LoadGuard::finish`].
    Miss(LoadGuard<'a>),
}

/// Permission to load an inode and enter it into the table.
pub(crate) struct LoadGuard<'a> {
    table: &'a InodeTable,
    number: u64,
    evictions: u64,
}

impl LoadGuard<'_> {
    /// Enters the loaded inode and returns the one now in the table, with a new reference. Returns
    /// `None` if the loaded inode is stale, because the inode was in memory and was evicted again.
    pub(crate) fn finish(self, inode: Inode) -> Option<Arc<Inode>> {
        debug_assert_eq!(inode.number, self.number, "another inode was asked for");
        let mut shard = self.table.shard(self.number).lock();
        let fresh =
            shard.loading.get(&self.number).is_some_and(|now| now.evictions == self.evictions);
        let slot = match shard.slots.entry(self.number) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(_) if !fresh => return None,
            Entry::Vacant(vacant) => {
                self.table.count.fetch_add(1, Ordering::Relaxed);
                vacant.insert(Slot { inode: Arc::new(inode), lookups: 0 })
            }
        };
        slot.inode.refs.fetch_add(1, Ordering::SeqCst);
        let inode = Arc::clone(&slot.inode);
        drop(shard);
        Some(inode)
    }

    /// Whether the inode is, or was, in memory since the load began. Then the result of the load,
    /// or its error, has no meaning.
    pub(crate) fn is_stale(&self) -> bool {
        let shard = self.table.shard(self.number).lock();
        let same =
            shard.loading.get(&self.number).is_some_and(|now| now.evictions == self.evictions);
        !same || shard.slots.contains_key(&self.number)
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        let mut shard = self.table.shard(self.number).lock();
        if let Some(readers) = shard.loading.get_mut(&self.number) {
            readers.count -= 1;
            if readers.count == 0 {
                shard.loading.remove(&self.number);
            }
        }
    }
}

/// Hashes inode numbers: neighbours go to different shards.
#[derive(Clone, Copy, Default)]
struct NumberHash;

struct NumberHasher(u64);

impl std::hash::BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(0)
    }
}

impl std::hash::Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type Shard = CachePadded<Mutex<TableShard>>;

/// Inodes by number.
pub(crate) struct InodeTable {
    shards: Box<[Shard]>,
    count: AtomicU64,
    /// First shard of the next round.
    next: AtomicU64,
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("fs-table", TableShard::default()));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            count: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    fn shard(&self, number: u64) -> &Shard {
        &self.shards[number as usize % SHARDS]
    }

    /// Returns the inode with a new reference.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        let shard = self.shard(number).lock();
        let slot = shard.slots.get(&number)?;
        slot.inode.refs.fetch_add(1, Ordering::SeqCst);
        Some(Arc::clone(&slot.inode))
    }

    /// Returns the inode with a new reference, or permission to load it.
    pub(crate) fn get_or_load(&self, number: u64) -> CacheLookup<'_> {
        let mut shard = self.shard(number).lock();
        if let Some(slot) = shard.slots.get(&number) {
            slot.inode.refs.fetch_add(1, Ordering::SeqCst);
            return CacheLookup::Hit(Arc::clone(&slot.inode));
        }
        let readers = shard.loading.entry(number).or_default();
        readers.count += 1;
        CacheLookup::Miss(LoadGuard { table: self, number, evictions: readers.evictions })
    }

    /// Whether the inode is in memory.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.shard(number).lock().slots.contains_key(&number)
    }

    /// Enters a new inode, whose object was just created, and returns it with a new reference. It
    /// replaces an inode of an older object with this number. Users of that one find its object
    /// gone.
    pub(crate) fn add(&self, inode: Inode) -> Arc<Inode> {
        let number = inode.number;
        let mut shard = self.shard(number).lock();
        shard.note_eviction(number);
        let slot = match shard.slots.entry(number) {
            // Loaded by its number, without a lookup.
            Entry::Occupied(slot) if slot.get().inode.generation == inode.generation => {
                slot.into_mut()
            }
            Entry::Occupied(slot) => {
                let slot = slot.into_mut();
                *slot = Slot { inode: Arc::new(inode), lookups: 0 };
                slot
            }
            Entry::Vacant(vacant) => {
                self.count.fetch_add(1, Ordering::Relaxed);
                vacant.insert(Slot { inode: Arc::new(inode), lookups: 0 })
            }
        };
        slot.inode.refs.fetch_add(1, Ordering::SeqCst);
        Arc::clone(&slot.inode)
    }

    /// Removes an inode whose creation failed. Its object is already destroyed.
    pub(crate) fn remove(&self, inode: &Inode) {
        let mut shard = self.shard(inode.number).lock();
        shard.note_eviction(inode.number);
        let same = |slot: &Slot| std::ptr::eq(&raw const *slot.inode, inode);
        if shard.slots.get(&inode.number).is_some_and(same) {
            shard.slots.remove(&inode.number);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Turns a reference that the caller holds into a lookup.
    pub(crate) fn count_lookup(&self, inode: &Inode) {
        if let Some(slot) = self.shard(inode.number).lock().slots.get_mut(&inode.number) {
            slot.lookups += 1;
        }
    }

    /// Subtracts up to `count` lookups. Returns the inode if its reference count is now zero.
    pub(crate) fn forget(&self, number: u64, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(number).lock();
        let slot = shard.slots.get_mut(&number)?;
        let count = count.min(slot.lookups);
        slot.lookups -= count;
        let before = slot.inode.refs.fetch_sub(count, Ordering::SeqCst);
        (before == count && count > 0).then(|| Arc::clone(&slot.inode))
    }

    /// Drops a reference. Returns true if it was the last one; then call
    /// [`try_evict`](Self::try_evict).
    #[must_use]
    pub(crate) fn put(inode: &Inode) -> bool {
        inode.refs.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Evicts an inode without references, unless `must_keep` returns true.
    pub(crate) fn try_evict(
        &self,
        number: u64,
        must_keep: impl FnOnce(&Inode) -> bool,
    ) -> Eviction {
        let mut shard = self.shard(number).lock();
        match shard.slots.get(&number) {
            Some(slot) if slot.inode.refs.load(Ordering::SeqCst) == 0 => {
                if must_keep(&slot.inode) {
                    return Eviction::Deferred;
                }
            }
            _ => return Eviction::InUse,
        }
        match shard.slots.remove(&number) {
            Some(slot) => {
                shard.note_eviction(number);
                self.count.fetch_sub(1, Ordering::Relaxed);
                Eviction::Evicted(slot.inode)
            }
            None => Eviction::InUse,
        }
    }

    /// Number of inodes.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Approximate memory of all inodes in bytes, estimated from a sample.
    pub(crate) fn bytes(&self) -> u64 {
        let (mut measured, mut bytes) = (0, 0);
        self.for_each(|inode| {
            measured += 1;
            bytes += inode.memory_bytes();
            measured < SAMPLE_INODES
        });
        match measured {
            0 => 0,
            _ => (u128::from(bytes) * u128::from(self.len()) / u128::from(measured)) as u64,
        }
    }

    /// Calls `each` for every inode until it returns false. No shard is locked during a call.
    pub(crate) fn for_each(&self, each: impl FnMut(&Arc<Inode>) -> bool) {
        self.walk(0, each);
    }

    /// As [`for_each`](Self::for_each), but starts with the shard after the last one of the
    /// previous call.
    pub(crate) fn for_each_round_robin(&self, each: impl FnMut(&Arc<Inode>) -> bool) {
        let from = self.next.load(Ordering::Relaxed) as usize;
        let to = self.walk(from, each);
        self.next.store(to as u64, Ordering::Relaxed);
    }

    /// Visits the shards from `from` on, cyclically. Returns the shard after the last one visited.
    fn walk(&self, from: usize, mut each: impl FnMut(&Arc<Inode>) -> bool) -> usize {
        for at in from..from + SHARDS {
            let shard = self.shards[at % SHARDS].lock();
            let inodes: Vec<Arc<Inode>> =
                shard.slots.values().map(|slot| Arc::clone(&slot.inode)).collect();
            drop(shard);
            if !inodes.iter().all(&mut each) {
                return (at + 1) % SHARDS;
            }
        }
        from
    }
}
