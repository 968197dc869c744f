//! The policy: loops and scans, hints, floors and ceilings, the correlated-reference window,
//! resizing, and hit ratios compared with textbook ARC.

use std::collections::BTreeSet;
use std::thread;

use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Cache, Class, Reclaim};

use crate::support::{Zipf, audit, inline, inline_blocks, seed, threaded_blocks, wait_until};
use crate::textbook::TextbookArc;

fn class_bytes(cache: &Cache<u64, u64>, class: Class) -> u64 {
    let stats = cache.stats();
    let here = stats.states.iter().filter(|s| s.class == class && !s.state.ends_with("ghost"));
    here.map(|s| s.bytes).sum()
}

fn request(cache: &Cache<u64, u64>, key: u64, attributes: Attributes) -> bool {
    let mut hit = true;
    let load = || {
        hit = false;
        Ok::<_, String>(key)
    };
    assert_eq!(*cache.get_or_load_weighed(key, 1, attributes, load).unwrap(), key);
    hit
}

/// A loop beside a stream. Returns the share of the loop's accesses that hit after `warm_up`
/// passes.
fn r5(cache: &Cache<u64, u64>, capacity: u64, passes: u64, warm_up: u64) -> f64 {
    let loop_blocks = capacity * 2 / 5;
    let (mut hits, mut all, mut stream) = (0, 0, 1 << 40);
    for pass in 0..passes {
        for key in 0..loop_blocks {
            let hit = request(cache, key, Attributes::METADATA);
            if pass >= warm_up {
                hits += u64::from(hit);
                all += 1;
            }
            for _ in 0..4 {
                let class = if stream % 2 == 0 { Attributes::METADATA } else { Attributes::DATA };
                assert!(!request(cache, stream, class), "each block of the stream is new");
                stream += 1;
            }
        }
    }
    hits as f64 / all as f64
}

/// Ten times the cache in all: six passes of the loop, and four times as much of the stream.
#[test]
fn a_metadata_loop_survives_a_stream_of_cold_metadata_and_data() {
    for (capacity, sublists) in [(1000, "1"), (1000, "0"), (20_000, "0")] {
        let cache = inline(capacity, |_, _: &u64| 1).tunable("sublists", sublists).build().unwrap();
        let ratio = r5(&cache, capacity, 6, 2);
        println!("r5: capacity {capacity}, sublists {sublists}: {ratio:.4} of the loop hits");
        assert!(ratio >= 0.95, "{ratio:.4}\n{}", cache.stats());
        audit(&cache);
    }
}

#[test]
fn it_does_with_a_reclaimer_too() {
    let cache = threaded_blocks(20_000).build().unwrap();
    let ratio = r5(&cache, 20_000, 6, 2);
    println!("r5: with a reclaimer: {ratio:.4} of the loop hits");
    assert!(ratio >= 0.95, "{ratio:.4}\n{}", cache.stats());
    audit(&cache);
}

#[test]
fn it_holds_for_blocks_of_many_sizes() {
    let capacity = 8 << 20;
    let weigh = |key: &u64, _: &u64| 512 << (key % 6);
    let cache = inline(capacity, weigh).tunable("sublists", "0").build().unwrap();
    // 10.5 half-kilobytes per block on average.
    let ratio = r5(&cache, capacity / 5376, 6, 2);
    println!("r5: blocks of 512 to 16384 bytes: {ratio:.4} of the loop hits");
    assert!(ratio >= 0.95, "{ratio:.4}\n{}", cache.stats());
    audit(&cache);
}

#[test]
fn blocks_hinted_once_push_nothing_out() {
    let cache = inline_blocks(1000);
    // A mixture of frequent and recent blocks of both classes.
    for key in 0..1000 {
        let attributes = if key % 2 == 0 { Attributes::DATA } else { Attributes::METADATA };
        cache.insert_with(key, key, attributes).unwrap();
        if key % 4 < 2 {
            cache.get(&key).unwrap();
        }
    }
    for key in 0..20_000 {
        cache.insert_with((1 << 40) + key, key, Attributes::DATA.once()).unwrap();
    }
    let here = (0..1000).filter(|key| cache.contains(key)).count();
    println!("once: {here} of 1000 blocks are still there after a scan of 20 times the cache");
    assert!(here >= 999, "{here}");
    audit(&cache);

    let cache = threaded_blocks(64_000).build().unwrap();
    (0..60_000).for_each(|key| cache.insert(key, key).unwrap());
    for key in 0..300_000 {
        cache.insert_with((1 << 40) + key, key, Attributes::DATA.once()).unwrap();
    }
    let here = (0..60_000).filter(|key| cache.contains(key)).count();
    println!("once, with a reclaimer: {here} of 60000 blocks are still there");
    assert!(here == 60_000, "{here}");
    audit(&cache);
}

