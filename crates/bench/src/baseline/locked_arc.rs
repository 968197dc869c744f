//! R1's cache before and after: an ARC whose hits move list entries.
//!
//! With one sublist it is "before"; with many it is "after": a multilist, in which the hash of a
//! key selects the sublist for the block's lifetime.
//!
//! Locking, as in the report's cache: a thread holds a block's index lock (many, by hash) while it
//! takes the sublist's lock. The evictor holds a sublist's lock and only *tries* the index lock of
//! its victim; it skips the victim if that fails. A thread holds one sublist lock at a time.
//!
//! A sublist's lock covers its part of all four lists (T1, T2, B1, B2). In a hit-only load every
//! block is in T2, so this is the lock of R1's MFU list.
//!
//! It has no reclaim thread (the inserter evicts), no weights (every block counts one), and no
//! classes.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hashbrown::HashMap;

use super::FastHash;
use super::slab_list::{List, Slab};
use crate::keys::scramble;

/// Locks of the index: as many as in R1's cache.
const INDEX_LOCKS: usize = 256;
/// Victims per sublist before the evictor moves to the next.
const VICTIMS_TRIED: usize = 4;

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

#[repr(align(128))]
struct Padded<T>(T);

struct Entry<V> {
    /// None for a ghost.
    value: Option<V>,
    node: u32,
}

#[derive(Clone, Copy)]
struct Header {
    key: u64,
    list: usize,
}

struct Sublist {
    lists: [List; 4],
    slab: Slab<Header>,
}

type IndexShard<V> = HashMap<u64, Entry<V>, FastHash>;

/// An ARC of blocks of size one, with index locks and list locks.
pub(crate) struct LockedArc<V> {
    capacity: u64,
    index: Box<[Padded<Mutex<IndexShard<V>>>]>,
    sublists: Box<[Padded<Mutex<Sublist>>]>,
    /// Length of each list over all sublists.
    sizes: [Padded<AtomicU64>; 4],
    /// The target size of T1.
    p: Padded<AtomicU64>,
    /// The first sublist of the next eviction.
    next_sublist: Padded<AtomicU64>,
}

impl<V: Clone> LockedArc<V> {
    /// An empty cache of `capacity` blocks with `sublists` list locks.
    pub(crate) fn new(capacity: u64, sublists: usize) -> Self {
        assert!(capacity > 0 && sublists > 0, "a cache holds a block and has a list");
        let shard = || HashMap::with_hasher(FastHash::default());
        let sublist = || Sublist { lists: [List::new(); 4], slab: Slab::new() };
        Self {
            capacity,
            index: (0..INDEX_LOCKS)
                .map(|_| Padded(Mutex::named(Self::INDEX_LOCK, shard())))
                .collect(),
            sublists: (0..sublists)
                .map(|_| Padded(Mutex::named(Self::LIST_LOCK, sublist())))
                .collect(),
            sizes: std::array::from_fn(|_| Padded(AtomicU64::new(0))),
            p: Padded(AtomicU64::new(0)),
            next_sublist: Padded(AtomicU64::new(0)),
        }
    }

    /// Lock class of the index locks in the counting build.
    pub(crate) const INDEX_LOCK: &'static str = "baseline index";
    /// Lock class of the list locks in the counting build.
    pub(crate) const LIST_LOCK: &'static str = "baseline list";

    fn shard(&self, key: u64) -> &Mutex<IndexShard<V>> {
        &self.index[(scramble(key) >> 40) as usize % INDEX_LOCKS].0
    }

    fn sublist(&self, key: u64) -> &Mutex<Sublist> {
        &self.sublists[(scramble(key) & 0xffff_ffff) as usize % self.sublists.len()].0
    }

    fn size(&self, list: usize) -> u64 {
        self.sizes[list].0.load(Relaxed)
    }

