//! foyer's memory cache: sharded, several policies.

use foyer_memory::{Cache, CacheBuilder, EvictionConfig, LruConfig, S3FifoConfig};

use super::{EvictSubject, Inserter, Loaded, ReadBlocks, ReadSubject, Reader, touch};
use crate::baseline::FastHash;
use crate::blocks::Handle;

type Foyer<V> = Cache<u64, V, FastHash>;

const SHARDS: [usize; 3] = [8, 64, 256];
const POLICIES: [&str; 2] = ["LRU", "S3-FIFO"];

fn build<V: Send + Sync + 'static>(capacity: u64, shards: usize, policy: &str) -> Foyer<V> {
    let policy: EvictionConfig = match policy {
        "LRU" => LruConfig::default().into(),
        _ => S3FifoConfig::default().into(),
    };
    CacheBuilder::new(capacity as usize)
        .with_shards(shards)
        .with_eviction_config(policy)
        .with_hash_builder(FastHash::default())
        .build()
}

struct Filled<H: Handle>(Foyer<H>);

impl<H: Handle> Reader for Filled<H> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let entry = self.0.get(&key)?;
        Some(touch(entry.value()))
    }
}

fn filled<H: Handle>(handles: &[H], shards: usize, policy: &str) -> Filled<H> {
    let cache = build(2 * handles.len() as u64, shards, policy);
    for (key, handle) in handles.iter().enumerate() {
        cache.insert(key as u64, handle.clone());
    }
    Filled(cache)
}

fn settings() -> impl Iterator<Item = (usize, &'static str)> {
    SHARDS.into_iter().flat_map(|shards| POLICIES.map(|policy| (shards, policy)))
}

pub(super) fn readers(blocks: &ReadBlocks) -> Vec<ReadSubject> {
    // foyer counts references to its entries itself, so the kind of handle makes little difference.
    settings()
        .map(|(shards, policy)| {
            let config = format!("{policy}, {shards} shards, huge pages");
            ReadSubject::new("foyer", config, filled(&blocks.spans, shards, policy))
        })
        .collect()
}

impl<V: Loaded> Inserter for Foyer<V> {
    #[inline]
    fn get_or_insert(&self, key: u64) -> bool {
        let found = self.get(&key);
        match &found {
            Some(value) => touch(value.value()),
            None => {
                self.insert(key, V::load(key));
            }
        }
        found.is_some()
    }

    fn resident(&self) -> u64 {
        self.entries() as u64
    }
}

pub(super) fn inserters<V: Loaded>() -> Vec<EvictSubject> {
    settings()
        .map(|(shards, policy)| {
            let config = format!("{policy}, {shards} shards");
            EvictSubject::new("foyer", config, move |c| build::<V>(c, shards, policy))
        })
        .collect()
}
