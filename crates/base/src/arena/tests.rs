//! Tests of the arena: against a naive model, with threads, and of its destruction.

use std::collections::HashMap;

use proptest::prelude::*;

use super::classes::{CHUNK_BYTES, CLASSES, MAX_BLOCK, RUN, SIZES, class_of};
use super::pages::{MAX_PAGES, PageSet};
use super::{AllocError, Arena, ArenaConfig, Buffer, Error, HugePages, MAX_LEN};
use crate::rng::SmallRng;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::thread::spawn_named;
use crate::vm::PageSize;

mod pages;

const MIB: u64 = 1 << 20;

fn arena(limit_bytes: u64, huge_pages: HugePages) -> Arc<Arena> {
    arena_of(PageSize::system(), limit_bytes, huge_pages)
}

fn arena_of(page: PageSize, limit_bytes: u64, huge_pages: HugePages) -> Arc<Arena> {
    Arena::with_shards(ArenaConfig { limit_bytes, huge_pages }, 4, page).unwrap()
}

/// A length from 512 bytes to 1 MiB, uniform over the powers of two.
fn random_len(rng: &mut SmallRng) -> usize {
    let low = 512 << rng.below(11);
    (low + rng.below(low)) as usize
}

/// Checks every class, and that the sum of shards, classes and pool is the committed bytes.
fn audit(arena: &Arena) {
    let inner = arena.inner();
    let stats = arena.stats();
    let mut backed = stats.idle_bytes;
    for (class, stats) in stats.classes.iter().enumerate() {
        let c = inner.class(class);
        c.audit();
        let live = stats.used_blocks + stats.magazine_blocks;
        assert_eq!(c.counts().3 as u64, live, "live blocks of class {class}");
        backed += c.touched_bytes();
    }
    if stats.runs == 0 {
        assert_eq!(backed, stats.committed_bytes, "all committed bytes are found");
    }
    assert!(stats.used_bytes >= stats.requested_bytes);
    assert!(stats.committed_bytes >= stats.used_bytes + stats.magazine_bytes);
    assert_eq!(stats.slack_bytes, stats.committed_bytes - stats.used_bytes);
}

#[test]
fn classes_waste_little_and_lengths_find_the_smallest() {
    assert_eq!(SIZES.len(), CLASSES);
    for pair in SIZES.windows(2) {
        assert!(pair[0] < pair[1]);
        let growth = pair[1] - pair[0];
        assert!(growth <= pair[0], "at most a doubling");
        assert!(pair[0] < 2 << 10 || growth * 4 <= pair[0], "at most a quarter more");
    }
    for size in SIZES {
        assert_eq!(size % 512, 0, "whole sectors");
    }
    for pages in 1..=8 {
        assert!(SIZES.contains(&(pages * 4096)), "so {pages} of 4 KiB are aligned to 4 KiB");
    }
    for len in (1..5000).chain((5000..=MAX_BLOCK).step_by(509)).chain([MAX_BLOCK]) {
        let expected = SIZES.iter().position(|size| *size as usize >= len).unwrap();
        assert_eq!(class_of(len), expected, "class of {len}");
    }
    assert_eq!(class_of(MAX_BLOCK + 1), RUN);
}

