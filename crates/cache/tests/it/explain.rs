//! The flight recorder names the causes of misses, and its remedies keep what they promise.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};
use forebay_base::rng::SmallRng;
use forebay_cache::{
    Attributes, Begin, Builder, Cache, Candidate, Class, Explanation, Holding, LoadGuard,
    MissCause, MissGroup, OwnerCaching, Reclaim, Remedy, SecondaryCache, SecondaryFate,
};

use crate::support::{OwnedKey, audit, seed};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Duration of a load.
const LOAD_NS: u64 = 1_000_000;
pub(crate) const LEAVES: Attributes = Attributes::METADATA.labelled(1);
pub(crate) const STREAM: Attributes = Attributes::DATA.labelled(2);
const LOOP: Attributes = Attributes::DATA.labelled(3);

/// A cache of blocks of weight one, with a recorder, a clock, and a count of loads by label.
pub(crate) struct Fixture {
    pub(crate) cache: Cache<u64, u64>,
    pub(crate) clock: Arc<ManualClock>,
    loads: HashMap<u64, u64>,
    /// When the part of the test began that is explained.
    start_ns: u64,
}

impl Fixture {
    pub(crate) fn new(capacity: u64) -> Self {
        Self::with(capacity, |builder| builder)
    }

    pub(crate) fn with(
        capacity: u64,
        change: impl FnOnce(Builder<u64, u64>) -> Builder<u64, u64>,
    ) -> Self {
        let clock = Arc::new(ManualClock::new());
        let builder = Cache::builder()
            .capacity(capacity)
            .weigher(|_, _| 1)
            .reclaim(Reclaim::Inline)
            .clock(clock.clone())
            .seed(seed("explain"));
        let cache = change(builder).build().unwrap();
        cache.record(true);
        Self { cache, clock, loads: HashMap::new(), start_ns: 0 }
    }

    pub(crate) fn read(&mut self, key: u64, attributes: Attributes) {
        self.clock.advance(1000);
        let loaded = self.cache.get_or_load_weighed(key, 1, attributes, || {
            self.clock.advance(LOAD_NS);
            *self.loads.entry(attributes.label).or_default() += 1;
            Ok::<_, std::io::Error>(key)
        });
        assert_eq!(*loaded.unwrap(), key);
    }

    pub(crate) fn explain(&self) -> Explanation {
        let since = Duration::from_nanos(self.clock.now_ns() - self.start_ns);
        self.cache.explain(since).expect("the recorder is open")
    }

    pub(crate) fn loads_of(&self, attributes: Attributes) -> u64 {
        self.loads.get(&attributes.label).copied().unwrap_or(0)
    }

    /// Only what follows is explained and counted.
    pub(crate) fn restart(&mut self) {
        self.loads.clear();
        self.clock.advance(60_000_000_000);
        self.start_ns = self.clock.now_ns();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            audit(&self.cache);
        }
    }
}

pub(crate) fn group(explanation: &Explanation, cause: MissCause, class: Class) -> &MissGroup {
    let found = explanation.causes.iter().find(|g| g.cause == cause && g.class == class);
    found.unwrap_or_else(|| panic!("no {cause:?} of {class:?} in {explanation:#?}"))
}

pub(crate) fn assert_about(what: &str, value: f64, expected: f64, tolerance: f64) {
    let near = (value - expected).abs() <= tolerance;
    assert!(near, "{what}: {value}, and not {expected} within {tolerance}");
}

/// Reads `rounds` of a loop, the first one unexplained.
fn read_loop(fixture: &mut Fixture, blocks: u64, rounds: u64) {
    (0..blocks).for_each(|key| fixture.read(key, LOOP));
    fixture.restart();
    for _ in 0..rounds {
        (0..blocks).for_each(|key| fixture.read(key, LOOP));
    }
}

