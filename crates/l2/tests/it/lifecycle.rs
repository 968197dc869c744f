//! The lifecycle of an L2: create, fill, close, open again, remove.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::clock::ManualClock;
use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Begin, Class};
use forebay_l2::{Codec, ErrorKind, Health, L2, L2Options};

use crate::support::{Fixture, NumberCodec, Value, memory, options};

#[test]
fn written_values_survive_a_restart() {
    let device = memory(32 << 20);
    let fixture = Fixture::create(&device, &options());
    for key in 0..2000 {
        fixture.insert(key, 1, 100 + key as usize % 3000);
    }
    fixture.spill();
    for key in 0..2000 {
        assert_eq!(fixture.get(key), Some(Value::new(key, 1, 100 + key as usize % 3000)));
    }
    assert_eq!(fixture.l2.stats().count("stored"), 2000);
    fixture.close();

    let fixture = Fixture::open(&device, &options());
    assert!(fixture.l2.wait_rebuilt());
    let rebuilt = fixture.l2.rebuild();
    assert_eq!((rebuilt.records, rebuilt.damaged), (2000, 0), "{rebuilt:?}");
    for key in 0..2000 {
        assert_eq!(fixture.get(key), Some(Value::new(key, 1, 100 + key as usize % 3000)));
    }
    assert_eq!(fixture.get(2000), None);
    fixture.close();
}

#[test]
fn overwritten_and_removed_values_do_not_return() {
    let device = memory(32 << 20);
    let mut fixture = Fixture::create(&device, &options());
    for round in 1..=6 {
        for key in 0..200 {
            match (key + round) % 3 {
                0 => drop(fixture.cache.remove(&key)),
                _ => fixture.insert(key, round, 500),
            }
        }
        if round % 2 == 0 {
            fixture.spill();
        }
        // Values only in memory are lost. The L2 has no old versions.
        fixture.close();
        fixture = Fixture::open(&device, &options());
        for key in 0..200 {
            let found = fixture.get(key).map(|value| value.version);
            assert!(found.is_none_or(|version| version == round), "{key}: {found:?} in {round}");
            if found.is_some() {
                assert!((key + round) % 3 != 0 && round % 2 == 0, "{key} in {round}");
            }
        }
        assert!(fixture.l2.wait_rebuilt());
        if round % 2 == 0 {
            let there = (0..200).filter(|key| fixture.get(*key).is_some()).count();
            assert_eq!(there, (0..200).filter(|key| (key + round) % 3 != 0).count());
        }
    }
    assert_eq!(fixture.l2.stats().count("forget_failures"), 0);
    fixture.close();
}

#[test]
fn a_wrapped_ring_keeps_metadata_and_hit_blocks() {
    let device = memory(8 << 20);
    let fixture = Fixture::create(&device, &options());
    for key in 0..70 {
        fixture.insert_as(1_000_000 + key, 1, 3000, Class::Metadata);
    }
    fixture.spill();
    // Twenty times the size of the device.
    let mut key = 0;
    for _ in 0..160 {
        for _ in 0..250 {
            fixture.insert(key, 1, 4000);
            key += 1;
        }
        fixture.spill();
        let hot = (key - 250..key).step_by(50);
        hot.for_each(|key| {
            assert!(fixture.get(key).is_some(), "{key}: {:?}", fixture.l2.stats().short())
        });
        fixture.cache.clear();
    }
    let stats = fixture.l2.stats();
    assert!(stats.count("evicted") > 10_000, "{:?}", stats.short());
    assert!(stats.count("reinserted") > 100, "{:?}", stats.short());
    let survived = (0..70).filter(|key| fixture.get(1_000_000 + key).is_some()).count();
    assert!(survived >= 66, "{survived} of 70 blocks of metadata survived: {:?}", stats.short());
    let recent = (key - 250..key).filter(|key| fixture.get(*key).is_some()).count();
    assert_eq!(recent, 250);
    fixture.close();

    let fixture = Fixture::open(&device, &options());
    assert!(fixture.l2.wait_rebuilt());
    assert_eq!(fixture.l2.rebuild().damaged, 0);
    let survived = (0..70).filter(|key| fixture.get(1_000_000 + key).is_some()).count();
    assert!(survived >= 66, "{survived} of 70 blocks of metadata survived a restart");
    fixture.close();
}