proptest! {
    #[test]
    fn page_sets_are_sets(
        ranges in prop::collection::vec((0..MAX_PAGES, 1..100usize, any::<bool>()), 1..20),
        keep in 0..MAX_PAGES,
    ) {
        let mut set = PageSet::EMPTY;
        let mut model = vec![false; MAX_PAGES];
        for (first, count, insert) in ranges {
            let count = count.min(MAX_PAGES - first);
            if insert { set.insert_range(first, count) } else { set.remove_range(first, count) }
            model[first..first + count].fill(insert);
            prop_assert_eq!(set.contains_range(first, count), insert);
        }
        let total = model.iter().filter(|member| **member).count();
        prop_assert_eq!(set.count(), total);
        prop_assert_eq!(set.count_range(0, MAX_PAGES), total);
        let mut from_runs = vec![false; MAX_PAGES];
        set.runs().for_each(|(first, count)| from_runs[first..first + count].fill(true));
        prop_assert_eq!(&from_runs, &model);
        set.keep_highest(keep);
        let kept: Vec<_> = (0..MAX_PAGES).filter(|page| set.contains(*page)).collect();
        let highest: Vec<_> = (0..MAX_PAGES).filter(|page| model[*page]).collect();
        prop_assert_eq!(&kept[..], &highest[total.saturating_sub(keep)..]);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Alloc(usize),
    Free(usize),
    Purge,
    Limit(u64),
}

fn step() -> impl Strategy<Value = Operation> {
    let len = prop_oneof![
        4 => 1..4096usize,
        4 => 4096..(64usize << 10),
        2 => (64usize << 10)..MAX_BLOCK,
        1 => MAX_BLOCK..(5usize << 20),
    ];
    prop_oneof![
        8 => len.prop_map(Operation::Alloc),
        6 => any::<usize>().prop_map(Operation::Free),
        1 => Just(Operation::Purge),
        1 => (1..24u64).prop_map(|mib| Operation::Limit(mib * MIB)),
    ]
}

/// A live buffer with its expected length and content.
struct LiveBuffer {
    buffer: Buffer,
    len: usize,
    tag: u8,
}

impl LiveBuffer {
    fn new(mut buffer: Buffer, len: usize, tag: u8) -> Self {
        assert_eq!(buffer.len(), len);
        assert!(buffer.footprint() >= len);
        let align = if len.is_multiple_of(4096) { 4096 } else { 512 };
        assert_eq!(buffer.as_ptr().addr() % align, 0, "alignment of {len} bytes");
        buffer.fill(tag);
        Self { buffer, len, tag }
    }

    fn check(&self) {
        assert_eq!(self.buffer.len(), self.len);
        assert!(
            self.buffer.iter().all(|byte| *byte == self.tag),
            "no other code changed its bytes"
        );
    }
}

fn run_against_model(steps: &[Operation], huge: HugePages, page: PageSize) {
    let arena = arena_of(page, 16 * MIB, huge);
    let mut model: Vec<LiveBuffer> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let committed = arena.committed_bytes();
        match *step {
            Operation::Alloc(len) => match arena.alloc(len) {
                Ok(buffer) => model.push(LiveBuffer::new(buffer, len, number as u8)),
                Err(AllocError::Exhausted { used, limit, .. }) => {
                    // Waste that no release can undo: pages that small blocks share.
                    let used_by_model: u64 =
                        model.iter().map(|l| l.buffer.footprint() as u64).sum();
                    assert_eq!(used, used_by_model);
                    let page = page.bytes() as u64;
                    // A block may begin and end on a shared page.
                    let shared = |l: &LiveBuffer| match l.buffer.footprint() as u64 {
                        small if page.is_multiple_of(small) && small < page => 1,
                        bytes => 2 * u64::from(!bytes.is_multiple_of(page)),
                    };
                    let sharing: u64 = model.iter().map(shared).sum();
                    let least =
                        used_by_model + len.next_multiple_of(4096) as u64 * 5 / 4 + sharing * page;
                    assert!(
                        least + 2 * page > limit,
                        "{len} bytes refused at {used_by_model} of {limit}"
                    );
                }
                Err(other) => panic!("{other}"),
            },
            Operation::Free(_) if model.is_empty() => {}
            Operation::Free(which) => {
                let live = model.swap_remove(which % model.len());
                live.check();
            }
            Operation::Purge => _ = arena.purge(),
            Operation::Limit(bytes) => _ = arena.set_limit(bytes),
        }
        let allowed = arena.limit_bytes().max(committed);
        assert!(arena.committed_bytes() <= allowed, "the limit holds");
        let used: u64 = model.iter().map(|l| l.buffer.footprint() as u64).sum();
        assert_eq!(arena.used_bytes(), used);
        let requested: u64 = model.iter().map(|l| l.len as u64).sum();
        assert_eq!(arena.stats().requested_bytes, requested);
        audit(&arena);
    }
    model.iter().for_each(LiveBuffer::check);
    let mut spans: Vec<_> =
        model.iter().map(|l| (l.buffer.as_ptr().addr(), l.buffer.footprint())).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "buffers do not overlap");
    model.clear();
    arena.purge();
    audit(&arena);
    assert_eq!(arena.committed_bytes(), 0, "all memory is freed and released");
    assert_eq!(arena.stats().chunks, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn agrees_with_a_naive_model(steps in prop::collection::vec(step(), 1..120)) {
        run_against_model(&steps, HugePages::Never, PageSize::system());
    }

    #[test]
    fn agrees_with_a_naive_model_on_huge_pages(steps in prop::collection::vec(step(), 1..120)) {
        run_against_model(&steps, HugePages::Always, PageSize::system());
    }

    #[test]
    fn agrees_with_a_naive_model_on_pages_of_other_sizes(
        steps in prop::collection::vec(step(), 1..120),
        kib in prop_oneof![Just(16usize), Just(64)],
        huge in prop_oneof![Just(HugePages::Never), Just(HugePages::Always)],
    ) {
        run_against_model(&steps, huge, PageSize::of(kib << 10));
    }
}

