//! The bound with dirty data and I/O buffers.

use forebay_base::sync::{Arc, thread};
use forebay_cache::Attributes;
use zerocopy::little_endian::U64;

use super::{BlockCache, BlockCacheOptions, MEMORY_MARGIN_BYTES};
use crate::block_key::{BIRTH_END, BlockKey};
use crate::error::ErrorKind;
use crate::format::{BlockPtrPhys, Dva, DvaPhys};

const BOUND: u64 = 16 << 20;
const BLOCK: usize = 64 << 10;

fn cache() -> Arc<BlockCache> {
    let options = BlockCacheOptions { bytes: BOUND, seed: Some(9), ..Default::default() };
    BlockCache::new(options).unwrap()
}

fn key(n: u64) -> BlockKey {
    let copies = [DvaPhys::new(Dva { device: 0, offset: (n + 1) * 512 }), DvaPhys::NONE];
    let bp = BlockPtrPhys { copies, birth_txg: U64::new(n), ..BlockPtrPhys::HOLE };
    BlockKey::new(forebay_cache::OwnerId::NONE, &bp)
}

/// Inserts twice as many blocks as fit.
fn fill(cache: &BlockCache) {
    for n in 0..2 * BOUND / BLOCK as u64 {
        let block = cache.alloc(BLOCK).unwrap();
        drop(cache.cache().insert_with(key(n), block, Attributes::DATA));
    }
}

fn cached_bytes(cache: &BlockCache) -> u64 {
    cache
        .cache()
        .stats()
        .states
        .iter()
        .filter(|s| !s.state.ends_with("ghost"))
        .map(|s| s.bytes)
        .sum()
}

/// Waits until the cache holds at most `bytes`. The reclaimer runs on its own thread.
fn shrinks_to(cache: &BlockCache, bytes: u64) -> bool {
    (0..1_000_000).any(|_| {
        thread::yield_now();
        cached_bytes(cache) <= bytes
    })
}

/// Waits until the cache may use most of its bound again.
fn has_capacity_again(cache: &BlockCache) -> bool {
    cache.cache().resize(BOUND);
    (0..1_000_000).any(|_| {
        thread::yield_now();
        cache.cache().stats().capacity > BOUND / 2
    })
}

#[test]
fn dirty_bytes_leave_less_capacity_for_blocks() {
    let cache = cache();
    fill(&cache);
    assert!(cached_bytes(&cache) > BOUND / 2);
    cache.add_dirty(BOUND * 3 / 4);
    cache.cache().resize(BOUND);
    assert!(shrinks_to(&cache, BOUND / 4));
    cache.sub_dirty(BOUND * 3 / 4);
    assert_eq!(cache.dirty_bytes(), 0);
    assert!(has_capacity_again(&cache));
    fill(&cache);
    assert!(cached_bytes(&cache) > BOUND / 2);
    cache.cache().audit();
}

#[test]
fn blocks_make_space_for_io() {
    let cache = cache();
    fill(&cache);
    // All memory beside the cache and more, so blocks must be evicted.
    let wanted = (MEMORY_MARGIN_BYTES + BOUND / 4 + BOUND / 2) as usize;
    let held: Vec<_> = (0..wanted / BLOCK).map(|_| cache.alloc(BLOCK).unwrap()).collect();
    assert!(cached_bytes(&cache) < BOUND * 3 / 4);
    // When nothing more can be evicted, the allocation fails after a bounded time.
    let mut more = Vec::new();
    let error = loop {
        match cache.alloc(BLOCK) {
            Ok(buffer) => more.push(buffer),
            Err(error) => break error,
        }
        assert!(more.len() * BLOCK <= BOUND as usize, "more than the limit");
    };
    assert_eq!(error.kind(), ErrorKind::NoMemory);
    drop(held);
    drop(more);
    // The cache gets its capacity back.
    assert!(has_capacity_again(&cache));
    fill(&cache);
    assert!(cached_bytes(&cache) > BOUND / 2);
    cache.cache().audit();
}

