//! Invalid input is refused with a reason, or harmless.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_cache::{
    Attributes, Begin, BuildError, Cache, Key, LoadError, OwnerId, Reclaim, Refusal,
};

use crate::support::{audit, inline, inline_blocks, wait_until};

fn builder() -> forebay_cache::Builder<u64, u64> {
    Cache::builder().capacity(100).weigher(|_, _| 1)
}

#[test]
fn a_cache_without_capacity_is_not_built() {
    assert!(matches!(Cache::<u64, u64>::builder().build(), Err(BuildError::NoCapacity)));
    assert!(matches!(builder().capacity(0).build(), Err(BuildError::NoCapacity)));
    let bound = |bytes| Cache::<u64, u64>::builder().bound(bytes).weigher(|_, _| 0).build();
    assert!(matches!(bound(0), Err(BuildError::NoCapacity)));
    match bound(1000) {
        Err(BuildError::BoundTooSmall { bound: 1000, overhead }) => {
            assert!(overhead > 1000);
            // The size that the error asks for is sufficient.
            let cache = bound(overhead + 4096).unwrap();
            assert!(cache.stats().capacity > 0);
            audit(&cache);
        }
        other => panic!("{:?}", other.err()),
    }
    let others = builder().bound(1 << 20).overhead(|| u64::MAX / 2).build();
    assert!(matches!(others, Err(BuildError::BoundTooSmall { .. })));
}

#[test]
fn a_cache_that_cannot_weigh_its_blocks_is_not_built() {
    let new = Cache::<u64, Vec<u8>>::builder;
    let none = new().capacity(1 << 20).build().err().unwrap();
    assert!(matches!(none, BuildError::NoWeigher));
    assert!(none.to_string().contains("`weigher`") && none.to_string().contains("max_entries"));
    assert!(matches!(new().bound(8 << 20).build(), Err(BuildError::NoWeigher)));
    assert!(matches!(new().max_entries(0).build(), Err(BuildError::NoCapacity)));
    let two = [
        new().max_entries(9).capacity(1 << 20),
        new().max_entries(9).bound(8 << 20),
        new().max_entries(9).weigher(|_, block| block.len() as u64),
    ];
    for builder in two {
        assert!(matches!(builder.build(), Err(BuildError::TwoSizes)));
    }
    let cache = new().max_entries(128).build().unwrap();
    for key in 0..1000 {
        cache.insert(key, vec![0; 10_000]).unwrap();
        assert!(cache.len() <= 128 + 128 / 64);
    }
    assert!(cache.len() > 100);
    audit(&cache);
}

#[test]
fn wrong_tunables_are_named() {
    for (name, value, says) in [
        ("sublist", "4", "sublists"),
        ("sublists", "four", "four"),
        ("sublists", "5000", "1024"),
        ("overflow_shift", "-1", "overflow_shift"),
        ("metadata_floor_percent", "101", "100"),
    ] {
        match builder().tunable(name, value).build() {
            Err(BuildError::Tunable(error)) => {
                assert!(error.to_string().contains(says), "{name}={value}: {error}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{name}={value} was taken"),
        }
    }
    let cache = builder().build().unwrap();
    assert!(cache.set_tunable("sublists", "2").is_err(), "not at run time");
    assert!(cache.set_tunable("nonsense", "2").is_err());
    cache.set_tunable("ghost_percent", "0").unwrap();
    audit(&cache);
}

#[test]
fn tunables_that_contradict_each_other_are_survived() {
    let cache = builder()
        .reclaim(Reclaim::Inline)
        .tunable("metadata_floor_percent", "90")
        .tunable("data_floor_percent", "90")
        .tunable("metadata_ceiling_percent", "10")
        .tunable("data_ceiling_percent", "10")
        .build()
        .unwrap();
    for key in 0..1000 {
        let class = if key % 2 == 0 { Attributes::DATA } else { Attributes::METADATA };
        cache.insert_with(key, key, class).unwrap();
    }
    assert_eq!(cache.stats().resident_blocks(), 100);
    audit(&cache);
}

#[test]
fn resizing_to_nothing_is_a_bug_of_the_caller() {
    let cache = builder().build().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| cache.resize(0))).is_err());
    cache.insert(1, 1).unwrap();
    cache.resize(1);
    cache.resize(u64::MAX);
    cache.insert(2, 2).unwrap();
    audit(&cache);
}