#[test]
fn new_versions_of_blocks_in_use_begin_in_mfu() {
    // Ten blocks that are rewritten under new keys, with one hit between two versions, beside a
    // stream of others.
    let kept = |attributes: Attributes| {
        let cache = inline_blocks(100);
        let mut lost = 0;
        for version in 0..50u64 {
            for block in 0..10 {
                let key = (block << 20) | version;
                cache.insert_with(key, key, attributes).unwrap();
                cache.remove(&(key.wrapping_sub(1)));
            }
            for other in 0..120 {
                let key = (1 << 40) + version * 120 + other;
                cache.insert_with(key, key, Attributes::METADATA).unwrap();
            }
            lost += (0..10).filter(|block| cache.get(&((block << 20) | version)).is_none()).count();
        }
        audit(&cache);
        500 - lost
    };
    let (plain, again) = (kept(Attributes::METADATA), kept(Attributes::METADATA.again()));
    println!(
        "of 500 versions {plain} are still there when they are looked for, {again} with the hint"
    );
    assert!(again >= 490 && plain < 100, "{plain} {again}");
}

#[test]
fn blocks_that_are_rewritten_under_new_keys_all_the_time_outlast_a_stream() {
    // Directory leaves: each is read, changed, and written under a new key with the transaction
    // group. Beside them blocks that are rewritten once per group, and new dnodes, some of which
    // are read once more.
    const LEAVES: u64 = 380;
    let again = Attributes::METADATA.again();
    let key = |block: u64, version: u64| (block << 32) | version;
    for seed in 1..4 {
        let cache = inline_blocks(450);
        let put = |key: u64, attributes| cache.insert_with(key, key, attributes).unwrap();
        let mut rng = SmallRng::from_seed(seed);
        let mut version = [0; LEAVES as usize];
        let (mut missed, mut looked) = (0, 0);
        for group in 1..3000 {
            let mut dirty = BTreeSet::new();
            for _ in 0..100 {
                let leaf = rng.below(LEAVES);
                if dirty.insert(leaf) {
                    let old = key(leaf, version[leaf as usize]);
                    let hit = request(&cache, old, Attributes::METADATA);
                    cache.remove(&old);
                    if group > 100 {
                        looked += 1;
                        missed += u64::from(!hit);
                    }
                }
            }
            for leaf in dirty {
                version[leaf as usize] = group;
                put(key(leaf, group), again);
            }
            for indirect in LEAVES..LEAVES + 4 {
                request(&cache, key(indirect, group - 1), Attributes::METADATA);
                cache.remove(&key(indirect, group - 1));
                put(key(indirect, group), again);
            }
            request(&cache, (1 << 50) + 4 * group - 1, Attributes::METADATA);
            (0..4).for_each(|dnodes| put((1 << 50) + 4 * group + dnodes, Attributes::METADATA));
        }
        println!("of {looked} looks at leaves {missed} found nothing");
        assert!(missed < looked / 100, "{missed} of {looked}\n{}", cache.stats());
        audit(&cache);
    }
}

#[test]
fn a_block_hinted_once_that_is_used_again_is_an_ordinary_one() {
    let cache = inline_blocks(100);
    for key in 0..100 {
        cache.insert_with(key, key, Attributes::DATA.once()).unwrap();
    }
    for key in 0..10 {
        cache.get(&key).unwrap();
    }
    for key in 1000..1089 {
        cache.insert(key, key).unwrap();
    }
    assert!((0..10).all(|key| cache.contains(&key)));
    assert_eq!(cache.stats().counter("promoted"), 10);
    audit(&cache);
}

