//! Pages that are larger than blocks, and pages that the system does not take back.

use super::super::classes::Geometry;
use super::*;
use crate::vm;

const KIB: usize = 1 << 10;

#[test]
fn blocks_and_pages_find_each_other() {
    for kib in [4, 16, 64] {
        let page = PageSize::of(kib * KIB);
        for class in 0..CLASSES {
            let g = Geometry::of(class, page);
            let touches = |block: usize, number: usize| {
                let (start, end) = (block * g.size, (block + 1) * g.size);
                start < (number + 1) * page.bytes() && number * page.bytes() < end
            };
            let mut most = 0;
            for block in 0..g.blocks {
                let (first, count) = g.pages_of(block);
                most = most.max(count);
                let around = first.saturating_sub(1)..=first + count;
                let pages = around.filter(|number| touches(block, *number));
                assert_eq!(pages.collect::<Vec<_>>(), (first..first + count).collect::<Vec<_>>());
            }
            assert_eq!(most, g.pages, "{} bytes on pages of {kib} KiB", g.size);
            for number in 0..CHUNK_BYTES / page.bytes() {
                let blocks = (0..g.blocks).filter(|block| touches(*block, number));
                assert_eq!(blocks.collect::<Vec<_>>(), g.blocks_on(number).collect::<Vec<_>>());
            }
        }
    }
}

/// Blocks in use keep their bytes when their neighbours on the same page are purged, and the page
/// is counted until the last of them goes.
#[test]
fn a_page_goes_back_when_its_last_block_goes() {
    for (kib, len) in [(16, 512), (16, 4096), (64, 2048), (64, 12 * KIB), (64, 48 * KIB)] {
        let arena = arena_of(PageSize::of(kib * KIB), 32 * MIB, HugePages::Never);
        let page = kib * KIB;
        let mut live: Vec<_> = (0..16 * page / len)
            .map(|i| Live::new(arena.alloc(len).unwrap(), len, i as u8))
            .collect();
        let pages_of = |live: &[Live]| {
            let pages = live.iter().flat_map(|l| {
                let start = l.buffer.as_ptr().addr();
                start / page..=(start + l.buffer.footprint() - 1) / page
            });
            pages.collect::<std::collections::BTreeSet<_>>().len()
        };
        let mut number = 0;
        while !live.is_empty() {
            // Each second one, and at the end the last.
            live.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            arena.purge();
            live.iter().for_each(Live::check);
            assert_eq!(arena.committed_bytes(), (pages_of(&live) * page) as u64, "{kib} {len}");
            audit(&arena);
        }
    }
}

#[test]
fn an_arena_holds_at_least_a_page() {
    let config = |limit_bytes| ArenaConfig { limit_bytes, huge_pages: HugePages::Never };
    let page = PageSize::of(64 * KIB);
    let refused = Arena::with_shards(config(64 * KIB as u64 - 1), 4, page);
    assert!(matches!(refused, Err(Error::LimitTooSmall { least: 65_536, .. })));
    let arena = Arena::with_shards(config(64 * KIB as u64), 4, page).unwrap();
    let live: Vec<_> = (0..128).map(|_| arena.alloc(512).unwrap()).collect();
    assert_eq!(arena.committed_bytes(), 64 * KIB as u64);
    assert!(matches!(arena.alloc(512), Err(AllocError::Exhausted { locked: false, .. })));
    drop(live);
}

#[test]
fn a_run_is_counted_by_whole_pages() {
    let arena = arena_of(PageSize::of(64 * KIB), 32 * MIB, HugePages::Never);
    let run = arena.alloc((3 << 20) + 1).unwrap();
    assert_eq!(run.footprint(), (3 << 20) + 64 * KIB);
    assert_eq!(arena.committed_bytes(), run.footprint() as u64);
    assert_eq!(arena.used_bytes(), run.footprint() as u64);
    drop(run);
    assert_eq!(arena.purge(), (3 << 20) + 64 * KIB as u64);
}

#[cfg(not(miri))]
#[test]
fn locked_pages_stay_committed_until_the_system_takes_them() {
    for huge in [HugePages::Never, HugePages::Always] {
        let arena = arena(8 * MIB, huge);
        let live: Vec<_> =
            (0..4 * MIB as usize / 8192).map(|_| arena.alloc(8192).unwrap()).collect();
        let locked = live[live.len() / 2].as_ptr().cast();
        // SAFETY: the page is the arena's, and stays mapped.
        if unsafe { libc::mlock(locked, 8192) } != 0 {
            return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
        }
        drop(live);
        let before = arena.committed_bytes();
        let purged = arena.purge();
        let kept = arena.committed_bytes();
        assert!(kept >= 8192, "the locked block's pages are resident");
        assert_eq!(purged, before - kept);
        assert_eq!(arena.stats().purged_bytes, purged);
        audit(&arena);
        // The rest can be had for any other size.
        let others = (8 * MIB - kept) / (64 << 10);
        let live: Vec<_> = (0..others).map(|_| arena.alloc(64 << 10).unwrap()).collect();
        assert!(arena.committed_bytes() <= 8 * MIB);
        drop(live);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munlock(locked, 8192) }, 0);
        arena.purge();
        assert_eq!(arena.committed_bytes(), 0);
    }
}

/// Runs the test of that name in a process of its own, and there `body`.
#[cfg(not(miri))]
fn alone(test: &str, body: impl FnOnce()) {
    const MARK: &str = "FOREBAY_ALONE";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[cfg(not(miri))]
#[test]
fn a_process_that_locks_what_it_maps_gets_no_arena() {
    alone("arena::tests::pages::a_process_that_locks_what_it_maps_gets_no_arena", || {
        // SAFETY: changes how memory is mapped, for this process, which runs nothing else.
        if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
            return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
        }
        let config = ArenaConfig { limit_bytes: 4 * MIB, huge_pages: HugePages::Auto };
        let error = Arena::new(config).unwrap_err();
        assert!(matches!(error, Error::Reserve(vm::Error::Locked { .. })), "{error:?}");
        let text = error.to_string();
        for part in ["an arena", "mlockall", "call munlockall"] {
            assert!(text.contains(part), "{text}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munlockall() }, 0);
        Arena::new(config).unwrap().alloc(8192).unwrap();
    });
}

/// What the process locks after the arena was made stays committed, and whoever finds no room
/// is told why.
#[cfg(not(miri))]
#[test]
fn an_arena_that_was_locked_later_says_so_when_it_has_no_room() {
    let arena = arena(64 * KIB as u64, HugePages::Never);
    let block = arena.alloc(64 * KIB).unwrap();
    let start = block.as_ptr().cast();
    // SAFETY: the pages are the arena's, and stay mapped.
    if unsafe { libc::mlock(start, 64 * KIB) } != 0 {
        return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
    }
    drop(block);
    // What is resident serves any size as far as it goes, ...
    let live: Vec<_> = (0..7).map(|_| arena.alloc(8192).unwrap()).collect();
    // ... but an idle page in the middle of others' does not.
    let error = arena.alloc(512).unwrap_err();
    assert!(matches!(error, AllocError::Exhausted { locked: true, .. }), "{error:?}");
    assert!(error.to_string().contains("call munlockall"), "{error}");
    assert_eq!(arena.committed_bytes(), 64 * KIB as u64);
    audit(&arena);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munlock(start, 64 * KIB) }, 0);
    drop(arena.alloc(512).unwrap());
    drop(live);
}
