//! The inodes in memory.
//!
//! # Invariants
//!
//! - There is one [`Inode`] for a number at any time.
//! - It stays as long as its `refs` is not zero. That counts lookups, opens, and each [`InodeRef`]; it leaves zero only
//!   with its shard locked, and whoever brings it to zero looks, with the shard locked, whether it still is.
//! - An inode without names is destroyed only after it has left.
//! - What was read of an inode's object comes in only if nobody had the inode in memory while it was read: who had it may have
//!   changed it. Whoever reads says so before ([`LoadGuard`]), and is told.
//!
//! # Locking
//!
//! Nothing is called under a shard's lock, and nothing locked but what is known of an inode.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::inode::Inode;

/// A power of two.
const SHARDS: usize = 64;
/// Inodes that are measured to know what all take.
const SAMPLE_INODES: u64 = 1000;

/// What becomes of an inode that nobody needs any more.
pub(crate) enum Eviction {
    /// It stays a little: something has to be written first.
    Deferred,
    /// It has left.
    Evicted(Arc<Inode>),
    /// Somebody needs it after all.
    InUse,
}

struct Slot {
    inode: Arc<Inode>,
    lookups: u64,
}

/// Somebody reads inodes of this number.
#[derive(Default)]
struct PendingLoads {
    count: usize,
    /// How often an inode of the number has left, or made room for another one, since the first of them began.
    evictions: u64,
}

#[derive(Default)]
struct TableShard {
    slots: HashMap<u64, Slot, NumberHash>,
    loading: HashMap<u64, PendingLoads, NumberHash>,
}

impl TableShard {
    /// What was read of this number may be old.
    fn note_eviction(&mut self, number: u64) {
        if let Some(readers) = self.loading.get_mut(&number) {
            readers.evictions += 1;
        }
    }
}

/// What there is of an inode in memory.
pub(crate) enum CacheLookup<'a> {
    /// It is there, with one reference more.
    Hit(Arc<Inode>),
    /// It is not: read it, and hand it in.
    Miss(LoadGuard<'a>),
}

/// The right to put an inode in that is being read.
pub(crate) struct LoadGuard<'a> {
    table: &'a InodeTable,
    number: u64,
    evictions: u64,
}

impl LoadGuard<'_> {
    /// Puts in what was read, and returns the inode that is there now, with one reference more. `None` if others had
    /// the inode meanwhile, and it left again: what was read is old.
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

    /// Whether others have, or had, the inode since: what was read, or why it could not be, says nothing.
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

/// Spreads numbers: neighbours are in different shards, and a number is as good as a hash.
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
    /// The shard that the next round begins with.
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

    /// The inode of that number, with one reference more.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        let shard = self.shard(number).lock();
        let slot = shard.slots.get(&number)?;
        slot.inode.refs.fetch_add(1, Ordering::SeqCst);
        Some(Arc::clone(&slot.inode))
    }

    /// The inode of that number, or the right to put it in.
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

    /// Whether it is in memory.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.shard(number).lock().slots.contains_key(&number)
    }

    /// Puts a new inode in, whose object was just created, and returns it with one reference more. One of an older object with its
    /// number makes room; whoever has that finds its object gone.
    pub(crate) fn add(&self, inode: Inode) -> Arc<Inode> {
        let number = inode.number;
        let mut shard = self.shard(number).lock();
        shard.note_eviction(number);
        let slot = match shard.slots.entry(number) {
            // Somebody guessed its number and has read it.
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

    /// Takes out an inode that came to nothing: its object is destroyed already.
    pub(crate) fn remove(&self, inode: &Inode) {
        let mut shard = self.shard(inode.number).lock();
        shard.note_eviction(inode.number);
        let same = |slot: &Slot| std::ptr::eq(&raw const *slot.inode, inode);
        if shard.slots.get(&inode.number).is_some_and(same) {
            shard.slots.remove(&inode.number);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes a reference that the caller has one of the count of lookups.
    pub(crate) fn count_lookup(&self, inode: &Inode) {
        if let Some(slot) = self.shard(inode.number).lock().slots.get_mut(&inode.number) {
            slot.lookups += 1;
        }
    }

    /// Takes up to `count` off the count of lookups; returns the inode if that were the last reasons to keep it.
    pub(crate) fn forget(&self, number: u64, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(number).lock();
        let slot = shard.slots.get_mut(&number)?;
        let count = count.min(slot.lookups);
        slot.lookups -= count;
        let before = slot.inode.refs.fetch_sub(count, Ordering::SeqCst);
        (before == count && count > 0).then(|| Arc::clone(&slot.inode))
    }

    /// Ends a reference; true if it was the last one: see [`try_evict`](Self::leave).
    #[must_use]
    pub(crate) fn put(inode: &Inode) -> bool {
        inode.refs.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Lets an inode go that nobody needs, unless `must_keep` says that something has to be done first.
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

    /// Inodes in it.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of memory that inodes take, roughly: of many, some are measured.
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

    /// Calls `each` for every inode, until it returns false. No shard is locked meanwhile.
    pub(crate) fn for_each(&self, each: impl FnMut(&Arc<Inode>) -> bool) {
        self.walk(0, each);
    }

    /// The same, and begins where the last call of this has not been yet.
    pub(crate) fn for_each_round_robin(&self, each: impl FnMut(&Arc<Inode>) -> bool) {
        let from = self.next.load(Ordering::Relaxed) as usize;
        let to = self.walk(from, each);
        self.next.store(to as u64, Ordering::Relaxed);
    }

    /// Goes round the shards from one of them on; returns the one behind the last that was looked at.
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
