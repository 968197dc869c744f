//! Lookups and forgets while the log is read: its segments enter the index in any order, and the
//! writer reuses one that nobody has read.

use std::sync::Arc;

use forebay_base::model::check;

use crate::forget::{
    BYTES, Fixture, KEYS, KnownVersions, check_after_crash, end, open, open_with, options, spawn,
};
use crate::harness::{PageMapDevice, Pages};

const SEGMENT: u64 = 64 << 10;

/// An L2 that is being read by two threads. Each of its two oldest segments has a version of all
/// keys, and the newest, which is read before all else, has none.
fn two_versions() -> Fixture {
    let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
    let mut known = KnownVersions::default();
    for (life, keys) in [0..KEYS, 0..KEYS, 0..0].into_iter().enumerate() {
        let fixture = open(device.clone(), life == 0, SEGMENT);
        assert!(fixture.l2.wait_rebuilt());
        *fixture.known.lock() = known;
        keys.for_each(|key| fixture.insert(key));
        fixture.cache.insert(KEYS, 0).unwrap();
        fixture.offer();
        (_, known) = fixture.crash();
        end(fixture);
    }
    let options = options(SEGMENT);
    options.tunables.set("rebuild_threads", "2").unwrap();
    let fixture = open_with(device, false, &options);
    *fixture.known.lock() = known;
    fixture
}

/// Looks a key up until the rebuild has ended.
fn look_up(fixture: &Fixture, key: u64) {
    while !fixture.l2.rebuild().done {
        fixture.get(key);
        shuttle::thread::yield_now();
    }
}

#[test]
fn no_older_version_is_found_while_two_threads_read() {
    check(1500, || {
        let fixture = Arc::new(two_versions());
        let reader = {
            let fixture = fixture.clone();
            spawn(move || look_up(&fixture, 0))
        };
        look_up(&fixture, 1);
        reader.join().unwrap();
        end(Arc::into_inner(fixture).expect("all threads have ended"));
    });
}

/// The segment with the only block of a key is reused before the rebuild reads it. The key is
/// forgotten when the rebuild has ended, and a crash comes at once.
#[test]
fn a_key_is_forgotten_whose_segment_is_reused_unread() {
    // The smallest ring: four segments.
    const SEGMENT: u64 = 960 << 10;
    check(1500, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let mut known = KnownVersions::default();
        for life in 0..4 {
            let fixture = open(device.clone(), life == 0, SEGMENT);
            assert!(fixture.l2.wait_rebuilt());
            *fixture.known.lock() = known;
            match life {
                0 => fixture.insert(0),
                _ => fixture.cache.insert(KEYS, 0).unwrap(),
            }
            fixture.offer();
            (_, known) = fixture.crash();
            end(fixture);
        }
        let fixture = Arc::new(open(device, false, SEGMENT));
        *fixture.known.lock() = known;
        let writer = {
            let fixture = fixture.clone();
            // Writes a tombstone if the rebuild still runs.
            spawn(move || fixture.remove(1))
        };
        assert!(fixture.l2.wait_rebuilt());
        fixture.remove(0);
        let crashed = fixture.crash();
        writer.join().unwrap();
        end(Arc::into_inner(fixture).expect("all threads have ended"));
        check_after_crash(crashed, SEGMENT);
    });
}
