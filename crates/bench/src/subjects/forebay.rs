//! Forebay's cache with default settings.

use std::sync::Arc;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_cache::{Attributes, Builder, Cache, Key, Reclaim, Ref};

use super::{
    BlockUse, EvictSubject, Inserter, ReadBlocks, ReadPlan, ReadSubject, Reader, Value,
    run_readers, touch, touch_block,
};
use crate::benches::r5::BlockClass;
use crate::blocks::{BLOCK_BYTES, fill};
use crate::keys::KeyStream;
use crate::measure::Worker;
use crate::options::Failure;

/// Why a cache or its arena cannot be made, which ends the bench.
const NO_CACHE: &str = "the system has no memory or no thread for the cache";

/// Builds a cache, or ends the bench.
pub(crate) fn built<K: Key, V: Send + Sync + 'static>(builder: Builder<K, V>) -> Cache<K, V> {
    builder.build().expect(NO_CACHE)
}

/// An arena of `limit_bytes`.
pub(crate) fn arena(limit_bytes: u64) -> Arc<Arena> {
    Arena::new(ArenaConfig { limit_bytes, huge_pages: HugePages::Auto }).expect(NO_CACHE)
}

impl Reader for Arc<Cache<u64, Buffer>> {
    #[inline]
    fn read<R>(&self, key: u64, touch: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let block = self.get(&key)?;
        Some(touch(&block))
    }
}

/// Keys per `get_many`.
const KEYS_AT_ONCE: usize = 16;

/// A reader that knows the next [`KEYS_AT_ONCE`] keys.
struct ManyWorker<'a> {
    cache: &'a Cache<u64, Buffer>,
    keys: KeyStream,
    block_use: BlockUse,
    wanted: Vec<u64>,
    found: Vec<Option<Ref<'a, u64, Buffer>>>,
    /// Index of the next block in `found`.
    next: usize,
}

impl<'a> ManyWorker<'a> {
    fn new(cache: &'a Cache<u64, Buffer>, keys: KeyStream, block_use: BlockUse) -> Self {
        let (wanted, found) = (Vec::with_capacity(KEYS_AT_ONCE), Vec::with_capacity(KEYS_AT_ONCE));
        Self { cache, keys, block_use, wanted, found, next: 0 }
    }
}

impl Worker for ManyWorker<'_> {
    #[inline]
    fn step(&mut self) -> bool {
        if self.next == self.found.len() {
            self.wanted.clear();
            self.wanted.extend((0..KEYS_AT_ONCE).map(|_| self.keys.next()));
            self.cache.get_many(&self.wanted, &mut self.found);
            self.next = 0;
        }
        let offset = self.block_use.offset(&mut self.keys);
        let block = self.found[self.next].as_deref();
        self.next += 1;
        block.map(|block| self.block_use.block(block, offset)).is_some()
    }
}

/// A cache that holds `blocks` blocks. It has twice the capacity, as the peers.
fn filled(
    blocks: u64,
    change: impl FnOnce(Builder<u64, Buffer>) -> Builder<u64, Buffer>,
) -> Arc<Cache<u64, Buffer>> {
    let bytes = blocks * BLOCK_BYTES as u64;
    let arena = arena(2 * bytes);
    let builder = Cache::builder().capacity(2 * bytes).weigher(|_, b: &Buffer| b.len() as u64);
    let cache = built(change(builder));
    for key in 0..blocks {
        let mut block = arena.alloc(BLOCK_BYTES).expect("the arena has twice the memory");
        fill(&mut block, key);
        cache.insert(key, block).expect("the cache has twice the capacity");
    }
    Arc::new(cache)
}

pub(super) fn readers(blocks: &ReadBlocks) -> Vec<ReadSubject> {
    let cache = filled(blocks.len() as u64, |builder| builder);
    let shared = Arc::clone(&cache);
    let many = move |plan: &ReadPlan| {
        run_readers(plan, |keys, block_use| ManyWorker::new(&shared, keys, block_use))
    };
    let of_many = format!("defaults, arena, {KEYS_AT_ONCE} keys at once");
    vec![
        ReadSubject::new("forebay", "defaults, arena", cache),
        ReadSubject::measured("forebay-many", of_many, many),
    ]
}

impl Inserter for Cache<u64, u64> {
    #[inline]
    fn get_or_insert(&self, key: u64) -> bool {
        if let Some(value) = self.get(&key) {
            touch(&*value);
            return true;
        }
        // A refused block is not cached, which shows in the hit ratio.
        let _ = self.insert(key, key);
        false
    }

