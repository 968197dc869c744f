//! Tests of counters against plain sums.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests with real threads; the model checker has tests of its own"
)]

use proptest::prelude::*;

use super::*;

crate::counters! {
    /// Counters of the tests.
    table TestCounters;
    labels side = ["north", "south"];
    labels size = ["small", "middle", "large"];
    /// Split in two,
    /// with help on two lines.
    passed: side;
    /// Not split | at all.
    stuck;
    /// Split in three.
    weighed: size;
}

const CELLS: usize = 6;

#[test]
fn rows_become_cells_in_order() {
    assert_eq!(cells(TestCounters::ROWS), CELLS);
    assert_eq!(TestCounters::PASSED.cells(), 0..2);
    assert_eq!(TestCounters::STUCK.cells(), 2..3);
    assert_eq!(TestCounters::WEIGHED.cells(), 3..6);
    assert_eq!(TestCounters::WEIGHED.at(2), 5);
    assert_eq!(TestCounters::ROWS[0].help, "Split in two, with help on two lines.");
    assert_eq!(TestCounters::ROWS[1].labels, [""; 0]);

    let counters = TestCounters::new();
    counters.add(TestCounters::WEIGHED, 1, 7);
    let seen: Vec<_> =
        counters.snapshot().iter().map(|cell| (cell.name, cell.label, cell.value)).collect();
    assert_eq!(
        seen,
        [
            ("passed", Some("north"), 0),
            ("passed", Some("south"), 0),
            ("stuck", None, 0),
            ("weighed", Some("small"), 0),
            ("weighed", Some("middle"), 7),
            ("weighed", Some("large"), 0),
        ]
    );
    assert_eq!(format!("{counters:?}"), r#"{"weighed{middle}": 7}"#);
}

#[test]
#[should_panic(expected = "no such label")]
fn a_label_of_another_row_is_refused() {
    TestCounters::new().add(TestCounters::STUCK, 1, 1);
}

#[test]
#[should_panic]
fn a_cell_of_another_table_is_refused() {
    TestCounters::new().add_at(CELLS, 1);
}

#[test]
fn shards_do_not_share_cache_lines() {
    let counters = Sharded::<1>::new();
    assert_eq!(align_of::<Cells<1>>(), 128);
    assert_eq!(size_of::<Cells<17>>(), 256);
    assert!(std::ptr::from_ref(&counters.shards[0]).addr().is_multiple_of(128));
}

#[test]
fn markdown_has_a_line_per_row() {
    let text = markdown(TestCounters::ROWS);
    assert_eq!(text.lines().count(), 2 + TestCounters::ROWS.len());
    assert!(text.contains("| `stuck` |  | Not split \\| at all. |"), "{text}");
    assert!(text.contains("| `weighed` | small, middle, large | Split in three. |"), "{text}");
}

/// More concurrent threads than exclusive slots: some count in the overflow shards.
#[test]
fn many_threads_lose_no_count() {
    const THREADS: usize = sync::EXCLUSIVE_SLOTS + 2 * OVERFLOW_SHARDS;
    const ADDS: u64 = 200;
    let counters = TestCounters::new();
    let all_alive = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // Resolving assigns the slot before another thread exits.
                let shard = counters.shard();
                all_alive.wait();
                for _ in 0..ADDS {
                    shard.add(TestCounters::STUCK, 0, 1);
                    counters.add(TestCounters::PASSED, 1, 2);
                }
                all_alive.wait();
            });
        }
    });
    let threads = THREADS as u64;
    assert_eq!(counters.total(TestCounters::STUCK), threads * ADDS);
    assert_eq!(counters.sum(TestCounters::PASSED.at(0)), 0);
    assert_eq!(counters.sum(TestCounters::PASSED.at(1)), 2 * threads * ADDS);
}

/// New threads reuse the slots of exited threads, and continue from their counts.
#[test]
fn reused_slots_lose_no_count() {
    let counters = TestCounters::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    std::thread::scope(|inner| {
                        inner.spawn(|| counters.add(TestCounters::STUCK, 0, 1));
                    });
                }
            });
        }
    });
    assert_eq!(counters.total(TestCounters::STUCK), 400);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sums_are_the_sums_over_threads(
        adds in prop::collection::vec(
            prop::collection::vec((0..CELLS, any::<u64>()), 0..50), 1..5)
    ) {
        let table = TestCounters::new();
        let counters = &table;
        std::thread::scope(|scope| {
            for thread in &adds {
                scope.spawn(move || {
                    for &(cell, n) in thread {
                        counters.add_at(cell, n);
                    }
                });
            }
        });
        let mut naive = [0u64; CELLS];
        for &(cell, n) in adds.iter().flatten() {
            naive[cell] = naive[cell].wrapping_add(n);
        }
        let seen: Vec<u64> = counters.snapshot().iter().map(|cell| cell.value).collect();
        prop_assert_eq!(&seen[..], &naive[..]);
        for (cell, expected) in naive.iter().enumerate() {
            prop_assert_eq!(counters.sum(cell), *expected);
        }
    }
}