#[test]
fn a_loop_that_does_not_fit_is_named_with_its_size_and_fits_with_the_remedy() {
    for lru in [true, false] {
        for (capacity, blocks) in [(700, 1000), (6000, 10_000)] {
            let with = |capacity| Fixture::with(capacity, |b| if lru { b.plain_lru() } else { b });
            let mut fixture = with(capacity);
            read_loop(&mut fixture, blocks, 8);
            let explanation = fixture.explain();
            let evicted = group(&explanation, MissCause::Evicted, Class::Data);
            assert_eq!(evicted.blocks[0].label, LOOP.label, "{explanation}");
            let Some(&Remedy::FitTheLoop { bytes, more, share }) = evicted.remedies.first() else {
                panic!("no loop (lru {lru}): {explanation:#?}")
            };
            assert_about("size of the loop", bytes as f64, blocks as f64, 0.1 * blocks as f64);
            let before = fixture.loads_of(LOOP);
            let mut larger = with(capacity + more);
            read_loop(&mut larger, blocks, 8);
            let kept = 1.0 - larger.loads_of(LOOP) as f64 / before as f64;
            assert_about(&format!("share (lru {lru}, more {more})"), kept, share, 0.05);
            println!("{explanation}");
        }
    }
}

#[test]
fn a_loop_larger_than_four_times_the_cache_is_named_with_its_size() {
    for (capacity, blocks) in [(700, 3400), (700, 5000), (700, 9000), (6000, 40_000)] {
        let mut fixture = Fixture::with(capacity, Builder::plain_lru);
        read_loop(&mut fixture, blocks, 3);
        let explanation = fixture.explain();
        let largest = &explanation.causes[0];
        let Some(&Remedy::LoopTooLarge { bytes }) = largest.remedies.first() else {
            panic!("no loop of {blocks}: {explanation:#?}")
        };
        assert_eq!(largest.blocks[0].label, LOOP.label, "{explanation}");
        assert_about("size of the loop", bytes as f64, blocks as f64, 0.15 * blocks as f64);
        println!("{explanation}");
    }
    // A stream of the same length is none.
    let mut fixture = Fixture::new(700);
    (0..20_000).for_each(|key| fixture.read(key, STREAM));
    let explanation = fixture.explain();
    let never = group(&explanation, MissCause::NeverSeen, Class::Data);
    assert!(never.remedies.is_empty(), "{explanation:#?}");
}

#[test]
fn events_are_the_recorded_misses_in_their_order() {
    let mut fixture = Fixture::new(700);
    assert_eq!(fixture.cache.events(HOUR).count(), 0);
    read_loop(&mut fixture, 1000, 2);
    let events: Vec<_> = fixture.cache.events(HOUR).collect();
    assert!(events.is_sorted_by_key(|event| event.at_ns), "{events:?}");
    let stand_for: f64 = events.iter().map(|event| event.stands_for).sum();
    assert_about("misses", stand_for, (1000 + fixture.loads_of(LOOP)) as f64, 5.0);
    let evicted = events.iter().filter(|event| event.cause == MissCause::Evicted);
    assert!(evicted.clone().count() > 0);
    for event in evicted {
        assert_eq!((event.label, event.waited_ns), (LOOP.label, LOAD_NS), "{event:?}");
        assert!(event.lacking > 0 && event.evictor.is_some(), "{event:?}");
    }
    let from_ns = fixture.clock.now_ns() - 100 * LOAD_NS;
    let last = fixture.cache.events(Duration::from_nanos(100 * LOAD_NS));
    assert!(last.into_iter().all(|event| event.at_ns >= from_ns));
    fixture.cache.record(false);
    assert_eq!(fixture.cache.events(HOUR).count(), 0);
}

/// Reads leaves at random, and `each` blocks of a stream for each leaf, which are read once. The
/// first half is not explained.
fn read_leaves_and_stream(fixture: &mut Fixture, leaves: u64, each: u64) {
    let mut rng = SmallRng::from_seed(7);
    for n in 0..20 * leaves {
        if n == 10 * leaves {
            fixture.restart();
        }
        fixture.read(rng.below(leaves), LEAVES);
        (0..each).for_each(|at| fixture.read(1 << 40 | (n * each + at), STREAM));
    }
}

