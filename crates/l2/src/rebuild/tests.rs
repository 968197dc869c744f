//! The order of damage, of the frontier and of reuse, and memory, without devices.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::thread::spawn_named;

use super::Rebuild;
use crate::geometry::Geometry;
use crate::record::{KeyHash, MAX_SEGMENT_UNITS};

/// A rebuild with mutable keys of a full ring of eight segments, of which the newest was read.
/// Returns the sequence number of the newest, too.
fn begun() -> (Rebuild, u64) {
    let geometry = Geometry::choose("test", 8 << 20, Some(960 << 10)).unwrap();
    assert_eq!(geometry.segments, 8);
    let rebuild = Rebuild::new(geometry, true, 0);
    let newest = geometry.first_seq() + 7;
    rebuild.begin(geometry.first_seq(), newest, 1);
    (rebuild, newest)
}

#[test]
fn a_damaged_segment_is_hidden_until_its_void_records_have_left_the_index() {
    let (rebuild, newest) = begun();
    assert_eq!(rebuild.claim(), Some(newest - 1));
    rebuild.finish(newest - 1);
    assert!(!rebuild.frontier().hides(newest - 1));
    assert_eq!(rebuild.claim(), Some(newest - 2));
    rebuild.record_damage((newest - 2, 100));
    rebuild.finish(newest - 2);
    assert!(rebuild.frontier().hides(newest - 2), "some of its records are void");
    assert!(!rebuild.frontier().hides(newest - 1), "it precedes no damage");
    // Nothing older is valid, so it is not read.
    assert_eq!(rebuild.claim(), None);
    rebuild.end(2);
    assert!(!rebuild.frontier().hides(newest - 2));
}

#[test]
fn older_damage_that_is_found_later_restores_nothing() {
    let (rebuild, newest) = begun();
    // Two threads read a segment each. The reader of the newer one is the first to find damage.
    assert_eq!(rebuild.claim(), Some(newest - 1));
    assert_eq!(rebuild.claim(), Some(newest - 2));
    rebuild.record_damage((newest - 1, 100));
    rebuild.record_damage((newest - 2, MAX_SEGMENT_UNITS));
    assert_eq!(rebuild.damage(), (newest - 1, 100));
    assert_eq!(rebuild.new_damage(), Some((newest - 1, 100)));
    // In one segment, too.
    rebuild.record_damage((newest - 1, 50));
    assert_eq!(rebuild.damage(), (newest - 1, 100));
    rebuild.finish(newest - 2);
    rebuild.finish(newest - 1);
    assert!(rebuild.frontier().hides(newest - 2));
    assert!(rebuild.frontier().hides(newest - 1));
}

#[test]
fn a_segment_is_not_reused_while_it_is_read() {
    // A writer that does not wait may be late, but not in every round.
    for _ in 0..100 {
        let rebuild = Arc::new(begun().0);
        let seq = rebuild.claim().expect("older segments remain");
        let begins = Arc::new(AtomicBool::new(false));
        let writer = {
            let (rebuild, begins) = (Arc::clone(&rebuild), Arc::clone(&begins));
            let segment = rebuild.geometry.segment_of(seq);
            let reuse = move || {
                begins.store(true, Ordering::Release);
                rebuild.claim_for_reuse(segment);
                rebuild.state.lock().read
            };
            spawn_named("l2-test-writer", reuse).unwrap()
        };
        while !begins.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        (0..100).for_each(|_| std::thread::yield_now());
        rebuild.finish(seq);
        assert_eq!(writer.join().unwrap(), 2, "reused while it was read");
    }
}

#[test]
fn superseded_keys_count_as_memory_until_the_end_without_a_lock() {
    let geometry = Geometry { segment_bytes: 64 << 10, segments: 4, last_page: 1 << 20 };
    let rebuild = Rebuild::new(geometry, true, 0);
    let before = rebuild.memory_bytes();
    rebuild.note_superseded(KeyHash(1));
    let state = rebuild.state.lock();
    assert_eq!(rebuild.memory_bytes(), before + state.superseded.memory_bytes());
    assert!(rebuild.memory_bytes() > before);
    drop(state);
    rebuild.end(1);
    assert_eq!(rebuild.memory_bytes(), before);
}