#[test]
fn blocks_heavier_than_the_cache_are_handed_back() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let cache = inline(1000, |_, v: &u64| *v).reclaim(mode).build().unwrap();
        for weight in [1001, u64::from(u32::MAX), 1 << 40, u64::MAX - 1, u64::MAX] {
            cache.insert(1, 10).unwrap();
            let refused = cache.insert(1, weight).unwrap_err();
            assert_eq!(refused.reason, Refusal::TooHeavy { weight, most: 1000 });
            assert_eq!(refused.value, weight);
            let says = refused.to_string();
            assert!(says.contains(&weight.to_string()) && says.contains("1000"), "{says}");
            assert!(!cache.contains(&1), "the older one would be outdated");
            // Refused at once, or when the block is there.
            for declared in [weight, 0, 1, 1000] {
                let block = cache
                    .get_or_load_weighed(2, declared, Attributes::DATA, || Ok::<_, String>(weight));
                assert_eq!(*block.unwrap(), weight);
                assert!(!cache.contains(&2));
            }
        }
        cache.insert(3, 1000).unwrap();
        assert!(cache.contains(&3), "exactly as heavy as the cache");
        assert_eq!(cache.stats().counter("refused_too_heavy"), 25);
        audit(&cache);
    }
    // Also in a cache beyond any weight.
    let cache = inline(u64::MAX, |_, v: &u64| *v).build().unwrap();
    let refused = cache.insert(1, u64::MAX).unwrap_err().reason;
    assert!(matches!(refused, Refusal::TooHeavy { weight: u64::MAX, .. }));
    for key in 0..1000 {
        cache.insert(key, u64::from(u32::MAX) - 1).unwrap();
    }
    assert_eq!(cache.stats().resident_bytes(), 1000 * (u64::from(u32::MAX) - 1));
    audit(&cache);
}

#[test]
fn huge_weights_do_not_overflow_the_policy() {
    let heavy = u64::from(u32::MAX) - 1;
    let cache = inline(heavy * 64, |_, v: &u64| *v).build().unwrap();
    for round in 0..20_000u64 {
        let key = (round * round) % 300;
        if cache.get(&key).is_none() {
            let attributes = if key % 3 == 0 { Attributes::METADATA } else { Attributes::DATA };
            let weight = if key % 7 == 0 { 1 } else { heavy };
            cache.insert_with(key, weight, attributes).unwrap();
        }
        let stats = cache.stats();
        assert!(stats.resident_bytes() <= stats.capacity);
        assert!(stats.p.iter().all(|p| *p <= stats.capacity));
        assert!(stats.metadata_target <= stats.capacity);
    }
    audit(&cache);
}

#[test]
fn a_weight_of_zero_counts_as_one() {
    let cache = inline(100, |_, _: &u64| 0).build().unwrap();
    for key in 0..1000 {
        cache.insert(key, key).unwrap();
        drop(
            cache
                .get_or_load_weighed(10_000 + key, 0, Attributes::DATA, || Ok::<_, String>(1))
                .unwrap(),
        );
    }
    assert_eq!(cache.stats().resident_blocks(), 100);
    audit(&cache);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Useless(u32);

impl Hash for Useless {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(1);
    }
}

impl Key for Useless {}

#[test]
fn a_useless_hash_is_refused_not_endured() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let cache = Cache::<Useless, u32>::builder()
            .capacity(1000)
            .weigher(|_, _| 1)
            .reclaim(mode)
            .build()
            .unwrap();
        let (mut kept, mut refused) = (HashMap::new(), 0);
        for n in 0..3000u32 {
            match cache.insert(Useless(n), n) {
                Ok(()) => drop(kept.insert(n, n)),
                Err(why) => {
                    assert_eq!((why.reason, why.value), (Refusal::NoMemory, n));
                    refused += 1;
                }
            }
            match cache.begin(Useless(n + 10_000), 1, Attributes::DATA) {
                Ok(Begin::Vacant(guard)) => drop(guard.publish(n + 10_000)),
                Ok(_) => panic!("never asked for before"),
                Err(LoadError::NoMemory(why)) => assert!(why.contains("hash"), "{why}"),
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 1000);
        assert_eq!(cache.stats().counter("refused_no_memory"), refused);
        assert!(
            kept.iter().all(|(n, v)| cache.get(&Useless(*n)).is_some_and(|found| *found == *v))
        );
        for n in kept.keys() {
            assert!(cache.remove(&Useless(*n)).is_some());
        }
        cache.clear();
        assert_eq!(cache.stats().index.entries, 0);
        cache.insert(Useless(1), 1).unwrap();
        audit(&cache);
    }
}

/// The evictor's batches contain ghosts of one hash, too.
#[test]
fn a_useless_hash_with_evictions_stays_whole() {
    let cache = Cache::<Useless, u32>::builder()
        .capacity(20)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .tunable("sublists", "1")
        .build()
        .unwrap();
    for n in 0..5000u32 {
        if let Some(found) = cache.get(&Useless(n % 50)) {
            assert_eq!(*found, n % 50);
        }
        drop(cache.insert(Useless(n % 50), n % 50));
        assert!(cache.stats().resident_blocks() <= 20);
    }
    audit(&cache);
}