/// The load of R5: names are looked up in leaves that would fit, while the blocks of new files
/// stream through an LRU cache.
#[test]
fn leaves_that_a_stream_evicts_are_named_and_kept_by_the_remedy() {
    for (leaves, capacity, each) in [(1000, 2000, 1), (5000, 9000, 1), (1000, 2000, 4)] {
        let with = |capacity| Fixture::with(capacity, Builder::plain_lru);
        let mut fixture = with(capacity);
        read_leaves_and_stream(&mut fixture, leaves, each);
        let explanation = fixture.explain();
        // The plain LRU knows no classes.
        let evicted = group(&explanation, MissCause::Evicted, Class::Data);
        assert_eq!(evicted.blocks[0].label, LEAVES.label, "{explanation}");
        assert!(evicted.blocks[0].share > 0.99, "{explanation}");
        let evictor = evicted.evictors[0];
        assert_eq!(evictor.label, STREAM.label, "{explanation}");
        assert!(evictor.used_once > 0.95, "{explanation:#?}");
        let missed = fixture.loads_of(LEAVES) as f64;
        let inserted = fixture.loads_of(STREAM) as f64;
        assert_about("share of the stream", evictor.share, inserted / (inserted + missed), 0.2);
        assert_about("misses", evicted.misses as f64, missed, 0.3 * missed);
        let Some(&Remedy::MoreMemory { bytes, share }) = evicted.remedies.first() else {
            panic!("no remedy: {explanation:#?}")
        };
        let mut larger = with(capacity + bytes);
        read_leaves_and_stream(&mut larger, leaves, each);
        let kept = 1.0 - larger.loads_of(LEAVES) as f64 / missed;
        println!("{explanation}kept: {kept}");
        // Below that, the share is a lower bound.
        assert!(kept > share - 0.05, "kept {kept}, not {share}");
        assert!(capacity > 2000 || each > 1 || share >= 0.95, "promised {share}");
    }
}

#[test]
fn a_scan_is_first_reads_and_a_stream() {
    let mut fixture = Fixture::new(500);
    (0..500).for_each(|key| fixture.read(key, LEAVES));
    fixture.restart();
    (1000..6000).for_each(|key| fixture.read(key, STREAM));
    let explanation = fixture.explain();
    let first = &explanation.causes[0];
    assert_eq!((first.cause, first.blocks[0].label), (MissCause::NeverSeen, STREAM.label));
    assert_eq!((first.share, explanation.misses), (1.0, 5000));
    assert!(first.remedies.is_empty() && first.blocks[0].used_once > 0.99, "{explanation:#?}");
    assert!(explanation.to_string().contains("No cache avoids first reads."), "{explanation}");
}

#[test]
fn a_cold_start_says_wait() {
    let mut fixture = Fixture::new(1000);
    (0..900).for_each(|key| fixture.read(key, LEAVES));
    let explanation = fixture.explain();
    let first = &explanation.causes[0];
    assert_eq!(
        (first.cause, first.share, &first.remedies[..]),
        (MissCause::Filling, 1.0, &[Remedy::Wait][..])
    );
    assert_eq!((explanation.hits, explanation.misses, first.misses), (0, 900, 900));
    assert_about("waited", first.waited_ns as f64, (900 * LOAD_NS) as f64, LOAD_NS as f64);
}

#[test]
fn a_healthy_cache_is_called_healthy() {
    let mut fixture = Fixture::new(1000);
    for _ in 0..100 {
        (0..500).for_each(|key| fixture.read(key, LEAVES));
    }
    let explanation = fixture.explain();
    assert!(explanation.is_healthy());
    assert!(
        explanation.to_string().starts_with("The cache is healthy: 99 % of 50000"),
        "{explanation}"
    );
    // Nothing was read since the recorder was opened again.
    fixture.cache.record(true);
    assert!(fixture.explain().to_string().starts_with("Nothing was read"));
    fixture.cache.record(false);
    assert!(fixture.cache.explain(HOUR).is_none());
}

#[test]
fn removed_and_flushed_blocks_are_named() {
    let mut fixture = Fixture::new(1000);
    (0..100).for_each(|key| fixture.read(key, LEAVES));
    (0..60).for_each(|key| assert!(fixture.cache.remove(&key).is_some()));
    fixture.cache.retain(|_, _, _| false);
    (0..100).for_each(|key| fixture.read(key, LEAVES));
    let explanation = fixture.explain();
    assert_eq!(group(&explanation, MissCause::Invalidated, Class::Metadata).misses, 60);
    assert_eq!(group(&explanation, MissCause::Flushed, Class::Metadata).misses, 40);
}

#[test]
fn blocks_that_find_no_capacity_are_named() {
    let with_waits = |b: Builder<u64, u64>| b.tunable("overflow_wait_ms", "0");
    let mut fixture = Fixture::with(100, with_waits);
    let pins: Vec<_> = (0..400)
        .map(|key| {
            fixture.read(key, STREAM);
            fixture.cache.get_owned(&key)
        })
        .collect();
    for _ in 0..10 {
        (1000..1050).for_each(|key| fixture.read(key, LEAVES));
    }
    let explanation = fixture.explain();
    let refused = group(&explanation, MissCause::NoCapacity, Class::Metadata);
    assert_about("misses", refused.misses as f64, 450.0, 50.0);
    drop(pins);
}