    /// Number of resident blocks.
    pub(crate) fn resident(&self) -> u64 {
        self.size(T1) + self.size(T2)
    }

    /// Looks up a block and moves it to the front of T2.
    pub(crate) fn get(&self, key: u64) -> Option<V> {
        let shard = self.shard(key).lock();
        let entry = shard.get(&key)?;
        let value = entry.value.clone()?;
        self.transfer(&mut self.sublist(key).lock(), entry.node, T2);
        Some(value)
    }

    /// Inserts a block and evicts the excess.
    pub(crate) fn insert(&self, key: u64, value: V) {
        {
            let mut shard = self.shard(key).lock();
            let mut sublist = self.sublist(key).lock();
            if let Some(entry) = shard.get_mut(&key) {
                self.adapt(sublist.slab.item(entry.node).list);
                self.transfer(&mut sublist, entry.node, T2);
                entry.value = Some(value);
            } else {
                let Sublist { lists, slab } = &mut *sublist;
                let node = slab.insert(&mut lists[T1], Header { key, list: T1 });
                self.sizes[T1].0.fetch_add(1, Relaxed);
                shard.insert(key, Entry { value: Some(value), node });
            }
        }
        self.trim();
    }

    /// The part of a hit under the list lock, for measuring it alone.
    pub(crate) fn visit_list(&self, key: u64, node: u32) {
        self.transfer(&mut self.sublist(key).lock(), node, T2);
    }

    /// The part of a hit under the index lock only, for measuring it alone.
    pub(crate) fn visit_index(&self, key: u64) -> Option<V> {
        self.shard(key).lock().get(&key)?.value.clone()
    }

