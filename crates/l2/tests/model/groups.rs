//! A group is forgotten beside writes, lookups, crashes, the rebuild and the warm-up. No block of
//! it returns.

use std::sync::Arc;

use forebay_cache::{Class, Holding, SecondaryCache};

use crate::forget::{BYTES, Fixture, KEYS, check_after_crash, end, open, spawn};
use crate::harness::{PageMapDevice, Pages};
use forebay_base::model::check;

#[test]
fn a_group_is_forgotten_beside_writes_and_lookups() {
    check_beside_writes_and_lookups(Fixture::remove_group);
}

#[test]
fn a_group_is_forgotten_by_a_future_beside_writes_and_lookups() {
    check_beside_writes_and_lookups(Fixture::remove_group_async);
}

fn check_beside_writes_and_lookups(remove_group: fn(&Fixture)) {
    check(400, move || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let fixture = Arc::new(open(device, true, 512 << 10));
        (0..KEYS).for_each(|key| fixture.insert(key));
        fixture.offer();
        let writer = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.insert(0);
                fixture.offer();
                fixture.get(1);
            })
        };
        let remover = {
            let fixture = fixture.clone();
            spawn(move || {
                remove_group(&fixture);
                (0..KEYS).for_each(|key| fixture.get(key));
                fixture.insert(1);
                fixture.offer();
            })
        };
        (0..KEYS).for_each(|key| fixture.get(key));
        let crashed = fixture.crash();
        remover.join().unwrap();
        writer.join().unwrap();
        remove_group(&fixture);
        let later = fixture.crash();
        (0..KEYS).for_each(|key| fixture.get(key));
        end(Arc::into_inner(fixture).expect("all threads have ended"));
        check_after_crash(crashed, 512 << 10);
        check_after_crash(later, 512 << 10);
    });
}

#[test]
fn a_group_is_forgotten_during_the_rebuild_and_the_warm_up() {
    check(200, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let first = open(device, true, 64 << 10);
        (0..KEYS).for_each(|key| first.insert(key));
        first.offer();
        first.l2.flush().unwrap();
        first.remove_group();
        first.insert(0);
        first.offer();
        first.l2.flush().unwrap();
        let (pages, known) = first.crash();
        end(first);
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, pages));
        let fixture = Arc::new(open(device, false, 64 << 10));
        *fixture.known.lock() = known;
        let remover = {
            let fixture = fixture.clone();
            spawn(move || {
                fixture.remove_group_async();
                fixture.insert(1);
                fixture.offer();
            })
        };
        let reader = {
            let fixture = fixture.clone();
            spawn(move || [0, 1, 0].into_iter().for_each(|key| fixture.get(key)))
        };
        remover.join().unwrap();
        let crashed = fixture.crash();
        reader.join().unwrap();
        fixture.l2.wait_warm_up();
        (0..KEYS).for_each(|key| fixture.get(key));
        end(Arc::into_inner(fixture).expect("all threads have ended"));
        check_after_crash(crashed, 64 << 10);
    });
}

/// The segment with the blocks of a forgotten group and with its tombstone is reused.
#[test]
fn a_forgotten_group_does_not_return_when_its_segment_is_reused() {
    // The smallest ring: four segments.
    const SEGMENT: u64 = 960 << 10;
    check(1200, || {
        let device = shuttle::sync::Arc::new(PageMapDevice::new(BYTES, Pages::new()));
        let first = open(device.clone(), true, SEGMENT);
        (0..KEYS).for_each(|key| first.insert(key));
        first.offer();
        first.remove_group();
        let (_, known) = first.crash();
        end(first);
        let write_segment = |fixture: &Fixture| {
            fixture.cache.insert(KEYS, 0).unwrap();
            fixture.offer();
            fixture.l2.flush().unwrap();
        };
        for _ in 1..4 {
            let fixture = open(device.clone(), false, SEGMENT);
            assert!(fixture.l2.wait_rebuilt());
            write_segment(&fixture);
            end(fixture);
        }
        let fixture = Arc::new(open(device, false, SEGMENT));
        *fixture.known.lock() = known;
        assert!(fixture.l2.wait_rebuilt());
        let reader = {
            let fixture = fixture.clone();
            spawn(move || {
                for key in [0, 1, 0, 1] {
                    fixture.get(key);
                    let holding = fixture.l2.holding(&key, Class::Data);
                    assert_eq!(holding, Some(Holding::NotStored), "block of {key}");
                }
            })
        };
        write_segment(&fixture);
        reader.join().unwrap();
        (0..KEYS).for_each(|key| fixture.get(key));
        end(Arc::into_inner(fixture).expect("all threads have ended"));
    });
}