#[test]
fn lengths_out_of_range_have_errors_of_their_own() {
    let arena = arena(4 * MIB, HugePages::Never);
    assert!(matches!(arena.alloc(0), Err(AllocError::Empty)));
    let Err(AllocError::TooLarge { len, max }) = arena.alloc(MAX_LEN + 1) else {
        panic!("too large")
    };
    assert_eq!((len, max), (MAX_LEN + 1, MAX_LEN));
    assert!(matches!(arena.alloc(usize::MAX), Err(AllocError::TooLarge { .. })));
    let Err(AllocError::Exhausted { needed, used, limit, .. }) = arena.alloc(MAX_LEN) else {
        panic!("exhausted")
    };
    assert_eq!((needed, used, limit), (MAX_LEN as u64, 0, 4 * MIB));
    assert_eq!(arena.stats().exhausted, 1);
    let config = ArenaConfig { limit_bytes: 4095, huge_pages: HugePages::Auto };
    assert!(matches!(Arena::new(config), Err(Error::LimitTooSmall { .. })));
    assert_eq!(arena.alloc(1).unwrap().len(), 1);
}

#[test]
fn the_whole_limit_can_be_allocated_in_any_size_after_any_other() {
    let limit_pages = PageSize::system().count(64 * MIB as usize);
    for huge in [HugePages::Never, HugePages::Auto, HugePages::Always] {
        let arena = arena(64 * MIB, huge);
        for round in 0..2 {
            for size in SIZES.map(|size| size as usize).into_iter().chain([3 << 20, 64 << 20]) {
                // A chunk has whole blocks only, and commits the whole page of its last one.
                let page = PageSize::system();
                let of_chunk = (CHUNK_BYTES / size).max(1);
                let pages = page.count(of_chunk * size);
                let (chunks, rest) = (limit_pages / pages, limit_pages % pages);
                let expected = chunks * of_chunk + rest * page.bytes() / size;
                let mut live = Vec::with_capacity(expected);
                loop {
                    match arena.alloc(size) {
                        Ok(buffer) => live.push(buffer),
                        Err(AllocError::Exhausted { .. }) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
                // A block that needs a page more is refused if it could need two.
                let is_even = page.divides(size) || page.bytes().is_multiple_of(size);
                let least = if is_even { expected } else { expected - 2 };
                let found = live.len();
                let text = format!("{found} blocks of {size} ({huge:?}, round {round})");
                assert!((least..=expected).contains(&found), "{text}: {least} to {expected}");
                assert!(arena.committed_bytes() <= 64 * MIB);
                // Free from the middle, so that chunks become empty in an irregular order.
                while !live.is_empty() {
                    live.swap_remove(live.len() / 2);
                }
            }
        }
        audit(&arena);
    }
}

#[test]
fn one_live_block_per_chunk_does_not_keep_the_others() {
    let arena = arena(32 * MIB, HugePages::Always);
    let mut live: Vec<_> = (0..4096).map(|_| arena.alloc(8192).unwrap()).collect();
    assert!(arena.alloc(512).is_err());
    let mut number = 0;
    live.retain(|_| {
        number += 1;
        number % 256 == 0
    });
    let large: Vec<_> = (0..31).map(|_| arena.alloc(MIB as usize).unwrap()).collect();
    assert_eq!(arena.used_bytes(), 31 * MIB + live.len() as u64 * 8192);
    assert!(arena.committed_bytes() <= 32 * MIB);
    drop(large);
    audit(&arena);
}

#[test]
fn fuller_chunks_are_preferred() {
    let arena = arena(64 * MIB, HugePages::Never);
    let size = 256 << 10;
    // Two chunks of eight; leave one block in the first and six in the second.
    let mut live: Vec<_> = (0..16).map(|_| arena.alloc(size).unwrap()).collect();
    let chunk = |buffer: &Buffer| buffer.as_ptr().addr() / CHUNK_BYTES;
    let (first, second) = (chunk(&live[0]), chunk(&live[15]));
    assert_ne!(first, second);
    live.drain(14..);
    live.drain(1..8);
    let next = arena.alloc(size).unwrap();
    assert_eq!(chunk(&next), second);
}

#[test]
fn the_limit_can_change_at_run_time() {
    let arena = arena(32 * MIB, HugePages::Auto);
    let mut live: Vec<_> = (0..512).map(|_| arena.alloc(16384).unwrap()).collect();
    assert_eq!(arena.set_limit(4 * MIB), 8 * MIB, "live buffers stay");
    assert!(matches!(arena.alloc(512 << 10), Err(AllocError::Exhausted { .. })));
    while live.len() > 256 {
        live.pop();
        assert_eq!(arena.used_bytes(), live.len() as u64 * 16384);
        assert_eq!(arena.committed_bytes(), arena.used_bytes(), "freed bytes are released at once");
    }
    assert_eq!(arena.committed_bytes(), 4 * MIB);
    live.pop();
    live.push(arena.alloc(8192).unwrap());
    assert!(arena.committed_bytes() <= 4 * MIB);
    assert_eq!(arena.set_limit(8 * MIB), arena.committed_bytes());
    live.push(arena.alloc(2 << 20).unwrap());
    live.clear();
    assert_eq!(arena.set_limit(0), 0);
    assert!(arena.alloc(1).is_err());
    audit(&arena);
}

#[test]
fn zeroed_buffers_are_zero_in_reused_memory() {
    let arena = arena(4 * MIB, HugePages::Never);
    arena.alloc(5000).unwrap().fill(0xff);
    let buffer = arena.alloc_zeroed(5000).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0));
}