#[test]
fn a_panicking_drop_is_caught_and_counted() {
    struct Bad(Arc<AtomicBool>);
    impl Drop for Bad {
        fn drop(&mut self) {
            assert!(!self.0.load(Ordering::SeqCst), "a bug in a drop");
        }
    }
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let armed = Arc::new(AtomicBool::new(true));
        let cache = inline(100, |_, _: &Bad| 1).reclaim(mode).build().unwrap();
        for key in 0..200 {
            cache.insert(key, Bad(armed.clone())).unwrap();
        }
        cache.remove(&199);
        cache.insert(198, Bad(armed.clone())).unwrap();
        let pin = cache.get(&198).unwrap();
        cache.remove(&198);
        drop(pin);
        cache.clear();
        // The reclaimer may be handling the last one.
        wait_until("every panic is counted", || cache.stats().counter("panics_caught") >= 201);
        let stats = cache.stats();
        assert_eq!((stats.counter("panics_caught"), stats.resident_blocks()), (201, 0));
        armed.store(false, Ordering::SeqCst);
        audit(&cache);
        cache.close();
    }
}

#[test]
fn an_overhead_that_panics_or_lies_is_survived() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let told = Arc::new(AtomicU64::new(0));
        let tell = told.clone();
        let cache = Cache::<u64, u64>::builder()
            .bound(1 << 20)
            .weigher(|_, _| 1000)
            .reclaim(mode)
            .overhead(move || match tell.load(Ordering::SeqCst) {
                1 => panic!("a bug in the overhead"),
                bytes => bytes,
            })
            .build()
            .unwrap();
        told.store(1, Ordering::SeqCst);
        for key in 0..5000 {
            cache.insert(key, key).unwrap();
        }
        assert!(cache.stats().counter("panics_caught") > 0);
        told.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(cache.stats().overhead.total(), u64::MAX);
        for key in 0..5000 {
            drop(cache.insert(key, key));
        }
        told.store(0, Ordering::SeqCst);
        wait_until("it recovers", || cache.insert(1, 1).is_ok());
        audit(&cache);
    }
}

#[test]
fn a_panic_in_flush_where_loses_no_pin() {
    let cache = inline_blocks(100);
    for key in 0..100 {
        cache.insert(key, key).unwrap();
    }
    let flush =
        || cache.retain(|key, _, _| if *key == 50 { panic!("a bug") } else { key % 2 == 1 });
    assert!(catch_unwind(AssertUnwindSafe(flush)).is_err());
    audit(&cache);
    cache.close();
}

#[test]
fn keys_of_nobodys_owner_are_refused() {
    let cache = inline(100, |_, _: &u64| 1).build().unwrap();
    assert!(!cache.set_owner_caching(OwnerId::from_raw(9999), forebay_cache::OwnerCaching::All));
    assert!(!cache.close_owner(OwnerId::from_raw(9999)));
    audit(&cache);
}

/// A slot hint is a number, of any cache and at any time.
#[test]
fn a_slot_hint_of_another_cache_finds_the_block_or_nothing() {
    let blocks: u64 = if cfg!(miri) { 500 } else { 200_000 };
    let from = inline_blocks(blocks);
    for key in 0..blocks {
        from.insert(key, key).unwrap();
    }
    let places: Vec<_> =
        (0..blocks).map(|key| from.get(&key).map(|block| block.slot_hint()).unwrap()).collect();
    // So large that a chunk has one header: most numbers are beyond any chunk.
    type Large = [u8; if cfg!(miri) { 2 << 10 } else { 1 << 20 }];
    let large = inline(10, |_, _: &Large| 1).build().unwrap();
    let small = inline_blocks(10);
    small.insert(1, 10).unwrap();
    let ask = || {
        for hint in &places {
            large.prefetch(*hint);
            small.prefetch(*hint);
            assert!(large.get_at(*hint, &1).is_none());
            assert_eq!(small.get_at(*hint, &1).as_deref(), Some(&10));
        }
    };
    ask();
    // Hints of a dropped cache, and of one that was emptied.
    let emptied = inline_blocks(blocks);
    for key in 0..blocks {
        emptied.insert(key, key).unwrap();
    }
    let hints: Vec<_> =
        (0..blocks).map(|key| emptied.get(&key).map(|block| block.slot_hint()).unwrap()).collect();
    emptied.clear();
    emptied.resize(10);
    assert!(hints.iter().zip(0..).all(|(hint, key)| emptied.get_at(*hint, &key).is_none()));
    drop(from);
    ask();
    audit(&large);
    audit(&small);
    audit(&emptied);
}
