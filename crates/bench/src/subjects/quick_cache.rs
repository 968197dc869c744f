//! quick_cache: S3-FIFO-like, with sharded reader-writer locks.

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, UnitWeighter};

use super::{EvictSubject, Inserter, Loaded, ReadBlocks, ReadSubject, Reader, touch};
use crate::baseline::FastHash;
use crate::blocks::Handle;

type Quick<V> = Cache<u64, V, UnitWeighter, FastHash>;

const SHARDS: [usize; 4] = [8, 32, 128, 512];

fn build<V: Clone>(capacity: u64, shards: usize) -> Quick<V> {
    let options = OptionsBuilder::new()
        .shards(shards)
        .estimated_items_capacity(capacity as usize)
        .weight_capacity(capacity)
        .build()
        .expect("all that is required is set");
    let lifecycle = DefaultLifecycle::default();
    Cache::with_options(options, UnitWeighter, FastHash::default(), lifecycle)
}

impl<H: Handle> Reader for Quick<H> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let handle = self.get(&key)?;
        Some(touch(&handle))
    }
}

fn filled<H: Handle>(handles: &[H], shards: usize) -> Quick<H> {
    // Twice the capacity: shards fill unevenly, and every block must be resident.
    let cache = build(2 * handles.len() as u64, shards);
    for (key, handle) in handles.iter().enumerate() {
        cache.insert(key as u64, handle.clone());
    }
    cache
}

pub(super) fn readers(blocks: &ReadBlocks) -> Vec<ReadSubject> {
    let candidates = |shards| {
        let name = |memory| format!("{shards} shards, {memory}");
        [
            ReadSubject::new("quick_cache", name("huge pages"), filled(&blocks.spans, shards)),
            ReadSubject::new("quick_cache", name("heap blocks"), filled(&blocks.heap, shards)),
        ]
    };
    SHARDS.into_iter().flat_map(candidates).collect()
}

impl<V: Loaded> Inserter for Quick<V> {
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
        self.len() as u64
    }
}

pub(super) fn inserters<V: Loaded>() -> Vec<EvictSubject> {
    let candidate = |shards| {
        EvictSubject::new("quick_cache", format!("{shards} shards"), move |c| build::<V>(c, shards))
    };
    SHARDS.into_iter().map(candidate).collect()
}