#[test]
fn buffers_outlive_every_handle() {
    for lens in [vec![1, 512, 8192], vec![8192; 100], vec![3 << 20, 700, 1 << 20]] {
        let arena = arena(32 * MIB, HugePages::Auto);
        let mut live: Vec<_> = lens
            .iter()
            .enumerate()
            .map(|(i, len)| LiveBuffer::new(arena.alloc(*len).unwrap(), *len, i as u8))
            .collect();
        drop(arena.alloc(8192).unwrap());
        let other = Arc::clone(&arena);
        drop(arena);
        live.push(LiveBuffer::new(other.alloc(100).unwrap(), 100, 200));
        drop(other);
        // Another thread drops the last buffer.
        let last = live.swap_remove(0);
        live.iter().for_each(LiveBuffer::check);
        drop(live);
        spawn_named("last-buffer", move || last.check()).unwrap().join().unwrap();
    }
}

#[test]
fn the_arena_is_destroyed_once_by_the_last_owner() {
    // Several threads drop handles and buffers at the same time.
    for round in 0..200 {
        let arena = arena(8 * MIB, HugePages::Never);
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let mine = Arc::clone(&arena);
                let early: Vec<_> = (0..20).map(|i| mine.alloc(512 << (i % 8)).unwrap()).collect();
                spawn_named("end", move || {
                    let late: Vec<_> = (0..20).map(|_| mine.alloc(4096).unwrap()).collect();
                    if (thread + round) % 2 == 0 {
                        drop((late, mine, early));
                    } else {
                        drop((early, mine, late));
                    }
                })
                .unwrap()
            })
            .collect();
        drop(arena);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn blocks_freed_by_another_thread_are_reused() {
    let arena = arena(16 * MIB, HugePages::Never);
    for _ in 0..20 {
        let live: Vec<_> = (0..1500).map(|_| arena.alloc(8192).unwrap()).collect();
        assert_eq!(arena.used_bytes(), 1500 * 8192);
        spawn_named("freer", move || drop(live)).unwrap().join().unwrap();
        assert_eq!(arena.used_bytes(), 0);
    }
    arena.purge();
    assert_eq!(arena.committed_bytes(), 0);
    audit(&arena);
}