#[test]
fn floors_and_ceilings_hold_against_any_pressure() {
    for (name, class, pressure) in [
        ("metadata_floor_percent", Class::Metadata, Attributes::DATA),
        ("data_floor_percent", Class::Data, Attributes::METADATA),
    ] {
        let cache = inline(1000, |_, _: &u64| 1).tunable(name, "30").build().unwrap();
        let mine = if class == Class::Data { Attributes::DATA } else { Attributes::METADATA };
        for key in 0..600 {
            cache.insert_with(key, key, mine).unwrap();
        }
        // Ghost hits of the other class only.
        for round in 0..10 {
            for key in 0..1500 {
                request(&cache, (1 << 40) + key + round, pressure);
            }
        }
        let here = class_bytes(&cache, class);
        assert!((299..=310).contains(&here), "{name}: {here}\n{}", cache.stats());
        audit(&cache);
    }
    let cache =
        inline(1000, |_, _: &u64| 1).tunable("metadata_ceiling_percent", "20").build().unwrap();
    for round in 0..5 {
        for key in 0..1500 {
            request(&cache, key, Attributes::METADATA);
            request(&cache, (1 << 40) + key + round, Attributes::DATA);
        }
    }
    assert!(class_bytes(&cache, Class::Metadata) <= 201, "{}", cache.stats());
    // While there is data to cache.
    cache.retain(|_, _, class| class != Class::Data);
    for key in 0..1500 {
        request(&cache, key, Attributes::METADATA);
    }
    assert_eq!(class_bytes(&cache, Class::Metadata), 1000);
    audit(&cache);
    // Also at run time.
    cache.set_tunable("data_floor_percent", "50").unwrap();
    for key in 0..1500 {
        request(&cache, (1 << 40) + key, Attributes::DATA);
    }
    assert!(class_bytes(&cache, Class::Data) >= 500, "{}", cache.stats());
    audit(&cache);
}

#[test]
fn references_right_after_an_insert_can_be_kept_from_counting() {
    let admissions = |permille: &str| {
        let cache = inline(1000, |_, _: &u64| 1)
            .tunable("correlated_window_permille", permille)
            .build()
            .unwrap();
        for key in 0..5000 {
            cache.insert(key, key).unwrap();
            // The same file is read once more at once, and never again.
            cache.get(&key).unwrap();
        }
        let stats = cache.stats();
        audit(&cache);
        stats.counter("admissions_won") + stats.counter("admissions_lost")
    };
    // A candidate with one use is evicted without a comparison.
    let all = admissions("0");
    assert!(all > 3000, "{all} admissions");
    let few = admissions("500");
    assert!(few < 100, "{few} admissions");
}

#[test]
fn a_resize_takes_effect_and_memory_comes_back() {
    for mode in [Reclaim::Inline, Reclaim::Thread] {
        let cache = Cache::<u64, u64>::builder()
            .capacity(400_000)
            .weigher(|_, _| 1)
            .reclaim(mode)
            .seed(1)
            .build()
            .unwrap();
        let fill = |keys: std::ops::Range<u64>| {
            keys.for_each(|key| cache.insert(key, !key).unwrap());
        };
        fill(0..900_000);
        let large = cache.stats();
        assert!(large.resident_blocks() > 390_000 && large.ghosts() > 300_000, "{large}");
        cache.resize(2000);
        wait_until("it has shrunk", || cache.stats().resident_blocks() <= 2031);
        // A little traffic.
        fill(1_000_000..1_010_000);
        let small = cache.stats();
        assert_eq!(small.capacity, 2000);
        let (l, s) = (large.overhead, small.overhead);
        println!("resize, {mode:?}: from {l:?}\nto {s:?}");
        // A chunk of headers is returned when its last block has left, and the blocks that stay lie
        // anywhere.
        assert!(s.headers < l.headers / 2, "headers");
        assert!(s.index < l.index / 4, "index");
        assert!(s.ghosts < l.ghosts / 8, "ghosts");
        assert!(s.lists < l.lists / 4, "lists");
        // And up again.
        cache.resize(400_000);
        fill(0..400_000);
        wait_until("it is full again", || cache.stats().resident_blocks() >= 392_000);
        assert!((390_000..400_000).all(|key| cache.get(&key).is_some_and(|v| *v == !key)));
        cache.clear();
        let empty = cache.stats();
        println!("flushed: {:?}", empty.overhead);
        assert_eq!((empty.resident_blocks(), empty.ghosts(), empty.index.entries), (0, 0, 0));
        assert!(empty.overhead.total() < 2 << 20, "{empty}");
        audit(&cache);
    }
}

