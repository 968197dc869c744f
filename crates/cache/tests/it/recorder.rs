//! The flight recorder keeps the lives of blocks right in unusual orders of events: loads that come
//! to nothing, blocks that are removed during their load, new content.

use std::time::Duration;

use forebay_cache::{
    Attributes, Begin, Builder, Cache, Class, LoadGuard, MissCause, OwnerId, Remedy,
};

use crate::explain::{Fixture, HOUR, LEAVES, STREAM, assert_about, group};

fn vacant(cache: &Cache<u64, u64>, key: u64, attributes: Attributes) -> LoadGuard<u64, u64> {
    match cache.begin(key, 1, attributes).unwrap() {
        Begin::Vacant(guard) => guard,
        other => panic!("{other:?}"),
    }
}

#[test]
fn loads_that_end_without_a_block_are_forgotten_and_keep_their_cause_for_the_next_load() {
    let mut fixture = Fixture::new(1000);
    (0..10).for_each(|key| fixture.read(key, LEAVES));
    (0..10).for_each(|key| assert!(fixture.cache.remove(&key).is_some()));
    for key in 0..10 {
        vacant(&fixture.cache, key, LEAVES).withdraw();
    }
    (0..10).for_each(|key| fixture.read(key, LEAVES));
    assert_eq!(group(&fixture.explain(), MissCause::Invalidated, Class::Metadata).misses, 10);
    fixture.cache.record(true);
    let memory = |cache: &Cache<u64, u64>| cache.stats().overhead.fixed;
    for key in 0..20_000 {
        drop(vacant(&fixture.cache, 1 << 20 | key, LEAVES));
    }
    let before = memory(&fixture.cache);
    for key in 20_000..200_000 {
        drop(vacant(&fixture.cache, 1 << 20 | key, LEAVES));
    }
    let grown = memory(&fixture.cache).saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes for loads that came to nothing");
    // Later loads are still recorded.
    (0..10).for_each(|key| fixture.read(1 << 30 | key, LEAVES));
    assert_eq!(fixture.explain().recorded, 10);
}

#[test]
fn many_loads_at_once_are_not_all_recorded() {
    let fixture = Fixture::new(100_000);
    let without = fixture.cache.stats().overhead.fixed;
    let guards: Vec<_> = (0..60_000).map(|key| vacant(&fixture.cache, key, LEAVES)).collect();
    let taken = fixture.cache.stats().overhead.fixed - without;
    assert!(taken < 4 << 20, "{taken} bytes");
    guards.into_iter().for_each(|guard| drop(guard.publish(1)));
    let recorded = fixture.explain().recorded;
    assert!((1..=5120).contains(&recorded), "{recorded}");
}

#[test]
fn two_loads_of_a_removed_block_that_both_come_to_nothing_are_recorded() {
    let too_heavy = |b: Builder<u64, u64>| b.weigher(|_, value| *value);
    let fixture = Fixture::with(1000, too_heavy);
    for _ in 0..3 {
        let first = vacant(&fixture.cache, 7, LEAVES);
        assert!(fixture.cache.remove(&7).is_none());
        let second = vacant(&fixture.cache, 7, LEAVES);
        drop(first.publish(5000));
        drop(second.publish(5000));
    }
    drop(vacant(&fixture.cache, 7, LEAVES).publish(1));
    assert!(fixture.cache.contains(&7));
    group(&fixture.explain(), MissCause::TooHeavy, Class::Metadata);
}

#[test]
fn a_block_that_is_removed_during_its_load_is_not_resident() {
    let mut fixture = Fixture::new(1000);
    for key in 0..10 {
        let guard = vacant(&fixture.cache, key, LEAVES);
        fixture.cache.remove(&key);
        drop(guard.publish(1));
    }
    (0..10).for_each(|key| fixture.read(key, LEAVES));
    assert_eq!(group(&fixture.explain(), MissCause::Invalidated, Class::Metadata).misses, 10);
}