fn rss_bytes() -> u64 {
    crate::memory::rss_bytes().expect("`/proc` is readable")
}

/// Threads allocate, write, check and free at random, `rounds` times each.
fn stress(limit: u64, huge: HugePages, threads: u64, rounds: u64) {
    let arena = arena(limit, huge);
    let before = rss_bytes();
    let (peak_rss, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let done = Arc::new(AtomicBool::new(false));
    let worker = |seed: u64| {
        let (arena, peak, refused) = (arena.clone(), peak_rss.clone(), refused.clone());
        spawn_named("stress", move || {
            let mut rng = SmallRng::from_seed(seed);
            let mut live: HashMap<u64, LiveBuffer> = HashMap::new();
            let share = limit * 9 / 8 / threads;
            let mut held = 0;
            for round in 0..rounds {
                let len = random_len(&mut rng);
                match arena.alloc(len) {
                    Ok(buffer) => {
                        held += buffer.footprint() as u64;
                        live.insert(round, LiveBuffer::new(buffer, len, seed as u8 ^ round as u8));
                    }
                    Err(AllocError::Exhausted { .. }) => {
                        refused.fetch_add(1, Relaxed);
                    }
                    Err(other) => panic!("{other}"),
                }
                while held > share || (held > 0 && rng.below(3) == 0) {
                    let key = *live.keys().next().unwrap();
                    let old = live.remove(&key).unwrap();
                    old.check();
                    held -= old.buffer.footprint() as u64;
                }
                if round % 64 == 0 {
                    assert!(arena.committed_bytes() <= limit, "the limit holds");
                    peak.fetch_max(rss_bytes(), Relaxed);
                }
            }
            live.values().for_each(LiveBuffer::check);
        })
        .unwrap()
    };
    let workers: Vec<_> = (1..=threads).map(worker).collect();
    let watched = (arena.clone(), done.clone());
    let watcher = spawn_named("watcher", move || {
        while !watched.1.load(Relaxed) {
            assert!(watched.0.committed_bytes() <= limit, "the limit holds at any moment");
            assert!(watched.0.slack_bytes() <= limit);
            crate::sync::thread::yield_now();
        }
    })
    .unwrap();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    done.store(true, Relaxed);
    watcher.join().unwrap();
    let growth = peak_rss.load(Relaxed).saturating_sub(before);
    let stats = arena.stats();
    println!(
        "stress: {threads} threads, {huge:?}, RSS grew by {} MiB of {}, {} refused, {} purges, {} MiB purged",
        growth / MIB,
        limit / MIB,
        refused.load(Relaxed),
        stats.purges,
        stats.purged_bytes / MIB,
    );
    // Other tests run in this process; they, the stacks and the test's own maps are the margin.
    assert!(growth <= limit + 192 * MIB, "RSS grew by {growth} under a limit of {limit}");
    assert_eq!(stats.used_bytes, 0);
    audit(&arena);
    arena.purge();
    assert_eq!(arena.committed_bytes(), 0);
    audit(&arena);
}

#[test]
fn stress_of_sizes_stays_within_the_limit() {
    stress(64 * MIB, HugePages::Never, 8, 3_000);
}

#[test]
fn stress_on_huge_pages_stays_within_the_limit() {
    stress(96 * MIB, HugePages::Auto, 4, 3_000);
    stress(24 * MIB, HugePages::Always, 3, 2_000);
}
