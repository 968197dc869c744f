//! Tests of pages larger than blocks, and of locked pages.

use super::super::classes::Geometry;
use super::*;
use crate::vm;

const KIB: usize = 1 << 10;

#[test]
fn pages_of_blocks_and_blocks_on_pages_agree() {
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

/// Live blocks keep their bytes when other blocks on the page are freed and purged. The page is
/// committed until its last block is freed.
#[test]
fn a_page_is_released_with_its_last_block() {
    for (kib, len) in [
        (4, 2560),
        (4, 5 * KIB),
        (4, 14 * KIB),
        (16, 512),
        (16, 4096),
        (64, 2048),
        (64, 12 * KIB),
        (64, 48 * KIB),
    ] {
        let arena = arena_of(PageSize::of(kib * KIB), 32 * MIB, HugePages::Never);
        let page = kib * KIB;
        let mut live: Vec<_> = (0..(16 * page / len).max(16))
            .map(|i| LiveBuffer::new(arena.alloc(len).unwrap(), len, i as u8))
            .collect();
        let pages_of = |live: &[LiveBuffer]| {
            let pages = live.iter().flat_map(|l| {
                let start = l.buffer.as_ptr().addr();
                start / page..=(start + l.buffer.footprint() - 1) / page
            });
            pages.collect::<std::collections::BTreeSet<_>>().len()
        };
        let mut number = 0;
        while !live.is_empty() {
            // Free every second buffer, and in the end the last.
            live.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            arena.purge();
            live.iter().for_each(LiveBuffer::check);
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
fn locked_pages_stay_committed_until_they_are_released() {
    for huge in [HugePages::Never, HugePages::Always] {
        let arena = arena(8 * MIB, huge);
        let live: Vec<_> =
            (0..4 * MIB as usize / 8192).map(|_| arena.alloc(8192).unwrap()).collect();
        let locked = live[live.len() / 2].as_ptr().cast();
        // SAFETY: the page belongs to the arena and stays mapped.
        if unsafe { libc::mlock(locked, 8192) } != 0 {
            return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
        }
        drop(live);
        let before = arena.committed_bytes();
        let purged = arena.purge();
        let kept = arena.committed_bytes();
        assert!(kept >= 8192, "the pages of the locked block are resident");
        assert_eq!(purged, before - kept);
        assert_eq!(arena.stats().purged_bytes, purged);
        audit(&arena);
        // The other memory can serve any other size.
        let others = (8 * MIB - kept) / (64 << 10);
        let live: Vec<_> = (0..others).map(|_| arena.alloc(64 << 10).unwrap()).collect();
        assert!(arena.committed_bytes() <= 8 * MIB);
        drop(live);
        // SAFETY: the page belongs to the arena and stays mapped.
        assert_eq!(unsafe { libc::munlock(locked, 8192) }, 0);
        arena.purge();
        assert_eq!(arena.committed_bytes(), 0);
    }
}

/// Runs `body` in a child process, which runs the test of that name only.
#[cfg(not(miri))]
fn in_child_process(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "FOREBAY_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[cfg(not(miri))]
#[test]
fn a_process_that_locks_new_mappings_gets_no_arena() {
    in_child_process(
        "arena::tests::pages::a_process_that_locks_new_mappings_gets_no_arena",
        || {
            // SAFETY: it affects new mappings of this process, which runs nothing else.
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
            // SAFETY: it takes nothing, and unlocks pages of this process, which runs nothing else.
            assert_eq!(unsafe { libc::munlockall() }, 0);
            Arena::new(config).unwrap().alloc(8192).unwrap();
        },
    );
}

/// Memory that the process locks after the arena was created stays committed, and errors name the
/// cause.
#[cfg(not(miri))]
#[test]
fn an_error_names_memory_that_was_locked_later() {
    let arena = arena(64 * KIB as u64, HugePages::Never);
    let block = arena.alloc(64 * KIB).unwrap();
    let start = block.as_ptr().cast();
    // SAFETY: the pages belong to the arena and stay mapped.
    if unsafe { libc::mlock(start, 64 * KIB) } != 0 {
        return crate::testing::skip("memlock", "`ulimit -l` allows no locked page");
    }
    drop(block);
    // Resident memory serves any size, ...
    let live: Vec<_> = (0..7).map(|_| arena.alloc(8192).unwrap()).collect();
    // ... but an idle page between pages of live blocks does not.
    let error = arena.alloc(512).unwrap_err();
    assert!(matches!(error, AllocError::Exhausted { locked: true, .. }), "{error:?}");
    assert!(error.to_string().contains("call munlockall"), "{error}");
    assert_eq!(arena.committed_bytes(), 64 * KIB as u64);
    audit(&arena);
    // SAFETY: the pages belong to the arena and stay mapped.
    assert_eq!(unsafe { libc::munlock(start, 64 * KIB) }, 0);
    drop(arena.alloc(512).unwrap());
    drop(live);
}