    /// Keys of the resident blocks, with the nodes for [`visit_list`](Self::visit_list).
    pub(crate) fn nodes(&self) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        for shard in &self.index {
            let shard = shard.0.lock();
            let resident = shard.iter().filter(|(_, entry)| entry.value.is_some());
            all.extend(resident.map(|(key, entry)| (*key, entry.node)));
        }
        all
    }

    /// Number of index locks.
    pub(crate) fn index_locks(&self) -> usize {
        self.index.len()
    }

    /// ARC's adaptation of `p` on a ghost hit.
    fn adapt(&self, list: usize) {
        let (b1, b2) = (self.size(B1).max(1), self.size(B2).max(1));
        let p = self.p.0.load(Relaxed);
        match list {
            B1 => self.p.0.store((p + (b2 / b1).max(1)).min(self.capacity), Relaxed),
            B2 => self.p.0.store(p.saturating_sub((b1 / b2).max(1)), Relaxed),
            _ => {}
        }
    }

    fn transfer(&self, sublist: &mut Sublist, node: u32, to: usize) {
        let Sublist { lists, slab } = sublist;
        let from = std::mem::replace(&mut slab.item_mut(node).list, to);
        slab.unlink(&mut lists[from], node);
        slab.link(&mut lists[to], node);
        if from != to {
            self.sizes[from].0.fetch_sub(1, Relaxed);
            self.sizes[to].0.fetch_add(1, Relaxed);
        }
    }

    /// Evicts until residents and ghosts are within their bounds. Gives up if all victims are busy;
    /// the next insert continues.
    fn trim(&self) {
        while self.resident() > self.capacity {
            let (t1, t2) = (self.size(T1), self.size(T2));
            let (from, to) =
                if t1 > self.p.0.load(Relaxed) || t2 == 0 { (T1, B1) } else { (T2, B2) };
            if !self.evict_one(from, Some(to)) {
                break;
            }
        }
        while self.size(T1) + self.size(B1) > self.capacity && self.size(B1) > 0 {
            if !self.evict_one(B1, None) {
                break;
            }
        }
        while self.resident() + self.size(B1) + self.size(B2) > 2 * self.capacity
            && self.size(B2) > 0
        {
            if !self.evict_one(B2, None) {
                break;
            }
        }
    }

    /// Moves one block to its ghost list, or drops a ghost. Returns false if all victims are busy.
    fn evict_one(&self, from: usize, to: Option<usize>) -> bool {
        let count = self.sublists.len();
        let first = self.next_sublist.0.fetch_add(1, Relaxed) as usize;
        for i in 0..count {
            let mut sublist = self.sublists[(first + i) % count].0.lock();
            let mut at = sublist.lists[from].tail();
            for _ in 0..VICTIMS_TRIED {
                let Some(node) = at else { break };
                let key = sublist.slab.item(node).key;
                if let Some(mut shard) = self.shard(key).try_lock() {
                    let value = self.remove_from_list(&mut shard, &mut sublist, key, node, to);
                    drop(shard);
                    drop(sublist);
                    drop(value);
                    return true;
                }
                at = sublist.slab.newer(node);
            }
        }
        false
    }

    /// Removes a block from its list. Returns its value, to be dropped without locks.
    fn remove_from_list(
        &self,
        shard: &mut IndexShard<V>,
        sublist: &mut Sublist,
        key: u64,
        node: u32,
        to: Option<usize>,
    ) -> Option<V> {
        if let Some(to) = to {
            self.transfer(sublist, node, to);
            return shard.get_mut(&key).and_then(|entry| entry.value.take());
        }
        let Sublist { lists, slab } = sublist;
        let from = slab.item(node).list;
        slab.remove(&mut lists[from], node);
        self.sizes[from].0.fetch_sub(1, Relaxed);
        shard.remove(&key).and_then(|entry| entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_sim::cache::policies::Policy;
    use forebay_sim::cache::policies::arc::Arc;

    use crate::keys::{Distribution, KeySpace};

    #[test]
    fn one_list_comes_close_to_the_textbook() {
        const CAPACITY: u64 = 1000;
        let keys = KeySpace::new(Distribution::Zipf, 4 * CAPACITY, 5);
        let mut stream = keys.stream(0, 1, 5);
        let (one, many) = (LockedArc::new(CAPACITY, 1), LockedArc::new(CAPACITY, 8));
        let mut textbook = Arc::new(CAPACITY as usize, 4 * CAPACITY as usize);
        let mut hits = [0u32; 3];
        for _ in 0..200_000 {
            let key = stream.next();
            hits[0] += u32::from(textbook.access(key as u32));
            for (i, arc) in [&one, &many].iter().enumerate() {
                match arc.get(key) {
                    Some(value) => {
                        assert_eq!(value, key);
                        hits[i + 1] += 1;
                    }
                    None => arc.insert(key, key),
                }
                assert!(arc.resident() <= CAPACITY);
            }
        }
        let ratio = hits.map(|h| f64::from(h) / 200_000.0);
        assert!((ratio[1] - ratio[0]).abs() < 0.01, "{ratio:?}");
        assert!((ratio[2] - ratio[0]).abs() < 0.02, "{ratio:?}");
    }

    #[test]
    fn threads_leave_it_whole() {
        let arc = LockedArc::new(500, 4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let arc = &arc;
                scope.spawn(move || {
                    let mut rng = crate::keys::XorShift::new(thread);
                    for _ in 0..50_000 {
                        let key = rng.below(2000);
                        if arc.get(key).is_none() {
                            arc.insert(key, key);
                        }
                    }
                });
            }
        });
        arc.trim();
        let mut listed = [0u64; 4];
        for sublist in &arc.sublists {
            let sublist = sublist.0.lock();
            (0..4).for_each(|list| listed[list] += sublist.lists[list].len());
        }
        assert_eq!(listed, [T1, T2, B1, B2].map(|list| arc.size(list)));
        let indexed: usize = arc.index.iter().map(|shard| shard.0.lock().len()).sum();
        assert_eq!(indexed as u64, listed.iter().sum::<u64>());
        assert!(arc.resident() <= 500);
    }
}
