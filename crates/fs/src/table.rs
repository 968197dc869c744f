//! The inodes in memory.
//!
//! # Invariants
//!
//! - There is one [`Inode`] for a number at any time.
//! - It stays as long as its `refs` is not zero. That counts lookups, opens, and each [`InodeRef`]; it leaves zero only
//!   with its shard locked, and whoever brings it to zero looks, with the shard locked, whether it still is.
//! - An inode without names is destroyed only after it has left.
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
const MEASURED: u64 = 1000;

/// What becomes of an inode that nobody needs any more.
pub(crate) enum Leaving {
    /// It stays a little: something has to be written first.
    Stays,
    /// It has left.
    Left(Arc<Inode>),
    /// Somebody needs it after all.
    Needed,
}

struct Slot {
    inode: Arc<Inode>,
    lookups: u64,
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

type Shard = CachePadded<Mutex<HashMap<u64, Slot, NumberHash>>>;

/// Inodes by number.
pub(crate) struct Table {
    shards: Box<[Shard]>,
    count: AtomicU64,
    /// The shard that the next round begins with.
    next: AtomicU64,
}

impl Table {
    pub(crate) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::named("fs-table", HashMap::default()));
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
        let slot = shard.get(&number)?;
        slot.inode.refs.fetch_add(1, Ordering::SeqCst);
        Some(Arc::clone(&slot.inode))
    }

    /// Whether it is in memory.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.shard(number).lock().contains_key(&number)
    }

    /// Puts an inode in, unless there is one. Returns the one that is there, with one reference more.
    pub(crate) fn insert(&self, inode: Inode) -> Arc<Inode> {
        let mut shard = self.shard(inode.number).lock();
        let slot = match shard.entry(inode.number) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(place) => {
                self.count.fetch_add(1, Ordering::Relaxed);
                place.insert(Slot { inode: Arc::new(inode), lookups: 0 })
            }
        };
        slot.inode.refs.fetch_add(1, Ordering::SeqCst);
        Arc::clone(&slot.inode)
    }

    /// Makes a reference that the caller has one of the count of lookups.
    pub(crate) fn count_lookup(&self, inode: &Inode) {
        if let Some(slot) = self.shard(inode.number).lock().get_mut(&inode.number) {
            slot.lookups += 1;
        }
    }

    /// Takes up to `count` off the count of lookups; returns the inode if that were the last reasons to keep it.
    pub(crate) fn forget(&self, number: u64, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(number).lock();
        let slot = shard.get_mut(&number)?;
        let count = count.min(slot.lookups);
        slot.lookups -= count;
        let before = slot.inode.refs.fetch_sub(count, Ordering::SeqCst);
        (before == count && count > 0).then(|| Arc::clone(&slot.inode))
    }

    /// Ends a reference; true if it was the last one: see [`leave`](Self::leave).
    #[must_use]
    pub(crate) fn put(inode: &Inode) -> bool {
        inode.refs.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Lets an inode go that nobody needs, unless `keep` says that something has to be done first.
    pub(crate) fn leave(&self, number: u64, keep: impl FnOnce(&Inode) -> bool) -> Leaving {
        let mut shard = self.shard(number).lock();
        match shard.get(&number) {
            Some(slot) if slot.inode.refs.load(Ordering::SeqCst) == 0 => {
                if keep(&slot.inode) {
                    return Leaving::Stays;
                }
            }
            _ => return Leaving::Needed,
        }
        match shard.remove(&number) {
            Some(slot) => {
                self.count.fetch_sub(1, Ordering::Relaxed);
                Leaving::Left(slot.inode)
            }
            None => Leaving::Needed,
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
            measured < MEASURED
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
    pub(crate) fn for_each_from_next(&self, each: impl FnMut(&Arc<Inode>) -> bool) {
        let from = self.next.load(Ordering::Relaxed) as usize;
        let to = self.walk(from, each);
        self.next.store(to as u64, Ordering::Relaxed);
    }

    /// Goes round the shards from one of them on; returns the one behind the last that was looked at.
    fn walk(&self, from: usize, mut each: impl FnMut(&Arc<Inode>) -> bool) -> usize {
        for at in from..from + SHARDS {
            let shard = self.shards[at % SHARDS].lock();
            let inodes: Vec<Arc<Inode>> =
                shard.values().map(|slot| Arc::clone(&slot.inode)).collect();
            drop(shard);
            if !inodes.iter().all(&mut each) {
                return (at + 1) % SHARDS;
            }
        }
        from
    }
}