#[test]
fn misses_of_long_ago_are_not_explained() {
    let mut fixture = Fixture::new(1000);
    (0..300).for_each(|key| fixture.read(key, LEAVES));
    fixture.clock.advance(Duration::from_secs(600).as_nanos() as u64);
    assert_eq!(fixture.cache.explain(Duration::from_secs(60)).unwrap().recorded, 0);
    assert_eq!(fixture.cache.explain(HOUR).unwrap().causes[0].misses, 300);
    fixture.clock.advance(Duration::from_secs(1000).as_nanos() as u64);
    assert_eq!(fixture.cache.explain(HOUR).unwrap().recorded, 0);
}

#[test]
fn the_sample_gets_finer_when_the_cache_shrinks_and_stays_right() {
    const LARGE: u64 = 4000;
    const SMALL: u64 = 400;
    let mut fixture = Fixture::with(LARGE, Builder::plain_lru);
    // No block is new later.
    for _ in 0..2 {
        (0..600).for_each(|key| fixture.read(key, LEAVES));
        (600..LARGE).for_each(|key| fixture.read(key, STREAM));
    }
    let coarse = fixture.explain().one_in;
    assert!(coarse >= 4, "one in {coarse}");
    fixture.cache.resize(SMALL);
    fixture.restart();
    let mut rounds = 0;
    while fixture.explain().one_in > 1 {
        (0..600).for_each(|key| fixture.read(key, LEAVES));
        rounds += 1;
        assert!(rounds < 100, "still one in {}", fixture.explain().one_in);
    }
    println!("one in {coarse} became one in 1 after {rounds} rounds");
    let new = |cause| matches!(cause, MissCause::NeverSeen | MissCause::Filling);
    let explanation = fixture.explain();
    assert!(explanation.recorded > 500, "{explanation}");
    assert!(!explanation.causes.iter().any(|group| new(group.cause)), "{explanation}");
    fixture.restart();
    for _ in 0..5 {
        (0..600).for_each(|key| fixture.read(key, LEAVES));
    }
    let explanation = fixture.explain();
    // The larger cache would have kept it. A plain LRU list has one class.
    let first = group(&explanation, MissCause::MemoryPressure, Class::Data);
    assert_about("its share", first.share, 1.0, 0.01);
    let Some(Remedy::FitTheLoop { bytes, more, .. }) = first.remedies.first() else {
        panic!("{first:#?}")
    };
    assert_about("the loop", *bytes as f64, 600.0, 30.0);
    assert_about("what it lacks", *more as f64, 200.0, 60.0);
    // It gets coarser again when the cache grows.
    fixture.cache.resize(LARGE);
    (0..LARGE).for_each(|key| fixture.read(1 << 20 | key, STREAM));
    assert!(fixture.explain().one_in >= 4);
}

#[test]
fn a_filter_may_use_the_cache() {
    let mut fixture = Fixture::new(1000);
    (0..10).for_each(|key| fixture.read(key, LEAVES));
    let wanted = |_: OwnerId, _: u64| fixture.cache.explain(HOUR).is_some();
    assert_eq!(fixture.cache.explain_where(HOUR, wanted).unwrap().recorded, 10);
}

#[test]
fn new_content_is_no_miss_and_its_departure_is_recorded() {
    let mut fixture = Fixture::new(1000);
    for key in 0..2000 {
        let begun = fixture.cache.begin_new(key, 1, STREAM).unwrap();
        let Begin::Vacant(guard) = begun else { panic!("it is not cached") };
        drop(guard.publish(key));
    }
    let stats = fixture.cache.stats();
    for name in ["misses", "inserts_unhinted", "timed_loads"] {
        assert_eq!(stats.counter(name), 0, "{name}");
    }
    assert_eq!(fixture.explain().recorded, 0);
    (0..900).for_each(|key| fixture.read(key, STREAM));
    let evicted = group(&fixture.explain(), MissCause::Evicted, Class::Data).misses;
    let missed = fixture.loads_of(STREAM) as f64;
    assert_about("misses", evicted as f64, missed, 0.1 * missed);
    let curve = fixture.cache.curve();
    assert!(curve.points.iter().all(|point| point.misses <= 900.0), "{curve:#?}");
}
