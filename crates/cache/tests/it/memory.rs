//! Memory: the cost of a block, a ghost and an index entry, and the hard bound.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;

use forebay_base::arena::{Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::memory::rss_bytes;
use forebay_base::rng::SmallRng;
use forebay_cache::{Attributes, Cache, LoadError, Reclaim};

use crate::support::{audit, full, wait_until};

#[test]
fn a_block_costs_at_most_80_bytes_and_a_ghost_32() {
    let blocks = if full() { 4_000_000 } else { 1_000_000 };
    // The largest key and value for which the cost is promised.
    let cache = Cache::<[u8; 24], [u64; 2]>::builder()
        .capacity(blocks)
        .weigher(|_, _| 1)
        .reclaim(Reclaim::Inline)
        .seed(1)
        .build()
        .unwrap();
    let key = |n: u64| {
        let mut key = [0; 24];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    };
    (0..blocks).for_each(|n| cache.insert(key(n), [n, n]).unwrap());
    let stats = cache.stats();
    let (o, n) = (stats.overhead, blocks as f64);
    let (header, index) = (o.headers as f64 / n, stats.index.used_bytes as f64 / n);
    let list = o.lists as f64 / n;
    println!("{blocks} blocks: header {header:.2}, index {index:.2}, list {list:.2} bytes a block");
    println!("index resident {:.2}", o.index as f64 / n);
    assert_eq!(stats.resident_blocks(), blocks);
    // Whole chunks. The last one may be half empty.
    assert!(header <= 65.0, "{header}");
    assert!(index <= 16.0, "{index}");
    assert!(list <= 8.0, "{list}");
    assert_eq!(stats.ghosts(), 0);

    // As many ghosts as blocks.
    (blocks..2 * blocks).for_each(|n| cache.insert(key(n), [n, n]).unwrap());
    let stats = cache.stats();
    let ghosts = stats.ghosts() as f64;
    let (ring, entries) = (stats.overhead.ghosts as f64 / ghosts, stats.index.entries as f64);
    let slot = stats.index.used_bytes as f64 / entries;
    println!("{ghosts} ghosts: ring {ring:.2} and index {slot:.2} bytes a ghost");
    assert!(ghosts >= n * 0.9, "{stats}");
    assert!(slot <= 16.0 && ring + slot <= 32.5, "{ring} {slot}");
    assert!(stats.overhead.headers as f64 / n <= 66.0);
    audit(&cache);
    // All of it is returned.
    cache.clear();
    assert!(cache.stats().overhead.total() < 2 << 20, "{}", cache.stats());
}

/// Resident memory, without pages of the program's code: those come as it runs.
fn rss() -> u64 {
    rss_bytes().expect("the system tells") - status("RssFile:")
}

/// Many loads of arena blocks under a hard bound. Returns the bound and the largest growth of
/// resident memory.
#[expect(clippy::too_many_lines, reason = "one scenario, read from top to bottom")]
fn storm(
    bound: u64,
    threads: u64,
    loads: u64,
    len: impl Fn(&mut SmallRng) -> usize + Sync,
) -> (u64, u64) {
    let before = rss();
    let arena =
        Arena::new(ArenaConfig { limit_bytes: bound, huge_pages: HugePages::Auto }).unwrap();
    // Free memory would serve the next block, but it counts until it is returned. Only memory that
    // cannot be returned may reduce the capacity.
    let source = arena.clone();
    let slack = move || {
        if source.slack_bytes() > bound / 64 {
            source.purge();
        }
        source.slack_bytes()
    };
    let cache = Cache::<u64, Buffer>::builder()
        .bound(bound)
        .weigher(|_, block| block.footprint() as u64)
        .overhead(slack)
        .seed(1)
        .tunable("overflow_wait_ms", "10000")
        .build()
        .unwrap();
    let (stop, most, uncached) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(rss(), Ordering::Relaxed);
                thread::yield_now();
            }
        });
        let storm: Vec<_> = (0..threads)
            .map(|t| {
                let (cache, arena, len, uncached) = (&cache, &arena, &len, &uncached);
                s.spawn(move || {
                    let mut rng = SmallRng::from_seed(t);
                    for i in 0..loads / threads {
                        let bytes = len(&mut rng);
                        let load = || {
                            // Capacity is reserved before memory is taken.
                            let mut block = arena.alloc(bytes)?;
                            block.fill(i as u8);
                            Ok::<_, forebay_base::arena::AllocError>(block)
                        };
                        let key = (t << 40) | i;
                        match cache.get_or_load_weighed(key, bytes as u64, Attributes::DATA, load) {
                            Ok(block) => {
                                assert_eq!((block[0], block[bytes - 1]), (i as u8, i as u8))
                            }
                            Err(LoadError::Failed(_)) => {
                                uncached.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        for thread in storm {
            thread.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = cache.stats();
    let grown = most.into_inner().saturating_sub(before);
    println!(
        "bound {bound}: resident memory grew by {grown} ({:.3} of it); at the end {} in blocks, overhead {:?}",
        grown as f64 / bound as f64,
        stats.resident_bytes(),
        stats.overhead
    );
    println!(
        "waits {}, in vain {}, arena exhausted {}",
        stats.counter("throttle_waits"),
        stats.counter("throttle_timeouts"),
        uncached.into_inner()
    );
    assert!(stats.resident_bytes() + stats.overhead.total() <= bound + bound / 10, "{stats}");
    assert!(stats.resident_bytes() >= bound / 2, "the bound is not used\n{stats}");
    audit(&cache);
    // All of it was returned.
    cache.close();
    arena.purge();
    assert_eq!(arena.used_bytes(), 0);
    (bound, grown)
}

/// In its own process, because resident memory is that of the process, and other tests run at the
/// same time.
fn alone(test: &str, body: impl FnOnce()) {
    alone_with(test, "1", |_| body());
}

/// As [`alone`], with an argument. Returns what the process has printed; in that process, it exits
/// after `body`.
fn alone_with(test: &str, argument: &str, body: impl FnOnce(&str)) -> String {
    const MARK: &str = "FOREBAY_ALONE";
    if let Ok(argument) = std::env::var(MARK) {
        body(&argument);
        std::process::exit(0);
    }
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(this)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, argument)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{printed}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    printed
}

fn within(bound_and_grown: (u64, u64)) {
    let (bound, grown) = bound_and_grown;
    assert!(grown <= bound + bound / 10, "{grown} bytes under a bound of {bound}");
}

#[test]
fn the_bound_holds_for_blocks_of_all_sizes() {
    alone("memory::the_bound_holds_for_blocks_of_all_sizes", || {
        // As many blocks of 512 bytes to 1 KiB as of 512 KiB to 1 MiB.
        let len = |rng: &mut SmallRng| {
            let size = 512usize << rng.below(11);
            size + rng.below(size as u64 + 1) as usize
        };
        let (bound, threads, loads) =
            if full() { (256 << 20, 32, 200_000) } else { (64 << 20, 8, 4000) };
        within(storm(bound, threads, loads, |rng| len(rng).min(1 << 20)));
    });
}

#[test]
fn the_bound_holds_for_large_blocks() {
    alone("memory::the_bound_holds_for_large_blocks", || {
        let (bound, threads, loads) =
            if full() { (256 << 20, 32, 20_000) } else { (64 << 20, 8, 1000) };
        within(storm(bound, threads, loads, |rng| 512 + rng.below((1 << 20) - 511) as usize));
    });
}

#[test]
fn the_bound_holds_for_small_blocks() {
    alone("memory::the_bound_holds_for_small_blocks", || {
        let (bound, threads, loads) =
            if full() { (256 << 20, 32, 2_000_000) } else { (96 << 20, 4, 500_000) };
        within(storm(bound, threads, loads, |_| 512));
    });
}

#[test]
fn the_bound_holds_when_sizes_change() {
    alone("memory::the_bound_holds_when_sizes_change", || {
        let (bound, threads, loads) =
            if full() { (256 << 20, 32, 200_000) } else { (64 << 20, 8, 8000) };
        let calls = AtomicU64::new(0);
        // Phases: small blocks leave pages that large ones cannot use.
        within(storm(bound, threads, loads, |rng| {
            let phase = calls.fetch_add(1, Ordering::Relaxed) * 8 / loads;
            if phase.is_multiple_of(2) {
                4096 + rng.below(8192) as usize
            } else {
                (1 << 17) + rng.below(1 << 17) as usize
            }
        }));
    });
}

/// A line of the process's status, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    let kib: u64 = line.trim_end_matches(" kB").trim().parse().expect("a number");
    kib << 10
}

/// The largest resident memory that this process has had, without pages of its code.
fn most_rss() -> u64 {
    status("VmHWM:") - status("RssFile:")
}

/// Inserts values from several threads, three times as many as fit, and gives up some waits for
/// capacity. Prints by how much resident memory has grown at most.
fn small_values<V: Copy + Send + Sync + 'static>(bound: u64, value: V) {
    const THREADS: u64 = 4;
    let bytes = size_of::<V>() as u64;
    let before = rss();
    let cache = Cache::<u64, V>::builder().bound(bound).weigher(|_, _| 0).seed(1).build().unwrap();
    // A block has a header and an index entry beside its value.
    let inserts = 3 * bound / (bytes + 80) / THREADS;
    thread::scope(|s| {
        for t in 0..THREADS {
            let cache = &cache;
            s.spawn(move || {
                for i in 0..inserts {
                    let key = (t << 40) | i;
                    drop(cache.insert(key, value));
                    if i % 8 == 0 {
                        // Dropped while it waits for capacity, or with a load guard.
                        let key = key | 1 << 60;
                        let mut load = pin!(cache.begin_async(key, bytes, Attributes::DATA));
                        let mut context = Context::from_waker(Waker::noop());
                        drop(load.as_mut().poll(&mut context));
                    }
                }
            });
        }
    });
    // It still caches: a target of 0 would hold any bound. A target that the storm's overhead has
    // lowered rises with the next inserts.
    let mut more = 0..inserts;
    while cache.usage().resident_bytes() < bound / 8 && more.next().is_some() {
        drop(cache.insert(2 << 60 | more.start, value));
    }
    let stats = cache.stats();
    println!("\ngrown {}", most_rss().saturating_sub(before));
    println!("{stats}");
    assert!(stats.resident_bytes() + stats.overhead.total() <= bound + bound / 20, "{stats}");
    assert!(stats.resident_bytes() >= bound / 8, "{stats}");
    audit(&cache);
}

/// Runs the storm in two processes, with one bound and with four times as much. Each stays within
/// its bound, and so does what the larger one has on top.
fn bound_of_small_values<V: Copy + Send + Sync + 'static>(test: &str, value: V) {
    let bounds = if full() { [64 << 20, 256 << 20] } else { [24 << 20, 96 << 20] };
    let grown = bounds.map(|bound: u64| {
        let printed = alone_with(test, &bound.to_string(), |bound| {
            small_values(bound.parse().expect("a number"), value);
        });
        let grown = printed.lines().find_map(|line| line.strip_prefix("grown "));
        grown.expect("it prints the growth").parse::<u64>().expect("a number")
    });
    println!("{} bytes: {grown:?} under {bounds:?}", size_of::<V>());
    let within =
        |grown: u64, bound: u64| assert!(grown <= bound + bound / 20, "{grown} of {bound}");
    // The smaller bound shows stacks and the like, which do not grow.
    within(grown[1], bounds[1]);
    within(grown[1].saturating_sub(grown[0]), bounds[1] - bounds[0]);
}

#[test]
fn the_bound_holds_for_values_of_8_bytes() {
    bound_of_small_values("memory::the_bound_holds_for_values_of_8_bytes", 0_u64);
}

#[test]
fn the_bound_holds_for_values_of_64_bytes() {
    bound_of_small_values("memory::the_bound_holds_for_values_of_64_bytes", [0_u8; 64]);
}

#[test]
fn the_bound_holds_for_values_of_512_bytes() {
    bound_of_small_values("memory::the_bound_holds_for_values_of_512_bytes", [0_u8; 512]);
}

#[test]
fn a_bound_follows_a_resize() {
    let others = Arc::new(AtomicU64::new(0));
    let told = others.clone();
    let cache = Cache::<u64, u64>::builder()
        .bound(8 << 20)
        .weigher(|_, _| 1024)
        .overhead(move || told.load(Ordering::Relaxed))
        .build()
        .unwrap();
    let fill = || (0..20_000).for_each(|key| cache.insert(key, key).unwrap());
    let within = |bound: u64| {
        let stats = cache.stats();
        stats.resident_bytes() + stats.overhead.total() <= bound
    };
    fill();
    wait_until("it keeps to its bound", || within(8 << 20));
    assert_eq!(cache.stats().bound, Some(8 << 20));
    cache.resize(2 << 20);
    wait_until("it keeps to its smaller bound", || within(2 << 20));
    // The bytes that the user reports count.
    cache.resize(8 << 20);
    fill();
    others.store(4 << 20, Ordering::Relaxed);
    fill();
    wait_until("others' bytes are left to them", || within(8 << 20));
    assert!(cache.stats().resident_bytes() < 4 << 20);
    others.store(1 << 30, Ordering::Relaxed);
    // No capacity is left for blocks. They are refused, and nothing else happens.
    wait_until("all of it is gone", || cache.insert(1, 1).is_err());
    others.store(0, Ordering::Relaxed);
    wait_until("it recovers", || cache.insert(1, 1).is_ok());
    fill();
    assert!(cache.stats().resident_bytes() > 4 << 20, "{}", cache.stats());
    audit(&cache);
}
