//! Indexes under locks, which free blocks at once: XFS's red-black tree, here a B-tree, with a lock
//! per group of blocks; and a sharded hash table.
//!
//! A hit takes a counted handle under the lock and uses the block without it. Dropping the last
//! handle frees the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::sync::Mutex;
use hashbrown::HashMap;

use super::{Block, Index, Verdict, judge};
use crate::baseline::FastHash;
use crate::keys::scramble;

/// Groups with a tree each. XFS makes four allocation groups by default.
const GROUPS: usize = 4;
const SHARDS: usize = 256;

/// A tree and a lock per group.
pub(crate) struct TreeIndex([Mutex<BTreeMap<u64, Arc<Block>>>; GROUPS]);

impl TreeIndex {
    fn group(&self, key: u64) -> &Mutex<BTreeMap<u64, Arc<Block>>> {
        &self.0[scramble(key) as usize % GROUPS]
    }
}

impl Index for TreeIndex {
    fn with_capacity(_blocks: usize) -> Self {
        Self(std::array::from_fn(|_| Mutex::named("freeing tree", BTreeMap::new())))
    }

    fn touch(&self, key: u64) -> Option<u64> {
        let block = self.group(key).lock().get(&key)?.clone();
        Some(block.touch())
    }

    fn insert(&self, key: u64, block: Block) -> bool {
        use std::collections::btree_map::Entry;
        match self.group(key).lock().entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Arc::new(block));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn evict(&self, key: u64) -> Verdict {
        let mut tree = self.group(key).lock();
        let Some(block) = tree.get(&key) else { return Verdict::Gone };
        let verdict = judge(block);
        let out = if verdict == Verdict::Used { None } else { tree.remove(&key) };
        drop(tree);
        // Frees the memory without the lock.
        drop(out);
        verdict
    }
}

#[repr(align(128))]
struct Shard(Mutex<HashMap<u64, Arc<Block>, FastHash>>);

/// A sharded hash table that grows.
pub(crate) struct HashIndex(Box<[Shard]>);

impl HashIndex {
    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Arc<Block>, FastHash>> {
        &self.0[(scramble(key) >> 40) as usize % SHARDS].0
    }
}

impl Index for HashIndex {
    fn with_capacity(_blocks: usize) -> Self {
        let shard =
            |_| Shard(Mutex::named("freeing hash", HashMap::with_hasher(FastHash::default())));
        Self((0..SHARDS).map(shard).collect())
    }

    fn touch(&self, key: u64) -> Option<u64> {
        let block = self.shard(key).lock().get(&key)?.clone();
        Some(block.touch())
    }

    fn insert(&self, key: u64, block: Block) -> bool {
        use hashbrown::hash_map::Entry;
        match self.shard(key).lock().entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Arc::new(block));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn evict(&self, key: u64) -> Verdict {
        let mut shard = self.shard(key).lock();
        let Some(block) = shard.get(&key) else { return Verdict::Gone };
        let verdict = judge(block);
        let out = if verdict == Verdict::Used { None } else { shard.remove(&key) };
        drop(shard);
        drop(out);
        verdict
    }
}