#[test]
fn blocks_evicted_while_memory_holds_them_are_written_again() {
    let device = memory(8 << 20);
    let fixture = Fixture::create(&device, &options());
    (0..50).for_each(|key| fixture.insert(key, 1, 4000));
    // Two and a half times the size of the device, past blocks that memory keeps.
    for batch in 1..=20 {
        (0..250).for_each(|key| fixture.insert(1000 * batch + key, 1, 4000));
        fixture.offer_all();
        fixture.l2.flush().unwrap();
        fixture.cache.retain(|key, _, _| *key < 1000);
    }
    let stats = fixture.l2.stats();
    assert!(stats.count("evicted") > 1000, "{:?}", stats.short());
    assert!(stats.count("offered_known") > 500, "{:?}", stats.short());
    fixture.cache.clear();
    let found = (0..50).filter(|key| fixture.get(*key).is_some()).count();
    // Writes after the last offer may have evicted some.
    assert!(found >= 40, "{found} of 50 are there: {:?}", stats.short());
    fixture.close();
}

#[test]
fn data_is_reinserted_only_after_memory_evicts_it() {
    for lets_go in [false, true] {
        let device = memory(8 << 20);
        let fixture = Fixture::create(&device, &options());
        (0..50).for_each(|key| fixture.insert(key, 1, 4000));
        fixture.spill();
        // Hit blocks are worth reinserting, except that memory holds them.
        assert!((0..50).all(|key| fixture.get(key).is_some()));
        if lets_go {
            fixture.cache.clear();
        }
        for batch in 1..=10 {
            (0..250).for_each(|key| fixture.insert(1000 * batch + key, 1, 4000));
            fixture.cache.offer_all(256, |mut candidates| {
                candidates.retain(|candidate| *candidate.key() >= 1000);
                forebay_cache::SecondaryCache::offer(&*fixture.l2, candidates);
            });
            fixture.l2.flush().unwrap();
            fixture.cache.retain(|key, _, _| *key < 1000);
        }
        let stats = fixture.l2.stats();
        let counts = ["evicted_in_memory", "reinserted"].map(|name| stats.count(name));
        let expected = if lets_go { [0, 50] } else { [50, 0] };
        assert_eq!(counts, expected, "{:?}", stats.short());
        fixture.cache.clear();
        let found = (0..50).filter(|key| fixture.get(*key).is_some()).count();
        assert_eq!(found, if lets_go { 50 } else { 0 });
        fixture.close();
    }
}

#[test]
fn admission_follows_the_measured_reuse_of_new_blocks() {
    let device = memory(8 << 20);
    let options = options();
    options.tunables.set("admit_all", "false").unwrap();
    let fixture = Fixture::create(&device, &options);
    let ask = |batch: &[u64]| {
        for key in batch {
            if fixture.get(*key).is_none() {
                fixture.insert(*key, 1, 4000);
            }
        }
        fixture.spill();
    };
    // Each key once, three times the size of the device.
    let stream: Vec<u64> = (0..6000).collect();
    stream.chunks(50).for_each(ask);
    let refused = |stats: forebay_l2::L2Stats| {
        let reasons = stats.counters.into_iter().filter(|c| c.name == "refused");
        let all: Vec<_> = reasons.filter(|c| c.value > 0).map(|c| (c.label, c.value)).collect();
        all
    };
    let before = fixture.l2.stats().count("admitted");
    (1_000_000..1_001_000).collect::<Vec<_>>().chunks(50).for_each(ask);
    let taken = fixture.l2.stats().count("admitted") - before;
    assert!(taken < 100, "{taken} of 1,000: {:?}", fixture.l2.stats().short());
    let reasons = refused(fixture.l2.stats());
    assert!(matches!(reasons[..], [(Some("no_proven_reuse"), 1000..)]), "{reasons:?}");
    // From now on each key is requested again soon.
    let mut taken = 0;
    for round in 0..400 {
        let new: Vec<u64> = (0..25).map(|n| 2_000_000 + 25 * round + n).collect();
        let again: Vec<u64> = new.iter().map(|key| key - 500).filter(|k| *k >= 2_000_000).collect();
        let before = fixture.l2.stats().count("admitted");
        ask(&new);
        if round >= 360 {
            taken += fixture.l2.stats().count("admitted") - before;
        }
        ask(&again);
    }
    assert!(taken >= 900, "{taken} of 1,000: {:?}", fixture.l2.stats().short());
    fixture.close();
}

#[test]
fn a_new_device_takes_a_burst_beyond_the_write_rate() {
    const VALUES: u64 = 100_000;
    let mut options = options();
    options.tunables.set("admit_all", "false").unwrap();
    options.tunables.set("write_max_bytes_per_s", "256M").unwrap();
    // No time passes, so the rate grants nothing more.
    options.clock = Arc::new(ManualClock::new());
    let fixture = Fixture::create(&memory(256 << 20), &options);
    (0..VALUES).for_each(|key| fixture.insert(key, 1, 500));
    fixture.spill();
    let stats = fixture.l2.stats();
    assert_eq!((stats.count("stored"), stats.count("refused")), (VALUES, 0), "{:?}", stats.short());
    fixture.close();
}

