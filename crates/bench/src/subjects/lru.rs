//! `Mutex<LruCache>`, the usual first implementation, with one shard and 64.

use std::num::NonZeroUsize;

use forebay_base::sync::Mutex;
use lru::LruCache;

use super::{EvictSubject, Inserter, Loaded, ReadBlocks, ReadSubject, Reader, touch};
use crate::baseline::FastHash;
use crate::blocks::Handle;
use crate::keys::scramble;

/// Shards on separate cache lines.
#[repr(align(128))]
struct Shard<V>(Mutex<LruCache<u64, V, FastHash>>);

struct ShardedLru<V>(Box<[Shard<V>]>);

const SUBJECTS: [(&str, usize); 2] = [("mutex-lru-1", 1), ("mutex-lru-64", 64)];

impl<V: Clone> ShardedLru<V> {
    fn new(capacity: u64, shards: usize) -> Self {
        let each = NonZeroUsize::new(capacity as usize / shards).unwrap_or(NonZeroUsize::MIN);
        let shard =
            |_| Shard(Mutex::named("peer lru", LruCache::with_hasher(each, FastHash::default())));
        Self((0..shards).map(shard).collect())
    }

    #[inline]
    fn shard(&self, key: u64) -> &Mutex<LruCache<u64, V, FastHash>> {
        &self.0[(scramble(key) >> 32) as usize % self.0.len()].0
    }
}

impl<H: Handle> Reader for ShardedLru<H> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let handle = self.shard(key).lock().get(&key)?.clone();
        Some(touch(&handle))
    }
}

fn filled<H: Handle>(handles: &[H], shards: usize) -> ShardedLru<H> {
    let cache = ShardedLru::new(2 * handles.len() as u64, shards);
    for (key, handle) in handles.iter().enumerate() {
        cache.shard(key as u64).lock().put(key as u64, handle.clone());
    }
    cache
}

pub(super) fn readers(blocks: &ReadBlocks) -> Vec<ReadSubject> {
    let candidates = |(name, shards)| {
        [
            ReadSubject::new(name, "huge pages", filled(&blocks.spans, shards)),
            ReadSubject::new(name, "heap blocks", filled(&blocks.heap, shards)),
        ]
    };
    SUBJECTS.into_iter().flat_map(candidates).collect()
}

impl<V: Loaded> Inserter for ShardedLru<V> {
    #[inline]
    fn get_or_insert(&self, key: u64) -> bool {
        let mut shard = self.shard(key).lock();
        if let Some(value) = shard.get(&key) {
            let value = value.clone();
            drop(shard);
            touch(&value);
            return true;
        }
        if V::IS_WORD {
            // One lock acquisition does both, as users write it.
            shard.put(key, V::load(key));
        } else {
            drop(shard);
            let value = V::load(key);
            // Frees the evicted value outside the lock.
            let gone = self.shard(key).lock().push(key, value);
            drop(gone);
        }
        false
    }

    fn resident(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.lock().len() as u64).sum()
    }
}

pub(super) fn inserters<V: Loaded>() -> Vec<EvictSubject> {
    let one =
        |(name, shards)| EvictSubject::new(name, "", move |c| ShardedLru::<V>::new(c, shards));
    SUBJECTS.into_iter().map(one).collect()
}