#[test]
fn resizes_under_load_settle() {
    let cache = threaded_blocks(10_000).tunable("overflow_wait_ms", "10000").build().unwrap();
    thread::scope(|s| {
        for t in 0..2u64 {
            let cache = &cache;
            s.spawn(move || {
                (0..100_000).for_each(|i| cache.insert((t << 32) | (i % 30_000), i).unwrap())
            });
        }
        let mut rng = SmallRng::from_seed(1);
        for _ in 0..200 {
            cache.resize(1 + rng.below(20_000));
            thread::yield_now();
        }
        cache.resize(5000);
    });
    assert_eq!(cache.stats().capacity, 5000, "the last resize was lost");
    wait_until("it has settled", || cache.stats().resident_blocks() <= cache.stats().limit);
    audit(&cache);
}

/// Hit ratios of the cache and of textbook ARC on the same requests.
fn against_textbook(
    name: &str,
    capacity: u64,
    mut next: impl FnMut() -> u64,
    requests: u64,
) -> (f64, f64) {
    let cache = inline_blocks(capacity);
    let mut arc = TextbookArc::new(capacity as usize);
    let (mut ours, mut theirs) = (0, 0);
    for _ in 0..requests {
        let key = next();
        theirs += u64::from(arc.request(key));
        ours += u64::from(request(&cache, key, Attributes::DATA));
    }
    audit(&cache);
    let (ours, theirs) = (ours as f64 / requests as f64, theirs as f64 / requests as f64);
    println!("{name}: ours {ours:.4}, textbook ARC {theirs:.4}");
    (ours, theirs)
}

#[test]
fn zipf_hits_as_often_as_with_textbook_arc() {
    let seed = seed("zipf_hits_as_often_as_with_textbook_arc");
    for (exponent, capacity) in [(0.8, 1000), (1.0, 1000), (1.0, 200), (1.2, 1000)] {
        let (zipf, mut rng) = (Zipf::new(20_000, exponent), SmallRng::from_seed(seed));
        let name = format!("zipf {exponent}, {capacity} of 20000");
        let (ours, theirs) = against_textbook(&name, capacity, || zipf.next(&mut rng), 300_000);
        assert!(ours >= theirs - 0.005, "{name}: {ours:.4} against {theirs:.4}");
    }
}

#[test]
fn loops_and_scans_are_no_worse_than_with_textbook_arc() {
    let zipf = Zipf::new(2000, 1.0);
    let (mut rng, mut at) = (SmallRng::from_seed(2), 0u64);
    let scans = || {
        at += 1;
        // A hot set, interrupted by scans of twice the cache.
        if at % 5000 < 2000 { (1 << 40) + at } else { zipf.next(&mut rng) }
    };
    let (ours, theirs) = against_textbook("scans", 1000, scans, 200_000);
    assert!(ours >= theirs - 0.02, "{ours:.4} against {theirs:.4}");
    let (mut rng, mut at) = (SmallRng::from_seed(2), 0u64);
    let shifts = || {
        at += 1;
        // The hot set moves.
        at / 20_000 * 10_000 + zipf.next(&mut rng)
    };
    let (ours, theirs) = against_textbook("shifting zipf", 500, shifts, 200_000);
    assert!(ours >= theirs - 0.02, "{ours:.4} against {theirs:.4}");
}

#[test]
fn a_plain_lru_has_one_list_without_classes_and_ghosts() {
    let cache = inline(10, |_, _: &u64| 1).plain_lru().build().unwrap();
    let attributes = [Attributes::DATA, Attributes::METADATA, Attributes::DATA.again()];
    for key in 0..30 {
        cache.insert_with(key, key, attributes[key as usize % 3]).unwrap();
    }
    let stats = cache.stats();
    let resident: Vec<_> = stats.states.iter().filter(|s| s.blocks > 0).collect();
    assert_eq!(resident.len(), 1, "{stats}");
    assert_eq!(
        (resident[0].state, resident[0].class, resident[0].blocks),
        ("mru", Class::Data, 10)
    );
    assert!((0..20).all(|key| !cache.contains(&key)) && (20..30).all(|key| cache.contains(&key)));
    audit(&cache);
}