#[test]
fn a_device_of_another_owner_is_refused_unless_forced() {
    let open = |device: &_, options: &L2Options| {
        L2::open(Arc::clone(device), Arc::new(NumberCodec), options).map(|l2| l2.close())
    };
    let create = |device: &_, options: &L2Options| {
        L2::create(Arc::clone(device), Arc::new(NumberCodec), options).map(|l2| l2.close())
    };
    let device = memory(8 << 20);
    assert_eq!(open(&device, &options()).unwrap_err().kind(), ErrorKind::NotAnL2);
    create(&device, &options()).unwrap();
    open(&device, &options()).unwrap();
    let stranger = L2Options { owner: [7; 16], ..options() };
    assert_eq!(open(&device, &stranger).unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(create(&device, &stranger).unwrap_err().kind(), ErrorKind::Foreign);
    create(&device, &L2Options { force: true, ..stranger.clone() }).unwrap();
    open(&device, &stranger).unwrap();
    assert_eq!(open(&device, &options()).unwrap_err().kind(), ErrorKind::Foreign);
    let small = create(&memory(1 << 20), &options()).unwrap_err();
    assert_eq!(small.kind(), ErrorKind::TooSmall, "{small}");
}

#[test]
fn a_closed_l2_does_not_touch_its_device_again() {
    let device = memory(8 << 20);
    let fixture = Fixture::create(&device, &options());
    (0..100).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    fixture.l2.close();
    let other = L2Options { owner: [3; 16], force: true, ..options() };
    Fixture::create(&device, &other).close();
    let late = fixture.l2.forget_checked(&5).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
    Fixture::open(&device, &other).close();
    fixture.close();
}

#[test]
fn forget_on_a_closed_l2_fails_and_keeps_the_blocks() {
    let device = memory(8 << 20);
    let fixture = Fixture::create(&device, &options());
    (0..100).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    fixture.l2.close();
    for key in [5, 1000] {
        let late = fixture.l2.forget_checked(&key).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Closed, "{late}");
    }
    let stats = fixture.l2.stats();
    assert_eq!(stats.count("forget_failures"), 2);
    // Removals by the cache, which cannot report failure.
    fixture.cache.remove(&6);
    fixture.insert(7, 2, 1000);
    fixture.close();
    let again = Fixture::open(&device, &options());
    assert!(again.l2.wait_rebuilt());
    (0..100).for_each(|key| assert!(again.get(key).is_some(), "{key}"));
    again.close();
}

#[test]
fn a_removed_l2_is_gone() {
    let device = memory(8 << 20);
    let fixture = Fixture::create(&device, &options());
    (0..100).for_each(|key| fixture.insert(key, 1, 1000));
    fixture.spill();
    assert!(fixture.get(1).is_some());
    fixture.cache.clear();
    fixture.l2.remove().unwrap();
    assert_eq!(fixture.l2.health(), Health::Removed);
    assert_eq!(fixture.get(1), None);
    assert!(fixture.l2.is_empty());
    fixture.insert(1, 2, 1000);
    fixture.close();
    let again = L2::<u64, Value>::open(device.clone(), Arc::new(NumberCodec), &options());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::NotAnL2);
    // Another owner can use the device without force.
    let other = L2Options { owner: [3; 16], ..options() };
    Fixture::create(&device, &other).close();
}

/// Like [`NumberCodec`], with the key as its stamp.
struct StampCodec;

impl Codec<u64, Value> for StampCodec {
    fn key_bytes(&self) -> usize {
        NumberCodec.key_bytes()
    }

    fn encode_key(&self, key: &u64, out: &mut [u8]) {
        NumberCodec.encode_key(key, out);
    }

    fn stamp(&self, key: &u64) -> u64 {
        *key
    }

    fn encoded_len(&self, value: &Value) -> usize {
        NumberCodec.encoded_len(value)
    }

    fn encode(&self, value: &Value, out: &mut [u8]) {
        NumberCodec.encode(value, out);
    }

    fn decode(&self, key: &u64, bytes: &[u8]) -> Option<Value> {
        NumberCodec.decode(key, bytes)
    }
}