#[test]
fn blocks_that_their_owner_does_not_cache_are_named() {
    let cache: Cache<OwnedKey, u64> =
        Cache::builder().capacity(1000).weigher(|_, _| 1).reclaim(Reclaim::Inline).build().unwrap();
    cache.record(true);
    let owner = cache.open_owner(OwnerCaching::Metadata).unwrap().into_id();
    let other = cache.open_owner(OwnerCaching::All).unwrap().into_id();
    for _ in 0..5 {
        for (id, n) in (0..100).flat_map(|n| [(owner, n), (other, n)]) {
            let load = || Ok::<_, std::io::Error>(n);
            cache.get_or_load_weighed(OwnedKey(id, n), 1, STREAM, load).unwrap();
        }
    }
    let explanation = cache.explain(HOUR).unwrap();
    let refused = group(&explanation, MissCause::ByOwner, Class::Data);
    assert_about("misses", refused.misses as f64, 400.0, 40.0);
    assert_eq!((refused.blocks.len(), refused.blocks[0].owner), (1, owner));
    assert_eq!(refused.remedies, [Remedy::AllowCaching]);
    let of_other = cache.explain_where(HOUR, |id, label| id == other && label == 2).unwrap();
    assert_eq!((of_other.causes.len(), of_other.causes[0].cause), (1, MissCause::Filling));
    assert_about("misses", of_other.causes[0].misses as f64, 100.0, 30.0);
    audit(&cache);
}

#[test]
fn memory_that_was_taken_away_is_named() {
    let mut fixture = Fixture::new(1000);
    for _ in 0..3 {
        (0..900).for_each(|key| fixture.read(key, LEAVES));
    }
    fixture.cache.resize(300);
    for _ in 0..3 {
        (0..900).for_each(|key| fixture.read(key, LEAVES));
    }
    let explanation = fixture.explain();
    let first = group(&explanation, MissCause::MemoryPressure, Class::Metadata);
    let evicted = fixture.loads_of(LEAVES) as f64 - 900.0;
    assert_about("misses", first.misses as f64, evicted, 0.1 * evicted);
    assert!(explanation.to_string().contains("the cache had to shrink"), "{explanation}");
}

/// A secondary cache that stores all it is offered, unless blocks are excluded or declined.
#[derive(Default)]
struct Behind {
    excludes: AtomicBool,
    declines: AtomicBool,
    stored: Mutex<HashMap<u64, u64>>,
}

impl SecondaryCache<u64, u64> for Behind {
    fn offer(&self, candidates: Vec<Candidate<u64, u64>>) {
        if self.excludes.load(Ordering::SeqCst) || self.declines.load(Ordering::SeqCst) {
            return;
        }
        for writing in candidates.into_iter().filter_map(Candidate::write) {
            let (key, value) = (*writing.key(), *writing);
            if writing.stored() {
                self.stored.lock().unwrap().insert(key, value);
            }
        }
    }

    fn load(&self, guard: LoadGuard<u64, u64>) -> Result<(), LoadGuard<u64, u64>> {
        match self.stored.lock().unwrap().get(guard.key()) {
            Some(value) => drop(guard.publish(*value)),
            None => return Err(guard),
        }
        Ok(())
    }

    fn forget(&self, key: &u64) {
        self.stored.lock().unwrap().remove(key);
    }

    fn holding(&self, key: &u64, _: Class) -> Option<Holding> {
        if self.excludes.load(Ordering::SeqCst) {
            return Some(Holding::Excluded);
        }
        let stored = self.stored.lock().unwrap().contains_key(key);
        Some(if stored { Holding::Stored } else { Holding::NotStored })
    }
}