#[test]
fn after_the_blocks_io_in_flight_gives_up_a_part_of_its_margin() {
    let (bytes, margin_bytes) = (BOUND, BOUND / 2);
    let memory_bytes = Some(BOUND / 4 * 5 + margin_bytes);
    let cache = BlockCache::new(BlockCacheOptions {
        bytes,
        memory_bytes,
        seed: Some(9),
        ..Default::default()
    })
    .unwrap();
    fill(&cache);
    assert_eq!(cache.withhold(u64::MAX), BOUND / 16 * 5 + margin_bytes / 4);
    // The cache gives up no more than without a margin.
    assert!(shrinks_to(&cache, BOUND / 4 * 3));
    fill(&cache);
    assert!(cached_bytes(&cache) > BOUND / 2);
    cache.cache().audit();
}

#[test]
fn withheld_memory_is_taken_from_the_arena_and_the_blocks() {
    let options = BlockCacheOptions {
        bytes: BOUND,
        memory_bytes: Some(BOUND / 4 * 5),
        seed: Some(9),
        ..Default::default()
    };
    let cache = BlockCache::new(options).unwrap();
    assert_eq!(cache.arena().limit_bytes(), BOUND / 4 * 5);
    fill(&cache);
    assert!(cached_bytes(&cache) > BOUND / 2);
    // At most so many that the cache keeps three quarters of its bound, for dirty data.
    let most = BOUND / 16 * 5;
    assert_eq!(cache.withhold(u64::MAX), most);
    assert_eq!(cache.arena().limit_bytes(), BOUND / 16 * 15);
    assert!(shrinks_to(&cache, BOUND / 4 * 3));
    // The limit holds as soon as the blocks are gone.
    assert!((0..1_000_000).any(|_| {
        thread::yield_now();
        cache.arena().committed_bytes() <= BOUND / 16 * 15
    }));
    // Dirty data of a pool still fits, and failed allocations do not take all from the blocks.
    cache.add_dirty(BOUND / 2);
    assert!(shrinks_to(&cache, BOUND / 4));
    cache.sub_dirty(BOUND / 2);
    assert_eq!(cache.withhold(0), 0);
    assert_eq!(cache.arena().limit_bytes(), BOUND / 4 * 5);
    assert!(has_capacity_again(&cache));
    fill(&cache);
    assert!(cached_bytes(&cache) > BOUND / 2);
    cache.cache().audit();
    // A limit below what the bound needs is raised to that.
    let options = BlockCacheOptions { bytes: BOUND, memory_bytes: Some(1), ..Default::default() };
    let cache = BlockCache::new(options).unwrap();
    assert_eq!(cache.arena().limit_bytes(), BOUND + BOUND / 4);
}

#[test]
fn invalid_lengths_fail_at_once() {
    let cache = cache();
    assert_eq!(cache.alloc(0).unwrap_err().kind(), ErrorKind::NoMemory);
    assert_eq!(cache.alloc(usize::MAX).unwrap_err().kind(), ErrorKind::NoMemory);
}

#[test]
fn a_failed_build_names_the_cause() {
    let build = |options| BlockCache::new(options).map(drop).unwrap_err();
    let error = build(BlockCacheOptions { bytes: 4096, ..Default::default() });
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let tunables = vec![("no_such".to_owned(), "1".to_owned())];
    let error = build(BlockCacheOptions { bytes: BOUND, tunables, ..Default::default() });
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("no_such"), "{error}");
}

#[test]
fn keys_differ_by_address_birth_and_owner() {
    let bp = |offset, birth| BlockPtrPhys {
        copies: [DvaPhys::new(Dva { device: 3, offset }), DvaPhys::NONE],
        birth_txg: U64::new(birth),
        ..BlockPtrPhys::HOLE
    };
    let owners = [0, 1, 4095].map(forebay_cache::OwnerId::from_raw);
    let mut keys = std::collections::BTreeSet::new();
    for owner in owners {
        for birth in [0, 1, BIRTH_END - 1] {
            for offset in [512, 1024] {
                let key = BlockKey::new(owner, &bp(offset, birth));
                assert_eq!(forebay_cache::Key::owner(&key), owner);
                assert!(keys.insert(key));
            }
        }
    }
}