#[test]
fn an_l2_whose_user_was_rolled_back_is_emptied_for_good() {
    let device = memory(8 << 20);
    let with = |max_stamp| L2Options { immutable_keys: true, max_stamp, ..options() };
    let open = |max_stamp| {
        let l2 = L2::open(device.clone(), Arc::new(StampCodec), &with(max_stamp)).unwrap();
        let fixture = Fixture::over(l2);
        assert!(fixture.l2.wait_rebuilt());
        fixture
    };
    let l2 = L2::create(device.clone(), Arc::new(StampCodec), &with(0)).unwrap();
    let fixture = Fixture::over(l2);
    (0..=100).for_each(|key| fixture.insert(key, 1, 500));
    fixture.spill();
    fixture.close();
    // A user that knows all stamps finds all keys.
    let fixture = open(100);
    assert!((0..=100).all(|key| fixture.get(key).is_some()));
    let guid = fixture.l2.label().guid;
    fixture.close();
    let fixture = open(99);
    assert_eq!(fixture.l2.stats().count("rollbacks"), 1);
    assert_ne!(fixture.l2.label().guid, guid);
    assert!((0..=100).all(|key| fixture.get(key).is_none()));
    (0..50).for_each(|key| fixture.insert(key, 2, 500));
    fixture.spill();
    fixture.close();
    // Blocks of the abandoned history do not return when their stamps are reached again.
    let fixture = open(1000);
    assert_eq!(fixture.l2.stats().count("rollbacks"), 0);
    for key in 0..=100 {
        let version = fixture.get(key).map(|value| value.version);
        assert_eq!(version, (key < 50).then_some(2), "{key}");
    }
    fixture.close();
}

#[test]
fn concurrent_threads_see_their_latest_writes_only() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 60;
    let device = memory(4 << 20);
    let small = L2Options { segment_bytes: Some(128 << 10), ..options() };
    small.tunables.set("batch_bytes", "64K").unwrap();
    let fixture = Arc::new(Fixture::create(&device, &small));
    let first = forebay_base::testing::seed(0);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let fixture = fixture.clone();
            std::thread::spawn(move || {
                let mut rng = SmallRng::from_seed(first.wrapping_add(thread));
                let mut now = BTreeMap::new();
                for version in 1..3000 {
                    // Each thread has its own keys. The ring, the writer and the cache are shared.
                    let key = thread * KEYS + rng.below(KEYS);
                    match rng.below(10) {
                        0..3 => {
                            fixture.insert(key, version, rng.below(2000) as usize);
                            now.insert(key, version);
                        }
                        3 => {
                            fixture.cache.remove(&key);
                            now.remove(&key);
                        }
                        4..6 => fixture.cache.offer_all(16, |candidates| {
                            forebay_cache::SecondaryCache::offer(&*fixture.l2, candidates);
                        }),
                        6 if rng.below(8) == 0 => _ = fixture.cache.clear(),
                        _ => {
                            let found = fixture.get(key).map(|value| value.version);
                            let right = now.get(&key).copied();
                            assert!(
                                found.is_none() || found == right,
                                "{key}: {found:?}, {right:?}"
                            );
                        }
                    }
                }
                now
            })
        })
        .collect();
    let mut now = BTreeMap::new();
    threads.into_iter().for_each(|thread| now.extend(thread.join().unwrap()));
    let stats = fixture.l2.stats();
    assert!(stats.count("stored") > 0 && stats.count("tombstones") > 0, "{:?}", stats.short());
    assert_eq!(stats.count("load_corrupt"), 0, "{:?}", stats.short());
    Arc::into_inner(fixture).expect("all threads have ended").close();

    let fixture = Fixture::open(&device, &small);
    assert!(fixture.l2.wait_rebuilt());
    for key in 0..THREADS * KEYS {
        let found = fixture.get(key).map(|value| value.version);
        assert!(found.is_none() || found == now.get(&key).copied(), "{key}: {found:?}");
    }
    fixture.close();
}

#[test]
fn blocks_returned_uncached_are_reinserted() {
    let device = memory(8 << 20);
    let fixture = Fixture::create(&device, &options());
    (0..50).for_each(|key| fixture.insert(key, 1, 4000));
    fixture.spill();
    for key in 0..50 {
        // The assumed weight exceeds memory.
        let begun = fixture.cache.begin(key, 2 << 30, Attributes::DATA).unwrap();
        let Begin::InFlight(flight) = begun else { panic!("the level has {key}") };
        flight.wait().unwrap().check(key);
        assert!(!fixture.cache.contains(&key));
    }
    // The ring wraps once.
    for round in 1..=10 {
        (0..250).for_each(|n| fixture.insert(round * 1000 + n, 1, 4000));
        fixture.spill();
    }
    let stats = fixture.l2.stats();
    assert!(stats.count("evicted") > 200, "{:?}", stats.short());
    let survived = (0..50).filter(|key| fixture.get(*key).is_some()).count();
    assert!(survived >= 40, "{survived} of 50 blocks that were asked for: {:?}", stats.short());
    fixture.close();
}
