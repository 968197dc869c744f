//! moka: a lock-free map; the policy applies batches of recorded operations. It has no shards.

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::{EvictSubject, Inserter, Loaded, ReadBlocks, ReadSubject, Reader, touch};
use crate::baseline::FastHash;
use crate::blocks::Handle;

type Moka<V> = Cache<u64, V, FastHash>;

fn build<V: Clone + Send + Sync + 'static>(capacity: u64, policy: EvictionPolicy) -> Moka<V> {
    Cache::builder()
        .max_capacity(capacity)
        .eviction_policy(policy)
        .build_with_hasher(FastHash::default())
}

fn policies() -> [(&'static str, EvictionPolicy); 2] {
    [("TinyLFU", EvictionPolicy::tiny_lfu()), ("LRU", EvictionPolicy::lru())]
}

/// A wrapper, so that a local trait with a generic method can be implemented.
struct Filled<H>(Moka<H>);

impl<H: Handle> Reader for Filled<H> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let handle = self.0.get(&key)?;
        Some(touch(&handle))
    }
}

fn filled<H: Handle>(handles: &[H], policy: EvictionPolicy) -> Filled<H> {
    let cache = build(2 * handles.len() as u64, policy);
    for (key, handle) in handles.iter().enumerate() {
        cache.insert(key as u64, handle.clone());
    }
    cache.run_pending_tasks();
    Filled(cache)
}

pub(super) fn readers(blocks: &ReadBlocks) -> Vec<ReadSubject> {
    let candidates = |(name, policy): (&str, EvictionPolicy)| {
        let name = |memory| format!("{name}, {memory}");
        [
            ReadSubject::new("moka", name("huge pages"), filled(&blocks.spans, policy.clone())),
            ReadSubject::new("moka", name("heap blocks"), filled(&blocks.heap, policy)),
        ]
    };
    policies().into_iter().flat_map(candidates).collect()
}

impl<V: Loaded> Inserter for Moka<V> {
    #[inline]
    fn get_or_insert(&self, key: u64) -> bool {
        let found = self.get(&key);
        match &found {
            Some(value) => touch(value),
            None => {
                self.insert(key, V::load(key));
            }
        }
        found.is_some()
    }

    fn resident(&self) -> u64 {
        self.entry_count()
    }
}

pub(super) fn inserters<V: Loaded>() -> Vec<EvictSubject> {
    let candidate = |(name, policy): (&'static str, EvictionPolicy)| {
        EvictSubject::new("moka", name, move |c| build::<V>(c, policy.clone()))
    };
    policies().into_iter().map(candidate).collect()
}