    fn resident(&self) -> u64 {
        self.stats().resident_blocks()
    }
}

/// A cache of blocks in an arena.
struct Blocks {
    arena: Arc<Arena>,
    cache: Cache<u64, Buffer>,
}

impl Inserter for Blocks {
    #[inline]
    fn get_or_insert(&self, key: u64) -> bool {
        if let Some(block) = self.cache.get(&key) {
            touch_block(&block);
            return true;
        }
        if let Ok(mut block) = self.arena.alloc(BLOCK_BYTES) {
            block.fill(key as u8);
            // As above.
            let _ = self.cache.insert(key, block);
        }
        false
    }

    fn resident(&self) -> u64 {
        self.cache.stats().resident_blocks()
    }
}

pub(super) fn inserters(value: Value) -> Vec<EvictSubject> {
    let words = |blocks| built(Cache::<u64, u64>::builder().capacity(blocks).weigher(|_, _| 1));
    let blocks = |blocks| Blocks {
        // Blocks in transit exceed the capacity.
        arena: arena((blocks + blocks / 16 + 1024) * BLOCK_BYTES as u64),
        cache: built(Cache::builder().capacity(blocks).weigher(|_, _| 1)),
    };
    vec![match value {
        Value::Word => EvictSubject::new("forebay", "defaults", words),
        Value::Block => EvictSubject::new("forebay", "defaults, arena", blocks),
    }]
}

/// Changes of a builder that turn something off or on.
type Change = fn(Builder<u64, Buffer>) -> Builder<u64, Buffer>;
/// Caches without and with a miss-ratio curve.
const CURVES: [(&str, Change); 2] = [("off", Builder::without_curve), ("on", |builder| builder)];

/// Caches of blocks that evict, for `insight`, with one part of it off and on: the flight recorder,
/// or the miss-ratio curve.
pub(crate) fn insight_inserters(part: InsightPart) -> Vec<EvictSubject> {
    let blocks = move |blocks: u64, change: Change, is_open: bool| {
        let cache = built(change(Cache::builder().capacity(blocks).weigher(|_, _: &Buffer| 1)));
        cache.record(is_open);
        Blocks { arena: arena((blocks + blocks / 16 + 1024) * BLOCK_BYTES as u64), cache }
    };
    let subject = |(name, change): (&'static str, Change)| {
        EvictSubject::new(name, "", move |capacity| match part {
            InsightPart::Recorder => blocks(capacity, CURVES[1].1, name == "on"),
            InsightPart::Curve => blocks(capacity, change, false),
        })
    };
    CURVES.map(subject).into()
}

/// Caches that hold `blocks` blocks, without and with a miss-ratio curve.
pub(crate) fn insight_readers(blocks: u64) -> Vec<ReadSubject> {
    let subject =
        |(name, change): (&'static str, Change)| ReadSubject::new(name, "", filled(blocks, change));
    CURVES.map(subject).into()
}

/// A part of insight that is measured on against off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsightPart {
    Recorder,
    Curve,
}

/// A cache for `r5`: one thread evicts as it inserts, and the seed is fixed.
pub(crate) fn r5_cache(capacity: u64, seed: u64) -> impl FnMut(u64, BlockClass) -> bool {
    let builder = Cache::<u64, ()>::builder().capacity(capacity).weigher(|_, ()| 1);
    let cache = built(builder.reclaim(Reclaim::Inline).seed(seed));
    move |key, kind| {
        let hit = cache.get(&key).is_some();
        if !hit {
            let attributes =
                if kind == BlockClass::Metadata { Attributes::METADATA } else { Attributes::DATA };
            // A refused block is a miss the next time.
            let _ = cache.insert_with(key, (), attributes);
        }
        hit
    }
}

/// A cache under a hard bound, and an arena with the same bound.
pub(crate) fn bounded(bound_bytes: u64) -> Result<(Arc<Arena>, Cache<u64, Buffer>), Failure> {
    let config = ArenaConfig { limit_bytes: bound_bytes, huge_pages: HugePages::Auto };
    let arena = Arena::new(config)?;
    let builder = Cache::builder().bound(bound_bytes);
    let cache = builder.weigher(|_, block: &Buffer| block.footprint() as u64).build()?;
    Ok((arena, cache))
}