#[test]
fn what_the_secondary_cache_did_is_named() {
    let behind = Arc::new(Behind::default());
    let secondary: Arc<Behind> = behind.clone();
    let mut fixture = Fixture::with(500, |b| b.plain_lru().secondary_cache(secondary));
    let fate = |fixture: &mut Fixture, blocks: u64| {
        fixture.restart();
        for _ in 0..4 {
            (0..blocks).for_each(|key| fixture.read(key, LOOP));
        }
        let explanation = fixture.explain();
        let evicted: Vec<_> =
            explanation.causes.iter().filter(|g| g.cause == MissCause::Evicted).cloned().collect();
        let first = evicted.into_iter().max_by_key(|group| group.misses).expect("some are missed");
        println!("{explanation}");
        (first.secondary, first.remedies.last().copied(), first.misses)
    };
    behind.excludes.store(true, Ordering::SeqCst);
    let (excluded, remedy, misses) = fate(&mut fixture, 1000);
    assert_eq!(excluded, SecondaryFate::Excluded);
    assert_eq!(remedy, Some(Remedy::AllowSecondary { misses }));
    behind.excludes.store(false, Ordering::SeqCst);
    behind.declines.store(true, Ordering::SeqCst);
    let (declined, remedy, _) = fate(&mut fixture, 1000);
    assert_eq!(declined, SecondaryFate::Declined);
    assert!(
        !matches!(remedy, Some(Remedy::LargerSecondary { .. })),
        "nothing says that it is small"
    );
    behind.declines.store(false, Ordering::SeqCst);
    assert_eq!(fate(&mut fixture, 1000).0, SecondaryFate::Served);
    // All that it has is lost, and it takes no more.
    fixture.restart();
    (0..1000).for_each(|key| fixture.read(key, LOOP));
    behind.stored.lock().unwrap().clear();
    behind.declines.store(true, Ordering::SeqCst);
    (0..400).for_each(|key| fixture.read(key, LOOP));
    let explanation = fixture.explain();
    let dropped = explanation.causes.iter().find(|g| g.secondary == SecondaryFate::Dropped);
    let dropped = dropped.unwrap_or_else(|| panic!("nothing dropped: {explanation:#?}"));
    assert!(dropped.misses > 300, "{explanation:#?}");
    let misses = dropped.misses;
    assert_eq!(dropped.remedies.last(), Some(&Remedy::LargerSecondary { misses, size: None }));
    // What it declines now, it declines for the same reason.
    (0..1000).for_each(|key| fixture.read(key, LOOP));
    let explanation = fixture.explain();
    let declined = explanation.causes.iter().find(|g| g.secondary == SecondaryFate::Declined);
    let declined = declined.unwrap_or_else(|| panic!("nothing declined: {explanation:#?}"));
    let misses = declined.misses;
    assert_eq!(declined.remedies.last(), Some(&Remedy::LargerSecondary { misses, size: None }));
}

#[test]
fn the_recorder_of_a_large_cache_is_small_and_right() {
    let without = {
        let mut fixture = Fixture::new(100_000);
        fixture.cache.record(false);
        (0..300_000).for_each(|key| fixture.read(key, STREAM));
        fixture.cache.stats().overhead.fixed
    };
    let mut fixture = Fixture::new(100_000);
    (0..300_000).for_each(|key| fixture.read(key, STREAM));
    let explanation = fixture.explain();
    assert!(explanation.one_in >= 64, "{explanation:#?}");
    let first = &explanation.causes[..];
    let all: u64 = first.iter().map(|group| group.misses).sum();
    assert_about("misses", all as f64, 300_000.0, 0.1 * 300_000.0);
    let taken = fixture.cache.stats().overhead.fixed - without;
    assert!((100 << 10..4 << 20).contains(&taken), "{taken} bytes");
}

#[test]
fn only_the_time_that_was_asked_for_is_explained() {
    let mut fixture = Fixture::new(1000);
    (0..300).for_each(|key| fixture.read(key, LEAVES));
    fixture.clock.advance(Duration::from_secs(300).as_nanos() as u64);
    (300..500).for_each(|key| fixture.read(key, STREAM));
    let last = fixture.cache.explain(Duration::from_secs(60)).unwrap();
    assert_eq!((last.misses, last.causes.len(), last.causes[0].misses), (200, 1, 200), "{last:#?}");
    assert_eq!(last.causes[0].blocks[0].label, STREAM.label);
    assert_eq!(fixture.cache.explain(HOUR).unwrap().misses, 500);
    // A load that fails is no miss with a block.
    let recorded = fixture.cache.explain(HOUR).unwrap().recorded;
    let begun = fixture.cache.begin(9999, 1, LEAVES).unwrap();
    let Begin::Vacant(guard) = begun else { panic!("it is not cached") };
    drop(guard);
    assert_eq!(fixture.cache.explain(HOUR).unwrap().recorded, recorded);
}
